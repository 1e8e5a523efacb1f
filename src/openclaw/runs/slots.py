"""How many runs of a kind may work at the same time, over all sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from openclaw.config.schema import Config
from openclaw.runs.record import RunRecord
from openclaw.sessions.keys import REMEMBERED_KEYS, is_subagent, kind_of

LaneName = Literal["main", "subagent", "cron"]


class Place:
    """Counts from the moment it is asked for until it is given back."""

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


class Slots:
    """First come, first served within a kind. A changed limit counts from the next run on.

    ``main`` has no limit unless one is configured: a run that waits for its model costs next to nothing here, and a
    limit would make one person's slow session delay another's.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._limits: dict[LaneName, tuple[int, asyncio.Semaphore]] = {}
        self._taken: Counter[LaneName] = Counter()

    def free(self, session_key: str) -> bool:
        """Whether a run of this session would not have to wait for others."""
        lane = lane_of(session_key)
        limit = self._limit(lane)
        return limit is None or self._taken[lane] < limit

    def promised(self, session_key: str) -> Place:
        """A place for a message that is being accepted: it is not promised to another meanwhile."""
        return Place(self._taken, lane_of(session_key))

    def for_run(self, record: RunRecord) -> Place:
        """A place to work in, once there is one."""
        lane = lane_of(record.session_key)
        limit = self._limit(lane)
        if limit is None:
            return Place(self._taken, lane)
        known = self._limits.get(lane)
        if known is None or known[0] != limit:
            known = self._limits[lane] = (limit, asyncio.Semaphore(limit))
        return Place(self._taken, lane, known[1])

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
