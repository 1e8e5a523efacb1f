"""A clock that stands still until told otherwise."""

import asyncio


class StillClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self._asleep = asyncio.Event()

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    async def sleep(self, seconds: float) -> None:
        wake = asyncio.Event()
        self._sleepers.append((seconds, wake))
        self._asleep.set()
        await wake.wait()

    async def pass_time(self, seconds: float, *, sleeps_again: bool = True) -> None:
        """Wakes who sleeps no longer than that, and returns once the one that slept so long sleeps again."""
        self.now += int(seconds * 1000)
        await self._until_asleep(seconds)
        woken = [sleeper for sleeper in self._sleepers if sleeper[0] <= seconds]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper not in woken]
        for _, wake in woken:
            wake.set()
        if sleeps_again:
            await self._until_asleep(seconds)

    async def _until_asleep(self, seconds: float) -> None:
        while not any(pause == seconds for pause, _ in self._sleepers):
            self._asleep.clear()
            await self._asleep.wait()
