"""Many sessions at once with a model that takes its time, and how late the event loop gets meanwhile."""

from __future__ import annotations

import asyncio
import time

from bench.harness import running
from bench.process import cpu_s
from bench.row import Row, summary
from bench.wire import Failed, Wire

SESSIONS = 100
TURNS = 5
LATENCY_MS = 200
RUNS = 3


async def measure() -> list[Row]:
    wall: list[float] = []
    cpu: list[float] = []
    failed = 0
    async with running() as gateway, gateway.client() as wire:
        await wire.chat("hello")
        for run in range(RUNS):
            spent, began = cpu_s(gateway.pid), time.monotonic()
            keys = [f"agent:main:bench-{run}-{number}" for number in range(SESSIONS)]
            ends = await asyncio.gather(*(_session(wire, key) for key in keys))
            wall.append(time.monotonic() - began)
            cpu.append(cpu_s(gateway.pid) - spent)
            failed += sum(ends)
        lag = await gateway.lag_ms()
    what = f"{SESSIONS} sessions x {TURNS} turns, model {LATENCY_MS} ms"
    limit = TURNS * LATENCY_MS / 1000
    return [
        Row(
            figure="concurrency",
            what=f"{what}, wall",
            kind="wall",
            unit="s",
            bar=1.8,
            reference="the model alone",
            reference_value=limit,
            **summary(wall),
            note=f"CPU {min(cpu):.2f} s",
        ),
        Row(figure="concurrency", what=f"{what}, failed", unit="turns", bar=0, measured=failed, kind="size"),
        Row(
            figure="concurrency",
            what="event-loop stall, p99, under that load",
            kind="wall",
            unit="ms",
            bar=50,
            measured=lag,
        ),
    ]


async def _session(wire: Wire, key: str) -> int:
    """How many of the turns failed."""
    failed = 0
    for _ in range(TURNS):
        try:
            await wire.chat(f"[[bench latency={LATENCY_MS}]]", key)
        except Failed:
            failed += 1
    return failed
