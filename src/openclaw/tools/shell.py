"""One shell command as a process of its own session, read without blocking and stopped as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from openclaw.clock import Clock
from openclaw.tools.output import Output
from openclaw.tools.process_tree import signal_tree, survivors

PTY_COLUMNS, PTY_ROWS = 120, 30
STOP_GRACE_S = 0.5
WRITE_PATIENCE_S = 5.0
_CHUNK = 64 * 1024
_POLL_S = 0.025


class Spawned(NamedTuple):
    child: subprocess.Popen[bytes]
    output_fd: int
    input_fd: int | None
    is_pty: bool


class ShellProcess:
    """Running until the shell has exited and nobody holds its output open any more.

    The shell is reaped only then: until that moment its number, and the group named by it, cannot belong to others.
    """

    def __init__(self, spawned: Spawned, output: Output, clock: Clock) -> None:
        self.pid = spawned.child.pid
        self.is_pty = spawned.is_pty
        self.output = output
        self.exit_code: int | None = None
        """Negative for a signal, as in ``subprocess``."""
        self.exited = asyncio.Event()
        self.finished = asyncio.Event()
        self._child = spawned.child
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._output_fd: int | None = spawned.output_fd
        self._input_fd = spawned.input_fd
        self._stop_task: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        os.set_blocking(spawned.output_fd, False)
        if spawned.input_fd is not None:
            os.set_blocking(spawned.input_fd, False)
        watch_exit(self._loop, spawned.child, self._on_exit)
        self._loop.add_reader(spawned.output_fd, self._on_output)

    @classmethod
    async def start(
        cls, command: str, *, cwd: str, env: Mapping[str, str], use_pty: bool, output: Output, clock: Clock
    ) -> ShellProcess:
        spawning = asyncio.ensure_future(asyncio.to_thread(spawn, command, cwd, env, use_pty))
        try:
            return cls(await asyncio.shield(spawning), output, clock)
        except (asyncio.CancelledError, OSError):
            # The thread cannot be interrupted: whatever it still brings up is ended at once.
            spawning.add_done_callback(_discard)
            raise

    async def write(self, data: bytes) -> None:
        """Raises ``BrokenPipeError`` when input is closed, ``TimeoutError`` when the process does not read."""
        async with self._write_lock:
            deadline = self._clock.monotonic() + WRITE_PATIENCE_S
            view = memoryview(data)
            while view:
                if self._input_fd is None:
                    raise BrokenPipeError(errno.EPIPE, "input is closed")
                try:
                    view = view[os.write(self._input_fd, view[:_CHUNK]) :]
                except BlockingIOError:
                    if self._clock.monotonic() > deadline:
                        raise TimeoutError("the process does not read its input") from None
                    await self._clock.sleep(_POLL_S)

    def close_input(self) -> bool:
        """False for a terminal, which has no end of input but Ctrl-D."""
        if self.is_pty or self._input_fd is None:
            return False
        os.close(self._input_fd)
        self._input_fd = None
        return True

    async def stop(self) -> None:
        """Ends the whole tree: asks with SIGTERM, insists with SIGKILL. Going on even if the caller is cancelled."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        if self.finished.is_set():
            return
        members = await asyncio.to_thread(signal_tree, self.pid, signal.SIGTERM)
        deadline = self._clock.monotonic() + STOP_GRACE_S
        while left := await asyncio.to_thread(survivors, self.pid, members):
            if self._clock.monotonic() >= deadline:
                await asyncio.to_thread(signal_tree, self.pid, signal.SIGKILL, {**members, **left})
                break
            await self._clock.sleep(_POLL_S)
        # A descendant that got away may hold the output open; we do not wait for it.
        deadline = self._clock.monotonic() + STOP_GRACE_S
        while not (self.exited.is_set() and self._output_fd is None) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)
        self._finish()

    def _on_output(self) -> None:
        if self._output_fd is None:
            return
        try:
            chunk = os.read(self._output_fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""  # a terminal whose other side closed says EIO
        if chunk:
            self.output.feed(chunk)
            return
        self._close_output()
        self._finish_if_complete()

    def _on_exit(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.exited.set()
        if self.finished.is_set():
            self._child.wait()
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self.exited.is_set() and self._output_fd is None and self._stop_task is None:
            self._finish()

    def _finish(self) -> None:
        if self.finished.is_set():
            return
        if self.exited.is_set():
            self._child.wait()
        self._close_output()
        if self._input_fd is not None:
            os.close(self._input_fd)
            self._input_fd = None
        self.finished.set()

    def _close_output(self) -> None:
        if self._output_fd is None:
            return
        self._loop.remove_reader(self._output_fd)
        os.close(self._output_fd)
        self._output_fd = None


def spawn(command: str, cwd: str, env: Mapping[str, str], use_pty: bool) -> Spawned:
    """Blocking. Output and errors share one pipe, so that they keep their order."""
    argv = [find_shell(os.environ.get("SHELL", "")), "-c", command]
    return _spawn_on_terminal(argv, cwd, env) if use_pty else _spawn_on_pipes(argv, cwd, env)


def _spawn_on_pipes(argv: list[str], cwd: str, env: Mapping[str, str]) -> Spawned:
    with contextlib.ExitStack() as on_error, contextlib.ExitStack() as ours:
        output_read, output_write = os.pipe()
        on_error.callback(os.close, output_read)
        ours.callback(os.close, output_write)
        input_read, input_write = os.pipe()
        on_error.callback(os.close, input_write)
        ours.callback(os.close, input_read)
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=input_read, stdout=output_write, stderr=output_write, start_new_session=True
        )
        on_error.pop_all()
        return Spawned(child, output_read, input_write, is_pty=False)


def _spawn_on_terminal(argv: list[str], cwd: str, env: Mapping[str, str]) -> Spawned:
    with contextlib.ExitStack() as on_error, contextlib.ExitStack() as ours:
        master, terminal = pty.openpty()
        on_error.callback(os.close, master)
        ours.callback(os.close, terminal)
        input_fd = os.dup(master)
        on_error.callback(os.close, input_fd)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", PTY_ROWS, PTY_COLUMNS, 0, 0))
        # A session leader that opens a terminal gets it as its controlling one; a small sh does that opening, since
        # running Python between fork and exec is not safe in a process with threads.
        opener = ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(terminal)]
        child = subprocess.Popen(
            [*opener, *argv],
            cwd=cwd,
            env={"TERM": "xterm-256color", **env},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        on_error.pop_all()
        return Spawned(child, master, input_fd, is_pty=True)


def find_shell(preferred: str) -> str:
    """The user's shell when it speaks POSIX, else bash, else sh."""
    if preferred and Path(preferred).name not in ("fish", "nologin", "false") and os.access(preferred, os.X_OK):
        return preferred
    return shutil.which("bash") or "/bin/sh"


def watch_exit(loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], exited: Callable[[int], None]) -> None:
    """Calls ``exited`` on the loop with the exit code, leaving the child to be reaped later where possible."""
    if not hasattr(os, "pidfd_open"):
        _watch_in_thread(loop, child, exited)
        return
    pidfd = os.pidfd_open(child.pid)

    def ready() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        result = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            exited(child.wait())
        else:
            exited(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status)

    loop.add_reader(pidfd, ready)


def _watch_in_thread(
    loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], exited: Callable[[int], None]
) -> None:
    def wait() -> None:
        code = child.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(exited, code)

    threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()


def _discard(spawning: asyncio.Future[Spawned]) -> None:
    if spawning.cancelled() or spawning.exception() is not None:
        return
    spawned = spawning.result()
    signal_tree(spawned.child.pid, signal.SIGKILL)
    for fd in (spawned.output_fd, spawned.input_fd):
        if fd is not None:
            os.close(fd)
    threading.Thread(target=spawned.child.wait, daemon=True).start()
