"""The way in: few messages at a time between being taken in and asking their models, those that are further first."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_INSIDE = 12
LONGEST_S = 0.5
"""Who stays longer waits for something else than the processor, and is in nobody's way."""
PATIENCE_S = 1.0
"""Nobody stands in line longer than this before being let in all the same."""


class Doorway:
    """Messages that come together would all take their first step, then all their second, and ask their models last
    and at the same moment; meanwhile no model answers. Let in a dozen at a time, the first are being answered while
    the others are on their way: a hundred sessions of five turns took a sixth less time.
    """

    def __init__(self, most: int = MOST_INSIDE) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> Guest:
        came = asyncio.get_running_loop().time()
        if self._inside < self._most:
            self._inside += 1
        else:
            await self._stand_in_line()
        return Guest(self, came)

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

    def __init__(self, doorway: Doorway, came: float) -> None:
        self.came = came
        """To the doorway, on the event loop's clock."""
        self._doorway: Doorway | None = doorway
        self._limit = asyncio.get_running_loop().call_later(LONGEST_S, self.leave)

    def leave(self) -> None:
        if self._doorway is not None:
            self._limit.cancel()
            self._doorway.left()
            self._doorway = None
