"""A clock that stands still until told otherwise."""

import asyncio


class StillClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms
        self._sleepers: list[asyncio.Future[None]] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    async def sleep(self, seconds: float) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    async def pass_time(self, seconds: float) -> None:
        """Wakes whoever sleeps and returns once they sleep again."""
        self.now += int(seconds * 1000)
        while not self._sleepers:
            await asyncio.sleep(0)
        woken, self._sleepers = self._sleepers, []
        for sleeper in woken:
            if not sleeper.done():
                sleeper.set_result(None)
        while len(self._sleepers) < len(woken):
            await asyncio.sleep(0.001)
