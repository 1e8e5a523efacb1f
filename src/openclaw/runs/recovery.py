"""Recovery after a crash: which messages resume, in which order, and which of them are given up.

It also finds messages that the ledger has although it could not confirm their acceptance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Literal, TypeAlias

from openclaw.agent.runtime import Runtime
from openclaw.runs.bookkeeping import Bookkeeping
from openclaw.runs.queue_settings import QueueSettings, queue_settings
from openclaw.runs.run import Run, RunIndex
from openclaw.storage.disk_errors import FOREVER
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import NO_REASON, Accept, Ledger, LedgerRow, Reason, ReasonCode, SessionName

log = logging.getLogger("openclaw.runs")

MAX_ATTEMPTS = 3
"""A message is given up when the Gateway has crashed this often while it worked on it."""
SUSPECT_CRASHES = 2
"""Messages during which the Gateway has crashed this often run one at a time, so that the right one is given up."""
SUSPECT_S = 300.0
"""How long such a message waits for the one before it. That one has shown by then that it is harmless."""
EXPIRY_MS = 24 * 3600 * 1000
"""A message that has waited this long when the Gateway starts is not answered, because it may not matter any more."""
UNCERTAIN_S = 600.0
"""How long the ledger is asked for a message whose acceptance failed. A server may commit long after it was cut off."""
MOST_UNCERTAIN = 1_000
LOOK_S, LONGEST_LOOK_S = 1.0, 30.0

STOP_CODES = frozenset({ReasonCode.STOPPED, ReasonCode.REMOVED_FROM_QUEUE, ReasonCode.WITHDRAWN})
"""The reason of a message that was being stopped, or of one that ended so."""

Resumption: TypeAlias = Literal["run", "stop", "give up", "close"]


async def unfinished_runs(
    runtime: Runtime, session: SessionName | None = None, *, after_orderly_stop: bool = False
) -> list[Run]:
    """Find the messages without an end, of one session or of all, in the order in which they resume.

    Messages that had begun come first, because their text is in the transcript already. A message that had begun, is
    expired or is damaged runs alone; the others may still be collected. After an orderly stop no message can have
    crashed the earlier process.
    """
    rows = [row for row in await runtime.stores.ledger.unfinished(session) if not row.body.command]
    rows.sort(key=lambda row: (row.attempts == 0, row.id))
    now, config = runtime.clock.now_ms(), runtime.config.current.messages.queue
    runs: list[Run] = []
    for row in rows:
        stopped = row.reason.code in STOP_CODES
        run = Run(
            row,
            recovered=True,
            # Decided once, at the start, so that a clock that jumps later makes no message expire.
            expired=now - row.accepted_at >= EXPIRY_MS,
            stop_unnoted=after_orderly_stop and row.state == "running" and not stopped,
        )
        if row.attempts or run.expired or stopped or row.body.prompt is None:
            run.queue = QueueSettings(mode="followup")
        else:
            entry = await runtime.stores.sessions.get(row.agent_id, row.session_key)
            run.queue = queue_settings(config, entry, row.source)
        runs.append(run)
    return runs


def how_to_resume(run: Run, crashes: int, now_ms: int) -> tuple[Resumption, Reason]:
    """Decide whether the message is run, and if not, for what reason.

    ``stop``: somebody stopped the message before the restart. ``give up`` also writes the reason into the transcript.
    ``close`` ends the message in the ledger only, because the Gateway crashed even while it gave up.
    """
    if run.recovered and run.row.reason.code in STOP_CODES:
        return "stop" if crashes <= MAX_ATTEMPTS else "close", run.row.reason
    if crashes < MAX_ATTEMPTS and not run.expired:
        return "run", NO_REASON
    if run.expired:
        hours = max(1, (now_ms - run.row.accepted_at) // 3_600_000)
        reason = Reason(ReasonCode.EXPIRED, str(hours))
    else:
        reason = Reason(ReasonCode.CRASHED, str(crashes))
    return "give up" if crashes <= MAX_ATTEMPTS else "close", reason


async def crashes_of(run: Run, ledger: Ledger) -> int:
    """Count how often the Gateway died while it worked on this message. A shutdown does not count."""
    row = run.row
    if row.attempts < SUSPECT_CRASHES:
        return row.attempts
    changes = await ledger.history(row.id)
    shutdowns = sum(change.reason.code is ReasonCode.SHUTDOWN for change in changes)
    return row.attempts - shutdowns - run.stop_unnoted


class Suspects:
    """Runs messages that may have crashed the Gateway one at a time, so that the next crash shows which one did."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def alone(self, crashes: int) -> AsyncGenerator[None]:
        if crashes < SUSPECT_CRASHES:
            yield
            return
        waits = asyncio.ensure_future(self._turn.acquire())
        try:
            await asyncio.wait([waits], timeout=SUSPECT_S)
            yield
        finally:
            if not waits.cancel():
                self._turn.release()


class UnconfirmedMessages:
    """Messages whose sender was answered that they were not stored. A server may have committed them all the same."""

    def __init__(
        self, runtime: Runtime, index: RunIndex, books: Bookkeeping, adopt: Callable[[LedgerRow], bool]
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._books = books
        self._adopt = adopt
        self._sought: dict[str, tuple[SessionName, float]] = {}
        """The session of each such message by its run id, and until when the ledger is asked for it."""
        self._search: asyncio.Task[None] | None = None

    def watch_for(self, message: Accept) -> None:
        until = self._runtime.clock.monotonic() + UNCERTAIN_S
        self._sought[message.run_id] = (message.agent_id, message.session_key), until
        while len(self._sought) > MOST_UNCERTAIN:
            self._sought.pop(next(iter(self._sought)))
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._watch(), name="uncertain messages")

    def stop(self) -> None:
        if self._search is not None:
            self._search.cancel()

    async def _watch(self) -> None:
        clock, pause_s = self._runtime.clock, LOOK_S
        while self._sought:
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
            for run_id, (session, until) in list(self._sought.items()):
                read = partial(self._runtime.stores.ledger.unfinished, session)
                try:
                    rows = await self._books.until_written(read, tries=FOREVER)
                except Fenced:
                    return
                for row in rows:
                    if row.run_id == run_id and self._adopt(row):
                        log.warning("message %s was stored although that was not confirmed; it is answered", row.id)
                if self._index.get(run_id) is not None or clock.monotonic() > until:
                    self._sought.pop(run_id, None)
