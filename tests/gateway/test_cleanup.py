"""What a running Gateway removes by itself: messages that ended long ago."""

from __future__ import annotations

import asyncio
from pathlib import Path

from openclaw.gateway.gateway import FIRST_CLEANUP_S, LEDGER_DAYS
from openclaw.storage.base import Accept, LedgerRow, MessageBody
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
        route={},
        body=MessageBody(text="hello"),
    )


async def gone(gateway: InProcessGateway, row: LedgerRow) -> None:
    async with asyncio.timeout(60):
        while await gateway.gateway.runtime.ledger.get(row.id) is not None:
            await asyncio.sleep(0.01)


async def test_a_gateway_forgets_messages_that_ended_long_ago_after_its_start_and_every_day(tmp_path: Path) -> None:
    clock = MovableClock()
    config = {"agents": {"defaults": {"heartbeat": {"every": "0m"}}}}
    async with InProcessGateway(tmp_path, config, clock=clock) as first:
        ledger = first.gateway.runtime.ledger
        unfinished, _ = await ledger.accept(message("unfinished"), step="queued")
        old, _ = await ledger.post(message("old"), [])
        clock.advance((LEDGER_DAYS - 1) * DAY_S)
        recent, _ = await ledger.post(message("recent"), [])
        await asyncio.sleep(0.2)
        assert await ledger.get(old.id) is not None, "it is not old enough yet"
        clock.advance(2 * DAY_S)
        await gone(first, old)
        assert await ledger.story(old.id) == []
        kept = [row.run_id for row in await ledger.recent()]
        assert kept == ["recent", "unfinished"]
        await ledger.finish(unfinished.id, "answered")
    clock.advance(LEDGER_DAYS * DAY_S)
    async with InProcessGateway(tmp_path, config, clock=clock) as second:
        clock.advance(FIRST_CLEANUP_S)
        await gone(second, recent)
