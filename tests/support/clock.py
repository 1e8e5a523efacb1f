"""Clocks that a test moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class HeldClock:
    """Time that moves only when a test says so; whoever sleeps wakes in order."""

    def __init__(self, now_ms: int = 1_794_766_939_494) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_ms + int(seconds * 1000), future))
        await future

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)
        due = [future for at, future in self._sleepers if at <= self._now_ms]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self._now_ms]
        for future in due:
            if not future.done():
                future.set_result(None)


class HastyClock:
    """Time that passes many times faster than the machine's, so that a pause of seconds takes milliseconds."""

    def __init__(self, speed: float = 300.0) -> None:
        self._speed = speed
        self._began = time.monotonic()
        self._began_ms = int(time.time() * 1000)

    def now_ms(self) -> int:
        return self._began_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self._speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


class MovableClock:
    """The machine's own time, which a test can put forward: whoever sleeps until then wakes at once."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._moved = asyncio.Event()

    def now_ms(self) -> int:
        return int((time.time() + self._ahead_s) * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        await asyncio.sleep(min(seconds, 0))
        while (left := due - self.monotonic()) > 0:
            moved = self._moved
            try:
                async with asyncio.timeout(left):
                    await moved.wait()
            except TimeoutError:
                return

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
        self._moved.set()
        self._moved = asyncio.Event()


async def until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    """Waits for something that gives no sign of its own; TimeoutError when it does not come about."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
