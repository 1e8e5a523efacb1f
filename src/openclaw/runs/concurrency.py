"""The limits on how many runs of a kind work at the same time, over all sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import lru_cache
from typing import Literal, TypeAlias

from openclaw.config.schema import Config
from openclaw.sessions.keys import REMEMBERED_KEYS, is_subagent, kind_of

RunKind: TypeAlias = Literal["main", "subagent", "cron"]


class ConcurrencyLimits:
    """Counts the runs of each kind and lets them wait for their turn, the first to come first.

    A changed limit holds from the next run on. ``main`` has no limit unless one is configured: a run that waits for its
    model costs almost nothing, and with a limit one person's slow session would delay another's.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._semaphores: dict[RunKind, tuple[int, asyncio.Semaphore]] = {}
        """A semaphore for each kind that has a limit, with the limit it was made for."""
        self._taken: Counter[RunKind] = Counter()
        """Runs that work or wait for their turn, and messages that are being accepted."""

    def free(self, session_key: str) -> bool:
        """Tells whether a run of this session could begin at once."""
        kind = run_kind(session_key)
        limit = self._limit(kind)
        return limit is None or self._taken[kind] < limit

    @contextmanager
    def promised(self, session_key: str) -> Generator[None]:
        """Counts a message that is being accepted, so that no other message gets its turn meanwhile."""
        kind = run_kind(session_key)
        self._taken[kind] += 1
        try:
            yield
        finally:
            self._taken[kind] -= 1

    @asynccontextmanager
    async def for_run(self, session_key: str) -> AsyncGenerator[None]:
        """Waits for the run's turn, and counts the run from the beginning of the wait."""
        kind = run_kind(session_key)
        limit = self._limit(kind)
        turn: asyncio.Semaphore | nullcontext[None] = nullcontext()
        if limit is not None:
            known = self._semaphores.get(kind)
            if known is None or known[0] != limit:
                known = self._semaphores[kind] = (limit, asyncio.Semaphore(limit))
            turn = known[1]
        with self.promised(session_key):
            async with turn:
                yield

    def _limit(self, kind: RunKind) -> int | None:
        config = self._config()
        match kind:
            case "main":
                return config.agents.defaults.max_concurrent
            case "subagent":
                return config.agents.defaults.subagents.max_concurrent
            case "cron":
                return config.cron.max_concurrent_runs


@lru_cache(maxsize=REMEMBERED_KEYS)
def run_kind(session_key: str) -> RunKind:
    if is_subagent(session_key):
        return "subagent"
    return "cron" if kind_of(session_key) == "cron" else "main"
