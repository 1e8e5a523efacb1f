"""The ``process`` tool: looks after commands that ``exec`` left running in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from openclaw.messages import ToolSpec
from openclaw.tools.base import ToolContext, ToolResult, text_result
from openclaw.tools.keys import UnknownKey, encode_hex, encode_key, encode_paste
from openclaw.tools.output import TAIL_CHARS
from openclaw.tools.process_registry import ProcessRegistry, ProcessSession

DEFAULT_LOG_LINES = 200
MAX_POLL_WAIT_MS = 120_000
MAX_INPUT_BYTES = 1024 * 1024
_NAME_CHARS = 120


class ProcessTool:
    summary = "Manage background exec sessions"
    spec = ToolSpec(
        name="process",
        description=(
            "Manage running exec sessions: list, poll (new output; timeout waits), log (lines by offset/limit), "
            "write, send-keys, submit, paste, kill, clear, remove."
        ),
        parameters={
            "type": "object",
            "required": ["action"],
            "properties": {
                "action": {
                    "type": "string",
                    "description": "list|poll|log|write|send-keys|submit|paste|kill|clear|remove",
                },
                "sessionId": {"type": "string", "description": "Which session, for all actions but list"},
                "data": {"type": "string", "description": "Text for write"},
                "eof": {"type": "boolean", "description": "Close the input after write"},
                "keys": {"type": "array", "items": {"type": "string"}, "description": "Keys such as Enter, C-c, Up"},
                "hex": {"type": "array", "items": {"type": "string"}, "description": "Bytes for send-keys"},
                "literal": {"type": "string", "description": "Text for send-keys"},
                "text": {"type": "string", "description": "Text for paste"},
                "bracketed": {"type": "boolean", "description": "Paste in brackets (default true)"},
                "offset": {"type": "integer", "description": "First line of log, from 0"},
                "limit": {"type": "integer", "description": "Lines of log; without offset, the last ones"},
                "timeout": {"type": "number", "description": "poll: milliseconds to wait for the end"},
            },
        },
    )

    def __init__(self, processes: ProcessRegistry) -> None:
        self._processes = processes
        self._actions: dict[str, Callable[[ProcessSession, dict[str, Any]], Awaitable[ToolResult]]] = {
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

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        action = str(arguments.get("action") or "")
        if action == "list":
            return self._list(context.agent_id)
        if action not in self._actions:
            return failed(f"Unknown action {action}; use list, {', '.join(self._actions)}")
        slug = str(arguments.get("sessionId") or "").strip()
        if not slug:
            return failed("sessionId is required for this action.")
        session = self._processes.get(context.agent_id, slug)
        if session is None:
            return failed(f"No session found for {slug}")
        return await self._actions[action](session, arguments)

    def _list(self, scope: str) -> ToolResult:
        sessions = self._processes.list(scope)
        now = self._processes.clock.now_ms()
        lines = [
            f"{session.id} {session.status:<9} {_duration((session.ended_at or now) - session.started_at)} :: "
            f"{_name(session)}"
            for session in sessions
        ]
        text = "\n".join(lines) or "No running or recent sessions."
        return text_result(text, {"status": "completed", "sessions": [_facts(session) for session in sessions]})

    async def _poll(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        await self._wait_for_end(session, arguments.get("timeout") or 0)
        if not session.ended.is_set():
            new = session.output.drain().rstrip() or "(no new output)"
            return text_result(f"{new}\n\nProcess still running.", _facts(session))
        text = session.output.tail().rstrip() or "(no output recorded)"
        if session.output.truncated or len(session.output.text()) > TAIL_CHARS:
            text = f"[Last {TAIL_CHARS} characters; use log for more]\n{text}"
        return text_result(f"{text}\n\n{_ending(session)}", _facts(session))

    async def _wait_for_end(self, session: ProcessSession, wanted_ms: float) -> None:
        if wanted_ms <= 0 or session.ended.is_set():
            return
        ended = asyncio.ensure_future(session.ended.wait())
        pause = asyncio.ensure_future(self._processes.clock.sleep(min(wanted_ms, MAX_POLL_WAIT_MS) / 1000))
        try:
            await asyncio.wait({ended, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            pause.cancel()

    async def _log(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        lines = session.output.text().split("\n")
        if lines and not lines[-1]:
            lines.pop()
        offset, limit = arguments.get("offset"), arguments.get("limit")
        shown = slice_lines(lines, offset, limit)
        text = "\n".join(shown) or "(no output yet)"
        if offset is None and limit is None and len(shown) < len(lines):
            text = f"[Last {len(shown)} of {len(lines)} lines; use offset and limit for others]\n{text}"
        if session.output.truncated:
            text = f"[Earlier output was dropped; {session.output.total_bytes} bytes in all]\n{text}"
        return text_result(text, {**_facts(session), "totalLines": len(lines)})

    async def _write(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        data = str(arguments.get("data") or "").encode("utf-8", "replace")
        if problem := await self._send(session, data):
            return problem
        text = f"Wrote {len(data)} bytes to session {session.id}."
        if arguments.get("eof"):
            if session.process.is_pty:
                await self._send(session, b"\x04")
            session.process.close_input()
            text = f"{text[:-1]} (input closed)."
        return text_result(text, _facts(session))

    async def _send_keys(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        try:
            data = str(arguments.get("literal") or "").encode("utf-8", "replace")
            data += b"".join(encode_hex(str(token)) for token in arguments.get("hex") or [])
            data += b"".join(encode_key(str(token)) for token in arguments.get("keys") or [])
        except UnknownKey as error:
            return failed(str(error))
        if not data:
            return failed("Nothing to send: give keys, hex or literal.")
        problem = await self._send(session, data)
        return problem or text_result(f"Sent {len(data)} bytes to session {session.id}.", _facts(session))

    async def _submit(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        problem = await self._send(session, b"\r")
        return problem or text_result(f"Submitted session {session.id} (sent CR).", _facts(session))

    async def _paste(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        text = str(arguments.get("text") or arguments.get("data") or "")
        if not text:
            return failed("Nothing to paste: give text.")
        problem = await self._send(session, encode_paste(text, bracketed=arguments.get("bracketed") is not False))
        return problem or text_result(f"Pasted {len(text)} characters to session {session.id}.", _facts(session))

    async def _send(self, session: ProcessSession, data: bytes) -> ToolResult | None:
        """None when the bytes were taken."""
        if session.ended.is_set():
            return failed(f"Session {session.id} is not running: {_ending(session)}")
        if len(data) > MAX_INPUT_BYTES:
            return failed(f"{len(data)} bytes are too many for one call; send at most {MAX_INPUT_BYTES}.")
        try:
            await session.process.write(data)
        except OSError as error:  # TimeoutError is one of them
            return failed(f"Session {session.id} did not take the input: {error.strerror or error}")
        return None

    async def _kill(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        if session.ended.is_set():
            return failed(f"Session {session.id} is not running: {_ending(session)}")
        await self._processes.stop(session)
        return text_result(f"Killed session {session.id}.", {**_facts(session), "status": "completed"})

    async def _clear(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        if not session.ended.is_set():
            return failed(f"Session {session.id} is still running; use kill or remove.")
        self._processes.forget(session)
        return text_result(f"Cleared session {session.id}.", {"status": "completed"})

    async def _remove(self, session: ProcessSession, arguments: dict[str, Any]) -> ToolResult:
        if not session.ended.is_set():
            await self._processes.stop(session)
        self._processes.forget(session)
        return text_result(f"Removed session {session.id}.", {"status": "completed"})


def slice_lines(lines: list[str], offset: int | None, limit: int | None) -> list[str]:
    """Only ``limit``: the last lines. ``offset`` counts from 0. Neither: the last ``DEFAULT_LOG_LINES``."""
    if offset is None:
        count = DEFAULT_LOG_LINES if limit is None else max(0, limit)
        return lines[-count:] if count else []
    start = max(0, offset)
    return lines[start:] if limit is None else lines[start : start + max(0, limit)]


def failed(text: str) -> ToolResult:
    return text_result(text, {"status": "failed"})


def _facts(session: ProcessSession) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "status": session.status,
        "sessionId": session.id,
        "pid": session.pid,
        "startedAt": session.started_at,
        "cwd": session.cwd,
        "name": _name(session),
    }
    if session.ended.is_set():
        facts["endedAt"] = session.ended_at
        facts["exitCode" if session.exit_signal is None else "exitSignal"] = (
            session.process.exit_code if session.exit_signal is None else session.exit_signal
        )
    return facts


def _ending(session: ProcessSession) -> str:
    if session.timed_out:
        return f"Process timed out after {session.timeout:g} seconds."
    return f"Process exited with {session.how_it_ended()}."


def _name(session: ProcessSession) -> str:
    name = " ".join(session.command.split())
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"


def _duration(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"
