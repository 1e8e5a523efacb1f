"""Notes are saved before anything leaves the prompt, through a real Gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.extensions.api import Block, ToolCalling
from openclaw.extensions.points import Loaded
from tests.support import stored
from tests.support.gateway import FEW_TOOLS, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

SUMMARY = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"
LONG = "word " * 8000
MakeGateway = Callable[..., InProcessGateway]


@pytest.fixture
def small(tmp_path: Path, models: ModelServer) -> MakeGateway:
    """A window of 60,000 tokens; notes are due at 25,000, compaction at 40,000."""

    def make(defaults: dict[str, Any] | None = None, **flush: Any) -> InProcessGateway:
        tools = {
            "allow": ["group:fs", "group:runtime", "group:memory"]
        }  # The size of a prompt must not grow with new ones.
        config: dict[str, Any] = model_config(models.base_url, models.api_key, tools=tools)
        config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = 60_000
        config["tools"] = FEW_TOOLS
        config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
        settings = {"softThresholdTokens": 15_000, **flush}
        config["agents"]["defaults"]["compaction"] = {"reserveTokensFloor": 20_000, "memoryFlush": settings}
        config["agents"]["defaults"] |= {"userTimezone": "Pacific/Kiritimati"} | (defaults or {})
        return InProcessGateway(tmp_path / "state", config)

    return make


async def fill(client: WireClient, models: ModelServer, turns: int = 3) -> None:
    for number in range(turns):
        models.reply(f"reply {number}")
        await client.chat(f"message {number}: {LONG}")


def asked(models: ModelServer, number: int) -> str:
    return msgspec.json.encode(models.requests[number].body).decode()


def note(text: str, path: str = "memory/note.md") -> list[Reply]:
    return [Reply(calls=[Call("write", {"path": path, "content": text})]), Reply(text="NO_REPLY")]


def entry(gateway: InProcessGateway) -> dict[str, Any]:
    return stored.sessions(gateway)["agent:main:main"]


async def test_near_the_threshold_the_agent_writes_notes_before_it_answers_and_nobody_sees_it(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        notes = gateway.state_dir / "workspace" / "memory" / "note.md"
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text("- from yesterday")
        calls = len(models.requests)
        models.queue(*note("- the shed is green\n"), Reply(text="hello again"), Reply(text="and again"))
        answer = await client.chat("now?")

        assert text_of(answer) == "hello again"
        assert notes.read_text() == "- from yesterday\n- the shed is green\n"
        flush, _, turn = (asked(models, number) for number in range(calls, calls + 3))
        assert re.search(r"memory/\d{4}-\d\d-\d\d\.md", flush) and "Pacific/Kiritimati" in flush
        assert "now?" not in flush
        assert "about to be condensed" not in turn and "note.md" not in turn
        history = msgspec.json.encode(await client.call("chat.history", {"sessionKey": "main"})).decode()
        assert "about to be condensed" not in history and "note.md" not in history and "NO_REPLY" not in history
        assert not [event for event in client.events if "note.md" in str(event) or "NO_REPLY" in str(event)]
        await client.chat("once more")
        assert len(models.requests) == calls + 4, "one flush per compaction cycle"
        (row,) = (await client.call("sessions.list", {}))["sessions"]
        kept = gateway.transcript(row["sessionId"])
        assert [line["customType"] for line in kept if line.get("customType") == "memory-flush"] == ["memory-flush"] * 2
    await gateway.stop()  # It writes the rows of sessions.
    stored = entry(gateway)
    assert stored["memoryFlushAt"] > 0 and stored["memoryFlushCompactionCount"] == 0


async def test_an_extension_that_blocks_a_call_blocks_it_in_a_flush_too(
    small: MakeGateway, models: ModelServer
) -> None:
    def guard(calling: ToolCalling) -> Block | None:
        return Block("not this file") if "secret" in str(calling.arguments.get("path")) else None

    async with small() as gateway, gateway.client() as client:
        hooks = gateway.gateway.runtime.extensions.hooks["before_tool_call"]
        hooks.append((Loaded(id="guard", source="a test"), guard))
        await fill(client, models)
        models.queue(*note("x", "memory/secret.md"), Reply(text="hello again"))
        assert text_of(await client.chat("now?")) == "hello again"
        assert "does not allow this call: not this file" in "".join(
            asked(models, number) for number in range(len(models.requests))
        )
        assert not (gateway.state_dir / "workspace" / "memory" / "secret.md").exists()


async def test_a_restart_after_a_flush_goes_on_with_the_conversation_not_with_the_notes(
    small: MakeGateway, models: ModelServer
) -> None:
    gateway = small()
    async with gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(*note("- kept\n"), Reply(text="fine"))
        await client.chat("now?")
    async with gateway, gateway.client() as client:
        models.reply("back")
        assert text_of(await client.chat("still there?")) == "back"
        assert "now?" in asked(models, -1) and "note.md" not in asked(models, -1)


async def test_manual_compaction_saves_notes_first_and_the_next_cycle_may_flush_again(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small(softThresholdTokens=0) as gateway, gateway.client() as client:
        await fill(client, models, 2)
        models.queue(*note("- before the summary\n"), Reply(text=SUMMARY))
        await client.chat("/compact")
        assert (gateway.state_dir / "workspace/memory/note.md").read_text() == "- before the summary\n"
        (row,) = (await client.call("sessions.list", {}))["sessions"]
        assert row["compactionCount"] == 1
    assert entry(gateway)["memoryFlushCompactionCount"] == 0


async def test_a_flush_that_fails_does_not_stop_the_answer_and_is_tried_again(
    small: MakeGateway, models: ModelServer
) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(Reply(status=400, message="no"), Reply(text="anyway"))
        assert text_of(await client.chat("now?")) == "anyway"
        models.queue(*note("- second try\n"), Reply(text="good"))
        assert text_of(await client.chat("and now?")) == "good"
        assert (gateway.state_dir / "workspace/memory/note.md").exists()


@pytest.mark.parametrize(
    ("defaults", "flush"),
    [({}, {"enabled": False}), ({"sandbox": {"mode": "all", "workspaceAccess": "ro"}}, {})],
    ids=["switched off", "workspace that may not be written"],
)
async def test_no_flush_where_the_rules_say_so(
    small: MakeGateway, models: ModelServer, defaults: dict[str, Any], flush: dict[str, Any]
) -> None:
    async with small(defaults, **flush) as gateway, gateway.client() as client:
        await fill(client, models)
        models.reply("straight away")
        assert text_of(await client.chat("now?")) == "straight away"
    assert "memoryFlushAt" not in entry(gateway)


async def test_a_flush_can_be_stopped(small: MakeGateway, models: ModelServer) -> None:
    async with small() as gateway, gateway.client() as client:
        await fill(client, models)
        hold = asyncio.Event()
        models.queue(Reply(text="one two three", hold=hold))
        calls = len(models.requests)
        sent = asyncio.create_task(client.chat("now?"))
        await models.wait_for_requests(calls + 1)
        stopped = await client.call("chat.abort", {"sessionKey": "main"})
        assert stopped["aborted"]
        await sent
        hold.set()
