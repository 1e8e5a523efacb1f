"""The queue of a session: queue modes, the admission of messages, the record of a run, and the lane of runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, TypeVar

import msgspec

from openclaw.agent.abort import AbortSignal
from openclaw.agent.loop import Steered
from openclaw.agent.recorder import RunResult
from openclaw.clock import Clock, wait_within
from openclaw.config.schema.messages import Queue, QueueDrop, QueueMode
from openclaw.events import Event, ModelSwitched, RunStarted
from openclaw.messages import UserMessage
from openclaw.outbound.reply_files import FilesOf
from openclaw.sessions.prompt_prefix import COLLECTED, newest_words
from openclaw.storage.base import FirstStep, LedgerRow, MessageBody, Reason, ReasonCode
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


_NO_WISH = QueueWish()


def parse_mode(text: str | None) -> QueueMode | None:
    return MODES.get(text.strip().lower()) if text else None


def parse_drop(text: str | None) -> QueueDrop | None:
    return DROPS.get(text.strip().lower()) if text else None


def queue_settings(
    config: Queue, entry: Mapping[str, Any] | None, channel: str, wish: QueueWish | None = None
) -> QueueSettings:
    """Takes each setting from the message, else the session, else the channel, else the general configuration."""
    wish, session, where = wish or _NO_WISH, entry or {}, channel.strip().lower()
    mode = (
        wish.mode
        or parse_mode(session.get("queueMode"))
        or parse_mode(config.by_channel.get(where))
        or parse_mode(config.mode)
        or "collect"
    )
    debounce = _first(
        wish.debounce_ms,
        session.get("queueDebounceMs"),
        config.debounce_ms_by_channel.get(where),
        config.debounce_ms,
        DEFAULT_DEBOUNCE_MS,
    )
    cap = _first(wish.cap, session.get("queueCap"), config.cap, DEFAULT_CAP)
    drop = wish.drop or parse_drop(session.get("queueDrop")) or parse_drop(config.drop) or "summarize"
    return QueueSettings(mode=mode, debounce_ms=max(0, int(debounce)), cap=max(1, int(cap)), drop=drop)


def _first(*values: Any) -> float:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    raise ValueError("none of the settings is a number")


# Merging


def route_key(route: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the destination of a reply. Two messages may share an answer only when their keys are equal."""
    names = ("channel", "to", "accountId", "threadId")
    return tuple("" if route.get(name) is None else str(route[name]) for name in names)


def same_destination(routes: Sequence[Mapping[str, Any]]) -> bool:
    return len({route_key(route) for route in routes}) <= 1


def same_rights(bodies: Sequence[MessageBody]) -> bool:
    """Tells whether the tools of a run have the same rights for all senders. Only then may they share a run."""
    first, *others = [(body.exec, body.elevated, body.elevated_allowed, body.guest) for body in bodies]
    return all(other == first for other in others)


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


# Admission

MOST_ADMITTED = 12
LONGEST_S = 0.5
"""A ticket is released after this time, because its message no longer waits for the processor."""
PATIENCE_S = 1.0
"""A message that has waited this long is admitted, however many are inside."""
STUCK_S = 30.0
"""The next message of a session is admitted after this time, even if the one before it hangs."""


class Admission:
    """Admits a dozen messages at a time. Each keeps its place until it asks its model.

    Without a limit, a hundred messages that come together would be prepared in parallel, and all of them would ask
    their models late. In small groups, the first are answered while the others are prepared.

    Within a session, a message is admitted when the one before it is stored or refused.
    """

    def __init__(self, most: int = MOST_ADMITTED) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._newest: dict[str, asyncio.Future[None]] = {}
        """For each session, the newest message that is not done yet."""

    async def admit(self, session_key: str) -> Ticket:
        """Waits for a place and returns its ticket. The caller must call ``done`` on the ticket."""
        before = self._newest.get(session_key)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._newest[session_key] = done
        try:
            if before is not None:
                await asyncio.wait([before], timeout=STUCK_S)
            arrived_at = loop.time()
            if self._inside < self._most:
                self._inside += 1
            else:
                await self._stand_in_line()
        except BaseException:
            # The next message still has to wait for the message before this one.
            if before is None or before.done():
                self._let_next_in(session_key, done)
            else:
                before.add_done_callback(lambda _: self._let_next_in(session_key, done))
            raise
        return Ticket(self._release, lambda: self._let_next_in(session_key, done), arrived_at)

    def in_use(self, session_key: str) -> bool:
        """Tells whether a message of the session is on its way in."""
        return session_key in self._newest

    async def wait_for_earlier(self, session_key: str) -> None:
        """Waits, without taking a place, until the session's earlier messages are done, at most ``PATIENCE_S``."""
        before = self._newest.get(session_key)
        if before is not None:
            await asyncio.wait([before], timeout=PATIENCE_S)

    async def _stand_in_line(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        patience = loop.call_later(PATIENCE_S, self._let_in, turn)
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release()  # The message was admitted and cancelled in the same step of the event loop.
            raise
        finally:
            patience.cancel()

    def _let_in(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._inside += 1
            turn.set_result(None)

    def _release(self) -> None:
        self._inside -= 1
        while self._line and self._inside < self._most:
            self._let_in(self._line.popleft())

    def _let_next_in(self, session_key: str, done: asyncio.Future[None]) -> None:
        if self._newest.get(session_key) is done:
            del self._newest[session_key]
        if not done.done():
            done.set_result(None)


class Ticket:
    """The place of one admitted message. It is released once, at the latest after ``LONGEST_S``."""

    def __init__(self, release: Callable[[], None], let_next_in: Callable[[], None], arrived_at: float) -> None:
        self.arrived_at = arrived_at
        """When the message was the next of its session, on the event loop's clock."""
        self.runs = False
        """True when the message became a run, which releases the ticket when it asks its model."""
        self._release: Callable[[], None] | None = release
        self._let_next_in = let_next_in
        self._limit = asyncio.get_running_loop().call_later(LONGEST_S, self.release)

    def done(self) -> None:
        """Tells that the message is stored or refused, so that the next one of its session is admitted."""
        self._let_next_in()
        if not self.runs:
            self.release()

    def release(self) -> None:
        """Gives the place to another message. A second call does nothing."""
        if self._release is not None:
            self._limit.cancel()
            self._release()
            self._release = None


# Runs

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
    def is_backlog(self) -> bool:
        """Whether this is the later turn of a message that was steered into a run before."""
        return self.run_id.endswith(BACKLOG)

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
    ``gateway/channel_run.py`` for the channel that gets the reply, ``RunLog`` and ``RunMetrics``.
    """

    def started(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def aborted(self, reason: str) -> None:
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


class _Job:
    """Housekeeping of the session. No run is active while it is done."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work


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
        self._waiting: deque[RunRecord | _Job] = deque()
        self._jobs = 0
        """How many items in ``_waiting`` are housekeeping."""
        self._task: asyncio.Task[None] | None = None
        self._last_added_at = 0.0
        """When the last message came, on the monotonic clock."""
        self._changed = asyncio.Event()
        """Set whenever ``_waiting`` changes."""
        self._one_by_one = False
        """Each of the messages that wait now gets a run of its own."""

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
        """Does the work when its turn comes. No run of the session is active meanwhile."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def settle() -> None:
            try:
                result = await work()
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self._waiting.append(_Job(settle))
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
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name=f"lane {self.key}")

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_pause()
                batch = self._next()
                if isinstance(batch, _Job):
                    await batch.work()
                elif batch:
                    await self._run(batch)
        finally:
            self._task = None
            if self._waiting:  # An error ended this task before the queue was empty.
                self._start()

    async def _run(self, batch: list[RunRecord]) -> None:
        self.active = batch[-1]
        try:
            await self._perform(self, batch)
        finally:
            self.active = None

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

    def _next(self) -> list[RunRecord] | _Job:
        if not self._waiting:
            return []
        head = self._waiting.popleft()
        if isinstance(head, _Job):
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
        self._waiting.clear()
        self._jobs = 0
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.drop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def may_share(records: Sequence[RunRecord]) -> bool:
    """Tells whether one run may answer all these messages: same destination, same rights for its commands."""
    return same_destination([one.row.route for one in records]) and same_rights([one.row.body for one in records])


def _is_collectable(item: RunRecord | _Job) -> TypeGuard[RunRecord]:
    if not isinstance(item, RunRecord) or item.row.body.internal:
        return False  # What nobody wrote is not mixed with what people wrote.
    return item.queued and item.queue.mode == "collect"
