"""What a running Gateway removes by itself: messages that ended long ago."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openclaw.gateway.services import FIRST_CLEANUP_S
from openclaw.gateway.session_maintenance import LEDGER_DAYS
from openclaw.messages import Route
from openclaw.storage.message_ledger import Accept, MessageBody
from tests.support.clock import MovableClock
from tests.support.gateway_in_process import InProcessGateway

DAY_S = 24 * 3600


def message(run_id: str) -> Accept:
    return Accept(
        run_id=run_id,
        dedupe_key=f"webchat|{run_id}",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        source="webchat",
        route=Route(),
        body=MessageBody(text="hello"),
    )


def cleanups(gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[None]:
    """Return a queue that gets an item whenever the Gateway has pruned its ledger from now on."""
    ledger, done = gateway.gateway.runtime.stores.ledger, asyncio.Queue[None]()
    prune = ledger.prune

    async def watched(before_ms: int) -> int:
        if not (removed := await prune(before_ms)):
            done.put_nowait(None)
        return removed

    monkeypatch.setattr(ledger, "prune", watched)
    return done


async def test_a_gateway_forgets_messages_that_ended_long_ago_after_its_start_and_every_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    config = {"agents": {"defaults": {"heartbeat": {"every": "0m"}}}}
    async with InProcessGateway(tmp_path, config, clock=clock) as first:
        ledger = first.gateway.runtime.stores.ledger
        unfinished, _ = await ledger.accept(message("unfinished"), step="queued")
        old, _ = await ledger.post(message("old"), [])
        cleaned = cleanups(first, monkeypatch)
        clock.advance((LEDGER_DAYS - 1) * DAY_S)
        recent, _ = await ledger.post(message("recent"), [])
        await asyncio.wait_for(cleaned.get(), 60)
        assert await ledger.get(old.id) is not None, "it is not old enough yet"
        clock.advance(2 * DAY_S)
        await asyncio.wait_for(cleaned.get(), 60)
        assert await ledger.get(old.id) is None
        assert await ledger.history(old.id) == []
        assert [row.run_id for row in await ledger.recent()] == ["recent", "unfinished"]
        await ledger.finish(unfinished.id, "answered")
    clock.advance(LEDGER_DAYS * DAY_S)
    async with InProcessGateway(tmp_path, config, clock=clock) as second:
        cleaned = cleanups(second, monkeypatch)
        clock.advance(FIRST_CLEANUP_S)
        await asyncio.wait_for(cleaned.get(), 60)
        assert await second.gateway.runtime.stores.ledger.get(recent.id) is None
