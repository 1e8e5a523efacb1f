"""Runs whose time is up are stopped, each at its own time."""

from __future__ import annotations

import asyncio

from openclaw.agent.abort import AbortSignal, Deadlines


async def stopped(signal: AbortSignal) -> None:
    while not signal.aborted:
        await asyncio.sleep(0.001)


async def test_each_run_is_stopped_when_its_own_time_is_up() -> None:
    deadlines = Deadlines()
    late, never, soon = AbortSignal(), AbortSignal(), AbortSignal()
    deadlines.set(late, 0.05)
    deadlines.set(never, 600)
    deadlines.set(soon, 0.01)
    await stopped(soon)
    assert not never.aborted
    await stopped(late)
    assert [signal.reason for signal in (soon, late, never)] == ["timeout", "timeout", None]


async def test_a_run_that_has_ended_is_left_alone_and_the_next_still_watched() -> None:
    deadlines = Deadlines()
    ended, running = AbortSignal(), AbortSignal()
    deadlines.set(ended, 0.01)
    deadlines.set(running, 0.03)
    deadlines.clear(ended)
    deadlines.clear(ended)
    await stopped(running)
    assert not ended.aborted


async def test_watching_begins_again_after_everyone_was_done() -> None:
    deadlines = Deadlines()
    first, second = AbortSignal(), AbortSignal()
    deadlines.set(first, 0.01)
    await stopped(first)
    deadlines.set(second, 0.01)
    await stopped(second)
