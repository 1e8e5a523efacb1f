"""The queue of a session: what its queue mode does with a message, the record of a run, and the lane of runs.

A message has passed ``runs/admission.py`` before it is queued. ``RunIndex`` holds the runs of all sessions that are
in memory, and waits for the end of one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, TypeVar

import msgspec

from openclaw.agent.loop import AbortSignal, Steered
from openclaw.agent.recorder import RunResult
from openclaw.clock import Clock, wait_within
from openclaw.config.schema.messages import Queue, QueueDrop, QueueMode
from openclaw.events import Event, ModelSwitched, RunStarted
from openclaw.messages import UserMessage
from openclaw.outbound.reply_files import FilesOf
from openclaw.runs.admission import Ticket
from openclaw.runs.why_text import reason_text
from openclaw.sessions.prompt_prefix import COLLECTED, newest_words
from openclaw.storage.base import (
    END_STATES,
    AbortReason,
    Fenced,
    FirstStep,
    Ledger,
    LedgerRow,
    MessageBody,
    Reason,
    ReasonCode,
)
from openclaw.storage.disk_errors import DiskWait

MODES: dict[str, QueueMode] = {
    "steer": "steer",
    "queue": "steer",
    "queued": "steer",
    "steering": "steer",
    "followup": "followup",
    "followups": "followup",
    "follow-up": "followup",
    "follow-ups": "followup",
    "collect": "collect",
    "coalesce": "collect",
    "steer-backlog": "steer-backlog",
    "steer+backlog": "steer-backlog",
    "steer_backlog": "steer-backlog",
    "interrupt": "interrupt",
    "interrupts": "interrupt",
    "abort": "interrupt",
}
DROPS: dict[str, QueueDrop] = {
    "old": "old",
    "oldest": "old",
    "new": "new",
    "newest": "new",
    "summarize": "summarize",
    "summary": "summarize",
}
DEFAULT_DEBOUNCE_MS = 1000
DEFAULT_CAP = 20
SUMMARY_LENGTH = 160
BACKLOG = ":backlog"
"""Ends the run id of the second turn that ``steer-backlog`` gives a message."""
OVERFLOW = ":overflow"
"""Ends the run id of the turn before a message in which the agent is told of dropped ones."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that hold for one message."""

    mode: QueueMode = "collect"
    debounce_ms: int = DEFAULT_DEBOUNCE_MS
    """Collected messages run when no message has come for this time."""
    cap: int = DEFAULT_CAP
    """The number of messages of one session that may wait."""
    drop: QueueDrop = "summarize"
    """What happens when more come: the oldest is dropped, the oldest is dropped and summarized, or the new one is
    refused."""


class QueueWish(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that one message asks for. A field is None where the message asks for nothing."""

    mode: QueueMode | None = None
    debounce_ms: int | None = None
    cap: int | None = None
    drop: QueueDrop | None = None


def parse_mode(text: str | None) -> QueueMode | None:
    return MODES.get(text.strip().lower()) if text else None


def parse_drop(text: str | None) -> QueueDrop | None:
    return DROPS.get(text.strip().lower()) if text else None


def queue_settings(
    config: Queue, entry: Mapping[str, Any] | None, channel: str, wish: QueueWish | None = None
) -> QueueSettings:
    """Takes each setting from the message, else the session, else the channel, else the general configuration."""
    wish, session, where = wish or QueueWish(), entry or {}, channel.strip().lower()
    mode = (
        wish.mode
        or parse_mode(session.get("queueMode"))
        or parse_mode(config.by_channel.get(where))
        or MODES[config.mode]
    )
    debounce = _first_number(
        wish.debounce_ms,
        session.get("queueDebounceMs"),
        config.debounce_ms_by_channel.get(where),
        default=config.debounce_ms,
    )
    cap = _first_number(wish.cap, session.get("queueCap"), default=config.cap)
    drop = wish.drop or parse_drop(session.get("queueDrop")) or config.drop
    return QueueSettings(mode=mode, debounce_ms=max(0, int(debounce)), cap=max(1, int(cap)), drop=drop)


def _first_number(*values: Any, default: int) -> float:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return default


# Merging


def route_key(route: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the destination of a reply. Two messages may share an answer only when their keys are equal."""
    names = ("channel", "to", "accountId", "threadId")
    return tuple("" if route.get(name) is None else str(route[name]) for name in names)


def collected_prompt(prompts: Sequence[str], overflow: str = "") -> str:
    blocks = [COLLECTED, *([overflow] if overflow else [])]
    blocks += [f"---\nQueued #{number}\n{prompt}" for number, prompt in enumerate(prompts, 1)]
    return "\n\n".join(blocks)


def with_dropped(body: MessageBody, dropped: MessageBody, most_lines: int) -> MessageBody:
    """The body of the message that takes the beginning of a dropped one over, and what that one had taken over."""
    lines = [*dropped.dropped_lines, summary_line(newest_words(dropped.prompt or "")), *body.dropped_lines]
    count = dropped.dropped_count + 1 + body.dropped_count
    return msgspec.structs.replace(body, dropped_count=count, dropped_lines=lines[-most_lines:])


def overflow_text(bodies: Sequence[MessageBody]) -> str:
    """Tells the agent which messages were dropped before these. Empty when none was."""
    count = sum(body.dropped_count for body in bodies)
    if not count:
        return ""
    lines = [line for body in bodies for line in body.dropped_lines]
    plural = "message" if count == 1 else "messages"
    head = f"[Queue overflow] Dropped {count} {plural} due to cap."
    return "\n".join([head, "Summary:", *(f"- {line}" for line in lines)]) if lines else head


def summary_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_LENGTH else line[: SUMMARY_LENGTH - 1] + "…"


# Decisions

Decision: TypeAlias = Literal["run", "wait", "steer", "interrupt", "refuse"]


def decide(settings: QueueSettings, *, busy: bool, steerable: bool, waiting: int) -> Decision:
    """Decides what happens to a new message. ``steerable`` says whether the active run can still take it in."""
    if not busy:
        return "run"
    if settings.mode == "interrupt":
        return "interrupt"
    if settings.mode in ("steer", "steer-backlog") and steerable:
        return "steer"
    if waiting >= settings.cap and settings.drop == "new":
        return "refuse"
    return "wait"


def waiting_reason(settings: QueueSettings) -> Reason:
    return Reason(ReasonCode.COLLECTING if settings.mode == "collect" else ReasonCode.SESSION_BUSY)


# The run

RunState = Literal["queued", "running", "ok", "error", "aborted"]


class RunRecord:
    """One run, from the acceptance of its message to its end."""

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
        """The ``verbose`` setting of the message or its session when the run began."""
        self.reasoning = "off"
        """How the session shows the model's reasoning: ``off``, ``on`` (with the answer) or ``stream``."""
        self.noted_step = noted_step
        """The step that the ledger noted together with the acceptance. None when it noted no step."""
        self.recovered = False
        """An earlier process accepted the message and left it without an end."""
        self.stop_unnoted = False
        """The message was running when the last Gateway was told to stop, and the ledger does not say so."""
        self.expired = False
        """The message was too old to be answered when the Gateway started."""
        self.disk = DiskWait()
        self.queue = QueueSettings()
        self.queued = False
        """The run had to wait behind another run when it was added to its lane."""
        self.inbox: RunInbox | None = None
        self.absorbed: list[RunRecord] = []
        """The other messages that this run answers."""
        self.absorbed_by: str | None = None
        """The id of the run that answers this message, if another one does."""
        self.watchers: set[str] = set()
        """The connections that asked for this run. They may see its tool events."""
        self.listeners: list[Callable[[Event], None]] = []
        """Called with every event of the run, for example by an HTTP response that streams it."""
        self.model = ""
        """The model that answers, as ``provider/model``. Empty until it is known."""
        self.thinking = ""
        self.settle_reply: Callable[[], Awaitable[None]] | None = None
        """Ends the sending of a reply that is still being written. Awaited before the message is ended."""
        self.reply_files: FilesOf | None = None
        """Stores files that the answer names. None: the run has not begun."""
        self.ticket: Ticket | None = None
        """The message's place in the admission."""
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
        return self.state == "running" and self.inbox is not None and self.inbox.open and not self.abort.aborted

    def begin(self, now_ms: int) -> None:
        self.state, self.started_at = "running", now_ms

    def release_ticket(self) -> None:
        """Lets another message be admitted. Called when the run asks its model, waits, or ends."""
        if self.ticket is not None:
            self.ticket.release()

    def end(self, state: RunState, now_ms: int, error: str | None = None, result: RunResult | None = None) -> None:
        self.state, self.ended_at, self.error, self.result = state, now_ms, error, result
        self._ended.set()
        self.release_ticket()

    def tell(self, event: Event) -> None:
        match event:
            case RunStarted(model=model, thinking=thinking) if model:
                self.model, self.thinking = model, thinking
            case ModelSwitched(active=active):
                self.model = active
            case _:
                pass
        for listener in self.listeners:
            listener(event)

    async def wait(self) -> None:
        await self._ended.wait()


class Observer(Protocol):
    """Follows one run: ``RunStream`` in ``gateway/server/events.py`` for the clients, ``ChannelRun`` in
    ``gateway/channels.py`` for the channel that gets the reply, ``RunLog`` and ``RunMetrics``.
    """

    def started(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def aborted(self, reason: AbortReason) -> None:
        """Called at once when someone stops the run. The run may end a moment later."""
        ...

    def absorbed(self, by: str) -> None:
        """Called when another run takes this message in and answers it."""
        ...

    def finished(self) -> None: ...


class RunInbox:
    """Steered messages on their way into the active run. The agent loop takes one at each poll."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RunRecord, UserMessage]] = deque()
        self.open = True
        """False once the loop has polled for the last time. Later messages need a run of their own."""

    def put(self, record: RunRecord, message: UserMessage) -> bool:
        if not self.open:
            return False
        self._waiting.append((record, message))
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def steering(self) -> list[Steered]:
        if not self._waiting:
            return []
        record, message = self._waiting.popleft()
        return [Steered(message, record.run_id)]

    def follow_ups(self) -> list[Steered]:
        taken = self.steering()
        self.open = bool(taken)
        return taken

    def close(self) -> list[RunRecord]:
        """Closes the inbox and returns the messages that the run did not take."""
        self.open = False
        left = [record for record, _ in self._waiting]
        self._waiting.clear()
        return left


# The lane

T = TypeVar("T")


Housekeeping: TypeAlias = Callable[[], Awaitable[None]]
"""Work on the session. No run is active while it is done."""


class Lane:
    """The single writer of a session: at most one run or one piece of housekeeping at a time, first come first served.

    ``perform`` runs a batch of messages, of which the last one gives the run its name.
    """

    def __init__(self, key: str, clock: Clock, perform: Callable[[Lane, list[RunRecord]], Awaitable[None]]) -> None:
        self.key = key
        self.active: RunRecord | None = None
        self.coming = 0
        """How many messages for this lane are being written to the ledger."""
        self._clock = clock
        self._perform = perform
        self._waiting: deque[RunRecord | Housekeeping] = deque()
        self._jobs = 0
        """How many items in ``_waiting`` are housekeeping."""
        self._task: asyncio.Task[None] | None = None
        self._last_added_at = 0.0
        """When the last message came, on the monotonic clock."""
        self._changed = asyncio.Event()
        """Set whenever ``_waiting`` changes."""
        self._promised: set[asyncio.Future[Any]] = set()
        """What the callers of ``exclusively`` wait for."""
        self._one_by_one = False
        """Each of the messages that wait now gets a run of its own."""
        self._dropped = False
        """Nothing is begun any more. A run that is cut short still gives back the messages that it did not take in."""

    @property
    def unused(self) -> bool:
        """True when nothing runs, waits, or is being accepted."""
        return self._task is None and self.coming == 0

    @property
    def busy(self) -> bool:
        """True when a new message has to wait for others. Aborted runs and housekeeping do not count: they end soon."""
        active = self.active
        working = active is not None and not active.ended and not active.abort.aborted
        return working or self.depth > 0

    @property
    def depth(self) -> int:
        """The number of messages that wait."""
        return len(self._waiting) - self._jobs

    @property
    def waiting(self) -> list[RunRecord]:
        return [item for item in self._waiting if isinstance(item, RunRecord)]

    @property
    def records(self) -> list[RunRecord]:
        """The active run first, then the waiting ones."""
        return [*([self.active] if self.active else []), *self.waiting]

    def add(self, record: RunRecord, settings: QueueSettings, *, first: bool = False) -> bool:
        """Adds a run, with ``first`` before all others that wait. Returns True when it has to wait."""
        behind = self.busy
        record.queue, record.queued = settings, behind
        self._last_added_at = self._clock.monotonic()
        if first:
            self._waiting.appendleft(record)
        else:
            self._waiting.append(record)
        self._changed.set()
        self._start()
        return behind

    async def exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the work when its turn comes. No run of the session is active meanwhile.

        Raises ``Fenced`` if the lane is dropped before the work is done.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._promised.add(done)
        done.add_done_callback(self._promised.discard)

        async def settle() -> None:
            try:
                result = await work()
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self._waiting.append(settle)
        self._jobs += 1
        self._changed.set()
        self._start()
        return await done

    def withdraw(self, record: RunRecord) -> bool:
        """Takes a waiting run out of the lane. Returns False when it does not wait."""
        try:
            self._waiting.remove(record)
        except ValueError:
            return False
        self._changed.set()
        return True

    def promote(self, record: RunRecord) -> bool:
        """Lets a waiting run go next, without other messages and without a pause. False when it does not wait."""
        if not self.withdraw(record):
            return False
        record.queued = False
        self._waiting.appendleft(record)
        return True

    def _start(self) -> None:
        if self._task is None and not self._dropped:
            self._task = asyncio.create_task(self._drain(), name=f"lane {self.key}")

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_pause()
                batch = self._next()
                if callable(batch):
                    await batch()
                elif batch:
                    self.active = batch[-1]
                    try:
                        await self._perform(self, batch)
                    finally:
                        self.active = None
        finally:
            self._task = None
            if self._waiting:  # An error ended this task before the queue was empty.
                self._start()

    async def _wait_for_pause(self) -> None:
        """Waits until no message came for the debounce time, if the next message is to be collected with others."""
        while self._waiting:
            head = self._waiting[0]
            if not _is_collectable(head):
                return
            due = self._last_added_at + head.queue.debounce_ms / 1000 - self._clock.monotonic()
            if due <= 0:
                return
            self._changed.clear()
            await wait_within(self._changed, due, self._clock)

    def _next(self) -> list[RunRecord] | Housekeeping:
        if not self._waiting:
            return []
        head = self._waiting.popleft()
        if not isinstance(head, RunRecord):
            self._jobs -= 1
            return head
        if not _is_collectable(head):
            return [head]
        together: list[RunRecord] = []
        for item in self._waiting:
            if not _is_collectable(item):
                break
            together.append(item)
        if self._one_by_one or not may_share([head, *together]):
            # When two of the waiting messages need separate answers, all of them get separate answers.
            self._one_by_one = bool(together)
            return [head]
        for _ in together:
            self._waiting.popleft()
        return [head, *together]

    def drop(self) -> None:
        """Ends everything at once, because the session goes on elsewhere. Those who wait for their work learn it."""
        self._cut_short()
        for done in self._promised:
            if not done.done():
                done.set_exception(Fenced("the session goes on elsewhere"))

    def _cut_short(self) -> None:
        self._dropped = True
        self._waiting.clear()
        self._jobs = 0
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Ends everything, because the process ends. Work that waits is not done and not failed."""
        self._cut_short()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def may_share(records: Sequence[RunRecord]) -> bool:
    """Tells whether one run may answer all these messages: same destination, same rights for its commands."""
    bodies = [one.row.body for one in records]
    rights = [(body.exec, body.elevated, body.elevated_allowed, body.guest) for body in bodies]
    return len({route_key(one.row.route) for one in records}) <= 1 and all(one == rights[0] for one in rights)


def _is_collectable(item: RunRecord | Housekeeping) -> TypeGuard[RunRecord]:
    if not isinstance(item, RunRecord) or item.row.body.internal:
        return False  # What nobody wrote is not mixed with what people wrote.
    return item.collected


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

    def forget_session(self, session_key: str) -> list[str]:
        """Forgets the runs of a session that goes on elsewhere, also those on their way into another run.

        Returns their ids. If the session comes back, its messages without an end are found in the ledger.
        """
        gone = [one.run_id for one in self._records.values() if one.session_key == session_key and not one.ended]
        for run_id in gone:
            del self._records[run_id]
        return gone

    def ended(self, run_id: str) -> None:
        self._ended.append(run_id)
        self.wake_waiters(run_id)

    def wake_waiters(self, run_id: str) -> None:
        """Tells those who wait for a message that it has ended. A message without a run, such as a command, ends so."""
        for waiter in self._waiters.get(run_id, ()):
            waiter.set()
        if self.on_ended is not None:
            self.on_ended(run_id)

    async def wait(self, run_id: str, timeout_s: float | None) -> WaitResult:
        """Waits until the run has ended, here or at another node that goes on with it.

        The status is ``timeout`` when it has not ended in time. ``timeout_s`` None: it is waited for without a limit.
        A run that is not known yet may still come.
        """
        known = await self._outcome(run_id)
        if known is not None or (timeout_s is not None and timeout_s <= 0):
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
