"""The commands that run or ran lately, and the ``process`` tool for those that ``exec`` left in the background.

The registry says who may see a command, how it ended, and when it is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import signal
from collections.abc import Awaitable, Callable, Container
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from openclaw.clock import Clock, SystemClock, wait_within
from openclaw.text import clipped, short_duration
from openclaw.tools.arguments import RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.shell_process import TAIL_CHARS, CommandOutput, ShellCommand, ShellProcess, clean, survivors

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
        """True if the command was ended on request, so that nobody needs to be notified."""
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

    def facts(self) -> dict[str, Any]:
        """Return the facts about the command for clients."""
        return {
            "status": self.status,
            "sessionId": self.id,
            "pid": self.pid,
            "startedAt": self.started_at,
            "cwd": self.command.cwd,
        }

    def how_it_ended(self) -> str:
        if self.exit_signal:
            return f"signal {self.exit_signal}"
        return "code ?" if self.process.exit_code is None else f"code {self.process.exit_code}"


class ProcessRegistry:
    """All commands of one Gateway. ``close`` ends every command that still runs."""

    def __init__(
        self, *, clock: Clock | None = None, cleanup_ms: int = 1_800_000, spill_folder: Path | None = None
    ) -> None:
        """``spill_folder`` is where very long outputs are stored while their commands are known."""
        self._spill_folder = spill_folder
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
            process = await ShellProcess.start(command, CommandOutput(max_output_chars, self._spill_folder), self.clock)
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


DEFAULT_LOG_LINES = 200
MAX_POLL_WAIT_MS = 120_000
MAX_INPUT_BYTES = 1024 * 1024
_NAME_CHARS = 120


class ProcessArguments(ToolArguments):
    action: Annotated[str, Meta(description="list|poll|log|write|send-keys|submit|paste|kill|clear|remove")]
    session_id: Annotated[str, Meta(description="Which session, for all actions but list")] = ""
    data: Annotated[str, Meta(description="Text for write")] = ""
    eof: Annotated[bool, Meta(description="Close the input after write")] = False
    keys: Annotated[list[str], Meta(description="Keys such as Enter, C-c, Up")] = []
    hex: Annotated[list[str], Meta(description="Bytes for send-keys")] = []
    literal: Annotated[str, Meta(description="Text for send-keys")] = ""
    text: Annotated[str, Meta(description="Text for paste")] = ""
    bracketed: Annotated[bool, Meta(description="Paste in brackets (default true)")] = True
    offset: Annotated[int, Meta(description="First line of log, from 0")] | None = None
    limit: Annotated[int, Meta(description="Lines of log; without offset, the last ones")] | None = None
    timeout: Annotated[float, Meta(description="poll: milliseconds to wait for the end")] = 0


class ProcessTool(RecordTool[ProcessArguments]):
    name = "process"
    summary = "Manage background exec sessions"
    description = (
        "Manage running exec sessions: list, poll (new output; timeout waits), log (lines by offset/limit), "
        "write, send-keys, submit, paste, kill, clear, remove."
    )

    def __init__(self, processes: ProcessRegistry) -> None:
        self._processes = processes
        self._actions: dict[str, Callable[[ProcessSession, ProcessArguments], Awaitable[ToolResult]]] = {
            "poll": self._poll,
            "log": self._log,
            "write": self._write,
            "send-keys": self._send_keys,
            "submit": self._submit,
            "paste": self._paste,
            "kill": self._kill,
            "clear": self._clear,
            "remove": self._remove,
        }

    async def execute(self, arguments: ProcessArguments, context: ToolContext) -> ToolResult:
        action = arguments.action
        if action == "list":
            return self._list(context.process_scope)
        if action not in self._actions:
            return failed(f"Unknown action {action}; use list, {', '.join(self._actions)}")
        slug = arguments.session_id.strip()
        if not slug:
            return failed("sessionId is required for this action.")
        session = self._processes.get(context.process_scope, slug)
        if session is None:
            return failed(f"No session found for {slug}")
        return await self._actions[action](session, arguments)

    def _list(self, scope: str) -> ToolResult:
        sessions = self._processes.list(scope)
        now = self._processes.clock.now_ms()
        lines = [
            f"{session.id} {session.status:<9} {short_duration((session.ended_at or now) - session.started_at)} :: "
            f"{_name(session)}"
            for session in sessions
        ]
        text = "\n".join(lines) or "No running or recent sessions."
        return text_result(text, {"status": "completed", "sessions": [_facts(session) for session in sessions]})

    async def _poll(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        if arguments.timeout > 0:
            await wait_within(session.ended, min(arguments.timeout, MAX_POLL_WAIT_MS) / 1000, self._processes.clock)
        if not session.ended.is_set():
            new = session.output.drain().rstrip() or "(no new output)"
            age = short_duration(self._processes.clock.now_ms() - session.started_at)
            return text_result(f"{new}\n\nProcess still running ({age}).", _facts(session))
        text = session.output.tail().rstrip() or "(no output recorded)"
        if session.output.truncated or len(session.output.text()) > TAIL_CHARS:
            text = f"[Last {TAIL_CHARS} characters; use log for more]\n{text}"
        return text_result(f"{text}\n\n{_ending(session)}", _facts(session))

    async def _log(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        output = session.output
        whole = await asyncio.to_thread(output.whole) if output.truncated else b""
        lines = whole.decode("utf-8", "replace").split("\n") if whole else output.text().split("\n")
        if lines and not lines[-1]:
            lines.pop()
        offset, limit = arguments.offset, arguments.limit
        shown = slice_lines(lines, offset, limit)
        if whole:
            shown = clean("\n".join(shown)).split("\n")
        text = "\n".join(shown) or "(no output yet)"
        if offset is None and limit is None and len(shown) < len(lines):
            text = f"[Last {len(shown)} of {len(lines)} lines; use offset and limit for others]\n{text}"
        if output.truncated and not whole:
            text = f"[Earlier output was dropped; {output.total_bytes} bytes in all]\n{text}"
        elif whole and len(whole) < output.total_bytes:
            text = f"[Only the first {len(whole)} of {output.total_bytes} bytes are stored]\n{text}"
        return text_result(text, {**_facts(session), "totalLines": len(lines)})

    async def _write(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        data = arguments.data.encode("utf-8", "replace")
        if problem := await self._send(session, data):
            return problem
        text = f"Wrote {len(data)} bytes to session {session.id}."
        if arguments.eof:
            if session.process.is_pty:
                await self._send(session, b"\x04")
            session.process.close_input()
            text = f"{text[:-1]} (input closed)."
        return text_result(text, _facts(session))

    async def _send_keys(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        try:
            data = arguments.literal.encode("utf-8", "replace")
            data += b"".join(encode_hex(token) for token in arguments.hex)
            data += b"".join(encode_key(token) for token in arguments.keys)
        except UnknownKey as error:
            return failed(str(error))
        if not data:
            return failed("Nothing to send: give keys, hex or literal.")
        problem = await self._send(session, data)
        return problem or text_result(f"Sent {len(data)} bytes to session {session.id}.", _facts(session))

    async def _submit(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        problem = await self._send(session, b"\r")
        return problem or text_result(f"Submitted session {session.id} (sent CR).", _facts(session))

    async def _paste(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        text = arguments.text or arguments.data
        if not text:
            return failed("Nothing to paste: give text.")
        problem = await self._send(session, encode_paste(text, bracketed=arguments.bracketed))
        return problem or text_result(f"Pasted {len(text)} characters to session {session.id}.", _facts(session))

    async def _send(self, session: ProcessSession, data: bytes) -> ToolResult | None:
        """Writes to the process. Returns None on success, otherwise the failed result."""
        if session.ended.is_set():
            return failed(f"Session {session.id} is not running: {_ending(session)}")
        if len(data) > MAX_INPUT_BYTES:
            return failed(f"{len(data)} bytes are too many for one call; send at most {MAX_INPUT_BYTES}.")
        if not session.process.is_pty and not session.command.takes_input:
            return failed(f"Session {session.id} has no input; start the command with background, stdin or pty.")
        try:
            await session.process.write(data)
        except OSError as error:  # This includes TimeoutError.
            return failed(f"Session {session.id} did not take the input: {error.strerror or error}")
        return None

    async def _kill(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        if session.ended.is_set():
            return failed(f"Session {session.id} is not running: {_ending(session)}")
        await self._processes.stop(session)
        return text_result(f"Killed session {session.id}.", {**_facts(session), "status": "completed"})

    async def _clear(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        if not session.ended.is_set():
            return failed(f"Session {session.id} is still running; use kill or remove.")
        self._processes.forget(session)
        return text_result(f"Cleared session {session.id}.", {"status": "completed"})

    async def _remove(self, session: ProcessSession, arguments: ProcessArguments) -> ToolResult:
        if not session.ended.is_set():
            await self._processes.stop(session)
        self._processes.forget(session)
        return text_result(f"Removed session {session.id}.", {"status": "completed"})


def slice_lines(lines: list[str], offset: int | None, limit: int | None) -> list[str]:
    """Selects lines of a log. ``offset`` counts from 0; without it, the last ``limit`` lines are selected."""
    if offset is None:
        count = DEFAULT_LOG_LINES if limit is None else max(0, limit)
        return lines[-count:] if count else []
    start = max(0, offset)
    return lines[start:] if limit is None else lines[start : start + max(0, limit)]


def failed(text: str) -> ToolResult:
    return text_result(text, {"status": "failed"})


def _facts(session: ProcessSession) -> dict[str, Any]:
    facts = {**session.facts(), "name": _name(session)}
    if session.ended.is_set():
        facts["endedAt"] = session.ended_at
        if session.exit_signal is None:
            facts["exitCode"] = session.process.exit_code
        else:
            facts["exitSignal"] = session.exit_signal
    return facts


def _ending(session: ProcessSession) -> str:
    if session.timed_out:
        return f"Process timed out after {session.command.timeout:g} seconds."
    return f"Process exited with {session.how_it_ended()}."


def _name(session: ProcessSession) -> str:
    return clipped(" ".join(session.command.text.split()), _NAME_CHARS)


# The bytes that a terminal sends for a key

_NAMED = {
    "enter": b"\r", "return": b"\r", "tab": b"\t", "btab": b"\x1b[Z", "escape": b"\x1b", "esc": b"\x1b",
    "space": b" ", "backspace": b"\x7f", "bspace": b"\x7f",
    "up": b"\x1b[A", "down": b"\x1b[B", "right": b"\x1b[C", "left": b"\x1b[D", "home": b"\x1b[1~", "end": b"\x1b[4~",
    "insert": b"\x1b[2~", "ic": b"\x1b[2~", "delete": b"\x1b[3~", "del": b"\x1b[3~", "dc": b"\x1b[3~",
    "pageup": b"\x1b[5~", "pgup": b"\x1b[5~", "ppage": b"\x1b[5~",
    "pagedown": b"\x1b[6~", "pgdn": b"\x1b[6~", "npage": b"\x1b[6~",
    "f1": b"\x1bOP", "f2": b"\x1bOQ", "f3": b"\x1bOR", "f4": b"\x1bOS",
    **{f"f{n}": b"\x1b[%d~" % code for n, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)},
}  # fmt: skip
_MODIFIED = re.compile(r"((?:[CMS]-)+)(.+)", re.IGNORECASE | re.DOTALL)
_CURSOR = re.compile(rb"\x1b\[([A-D])")
_NUMBERED = re.compile(rb"\x1b\[(\d+)~")
_PASTE_START, _PASTE_END = b"\x1b[200~", b"\x1b[201~"


class UnknownKey(ValueError):
    pass


def encode_key(token: str) -> bytes:
    """The bytes that a terminal sends for ``Enter``, ``C-c``, ``M-x``, ``C-S-Left``, ``^d`` or plain text."""
    if match := _MODIFIED.fullmatch(token):
        modifiers = {letter.upper() for letter in match[1].replace("-", "")}
        return _modified(match[2], modifiers, token)
    if len(token) == 2 and token[0] == "^":
        return _control(token[1], token)
    return _NAMED.get(token.lower(), token.encode("utf-8", "replace"))


def encode_hex(token: str) -> bytes:
    """Decodes ``0d``, ``0x1b`` or several bytes in one token."""
    try:
        return bytes.fromhex(token.removeprefix("0x").removeprefix("0X"))
    except ValueError:
        raise UnknownKey(f"{token!r} is not hexadecimal") from None


def encode_paste(text: str, *, bracketed: bool) -> bytes:
    data = text.encode("utf-8", "replace")
    if not bracketed:
        return data
    # An end mark inside the text would make the program treat the rest as typed keys.
    return _PASTE_START + data.replace(_PASTE_END, b"") + _PASTE_END


def _modified(key: str, modifiers: set[str], token: str) -> bytes:
    named = _NAMED.get(key.lower())
    if named and (special := _with_modifiers(named, modifiers)):
        return special
    if named is None and len(key) != 1:
        raise UnknownKey(f"{token!r} is not a known key")
    data = named or key.encode("utf-8", "replace")
    if "S" in modifiers:
        data = b"\x1b[Z" if data == b"\t" else data.upper()
    if "C" in modifiers:
        data = _control(data.decode("utf-8"), token)
    return b"\x1b" + data if "M" in modifiers else data


def _with_modifiers(named: bytes, modifiers: set[str]) -> bytes | None:
    number = 1 + ("S" in modifiers) + 2 * ("M" in modifiers) + 4 * ("C" in modifiers)
    if match := _CURSOR.fullmatch(named):
        return b"\x1b[1;%d%s" % (number, match[1])
    if match := _NUMBERED.fullmatch(named):
        return b"\x1b[%s;%d~" % (match[1], number)
    return None


def _control(key: str, token: str) -> bytes:
    if key == "?":
        return b"\x7f"
    if key == " ":
        return b"\0"
    code = ord(key.upper()) if len(key) == 1 else 0
    if not 0x40 <= code <= 0x5F:
        raise UnknownKey(f"{token!r} is not a known key")
    return bytes([code & 0x1F])
