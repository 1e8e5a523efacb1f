"""The commands that run or ran lately: who may see them, how they ended, and when they are forgotten."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Container

from openclaw.clock import Clock, SystemClock
from openclaw.tools.base import ToolError
from openclaw.tools.shell_process import CommandOutput, ShellCommand, ShellProcess, survivors

log = logging.getLogger("openclaw.tools.processes")

MAX_RUNNING = 64
MAX_FINISHED = 64
NOTIFY_TAIL_CHARS = 400
COUNT_EVERY_S = 0.2
"""How often the processes of a command are counted whose number the kernel does not limit."""


class ProcessSession:
    """One command, from its start until it is forgotten."""

    def __init__(self, slug: str, scope: str, command: ShellCommand, process: ShellProcess, now_ms: int) -> None:
        self.id = slug
        self.scope = scope
        self.command = command
        self.process = process
        self.started_at = now_ms
        self.ended_at: int | None = None
        self.backgrounded = False
        self.timed_out = False
        self.too_many = False
        """It was ended because it had too many processes."""
        self.killed = False
        """True if the command was ended on request, so that nobody needs to be told."""
        self.notify: Callable[[str], None] | None = None
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> CommandOutput:
        return self.process.output

    @property
    def status(self) -> str:
        if not self.ended.is_set():
            return "running"
        return "completed" if self.process.exit_code == 0 and not self.timed_out else "failed"

    @property
    def exit_signal(self) -> str | None:
        code = self.process.exit_code
        if code is None or code >= 0:
            return None
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def how_it_ended(self) -> str:
        if self.exit_signal:
            return f"signal {self.exit_signal}"
        return "code ?" if self.process.exit_code is None else f"code {self.process.exit_code}"


class ProcessRegistry:
    """All commands of one Gateway. ``close`` ends every command that still runs."""

    def __init__(self, *, clock: Clock | None = None, cleanup_ms: int = 1_800_000) -> None:
        self.clock = clock or SystemClock()
        self.cleanup_ms = cleanup_ms
        self._running: dict[str, ProcessSession] = {}
        self._finished: dict[str, ProcessSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._closed = False

    async def start(self, command: ShellCommand, *, scope: str, max_output_chars: int = 200_000) -> ProcessSession:
        """Starts a command. Raises ``ToolError`` if too many are running and ``OSError`` if it cannot be started."""
        self._sweep()
        if self._closed:
            raise ToolError("The Gateway is shutting down; no command can be started")
        if len(self._running) + self._starting >= MAX_RUNNING:
            raise ToolError(f"{MAX_RUNNING} commands are running already; end some with process kill first")
        self._starting += 1
        try:
            process = await ShellProcess.start(command, CommandOutput(max_output_chars), self.clock)
        finally:
            self._starting -= 1
        slug = new_slug(self._running.keys() | self._finished.keys())
        session = ProcessSession(slug, scope, command, process, self.clock.now_ms())
        self._running[slug] = session
        task = asyncio.create_task(self._supervise(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            await self.stop(session)
            raise ToolError("The Gateway is shutting down; the command was ended")
        return session

    def get(self, scope: str, slug: str) -> ProcessSession | None:
        """Finds a background command by the session that started it. Commands of other sessions are not found."""
        self._sweep()
        session = self._running.get(slug) or self._finished.get(slug)
        return session if session and session.backgrounded and session.scope == scope else None

    def list(self, scope: str) -> list[ProcessSession]:
        """The background commands of one session, newest first."""
        self._sweep()
        every = [*self._running.values(), *self._finished.values()]
        visible = [session for session in every if session.backgrounded and session.scope == scope]
        return sorted(visible, key=lambda session: session.started_at, reverse=True)

    def move_to_background(self, session: ProcessSession, notify: Callable[[str], None] | None) -> None:
        session.backgrounded = True
        session.notify = notify
        if session.ended.is_set():
            self._remember(session)

    async def stop(self, session: ProcessSession) -> None:
        """Ends the command and every process it started."""
        session.killed = True
        await session.process.stop()
        await session.ended.wait()

    def forget(self, session: ProcessSession) -> None:
        self._finished.pop(session.id, None)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(self.stop(session) for session in [*self._running.values()]))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _supervise(self, session: ProcessSession) -> None:
        timeout = session.command.timeout
        guards = [asyncio.create_task(self._expire(session, timeout))] if timeout else []
        if session.command.most_processes:
            guards.append(asyncio.create_task(self._count(session)))
        try:
            await session.process.finished.wait()
        finally:
            for guard in guards:
                guard.cancel()
            session.ended_at = self.clock.now_ms()
            self._running.pop(session.id, None)
            session.ended.set()
        if session.backgrounded:
            self._remember(session)
            self._announce(session)

    async def _expire(self, session: ProcessSession, timeout: float) -> None:
        await self.clock.sleep(timeout)
        session.timed_out = True
        await session.process.stop()

    async def _count(self, session: ProcessSession) -> None:
        while len(await asyncio.to_thread(survivors, session.pid)) <= session.command.most_processes:
            await self.clock.sleep(COUNT_EVERY_S)
        session.too_many = True
        await session.process.stop()

    def _announce(self, session: ProcessSession) -> None:
        if session.notify is None or session.killed:
            return
        tail = " ".join(session.output.tail(NOTIFY_TAIL_CHARS).split())
        text = f"Exec {session.status} ({session.id[:8]}, {session.how_it_ended()})"
        try:
            session.notify(f"{text} :: {tail}" if tail else text)
        except Exception:
            log.exception("the end of background process %s could not be announced", session.id)

    def _remember(self, session: ProcessSession) -> None:
        self._finished[session.id] = session
        while len(self._finished) > MAX_FINISHED:
            self._finished.pop(next(iter(self._finished)))

    def _sweep(self) -> None:
        horizon = self.clock.now_ms() - self.cleanup_ms
        for slug, session in [*self._finished.items()]:
            if (session.ended_at or 0) < horizon:
                del self._finished[slug]


_FIRST_WORDS = (
    "amber brave brisk calm clear cool crisp dawn deep eager early fair fast fine firm fond fresh glad gold grand "
    "green keen kind light live lucky mild neat new nimble noble plain proud quick quiet rapid rare ready rich round "
    "salty sharp silent silver smart soft solid steady still sunny swift tidy tender tiny vast vivid warm wild wise"
)
_SECOND_WORDS = (
    "atlas bay beach bird bloom breeze brook canyon cedar claw cloud comet coral cove crab creek crest daisy delta "
    "dune ember falcon fern field fjord forest glade gulf harbor haven heron island kelp lagoon lake leaf lobster "
    "meadow mist moss nexus ocean orbit otter palm pebble pine reef ridge river sage shell shore slope star stone "
    "summit tide trail valley wave willow"
)
_FIRST, _SECOND = _FIRST_WORDS.split(), _SECOND_WORDS.split()


def new_slug(taken: Container[str]) -> str:
    for _ in range(32):
        slug = f"{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}"
        if slug not in taken:
            return slug
    return f"{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}-{secrets.token_hex(3)}"
