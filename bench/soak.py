"""Many turns in a row: what the Gateway holds in memory must not follow their number."""

from __future__ import annotations

import asyncio

from bench.harness import running
from bench.process import rss_mb
from bench.row import Row
from bench.wire import Wire

TURNS = 10_000
SESSION_TURNS = 10
AT_ONCE = 5
SAMPLES = 10
BAR_MB_PER_1000 = 0.5


async def measure(turns: int = TURNS) -> list[Row]:
    """A few conversations that begin anew again and again, as they do every day."""
    samples: list[float] = []
    step = max(AT_ONCE, turns // SAMPLES)
    done = 0
    async with running() as gateway, gateway.client() as wire:
        while done < turns:
            await asyncio.gather(*(_talk(wire, place, done, step // AT_ONCE) for place in range(AT_ONCE)))
            done += step
            samples.append(rss_mb(gateway.pid))
    # Pools and caches fill during the first half; what follows shows whether it goes on.
    settled = samples[len(samples) // 2 :]
    slope = _slope(settled) / step * 1000
    return [
        Row(
            figure="soak",
            what=f"{done:,} turns: growth per 1,000 turns, RSS",
            unit="MB",
            bar=BAR_MB_PER_1000,
            measured=max(slope, 0.0),
            kind="size",
            note=" ".join(f"{sample:.1f}" for sample in samples),
        ),
        Row(figure="soak", what=f"RSS after {done:,} turns", unit="MB", bar=100, measured=samples[-1], kind="size"),
    ]


async def _talk(wire: Wire, place: int, done: int, turns: int) -> None:
    for number in range(turns):
        key = f"agent:main:soak-{place}"
        await wire.chat("hello", key)
        if (done + number) % SESSION_TURNS == 0:
            await wire.call("sessions.reset", {"key": key})


def _slope(values: list[float]) -> float:
    """Of the straight line through the values, per step (least squares)."""
    if len(values) < 2:
        return 0.0
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    above = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    return above / sum((place - middle) ** 2 for place in range(len(values)))
