"""The runs in memory, and waiting for the end of one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from openclaw.runs.queue import (
    RunRecord,
)
from openclaw.runs.why_text import reason_text
from openclaw.storage.base import (
    END_STATES,
    Ledger,
)

REMEMBERED_RUNS = 200
"""The index forgets ended runs when it holds more runs than this."""
LONGEST_CHAIN = 20
"""How many ``answeredBy`` links are followed."""


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """``ok``, ``error`` or ``timeout``."""
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


class RunIndex:
    """The runs that have not ended and the last that have. The ledger answers for older ones."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()
        """The ids of ended runs, in the order in which they ended."""
        self._waiters: dict[str, set[asyncio.Event]] = {}
        """Events to set when the run with that id ends."""
        self.on_ended: Callable[[str], None] | None = None
        """Is told of every end in this process, because others may wait elsewhere."""

    def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    def add(self, record: RunRecord) -> None:
        """Adds a run, and forgets the first that ended when there are too many."""
        self._records[record.run_id] = record
        while len(self._records) > REMEMBERED_RUNS and self._ended:
            self._records.pop(self._ended.popleft(), None)

    def forget(self, run_id: str) -> None:
        """Forgets a run that goes on elsewhere."""
        self._records.pop(run_id, None)

    def ended(self, run_id: str) -> None:
        self._ended.append(run_id)
        self.wake_waiters(run_id)

    def wake_waiters(self, run_id: str) -> None:
        for waiter in self._waiters.get(run_id, ()):
            waiter.set()
        if self.on_ended is not None:
            self.on_ended(run_id)

    async def wait(self, run_id: str, timeout_s: float) -> WaitResult:
        """Waits for the end of a run. A run that is not known yet may still come."""
        known = await self._outcome(run_id)
        if known is not None or timeout_s <= 0:
            return known or WaitResult(status="timeout")
        ended = asyncio.Event()
        answering = await self._answering(run_id)
        waiters = self._waiters.setdefault(answering, set())
        waiters.add(ended)
        try:
            async with asyncio.timeout(timeout_s):
                # The run may have ended during the look-up of the run that answers.
                while (known := await self._outcome(run_id)) is None:
                    await ended.wait()
                    ended.clear()
                return known
        except TimeoutError:
            return WaitResult(status="timeout")
        finally:
            waiters.discard(ended)
            if not waiters:
                self._waiters.pop(answering, None)

    async def _outcome(self, run_id: str) -> WaitResult | None:
        record = self._records.get(run_id)
        if record is not None:
            if not record.ended:
                return None
            status = "ok" if record.state == "ok" else "error"
            error = record.error or ("aborted" if record.state == "aborted" else None)
            return WaitResult(status=status, started_at=record.started_at, ended_at=record.ended_at, error=error)
        answering = await self._answering(run_id)
        if answering in self._records:
            return await self._outcome(answering)
        row = await self._ledger.by_run(answering)
        if row is None or row.state not in END_STATES:
            return None
        status = "ok" if row.state in ("answered", "silent") else "error"
        error = None if status == "ok" else reason_text(row.reason) or row.state
        return WaitResult(status=status, started_at=row.started_at, ended_at=row.ended_at, error=error)

    async def _answering(self, run_id: str) -> str:
        """Returns the id of the run that answers this message: its own, or the one that took it in."""
        for _ in range(LONGEST_CHAIN):
            if run_id in self._records:
                break
            row = await self._ledger.by_run(run_id)
            by = (row.result or {}).get("answeredBy") if row is not None else None
            if not isinstance(by, str):
                break
            run_id = by
        return run_id
