"""A run: the work on one accepted message, from its acceptance to its one end.

Everyone who wants to know what happens in a run follows its one stream of events (``Run.follow``): the clients, the
channel that gets the reply, HTTP responses, the log and the metrics. ``RunIndex`` finds a run by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.loop import Steered
from openclaw.agent.run_result import RunResult
from openclaw.events import Event, ModelSwitched, RunStarted
from openclaw.messages import UserMessage
from openclaw.outbound.reply_files import Files
from openclaw.runs.admission import Slot
from openclaw.runs.queue_settings import QueueSettings
from openclaw.runs.reasons import reason_text
from openclaw.storage.disk_errors import DiskWait
from openclaw.storage.message_ledger import END_STATES, AbortReason, Ledger, LedgerRow

RunState = Literal["queued", "running", "ok", "error", "aborted"]


# The events of a run, besides those of its agent loop


class RunBegan(msgspec.Struct, frozen=True):
    """The run begins its work. A second attempt in the same process is not reported."""


class StoreFiles(Protocol):
    """Stores files that an answer names. The first ``skip`` of them were stored before."""

    async def __call__(self, addresses: Sequence[str], voice: bool, *, skip: int = 0) -> Files: ...


class RunFilesReady(msgspec.Struct, frozen=True):
    """From here on, files that the answer names can be stored."""

    store: StoreFiles


class RunWatched(msgspec.Struct, frozen=True):
    """A connection asked for this run. It may see the run's tool events."""

    connection: str


class RunStopping(msgspec.Struct, frozen=True):
    """Somebody stopped the run. It may end a moment later."""

    reason: AbortReason


class RunAbsorbed(msgspec.Struct, frozen=True):
    """Another run answers the message. This is the last event of the stream."""

    by: Run


class RunSettling(msgspec.Struct, frozen=True):
    """The reply is complete. Its channel gets no more of it than what is on its way now.

    A follower that is still sending adds an awaitable to ``pending``. The message does not end before that is done.
    """

    pending: list[Coroutine[Any, Any, None]]


class RunFinished(msgspec.Struct, frozen=True):
    """The run has ended, and its end is on disk. Only the compaction that follows a run may report more."""


RunEvent: TypeAlias = (
    Event | RunBegan | RunFilesReady | RunWatched | RunStopping | RunAbsorbed | RunSettling | RunFinished
)
Follower: TypeAlias = Callable[[RunEvent], None]


class Run:
    """One run: its row in the ledger, its state, its abort signal, its inbox and its stream of events."""

    def __init__(
        self, row: LedgerRow, *, recovered: bool = False, expired: bool = False, stop_unnoted: bool = False
    ) -> None:
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
        self.inbox = RunInbox()
        self.disk = DiskWait()
        self.recovered = recovered
        """An earlier process accepted the message and left it without an end."""
        self.expired = expired
        """The message was too old to be answered when the Gateway started."""
        self.stop_unnoted = stop_unnoted
        """The message was running when the last Gateway shut down in order, and the ledger does not say so."""
        self.noted_running = False
        """The commit that accepted the message also noted that it runs."""
        self.queue = QueueSettings()
        self.queued = False
        """The run had to wait for another run when it was added to its lane."""
        self.failures = 0
        """How often the run failed before it asked its model, and returned to its lane."""
        self.asked_model = False
        self.absorbed: list[Run] = []
        """The other messages that this run answers."""
        self.absorbed_by: str | None = None
        """The id of the run that answers this message, if another one does."""
        self.verbose: str | None = None
        """The ``verbose`` setting of the message or its session when the run began."""
        self.reasoning = "off"
        """How the session shows the model's reasoning: ``off``, ``on`` (with the answer) or ``stream``."""
        self.model = ""
        """The model that answers, as ``provider/model``. Empty until it is known."""
        self.thinking = ""
        self.slot = Slot()
        self._followers: list[Follower] = []
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def collected(self) -> bool:
        """The message waited, and is answered together with the others that did."""
        return self.queued and self.queue.mode == "collect"

    @property
    def steerable(self) -> bool:
        return self.state == "running" and self.inbox.open and not self.abort.aborted

    # The stream of events

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call ``follower`` with every event from here on. Returns a function that stops it."""
        self._followers.append(follower)

        def unfollow() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return unfollow

    def emit(self, event: RunEvent) -> None:
        if isinstance(event, RunStarted) and event.model:
            self.model, self.thinking = event.model, event.thinking
        elif isinstance(event, ModelSwitched):
            self.model = event.active
        for follower in self._followers:
            follower(event)

    def late_emitter(self) -> Callable[[Event], None]:
        """Return a function that emits to the present followers, even after the end of the run."""
        followers = tuple(self._followers)

        def emit(event: Event) -> None:
            for follower in followers:
                follower(event)

        return emit

    async def finish_sending(self) -> bool:
        """Wait until the followers have sent what they have begun of the reply. Return whether one of them sends."""
        pending: list[Coroutine[Any, Any, None]] = []
        self.emit(RunSettling(pending))
        for sending in pending:
            await sending
        return bool(pending)

    # Its states

    def begin(self, now_ms: int) -> None:
        self.state, self.started_at, self.inbox.open = "running", now_ms, True

    def postpone(self) -> None:
        """Return the run to its lane. The next attempt inspects the transcript, as after a restart."""
        if self.state == "running":
            self.state, self.row.attempts = "queued", max(1, self.row.attempts)

    def note_model_call(self) -> None:
        self.asked_model = True

    @contextlib.asynccontextmanager
    async def parked(self) -> AsyncGenerator[None]:
        """Within it, the run waits for a person: it holds no slot, and its time does not pass."""
        with self.abort.deadline_paused():
            async with self.slot.parked():
                yield

    def absorb(self, other: Run) -> None:
        """Answer the message of another run as well."""
        other.absorbed_by = self.run_id
        self.absorbed.append(other)
        other.emit(RunAbsorbed(self))
        other._followers = []

    def end(self, state: RunState, now_ms: int, error: str | None = None, result: RunResult | None = None) -> None:
        self.state, self.ended_at, self.error, self.result = state, now_ms, error, result
        self._ended.set()

    def finish(self) -> None:
        """Report the end to the followers."""
        followers, self._followers = self._followers, []
        for follower in followers:
            follower(RunFinished())

    async def wait(self) -> None:
        await self._ended.wait()


class RunInbox:
    """Steered messages on their way into the active run. The agent loop takes one at each poll."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Run, UserMessage]] = deque()
        self.open = False
        """True from the beginning of the run until its loop has polled for the last time. Outside of that time, a
        message needs its own run."""

    def put(self, run: Run, message: UserMessage) -> bool:
        if not self.open:
            return False
        self._waiting.append((run, message))
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def steering(self) -> list[Steered]:
        if not self._waiting:
            return []
        run, message = self._waiting.popleft()
        return [Steered(message, run.run_id)]

    def follow_ups(self) -> list[Steered]:
        steered = self.steering()
        self.open = bool(steered)
        return steered

    def close(self) -> list[Run]:
        """Close the inbox and return the messages that the run did not accept."""
        self.open = False
        left = [run for run, _ in self._waiting]
        self._waiting.clear()
        return left


# The index of runs

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


class FollowerSources:
    """Those who follow every run from its acceptance on."""

    def __init__(self) -> None:
        self._sources: list[Callable[[Run], Follower | None]] = []

    def add(self, source: Callable[[Run], Follower | None]) -> None:
        """Let ``source`` return its follower of each new run, or None."""
        self._sources.append(source)

    def of(self, run: Run) -> list[Follower]:
        return [follower for source in self._sources if (follower := source(run)) is not None]


class RunIndex:
    """The runs that have not ended and the last that have. The ledger answers for older ones."""

    def __init__(self, ledger: Ledger, on_ended: Callable[[str], None]) -> None:
        """``on_ended`` is called with every end in this process, because others may wait elsewhere."""
        self._ledger = ledger
        self._on_ended = on_ended
        self._runs: dict[str, Run] = {}
        self._ended: deque[str] = deque()
        """The ids of ended runs, in the order in which they ended."""
        self._waiters: dict[str, set[asyncio.Event]] = {}
        """Events to set when the run with that id ends."""

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def add(self, run: Run) -> None:
        """Add a run, and forget the first that ended when there are too many."""
        self._runs[run.run_id] = run
        while len(self._runs) > REMEMBERED_RUNS and self._ended:
            self._runs.pop(self._ended.popleft(), None)

    def forget_session(self, session_key: str) -> None:
        """Forget the runs of a session that continues elsewhere, also those on their way into another run.

        If the session comes back, its messages without an end are found in the ledger.
        """
        for run in [run for run in self._runs.values() if run.session_key == session_key and not run.ended]:
            del self._runs[run.run_id]

    def ended(self, run_id: str) -> None:
        self._ended.append(run_id)
        self.wake_waiters(run_id)

    def wake_waiters(self, run_id: str) -> None:
        """Wake those who wait for a message. A message without a run, such as a command, ends only here."""
        for waiter in self._waiters.get(run_id, ()):
            waiter.set()
        self._on_ended(run_id)

    async def wait(self, run_id: str, timeout_s: float | None) -> WaitResult:
        """Wait until the run has ended, here or at another node that continues it.

        The status is ``timeout`` if it has not ended in time. ``timeout_s`` None waits forever. A run that
        the index does not have yet may still come.
        """
        outcome = await self._outcome(run_id)
        if outcome is not None or (timeout_s is not None and timeout_s <= 0):
            return outcome or WaitResult(status="timeout")
        ended = asyncio.Event()
        answering = await self._answering(run_id)
        waiters = self._waiters.setdefault(answering, set())
        waiters.add(ended)
        try:
            async with asyncio.timeout(timeout_s):
                # The run may have ended during the look-up of the run that answers.
                while (outcome := await self._outcome(run_id)) is None:
                    await ended.wait()
                    ended.clear()
                return outcome
        except TimeoutError:
            return WaitResult(status="timeout")
        finally:
            waiters.discard(ended)
            if not waiters:
                self._waiters.pop(answering, None)

    async def _outcome(self, run_id: str) -> WaitResult | None:
        run = self._runs.get(run_id)
        if run is not None:
            if not run.ended:
                return None
            status = "ok" if run.state == "ok" else "error"
            error = run.error or ("aborted" if run.state == "aborted" else None)
            return WaitResult(status=status, started_at=run.started_at, ended_at=run.ended_at, error=error)
        answering = await self._answering(run_id)
        if answering in self._runs:
            return await self._outcome(answering)
        row = await self._ledger.by_run(answering)
        if row is None or row.state not in END_STATES:
            return None
        status = "ok" if row.state in ("answered", "silent") else "error"
        error = None if status == "ok" else reason_text(row.reason) or row.state
        return WaitResult(status=status, started_at=row.started_at, ended_at=row.ended_at, error=error)

    async def _answering(self, run_id: str) -> str:
        """Return the id of the run that answers this message: its own, or the one that absorbed it."""
        for _ in range(LONGEST_CHAIN):
            if run_id in self._runs:
                break
            row = await self._ledger.by_run(run_id)
            by = (row.result or {}).get("answeredBy") if row is not None else None
            if not isinstance(by, str):
                break
            run_id = by
        return run_id
