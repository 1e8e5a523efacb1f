"""A budget holds before every model call, and an owner can lift it."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import FEW_TOOLS, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Recorded, Reply

CALL = 6000
"""More tokens than the prompt of a short conversation and a short answer have."""


async def test_a_used_up_budget_stops_every_call_until_an_owner_lifts_it(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, tools=FEW_TOOLS)
    config["agents"]["defaults"]["budget"] = {"sessionTokens": CALL}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert text_of(await client.chat("/budget")) == "💰 Budget\nsessionTokens: 0 of 6.0k"
        models.queue(Reply(text="Hi.", usage={"input": 4000, "output": 1}))
        assert text_of(await client.chat("hello")) == "Hi."
        refused = await client.chat("hello, are you there?")
        assert refused["state"] == "error"
        assert refused["errorMessage"].startswith("This session has too little left of its budget: 4.0k of 6.0k (")
        assert "resets with a new session" in refused["errorMessage"]
        assert len(models.requests) == 1
        assert "until the day ends" in text_of(await client.chat("/budget override"))
        assert text_of(await client.chat("hello [[reply:Again.]]")) == "Again."
        assert "used up" in text_of(await client.chat("/budget"))
        await client.chat("/budget enforce")
        refused = await client.chat("hello [[reply:No.]]")
        assert refused["errorMessage"].startswith("This session has used up its budget: ")
        assert text_of(await client.chat("hello [[reply:Other.]]", "agent:main:other")) == "Other."


async def test_a_run_stops_between_its_calls(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, tools=FEW_TOOLS)
    config["agents"]["defaults"]["budget"] = {"runTokens": CALL}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        ended = await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Never.]]')
        assert ended["state"] == "error"
        assert "agents.defaults.budget.runTokens" in ended["errorMessage"]
        assert len(models.requests) == 1


def priced(models: ModelServer, **budget: float) -> dict[str, Any]:
    """The mock model costs $10 per million tokens of the prompt and $100 per million of the answer."""
    config = model_config(models.base_url, models.api_key, tools=FEW_TOOLS)
    config["models"]["providers"]["mock"]["models"][0]["cost"] = {"input": 10, "output": 100}
    config["agents"]["defaults"]["budget"] = budget
    return config


async def cost_today(client: WireClient) -> float:
    return (await client.call("usage.cost", {}))["totals"]["totalCost"]


async def test_twelve_sessions_at_once_cannot_pass_a_limit_together(tmp_path: Path, models: ModelServer) -> None:
    """Each answer costs all that its request allows. Calls under way are held open until the others were decided."""
    limit, held = 2.0, asyncio.Event()
    keys = [f"agent:main:s{number}" for number in range(12)]

    def greedy(call: Recorded) -> Reply:
        # The vendor counts the prompt as it stands and uses every token that the request allows.
        return Reply(text="x", usage={"input": len(call.raw) // 4, "output": call.body["max_tokens"]}, hold=held)

    async with (
        InProcessGateway(tmp_path / "state", priced(models, dayUsd=limit)) as gateway,
        gateway.client() as client,
    ):
        models.answer_with(greedy)
        chats = [asyncio.create_task(client.chat("hello", key)) for key in keys]
        refused = 0
        while refused + len(models.requests) < len(keys):
            await asyncio.wait(chats, timeout=0.05)
            refused = sum(chat.done() for chat in chats)
        assert refused and len(models.requests) >= 3
        now = text_of(await client.chat("/budget", "agent:main:other"))
        assert f"reserved by {len(models.requests)} calls under way" in now
        held.set()
        ended = await asyncio.gather(*chats)
        assert 0 < await cost_today(client) <= limit
        assert all("reserved by" in one["errorMessage"] for one in ended if one["state"] == "error")
        for key in keys:
            await client.chat("again", key)
        assert limit / 2 < await cost_today(client) <= limit
        assert "reserved" not in text_of(await client.chat("/budget"))
        spent = await cost_today(client)
    async with (
        InProcessGateway(tmp_path / "state", priced(models, dayUsd=limit)) as gateway,
        gateway.client() as client,
    ):
        assert await cost_today(client) == pytest.approx(spent)
        assert "reserved" not in text_of(await client.chat("/budget"))


async def test_an_answer_is_not_longer_than_the_budget_allows_and_the_record_says_so(
    tmp_path: Path, models: ModelServer
) -> None:
    async with (
        InProcessGateway(tmp_path / "state", priced(models, sessionUsd=0.2)) as gateway,
        gateway.client() as client,
    ):
        models.queue(Reply(text="Short.", usage={"input": 10, "output": 2}))
        assert text_of(await client.chat("hello")) == "Short."
        assert models.requests[0].body["max_tokens"] < 2000
        assert (await client.call("context.get", {"wire": True}))["wire"].encode() == models.requests[0].raw


@pytest.mark.parametrize("how", ["abort", "cut", "time limit"])
async def test_what_was_counted_before_a_call_ended_early_is_on_the_bill(
    tmp_path: Path, models: ModelServer, how: str
) -> None:
    config = priced(models, dayUsd=5)
    config["retry"] = {"enabled": False}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        held, key = asyncio.Event(), str(uuid.uuid4())
        models.queue(
            Reply(
                text="one two three four",
                usage={"input": 5000, "output": 9},
                hold=held,
                hold_after=1,
                cut_after=700 if how == "cut" else None,
            )
        )
        await client.call("agent", {"message": "go", "sessionKey": "main", "idempotencyKey": key})
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "assistant")
        if how == "abort":
            await client.call("chat.abort", {"sessionKey": "main"})
        elif how == "cut":
            held.set()
        else:
            run = gateway.gateway.runs.index.get(key)
            assert run is not None
            run.abort.set_deadline(0)
        await client.call("agent.wait", {"runId": key, "timeoutMs": 50_000})
        held.set()
        assert await cost_today(client) == pytest.approx(0.05, abs=0.001)
        assert "reserved" not in text_of(await client.chat("/budget"))


async def run(client: WireClient, text: str, key: str, **more: Any) -> dict[str, Any]:
    wish = {"message": text, "sessionKey": key, "idempotencyKey": str(uuid.uuid4()), **more}
    started = await client.call("agent", wish)
    return await client.call("agent.wait", {"runId": started["runId"], "timeoutMs": 50_000})


async def test_sub_agents_share_the_limits_of_the_session_that_sent_them(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key, tools=FEW_TOOLS)
    config["agents"]["defaults"]["budget"] = {"sessionTokens": 10_000}
    child = "agent:main:subagent:11111111-2222-4333-8444-555555555555"
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.queue(Reply(text="Hi.", usage={"input": 4000, "output": 1}))
        await client.chat("hello")
        models.queue(Reply(text="Done.", usage={"input": 5000, "output": 1}))
        await run(client, "work", child, spawnedBy="agent:main:main")
        assert "sessionTokens: 9.0k of 10k" in text_of(await client.chat("/budget"))
        assert (await client.chat("hello again"))["state"] == "error"
        ended = await run(client, "more work", child, lane="subagent")
        assert ended["status"] == "error" and "has too little left of its budget" in json.dumps(ended), ended
        assert len(models.requests) == 2
        await client.chat("/budget override")
        models.queue(Reply(text="Done again."))
        assert (await run(client, "more work", child, lane="subagent"))["status"] == "ok"


SUMMARY = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


def condensing(models: ModelServer, **defaults: Any) -> dict[str, Any]:
    config = model_config(models.base_url, models.api_key, tools=FEW_TOOLS)
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
    config = condensing(models, budget={"sessionTokens": 10_000})
    config["agents"]["defaults"]["compaction"]["memoryFlush"] = {"enabled": True}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for used in (1, 8500):
            models.queue(Reply(text="Yes.", usage={"input": used, "output": 1}))
            await client.chat("word " * 400)
        answer = text_of(await client.chat("/compact"))
        assert "Compaction failed" in answer and "too little left of its budget" in answer, answer
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
