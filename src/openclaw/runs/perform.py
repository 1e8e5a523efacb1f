"""Perform a run: announce dropped messages, collect the batch, attempt the run, end it.

The lane of the session calls ``Performer.perform``, one batch of messages at a time.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from openclaw.agent.abort import Aborted
from openclaw.agent.prepare import load_images
from openclaw.agent.run import AgentRun, Rejected
from openclaw.agent.run_result import RunResult, without_answer
from openclaw.agent.runtime import Runtime
from openclaw.events import SteeringInjected
from openclaw.messages import ImageBlock
from openclaw.runs.accept import Submission
from openclaw.runs.admission import Slot
from openclaw.runs.bookkeeping import Bookkeeping
from openclaw.runs.compactions import Compactions
from openclaw.runs.endings import WITHHELD, Ending, Endings, failure_text
from openclaw.runs.lane import BACKLOG, OVERFLOW, ConcurrencyLimits, Lane, collected_prompt, overflow_text
from openclaw.runs.queue_settings import QueueSettings
from openclaw.runs.reasons import reason_text
from openclaw.runs.recovery import STOP_CODES, Suspects, crashes_of, how_to_resume
from openclaw.runs.run import Run, RunBegan, RunEvent, RunFilesReady, RunIndex
from openclaw.storage import faults
from openclaw.storage.disk_errors import Descriptors, is_storage_failure, reads_wait, refusal_text
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import NO_REASON, AbortReason, Accept, Reason, ReasonCode

log = logging.getLogger("openclaw.runs")
MOST_FAILURES, MOST_STORAGE_FAILURES = 5, 9
"""A message that could not begin this often fails with a notice. A store that refuses gets about a minute."""


class Unanswerable(Exception):
    """The message cannot be run, however often it is tried. The text says why."""


class Performer:
    """Runs the messages of the lanes, and leads each of them to its one end."""

    def __init__(
        self,
        runtime: Runtime,
        index: RunIndex,
        books: Bookkeeping,
        endings: Endings,
        limits: ConcurrencyLimits,
        descriptors: Descriptors,
        compactions: Compactions,
        submit: Callable[[Accept, QueueSettings], Awaitable[Submission]],
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._books = books
        self._endings = endings
        self._limits = limits
        self._descriptors = descriptors
        self._compactions = compactions
        self._submit = submit
        self._suspects = Suspects()

    async def perform(self, lane: Lane, batch: list[Run]) -> None:
        """Run the newest message of the batch. Its run answers the others as well.

        Raises only if the run could not begin: the lane then has the messages again, and tries them after a pause. In
        every other case the message has ended when this returns.
        """
        run = batch[-1]
        # The run's reads wait for a database that is away or locked.
        reads_wait.set(True)
        try:
            if await self._announce_dropped(lane, run):
                return  # The lane has the message again, after the turn that names the dropped messages.
            await self._collect(batch)
            run.slot = Slot(self._limits.turn(lane.key))
            async with run.slot:
                crashes = await crashes_of(run, self._runtime.stores.ledger)
                async with self._suspects.alone(crashes):
                    await self._attempt(lane, run, crashes)
        except Fenced:
            pass  # Another node continues the message, and this one stays silent.
        except Exception as error:
            run.failures += 1
            most = MOST_FAILURES if refusal_text(error) is None else MOST_STORAGE_FAILURES
            if run.failures < most and not run.asked_model and not isinstance(error, Unanswerable):
                raise
            log.exception("run %s of %s failed", run.run_id, run.session_key)
            for other in reversed(batch[:-1]):
                if other.absorbed_by is None:
                    lane.add(other, QueueSettings(mode="followup"), first=True)
            with contextlib.suppress(Fenced):
                await self._endings.end(run, without_answer("error", failure_text(error)))

    async def _announce_dropped(self, lane: Lane, run: Run) -> bool:
        """If messages were dropped, put a turn before this message in which the agent reads which ones.

        Returns whether it did. Collected messages have that in their own prompt.
        """
        row, text, ledger = run.row, overflow_text([run.row.body]), self._runtime.stores.ledger
        if not text or row.attempts or run.collected:
            return False
        body = msgspec.structs.replace(
            row.body.overrides(),
            prompt=text,
            internal=True,
            extra_system_prompt=row.body.extra_system_prompt,
            skills=row.body.skills,
        )
        settings = QueueSettings(mode="followup", cap=sys.maxsize)
        notice = (await self._submit(row.derive(row.run_id + OVERFLOW, body=body), settings)).run
        row.body = rest = msgspec.structs.replace(row.body, dropped_count=0, dropped_lines=[])
        await self._books.until_written(lambda: ledger.absorb(row.id, {}, body=rest))
        if notice is None or notice.ended:
            return False  # The agent read it before a restart.
        if run.abort.aborted:
            await self._endings.stop(lane, notice.run_id, AbortReason.STOP)
            return False
        lane.add(run, run.queue, first=True)
        lane.promote(notice)
        return True

    async def _collect(self, batch: list[Run]) -> None:
        """Make one prompt of the batch, under the newest message's run id. It is on disk before the model sees it."""
        run, bodies = batch[-1], [member.row.body for member in batch]
        if run.row.attempts or not run.collected:
            return  # The text of a message that had begun before a restart is in the transcript already.
        prompt = collected_prompt([body.prompt or "" for body in bodies], overflow_text(bodies))
        others = batch[:-1]
        images = [image for body in bodies for image in body.images]
        reason = Reason(ReasonCode.COLLECTED, run.run_id)
        ended = {other.row.id: reason for other in others}
        ledger, row_id = self._runtime.stores.ledger, run.row.id
        body = msgspec.structs.replace(
            bodies[-1], prompt=prompt, written="", images=images, dropped_count=0, dropped_lines=[]
        )
        await self._books.until_written(lambda: ledger.absorb(row_id, ended, body=body))
        faults.point("absorb.after")
        # It is one message from here on, and is not collected again if its run cannot begin.
        run.row.body, run.queued = body, False
        for other in others:
            run.absorb(other)

    async def _attempt(self, lane: Lane, run: Run, crashes: int) -> None:
        await self._books.until_written(self._descriptors.enough, run.disk)
        choice, refusal = how_to_resume(run, crashes, self._runtime.clock.now_ms())
        stopped = refusal.code in STOP_CODES
        refused = Ending("superseded" if stopped else "expired" if run.expired else "failed", refusal)
        outcome = "aborted" if stopped else "error"
        if choice == "close" or (choice == "stop" and not run.row.attempts):
            await self._endings.end(run, without_answer(outcome), ending=refused)
            return
        if choice == "run" and not run.row.attempts and await self._endings.may_not_send(run):
            await self._endings.end(run, without_answer("ok"), ending=WITHHELD)
            return
        session_id = await self._session_of(run)
        images = await self._images_of(run)
        await self._begin(run, session_id, refusal if choice == "stop" else NO_REASON)
        unfollow = run.follow(partial(self._end_steered, run))
        try:
            agent = await AgentRun.open(run, self._runtime, session_id, images)
            run.emit(RunFilesReady(agent.store_files))
            result = await (perform_run(agent) if choice == "run" else agent.reject(reason_text(refusal), outcome))
        finally:
            unfollow()
            self._return_unread(lane, run)
        gave_up = choice != "run" and result.outcome != "ok"
        files = await self._endings.files(run, agent.store_files, result)
        emit = run.late_emitter()
        await self._endings.end(run, result, agent.transcript, refused if gave_up else None, files)
        if agent.prepared is not None and result.outcome == "ok":
            self._compactions.after_run(agent.prepared, result.final, emit)

    async def _begin(self, run: Run, session_id: str, note: Reason) -> None:
        """Note in the ledger that the run begins, then report it."""
        again = run.started_at is not None
        run.begin(self._runtime.clock.now_ms())
        if again:
            pass  # This process has counted its attempt.
        elif run.recovered:
            # The attempt is counted before anything else happens, so that a message that crashes the Gateway is given
            # up in the end.
            await self._books.until_written(lambda: self._books.note_running(run, session_id, note), run.disk)
        elif not run.noted_running or session_id != run.row.session_id:
            self._books.in_background(self._books.until_written(lambda: self._books.note_running(run, session_id)))
        run.row.session_id = session_id
        faults.point("run.start")
        if not again:
            run.emit(RunBegan())

    def _end_steered(self, run: Run, event: RunEvent) -> None:
        if type(event) is SteeringInjected:
            self._endings.end_steered(run, event.token)

    def _return_unread(self, lane: Lane, run: Run) -> None:
        """Return the steered messages that the run did not accept to the lane, before messages that came later."""
        for unread in reversed(run.inbox.close()):
            # A second turn, which ``steer-backlog`` queued for the same text, is then not needed.
            later = self._index.get(unread.run_id + BACKLOG)
            if later is not None and lane.withdraw(later):
                self._endings.end_steered(unread, later.run_id)
            lane.add(unread, unread.queue, first=True)

    async def _session_of(self, run: Run) -> str:
        """Return the id of the session that the message runs in, and adopt how the session shows its runs.

        Raises ``Unanswerable`` when the stored message is damaged.
        """
        row, body = run.row, run.row.body
        if body.prompt is None:
            raise Unanswerable("what was stored of this message is damaged; send it again")
        entry = await self._runtime.stores.sessions.get(row.agent_id, row.session_key)
        run.verbose = body.verbose or (entry.get("verboseLevel") if entry else None)
        run.reasoning = body.reasoning or (entry.get("reasoningLevel") if entry else None) or "off"
        return row.session_id if row.attempts or entry is None else entry.get("sessionId", row.session_id)

    async def _images_of(self, run: Run) -> list[ImageBlock]:
        """Load the pictures of the message. Raises ``Unanswerable`` when one of them is gone."""
        try:
            return await load_images(run.row.body, self._runtime.stores.blobs)
        except OSError as error:
            if is_storage_failure(error):
                raise
            raise Unanswerable(str(error)) from error


async def perform_run(agent: AgentRun) -> RunResult:
    """Prepare, begin, loop and account. A failure is part of the result, and the message is stored in any case."""
    try:
        try:
            passes = await agent.prepare()
        except Rejected as problem:
            return await agent.reject(str(problem))
        end = await agent.begin(passes) or await passes.run()
        return await agent.account(end, passes)
    except Aborted as stopped:
        # The run was stopped while it waited for a full disk. The loop handles every other abort itself.
        return agent.stopped(str(stopped))
    finally:
        agent.close()
