"""A session in which somebody writes all the time, and how much other work delays it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from statistics import median

from bench.row import Row
from bench.wire import Wire

KEY = "agent:main:bystander"
PAUSE_S = 0.02
ALONE = 200
"""The turns without other work. On a busy machine the slowest of them say what the machine itself costs."""


class Bystander:
    """One session of a Gateway. ``waits`` has the milliseconds of each turn while there was other work."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._alone: list[float] = []
        self.waits: list[float] = []

    async def write_alone(self) -> None:
        await turn_ms(self._wire, KEY)
        await self._write(self._alone, ALONE)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write while the block does its work."""
        task = asyncio.create_task(self._write(self.waits))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _write(self, waits: list[float], count: int | None = None) -> None:
        while count is None or len(waits) < count:
            waits.append(await turn_ms(self._wire, KEY))
            await asyncio.sleep(PAUSE_S)

    def row(self, figure: str, what: str, note: str = "") -> Row:
        """The delay of its turns, compared with the usual turn without other work."""
        usual = median(self._alone)
        delays, alone = (sorted(max(0.0, wait - usual) for wait in waits) for waits in (self.waits, self._alone))
        return Row(
            figure=figure,
            what=f"delay of another session by {what}, p99",
            kind="wall",
            unit="ms",
            bar=50,
            measured=percentile(delays, 0.99),
            low=delays[0],
            note=f"longest {delays[-1]:.0f} ms of {len(delays)}; without: p99 {percentile(alone, 0.99):.0f}, longest "
            f"{alone[-1]:.0f}, a turn {usual:.0f} ms{note}",
        )


async def turn_ms(wire: Wire, key: str) -> float:
    began = time.monotonic()
    await wire.chat("hello", key)
    return (time.monotonic() - began) * 1000


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
