"""The admission of messages: how many are prepared at the same time, and in which order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

MOST_ADMITTED = 12
LONGEST_S = 0.5
"""A ticket is released after this time: its message waits for something other than the processor."""
PATIENCE_S = 1.0
"""A message is admitted after this wait, however many are inside."""
STUCK_S = 30.0
"""A message that is not done by then (for example a command that hangs) no longer holds up its session."""


class Admission:
    """Admits a dozen messages at a time, until each has asked its model, and one after the other per session.

    A hundred messages that come together would otherwise all take their first step, then all their second, and ask
    their models last. Admitted in small groups, the first are answered while the others are prepared.

    Within a session, a message is admitted when the one before it is stored or turned away.
    """

    def __init__(self, most: int = MOST_ADMITTED) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._newest: dict[str, asyncio.Future[None]] = {}
        """Per session, the last message that came and is not done yet."""

    async def admit(self, session_key: str) -> Ticket:
        """Waits for a place. The caller must call ``done`` on the ticket."""
        before = self._newest.get(session_key)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._newest[session_key] = done
        try:
            if before is not None:
                await asyncio.wait([before], timeout=STUCK_S)
            arrived_at = loop.time()
            if self._inside < self._most:
                self._inside += 1
            else:
                await self._stand_in_line()
        except BaseException:
            # The message behind this one still has to wait for the message before it.
            if before is None or before.done():
                self._let_next_in(session_key, done)
            else:
                before.add_done_callback(lambda _: self._let_next_in(session_key, done))
            raise
        return Ticket(self._release, lambda: self._let_next_in(session_key, done), arrived_at)

    async def wait_for_earlier(self, session_key: str) -> None:
        """Waits until the earlier messages of the session are done, at most ``PATIENCE_S``. Takes no place."""
        before = self._newest.get(session_key)
        if before is not None:
            await asyncio.wait([before], timeout=PATIENCE_S)

    async def _stand_in_line(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        patience = loop.call_later(PATIENCE_S, self._let_in, turn)
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release()  # It was admitted and cancelled in the same step.
            raise
        finally:
            patience.cancel()

    def _let_in(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._inside += 1
            turn.set_result(None)

    def _release(self) -> None:
        self._inside -= 1
        while self._line and self._inside < self._most:
            self._let_in(self._line.popleft())

    def _let_next_in(self, session_key: str, done: asyncio.Future[None]) -> None:
        if self._newest.get(session_key) is done:
            del self._newest[session_key]
        if not done.done():
            done.set_result(None)


class Ticket:
    """One admitted message. Its place is released once, at the latest after ``LONGEST_S``."""

    def __init__(self, release: Callable[[], None], let_next_in: Callable[[], None], arrived_at: float) -> None:
        self.arrived_at = arrived_at
        """When the message could have been admitted, on the event loop's clock."""
        self.runs = False
        """The message became a run. The run releases the ticket when it asks its model."""
        self._release: Callable[[], None] | None = release
        self._let_next_in = let_next_in
        self._limit = asyncio.get_running_loop().call_later(LONGEST_S, self.release)

    def done(self) -> None:
        """The message is stored, or nothing came of it. The next one of its session may come in."""
        self._let_next_in()
        if not self.runs:
            self.release()

    def release(self) -> None:
        """Gives the place to another message. Calling it again does nothing."""
        if self._release is not None:
            self._limit.cancel()
            self._release()
            self._release = None
