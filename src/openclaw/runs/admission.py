"""How many messages are prepared, and how many runs work, at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from openclaw.config.schema import Config
from openclaw.sessions.keys import REMEMBERED_KEYS, is_subagent, kind_of

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


LaneName = Literal["main", "subagent", "cron"]


class Slot:
    """One run's share of a limit. It counts from the moment it is asked for until it is given back."""

    __slots__ = ("_lane", "_queue", "_taken")

    def __init__(self, taken: Counter[LaneName], lane: LaneName, queue: asyncio.Semaphore | None = None) -> None:
        self._taken = taken
        self._lane: LaneName = lane
        self._queue = queue

    def __enter__(self) -> None:
        self._taken[self._lane] += 1

    def __exit__(self, *_: object) -> None:
        self._taken[self._lane] -= 1

    async def __aenter__(self) -> None:
        self.__enter__()
        if self._queue is not None:
            try:
                await self._queue.acquire()
            except BaseException:
                self.__exit__()
                raise

    async def __aexit__(self, *_: object) -> None:
        if self._queue is not None:
            self._queue.release()
        self.__exit__()


class ConcurrencyLimits:
    """How many runs of a kind may work at the same time, over all sessions.

    The first to come is the first to run. A changed limit holds from the next run on. ``main`` has no limit unless one
    is configured: a run that waits for its model costs almost nothing, and a limit would let one person's slow session
    delay another's.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._limits: dict[LaneName, tuple[int, asyncio.Semaphore]] = {}
        self._taken: Counter[LaneName] = Counter()

    def free(self, session_key: str) -> bool:
        """Whether a run of this session could begin at once."""
        lane = lane_of(session_key)
        limit = self._limit(lane)
        return limit is None or self._taken[lane] < limit

    def promised(self, session_key: str) -> Slot:
        """A slot for a message that is being accepted, so that no other message gets it meanwhile."""
        return Slot(self._taken, lane_of(session_key))

    def for_run(self, session_key: str) -> Slot:
        """A slot for a run. Entering it waits until one is free."""
        lane = lane_of(session_key)
        limit = self._limit(lane)
        if limit is None:
            return Slot(self._taken, lane)
        known = self._limits.get(lane)
        if known is None or known[0] != limit:
            known = self._limits[lane] = (limit, asyncio.Semaphore(limit))
        return Slot(self._taken, lane, known[1])

    def _limit(self, lane: LaneName) -> int | None:
        config = self._config()
        match lane:
            case "main":
                return config.agents.defaults.max_concurrent
            case "subagent":
                return config.agents.defaults.subagents.max_concurrent
            case "cron":
                return config.cron.max_concurrent_runs


@lru_cache(maxsize=REMEMBERED_KEYS)
def lane_of(session_key: str) -> LaneName:
    if is_subagent(session_key):
        return "subagent"
    return "cron" if kind_of(session_key) == "cron" else "main"
