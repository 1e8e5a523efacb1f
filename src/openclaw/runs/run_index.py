"""A run as the Gateway remembers it: what it is doing, how it ended, who is waiting for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.run import RunResult
from openclaw.events import Event
from openclaw.runs.queue import QueueSettings
from openclaw.runs.why_text import reason_text
from openclaw.storage.base import END_STATES, FirstStep, Ledger, LedgerRow
from openclaw.storage.disk_errors import DiskWait

if TYPE_CHECKING:
    from openclaw.runs.admission import Ticket
    from openclaw.runs.lane import RunInbox

RunState = Literal["queued", "running", "ok", "error", "aborted"]


class RunRecord:
    def __init__(self, row: LedgerRow, *, noted_step: FirstStep | None = None) -> None:
        self.row = row
        self.run_id = row.run_id
        self.session_key = row.session_key
        self.agent_id = row.agent_id
        self.state: RunState = "queued"
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.error: str | None = None
        self.result: RunResult | None = None
        self.abort = AbortSignal()
        self.verbose: str | None = None
        """The session's own setting when the run began."""
        self.reasoning = "off"
        """Whether the session sees the model's reasoning: ``off``, ``on`` (with the answer) or ``stream``."""
        self.noted_step = noted_step
        """The step that the ledger noted together with the acceptance. None when it noted no step."""
        self.recovered = False
        """Taken up after a restart."""
        self.expired = False
        """It is too old to be answered any more."""
        self.disk = DiskWait()
        self.queue = QueueSettings()
        self.queued = False
        """Waited, or waits, behind another run."""
        self.inbox: RunInbox | None = None
        self.absorbed: list[RunRecord] = []
        """Messages this run answers besides its own."""
        self.absorbed_by: str | None = None
        self.watchers: set[str] = set()
        """Connections that asked for this run and may see its tool events."""
        self.listeners: list[Callable[[Event], None]] = []
        """In-process followers of the run's events, e.g. an HTTP response that streams it."""
        self.ticket: Ticket | None = None
        """Its place in the admission."""
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def steerable(self) -> bool:
        return self.state == "running" and self.inbox is not None and self.inbox.open and not self.abort.aborted

    def begin(self, now_ms: int) -> None:
        self.state, self.started_at = "running", now_ms

    def release_ticket(self) -> None:
        """The model is asked now, or the run waits: another message may be admitted."""
        if self.ticket is not None:
            self.ticket.release()

    def end(self, state: RunState, now_ms: int, error: str | None = None, result: RunResult | None = None) -> None:
        self.state, self.ended_at, self.error, self.result = state, now_ms, error, result
        self._ended.set()
        self.release_ticket()

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    async def wait(self) -> None:
        await self._ended.wait()


class Observer(Protocol):
    """Sees a run from outside: the Gateway's event stream."""

    def started(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def aborted(self, reason: str) -> None:
        """Called at once when someone stops the run, which may take a moment longer to end."""
        ...

    def absorbed(self, by: str) -> None:
        """Another run takes this message in; its answer comes there."""
        ...

    def finished(self) -> None: ...


REMEMBERED_RUNS = 200
LONGEST_CHAIN = 20


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """``ok``, ``error`` or ``timeout``."""
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


class RunIndex:
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
        error = None if status == "ok" else reason_text(row.reason) or row.state
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
