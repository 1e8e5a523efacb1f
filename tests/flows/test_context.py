"""What a past run was sent can be rebuilt word for word, compared and searched."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


def texts(content: Any) -> list[str]:
    """Every text and tool argument of a message, in any vendor's shape."""
    if isinstance(content, str):
        return [content]
    found: list[str] = []
    for block in content:
        match block["type"]:
            case "text":
                found.append(block["text"])
            case "toolCall":
                found.append(json.dumps(block["arguments"]))
            case "tool_use":
                found.append(json.dumps(block["input"]))
            case "tool_result":
                found += texts(block["content"])
            case _:
                pass
    return found


def all_texts(messages: list[dict[str, Any]]) -> list[str]:
    return [text for message in messages for text in texts(message["content"])]


async def test_every_call_of_a_past_run_is_rebuilt_exactly(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("first [[reply:One.]]")
        await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Two.]]', run_id="run-two")
        await client.chat("third [[reply:Three.]]", run_id="run-three")
        for number, request in ((1, models.requests[1]), (2, models.requests[2])):
            found = await client.call("context.get", {"runId": "run-two", "call": number, "full": True})
            assert found["exact"] and found["calls"] == 2
            told = [found["turnFacts"]["text"]] if number == 1 else []
            assert [*all_texts(found["request"]["messages"]), *told] == all_texts(request.body["messages"])
            assert found["turnFacts"]["after"] == (found["messages"][-1]["entryId"] if told else None)
            [sent] = [block["text"] for block in request.body["system"]]
            assert sent == found["request"]["system"]
            assert [tool["name"] for tool in request.body["tools"]] == found["tools"]["names"]
        last = await client.call("context.get", {})
        assert last["runId"] == "run-three"
        session_id = (await client.call("chat.history", {"sessionKey": "main"}))["sessionId"]
        assert await client.call("context.get", {"key": session_id}) == last
        assert [message["role"] for message in last["messages"]] == [
            "user", "assistant", "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert "request" not in last


async def test_a_difference_names_what_came_and_what_changed(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("first [[reply:One.]]", run_id="run-one")
        workspace = (await client.call("context.get", {"full": True}))["request"]["system"]
        assert workspace
        agents = await client.call("agents.files.get", {"agentId": "main", "name": "AGENTS.md"})
        content = agents["file"]["content"] + "\nAlways greet the gardener.\n"
        await client.call("agents.files.set", {"agentId": "main", "name": "AGENTS.md", "content": content})
        await client.chat("second [[reply:Two.]]", run_id="run-two")
        found = await client.call("context.diff", {"a": "run-one", "b": "run-two"})
        assert "  +Always greet the gardener." in found["changes"]
        assert "messages added: 2" in found["changes"]
        assert "  + assistant: One." in found["changes"]
        assert await client.call("context.diff", {}) == found
        with pytest.raises(RequestFailed, match="No run begins with 'nothing'"):
            await client.call("context.diff", {"a": "nothing", "b": "run-two"})


async def test_a_phrase_is_seen_entering_and_leaving(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:Hi.]]")
        await client.chat("the key is under the Blue Door mat [[reply:Noted.]]", run_id="told")
        await client.chat("what else [[reply:Nothing.]]")
        found = await client.call("context.find", {"phrase": "blue door"})
        assert found["inViewNow"]
        assert [(seen["runId"], seen["change"]) for seen in found["sightings"]] == [("told", "entered")]
        assert found["where"][0].startswith("user message ")
        await client.call("sessions.reset", {"key": "main"})
        await client.chat("hello again [[reply:Hi.]]", run_id="after")
        found = await client.call("context.find", {"phrase": "blue door"})
        assert not found["inViewNow"]
        left = found["sightings"][-1]
        assert (left["runId"], left["change"], left["why"]) == ("after", "left", "a new session had begun")
        assert not (await client.call("context.find", {"phrase": "no such words"}))["sightings"]


async def test_the_command_line_shows_compares_and_searches(gateway: InProcessGateway) -> None:
    async def run(*args: str) -> str:
        done = await gateway.command("context", *args)
        return done.stdout + done.stderr

    async with gateway.client() as client:
        assert "Nothing was noted yet" in await run()
        await client.chat("a purple kite [[reply:One.]]", run_id="run-one")
        await client.chat("second [[reply:Two.]]", run_id="run-two")
    shown = await run()
    assert shown.startswith("Run run-two, model call 1 of 1, ")
    assert "Messages: 3, " in shown and "One." in shown
    assert re.search(r"^Turn facts: \d+ chars \(~\d+ tok\), behind the newest user message$", shown, re.MULTILINE)
    assert "entered  came into view in run run-one (user message " in await run("--find", "purple kite")
    assert "messages added: 2" in await run("--diff", "-", "-")
    assert json.loads(await run("--run", "run-one", "--full"))["request"]["messages"]


async def test_what_a_summary_replaced_is_seen_to_leave(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0]["contextWindow"] = 60_000
    config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
    config["agents"]["defaults"]["compaction"] = {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}
    summary = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for number in range(2):
            models.reply(f"reply {number}")
            await client.chat(f"remember xylophone {number}: {'word ' * 4000}", run_id=f"run-{number}")
        models.reply(summary)
        assert "Compacted" in text_of(await client.chat("/compact"))
        models.reply("done")
        await client.chat("and now?", run_id="after")
        found = await client.call("context.get", {"full": True})
        assert found["exact"] and found["compaction"] and found["messages"][0]["changed"]
        told = found["request"]["turnFacts"]
        assert [*all_texts(found["request"]["messages"]), told] == all_texts(models.requests[-1].body["messages"])
        seen = (await client.call("context.find", {"phrase": "xylophone 0"}))["sightings"]
        assert [(one["runId"], one["change"]) for one in seen] == [("run-0", "entered"), ("after", "left")]
        assert seen[1]["why"] == "the older part of the conversation had been condensed"
        assert "Compaction taken back" in text_of(await client.chat("/compact undo"))
        await client.chat("and again? [[reply:Yes.]]", run_id="undone")
        changes = "\n".join((await client.call("context.diff", {}))["changes"])
        assert "undo: a compaction was taken back" in changes and "the older part was condensed" not in changes


async def test_a_phrase_in_any_call_of_a_run_is_found_and_any_call_can_be_shown(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    """A run of 70 calls. Each writes another word, which the calls after it are sent."""
    count = 70
    models.queue(
        *(Reply(calls=[Call("read", {"path": f"word-{n}.txt"})]) for n in range(1, count)), Reply(text="Done.")
    )
    async with gateway.client() as client:
        await client.chat("go", run_id="long")
        for number in (1, 2, 64, 65, count):
            found = await client.call("context.get", {"runId": "long", "call": number, "wire": True})
            assert (found["call"], found["calls"], found["exact"]) == (number, count, True)
            assert found["wire"].encode() == models.requests[number - 1].raw
        with pytest.raises(RequestFailed, match="70 model calls, not 71"):
            await client.call("context.get", {"runId": "long", "call": count + 1})
        (seen,) = (await client.call("context.find", {"phrase": "word-40.txt"}))["sightings"]
        assert (seen["change"], seen["call"], seen["calls"]) == ("entered", 41, count)
        shown = await gateway.command("context", "--find", "word-40.txt")
        assert "run long, call 41 of 70" in shown.stdout
