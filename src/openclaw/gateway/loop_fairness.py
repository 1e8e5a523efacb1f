"""Spreads work that arrives together over several passes of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_PER_PASS = 8


class LoopFairness:
    """Lets some tasks through in each pass of the loop, in the order they came.

    A hundred answers that arrive at the same moment would otherwise be handled in one pass, a millisecond each, and no
    timer, no socket and no other client would get its turn in between.
    """

    def __init__(self, most: int = MOST_PER_PASS) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._in_line = False
        """True while tasks wait. New tasks then join the queue instead of passing it."""

    async def enter(self) -> None:
        if self._in_line or self._passed >= self._most:
            self._in_line = True
            turn = self._loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        if self._passed == 0:
            self._loop.call_soon(self._next_pass)
        self._passed += 1

    def _next_pass(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < self._most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._passed += 1
        self._in_line = self._passed > 0
        if self._in_line:
            # The next pass begins after the tasks of this one have run.
            self._loop.call_soon(self._next_pass)
