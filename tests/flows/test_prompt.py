"""What the model is told, through a real Gateway."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.gateway import GatewayProcess, RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer


def system_blocks(models: ModelServer, number: int = -1) -> list[str]:
    return [block["text"] for block in models.requests[number].body["system"]]


async def test_the_first_message_finds_a_furnished_workspace_and_the_prompt_stays_the_same_bytes(
    tmp_path: Path, models: ModelServer
) -> None:
    process = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:
        await client.chat("hello [[reply:hi]]")
        await client.chat("and again [[reply:hi]]")
        first, second = system_blocks(models, -2), system_blocks(models, -1)
        assert first[0] == second[0]
        assert "This workspace is new: follow BOOTSTRAP.md" in first[0]
        assert "<name>skill-writer</name>" in first[0]
        (tmp_path / "state" / "workspace" / "BOOTSTRAP.md").unlink()
        await client.chat("once more [[reply:hi]]")
        assert "This workspace is new" not in system_blocks(models)[0]


async def test_the_report_of_a_run_counts_files_skills_and_tools(tmp_path: Path, models: ModelServer) -> None:
    workspace = tmp_path / "state" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "AGENTS.md").write_text("x" * 30_000)
    process = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:

        async def report(number: int) -> dict[str, Any]:
            request = await client.send("agent", {"message": "hi [[reply:yes]]", "idempotencyKey": f"run-{number}"})
            await client.answer(request)
            return (await client.answer(request))["result"]["meta"]["systemPromptReport"]

        first = await report(1)
        sent = system_blocks(models)
        assert first["systemPrompt"]["chars"] == sum(map(len, sent))
        names = [entry["name"] for entry in first["skills"]["entries"]]
        assert "skill-writer" in names
        assert [file["truncated"] for file in first["injectedWorkspaceFiles"][:2]] == [True, False]
        assert first["warnings"][0].startswith("AGENTS.md is too long")
        assert "warnings" not in await report(2)


async def test_skills_status_lists_the_skills_of_an_agent(tmp_path: Path, models: ModelServer) -> None:
    folder = tmp_path / "state" / "workspace" / "skills" / "mine"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: My own\n---\nDo it.\n")
    process = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
    async with process as gateway, gateway.client() as client:
        status = await client.call("skills.status", {})
        mine = next(row for row in status["skills"] if row["name"] == "mine")
        assert (mine["source"], mine["eligible"], mine["bundled"]) == ("openclaw-workspace", True, False)
        assert mine["baseDir"] == str(folder)
        assert mine["missing"] == {"bins": [], "anyBins": [], "env": [], "config": [], "os": []}
        with pytest.raises(RequestFailed, match='unknown agent id "nobody"'):
            await client.call("skills.status", {"agentId": "nobody"})


NEEDY = """---
name: needy
description: Talks to a service
metadata:
  openclaw:
    primaryEnv: NEEDY_KEY
    requires:
      env: [NEEDY_KEY]
---
Run the program.
"""


async def test_a_skill_gets_its_key_and_commands_find_it(gateway: InProcessGateway, models: ModelServer) -> None:
    folder = gateway.state_dir / "workspace" / "skills" / "needy"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(NEEDY)
    look = 'look [[tool:exec {"command":"echo key=$NEEDY_KEY more=$NEEDY_MORE"}]][[next]][[reply:done]]'
    async with gateway.client() as client:

        async def row() -> dict[str, Any]:
            return next(r for r in (await client.call("skills.status", {}))["skills"] if r["name"] == "needy")

        async def printed() -> str:
            await client.chat(look)
            [result] = models.requests[-1].body["messages"][-1]["content"]
            return result["content"]

        assert (await row())["missing"]["env"] == ["NEEDY_KEY"]
        await client.chat("hello")
        assert "<name>needy</name>" not in system_blocks(models)[0]
        change = {"skillKey": "needy", "apiKey": "sk-abc", "env": {"NEEDY_MORE": "yes"}}
        changed = await client.call("skills.update", change)
        assert changed == {
            "ok": True,
            "skillKey": "needy",
            "config": {"apiKey": "__OPENCLAW_REDACTED__", "env": {"NEEDY_MORE": "yes"}},
        }
        assert (await row())["eligible"]
        assert await printed() == "key=sk-abc more=yes"
        assert "<name>needy</name>" in system_blocks(models)[0]
        await client.call("skills.update", {"skillKey": "needy", "env": {"NEEDY_MORE": ""}})
        assert await printed() == "key=sk-abc more="
        await client.call("skills.update", {"skillKey": "needy", "enabled": False})
        assert (await row())["disabled"]
        assert await printed() == "key= more="
        with pytest.raises(RequestFailed, match='unknown skill "nobody"'):
            await client.call("skills.update", {"skillKey": "nobody", "enabled": True})


async def test_a_skill_cannot_change_what_other_commands_run(tmp_path: Path, models: ModelServer) -> None:
    """Neither by the file nor by a method: every command would get the variable."""
    script = tmp_path / "profile.sh"
    script.write_text("echo taken over\n")
    bad = {"BASH_ENV": str(script), "LD_PRELOAD": "/x.so", "PATH": str(tmp_path), "GOOD": "yes"}
    settings = {
        **model_config(models.base_url, models.api_key),
        "skills": {"entries": {"skill-writer": {"env": bad}}},
    }
    command = "bash -c 'echo good=$GOOD set=$BASH_ENV$LD_PRELOAD'"
    async with InProcessGateway(tmp_path / "state", settings) as gateway, gateway.client() as client:
        await client.chat(f'look [[tool:exec {{"command":"{command}"}}]][[next]][[reply:done]]')
        [result] = models.requests[-1].body["messages"][-1]["content"]
        assert result["content"] == "good=yes set="
        patch = {"skills": {"entries": {"skill-writer": {"env": {"NODE_OPTIONS": "--require /x.js"}}}}}
        config = await client.call("config.get", {})
        for method, params in (
            ("skills.update", {"skillKey": "skill-writer", "env": {"NODE_OPTIONS": "--require /x.js"}}),
            ("config.patch", {"raw": json.dumps(patch), "baseHash": config["hash"]}),
        ):
            with pytest.raises(RequestFailed, match="invalid config") as refused:
                await client.call(method, params)
            assert "skills.entries.skill-writer.env.NODE_OPTIONS" in json.dumps(refused.value.error)


async def test_the_agent_finds_the_command_it_is_told_of(tmp_path: Path, models: ModelServer) -> None:
    plain = {"PATH": "/usr/bin:/bin"}
    process = GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key), env=plain)
    async with process as gateway, gateway.client() as client:
        await client.chat('which [[tool:exec {"command":"command -v openclaw sh"}]][[next]][[reply:done]]')
        [result] = models.requests[-1].body["messages"][-1]["content"]
        assert result["content"].splitlines()[0].endswith("/openclaw")
        assert result["content"].splitlines()[1] in ("/usr/bin/sh", "/bin/sh"), "what was there before comes first"
        skills = (await client.call("skills.status", {}))["skills"]
        assert [row["eligible"] for row in skills if row["name"] == "gateway-care"] == [True]


async def test_a_file_that_is_too_long_is_named_in_the_chat_once(gateway: InProcessGateway) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "TOOLS.md").write_text("x" * 30_000)
    async with gateway.client() as client:
        for name in ("one", "two"):
            await client.chat("hello", run_id=name)
        told = await client.event(lambda event, payload: event == "chat" and payload["runId"].startswith("notice-one-"))
        assert "TOOLS.md" in json.dumps(told["payload"])
        assert not [frame for frame in client.events if "notice-two-" in json.dumps(frame)]


def asked(models: ModelServer, number: int) -> dict[str, Any]:
    """What was sent, without the marks that tell the provider how far to remember it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if name != "cache_control"}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(models.requests[number].body)


async def test_every_request_begins_with_the_bytes_of_the_one_before(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    """After a tool turn, new settings, a new name for the session and a restart as well."""
    async with gateway.client() as client:
        await client.chat("first [[reply:One.]]")
        await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Two.]]')
        await client.call("sessions.patch", {"key": "main", "label": "Garden", "thinkingLevel": "low"})
        await client.chat("/verbose full")
        await client.chat("/reasoning on")
        await client.chat("third [[reply:Three.]]")
    await gateway.stop()
    await gateway.start()
    async with gateway.client() as client:
        await client.chat("fourth [[reply:Four.]]")
    bodies = [asked(models, number) for number in range(len(models.requests))]
    assert len(bodies) == 5
    told = [turn_facts(body["messages"]) for body in bodies]
    for earlier, later in itertools.pairwise(bodies):
        assert json.dumps(later["tools"]) == json.dumps(earlier["tools"])
        assert json.dumps(later["system"]) == json.dumps(earlier["system"])
        assert json.dumps(later["messages"][: len(earlier["messages"])]) == json.dumps(earlier["messages"])
    assert "Reasoning: on" in told[-1] and "Reasoning: off" in told[0]
    assert told[2] == "", "what ends with a tool's result has no facts behind it"


def turn_facts(messages: list[dict[str, Any]]) -> str:
    """Takes the facts of the turn off the newest message."""
    blocks = messages[-1]["content"]
    return blocks.pop()["text"] if blocks[-1].get("text", "").startswith("<openclaw-facts>") else ""


async def test_how_much_the_provider_remembered_is_shown(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("/usage full")
        models.reply("Hi.", usage={"input": 100, "cacheRead": 1800, "cacheWrite": 100, "output": 5})
        assert text_of(await client.chat("hello")).endswith("· session agent:main:main · cache 90%")
        assert "🗄️ Cache: 90% hit · 1.8k cached, 100 new" in text_of(await client.chat("/status"))
        [row] = (await client.call("sessions.list", {}))["sessions"]
        assert (row["cacheRead"], row["cacheWrite"]) == (1800, 100)
        [used] = (await client.call("sessions.usage", {}))["sessions"]
        assert used["usage"]["cacheRead"] == 1800


async def test_a_model_that_reasons_in_tags_is_asked_for_them_and_held_to_them(
    tmp_path: Path, models: ModelServer
) -> None:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["minimax"] = config["models"]["providers"].pop("mock")
    config["agents"]["defaults"]["model"] = "minimax/mock-1"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.reply("Let me see. <think>easy</think> So: <final>It is four.</final> Good.", delay_ms=1)
        assert text_of(await client.chat("two and two?", run_id="tags")) == "It is four."
        history = await client.call("chat.history", {"sessionKey": "main"})
        seen = json.dumps([client.of_run("tags"), history["messages"]])
        assert not [word for word in ("Let me see", "easy", "Good") if word in seen]
        [thoughts, answer] = gateway.transcript(history["sessionId"])[-1]["message"]["content"]
        assert answer["text"] == "It is four."
        assert thoughts["thinking"] == "easy\n\nLet me see.  So:  Good."
        assert "## Reasoning Format\n" in system_blocks(models)[0]
        models.reply("No tags at all.")
        assert text_of(await client.chat("again?")) == "No tags at all."


async def test_a_tag_that_quotes_a_message_is_read_by_nobody(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        models.reply("[[reply_to_current]] Here you are.", delay_ms=1)
        assert text_of(await client.chat("where?", run_id="quoting")) == "Here you are."
        assert "## Reply Tags\n" in system_blocks(models)[0]
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "reply_to" not in json.dumps([client.of_run("quoting"), history["messages"]])


async def test_a_picture_named_by_its_path_is_shown_to_a_model_that_sees(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    provider = config["models"]["providers"]["mock"]
    provider["models"].append({**provider["models"][0], "id": "blind-1", "input": ["text"]})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        file = gateway.state_dir.parent / "cat.png"
        Image.new("RGB", (3, 3), "red").save(file)

        def kinds() -> list[str]:
            said = asked(models, -1)["messages"]
            assert turn_facts(said)
            return [block["type"] for block in said[-1]["content"]]

        await client.chat(f"what is on ~/{file.name}?")
        assert kinds() == ["text", "image"]
        await client.chat("and on https://example.com/cat.png or ./nothing.png?")
        assert kinds() == ["text"]
        sent = models.requests[-1].body["messages"]
        assert [block["type"] for block in sent[0]["content"]] == ["text", "image"], "it stays where it was named"
        await client.chat("hi", session_key="agent:main:blind")
        await client.chat("/model mock/blind-1", session_key="agent:main:blind")
        await client.chat(f"what is on {file}?", session_key="agent:main:blind")
        assert kinds() == ["text"]
