"""Finding words in past conversations with ``sessions_search``, and reading them at an anchor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from openclaw.sessions.entry import SessionEntry
from tests.flows.test_session_tools import invoke
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

pytestmark = pytest.mark.asyncio

GUEST = "agent:main:signal:direct:+15550009"


def texts(history: dict[str, Any]) -> list[str]:
    return [
        "".join(block.get("text", "") for block in message["content"])
        if isinstance(message["content"], list)
        else message["content"]
        for message in history["messages"]
    ]


async def hits(gateway: InProcessGateway, query: str, key: str = "main", **more: Any) -> list[dict[str, Any]]:
    found = await invoke(gateway, "sessions_search", {"query": query, **more}, key)
    assert found["count"] == len(found["hits"]) and "indexed" not in found
    return found["hits"]


async def test_a_model_finds_a_passage_and_reads_what_surrounds_it(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        for number in range(30):
            await client.chat(f"talk {number} [[reply:answer {number}]]", "agent:main:garden")
        await client.chat("the marrow grows behind the shed [[reply:noted]]", "agent:main:garden")
        for number in range(30, 60):
            await client.chat(f"talk {number} [[reply:answer {number}]]", "agent:main:garden")
        models.queue(Reply("", calls=[Call("sessions_search", {"query": "marrow shed"})]), Reply("found"))
        await client.chat("where is the marrow, by the shed?", "main")
        read = models.requests[-1].body["messages"][-1]["content"][0]["content"]
    (anchor,) = re.findall('"anchor":"([^"]+)"', read if isinstance(read, str) else read[0]["text"])
    (hit,) = [hit for hit in await hits(gateway, "marrow shed") if hit["sessionKey"] == "agent:main:garden"]
    assert (hit["role"], hit["anchor"]) == ("user", anchor) and "marrow" in hit["snippet"]
    history = await invoke(gateway, "sessions_history", {"anchor": hit["anchor"]})
    assert history["sessionKey"] == "agent:main:garden" and len(history["messages"]) == 20
    said = " ".join(texts(history))
    assert "talk 29" in said and "marrow" in said and "talk 30" in said and "talk 5 " not in said
    assert len((await invoke(gateway, "sessions_history", {"anchor": hit["anchor"], "limit": 1}))["messages"]) == 1


async def test_earlier_sessions_are_found_and_read_after_a_reset(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("the key is under the stone [[reply:noted]]", "main")
        await client.chat("/new", "main")
        await client.chat("hello [[reply:hi]]", "main")
    (hit,) = await hits(gateway, "stone")
    assert hit["sessionKey"] == "main"
    history = await invoke(gateway, "sessions_history", {"anchor": hit["anchor"]})
    assert "under the stone" in texts(history)[0] and texts(history)[1] == "noted"


async def test_results_of_tools_are_searched_on_request(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat(
            'do [[tool:exec {"command": "echo zuc$((1))chini"}]][[next]][[reply:done]]', "agent:main:work"
        )
    assert await hits(gateway, "zuc1chini") == []
    (hit,) = await hits(gateway, "zuc1chini", includeTools=True)
    assert (hit["role"], hit["toolName"]) == ("toolResult", "exec")
    roles = [m["role"] for m in (await invoke(gateway, "sessions_history", {"anchor": hit["anchor"]}))["messages"]]
    assert roles == ["user", "assistant", "toolResult", "assistant"]


@pytest.mark.parametrize("anchor", ["nothing", "nothing#x", "#", "a#b#c", "../../etc/passwd#x", "x" * 5000])
async def test_a_wrong_anchor_is_an_error_result(gateway: InProcessGateway, anchor: str) -> None:
    found = await invoke(gateway, "sessions_history", {"anchor": anchor})
    assert found["status"] == "error" and "anchor" in found["error"]


async def test_an_anchor_names_a_message_that_exists(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("turnips [[reply:noted]]", "main")
    (hit,) = await hits(gateway, "turnips")
    found = await invoke(gateway, "sessions_history", {"anchor": hit["anchor"] + "0"})
    assert found["error"].startswith("No message at anchor")


async def test_a_guest_finds_its_own_conversation_and_reads_no_other(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("the party is in May [[reply:noted]]", "main")
        entry = SessionEntry(sessionId="0f7f2c1e-0000-4000-8000-000000000000", lastChannel="signal")
        await gateway.gateway.runtime.stores.sessions.update("main", GUEST, lambda _: entry)
        await client.chat("the party is on Friday [[reply:fine]]", GUEST)
    (secret, own) = sorted(await hits(gateway, "party"), key=lambda hit: "Friday" in hit["snippet"])
    assert [hit["anchor"] for hit in await hits(gateway, "party", GUEST)] == [own["anchor"]]
    assert await hits(gateway, "May", GUEST) == []
    assert (await invoke(gateway, "sessions_history", {"anchor": own["anchor"]}, GUEST))["messages"]
    refused = await invoke(gateway, "sessions_history", {"anchor": secret["anchor"]}, GUEST)
    assert refused["status"] == "error" and "May" not in str(refused)


async def test_a_guest_does_not_find_what_was_said_before_a_reset(gateway: InProcessGateway) -> None:
    store = gateway.gateway.runtime.stores.sessions
    async with gateway.client() as client:
        await client.chat("the safe opens with 4711 [[reply:noted]]", GUEST)
        (hit,) = await hits(gateway, "safe")
        await client.chat("/new", GUEST)
        await client.chat("hello [[reply:hi]]", GUEST)
    entry = await store.get("main", GUEST)
    assert entry is not None and entry["previousSessions"]
    await store.update("main", GUEST, lambda entry: SessionEntry(**{**(entry or {}), "lastChannel": "signal"}))
    assert await hits(gateway, "safe", GUEST) == []
    assert (await invoke(gateway, "sessions_history", {"anchor": hit["anchor"]}, GUEST))["status"] == "error"


async def test_other_agents_are_searched_only_when_it_is_allowed(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["list"] = [{"id": "main", "default": True}, {"id": "beta"}]
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await client.chat("a purple cow [[reply:yes]]", "agent:beta:main")
        assert await hits(gateway, "purple") == []
    config["tools"] = {"agentToAgent": {"enabled": True}}
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        (hit,) = await hits(gateway, "purple")
        assert hit["sessionKey"] == "agent:beta:main"
        assert "purple cow" in texts(await invoke(gateway, "sessions_history", {"anchor": hit["anchor"]}))[0]


async def test_a_sandboxed_session_searches_only_what_it_started(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["sandbox"] = {"mode": "non-main"}
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await client.chat("a purple cow [[reply:yes]]", "main")
            await client.chat("a purple hen [[reply:yes]]", "agent:main:box")
        assert len(await hits(gateway, "purple")) == 2
        found = await invoke(gateway, "sessions_search", {"query": "purple"}, "agent:main:box")
        assert isinstance(found, str) or found["hits"] == []
