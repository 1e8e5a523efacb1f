"""One session's lane: its runs and housekeeping happen one after the other, in the order they were asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from openclaw.agent.loop import Steered
from openclaw.clock import Clock, wait_within
from openclaw.messages import UserMessage
from openclaw.runs.queue import QueueSettings, same_destination, same_rights, summary_line
from openclaw.runs.run_index import RunRecord

T = TypeVar("T")


class _Job:
    """Housekeeping that must not meet a run."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work


class Overflow:
    """What gave way in a full queue, to be told to the agent once."""

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
    """The single writer of a session. Nothing is locked while a run waits for a model or a tool."""

    def __init__(self, key: str, clock: Clock, perform: Callable[[Lane, list[RunRecord]], Awaitable[None]]) -> None:
        self.key = key
        self.active: RunRecord | None = None
        self.coming = 0
        """Messages for this lane that are being accepted."""
        self.overflow = Overflow()
        self._clock = clock
        self._perform = perform
        self._waiting: deque[RunRecord | _Job] = deque()
        self._jobs = 0
        """How many of them are housekeeping."""
        self._task: asyncio.Task[None] | None = None
        self._last_added_at = 0.0
        self._changed = asyncio.Event()
        self._one_by_one = False
        """Of what waits now, each message gets a run of its own."""

    @property
    def unused(self) -> bool:
        """Nothing runs, waits, or is on its way here."""
        return self._task is None and self.coming == 0

    @property
    def busy(self) -> bool:
        """Whether a new message has to wait for others. A run that was stopped and housekeeping only take a moment."""
        active = self.active
        working = active is not None and not active.ended and not active.abort.aborted
        return working or self.depth > 0

    @property
    def depth(self) -> int:
        """How many messages wait."""
        return len(self._waiting) - self._jobs

    @property
    def waiting(self) -> list[RunRecord]:
        return [item for item in self._waiting if isinstance(item, RunRecord)]

    @property
    def records(self) -> list[RunRecord]:
        """The running one first, then those that wait."""
        return [*([self.active] if self.active else []), *self.waiting]

    def add(self, record: RunRecord, settings: QueueSettings, *, first: bool = False) -> bool:
        """True when the run waits behind something else. ``first``: before everything else that waits."""
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
        """Does something to the session when its turn comes; nothing else of the session runs meanwhile."""
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
        """Takes a run that has not begun out of the lane."""
        try:
            self._waiting.remove(record)
        except ValueError:
            return False
        self._changed.set()
        return True

    def promote(self, record: RunRecord) -> bool:
        """Lets a waiting run go next, alone and at once."""
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
            if self._waiting:  # Something came in while the last of it ended, or an error left it behind.
                self._start()

    async def _run(self, batch: list[RunRecord]) -> None:
        self.active = batch[-1]
        try:
            await self._perform(self, batch)
        finally:
            self.active = None

    async def _wait_for_pause(self) -> None:
        """Messages to be collected wait until the person has paused."""
        while self._waiting:
            head = self._waiting[0]
            if not isinstance(head, RunRecord) or not head.queued or head.queue.mode != "collect":
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
        if not head.queued or head.queue.mode != "collect":
            return [head]
        together = _leading(self._waiting)
        if self._one_by_one or not may_share([head, *together]):
            # Once two of them must be answered apart, all that wait are: who gets which answer stays plain.
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
    """Whether one run may answer them all: in the same place, with the same rights for its commands."""
    return same_destination([one.row.route for one in records]) and same_rights([one.row.body for one in records])


def _leading(items: Sequence[RunRecord | _Job]) -> list[RunRecord]:
    """The waiting runs that may be collected, up to the first thing that is something else."""
    found: list[RunRecord] = []
    for item in items:
        if isinstance(item, _Job) or not item.queued or item.queue.mode != "collect":
            break
        found.append(item)
    return found


class RunInbox:
    """Handed to the loop; the lane puts steered messages in, one is taken at each poll."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RunRecord, UserMessage]] = deque()
        self.open = True
        """False once the loop has asked for the last time: what comes later needs a run of its own."""

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
        """Ends the inbox and gives back what the run never took."""
        self.open = False
        left = [record for record, _ in self._waiting]
        self._waiting.clear()
        return left
