"""The notes of runs in the ledger: how they are repeated, and those that no run waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from openclaw.clock import Clock
from openclaw.runs.run import Run
from openclaw.storage.disk_errors import UNKNOWN_TRIES, DiskWait, until_written
from openclaw.storage.errors import Fenced, MessageEnded
from openclaw.storage.message_ledger import NO_REASON, Ledger, LedgerRow, Reason, ReasonCode

log = logging.getLogger("openclaw.runs")
T = TypeVar("T")
STOP_S = 5.0
"""``stop`` waits this long for ledger writes. The next start finds the messages whose writes a full disk refuses."""


class Bookkeeping:
    """Writes to the ledger of one Gateway."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._background: set[asyncio.Task[None]] = set()

    async def until_written(
        self, write: Callable[[], Awaitable[T]], disk: DiskWait | None = None, tries: float = UNKNOWN_TRIES
    ) -> T:
        """Repeat the write until the disk accepts it. The session waits, as its next message could not be stored.

        After an unknown error it is tried again ``tries`` times.
        """
        return await until_written(write, self._clock.sleep, disk, unknown_tries=tries)

    def in_background(self, work: Awaitable[Any]) -> None:
        """Start a ledger write that nobody waits for. Errors are logged."""

        async def settle() -> None:
            try:
                await work
            except Fenced:
                pass
            except Exception:
                log.exception("bookkeeping failed")

        task = asyncio.ensure_future(settle())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def note_waiting(self, run: Run, reason: Reason) -> None:
        """Note in the background why the message waits, unless it has begun before that is written."""

        async def note() -> None:
            if run.state == "queued" and not run.abort.aborted:
                with contextlib.suppress(MessageEnded):
                    await self._ledger.advance(run.row.id, "queued", reason)

        self.in_background(self.until_written(note))

    async def note_running(self, run: Run, session_id: str, reason: Reason = NO_REASON) -> None:
        """Count an attempt. If the last Gateway could not note that it shut down, that is noted first."""
        if run.stop_unnoted:
            await self.note_shutdown(run.row)
            run.stop_unnoted = False
        if not run.abort.aborted:  # The note of a stop must stay the last one.
            with contextlib.suppress(MessageEnded):
                await self._ledger.advance(run.row.id, "running", reason, session_id=session_id)

    async def note_stopped(self, runs: Sequence[Run], reason: Reason) -> None:
        """Note that the runs are being stopped. On a disk that refuses writes, the notes are written later."""

        async def note(run: Run) -> None:
            with contextlib.suppress(MessageEnded):
                await self._ledger.advance(run.row.id, "queued", reason)

        for run, problem in zip(runs, await asyncio.gather(*map(note, runs), return_exceptions=True), strict=True):
            if isinstance(problem, Exception) and not isinstance(problem, Fenced):
                self.in_background(self.until_written(partial(note, run)))

    async def note_shutdown(self, row: LedgerRow) -> None:
        """Note that the Gateway shut down while this message was running."""
        with contextlib.suppress(MessageEnded):
            await self._ledger.advance(row.id, "queued", Reason(ReasonCode.SHUTDOWN))

    async def stop(self) -> None:
        """Wait a short time for the notes that are being written, and cancel the rest."""
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=STOP_S)
            for task in late:
                task.cancel()

    def drop(self) -> None:
        for task in self._background:
            task.cancel()
