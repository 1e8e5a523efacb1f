"""Runs a shell command in its own process session, reads its output without blocking, and stops its process tree."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import fcntl
import logging
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from openclaw.clock import Clock
from openclaw.tools.exec.binding import Binding, Launch, held

log = logging.getLogger("openclaw.tools.processes")
PTY_COLUMNS, PTY_ROWS = 120, 30
STOP_GRACE_S = 0.5
WRITE_PATIENCE_S = 5.0
command_umask = -1
"""The file mode mask of commands. The Gateway's own is stricter, so it sets this at its start; -1 is its own."""
TAIL_CHARS = 2000
HEAD_BYTES = 32_000
"""Bytes of the beginning of an output that stay in memory."""
MOST_SPILLED = 50_000_000
"""Bytes of an output that are stored in its file."""
_WRITTEN_TOGETHER = 16
"""Reads that are written to the file together."""
_BYTES_PER_CHAR = 2
_CHUNK = 64 * 1024
_POLL_S = 0.025
_ESCAPE = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system command: title, link
    r"|[PX^_][^\x1b]*\x1b\\"  # device control string
    r"|\[[0-?]*[ -/]*[@-~]"  # control sequence: colour, cursor
    r"|[ -/]*[0-~])"  # everything else
)
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,512}\x1b?|[ -/]*)\Z")
_JUNK = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufff9-\ufffb\ufffe\uffff]")

Members = dict[int, int]
"""Start times by pid. They tell a process from a later one with the same pid."""


class ShellCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command with everything that is needed to start it."""

    text: str
    cwd: str
    env: Mapping[str, str]
    use_pty: bool
    timeout: float | None
    binding: Binding | None = None
    """The files that it was allowed with. With a program in it, no shell reads the text."""
    inside: tuple[str, ...] = ()
    """The command line that runs the text in a sandbox. The text then never runs outside of it."""
    takes_input: bool = False
    """Whether its input stays open. Otherwise it ends at once, so that no program waits for it. A terminal has one."""
    most_processes: int = 0
    """The registry ends a command with more processes than this. 0: the kernel counts them, or nobody does."""


class Spawned(NamedTuple):
    child: subprocess.Popen[bytes]
    output_fd: int
    input_fd: int | None
    is_pty: bool


class ShellProcess:
    """A shell command. It is finished when the shell has exited and no process holds its output open.

    The shell is reaped only when it is finished. Until then its pid and process group id cannot be used again.
    """

    def __init__(self, spawned: Spawned, output: CommandOutput, clock: Clock) -> None:
        self.pid = spawned.child.pid
        self.is_pty = spawned.is_pty
        self.output = output
        self.exit_code: int | None = None
        """Negative if a signal ended the shell, as in ``subprocess``."""
        self.exited = asyncio.Event()
        self.finished = asyncio.Event()
        self._child = spawned.child
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._output_fd: int | None = spawned.output_fd
        self._input_fd = spawned.input_fd
        self._stop_task: asyncio.Task[None] | None = None
        self._spilling: asyncio.Future[None] | None = None
        self._write_lock = asyncio.Lock()
        os.set_blocking(spawned.output_fd, False)
        if spawned.input_fd is not None:
            os.set_blocking(spawned.input_fd, False)
        watch_exit(self._loop, spawned.child, self._on_exit)
        self._loop.add_reader(spawned.output_fd, self._on_output)

    @classmethod
    async def start(cls, command: ShellCommand, output: CommandOutput, clock: Clock) -> ShellProcess:
        spawning = asyncio.ensure_future(asyncio.to_thread(spawn, command))
        try:
            return cls(await asyncio.shield(spawning), output, clock)
        except (asyncio.CancelledError, OSError):
            # The thread cannot be interrupted, so a process that it still starts is ended at once.
            spawning.add_done_callback(_discard)
            raise

    async def write(self, data: bytes) -> None:
        """Writes to the input. Raises ``BrokenPipeError`` if it is closed, ``TimeoutError`` if nobody reads it."""
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

    def close_input(self) -> None:
        """Closes the input. The input of a terminal ends only with Ctrl-D."""
        if not self.is_pty and self._input_fd is not None:
            os.close(self._input_fd)
            self._input_fd = None

    async def stop(self) -> None:
        """Ends the process tree with SIGTERM, then with SIGKILL. It goes on even if the caller is cancelled."""
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
        # A process that left the tree may hold the output open. We do not wait for it.
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
            chunk = b""  # A terminal whose other side is closed raises EIO.
        if chunk:
            self.output.feed(chunk)
            if self.output.must_spill:
                # The command waits while its output is written to the disk.
                self._loop.remove_reader(self._output_fd)
                self._spilling = asyncio.ensure_future(asyncio.to_thread(self.output.spill))
                self._spilling.add_done_callback(self._read_on)
            return
        self._close_output()
        self._finish_if_complete()

    def _read_on(self, spilling: asyncio.Future[None]) -> None:
        if self._output_fd is not None and not spilling.cancelled():
            self._loop.add_reader(self._output_fd, self._on_output)

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


def spawn(command: ShellCommand) -> Spawned:
    """Starts the command. Blocks. Output and errors share one pipe, so that they keep their order."""
    # The user's shell if it understands POSIX syntax, otherwise bash, otherwise sh.
    shell = os.environ.get("SHELL", "")
    if not shell or Path(shell).name in ("fish", "nologin", "false") or not os.access(shell, os.X_OK):
        shell = shutil.which("bash") or "/bin/sh"
    if command.inside:
        return _start(Launch(argv=[*command.inside], cwd="/"), command)
    by_shell = [shell, "-c", command.text]
    if command.binding is None:
        return _start(Launch(argv=by_shell, cwd=command.cwd), command)
    with held(command.binding, command.cwd, terminal=command.use_pty) as launch:
        return _start(launch if launch.argv else msgspec.structs.replace(launch, argv=by_shell), command)


def _start(launch: Launch, command: ShellCommand) -> Spawned:
    argv, env = launch.argv, command.env
    with contextlib.ExitStack() as on_error, contextlib.ExitStack() as ours:
        if command.use_pty:
            output_fd, terminal = pty.openpty()
            on_error.callback(os.close, output_fd)
            ours.callback(os.close, terminal)
            input_fd = os.dup(output_fd)
            on_error.callback(os.close, input_fd)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", PTY_ROWS, PTY_COLUMNS, 0, 0))
            # A session leader that opens a terminal gets it as its controlling terminal. A small sh opens it, because
            # running Python between fork and exec is not safe in a process with threads.
            argv = ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(terminal), *argv]
            env = {"TERM": "xterm-256color", **env}
            stdin, stdout = terminal, terminal
        else:
            output_fd, stdout = os.pipe()
            on_error.callback(os.close, output_fd)
            ours.callback(os.close, stdout)
            input_fd = None
            stdin: int = subprocess.DEVNULL
            if command.takes_input:
                stdin, input_fd = os.pipe()
                on_error.callback(os.close, input_fd)
                ours.callback(os.close, stdin)
        child = subprocess.Popen(
            argv,
            executable=None if command.use_pty else launch.executable,
            pass_fds=launch.keep,
            cwd=launch.cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
            start_new_session=True,
            umask=command_umask,
        )
        on_error.pop_all()
        return Spawned(child, output_fd, input_fd, is_pty=command.use_pty)


def watch_exit(loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], exited: Callable[[int], None]) -> None:
    """Calls ``exited`` on the loop with the exit code. Where possible, the child is not reaped yet."""
    if not hasattr(os, "pidfd_open"):

        def wait() -> None:
            code = child.wait()
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(exited, code)

        threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()
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


def _discard(spawning: asyncio.Future[Spawned]) -> None:
    if spawning.cancelled() or spawning.exception() is not None:
        return
    spawned = spawning.result()
    signal_tree(spawned.child.pid, signal.SIGKILL)
    for fd in (spawned.output_fd, spawned.input_fd):
        if fd is not None:
            os.close(fd)
    threading.Thread(target=spawned.child.wait, daemon=True).start()


def survivors(leader: int, remembered: Members | None = None) -> Members:
    """The live processes of the tree, and those that are remembered from before their parent died.

    Programs with their own job control leave the group, and some leave the session, but they are still descendants. The
    result is empty on systems without ``/proc``. There only the group can be reached.
    """
    table = _process_table()
    tree = {leader}
    grew = True
    while grew:
        pids = tree | {pid for pid, row in table.items() if tree & {row.parent, row.group, row.session}}
        grew, tree = len(pids) > len(tree), pids
    tree |= {pid for pid, started in (remembered or {}).items() if pid in table and table[pid].started == started}
    return {pid: table[pid].started for pid in tree if pid in table and not table[pid].dead}


def signal_tree(leader: int, number: signal.Signals, remembered: Members | None = None) -> Members:
    """Signals the group and every other process of the tree. Call it only while the leader has not been reaped."""
    members = survivors(leader, remembered)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return members


class _ProcessRow:
    __slots__ = ("dead", "group", "parent", "session", "started")

    def __init__(self, stat: str) -> None:
        # The command name is in parentheses and may contain spaces and parentheses itself.
        fields = stat[stat.rindex(")") + 2 :].split()
        self.dead = fields[0] in ("Z", "X")
        self.parent, self.group, self.session = int(fields[1]), int(fields[2]), int(fields[3])
        self.started = int(fields[19])


def _process_table() -> dict[int, _ProcessRow]:
    table: dict[int, _ProcessRow] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    table[int(entry.name)] = _ProcessRow(Path(entry.path, "stat").read_text(errors="replace"))
    return table


def clean(text: str) -> str:
    """The text without escape sequences and control characters. Of an overwritten line, the last version stays."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _JUNK.sub("", text)


class CommandOutput:
    """What a command printed: its beginning and its end in memory, and all of it in a file once memory is too small.

    Memory stays below a few times ``max_chars``, however much is printed. The file has no name: it is gone with the
    process.
    """

    def __init__(self, max_chars: int, folder: Path | None = None) -> None:
        """``folder`` is where the file is. Without it, only the beginning and the end are stored."""
        self.max_chars = max_chars
        self.total_bytes = 0
        self._keep = max_chars * _BYTES_PER_CHAR
        self._head = bytearray()
        self._raw = bytearray()
        self._drained = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._cleaned: tuple[int, str] = (0, "")
        self._folder = folder
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._unwritten: deque[bytes] = deque()
        """Filled on the event loop and emptied in threads."""
        self._spills = False
        self.spilled_bytes = 0
        """How many bytes, from the first one, are in the file."""

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        self._raw += chunk
        if len(self._head) < HEAD_BYTES:
            self._head += chunk[: HEAD_BYTES - len(self._head)]
        if self._spills:
            self._unwritten.append(chunk)
        if len(self._raw) > 2 * self._keep:
            if not self._spills and self._folder is not None and len(self._raw) == self.total_bytes:
                self._spills = True
                self._unwritten.append(bytes(self._raw))
            del self._raw[: len(self._raw) - self._keep]

    @property
    def must_spill(self) -> bool:
        return len(self._unwritten) >= _WRITTEN_TOGETHER

    def spill(self) -> None:
        """Write what was printed since the last call to the file. After an error the rest is not written. Blocks."""
        with self._lock:
            while self._unwritten:
                chunk = self._unwritten.popleft()[: MOST_SPILLED - self.spilled_bytes]
                if not chunk or not self._spills:
                    self._spills = False
                    continue
                try:
                    if self._file is None:
                        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as this
                    self._file.write(chunk)
                    self._file.flush()
                except OSError as error:
                    log.warning("the output of a command is not stored any further: %s", error)
                    self._spills = False
                    continue
                self.spilled_bytes += len(chunk)

    def whole(self) -> bytes:
        """Everything that was printed, or its beginning if that is too much or could not be stored. Blocks."""
        if self.total_bytes == len(self._raw):
            return bytes(self._raw)
        self.spill()
        with self._lock:
            if self._file is None:
                return b""
            self._file.seek(0)
            data = self._file.read(self.spilled_bytes)
            self._file.seek(0, os.SEEK_END)
            return data

    @property
    def truncated(self) -> bool:
        return self.exceeds(self.max_chars)

    def exceeds(self, chars: int) -> bool:
        """Whether more than so many characters were printed."""
        return self.total_bytes > len(self._raw) or self.total_bytes > self._keep or len(self._all()) > chars

    def text(self) -> str:
        """The last ``max_chars`` characters."""
        return self._all()[-self.max_chars :]

    def ends(self, head: int, tail: int) -> tuple[str, str]:
        """The first and the last characters."""
        return clean(_decode(bytes(self._head)))[:head], self._all()[-tail:]

    def tail(self, chars: int = TAIL_CHARS) -> str:
        return clean(_decode(bytes(self._raw[-chars * 8 :])))[-chars:]

    def drain(self, *, final: bool = False) -> str:
        """The output since the last call. An unfinished character or escape sequence is kept for the next call."""
        start = self.total_bytes - len(self._raw)
        lost = max(0, start - self._drained)
        fresh = bytes(self._raw[max(0, self._drained - start) :])
        self._drained = self.total_bytes
        if lost:
            self._decoder.reset()
            self._held = ""
        text = self._held + self._decoder.decode(fresh, final)
        self._held = ""
        if not final and (unfinished := _OPEN_ESCAPE.search(text, max(0, len(text) - 600))):
            text, self._held = text[: unfinished.start()], unfinished.group()
        text = clean(text)
        if lost or len(text) > self.max_chars:
            return f"[Output cut here: more came than is kept]\n{text[-self.max_chars :]}"
        return text

    def _all(self) -> str:
        if self._cleaned[0] != self.total_bytes:
            self._cleaned = self.total_bytes, clean(_decode(bytes(self._raw[-self._keep :])))
        return self._cleaned[1]


def _decode(raw: bytes) -> str:
    # The cut may be inside a character, so its remaining continuation bytes are dropped.
    start = 0
    while start < min(3, len(raw)) and raw[start] & 0xC0 == 0x80:
        start += 1
    return raw[start:].decode("utf-8", "replace")
