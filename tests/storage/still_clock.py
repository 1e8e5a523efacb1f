"""A clock that stands still until told otherwise."""

import asyncio


class StillClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms
        self._wake: asyncio.Event | None = None
        self._asleep: asyncio.Event | None = None

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    async def sleep(self, seconds: float) -> None:
        self._wake = asyncio.Event()
        if self._asleep is not None:
            self._asleep.set()
        await self._wake.wait()

    async def pass_time(self, seconds: float) -> None:
        """Wakes the one who sleeps and returns once it sleeps again."""
        self.now += int(seconds * 1000)
        self._asleep = asyncio.Event()
        if self._wake is None:
            await self._asleep.wait()
            self._asleep = asyncio.Event()
        assert self._wake is not None
        self._wake.set()
        await self._asleep.wait()
