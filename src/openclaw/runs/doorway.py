"""The way in: a session's messages in the order they came, and few at a time until they have asked their models."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_INSIDE = 12
LONGEST_S = 0.5
"""Who stays longer waits for something else than the processor, and is in nobody's way."""
PATIENCE_S = 1.0
"""Nobody stands in line longer than this before being let in all the same."""
STUCK_S = 30.0
"""A message that is not settled by then (a command that hangs, say) holds up those behind it no longer."""


class Doorway:
    """Messages that come together would all take their first step, then all their second, and ask their models last
    and at the same moment; meanwhile no model answers. Let in a dozen at a time, the first are being answered while
    the others are on their way: a hundred sessions of five turns took a sixth less time.

    A message is not let in before the one that came before it in its session is written down, or turned away.
    """

    def __init__(self, most: int = MOST_INSIDE) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._newest: dict[str, asyncio.Future[None]] = {}
        """By session: the last message that came and is not yet written down."""

    async def enter(self, session_key: str) -> Guest:
        before = self._newest.get(session_key)
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._newest[session_key] = written
        try:
            if before is not None:
                await asyncio.wait([before], timeout=STUCK_S)
            came = loop.time()
            if self._inside < self._most:
                self._inside += 1
            else:
                await self._stand_in_line()
        except BaseException:
            # Whoever came later still has to wait for the one before.
            if before is None or before.done():
                self.written(session_key, written)
            else:
                before.add_done_callback(lambda _: self.written(session_key, written))
            raise
        return Guest(self, session_key, written, came)

    async def after(self, session_key: str) -> None:
        """For who must not wait long: until what came before is written down, and no longer than ``PATIENCE_S``."""
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
                self.left()  # Let in, and gone at the same moment.
            raise
        finally:
            patience.cancel()

    def written(self, session_key: str, message: asyncio.Future[None]) -> None:
        if self._newest.get(session_key) is message:
            del self._newest[session_key]
        if not message.done():
            message.set_result(None)

    def left(self) -> None:
        self._inside -= 1
        while self._line and self._inside < self._most:
            self._let_in(self._line.popleft())

    def _let_in(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._inside += 1
            turn.set_result(None)


class Guest:
    """Inside until it leaves, by itself if it stays too long."""

    def __init__(self, doorway: Doorway, session_key: str, message: asyncio.Future[None], came: float) -> None:
        self.came = came
        """To the doorway, on the event loop's clock."""
        self._doorway: Doorway | None = doorway
        self._limit = message.get_loop().call_later(LONGEST_S, self.leave)
        self._written = lambda: doorway.written(session_key, message)
        self.runs = False
        """It became a run, which leaves when it asks its model."""

    def settled(self) -> None:
        """It is written down, or nothing came of it: the next one of its session may come in."""
        self._written()
        if not self.runs:
            self.leave()

    def leave(self) -> None:
        if self._doorway is not None:
            self._limit.cancel()
            self._doorway.left()
            self._doorway = None
