"""The admission of messages: how many are stored and prepared at a time, and in which order those of a session."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

MOST_ADMITTED = 12
LONGEST_S = 0.5
"""A ticket is released after this time, because its message no longer waits for the processor."""
PATIENCE_S = 1.0
"""A message that has waited this long is admitted, however many are inside."""
STUCK_S = 30.0
"""The next message of a session is admitted after this time, even if the one before it hangs."""


class Admission:
    """Admits a dozen messages at a time. Each keeps its place until it asks its model.

    Without a limit, a hundred messages that come together would be prepared in parallel, and all of them would ask
    their models late. In small groups, the first are answered while the others are prepared. ``bench concurrency``
    (100 sessions, 5 turns each) allows the event loop to stall for 50 ms: it stalls for 16 to 20 ms with this limit,
    for 40 to 133 ms without it, and for 90 to 97 ms if a message gives up its place as soon as it is stored.

    Within a session, a message is admitted when the one before it is stored or refused.
    """

    def __init__(self, most: int = MOST_ADMITTED) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._newest: dict[str, asyncio.Future[None]] = {}
        """For each session, the newest message that is not done yet."""

    async def admit(self, session_key: str) -> Ticket:
        """Wait for a place and return its ticket. The caller must call ``done`` on the ticket."""
        before = self._newest.get(session_key)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._newest[session_key] = done
        try:
            if before is not None:
                await asyncio.wait([before], timeout=STUCK_S)
            if self._inside < self._most:
                self._inside += 1
            else:
                await self._wait_in_line()
        except BaseException:
            # The next message still has to wait for the message before this one.
            if before is None or before.done():
                self._admit_next(session_key, done)
            else:
                before.add_done_callback(lambda _: self._admit_next(session_key, done))
            raise
        return Ticket(self._release, lambda: self._admit_next(session_key, done))

    def in_use(self, session_key: str) -> bool:
        """Return whether a message of the session is being accepted."""
        return session_key in self._newest

    async def wait_for_earlier(self, session_key: str) -> None:
        """Wait, without taking a place, until the session's earlier messages are done, at most ``PATIENCE_S``."""
        before = self._newest.get(session_key)
        if before is not None:
            await asyncio.wait([before], timeout=PATIENCE_S)

    async def _wait_in_line(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        patience = loop.call_later(PATIENCE_S, self._admit_waiting, turn)
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release()  # The message was admitted and cancelled in the same step of the event loop.
            raise
        finally:
            patience.cancel()

    def _admit_waiting(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._inside += 1
            turn.set_result(None)

    def _release(self) -> None:
        self._inside -= 1
        while self._line and self._inside < self._most:
            self._admit_waiting(self._line.popleft())

    def _admit_next(self, session_key: str, done: asyncio.Future[None]) -> None:
        if self._newest.get(session_key) is done:
            del self._newest[session_key]
        if not done.done():
            done.set_result(None)


class Ticket:
    """The place of one admitted message. It is released once, at the latest after ``LONGEST_S``."""

    def __init__(self, release: Callable[[], None], let_next_in: Callable[[], None]) -> None:
        self.runs = False
        """True when the message became a run, which releases the ticket when it asks its model."""
        self._release: Callable[[], None] | None = release
        self._admit_next = let_next_in
        self._limit = asyncio.get_running_loop().call_later(LONGEST_S, self.release)

    def done(self) -> None:
        """Admit the next message of the session, because this one is stored or refused."""
        self._admit_next()
        if not self.runs:
            self.release()

    def release(self) -> None:
        """Give the place to another message. A second call does nothing."""
        if self._release is not None:
            self._limit.cancel()
            self._release()
            self._release = None
