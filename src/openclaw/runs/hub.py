"""Where accepted messages become runs: one lane per session, every run followed from acceptance to its one end."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from openclaw.agent.loop import NoInbox
from openclaw.agent.run import AgentRun, RunResult
from openclaw.agent.runtime import Runtime, Turn
from openclaw.events import Event
from openclaw.messages import ImageBlock, ToolResultMessage
from openclaw.models.base import ToolSpec
from openclaw.runs.lane import Lane
from openclaw.runs.record import RunRecord, RunState
from openclaw.storage.base import END_STATES, Accept, LedgerRow, MessageState

log = logging.getLogger("openclaw.runs")
T = TypeVar("T")

MAX_ATTEMPTS = 3
REMEMBERED_RUNS = 200
IDLE_LANES = 1_000
GAVE_UP = (
    "The Gateway stopped {attempts} times while working on this message, so it was given up. Send it again to retry."
)


class Observer(Protocol):
    """Sees a run from outside: the Gateway's event stream."""

    def started(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def aborted(self, reason: str) -> None:
        """Called at once when someone stops the run, which may take a moment longer to end."""
        ...

    def finished(self) -> None: ...


class Submission(msgspec.Struct, frozen=True):
    row: LedgerRow
    new: bool
    queued: bool
    record: RunRecord | None


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """``ok``, ``error`` or ``timeout``."""
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


class RunHub:
    def __init__(self, runtime: Runtime, observe: Callable[[RunRecord], Observer]) -> None:
        self._runtime = runtime
        self._observe = observe
        self._lanes: dict[str, Lane] = {}
        self._records: OrderedDict[str, RunRecord] = OrderedDict()
        self._observers: dict[str, Observer] = {}
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._slots: asyncio.Semaphore | None = None
        self._slot_count: int | None = None

    # Accepting

    async def submit(self, message: Accept, watcher: str | None = None) -> Submission:
        """Writes the message down, then puts it in its session's lane. A known id starts nothing."""
        row, new = await self._runtime.ledger.accept(message)
        if not new:
            record = self._records.get(row.run_id)
            if record is not None and watcher is not None:
                record.watchers.add(watcher)
            return Submission(row, False, False, record)
        record = RunRecord(row)
        if watcher is not None:
            record.watchers.add(watcher)
        queued = self._enqueue(record)
        if queued:
            self._later(self._runtime.ledger.advance(row.id, "queued", "another message of this session is running"))
        return Submission(row, True, queued, record)

    def _enqueue(self, record: RunRecord) -> bool:
        self._remember(record)
        self._observers[record.run_id] = self._observe(record)
        return self._lane(record.session_key).add_run(record, self._run)

    def _lane(self, session_key: str) -> Lane:
        lane = self._lanes.get(session_key)
        if lane is None:
            if len(self._lanes) >= IDLE_LANES:
                for key in [key for key, lane in self._lanes.items() if lane.idle]:
                    del self._lanes[key]
            lane = self._lanes[session_key] = Lane(session_key)
        return lane

    async def exclusively(self, session_key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Housekeeping of one session (inject, reset, delete): after its runs, before those that come later."""
        return await self._lane(session_key).exclusively(work)

    async def recover(self) -> int:
        """Takes up every message without an end; called once, after the Gateway has begun to listen."""
        rows = await self._runtime.ledger.unfinished()
        for row in rows:
            record = RunRecord(row)
            if row.attempts >= MAX_ATTEMPTS:
                self._observers[row.run_id] = self._observe(record)
                self._remember(record)
                error = GAVE_UP.format(attempts=row.attempts)
                await self._finish(record, RunResult(outcome="error", error=error))
            else:
                self._enqueue(record)
        return len(rows)

    # Looking

    def find(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    def active(self, session_key: str) -> list[RunRecord]:
        """What runs now, then what waits."""
        lane = self._lanes.get(session_key)
        return lane.records if lane is not None else []

    def busy(self) -> int:
        return sum(1 for lane in self._lanes.values() if lane.active is not None)

    async def wait(self, run_id: str, timeout_s: float) -> WaitResult:
        """The run's end, or ``timeout``; waiting does not depend on any connection. Unknown ids may still arrive."""
        known = await self._outcome(run_id)
        if known is not None or timeout_s <= 0:
            return known or WaitResult(status="timeout")
        ended = asyncio.Event()
        waiters = self._waiters.setdefault(run_id, set())
        waiters.add(ended)
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return WaitResult(status="timeout")
        finally:
            waiters.discard(ended)
            if not waiters:
                self._waiters.pop(run_id, None)
        return await self._outcome(run_id) or WaitResult(status="timeout")

    async def _outcome(self, run_id: str) -> WaitResult | None:
        record = self._records.get(run_id)
        if record is not None:
            if not record.ended:
                return None
            status = "ok" if record.state == "ok" else "error"
            error = record.error or ("aborted" if record.state == "aborted" else None)
            return WaitResult(status=status, started_at=record.started_at, ended_at=record.ended_at, error=error)
        row = await self._runtime.ledger.by_run(run_id)
        if row is None or row.state not in END_STATES:
            return None
        status = "ok" if row.state in ("answered", "silent") else "error"
        error = None if status == "ok" else row.reason or row.state
        return WaitResult(status=status, started_at=row.started_at, ended_at=row.ended_at, error=error)

    # Stopping

    def abort(self, session_key: str, run_id: str | None = None, reason: str = "rpc") -> list[str]:
        """Stops the session's runs (or one of them), waiting ones included; returns the ids it stopped."""
        stopped: list[str] = []
        lane = self._lanes.get(session_key)
        for record in self.active(session_key):
            if run_id is not None and record.run_id != run_id:
                continue
            if not record.abort.abort(reason):
                continue
            stopped.append(record.run_id)
            self._observers[record.run_id].aborted(reason)
            if lane is not None and lane.withdraw(record):
                self._later(self._finish(record, RunResult(outcome="aborted", error=reason)))
        return stopped

    async def settle(self, session_key: str, timeout_s: float) -> bool:
        """Waits until nothing of the session is running."""
        try:
            async with asyncio.timeout(timeout_s):
                for record in self.active(session_key):
                    await record.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends the process's part in every run; their rows stay open and are taken up at the next start."""
        await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    # Running

    async def _run(self, record: RunRecord) -> None:
        slots = self._current_slots()
        if slots is None:
            await self._run_now(record)
            return
        async with slots:
            await self._run_now(record)

    def _current_slots(self) -> asyncio.Semaphore | None:
        wanted = self._runtime.config.current.agents.defaults.max_concurrent
        if wanted != self._slot_count:
            self._slot_count = wanted
            self._slots = asyncio.Semaphore(wanted) if wanted else None
        return self._slots

    async def _run_now(self, record: RunRecord) -> None:
        observer = self._observers[record.run_id]
        record.begin(self._runtime.clock.now_ms())
        self._later(self._runtime.ledger.advance(record.row.id, "running"))
        observer.started()
        try:
            turn = await self._turn(record)

            def emit(event: Event) -> None:
                observer.event(event)
                record.tell(event)

            run = AgentRun(turn, self._runtime, abort=record.abort, inbox=NoInbox(), emit=emit)
            result = await run.execute()
        except Exception as error:
            log.exception("run %s of %s failed", record.run_id, record.session_key)
            result = RunResult(outcome="error", error=f"Something went wrong inside the Gateway: {error}")
        await self._finish(record, result)

    async def _turn(self, record: RunRecord) -> Turn:
        row, body = record.row, record.row.body
        entry = await self._runtime.sessions.get(row.agent_id, row.session_key)
        record.verbose = entry.get("verboseLevel") if entry else None
        resumed = row.attempts > 0
        session_id = row.session_id if resumed or entry is None else entry.get("sessionId", row.session_id)
        return Turn(
            ledger_id=row.id,
            run_id=row.run_id,
            agent_id=row.agent_id,
            session_key=row.session_key,
            session_id=session_id,
            prompt=body["prompt"],
            images=[await self._image(image) for image in body.get("images", [])],
            thinking=body.get("thinking"),
            timeout_s=body.get("timeoutSeconds"),
            extra_system_prompt=body.get("extraSystemPrompt", ""),
            client_tools=msgspec.convert(body.get("clientTools", []), list[ToolSpec]),
            tool_outputs=msgspec.convert(body.get("toolOutputs", []), list[ToolResultMessage]),
            resumed=resumed,
        )

    async def _image(self, image: dict[str, Any]) -> ImageBlock:
        data = await self._runtime.blobs.get(image["blob"])
        if data is None:
            raise FileNotFoundError(f"an attached image is gone from the blob store ({image['blob'][:12]})")
        return ImageBlock(data=base64.b64encode(data).decode(), mime_type=image["mimeType"])

    async def _finish(self, record: RunRecord, result: RunResult) -> None:
        """The one end of a message: first on disk, then told to everyone."""
        state, reason = _end_of(result)
        summary: dict[str, Any] = {"outcome": result.outcome, "sessionId": result.session_id}
        if result.texts:
            summary["text"] = result.texts[-1]
        await self._runtime.ledger.finish(record.row.id, state, reason=reason, result=summary)
        states: dict[str, RunState] = {"ok": "ok", "error": "error", "aborted": "aborted"}
        record.end(states[result.outcome], self._runtime.clock.now_ms(), result.error, result)
        self._observers.pop(record.run_id).finished()
        for waiter in self._waiters.get(record.run_id, ()):
            waiter.set()

    def _remember(self, record: RunRecord) -> None:
        """Keeps the newest runs at hand; older ones are answered from the ledger."""
        self._records[record.run_id] = record
        if len(self._records) > REMEMBERED_RUNS:
            for run_id, old in list(self._records.items()):
                if len(self._records) <= REMEMBERED_RUNS:
                    break
                if old.ended:
                    del self._records[run_id]

    def _later(self, work: Awaitable[Any]) -> None:
        """Bookkeeping nobody waits for; kept referenced until done, failures logged."""

        async def settle() -> None:
            try:
                await work
            except Exception:
                log.exception("bookkeeping failed")

        task = asyncio.ensure_future(settle())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _end_of(result: RunResult) -> tuple[MessageState, str]:
    match result.outcome:
        case "ok":
            return "answered", ""
        case "error":
            return "failed", result.error or "unknown error"
        case "aborted":
            if result.error == "timeout":
                return "failed", "the run took longer than its time limit"
            return "superseded", f"stopped ({result.error})"
