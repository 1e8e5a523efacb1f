"""The cost of a turn must not know how many sessions there are."""

from __future__ import annotations

import asyncio
import time

from bench.harness import GatewayProcess, prepared
from bench.process import cpu_s
from bench.row import Row, summary
from bench.seed import many_sessions
from bench.wire import Wire

MANY = 10_000
FEW = 10
TURNS = 50
BATCHES = 9
LISTS = 50


async def measure() -> list[Row]:
    async with prepared() as few, prepared() as many:
        many_sessions(few.sessions_dir, FEW)
        many_sessions(many.sessions_dir, MANY)
        await asyncio.gather(few.start(), many.start())
        async with few.client() as few_wire, many.client() as many_wire:
            lists = [await _list_ms(many_wire, {"limit": 50}, 50) for _ in range(LISTS)]
            pages = [await _list_ms(many_wire, {"offset": 100 * number}, 100) for number in range(LISTS)]
            pairs = [(await _turns(few, few_wire), await _turns(many, many_wire)) for _ in range(BATCHES)]
    # The first pair warms up. Neighbours in time are compared, so that a busy moment meets both.
    few_ms, many_ms = [pair[0] for pair in pairs[1:]], [pair[1] for pair in pairs[1:]]
    floor = summary(few_ms)["measured"]
    return [
        Row(
            figure="store",
            what=f"turn with {MANY:,} sessions, CPU",
            unit="ms",
            bar=1.1 * floor,
            reference=f"with {FEW}",
            reference_value=floor,
            kind="size",
            **summary(many_ms),
        ),
        Row(
            figure="store", what=f"sessions.list, 50 of {MANY:,}, wall", kind="wall", unit="ms", bar=5, **summary(lists)
        ),
        Row(
            figure="store",
            what=f"sessions.list, a page of {MANY:,}, wall",
            kind="wall",
            unit="ms",
            bar=20,
            **summary(pages),
        ),
    ]


async def _turns(gateway: GatewayProcess, wire: Wire) -> float:
    """CPU milliseconds per turn, each on another of the old sessions, until all their journals are written."""
    before = cpu_s(gateway.pid)
    for number in range(TURNS):
        await wire.chat("hello", f"agent:main:old-{number % FEW}")
    return (cpu_s(gateway.pid) - before) / TURNS * 1000


async def _list_ms(wire: Wire, params: dict[str, int], rows: int) -> float:
    began = time.monotonic()
    listed = await wire.call("sessions.list", params)
    taken = (time.monotonic() - began) * 1000
    assert len(listed["sessions"]) == rows
    return taken
