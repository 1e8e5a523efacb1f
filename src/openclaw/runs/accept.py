"""Commit a message to the ledger, then decide once where it goes.

The message starts a run, waits in its lane, is steered into the active run, is collected with others, interrupts, or is
refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from openclaw.agent.prepare import load_images
from openclaw.agent.run_result import without_answer
from openclaw.agent.runtime import Runtime
from openclaw.cluster.claims import session_name
from openclaw.events import MessageWaits
from openclaw.messages import INTERNAL, TextBlock, UserMessage
from openclaw.runs.bookkeeping import Bookkeeping
from openclaw.runs.endings import Ending, Endings
from openclaw.runs.lane import BACKLOG, ConcurrencyLimits, Lane, may_share, overflow_text, with_dropped
from openclaw.runs.queue_settings import QueueSettings, decide, waiting_reason
from openclaw.runs.recovery import UnconfirmedMessages
from openclaw.runs.run import Follower, Run, RunIndex, RunWatched
from openclaw.storage import faults
from openclaw.storage.disk_errors import Descriptors, StorageError, may_be_written, refusal_text
from openclaw.storage.errors import Fenced, MessageEnded
from openclaw.storage.message_ledger import AbortReason, Accept, LedgerRow, MessageBody, Reason, ReasonCode
from openclaw.storage.sessions import Writing

log = logging.getLogger("openclaw.runs")


class Submission(msgspec.Struct, frozen=True):
    """The result of submitting a message."""

    row: LedgerRow
    new: bool
    """False for a message whose run id or dedupe key the ledger already has."""
    queued: bool
    """The message does not run at once: it waits, was steered into the active run, or was refused."""
    run: Run | None
    """None for an old message that only the ledger remembers."""


class Acceptance:
    """Commits messages and places them in the lanes of their sessions."""

    def __init__(
        self,
        runtime: Runtime,
        index: RunIndex,
        books: Bookkeeping,
        endings: Endings,
        limits: ConcurrencyLimits,
        descriptors: Descriptors,
        lane_of: Callable[[str], Lane],
        followers_of: Callable[[Run], Sequence[Follower]],
    ) -> None:
        """``followers_of`` returns those who follow a run from its acceptance on."""
        self._runtime = runtime
        self._index = index
        self._books = books
        self._endings = endings
        self._limits = limits
        self._descriptors = descriptors
        self._lane_of = lane_of
        self._followers_of = followers_of
        self.unconfirmed = UnconfirmedMessages(runtime, index, books, self._adopt)
        self._stopping = False

    async def submit(
        self,
        message: Accept,
        settings: QueueSettings | None = None,
        watcher: str | None = None,
        after: Writing | None = None,
    ) -> Submission:
        """Commit the message, then run, queue, steer or refuse it. A message that the ledger has starts nothing.

        ``watcher`` is the connection that asks for the run. ``after`` is a write that must be on disk before the
        message is.
        """
        if self._stopping:
            # It gets no answer: the connection that it came by is about to close, and its sender asks again. If
            # it were stored now, it would run before the messages that the stop cut short.
            await asyncio.Event().wait()
        self._descriptors.check()
        settings = settings or QueueSettings(mode="followup")
        lane = self._lane_of(message.session_key)
        # A message for an idle session is noted as running in the commit that accepts it. A second commit for each of
        # them costs 0.3 ms of CPU per turn, which may cost at most a tenth more than its 1.9 ms (``bench turn``).
        runs_at_once = lane.unused and self._limits.turn(lane.key) is None
        faults.point("accept.before")
        lane.coming += 1
        try:
            row, new = await self._runtime.stores.ledger.accept(
                message, step="running" if runs_at_once else None, after=after
            )
        except Fenced:
            raise
        except Exception as error:
            if may_be_written(error):
                self.unconfirmed.watch_for(message)
            if refusal_text(error) is not None:
                raise
            # The sender learns that the message was not stored, and why.
            raise StorageError(str(error) or type(error).__name__) from error
        finally:
            lane.coming -= 1
        faults.point("accept.after")
        earlier = self._index.get(row.run_id)
        if new and earlier is not None and not earlier.ended:
            new = False  # The message was adopted, or came twice at the same time.
        if not new:
            adopted = earlier is None and self._adopt(row)
            run = self._index.get(row.run_id)
            if run is not None and watcher is not None:
                run.emit(RunWatched(watcher))
            return Submission(row, adopted, adopted, run)
        run = Run(row)
        run.noted_running = runs_at_once
        if self._stopping:
            return Submission(row, True, True, run)  # The next start, or another node, resumes it.
        self.remember(run)
        if watcher is not None:
            run.emit(RunWatched(watcher))
        return Submission(row, True, await self._place(run, settings), run)

    def remember(self, run: Run) -> None:
        """Add the run to the index, with everyone who follows it from its beginning."""
        for follower in self._followers_of(run):
            run.follow(follower)
        self._index.add(run)

    def stop(self) -> None:
        """Accept no more messages."""
        self._stopping = True
        self.unconfirmed.stop()

    def _adopt(self, row: LedgerRow) -> bool:
        """Run a message without an end that no run of this process has. Returns False if there is nothing to do."""
        owned = self._runtime.stores.claims.owns(session_name(row.agent_id, row.session_key))
        if row.ended_at is not None or row.body.command or not owned or self._stopping or self._index.get(row.run_id):
            return False
        run = Run(row, recovered=True)
        self.remember(run)
        self._lane_of(row.session_key).add(run, QueueSettings(mode="followup"))
        return True

    async def _place(self, run: Run, settings: QueueSettings) -> bool:
        """Run, queue, steer or refuse the message. Returns True if the message does not run at once.

        The message is in the ledger, so a step that fails must not keep it from its lane.
        """
        lane = self._lane_of(run.session_key)
        active = lane.active
        steerable = active is not None and active.steerable and may_share([active, run])
        decision = decide(settings, busy=lane.busy, steerable=steerable, waiting=lane.depth)
        if decision == "steer" and active is not None:
            if await self._steer_in_order(lane, active, run, settings):
                return True
            decision = decide(settings, busy=lane.busy, steerable=False, waiting=lane.depth)
        if decision == "refuse":
            ending = Ending("failed", Reason(ReasonCode.QUEUE_FULL, str(lane.depth)))
            await self._endings.end(run, without_answer("error"), ending=ending)
            return True
        if decision == "interrupt":
            try:
                await self._endings.stop(lane, None, AbortReason.INTERRUPT)
            except Exception:
                log.exception("%s could not interrupt the runs before it, and waits for them", run.run_id)
        queued = lane.add(run, settings)
        if queued:
            run.noted_running = False
            if decision != "interrupt":
                self._books.note_waiting(run, waiting_reason(settings))
                self._drop_oldest(lane, settings)
            run.emit(MessageWaits())
        return queued

    # Steering

    async def _steer_in_order(self, lane: Lane, active: Run, run: Run, settings: QueueSettings) -> bool:
        """Steer the message into the active run, after those that wait. False if one of them cannot be steered.

        A message from before a restart is not steered, because the model may have seen it already.
        """
        for earlier in lane.waiting:
            if earlier.run_id.endswith(BACKLOG):
                continue  # The active run has this text already.
            steers = earlier.queue.mode in ("steer", "steer-backlog") and not earlier.recovered
            if not steers or not may_share([active, earlier]) or not lane.withdraw(earlier):
                return False
            if not await self._steer(active, earlier, earlier.queue):
                lane.add(earlier, earlier.queue, first=True)
                return False
        return await self._steer(active, run, settings)

    async def _steer(self, active: Run, run: Run, settings: QueueSettings) -> bool:
        row = run.row
        try:
            text = f"{overflow_text([row.body])}\n\n{row.body.prompt or ''}".lstrip("\n")
            blocks = [TextBlock(text=text), *await load_images(row.body, self._runtime.stores.blobs)]
        except Exception:
            return False  # The message gets its own run, which reports the problem with its pictures.
        source = INTERNAL if row.body.internal else None
        now, written = self._runtime.clock.now_ms(), row.body.written or None
        message = UserMessage(content=blocks, timestamp=now, provenance=source, written=written)
        if not active.inbox.put(run, message):
            return False
        run.queue = settings
        self._books.note_waiting(run, Reason(ReasonCode.STEERING, active.run_id))
        if settings.mode == "steer-backlog":
            # The message also gets its own turn when the active run has ended.
            again, later = row.derive(row.run_id + BACKLOG), msgspec.structs.replace(settings, mode="followup")
            try:
                await self.submit(again, later)
            except OSError:
                # The active run has the message, so that its sender must not learn that it was refused.
                self._books.in_background(self._books.until_written(lambda: self.submit(again, later)))
        return True

    # Overflow of the queue

    def _drop_oldest(self, lane: Lane, settings: QueueSettings) -> None:
        """End the oldest waiting messages when more wait than the session allows."""
        surplus = lane.depth - settings.cap
        for oldest in lane.waiting[:surplus] if surplus > 0 else ():
            lane.withdraw(oldest)
            if settings.drop == "summarize" and (waiting := lane.waiting):
                body = waiting[0].row.body = with_dropped(waiting[0].row.body, oldest.row.body, settings.cap)
                self._books.in_background(self._absorb_into_next(oldest, waiting[0], body, str(settings.cap)))
            else:
                ending = Ending("superseded", Reason(ReasonCode.QUEUE_OVERFLOW, str(settings.cap)))
                self._books.in_background(self._endings.end(oldest, without_answer("aborted"), ending=ending))

    async def _absorb_into_next(self, dropped: Run, heir: Run, body: MessageBody, cap: str) -> None:
        """End a dropped message. In the same write, the next message gets its beginning, in ``body``."""
        ledger, reason = self._runtime.stores.ledger, Reason(ReasonCode.QUEUE_OVERFLOW_SUMMARIZED, cap)
        try:
            await self._books.until_written(lambda: ledger.absorb(heir.row.id, {dropped.row.id: reason}, body=body))
        except Fenced:
            raise
        except Exception as error:
            if not isinstance(error, MessageEnded):  # The next message has ended meanwhile.
                log.exception("the beginning of %s could not be put before the next message", dropped.run_id)
            ending = Ending("superseded", Reason(ReasonCode.QUEUE_OVERFLOW, cap))
            await self._endings.end(dropped, without_answer("aborted"), ending=ending)
        else:
            self._endings.report(dropped, without_answer("aborted"), reason)
