"""The lane of a session: its queue, and the rules by which messages wait, are merged and are dropped."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import msgspec

from openclaw.clock import Backoff, Clock, wait_within
from openclaw.config.store import ConfigStore
from openclaw.messages import Route
from openclaw.runs.queue_settings import QueueSettings
from openclaw.runs.run import Run
from openclaw.sessions.keys import is_subagent, kind_of
from openclaw.sessions.prompt_prefix import COLLECTED, newest_text
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import MessageBody

log = logging.getLogger("openclaw.runs")
SUMMARY_LENGTH = 160
BACKLOG = ":backlog"
"""Ends the run id of the second turn that ``steer-backlog`` gives a message."""
OVERFLOW = ":overflow"
"""Ends the run id of the turn before a message in which the agent reads which messages were dropped."""


def route_key(route: Route) -> tuple[str, ...]:
    """Names the destination of a reply. Two messages may share an answer only when their keys are equal."""
    thread = "" if route.thread_id is None else str(route.thread_id)
    return route.channel, route.to, route.account_id or "", thread


def collected_prompt(prompts: Sequence[str], overflow: str = "") -> str:
    blocks = [COLLECTED, *([overflow] if overflow else [])]
    blocks += [f"---\nQueued #{number}\n{prompt}" for number, prompt in enumerate(prompts, 1)]
    return "\n\n".join(blocks)


def with_dropped(body: MessageBody, dropped: MessageBody, most_lines: int) -> MessageBody:
    """The body of the message that takes the beginning of a dropped one over, and what that one had taken over."""
    lines = [*dropped.dropped_lines, summary_line(newest_text(dropped.prompt or "")), *body.dropped_lines]
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


T = TypeVar("T")
AGAIN = Backoff(initial_s=0.25, max_s=30.0, jitter=0.0)
"""How long a lane waits before it tries a run again that could not begin."""


Housekeeping: TypeAlias = Callable[[], Awaitable[None]]
"""Work on the session. No run is active while it is done."""


class Lane:
    """The single writer of a session: at most one run or one piece of housekeeping at a time, first come first served.

    ``perform`` runs a batch of messages, of which the last one gives the run its name. If it raises, the lane keeps the
    messages and tries again after a pause.
    """

    def __init__(self, key: str, clock: Clock, perform: Callable[[Lane, list[Run]], Awaitable[None]]) -> None:
        self.key = key
        self.active: Run | None = None
        self.coming = 0
        """How many messages for this lane are being written to the ledger."""
        self._clock = clock
        self._perform = perform
        self._waiting: deque[Run | Housekeeping] = deque()
        self._jobs = 0
        """How many items in ``_waiting`` are housekeeping."""
        self._task: asyncio.Task[None] | None = None
        self._last_added_at = 0.0
        """When the last message came, on the monotonic clock."""
        self._changed = asyncio.Event()
        """Set whenever ``_waiting`` changes."""
        self._promised: set[asyncio.Future[Any]] = set()
        """What the callers of ``exclusively`` wait for."""
        self._failures = 0
        """How often ``perform`` has raised since it last succeeded."""
        self._one_by_one = False
        """Each of the messages that wait now gets a run of its own."""
        self._dropped = False
        """No run begins any more. An interrupted run still returns the messages that it did not accept."""

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
    def waiting(self) -> list[Run]:
        return [item for item in self._waiting if isinstance(item, Run)]

    @property
    def runs(self) -> list[Run]:
        """The active run first, then the waiting ones."""
        return [*([self.active] if self.active else []), *self.waiting]

    def add(self, run: Run, settings: QueueSettings, *, first: bool = False) -> bool:
        """Adds a run, with ``first`` before all others that wait. Returns True when it has to wait."""
        behind = self.busy
        run.queue, run.queued = settings, behind
        self._last_added_at = self._clock.monotonic()
        if first:
            self._waiting.appendleft(run)
        else:
            self._waiting.append(run)
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

    def withdraw(self, run: Run) -> bool:
        """Takes a waiting run out of the lane. Returns False when it does not wait."""
        try:
            self._waiting.remove(run)
        except ValueError:
            return False
        self._changed.set()
        return True

    def promote(self, run: Run) -> bool:
        """Lets a waiting run go next, without other messages and without a pause. False when it does not wait."""
        if not self.withdraw(run):
            return False
        run.queued = False
        self._waiting.appendleft(run)
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
                elif batch and not await self._performed(batch):
                    await self._wait_for_retry()
        finally:
            self._task = None
            if self._waiting:  # An error ended this task before the queue was empty.
                self._start()

    async def _performed(self, batch: list[Run]) -> bool:
        """Runs the batch. Returns False when that failed; the messages then wait again, in their old order."""
        self.active = batch[-1]
        try:
            await self._perform(self, batch)
        except Exception as error:
            log.warning("run %s of %s is tried again: %s", batch[-1].run_id, self.key, error, exc_info=error)
            self._failures += 1
            if not self._dropped:
                left = [
                    unfinished
                    for unfinished in batch
                    if not unfinished.ended and unfinished.absorbed_by is None and unfinished not in self._waiting
                ]
                for run in left:
                    run.postpone()
                self._waiting.extendleft(reversed(left))
            return False
        finally:
            self.active = None
        self._failures = 0
        return True

    async def _wait_for_retry(self) -> None:
        """Waits a while, unless somebody takes the message that failed out of the lane or puts another before it."""
        failed = self._waiting[0] if self._waiting else None
        due = self._clock.monotonic() + AGAIN.delay_s(self._failures, lambda: 0.0)
        while self._waiting and self._waiting[0] is failed and (left_s := due - self._clock.monotonic()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_s, self._clock)

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

    def _next(self) -> list[Run] | Housekeeping:
        if not self._waiting:
            return []
        head = self._waiting.popleft()
        if not isinstance(head, Run):
            self._jobs -= 1
            return head
        if not _is_collectable(head):
            return [head]
        together: list[Run] = []
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


def may_share(runs: Sequence[Run]) -> bool:
    """Tells whether one run may answer all these messages: same destination, same rights for its commands."""
    bodies = [run.row.body for run in runs]
    rights = [(body.exec, body.elevated, body.elevated_allowed, body.by_owner) for body in bodies]
    return len({route_key(run.row.route) for run in runs}) <= 1 and all(run == rights[0] for run in rights)


def _is_collectable(item: Run | Housekeeping) -> TypeGuard[Run]:
    if not isinstance(item, Run) or item.row.body.internal:
        return False  # What nobody wrote is not mixed with what people wrote.
    return item.collected


# How many runs there are at once

RunKind: TypeAlias = Literal["main", "subagent", "cron"]


class ConcurrencyLimits:
    """The limits on runs of each kind. Runs wait for their turn, the first to come first.

    A changed limit holds from the next run on. ``main`` has no limit unless one is configured: a run that waits for its
    model costs almost nothing, and with a limit one person's slow session would delay another's.
    """

    def __init__(self, config: ConfigStore) -> None:
        self._config = config
        self._semaphores: dict[RunKind, tuple[int, asyncio.Semaphore]] = {}
        """A semaphore for each kind that has a limit, with the limit it was made for."""

    def turn(self, session_key: str) -> asyncio.Semaphore | None:
        """Return the semaphore that a run of this session enters, or None if its kind has no limit."""
        kind = run_kind(session_key)
        limit = self._limit(kind)
        if limit is None:
            return None
        entry = self._semaphores.get(kind)
        if entry is None or entry[0] != limit:
            entry = self._semaphores[kind] = (limit, asyncio.Semaphore(limit))
        return entry[1]

    def _limit(self, kind: RunKind) -> int | None:
        config = self._config.current
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
