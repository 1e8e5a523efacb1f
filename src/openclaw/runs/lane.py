"""A lane holds the runs and the housekeeping of one session and does them one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeGuard, TypeVar

from openclaw.agent.loop import Steered
from openclaw.clock import Clock, wait_within
from openclaw.messages import UserMessage
from openclaw.runs.queue import QueueSettings, same_destination, same_rights, summary_line
from openclaw.runs.run_index import RunRecord

T = TypeVar("T")


class _Job:
    """Housekeeping of the session. No run is active while it is done."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work


class Overflow:
    """Messages that a full queue dropped. The agent is told of them once, before the next message."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: deque[str] = deque()

    def add(self, text: str, most_lines: int) -> None:
        self.count += 1
        self.lines.append(summary_line(text))
        while len(self.lines) > most_lines:
            self.lines.popleft()

    def take(self) -> tuple[int, list[str]]:
        taken = self.count, list(self.lines)
        self.count = 0
        self.lines.clear()
        return taken


class Lane:
    """The single writer of a session: at most one run or one piece of housekeeping at a time, first come first served.

    ``perform`` runs a batch of messages, of which the last one gives the run its name.
    """

    def __init__(self, key: str, clock: Clock, perform: Callable[[Lane, list[RunRecord]], Awaitable[None]]) -> None:
        self.key = key
        self.active: RunRecord | None = None
        self.coming = 0
        """How many messages for this lane are being written to the ledger."""
        self.overflow = Overflow()
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

    async def stop(self) -> None:
        self._waiting.clear()
        self._jobs = 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def may_share(records: Sequence[RunRecord]) -> bool:
    """Tells whether one run may answer all these messages: same destination, same rights for its commands."""
    return same_destination([one.row.route for one in records]) and same_rights([one.row.body for one in records])


def _is_collectable(item: RunRecord | _Job) -> TypeGuard[RunRecord]:
    return isinstance(item, RunRecord) and item.queued and item.queue.mode == "collect"


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
