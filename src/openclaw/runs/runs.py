"""The runs of a Gateway: everything that other folders ask of them, and the lanes that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from openclaw.agent.runtime import Runtime
from openclaw.cluster.claims import session_name
from openclaw.config.agents import default_agent_id
from openclaw.events import MessageWaits
from openclaw.runs.accept import Acceptance, Submission
from openclaw.runs.admission import Admission
from openclaw.runs.bookkeeping import Bookkeeping
from openclaw.runs.compactions import Compactions
from openclaw.runs.endings import Endings
from openclaw.runs.lane import ConcurrencyLimits, Lane
from openclaw.runs.perform import Performer
from openclaw.runs.queue_settings import QueueSettings
from openclaw.runs.recovery import STOP_CODES, unfinished_runs
from openclaw.runs.run import Follower, Run, RunIndex
from openclaw.sessions.keys import agent_of
from openclaw.storage.disk_errors import Descriptors
from openclaw.storage.message_ledger import AbortReason, Accept, MessageBody, Reason, ReasonCode, SessionName
from openclaw.storage.sessions import Writing

T = TypeVar("T")
IDLE_LANES = 1_000
"""Unused lanes are removed when there are this many lanes."""


class RunsElsewhere(Protocol):
    """The runs of the other nodes."""

    async def stop(self, session_key: str, run_id: str | None, reason: AbortReason) -> list[str]:
        """Stop runs of a session that another node owns. Returns their ids."""
        ...

    def ended(self, run_id: str) -> None:
        """Notify those who wait on other nodes for a run of this one."""
        ...


class NoRunsElsewhere:
    """The runs of other nodes where there is one node."""

    async def stop(self, session_key: str, run_id: str | None, reason: AbortReason) -> list[str]:
        return []

    def ended(self, run_id: str) -> None:
        pass


class Runs:
    """Accepts messages with ``submit`` and runs them, one lane per session."""

    def __init__(
        self,
        runtime: Runtime,
        followers_of: Callable[[Run], Sequence[Follower]],
        elsewhere: RunsElsewhere | None = None,
    ) -> None:
        """``followers_of`` returns those who follow a run from its acceptance on."""
        self._elsewhere = elsewhere or NoRunsElsewhere()
        self._runtime = runtime
        self._lanes: dict[str, Lane] = {}
        self._unfinished: dict[str, list[Run]] = {}
        """Messages that an earlier process left without an end, by session. A session's lane gets them when it is
        made."""
        self.index = RunIndex(runtime.stores.ledger, self._elsewhere.ended)
        """Finds a run by its id and waits for its end."""
        self.admission = Admission()
        self.compactions = Compactions(runtime, self.exclusively)
        self._books = books = Bookkeeping(runtime.stores.ledger, runtime.clock)
        self._endings = endings = Endings(runtime, self.index, books)
        limits, descriptors = ConcurrencyLimits(runtime.config), Descriptors(runtime.clock)
        self._acceptance = Acceptance(
            runtime, self.index, books, endings, limits, descriptors, self._lane, followers_of
        )
        self._performer = Performer(
            runtime, self.index, books, endings, limits, descriptors, self.compactions, self._acceptance.submit
        )

    async def submit(
        self,
        message: Accept,
        settings: QueueSettings | None = None,
        watcher: str | None = None,
        after: Writing | None = None,
    ) -> Submission:
        """Commit the message, then run, queue, steer or refuse it (``Acceptance.submit``)."""
        return await self._acceptance.submit(message, settings, watcher, after)

    def _lane(self, session_key: str) -> Lane:
        lane = self._lanes.get(session_key)
        if lane is None:
            if len(self._lanes) >= IDLE_LANES:
                for key in [key for key, lane in self._lanes.items() if lane.unused]:
                    del self._lanes[key]
            lane = self._lanes[session_key] = Lane(session_key, self._runtime.clock, self._performer.perform)
        if self._unfinished:
            for run in self._unfinished.pop(session_key, ()):
                lane.add(run, run.queue)
        return lane

    # After a restart

    async def find_unfinished(self, *, after_orderly_stop: bool = False, session: SessionName | None = None) -> int:
        """Find the messages that an earlier process left without an end. Returns their number.

        Call it before anyone can send a message, so that these come first in their sessions. ``after_orderly_stop``:
        the earlier process was asked to stop, so that no message crashed it. Only ``session`` is inspected if it is
        given, because this node has just become its owner.
        """
        count = 0
        for run in await unfinished_runs(self._runtime, session, after_orderly_stop=after_orderly_stop):
            here = self.index.get(run.run_id)
            if here is not None and not here.ended:
                continue
            count += 1
            self._acceptance.remember(run)
            self._unfinished.setdefault(run.session_key, []).append(run)
            if not run.row.attempts and run.row.reason.code not in STOP_CODES:
                self._books.note_waiting(run, Reason(ReasonCode.RESTARTED))
        return count

    def start_unfinished(self, session_key: str | None = None) -> None:
        """Start what ``find_unfinished`` found, in one session or in all. Call it once the Gateway listens."""
        for key in list(self._unfinished) if session_key is None else [session_key]:
            if key in self._unfinished:
                self._lane(key)

    # Questions about runs

    def active(self, session_key: str) -> list[Run]:
        """Return the session's active run, then its waiting ones."""
        lane = self._lanes.get(session_key)
        return lane.runs if lane is not None else []

    def waiting(self, session_key: str) -> list[Run]:
        lane = self._lanes.get(session_key)
        return lane.waiting if lane is not None else []

    def occupied(self, session_key: str) -> bool:
        """Return whether any message of the session runs or waits."""
        lane = self._lanes.get(session_key)
        return lane is not None and (lane.active is not None or lane.depth > 0)

    def in_use(self, session_key: str) -> bool:
        """Return whether anything happens in the session, including housekeeping and messages on their way in."""
        lane = self._lanes.get(session_key)
        return (lane is not None and not lane.unused) or self.admission.in_use(session_key)

    def busy(self) -> int:
        """Count the active runs."""
        return sum(1 for lane in self._lanes.values() if lane.active is not None)

    def queued(self) -> int:
        """Count the waiting messages."""
        return sum(lane.depth for lane in self._lanes.values())

    def storage_problems(self) -> list[str]:
        """Return the problems of storage that messages wait for now, without repetitions."""
        runs = [run for lane in self._lanes.values() for run in lane.runs]
        return list(dict.fromkeys(run.disk.problem for run in runs if run.disk.waiting))

    # Stopping, rewording and reordering

    async def abort(
        self, session_key: str, run_id: str | None = None, reason: AbortReason = AbortReason.RPC
    ) -> list[str]:
        """Stop one run of the session, or all of them, the waiting ones included. Returns the ids of the stopped runs.

        The runs are stopped at once. When this returns, the ledger holds the stop, so that it also outlives a crash.
        """
        if run_id is None:
            self.compactions.cancel(session_key)
            desk = self._runtime.tools.questions
            await desk.withdraw([question for question in desk.open_questions(session_key) if question.run_id])
        lane = self._lanes.get(session_key)
        if lane is None or lane.unused:
            return await self._elsewhere.stop(session_key, run_id, reason)
        return await self._endings.stop(lane, run_id, reason)

    async def reword(self, session_key: str, run_id: str, change: Callable[[MessageBody], MessageBody]) -> bool:
        """Change the text of a message that still waits. Returns False if it waits no longer."""
        run = next((run for run in self.waiting(session_key) if run.run_id == run_id), None)
        if run is None:
            return False
        # The text counts from here on, even if its run begins before it is on disk.
        body = run.row.body = change(run.row.body)
        await self._books.until_written(lambda: self._runtime.stores.ledger.absorb(run.row.id, {}, body=body), run.disk)
        run.emit(MessageWaits(reworded=True))
        return True

    def promote(self, session_key: str, run_id: str) -> bool:
        """Let a waiting message go next. Returns False if no such message waits."""
        lane = self._lanes.get(session_key)
        return lane is not None and any(lane.promote(run) for run in lane.waiting if run.run_id == run_id)

    async def exclusively(self, session_key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do work on a session (inject, reset, delete) after the runs it has now and before those that come later."""
        default = default_agent_id(self._runtime.config.current)
        name = session_name(agent_of(session_key, default_agent=default), session_key)
        await self._runtime.stores.claims.acquire(name)
        return await self._lane(session_key).exclusively(work)

    async def settle(self, session_key: str, timeout_s: float) -> bool:
        """Wait until the session's runs have ended. Returns False if they have not ended in time."""
        try:
            async with asyncio.timeout(timeout_s):
                for run in self.active(session_key):
                    await run.wait()
        except TimeoutError:
            return False
        return True

    # The end of the process, or of this node's ownership

    def drop(self) -> None:
        """End every run in this process at once. Nothing is written and nobody is notified: others continue them."""
        for lane in self._lanes.values():
            lane.drop()
        self._acceptance.unconfirmed.stop()
        self._books.drop()

    def drop_session(self, session_key: str) -> None:
        """End the runs of one session in this process at once, as ``drop`` does with all of them."""
        if (lane := self._lanes.pop(session_key, None)) is not None:
            self.index.forget_session(session_key)
            lane.drop()

    async def stop(self) -> None:
        """Stop every run in this process. The messages stay open in the ledger, and the next start resumes them."""
        self._acceptance.stop()
        await self.compactions.stop()
        cut_short = [lane.active for lane in self._lanes.values() if lane.active is not None]
        await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
        for run in cut_short:
            if run.ended_at is None and run.started_at is not None and not run.abort.aborted:
                self._books.in_background(self._books.until_written(lambda run=run: self._books.note_shutdown(run.row)))
        await self._books.stop()
