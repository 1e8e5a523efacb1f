"""Where accepted messages become runs: one lane per session, every run followed from acceptance to its one end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from openclaw.agent.prepare import load_images
from openclaw.agent.run import AgentRun, RunResult
from openclaw.agent.runtime import Runtime
from openclaw.events import Event, SteeringInjected
from openclaw.messages import TextBlock, UserMessage
from openclaw.runs.admission import Admission, ConcurrencyLimits, Ticket
from openclaw.runs.compactions import Compactions
from openclaw.runs.lane import Lane, RunInbox, may_share
from openclaw.runs.outcome import Ending, abort_reason, ending_of, reply_parts
from openclaw.runs.queue import QueueSettings, collected_prompt, decide, overflow_text, queue_settings, waiting_reason
from openclaw.runs.recovery import crashes_of, how_to_go_on, in_order, is_too_old, put_down, queue_again, why_not
from openclaw.runs.run_index import Observer, RunIndex, RunRecord, WaitResult
from openclaw.runs.why_text import abort_text
from openclaw.storage import faults
from openclaw.storage.base import (
    NO_REASON,
    AbortReason,
    Accept,
    FirstStep,
    LedgerRow,
    Reason,
    ReasonCode,
    Transcript,
    Writing,
)
from openclaw.storage.disk_errors import DiskWait, until_written

log = logging.getLogger("openclaw.runs")
T = TypeVar("T")

IDLE_LANES = 1_000
STOP_S = 5.0
"""How long stopping waits for bookkeeping; what a full disk keeps from being written is found at the next start."""
QUEUE_FULL = "Not taken: {waiting} messages of this session are waiting already. Wait for an answer, or use /stop."


class Submission(msgspec.Struct, frozen=True):
    row: LedgerRow
    new: bool
    queued: bool
    record: RunRecord | None


class Dispatcher:
    def __init__(self, runtime: Runtime, observe: Callable[[RunRecord], Observer]) -> None:
        self._runtime = runtime
        self._observe = observe
        self._lanes: dict[str, Lane] = {}
        self._index = RunIndex(runtime.ledger)
        self._observers: dict[str, Observer] = {}
        self._left: dict[str, list[tuple[RunRecord, QueueSettings]]] | None = None
        """Messages of an earlier life, by session, until their lane is made."""
        self._background: set[asyncio.Task[None]] = set()
        self._limits = ConcurrencyLimits(lambda: runtime.config.current)
        self.admission = Admission()
        self.compactions = Compactions(runtime, self.exclusively)
        self._stopping = False

    # Accepting

    async def submit(
        self,
        message: Accept,
        settings: QueueSettings | None = None,
        watcher: str | None = None,
        ticket: Ticket | None = None,
        after: Writing | None = None,
    ) -> Submission:
        """Writes the message down, then decides what becomes of it. A known id starts nothing.

        ``ticket``: its place in the admission, which a message that runs at once keeps until it asks its model.
        ``after``: what must be on disk before the message is.
        """
        settings = settings or QueueSettings(mode="followup")
        lane = self._lane(message.session_key)
        step = self._first_step(lane, settings)
        faults.point("accept.before")
        reason = waiting_reason(settings) if step == "queued" else NO_REASON
        lane.coming += 1
        try:
            with self._limits.promised(message.session_key):
                row, new = await self._runtime.ledger.accept(message, step=step, reason=reason, after=after)
        finally:
            lane.coming -= 1
        faults.point("accept.after")
        record = self._index.get(row.run_id) if not new else RunRecord(row, noted=step)
        if record is not None and watcher is not None:
            record.watchers.add(watcher)
        if not new or record is None:
            return Submission(row, False, False, record)
        self._remember(record)
        if ticket is not None:
            record.ticket, ticket.runs = ticket, True
        queued = await self._place(record, settings)
        if queued:
            record.release_ticket()
        return Submission(row, True, queued, record)

    def _first_step(self, lane: Lane, settings: QueueSettings) -> FirstStep | None:
        """What will become of a message at once, where that is plain: one commit says both then."""
        if lane.unused:
            return "running" if self._limits.free(lane.key) else None
        choice = decide(settings, busy=lane.busy, steerable=True, waiting=lane.depth)
        return "queued" if choice == "wait" else None

    async def _place(self, record: RunRecord, settings: QueueSettings) -> bool:
        """Runs, queues, steers or refuses by the session's queue mode; True when the message does not run at once."""
        lane = self._lane(record.session_key)
        active = lane.active
        steerable = active is not None and active.steerable and may_share([active, record])
        choice = decide(settings, busy=lane.busy, steerable=steerable, waiting=lane.depth)
        if choice == "steer" and active is not None and await self._steer_in_order(lane, active, record, settings):
            return True
        if choice == "refuse":
            error = QUEUE_FULL.format(waiting=lane.depth)
            await self._finish(record, RunResult(outcome="error", error=error))
            return True
        if choice == "interrupt":
            self.abort(record.session_key, reason=AbortReason.INTERRUPT)
        queued = lane.add(record, settings)
        if queued and choice != "interrupt":
            if record.noted != "queued":
                self._later(self._runtime.ledger.advance(record.row.id, "queued", waiting_reason(settings)))
            self._make_room(lane, settings)
        if queued:
            record.noted = None
        return queued

    async def _steer(self, active: RunRecord, record: RunRecord, settings: QueueSettings) -> bool:
        try:
            blocks = [
                TextBlock(text=record.row.body.prompt or ""),
                *await load_images(record.row.body, self._runtime.blobs),
            ]
        except OSError:
            return False  # It is accepted: a run of its own will say what is wrong with its pictures.
        now = self._runtime.clock.now_ms()
        if active.inbox is None or not active.inbox.put(record, UserMessage(content=blocks, timestamp=now)):
            return False
        record.queue = settings
        self._later(self._runtime.ledger.advance(record.row.id, "queued", Reason(ReasonCode.STEERING, active.run_id)))
        if settings.mode == "steer-backlog":
            await self._again_later(record)
        return True

    async def _steer_in_order(self, lane: Lane, active: RunRecord, record: RunRecord, settings: QueueSettings) -> bool:
        """Nothing that waits is overtaken: it is steered in first, or else the new message waits behind it.

        What was left from before a restart may have reached the model already; it is not put before it again.
        """
        for earlier in lane.waiting:
            steers = earlier.queue.mode in ("steer", "steer-backlog") and not earlier.recovered
            if not steers or not may_share([active, earlier]) or not lane.withdraw(earlier):
                return False
            if not await self._steer(active, earlier, earlier.queue):
                lane.add(earlier, earlier.queue, first=True)
                return False
        return await self._steer(active, record, settings)

    async def _again_later(self, record: RunRecord) -> None:
        """Besides being steered in, the message gets a turn of its own when the run has ended."""
        row = record.row
        copy = Accept(
            run_id=f"{row.run_id}:backlog",
            dedupe_key="",
            agent_id=row.agent_id,
            session_key=row.session_key,
            session_id=row.session_id,
            source=row.source,
            route=row.route,
            body=row.body,
        )
        await self.submit(copy, QueueSettings(mode="followup"))

    def _make_room(self, lane: Lane, settings: QueueSettings) -> None:
        """Lets the oldest go when more wait than the session allows; their end says so."""
        surplus = lane.depth - settings.cap
        for oldest in lane.waiting[:surplus] if surplus > 0 else ():
            lane.withdraw(oldest)
            code = ReasonCode.QUEUE_OVERFLOW
            if settings.drop == "summarize":
                lane.overflow.add(oldest.row.body.prompt or "", settings.cap)
                code = ReasonCode.QUEUE_OVERFLOW_SUMMARIZED
            ending = Ending("superseded", Reason(code, str(settings.cap)))
            self._later(self._finish(oldest, RunResult(outcome="aborted"), ending=ending))

    def _lane(self, session_key: str) -> Lane:
        lane = self._lanes.get(session_key)
        if lane is None:
            if len(self._lanes) >= IDLE_LANES:
                for key in [key for key, lane in self._lanes.items() if lane.unused]:
                    del self._lanes[key]
            lane = self._lanes[session_key] = Lane(session_key, self._runtime.clock, self._perform)
            for record, settings in (self._left or {}).pop(session_key, ()):
                lane.add(record, settings)
        return lane

    async def exclusively(self, session_key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Housekeeping of one session (inject, reset, delete): after its runs, before those that come later."""
        return await self._lane(session_key).exclusively(work)

    async def find_unfinished(self) -> int:
        """Finds the messages without an end, before anyone can send new ones: they come first in their sessions."""
        rows, now = in_order(await self._runtime.ledger.unfinished()), self._runtime.clock.now_ms()
        self._left = {}
        config = self._runtime.config.current.messages.queue
        for row in rows:
            record = RunRecord(row)
            record.recovered, record.expired = True, is_too_old(row, now)
            self._remember(record)
            if not row.attempts:
                self._later(self._runtime.ledger.advance(row.id, "queued", Reason(ReasonCode.RESTARTED)))
            entry = await self._runtime.sessions.get(row.agent_id, row.session_key)
            settings = queue_again(
                row, queue_settings(config, entry, row.source), alone=record.expired or row.body.prompt is None
            )
            self._left.setdefault(row.session_key, []).append((record, settings))
        return len(rows)

    async def recover(self) -> int:
        """Takes up every message without an end; called once, after the Gateway has begun to listen."""
        if self._left is None:
            await self.find_unfinished()
        left = list(self._left or ())
        for session_key in left:
            self._lane(session_key)
        return len(left)

    # Looking

    def find(self, run_id: str) -> RunRecord | None:
        return self._index.get(run_id)

    async def wait(self, run_id: str, timeout_s: float) -> WaitResult:
        """The run's end, or ``timeout``."""
        return await self._index.wait(run_id, timeout_s)

    def active(self, session_key: str) -> list[RunRecord]:
        """What runs now, then what waits."""
        lane = self._lanes.get(session_key)
        return lane.records if lane is not None else []

    def occupied(self, session_key: str) -> bool:
        """Whether anything of the session runs or waits."""
        lane = self._lanes.get(session_key)
        return lane is not None and (lane.active is not None or lane.depth > 0)

    def waiting(self, session_key: str) -> list[RunRecord]:
        lane = self._lanes.get(session_key)
        return lane.waiting if lane is not None else []

    def busy(self) -> int:
        return sum(1 for lane in self._lanes.values() if lane.active is not None)

    def queued(self) -> int:
        return sum(lane.depth for lane in self._lanes.values())

    # Stopping and editing

    def abort(self, session_key: str, run_id: str | None = None, reason: AbortReason = AbortReason.RPC) -> list[str]:
        """Stops the session's runs (or one of them), waiting ones included; returns the ids it stopped."""
        if run_id is None and reason is not AbortReason.INTERRUPT:
            self.compactions.cancel(session_key)
            if self._runtime.approvals is not None:
                self._runtime.approvals.withdraw(session_key)
        lane = self._lanes.get(session_key)
        if lane is None:
            return []
        stopped: list[str] = []
        for record in lane.records:
            if run_id is not None and record.run_id != run_id:
                continue
            if not record.abort.abort(reason):
                continue
            stopped.append(record.run_id)
            self._observers[record.run_id].aborted(abort_text(abort_reason(reason)))
            if lane.withdraw(record):
                self._later(self._finish(record, RunResult(outcome="aborted", error=reason)))
        if run_id is None:
            lane.overflow.take()
        return stopped

    def promote(self, session_key: str, run_id: str) -> bool:
        """Lets a waiting message go next."""
        lane = self._lanes.get(session_key)
        record = next((waiting for waiting in self.waiting(session_key) if waiting.run_id == run_id), None)
        return lane is not None and record is not None and lane.promote(record)

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
        self._stopping = True
        await self.compactions.stop()
        cut_short = [lane.active for lane in self._lanes.values() if lane.active is not None]
        await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
        for record in cut_short:
            if record.ended_at is None:
                self._later(put_down(record.row, self._runtime.ledger))
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=STOP_S)
            for task in late:
                task.cancel()

    # Running

    async def _perform(self, lane: Lane, batch: list[RunRecord]) -> None:
        record = batch[-1]
        try:
            await self._collect(lane, batch)
            async with self._limits.for_run(record.session_key):
                await self._run(lane, record)
        except Exception as error:
            log.exception("run %s of %s failed", record.run_id, record.session_key)
            for other in reversed(batch[:-1]):
                if other.absorbed_by is None:
                    lane.add(other, QueueSettings(mode="followup"), first=True)
            problem = f"Something went wrong inside the Gateway: {error}"
            await self._finish(record, RunResult(outcome="error", error=problem))

    async def _collect(self, lane: Lane, batch: list[RunRecord]) -> None:
        """Several messages become one prompt under the newest one's name; on disk before the model sees it."""
        record = batch[-1]
        count, lines = lane.overflow.take()
        if not record.queued or (record.queue.mode != "collect" and not count):
            return
        overflow = overflow_text(count, lines)
        if record.queue.mode == "collect":
            prompt = collected_prompt([one.row.body.prompt or "" for one in batch], overflow)
        else:
            prompt = f"{overflow}\n\n{record.row.body.prompt or ''}"
        others = batch[:-1]
        images = [image for one in batch for image in one.row.body.images]
        reason, ids = Reason(ReasonCode.COLLECTED, record.run_id), [one.row.id for one in others]
        ledger, row_id = self._runtime.ledger, record.row.id
        body = msgspec.structs.replace(record.row.body, prompt=prompt, images=images)
        await self._kept(lambda: ledger.absorb(row_id, ids, body=body, reason=reason))
        faults.point("absorb.after")
        record.row.body = body
        for other in others:
            self._absorb(record, other)

    async def _run(self, lane: Lane, record: RunRecord) -> None:
        observer = self._observers[record.run_id]
        crashes = await crashes_of(record.row, self._runtime.ledger)
        going_on = how_to_go_on(crashes, expired=record.expired)
        now = self._runtime.clock.now_ms()
        error = "" if going_on == "run" else why_not(record.row, crashes, now, expired=record.expired)
        if going_on == "close":
            await self._finish(record, RunResult(outcome="error", error=error, expired=record.expired))
            return
        session_id = await self._session_of(record)
        images = await load_images(record.row.body, self._runtime.blobs)
        record.inbox = RunInbox()
        record.begin(self._runtime.clock.now_ms())
        if record.recovered:
            # Counted before anything else happens: a message that brings the Gateway down must not do so for ever.
            await self._kept(lambda: self._begun(record, session_id), record.disk)
        elif record.noted != "running" or session_id != record.row.session_id:
            self._later(self._begun(record, session_id))
        faults.point("run.start")
        observer.started()

        def emit(event: Event) -> None:
            if isinstance(event, SteeringInjected):
                self._took_in(record, event.token)
            observer.event(event)
            record.tell(event)

        try:
            run = AgentRun(
                record.row,
                self._runtime,
                session_id=session_id,
                images=images,
                # A run that waited behind another one looks at the workspace that one left.
                arrived_at=record.ticket.arrived_at if record.ticket is not None and not record.queued else None,
                abort=record.abort,
                inbox=record.inbox,
                emit=emit,
                disk=record.disk,
                on_model_call=record.release_ticket,
            )
            result = await (run.execute() if going_on == "run" else run.give_up(error))
            result.expired = record.expired
        finally:
            for left in reversed(record.inbox.close()):
                # Its words came too late for this run: they get the next one, before those that came later.
                lane.add(left, left.queue, first=True)
        await self._finish(record, result, run.transcript)
        if run.prepared is not None and result.outcome == "ok":
            self.compactions.after_run(run.prepared, result.final, emit)

    async def _session_of(self, record: RunRecord) -> str:
        """The id of the session the message runs in; takes over what is shown of the run. ValueError: it is damaged."""
        row, body = record.row, record.row.body
        if body.prompt is None:
            raise ValueError("what was stored of this message is damaged; send it again")
        entry = await self._runtime.sessions.get(row.agent_id, row.session_key)
        record.verbose = body.verbose or (entry.get("verboseLevel") if entry else None)
        record.reasoning = body.reasoning or (entry.get("reasoningLevel") if entry else None) or "off"
        return row.session_id if row.attempts or entry is None else entry.get("sessionId", row.session_id)

    async def _begun(self, record: RunRecord, session_id: str) -> None:
        await self._runtime.ledger.advance(record.row.id, "running", session_id=session_id)

    def _took_in(self, record: RunRecord, run_id: str) -> None:
        steered = self._index.get(run_id)
        if steered is not None:
            self._absorb(record, steered)
            reason, by = Reason(ReasonCode.STEERED, record.run_id), {"answeredBy": record.run_id}
            row_id = steered.row.id
            self._later(self._kept(lambda: self._runtime.ledger.finish(row_id, "superseded", reason=reason, result=by)))

    def _absorb(self, record: RunRecord, other: RunRecord) -> None:
        other.absorbed_by = record.run_id
        record.absorbed.append(other)
        record.watchers |= other.watchers
        self._observers.pop(other.run_id).absorbed(record.run_id)

    async def _finish(
        self,
        record: RunRecord,
        result: RunResult,
        written: Transcript | None = None,
        ending: Ending | None = None,
    ) -> None:
        """The one end of a message: first on disk, then told to everyone."""
        ending = ending or ending_of(result)
        error = abort_text(ending.reason) if result.outcome == "aborted" else result.error
        summary = result.summary()
        faults.point("finish.before")
        if written is not None:
            faults.point("sync.before")
        row_id, disk = record.row.id, record.disk
        parts = reply_parts(record.row.route, ending, result, self._runtime.config.current)
        await self._kept(
            lambda: self._runtime.ledger.finish(
                row_id, ending.state, reason=ending.reason, result=summary | disk.noted(), outbox=parts, written=written
            ),
            disk,
        )
        faults.point("finish.after")
        for one in (record, *record.absorbed):
            one.started_at = one.started_at or record.started_at
            one.end(result.outcome, self._runtime.clock.now_ms(), error, result)
            self._index.ended(one.run_id)
        observer = self._observers.pop(record.run_id, None)
        if observer is not None:
            observer.finished()

    async def _kept(self, write: Callable[[], Awaitable[T]], disk: DiskWait | None = None) -> T:
        """A disk that takes nothing keeps the session waiting: its next message could not be accepted either."""
        return await until_written(write, self._runtime.clock.sleep, disk)

    def _remember(self, record: RunRecord) -> None:
        self._observers[record.run_id] = self._observe(record)
        self._index.add(record)

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
