"""Many at once are worked off a few per pass of the event loop, in the order they came."""

from __future__ import annotations

import asyncio

from openclaw.gateway.event_loop import WINDOW, LoopFairness, LoopLag
from tests.support.clock import HeldClock


async def test_what_arrives_together_goes_on_in_order_and_a_few_per_pass() -> None:
    turnstile = LoopFairness(most=3)
    passes: list[list[int]] = [[]]
    order: list[int] = []

    async def task(number: int) -> None:
        await turnstile.enter()
        passes[-1].append(number)
        order.append(number)

    async def count_passes() -> None:
        while len(order) < 12:
            await asyncio.sleep(0)
            passes.append([])

    tasks = [asyncio.create_task(task(number)) for number in range(10)]
    counter = asyncio.create_task(count_passes())
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(task(number)) for number in (10, 11)]
    await asyncio.gather(*tasks, counter)
    assert order == list(range(12))
    assert max(len(numbers) for numbers in passes) <= 3


async def test_one_that_gives_up_waiting_takes_nobody_s_place() -> None:
    turnstile = LoopFairness(most=1)
    through: list[int] = []

    async def task(number: int) -> None:
        await turnstile.enter()
        through.append(number)

    tasks = [asyncio.create_task(task(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert through == [0, 2, 3]
    await asyncio.wait_for(task(4), 60)
    assert through[-1] == 4


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
