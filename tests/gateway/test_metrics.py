from __future__ import annotations

import asyncio

from openclaw.gateway.metrics import WINDOW, LoopLag
from tests.support.clock import HeldClock


async def test_waking_late_is_noted_as_lag() -> None:
    clock = HeldClock()
    monitor = LoopLag(clock)
    watching = asyncio.create_task(monitor.watch())
    for seconds in (0.05, 0.3, 0.05):
        await asyncio.sleep(0)
        clock.advance(seconds)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert sum(monitor.histogram.counts) == 3
    assert round(monitor.worst, 2) == 0.25
    assert round(monitor.percentile(0.99), 2) == 0.25
    assert monitor.percentile(0.5) < 0.001


async def test_percentiles_forget_what_is_long_ago_and_use_bounded_space() -> None:
    monitor = LoopLag(HeldClock())
    assert monitor.percentile(0.99) == 0
    monitor.note(9.0)
    for _ in range(WINDOW):
        monitor.note(0.001)
    assert monitor.percentile(1.0) == 0.001
    assert sum(monitor.histogram.counts) == WINDOW + 1
    assert monitor.worst == 9.0
