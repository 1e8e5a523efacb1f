"""Looking inside a living Gateway: what the model was sent, what it used, what it cost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.outbound.reply import money, token_count
from tests.support import stored
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer


@pytest.fixture
async def priced(tmp_path: Path, models: ModelServer) -> AsyncIterator[WireClient]:
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0]["cost"] = {"input": 10, "output": 100}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        yield client


async def test_context_is_estimated_before_the_first_run_and_captured_by_it(priced: WireClient) -> None:
    before = text_of(await priced.chat("/context list"))
    assert "System prompt (estimate): " in before
    assert "Session tokens (cached): unknown / ctx=200,000" in before
    await priced.chat("hello [[reply:Hi.]]")
    after = text_of(await priced.chat("/context list"))
    assert after.startswith("🧠 Context breakdown\nWorkspace: /")
    assert "System prompt (run): " in after
    assert "- AGENTS.md: OK | raw " in after
    row = (await priced.call("sessions.list", {}))["sessions"][0]
    assert f"Session tokens (cached): {row['totalTokens']:,} total / ctx=200,000" in after
    found = json.loads(text_of(await priced.chat("/context json")))
    assert found["report"]["source"] == "run"
    assert found["session"]["totalTokens"] == row["totalTokens"]
    detail = text_of(await priced.chat("/context detail"))
    assert "Top tools (schema size):" in detail
    assert "Turn facts (time, model, channel, levels; behind the newest message): " in detail
    assert "Unknown /context mode." in text_of(await priced.chat("/context sideways"))


async def test_the_footer_stands_under_replies_and_not_in_the_history(priced: WireClient) -> None:
    assert text_of(await priced.chat("/usage full")) == "⚙️ Usage footer: full."
    reply = text_of(await priced.chat("hello [[reply:Hi there.]]"))
    words, _, footer = reply.partition("\n\n")
    assert words == "Hi there."
    assert footer.startswith("Usage: ") and footer.endswith(" · session agent:main:main")
    assert " · est $" in footer
    history = json.dumps(await priced.call("chat.history", {"sessionKey": "main"}))
    assert "Usage: " not in history
    await priced.chat("/usage off")
    assert text_of(await priced.chat("hello [[reply:Bye.]]")) == "Bye."


async def test_every_view_shows_the_same_sums(priced: WireClient) -> None:
    await priced.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Read.]]')
    await priced.chat("hello [[reply:Hi.]]", "agent:main:other")
    usage = await priced.call("sessions.usage", {})
    cost = await priced.call("usage.cost", {"days": 2})
    assert usage["totals"] == cost["totals"]
    assert cost["days"] == 2
    assert usage["totals"]["totalCost"] > 0 and usage["totals"]["missingCostEntries"] == 0
    assert {session["key"] for session in usage["sessions"]} == {"agent:main:main", "agent:main:other"}
    parts = sum(session["usage"]["totalTokens"] for session in usage["sessions"])
    assert parts == usage["totals"]["totalTokens"] == usage["aggregates"]["byModel"][0]["totals"]["totalTokens"]
    assert usage["aggregates"]["tools"]["tools"] == [{"name": "read", "count": 1}]
    series = await priced.call("sessions.usage.timeseries", {"key": "main"})
    one = await priced.call("sessions.usage", {"key": "main", "includeContextWeight": True})
    assert len(series["points"]) == 2
    assert series["points"][-1]["cumulativeTokens"] == one["totals"]["totalTokens"]
    assert one["sessions"][0]["contextWeight"]["systemPrompt"]["chars"] > 0
    row = next(row for row in (await priced.call("sessions.list", {}))["sessions"] if row["key"] == "agent:main:main")
    assert row["inputTokens"] == one["totals"]["input"] and row["outputTokens"] == one["totals"]["output"]
    logs = (await priced.call("sessions.usage.logs", {"key": "main", "limit": 2}))["logs"]
    assert [log["role"] for log in logs] == ["tool", "assistant"]
    assert logs[1]["tokens"] > 0 and logs[1]["cost"] > 0
    lines = text_of(await priced.chat("/usage cost")).splitlines()
    assert lines[0] == "💸 Usage cost"
    assert lines[2].removeprefix("Today ") == f"${cost['totals']['totalCost']:.2f}"


async def test_an_unknown_price_is_not_free(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:Hi.]]")
        assert text_of(await client.chat("/usage cost")).splitlines()[1:] == [
            "Session n/a",
            "Today n/a",
            "Last 30d n/a",
        ]
        totals = (await client.call("usage.cost", {}))["totals"]
        assert (totals["totalCost"], totals["missingCostEntries"]) == (0, 1)
        for params, words in (
            ({"startDate": "soon"}, "startDate must be a day"),
            ({"startDate": "2026-02-02", "endDate": "2026-01-01"}, "is after endDate"),
        ):
            with pytest.raises(RequestFailed, match=words):
                await client.call("sessions.usage", params)
        with pytest.raises(RequestFailed, match="No session found: nobody"):
            await client.call("sessions.usage.logs", {"key": "nobody"})


async def test_the_command_line_tells_what_was_spent(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await client.chat("hello [[reply:Hi.]]")
            totals = (await client.call("usage.cost", {}))["totals"]
        done = await gateway.command("gateway", "usage-cost", "--days", "7")
        lines = done.stdout.splitlines()
        assert lines[0] == "Usage cost (7 days)"
        assert lines[1] == f"Total: cost unknown · {totals['totalTokens']:,} tokens"
        assert lines[2].startswith("Latest day: ")


SUMMARY = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


async def command_line(gateway: InProcessGateway, *args: str) -> str:
    done = await gateway.command(*args)
    assert done.returncode == 0, done
    return done.stdout


async def test_no_view_shows_another_number(tmp_path: Path, models: ModelServer) -> None:
    """After turns with tools and a compaction: the window, the size of the last prompt, and what was spent in all."""
    config = model_config(models.base_url, models.api_key)
    config["models"]["providers"]["mock"]["models"][0]["cost"] = {"input": 10, "output": 100}
    config["compaction"] = {"keepRecentTokens": 100}
    config["agents"]["defaults"]["compaction"] = {"memoryFlush": {"enabled": False}}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Read.]]')
        await client.chat("word " * 400 + "[[reply:Yes.]]")
        models.reply(SUMMARY)
        assert "Compacted" in text_of(await client.chat("/compact"))
        for state in ("condensed", "after the next turn"):
            await _all_agree(gateway, client, state)
            await client.chat("and on [[reply:Well.]]")


async def _all_agree(gateway: InProcessGateway, client: WireClient, state: str) -> None:
    (row,) = (await client.call("sessions.list", {}))["sessions"]
    total, window = row["totalTokens"], row["contextTokens"]
    assert total > 0 and window == 200_000 and row["compactionCount"] == 1, state
    shared = ("totalTokens", "contextTokens", "inputTokens", "outputTokens")
    for line in (await command_line(gateway, "status"), await command_line(gateway, "sessions")):
        assert "compactions:1" in line, line
    numbers = {name: row.get(name) for name in shared}
    (recent,) = (await client.call("status", {}))["sessions"]["recent"]
    (listed,) = json.loads(await command_line(gateway, "sessions", "--json"))["sessions"]
    (shown,) = json.loads(await command_line(gateway, "status", "--json"))["sessions"]["recent"]
    for view in (recent, listed, shown):
        assert {name: view.get(name) for name in shared} == numbers, state
        assert view["compactionCount"] == 1
    assert (recent["remainingTokens"], recent["percentUsed"]) == (window - total, shown["percentUsed"])
    context = json.loads(text_of(await client.chat("/context json")))["session"]
    assert {name: context.get(name) for name in shared} == numbers, state
    assert f"Session tokens (cached): {total:,} total / ctx={window:,}" in text_of(await client.chat("/context list"))
    card = text_of(await client.chat("/status"))
    fullness = f"📚 Context: {token_count(total)}/{token_count(window)} ({recent['percentUsed']}%) · 🧹 Compactions: 1"
    assert fullness in card, state

    spent = (await client.call("sessions.usage", {"key": "main"}))["sessions"][0]["usage"]
    whole = (await client.call("usage.cost", {}))["totals"]
    points = (await client.call("sessions.usage.timeseries", {"key": "main"}))["points"]
    assert {name: spent[name] for name in whole} == whole, state
    assert points[-1]["cumulativeTokens"] == whole["totalTokens"], state
    assert points[-1]["cumulativeCost"] == pytest.approx(whole["totalCost"]), state
    assert json.loads(await command_line(gateway, "gateway", "usage-cost", "--json"))["totals"] == whole
    bills = text_of(await client.chat("/usage cost")).splitlines()[1:]
    amount = money(whole["totalCost"])
    assert bills == [f"Session {amount}", f"Today {amount}", f"Last 30d {amount}"], state
    tokens = f"{token_count(row.get('inputTokens'))} in / {token_count(row.get('outputTokens'))} out"
    assert f"🧮 Tokens: {tokens} · 💵 Cost: {amount}" in card, state
    logged = (await client.call("sessions.usage.logs", {"key": "main"}))["logs"]
    answers = sum(log.get("tokens", 0) for log in logged)
    summaries = [line for line in gateway.transcript(row["sessionId"]) if line.get("customType") == "model-usage"]
    assert answers + sum(line["data"]["usage"]["totalTokens"] for line in summaries) == whole["totalTokens"]
    store = gateway.sessions_dir() / "sessions.json"
    async with asyncio.timeout(30):
        while gateway.storage is None and not store.exists():  # It is written shortly after a change.
            await asyncio.sleep(0.01)
    assert stored.sessions(gateway)[row["key"]]["sessionId"] == row["sessionId"]


async def test_how_long_answers_took_is_told_per_session_and_per_day(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[sleep:120]][[reply:Read.]]')
        await client.chat("hello [[reply:Hi.]]")
        usage = await client.call("sessions.usage", {})
        latency = usage["aggregates"]["latency"]
        assert latency["count"] == 2 and latency["maxMs"] >= 120
        assert latency["minMs"] <= latency["avgMs"] <= latency["maxMs"]
        assert latency["minMs"] <= latency["p95Ms"] <= latency["maxMs"]
        (day,) = usage["aggregates"]["dailyLatency"]
        assert {name: day[name] for name in latency} == latency == usage["sessions"][0]["usage"]["latency"]


@pytest.mark.files_only("files are compressed; PostgreSQL compresses long values itself")
async def test_a_compressed_session_tells_the_same_of_its_past(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:Hi.]]")
        before = [
            await client.call("sessions.usage.timeseries", {"key": "main"}),
            (await client.call("sessions.usage", {"key": "main"}))["totals"],
        ]
        (path,) = gateway.sessions_dir().glob("*.jsonl")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert (await client.call("sessions.archive", {}))["compressed"] == 1
        after = [
            await client.call("sessions.usage.timeseries", {"key": "main"}),
            (await client.call("sessions.usage", {"key": "main"}))["totals"],
        ]
        assert after == before and before[0]["points"]
