"""The tools with which an agent looks at sessions, called by a model and by a program."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from openclaw.tools.base import reports_failure
from tests.support import stored
from tests.support.gateway import TOKEN, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

pytestmark = pytest.mark.asyncio


async def invoke(gateway: InProcessGateway, tool: str, args: dict[str, Any] | None = None, key: str = "main") -> Any:
    """The ``details`` of a tool's result, or the error."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        body = {"tool": tool, "args": args or {}, "sessionKey": key}
        async with http.post(f"{gateway.url}/tools/invoke", json=body) as response:
            answer = await response.json()
    if not answer["ok"]:
        return answer["error"]["message"]
    details = answer["result"]["details"]
    text = answer["result"]["content"][0]["text"]
    if details.get("status") == "timeout":
        assert text.startswith("No reply from ")
    elif reports_failure(details):  # A model reads a failure as a sentence.
        assert text.partition("\n\nValid arguments, for example: ")[0] == details["error"]
    elif tool != "session_status":
        assert json.loads(text) == details
    return details


async def store(client: WireClient, key: str, **entry: Any) -> None:
    await client.call("sessions.patch", {"key": key, **entry})


async def test_a_model_lists_the_sessions_and_reads_one(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("remember the milk [[reply:noted]]", "agent:main:shopping")
        call = '[[tool:sessions_list {"messageLimit": 5}]]'
        await client.chat(f"look {call}[[next]][[reply:seen]]")
        listed = models.requests[-1].body["messages"][-1]["content"][0]["content"]
        listed = json.loads(listed if isinstance(listed, str) else listed[0]["text"])
        rows = {row["key"]: row for row in listed["sessions"]}
        assert rows["main"]["kind"] == "main" and rows["agent:main:shopping"]["kind"] == "other"
        row = rows["agent:main:shopping"]
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert Path(row["transcriptPath"]).name == f"{row['sessionId']}.jsonl"
        assert f"{row['sessionId']}.jsonl" in stored.transcripts(gateway)
        assert (row["channel"], row["systemSent"], row["totalTokens"] > 0) == ("webchat", True, True)


async def test_rows_are_filtered_and_capped(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for number in range(3):
            await client.chat("hi", f"agent:main:s{number}")
        await client.chat("hi", "agent:main:signal:group:g")
        await client.chat("hi", "cron:job")
    listed = await invoke(gateway, "sessions_list")
    assert {row["kind"] for row in listed["sessions"]} == {"other", "group", "cron"}
    assert (await invoke(gateway, "sessions_list", {"limit": 2}))["count"] == 2
    (group,) = (await invoke(gateway, "sessions_list", {"kinds": ["group", "nonsense"]}))["sessions"]
    assert (group["key"], group["channel"]) == ("agent:main:signal:group:g", "signal")
    (cron,) = (await invoke(gateway, "sessions_list", {"kinds": ["cron"]}))["sessions"]
    assert (cron["key"], cron["channel"]) == ("cron:job", "internal")
    assert "messages" not in cron
    for name in ("cron:job", "agent:main:cron:job", cron["sessionId"]):
        assert (await invoke(gateway, "sessions_history", {"sessionKey": name}))["sessionKey"] == "cron:job"


async def test_many_results_of_tools_do_not_hide_what_was_said_before_them(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    calls = [Call("read", {"path": f"none-{number}"}) for number in range(40)]
    models.queue(Reply("Looking.", calls=calls), Reply("Nothing there."))
    async with gateway.client() as client:
        await client.chat("look everywhere", "agent:main:work")
    found = await invoke(gateway, "sessions_history", {"sessionKey": "work", "limit": 3})
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "assistant"]
    (row,) = (await invoke(gateway, "sessions_list", {"messageLimit": 2}))["sessions"]
    assert [message["content"][0]["text"] for message in row["messages"]] == ["Looking.", "Nothing there."]


async def test_rows_show_long_messages_shortened(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("y" * 9000))
    async with gateway.client() as client:
        await client.chat("much", "agent:main:work")
    (row,) = (await invoke(gateway, "sessions_list", {"messageLimit": 1}))["sessions"]
    (message,) = row["messages"]
    assert len(message["content"][0]["text"]) < 5000 and "usage" not in message


async def test_history_takes_a_key_or_an_id_and_leaves_tools_out(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat('do [[tool:exec {"command": "echo hi"}]][[next]][[reply:done]]', "agent:main:work")
    (row,) = (await invoke(gateway, "sessions_list"))["sessions"]
    for name in ("agent:main:work", "AGENT:MAIN:WORK", "work", row["sessionId"]):
        found = await invoke(gateway, "sessions_history", {"sessionKey": name})
        assert [message["role"] for message in found["messages"]] == ["user", "assistant", "assistant"], name
        assert found["sessionKey"] == "agent:main:work"
    whole = await invoke(gateway, "sessions_history", {"sessionKey": "work", "includeTools": True})
    assert [message["role"] for message in whole["messages"]] == ["user", "assistant", "toolResult", "assistant"]
    assert whole["contentTruncated"] and not whole["droppedMessages"]
    last = await invoke(gateway, "sessions_history", {"sessionKey": "work", "limit": 1})
    assert [message["role"] for message in last["messages"]] == ["assistant"]


async def test_an_unknown_session_is_an_error_result_and_nothing_is_made(gateway: InProcessGateway) -> None:
    for name in ("nothing", "agent:main:nothing", "global", "unknown", "0f7f2c1e-0000-4000-8000-000000000000"):
        found = await invoke(gateway, "sessions_history", {"sessionKey": name})
        assert found == {"status": "error", "error": f"No session found: {name}"}
        assert str(await invoke(gateway, "session_status", {"sessionKey": name})).startswith("Unknown session")
    assert (await invoke(gateway, "sessions_list"))["count"] == 0
    assert "sessionKey required" in await invoke(gateway, "sessions_history", {})
    assert await invoke(gateway, "sessions_history", {"sessionKey": " "}) == "sessionKey required"


async def test_long_messages_are_shortened_and_old_ones_dropped(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("a" * 10_000, "agent:main:long")
        for _ in range(30):
            await client.chat("b" * 3900, "agent:main:long")
    found = await invoke(gateway, "sessions_history", {"sessionKey": "long"})
    assert found["droppedMessages"] and found["truncated"] and found["bytes"] <= 80 * 1024
    assert len(json.dumps(found["messages"])) <= 90 * 1024
    first = await invoke(gateway, "sessions_list", {"messageLimit": 1})
    assert len(first["sessions"][0]["messages"]) == 1


def last_result(models: ModelServer) -> str:
    """The text of the last tool result that a model got. A full window may have led to other requests since."""
    for request in reversed(models.requests):
        block = request.body["messages"][-1]["content"][0]
        if block["type"] == "tool_result":
            content = block["content"]
            return content if isinstance(content, str) else content[0]["text"]
    raise AssertionError("no model got a result")


def nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(nulls, value.values()))
    return any(map(nulls, value)) if isinstance(value, list) else value is None


@pytest.mark.parametrize(
    ("window", "args", "rows"),
    [
        (200_000, {}, 200),
        (200_000, {"limit": 7}, 7),
        (200_000, {"messageLimit": 20}, None),
        (32_000, {}, None),
        (32_000, {"messageLimit": 20}, None),
        (16_000, {"messageLimit": 3}, None),
    ],
)
async def test_a_long_list_reaches_the_model_as_whole_rows(
    tmp_path: Path, models: ModelServer, window: int, args: dict[str, Any], rows: int | None
) -> None:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = window
    gateway, now = InProcessGateway(tmp_path / "state", config), int(time.time() * 1000)
    more = {"label": None, "lastTo": None, "deliveryContext": {"channel": "signal", "to": "+1555", "accountId": None}}
    entries = {
        f"agent:main:s{number}": {"sessionId": str(uuid4()), "updatedAt": now - number, "thinkingLevel": "low", **more}
        for number in range(230)
    }
    stored.put_sessions(gateway, entries)
    async with gateway, gateway.client() as client:
        if "messageLimit" in args:
            for number in range(4):
                for _ in range(5):
                    await client.chat("x" * 3900, f"agent:main:s{number}")
        await client.chat(f"look [[tool:sessions_list {json.dumps(args)}]][[next]][[reply:seen]]", "agent:main:s9")
        text = last_result(models)
        listed = json.loads(text)
        assert listed["count"] == len(listed["sessions"]) and listed["hasMore"] and not nulls(listed)
        assert listed["count"] == rows if rows else 1 <= listed["count"] < 200
        assert len(text) <= window * 4 * 0.3 and "\n" not in text
        if "messageLimit" in args:
            assert listed["sessions"][0]["messages"]
        call = '[[tool:sessions_history {"sessionKey": "s3", "limit": 1000}]]'
        await client.chat(f"read {call}[[next]][[reply:seen]]", "agent:main:s9")
        assert json.loads(last_result(models))["sessionKey"] == "agent:main:s3"


async def test_a_list_that_shows_everything_says_so(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for number in range(3):
            await client.chat("hi", f"s{number}")
    listed = await invoke(gateway, "sessions_list", {"limit": 3})
    assert (listed["count"], listed["hasMore"]) == (3, False)
    assert (await invoke(gateway, "sessions_list", {"limit": 2}))["hasMore"]


async def test_other_agents_are_out_of_reach_until_it_is_allowed(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["list"] = [{"id": "main", "default": True}, {"id": "beta", "name": "Beta"}]
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await client.chat("hi", "agent:beta:main")
            await client.chat("hi", "main")
        assert [row["key"] for row in (await invoke(gateway, "sessions_list"))["sessions"]] == ["main"]
        found = await invoke(gateway, "sessions_history", {"sessionKey": "agent:beta:main"})
        assert found["status"] == "forbidden" and "tools.agentToAgent.enabled" in found["error"]
        sent = await invoke(gateway, "sessions_send", {"sessionKey": "agent:beta:main", "message": "hi"})
        assert (sent["status"], sent["sessionKey"]) == ("forbidden", "agent:beta:main") and sent["runId"]
        assert await invoke(gateway, "agents_list") == {
            "requester": "main",
            "allowAny": False,
            "agents": [{"id": "main", "configured": True}],
        }
    config["tools"] = {"agentToAgent": {"enabled": True}}
    config["agents"]["list"][0]["subagents"] = {"allowAgents": ["*"]}
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        keys = [row["key"] for row in (await invoke(gateway, "sessions_list"))["sessions"]]
        assert set(keys) == {"main", "agent:beta:main"}
        agents = await invoke(gateway, "agents_list")
        assert (agents["allowAny"], agents["agents"][1]) == (True, {"id": "beta", "name": "Beta", "configured": True})


async def test_a_model_can_be_chosen_although_the_list_names_one_that_is_gone(
    tmp_path: Path, models: ModelServer
) -> None:
    config = model_config(models.base_url, models.api_key)
    name = "mock/mock-1"
    config["agents"]["defaults"]["models"] = {name: {}, "gone/away": {}}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("[[reply:begun]]", "main")
        assert (await invoke(gateway, "session_status", {"model": name}))["changedModel"]


async def test_the_status_card_shows_a_session_and_changes_its_model(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hi", "agent:main:work")
        card = await invoke(gateway, "session_status", {"sessionKey": "work"})
        assert (card["ok"], card["sessionKey"], card["changedModel"]) == (True, "agent:main:work", False)
        version, time, model, *_ = card["statusText"].split("\n")
        assert "OpenClaw" in version and "Model:" in model
        # The prompt sends the model here for the time.
        assert re.fullmatch(r"🕒 Time: [A-Z][a-z]+day \d{4}-\d\d-\d\d \d\d:\d\d \(UTC\)", time)
        assert "🕒" not in text_of(await client.chat("/status")), "a person has a clock"
        own = await invoke(gateway, "session_status")
        assert own["sessionKey"] == "main"
        assert "Unknown model" in await invoke(gateway, "session_status", {"sessionKey": "work", "model": "nope"})
        program = {"sessionKey": "work", "model": "codex-cli/gpt-5.4"}
        assert "a program on the Gateway's machine" in await invoke(gateway, "session_status", program)
        ref = (await client.call("models.list"))["models"][0]
        name = f"{ref['provider']}/{ref['id']}"
        changed = await invoke(gateway, "session_status", {"sessionKey": "work", "model": name})
        assert changed["changedModel"]
        back = await invoke(gateway, "session_status", {"sessionKey": "work", "model": "default"})
        assert back["changedModel"]


async def test_a_sub_agent_has_no_session_tools_unless_they_are_allowed(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    key = "agent:main:subagent:x"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat_as_requester("hi", key)
        names = {tool["name"] for tool in models.requests[-1].body["tools"]}
        assert "read" in names and not {name for name in names if name.startswith(("session", "agents"))}
        assert await invoke(gateway, "sessions_list", key=key) == "Tool not available: sessions_list"
        await client.chat("hi", "main")
        names = {tool["name"] for tool in models.requests[-1].body["tools"]}
        assert {"sessions_list", "sessions_history", "session_status", "agents_list"} <= names
    config["tools"] = {"subagents": {"tools": {"allow": ["sessions_list", "read"]}}}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat_as_requester("hi", key)
        assert {tool["name"] for tool in models.requests[-1].body["tools"]} == {"sessions_list", "read"}
        rows = (await invoke(gateway, "sessions_list", key=key))["sessions"]
        assert [row["key"] for row in rows] == [key]
        assert await client.chat_as_requester("[[reply:fine]]", key) == "fine"
