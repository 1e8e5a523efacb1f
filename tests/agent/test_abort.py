"""Runs whose time is up are stopped, each at its own time."""

from __future__ import annotations

import asyncio

from openclaw.agent.abort import AbortSignal


async def stopped(signal: AbortSignal) -> None:
    while not signal.aborted:
        await asyncio.sleep(0.001)


async def test_each_run_is_stopped_when_its_own_time_is_up() -> None:
    late, never, soon = AbortSignal(), AbortSignal(), AbortSignal()
    late.set_deadline(0.05)
    never.set_deadline(600)
    soon.set_deadline(0.01)
    await stopped(soon)
    assert not never.aborted
    await stopped(late)
    assert [signal.reason for signal in (soon, late, never)] == ["timeout", "timeout", None]
    assert (never.time_left or 0) > 590
    never.clear_deadline()


async def test_a_run_that_has_ended_is_left_alone() -> None:
    ended, running = AbortSignal(), AbortSignal()
    ended.set_deadline(0.01)
    running.set_deadline(0.03)
    ended.clear_deadline()
    ended.clear_deadline()
    assert ended.time_left is None
    await stopped(running)
    assert not ended.aborted


async def test_a_second_deadline_replaces_the_first() -> None:
    signal = AbortSignal()
    signal.set_deadline(0.005)
    signal.set_deadline(600)
    await asyncio.sleep(0.02)
    assert not signal.aborted
    signal.clear_deadline()
