"""The dispatcher turns accepted messages into runs, one lane per session, and leads every message to its one end.

After a crash it takes up the messages that have no end: which of them go on, in what order, and when one is given up is
decided at the end of this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from openclaw.agent.prepare import load_images
from openclaw.agent.recorder import RunResult
from openclaw.agent.run import AgentRun
from openclaw.agent.runtime import Runtime
from openclaw.cluster.claims import session_name
from openclaw.config.agents import default_agent_id
from openclaw.config.schema import Config
from openclaw.events import Event, MessageWaits, SteeringInjected
from openclaw.messages import INTERNAL, TextBlock, UserMessage
from openclaw.outbound.reply import Speaker, is_delivered, reply_shape
from openclaw.outbound.reply_files import Files
from openclaw.redact import redact
from openclaw.runs.admission import Admission, Ticket
from openclaw.runs.compactions import Compactions
from openclaw.runs.endings import ANNOUNCED_SOURCES, Ending, abort_reason, ending_of, reply_parts, unsent
from openclaw.runs.queue import (
    BACKLOG,
    OVERFLOW,
    Lane,
    Observer,
    QueueSettings,
    RunInbox,
    RunIndex,
    RunRecord,
    collected_prompt,
    decide,
    may_share,
    overflow_text,
    queue_settings,
    waiting_reason,
    with_dropped,
)
from openclaw.runs.why_text import abort_text, reason_text
from openclaw.sessions.keys import agent_of, is_subagent, kind_of
from openclaw.storage import faults
from openclaw.storage.base import (
    NO_REASON,
    AbortReason,
    Accept,
    Fenced,
    FirstStep,
    Ledger,
    LedgerRow,
    MessageBody,
    OutboxPart,
    OutboxRow,
    Reason,
    ReasonCode,
    SessionName,
    Transcript,
    Writing,
)
from openclaw.storage.disk_errors import Descriptors, DiskWait, reads_wait, until_written

log = logging.getLogger("openclaw.runs")
LONG_REPLY = 20_000
"""Replies with more characters are cut into parts on another thread."""
T = TypeVar("T")
RunKind: TypeAlias = Literal["main", "subagent", "cron"]

IDLE_LANES = 1_000
"""Unused lanes are removed when there are this many lanes."""
STOP_S = 5.0
"""``stop`` waits this long for ledger writes. The next start finds the messages whose writes a full disk refuses."""


class Submission(msgspec.Struct, frozen=True):
    """What became of a message that was submitted."""

    row: LedgerRow
    new: bool
    """False for a message whose run id or dedupe key the ledger already has."""
    queued: bool
    """The message does not run at once: it waits, was steered into the active run, or was refused."""
    record: RunRecord | None
    """None for a message of long ago, which only the ledger remembers."""


class Dispatcher:
    """Takes messages in with ``submit``, runs them in the lanes of their sessions, and ends each of them once."""

    def __init__(self, runtime: Runtime, observe: Callable[[RunRecord], Sequence[Observer]]) -> None:
        self._runtime = runtime
        self._observe = observe
        self._lanes: dict[str, Lane] = {}
        self.index = RunIndex(runtime.ledger)
        """Finds a run by its id and waits for its end."""
        self._observers: dict[str, Sequence[Observer]] = {}
        """The observers of every run that has not ended, by run id."""
        self._unfinished: dict[str, list[RunRecord]] = {}
        """Messages that an earlier process left without an end, by session. A session's lane takes them when it is
        made."""
        self._background: set[asyncio.Task[None]] = set()
        self._one_suspect = asyncio.Lock()
        self._stopping = False
        self._limits = ConcurrencyLimits(lambda: runtime.config.current)
        self._descriptors = Descriptors(runtime.clock)
        self.admission = Admission()
        self.compactions = Compactions(runtime, self.exclusively)
        self.abort_elsewhere: Callable[[str, str | None, AbortReason], Awaitable[list[str]]] | None = None
        """Stops runs of a session that another node owns. None with files."""

    # The main path: submit, place, perform, attempt, end

    async def submit(
        self,
        message: Accept,
        settings: QueueSettings | None = None,
        watcher: str | None = None,
        ticket: Ticket | None = None,
        after: Writing | None = None,
    ) -> Submission:
        """Writes the message to the ledger, then runs, queues, steers or refuses it. A known message starts nothing.

        ``ticket`` is the message's place in the admission. A message that runs at once keeps it until it asks its
        model. ``after`` is a write that must be on disk before the message is.
        """
        if self._stopping:
            # It gets no answer: the connection that it came by is about to close, and its sender asks again. If
            # it were stored now, it would run before the messages that the stop cut short.
            await asyncio.Event().wait()
        self._descriptors.check()
        settings = settings or QueueSettings(mode="followup")
        lane = self._lane(message.session_key)
        step = self._expected_step(lane, settings)
        faults.point("accept.before")
        reason = waiting_reason(settings) if step == "queued" else NO_REASON
        lane.coming += 1
        self._limits.begin(lane.key)
        try:
            row, new = await self._runtime.ledger.accept(message, step=step, reason=reason, after=after)
        finally:
            self._limits.end(lane.key)
            lane.coming -= 1
        faults.point("accept.after")
        record = self.index.get(row.run_id) if not new else RunRecord(row, noted_step=step)
        if record is not None and watcher is not None:
            record.watchers.add(watcher)
        if not new or record is None:
            return Submission(row, False, False, record)
        if self._stopping:
            return Submission(row, True, True, record)  # The next start, or another node, takes it up.
        self._remember(record)
        if ticket is not None:
            record.ticket, ticket.runs = ticket, True
        queued = await self._place(record, settings)
        if queued:
            record.release_ticket()
        return Submission(row, True, queued, record)

    def _expected_step(self, lane: Lane, settings: QueueSettings) -> FirstStep | None:
        """What will become of the message, as far as it is clear before the message is in the ledger.

        This is a forecast. With it, one commit notes the acceptance and the first step. ``_place`` makes the decision
        after the commit, because the lane goes on meanwhile. If it decides otherwise, it notes that in a second commit.
        """
        if lane.unused:
            return "running" if self._limits.free(lane.key) else None
        choice = decide(settings, busy=lane.busy, steerable=True, waiting=lane.depth)
        return "queued" if choice == "wait" else None

    async def _place(self, record: RunRecord, settings: QueueSettings) -> bool:
        """Runs, queues, steers or refuses the message. Returns True when the message does not run at once."""
        lane = self._lane(record.session_key)
        active = lane.active
        steerable = active is not None and active.steerable and may_share([active, record])
        choice = decide(settings, busy=lane.busy, steerable=steerable, waiting=lane.depth)
        if choice == "steer" and active is not None:
            if await self._steer_in_order(lane, active, record, settings):
                return True
            choice = decide(settings, busy=lane.busy, steerable=False, waiting=lane.depth)
        if choice == "refuse":
            ending = Ending("failed", Reason(ReasonCode.QUEUE_FULL, str(lane.depth)))
            await self._end_message(record, RunResult(outcome="error"), ending=ending)
            return True
        if choice == "interrupt":
            await self.abort(record.session_key, reason=AbortReason.INTERRUPT)
        queued = lane.add(record, settings)
        if queued and choice != "interrupt":
            if record.noted_step != "queued":
                self._in_background(self._runtime.ledger.advance(record.row.id, "queued", waiting_reason(settings)))
            self._drop_oldest(lane, settings)
        if queued:
            record.noted_step = None
            self._tell(record, MessageWaits())
        return queued

    def _tell(self, record: RunRecord, event: Event) -> None:
        for observer in self.observers(record.run_id):
            observer.event(event)

    async def _perform(self, lane: Lane, batch: list[RunRecord]) -> None:
        """Runs the newest message of the batch. The run answers the others too. The lane calls this."""
        record = batch[-1]
        self._limits.begin(lane.key)
        # With PostgreSQL, what the run reads waits for a database that cannot be reached. Files are always there.
        reads_wait.set(True)
        try:
            if await self._tells_dropped(lane, record):
                return  # The lane has the message again, behind the turn that tells the agent what it missed.
            await self._collect(lane, batch)
            async with self._limits.turn(lane.key) or contextlib.nullcontext():
                crashes = await crashes_of(record, self._runtime.ledger)
                async with self._alone_if_suspect(crashes):
                    await self._attempt(lane, record, crashes)
        except Fenced:
            pass  # Another node goes on with the message, and this one says nothing.
        except Exception as error:
            log.exception("run %s of %s failed", record.run_id, record.session_key)
            for other in reversed(batch[:-1]):
                if other.absorbed_by is None:
                    lane.add(other, QueueSettings(mode="followup"), first=True)
            problem = redact(f"Something went wrong inside the Gateway: {error}")
            await self._end_message(record, RunResult(outcome="error", error=problem))
        finally:
            self._limits.end(lane.key)

    async def _tells_dropped(self, lane: Lane, record: RunRecord) -> bool:
        """If messages were dropped, puts a turn before this message, in which the agent is told which ones.

        Returns whether it did. Collected messages have that in their own prompt.
        """
        row, text, ledger = record.row, overflow_text([record.row.body]), self._runtime.ledger
        if not text or row.attempts or record.collected:
            return False
        asks = msgspec.structs.replace(
            row.body.wishes(),
            prompt=text,
            internal=True,
            extra_system_prompt=row.body.extra_system_prompt,
            skills=row.body.skills,
        )
        settings = QueueSettings(mode="followup", cap=sys.maxsize)
        told = (await self.submit(row.another(row.run_id + OVERFLOW, body=asks), settings)).record
        row.body = body = msgspec.structs.replace(row.body, dropped_count=0, dropped_lines=[])
        await self._until_written(lambda: ledger.absorb(row.id, {}, body=body))
        if told is None or told.ended:
            return False  # It was told before a restart.
        if record.abort.aborted:
            await self.abort(lane.key, told.run_id, AbortReason.STOP)
            return False
        lane.add(record, record.queue, first=True)
        lane.promote(told)
        return True

    async def _collect(self, lane: Lane, batch: list[RunRecord]) -> None:
        """Makes one prompt of the batch, under the newest message's run id. It is on disk before the model sees it."""
        record, bodies = batch[-1], [one.row.body for one in batch]
        if record.row.attempts or not record.collected:
            return  # The words of a message that had begun before a restart are in the transcript already.
        prompt = collected_prompt([body.prompt or "" for body in bodies], overflow_text(bodies))
        others = batch[:-1]
        images = [image for body in bodies for image in body.images]
        reason = Reason(ReasonCode.COLLECTED, record.run_id)
        ended = {one.row.id: reason for one in others}
        ledger, row_id = self._runtime.ledger, record.row.id
        body = msgspec.structs.replace(
            bodies[-1], prompt=prompt, written="", images=images, dropped_count=0, dropped_lines=[]
        )
        await self._until_written(lambda: ledger.absorb(row_id, ended, body=body))
        faults.point("absorb.after")
        record.row.body = body
        for other in others:
            self._absorb(record, other)

    @contextlib.asynccontextmanager
    async def _alone_if_suspect(self, crashes: int) -> AsyncGenerator[None]:
        """Lets messages that may have crashed the Gateway run one at a time, so that the next crash shows which did."""
        if crashes < SUSPECT_CRASHES:
            yield
            return
        waits = asyncio.ensure_future(self._one_suspect.acquire())
        try:
            await asyncio.wait([waits], timeout=SUSPECT_S)
            yield
        finally:
            if not waits.cancel():
                self._one_suspect.release()

    async def _attempt(self, lane: Lane, record: RunRecord, crashes: int) -> None:
        await self._until_written(self._descriptors.enough, record.disk)
        observers = self._observers[record.run_id]
        choice, refusal = how_to_go_on(record, crashes, self._runtime.clock.now_ms())
        stopped = refusal.code in STOP_CODES
        refused = Ending("superseded" if stopped else "expired" if record.expired else "failed", refusal)
        outcome = "aborted" if stopped else "error"
        if choice == "close" or (choice == "stop" and not record.row.attempts):
            await self._end_message(record, RunResult(outcome=outcome), ending=refused)
            return
        session_id = await self._session_of(record)
        images = await load_images(record.row.body, self._runtime.blobs)
        record.inbox = RunInbox()
        record.begin(self._runtime.clock.now_ms())
        if record.recovered:
            # The attempt is counted before anything else happens, so that a message that crashes the Gateway is given
            # up in the end.
            kept = refusal if choice == "stop" else NO_REASON
            await self._until_written(lambda: self._note_running(record, session_id, kept), record.disk)
        elif record.noted_step != "running" or session_id != record.row.session_id:
            self._in_background(self._note_running(record, session_id))
        faults.point("run.start")
        for observer in observers:
            observer.started()

        def emit(event: Event) -> None:
            if isinstance(event, SteeringInjected):
                self._took_in(record, event.token)
            for observer in observers:
                observer.event(event)
            record.tell(event)

        try:
            run = AgentRun(
                record.row,
                self._runtime,
                session_id=session_id,
                images=images,
                abort=record.abort,
                inbox=record.inbox,
                emit=emit,
                disk=record.disk,
                on_model_call=record.release_ticket,
            )
            record.reply_files = run.files_of
            result = await (run.execute() if choice == "run" else run.give_up(reason_text(refusal), outcome))
        finally:
            for left in reversed(record.inbox.close()):
                # This run did not take the message in, so it is the next to run, before messages that came later. A
                # second turn, which ``steer-backlog`` queued for the same words, is then not needed.
                later = self.index.get(left.run_id + BACKLOG)
                if later is not None and lane.withdraw(later):
                    self._took_in(left, later.run_id)
                lane.add(left, left.queue, first=True)
        gave_up = choice != "run" and result.outcome != "ok"
        files = await self._files(record, run, result)
        await self._end_message(record, result, run.transcript, refused if gave_up else None, files)
        record.reply_files = None  # The record outlives the run, whose transcript is then free to be packed away.
        if run.prepared is not None and result.outcome == "ok":
            self.compactions.after_run(run.prepared, result.final, emit)

    async def _end_message(
        self,
        record: RunRecord,
        result: RunResult,
        written: Transcript | None = None,
        ending: Ending | None = None,
        files: Sequence[Files] = (),
    ) -> None:
        """Ends the message: first on disk, then for everyone who follows it. ``ending`` None: the result decides it.

        ``files`` are those of each answer.
        """
        ending = ending or ending_of(result)
        summary = result.summary()
        if files and record.row.source in ANNOUNCED_SOURCES:
            summary["files"] = msgspec.to_builtins(files[-1])
        faults.point("finish.before")
        if written is not None:
            faults.point("sync.before")
        row_id, disk = record.row.id, record.disk
        parts = await self._parts(record, ending, result, files)
        await self._until_written(
            lambda: self._runtime.ledger.finish(
                row_id, ending.state, reason=ending.reason, result=summary | disk.noted(), outbox=parts, written=written
            ),
            disk,
        )
        faults.point("finish.after")
        self._tell_end(record, result, ending.reason)

    async def _files(self, record: RunRecord, run: AgentRun, result: RunResult) -> list[Files]:
        """The files for the channel. The message does not end before they are stored."""
        announced = record.row.source in ANNOUNCED_SOURCES
        if not (is_delivered(record.row.route) or announced) or ending_of(result).state == "superseded":
            return []
        if not any(one.media for one in result.said):
            return []
        sent = [rest.files for rest in unsent(result, await self._stored(record))]

        async def store() -> list[Files]:
            answers = zip(result.said, sent, strict=True)
            return [await run.files_of(one.media, one.voice, skip=skip) for one, skip in answers]

        return await self._until_written(store, record.disk)

    async def _stored(self, record: RunRecord) -> list[OutboxRow]:
        """What the channel got while the reply was being written. After this it gets no more of it."""
        if record.settle_reply is not None:
            await record.settle_reply()
        if record.settle_reply is None and not record.row.attempts:
            return []
        ledger, row_id = self._runtime.ledger, record.row.id
        return await self._until_written(lambda: ledger.outbox_of(row_id), record.disk)

    async def _parts(
        self, record: RunRecord, ending: Ending, result: RunResult, files: Sequence[Files]
    ) -> list[OutboxPart]:
        """What the channel delivers now, besides what it got while the reply was being written."""
        row = record.row
        if not is_delivered(row.route):
            return []
        stored = await self._stored(record)
        speaker = Speaker(agent_id=row.agent_id, model=record.model, thinking=record.thinking)
        shape = reply_shape(self._runtime.config.current, row.route, speaker)
        make = partial(reply_parts, row.route, ending, result, shape, stored, files)
        # Cutting a very long reply takes a while, and other conversations go on meanwhile.
        return await asyncio.to_thread(make) if sum(len(one.text) for one in result.said) > LONG_REPLY else make()

    def _tell_end(self, record: RunRecord, result: RunResult, reason: Reason) -> None:
        # A run that took too long failed: everyone is told why, and not only that it was stopped.
        outcome = "error" if reason.code is ReasonCode.TIME_LIMIT else result.outcome
        error = None if outcome == "ok" else abort_text(reason)
        for one in (record, *record.absorbed):
            one.started_at = one.started_at or record.started_at
            one.end(outcome, self._runtime.clock.now_ms(), error, result)
            self.index.ended(one.run_id)
        for observer in self._observers.pop(record.run_id, ()):
            observer.finished()

    # Steps of the main path

    def _lane(self, session_key: str) -> Lane:
        lane = self._lanes.get(session_key)
        if lane is None:
            if len(self._lanes) >= IDLE_LANES:
                for key in [key for key, lane in self._lanes.items() if lane.unused]:
                    del self._lanes[key]
            lane = self._lanes[session_key] = Lane(session_key, self._runtime.clock, self._perform)
        if self._unfinished:
            for record in self._unfinished.pop(session_key, ()):
                lane.add(record, record.queue)
        return lane

    async def _steer_in_order(self, lane: Lane, active: RunRecord, record: RunRecord, settings: QueueSettings) -> bool:
        """Steers the message into the active run, after those that wait. False when one of them cannot be steered.

        A message from before a restart is not steered, because the model may have seen it already.
        """
        for earlier in lane.waiting:
            if earlier.run_id.endswith(BACKLOG):
                continue  # The active run has these words already.
            steers = earlier.queue.mode in ("steer", "steer-backlog") and not earlier.recovered
            if not steers or not may_share([active, earlier]) or not lane.withdraw(earlier):
                return False
            if not await self._steer(active, earlier, earlier.queue):
                lane.add(earlier, earlier.queue, first=True)
                return False
        return await self._steer(active, record, settings)

    async def _steer(self, active: RunRecord, record: RunRecord, settings: QueueSettings) -> bool:
        row, ledger = record.row, self._runtime.ledger
        try:
            text = f"{overflow_text([row.body])}\n\n{row.body.prompt or ''}".lstrip("\n")
            blocks = [TextBlock(text=text), *await load_images(row.body, self._runtime.blobs)]
        except OSError:
            return False  # The message gets a run of its own, which reports what is wrong with its pictures.
        source = INTERNAL if row.body.internal else None
        now, written = self._runtime.clock.now_ms(), row.body.written or None
        message = UserMessage(content=blocks, timestamp=now, provenance=source, written=written)
        if active.inbox is None or not active.inbox.put(record, message):
            return False
        record.queue = settings
        self._in_background(ledger.advance(row.id, "queued", Reason(ReasonCode.STEERING, active.run_id)))
        if settings.mode == "steer-backlog":
            # The message also gets a turn of its own when the active run has ended.
            await self.submit(row.another(row.run_id + BACKLOG), msgspec.structs.replace(settings, mode="followup"))
        return True

    def _took_in(self, record: RunRecord, run_id: str) -> None:
        """The run has put the words of a steered message before its model, so that message ends here."""
        steered = self.index.get(run_id)
        if steered is not None:
            self._absorb(record, steered)
            reason, by = Reason(ReasonCode.STEERED, record.run_id), {"answeredBy": record.run_id}
            end = partial(self._runtime.ledger.finish, steered.row.id, "superseded", reason=reason, result=by)
            self._in_background(self._until_written(end))

    def _absorb(self, record: RunRecord, other: RunRecord) -> None:
        other.absorbed_by = record.run_id
        record.absorbed.append(other)
        record.watchers |= other.watchers
        for observer in self._observers.pop(other.run_id):
            observer.absorbed(record.run_id)

    def _drop_oldest(self, lane: Lane, settings: QueueSettings) -> None:
        """Ends the oldest waiting messages when more wait than the session allows."""
        surplus = lane.depth - settings.cap
        for oldest in lane.waiting[:surplus] if surplus > 0 else ():
            lane.withdraw(oldest)
            if settings.drop == "summarize" and (waiting := lane.waiting):
                body = waiting[0].row.body = with_dropped(waiting[0].row.body, oldest.row.body, settings.cap)
                self._in_background(self._hand_over(oldest, waiting[0], body, str(settings.cap)))
            else:
                ending = Ending("superseded", Reason(ReasonCode.QUEUE_OVERFLOW, str(settings.cap)))
                self._in_background(self._end_message(oldest, RunResult(outcome="aborted"), ending=ending))

    async def _hand_over(self, dropped: RunRecord, next_one: RunRecord, body: MessageBody, cap: str) -> None:
        """Ends a dropped message. In the same write, the next message takes its beginning over, in ``body``."""
        ledger, reason = self._runtime.ledger, Reason(ReasonCode.QUEUE_OVERFLOW_SUMMARIZED, cap)
        try:
            await self._until_written(lambda: ledger.absorb(next_one.row.id, {dropped.row.id: reason}, body=body))
        except ValueError:  # The next message has ended meanwhile.
            ending = Ending("superseded", Reason(ReasonCode.QUEUE_OVERFLOW, cap))
            await self._end_message(dropped, RunResult(outcome="aborted"), ending=ending)
        else:
            self._tell_end(dropped, RunResult(outcome="aborted"), reason)

    async def _session_of(self, record: RunRecord) -> str:
        """Returns the id of the session that the message runs in, and takes over what the session shows of its runs.

        Raises ``ValueError`` when the stored message is damaged.
        """
        row, body = record.row, record.row.body
        if body.prompt is None:
            raise ValueError("what was stored of this message is damaged; send it again")
        entry = await self._runtime.sessions.get(row.agent_id, row.session_key)
        record.verbose = body.verbose or (entry.get("verboseLevel") if entry else None)
        record.reasoning = body.reasoning or (entry.get("reasoningLevel") if entry else None) or "off"
        return row.session_id if row.attempts or entry is None else entry.get("sessionId", row.session_id)

    async def _note_running(self, record: RunRecord, session_id: str, reason: Reason = NO_REASON) -> None:
        """Counts an attempt. If the last Gateway could not note that it was told to stop, that is noted first."""
        if record.stop_unnoted:
            await note_shutdown(record.row, self._runtime.ledger)
            record.stop_unnoted = False
        if not record.abort.aborted:  # The note of a stop must stay the last one.
            with contextlib.suppress(ValueError):  # The message has ended meanwhile.
                await self._runtime.ledger.advance(record.row.id, "running", reason, session_id=session_id)

    async def _note_stopped(self, records: Sequence[RunRecord], reason: Reason) -> None:
        """Notes that the runs are being stopped. On a disk that takes nothing, the notes are written later."""

        async def note(record: RunRecord) -> None:
            with contextlib.suppress(ValueError):  # The message has ended meanwhile.
                await self._runtime.ledger.advance(record.row.id, "queued", reason)

        for record, problem in zip(
            records, await asyncio.gather(*map(note, records), return_exceptions=True), strict=True
        ):
            if isinstance(problem, OSError):
                self._in_background(self._until_written(partial(note, record)))

    async def _until_written(self, write: Callable[[], Awaitable[T]], disk: DiskWait | None = None) -> T:
        """Repeats the write until the disk takes it. The session waits, as its next message could not be stored."""
        return await until_written(write, self._runtime.clock.sleep, disk)

    def _remember(self, record: RunRecord) -> None:
        self._observers[record.run_id] = self._observe(record)
        self.index.add(record)

    def _in_background(self, work: Awaitable[Any]) -> None:
        """Starts a ledger write that nobody waits for. Errors are logged."""

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

    # Recovery after a restart

    async def find_unfinished(self, *, after_orderly_stop: bool = False, session: SessionName | None = None) -> int:
        """Finds the messages that an earlier process left without an end. Returns their number.

        Call it before anyone can send a message, so that these come first in their sessions. ``after_orderly_stop``
        says that the earlier process was told to stop: then no message brought it down. ``session`` is the only one
        that is looked at, because this node has just become its owner.
        """
        found = await unfinished_records(self._runtime, session)
        known = map(self.index.get, [record.run_id for record in found])
        records = [record for record, here in zip(found, known, strict=True) if here is None or here.ended]
        for record in records:
            stopped = record.row.reason.code in STOP_CODES
            record.stop_unnoted = after_orderly_stop and record.row.state == "running" and not stopped
            self._remember(record)
            self._unfinished.setdefault(record.session_key, []).append(record)
            if not record.row.attempts and record.row.reason.code not in STOP_CODES:
                restarted = Reason(ReasonCode.RESTARTED)
                self._in_background(self._runtime.ledger.advance(record.row.id, "queued", restarted))
        return len(records)

    def start_unfinished(self, session_key: str | None = None) -> None:
        """Starts what ``find_unfinished`` found, in one session or in all. Call it once the Gateway listens."""
        for key in list(self._unfinished) if session_key is None else [session_key]:
            if key in self._unfinished:
                self._lane(key)

    # Questions about runs

    def active(self, session_key: str) -> list[RunRecord]:
        """Returns the session's active run, then its waiting ones."""
        lane = self._lanes.get(session_key)
        return lane.records if lane is not None else []

    def occupied(self, session_key: str) -> bool:
        """Tells whether any message of the session runs or waits."""
        lane = self._lanes.get(session_key)
        return lane is not None and (lane.active is not None or lane.depth > 0)

    def in_use(self, session_key: str) -> bool:
        """Tells whether anything happens in the session, housekeeping and messages on their way in included."""
        lane = self._lanes.get(session_key)
        return (lane is not None and not lane.unused) or self.admission.in_use(session_key)

    def waiting(self, session_key: str) -> list[RunRecord]:
        lane = self._lanes.get(session_key)
        return lane.waiting if lane is not None else []

    async def reword(self, session_key: str, run_id: str, change: Callable[[MessageBody], MessageBody]) -> bool:
        """Gives a message that still waits other words; it keeps its place. False when it waits no longer."""
        record = next((one for one in self.waiting(session_key) if one.run_id == run_id), None)
        if record is None:
            return False
        # The words count from here on, also when its run begins before they are written down.
        body = record.row.body = change(record.row.body)
        await self._until_written(lambda: self._runtime.ledger.absorb(record.row.id, {}, body=body), record.disk)
        self._tell(record, MessageWaits(reworded=True))
        return True

    def observers(self, run_id: str) -> Sequence[Observer]:
        """Returns who is told of a run that has not ended."""
        return self._observers.get(run_id, ())

    def busy(self) -> int:
        """Counts the active runs."""
        return sum(1 for lane in self._lanes.values() if lane.active is not None)

    def queued(self) -> int:
        """Counts the waiting messages."""
        return sum(lane.depth for lane in self._lanes.values())

    # Stopping and reordering

    async def abort(
        self, session_key: str, run_id: str | None = None, reason: AbortReason = AbortReason.RPC
    ) -> list[str]:
        """Stops one run of the session, or all of them, the waiting ones included. Returns the ids it stopped.

        The runs are stopped at once. When this returns, the ledger holds the stop, so that it also outlives a crash.
        """
        if run_id is None and reason is not AbortReason.INTERRUPT:
            self.compactions.cancel(session_key)
            self._runtime.approvals.withdraw(session_key)
        lane = self._lanes.get(session_key)
        if lane is None or (lane.unused and self.abort_elsewhere is not None):
            return [] if self.abort_elsewhere is None else await self.abort_elsewhere(session_key, run_id, reason)
        stopped: list[RunRecord] = []
        for record in lane.records:
            if (run_id is None or record.run_id == run_id) and record.abort.abort(reason):
                stopped.append(record)
                for observer in self._observers[record.run_id]:
                    observer.aborted(reason)
        noted = self._note_stopped(stopped, abort_reason(reason))
        for record in stopped:
            if lane.withdraw(record):
                self._in_background(self._end_message(record, RunResult(outcome="aborted", error=reason)))
        await noted
        return [record.run_id for record in stopped]

    def promote(self, session_key: str, run_id: str) -> bool:
        """Lets a waiting message go next. False when no such message waits."""
        lane = self._lanes.get(session_key)
        return lane is not None and any(lane.promote(one) for one in lane.waiting if one.run_id == run_id)

    async def exclusively(self, session_key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Does work on a session (inject, reset, delete) after the runs it has now and before those that come later."""
        claims = self._runtime.claims
        if not claims.alone:
            default = default_agent_id(self._runtime.config.current)
            await claims.acquire(session_name(agent_of(session_key, default_agent=default), session_key))
        return await self._lane(session_key).exclusively(work)

    async def settle(self, session_key: str, timeout_s: float) -> bool:
        """Waits until the session's runs have ended. False when they have not ended in time."""
        try:
            async with asyncio.timeout(timeout_s):
                for record in self.active(session_key):
                    await record.wait()
        except TimeoutError:
            return False
        return True

    def drop(self) -> None:
        """Ends every run in this process at once. Nothing is written and nobody is told: others go on with them."""
        for lane in self._lanes.values():
            lane.drop()
        for task in self._background:
            task.cancel()

    def drop_session(self, session_key: str) -> None:
        """Ends the runs of one session in this process at once, as ``drop`` does with all of them."""
        if (lane := self._lanes.pop(session_key, None)) is not None:
            for run_id in self.index.forget_session(session_key):
                self._observers.pop(run_id, None)
            lane.drop()

    async def stop(self) -> None:
        """Stops every run in this process. The messages stay open in the ledger, and the next start takes them up."""
        self._stopping = True
        await self.compactions.stop()
        cut_short = [lane.active for lane in self._lanes.values() if lane.active is not None]
        await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
        for record in cut_short:
            if record.ended_at is None and record.started_at is not None and not record.abort.aborted:
                self._in_background(note_shutdown(record.row, self._runtime.ledger))
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=STOP_S)
            for task in late:
                task.cancel()


# How many runs there are at once


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

    def begin(self, session_key: str) -> None:
        """Counts a message that is being accepted, or a run. Call ``end`` when that is over."""
        self._taken[run_kind(session_key)] += 1

    def end(self, session_key: str) -> None:
        self._taken[run_kind(session_key)] -= 1

    def turn(self, session_key: str) -> asyncio.Semaphore | None:
        """The semaphore that a run of this session enters. None: its kind has no limit."""
        kind = run_kind(session_key)
        limit = self._limit(kind)
        if limit is None:
            return None
        known = self._semaphores.get(kind)
        if known is None or known[0] != limit:
            known = self._semaphores[kind] = (limit, asyncio.Semaphore(limit))
        return known[1]

    def _limit(self, kind: RunKind) -> int | None:
        config = self._config()
        match kind:
            case "main":
                return config.agents.defaults.max_concurrent
            case "subagent":
                return config.agents.defaults.subagents.max_concurrent
            case "cron":
                return config.cron.max_concurrent_runs


def run_kind(session_key: str) -> RunKind:
    if is_subagent(session_key):
        return "subagent"
    return "cron" if kind_of(session_key) in ("cron", "hook") else "main"


# After a crash

MAX_ATTEMPTS = 3
"""A message is given up when the Gateway has crashed this often while it worked on it."""
SUSPECT_CRASHES = 2
"""Messages during which the Gateway has crashed this often run one at a time, so that the right one is given up."""
SUSPECT_S = 300.0
"""How long such a message waits for the one before it. That one has shown by then that it is harmless."""
EXPIRY_MS = 24 * 3600 * 1000
"""A message that has waited this long when the Gateway starts is not answered, because it may not matter any more."""

STOP_CODES = frozenset({ReasonCode.STOPPED, ReasonCode.REMOVED_FROM_QUEUE, ReasonCode.WITHDRAWN})
"""The reason of a message that was being stopped, or of one that ended so."""

Choice: TypeAlias = Literal["run", "stop", "give up", "close"]


async def unfinished_records(runtime: Runtime, session: SessionName | None = None) -> list[RunRecord]:
    """Finds the messages without an end, of one session or of all, in the order in which they go on.

    Messages that had begun come first, because their words are in the transcript already. A message that had begun,
    is expired or is damaged runs alone; the others may still be collected.
    """
    rows = [row for row in await runtime.ledger.unfinished(session) if not row.body.command]
    rows.sort(key=lambda row: (row.attempts == 0, row.id))
    now, config = runtime.clock.now_ms(), runtime.config.current.messages.queue
    records: list[RunRecord] = []
    for row in rows:
        record = RunRecord(row)
        # Decided once, at the start, so that a clock that jumps later makes no message expire.
        record.recovered, record.expired = True, now - row.accepted_at >= EXPIRY_MS
        stopped = row.reason.code in STOP_CODES
        if row.attempts or record.expired or stopped or row.body.prompt is None:
            record.queue = QueueSettings(mode="followup")
        else:
            entry = await runtime.sessions.get(row.agent_id, row.session_key)
            record.queue = queue_settings(config, entry, row.source)
        records.append(record)
    return records


def how_to_go_on(record: RunRecord, crashes: int, now_ms: int) -> tuple[Choice, Reason]:
    """Decides whether the message is run, and if not, for what reason.

    ``stop``: somebody stopped the message before the restart. ``give up`` also writes the reason into the transcript.
    ``close`` ends the message in the ledger only, because the Gateway crashed even while it gave up.
    """
    if record.recovered and record.row.reason.code in STOP_CODES:
        return "stop" if crashes <= MAX_ATTEMPTS else "close", record.row.reason
    if crashes < MAX_ATTEMPTS and not record.expired:
        return "run", NO_REASON
    if record.expired:
        hours = max(1, (now_ms - record.row.accepted_at) // 3_600_000)
        reason = Reason(ReasonCode.EXPIRED, str(hours))
    else:
        reason = Reason(ReasonCode.CRASHED, str(crashes))
    return "give up" if crashes <= MAX_ATTEMPTS else "close", reason


async def crashes_of(record: RunRecord, ledger: Ledger) -> int:
    """Counts how often the Gateway died while it worked on this message. A shutdown does not count."""
    row = record.row
    if row.attempts < SUSPECT_CRASHES:
        return row.attempts
    changes = await ledger.story(row.id)
    noted = sum(change.reason.code is ReasonCode.SHUTDOWN for change in changes)
    return row.attempts - noted - record.stop_unnoted


async def note_shutdown(row: LedgerRow, ledger: Ledger) -> None:
    """Notes that the Gateway was told to stop while this message was running."""
    with contextlib.suppress(ValueError):  # The message has ended meanwhile.
        await ledger.advance(row.id, "queued", Reason(ReasonCode.SHUTDOWN))
