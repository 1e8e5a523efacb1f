"""The order in which the messages of a session are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

PATIENCE_S = 1.0
"""``wait_for_earlier`` waits for at most this time."""
STUCK_S = 30.0
"""The next message of a session is admitted after this time, even if the one before it hangs."""


class Admission:
    """Admits the messages of a session one after the other, and those of different sessions side by side.

    The number of sessions is not limited. ``bench concurrency`` (100 sessions, 5 turns each) allows the event loop to
    stall for 50 ms. It stalls for 13 ms of CPU, because ``LoopFairness`` spreads the requests to models.
    """

    def __init__(self) -> None:
        self._newest: dict[str, asyncio.Future[None]] = {}
        """For each session, the newest message that is not done yet."""

    @asynccontextmanager
    async def admit(self, session_key: str) -> AsyncGenerator[None]:
        """Wait until the session's earlier messages are stored or refused, and keep later ones waiting meanwhile."""
        before = self._newest.get(session_key)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._newest[session_key] = done
        if before is not None:
            try:
                await asyncio.wait([before], timeout=STUCK_S)
            except BaseException:
                # The next message still has to wait for the message before this one.
                before.add_done_callback(lambda _: self._admit_next(session_key, done))
                raise
        try:
            yield
        finally:
            self._admit_next(session_key, done)

    def in_use(self, session_key: str) -> bool:
        """Return whether a message of the session is being accepted."""
        return session_key in self._newest

    async def wait_for_earlier(self, session_key: str) -> None:
        """Wait until the session's earlier messages are done, at most ``PATIENCE_S``."""
        before = self._newest.get(session_key)
        if before is not None:
            await asyncio.wait([before], timeout=PATIENCE_S)

    def _admit_next(self, session_key: str, done: asyncio.Future[None]) -> None:
        if self._newest.get(session_key) is done:
            del self._newest[session_key]
        if not done.done():
            done.set_result(None)


class Slot:
    """The slot of a run among the runs of its kind, whose number ``limit`` bounds. None: there is no limit."""

    def __init__(self, limit: asyncio.Semaphore | None = None) -> None:
        self._limit = limit
        self._held = False

    async def __aenter__(self) -> None:
        if self._limit is not None:
            await self._limit.acquire()
            self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._release()

    @asynccontextmanager
    async def parked(self) -> AsyncGenerator[None]:
        """Give the slot to others meanwhile. A run that is cancelled within does not wait for it again."""
        held = self._held
        self._release()
        yield
        if held:
            await self.__aenter__()

    def _release(self) -> None:
        if self._held and self._limit is not None:
            self._held = False
            self._limit.release()
