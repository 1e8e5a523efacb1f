"""A budget holds before every model call, and an owner can lift it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


async def test_a_used_up_budget_stops_every_call_until_an_owner_lifts_it(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["budget"] = {"sessionTokens": 1}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert text_of(await client.chat("/budget")) == "💰 Budget\nsessionTokens: 0 of 1"
        assert text_of(await client.chat("hello [[reply:Hi.]]")) == "Hi."
        refused = await client.chat("hello, are you there?")
        assert refused["state"] == "error"
        assert refused["errorMessage"].startswith("This session has used up its budget: ")
        assert len(models.requests) == 1
        assert "used up" in text_of(await client.chat("/budget"))
        assert "until the day ends" in text_of(await client.chat("/budget override"))
        assert text_of(await client.chat("hello [[reply:Again.]]")) == "Again."
        await client.chat("/budget enforce")
        assert (await client.chat("hello [[reply:No.]]"))["state"] == "error"
        assert text_of(await client.chat("hello [[reply:Other.]]", "agent:main:other")) == "Other."


async def test_a_run_stops_between_its_calls(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["budget"] = {"runTokens": 1}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        ended = await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Never.]]')
        assert ended["state"] == "error"
        assert "agents.defaults.budget.runTokens" in ended["errorMessage"]
        assert len(models.requests) == 1


async def run(client: WireClient, text: str, key: str, **more: Any) -> dict[str, Any]:
    wish = {"message": text, "sessionKey": key, "idempotencyKey": str(uuid.uuid4()), **more}
    started = await client.call("agent", wish)
    return await client.call("agent.wait", {"runId": started["runId"], "timeoutMs": 20_000})


async def test_sub_agents_share_the_limits_of_the_session_that_sent_them(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["budget"] = {"sessionTokens": 1000}
    child = "agent:main:subagent:11111111-2222-4333-8444-555555555555"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(Reply(text="Hi.", usage={"input": 400, "output": 1}))
        await client.chat("hello")
        models.queue(Reply(text="Done.", usage={"input": 700, "output": 1}))
        await run(client, "work", child, spawnedBy="agent:main:main")
        assert "sessionTokens: 1.1k of 1.0k — used up" in text_of(await client.chat("/budget"))
        assert (await client.chat("hello again"))["state"] == "error"
        ended = await run(client, "more work", child)
        assert ended["status"] == "error" and "has used up its budget" in json.dumps(ended), ended
        assert len(models.requests) == 2
        await client.chat("/budget override")
        models.queue(Reply(text="Done again."))
        assert (await run(client, "more work", child))["status"] == "ok"


SUMMARY = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


def condensing(models: ModelServer, **defaults: Any) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0]["cost"] = {"input": 10, "output": 100}
    config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 100}
    config["agents"]["defaults"] |= {"compaction": {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}}
    config["agents"]["defaults"] |= defaults
    return config


async def test_what_a_summary_costs_is_on_the_bill_of_its_session(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", condensing(models)) as gateway, gateway.client() as client:
        for _ in range(3):
            await client.chat("word " * 400 + "[[reply:Yes.]]")
        before = (await client.call("sessions.usage", {"key": "main"}))["totals"]
        # The first is refused because it is empty; it was paid for all the same.
        models.queue(
            Reply(text="", usage={"input": 700, "output": 1}), Reply(text=SUMMARY, usage={"input": 800, "output": 9})
        )
        assert "Compacted" in text_of(await client.chat("/compact"))
        after = (await client.call("sessions.usage", {"key": "main"}))["totals"]
        assert (after["input"] - before["input"], after["output"] - before["output"]) == (1500, 10)
        assert after["totalCost"] - before["totalCost"] == pytest.approx(0.016)
        points = (await client.call("sessions.usage.timeseries", {"key": "main"}))["points"]
        assert points[-1]["cumulativeTokens"] == after["totalTokens"]
        assert (await client.call("usage.cost", {}))["totals"] == after
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "model-usage" not in json.dumps(history)


async def test_neither_summaries_nor_notes_are_asked_for_beyond_the_budget(tmp_path: Path, models: ModelServer) -> None:
    config = condensing(models, budget={"sessionTokens": 2000})
    config["agents"]["defaults"]["compaction"]["memoryFlush"] = {"enabled": True}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for used in (1, 1997):
            models.queue(Reply(text="Yes.", usage={"input": used, "output": 1}))
            await client.chat("word " * 400)
        answer = text_of(await client.chat("/compact"))
        assert "Compaction failed" in answer and "has used up its budget" in answer, answer
        assert len(models.requests) == 2
        await client.chat("/budget override")
        models.queue(Reply(text="NO_REPLY"), Reply(text=SUMMARY, usage={"input": 10, "output": 9}))
        assert "Compacted" in text_of(await client.chat("/compact"))


async def test_notes_that_failed_are_paid_for(tmp_path: Path, models: ModelServer) -> None:
    config = condensing(models)
    config["agents"]["defaults"]["compaction"]["memoryFlush"] = {"enabled": True}
    config["retry"] = {"enabled": False}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for _ in range(3):
            await client.chat("word " * 400 + "[[reply:Yes.]]")
        before = (await client.call("sessions.usage", {"key": "main"}))["totals"]
        models.queue(
            Reply(calls=[Call("read", {"path": "AGENTS.md"})], usage={"input": 300, "output": 2}),
            Reply(status=400, message="no"),
            Reply(text=SUMMARY, usage={"input": 800, "output": 9}),
        )
        assert "Compacted" in text_of(await client.chat("/compact"))
        after = (await client.call("sessions.usage", {"key": "main"}))["totals"]
        assert (after["input"] - before["input"], after["output"] - before["output"]) == (1100, 11)
