"""Runs by their names: the newest in memory, all of them in the ledger, and those who wait for one to end."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from openclaw.runs.record import RunRecord
from openclaw.storage.base import END_STATES, Ledger

REMEMBERED_RUNS = 200
LONGEST_CHAIN = 20


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """``ok``, ``error`` or ``timeout``."""
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


class KnownRuns:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._records: dict[str, RunRecord] = {}
        self._ended: deque[str] = deque()
        """Of them, those that have ended, the first of them first."""
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    def add(self, record: RunRecord) -> None:
        """Keeps the newest at hand; older ones are answered from the ledger."""
        self._records[record.run_id] = record
        while len(self._records) > REMEMBERED_RUNS and self._ended:
            self._records.pop(self._ended.popleft(), None)

    def ended(self, run_id: str) -> None:
        self._ended.append(run_id)
        for waiter in self._waiters.get(run_id, ()):
            waiter.set()

    async def wait(self, run_id: str, timeout_s: float) -> WaitResult:
        """The run's end, or ``timeout``; waiting does not depend on any connection. Unknown ids may still arrive."""
        known = await self._outcome(run_id)
        if known is not None or timeout_s <= 0:
            return known or WaitResult(status="timeout")
        ended = asyncio.Event()
        answering = await self._answering(run_id)
        waiters = self._waiters.setdefault(answering, set())
        waiters.add(ended)
        try:
            async with asyncio.timeout(timeout_s):
                # It may have ended while the name of the run that answers was looked up.
                if (known := await self._outcome(run_id)) is not None:
                    return known
                await ended.wait()
        except TimeoutError:
            return WaitResult(status="timeout")
        finally:
            waiters.discard(ended)
            if not waiters:
                self._waiters.pop(answering, None)
        return await self._outcome(run_id) or WaitResult(status="timeout")

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
        error = None if status == "ok" else row.reason or row.state
        return WaitResult(status=status, started_at=row.started_at, ended_at=row.ended_at, error=error)

    async def _answering(self, run_id: str) -> str:
        """The run that answers this message: its own, or the one that took it in."""
        for _ in range(LONGEST_CHAIN):
            if run_id in self._records:
                break
            row = await self._ledger.by_run(run_id)
            by = (row.result or {}).get("answeredBy") if row is not None else None
            if not isinstance(by, str):
                break
            run_id = by
        return run_id
