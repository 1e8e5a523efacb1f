"""The ``exec`` tool: runs a shell command, waits a while, and lets it go on in the background."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from openclaw.messages import ToolSpec
from openclaw.tools.arguments import required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec_approved import carry_out
from openclaw.tools.exec_gate import Gate, Order, Question
from openclaw.tools.exec_settings import ExecSettings, command_environment, working_directory
from openclaw.tools.process_registry import ProcessRegistry, ProcessSession

UPDATE_INTERVAL_S = 0.25
LINGER_S = 0.5
"""How long a shell may have exited while its children hold the output, before we stop waiting for them."""
MAX_YIELD_MS = 120_000
MAX_TIMEOUT_S = 2_147_000


class ExecTool:
    summary = "Run shell commands (pty available for TTY-required CLIs)"
    spec = ToolSpec(
        name="exec",
        description=(
            "Run a shell command. A command that takes longer goes on in the background; follow it with the process "
            "tool. Use pty=true for programs that need a terminal."
        ),
        parameters={
            "type": "object",
            "required": ["command"],
            "properties": {
                "command": {"type": "string", "description": "Shell command to run"},
                "workdir": {"type": "string", "description": "Directory to run in (default: the workspace)"},
                "env": {
                    "type": "object",
                    "description": "Extra environment variables",
                    "additionalProperties": {"type": "string"},
                },
                "yieldMs": {"type": "number", "description": "Wait this long before going to the background"},
                "background": {"type": "boolean", "description": "Go to the background at once"},
                "timeout": {"type": "number", "description": "Seconds after which the command is ended"},
                "pty": {"type": "boolean", "description": "Run in a terminal of 120x30"},
                "host": {"type": "string", "enum": ["sandbox", "gateway", "node"], "description": "Where to run"},
                "security": {"type": "string", "enum": ["deny", "allowlist", "full"]},
                "ask": {"type": "string", "enum": ["off", "on-miss", "always"]},
                "elevated": {"type": "boolean", "description": "Run on the host with elevated rights, if allowed"},
            },
        },
    )

    def __init__(self, settings: ExecSettings, processes: ProcessRegistry, gate: Gate | None = None) -> None:
        self._settings = settings
        self._processes = processes
        self._gate = gate or Gate(settings, None, None)
        self._clock = processes.clock

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        command = required_text(arguments, "command")
        if "\0" in command:
            raise ToolError("The command holds a NUL character")
        wanted, warning = self._order(command, arguments, context)
        order = await self._gate.check(wanted, arguments, context)
        if isinstance(order, Question):
            return await self._ask(order, context, warning)
        session, complaint = await self._start(order, context.agent_id)
        warning += complaint
        try:
            await self._watch(session, self._window(arguments), context)
        except asyncio.CancelledError:
            if not session.backgrounded:
                await self._processes.stop(session)
            raise
        if session.ended.is_set() and not session.backgrounded:
            # Making a long output readable takes a while; not on the loop.
            return completed(session, warning, await asyncio.to_thread(printed, session))
        notify = context.notify if self._settings.notify_on_exit else None
        self._processes.move_to_background(session, notify)
        return still_running(session, warning)

    def _order(self, command: str, arguments: dict[str, Any], context: ToolContext) -> tuple[Order, str]:
        cwd, warning = working_directory(context.workspace, arguments.get("workdir"))
        timeout = arguments.get("timeout")
        if timeout is None or timeout <= 0:
            timeout = self._settings.timeout_sec
        env = command_environment(
            {**context.env, **os.environ}, arguments.get("env") or {}, self._settings.path_prepend
        )
        order = Order(
            command=command,
            cwd=cwd,
            env=env,
            use_pty=bool(arguments.get("pty")),
            timeout=min(timeout, MAX_TIMEOUT_S) or None,
        )
        return order, warning

    async def _ask(self, question: Question, context: ToolContext, warning: str) -> ToolResult:
        """Does not wait: the answer may take minutes, and the conversation goes on meanwhile."""
        approval = await self._gate.ask(question, context)

        async def start(order: Order) -> ProcessSession:
            session, _ = await self._start(order, context.agent_id)
            self._processes.move_to_background(session, None)
            return session

        work = carry_out(approval, question, self._gate, context, start, self._settings, self._clock)
        self._gate.follow(approval, work)
        text = (
            f"{warning}Approval required (id {approval.slug}). Approve to run; the outcome follows in this session "
            "when the command has ended. Do not run it again meanwhile. The person can answer with "
            f"/approve {approval.slug} allow-once, allow-always or deny."
        )
        details = {
            "status": "approval-pending",
            "approvalId": approval.id,
            "approvalSlug": approval.slug,
            "expiresAtMs": approval.expires_at_ms,
            "host": question.terms.host,
            "command": question.order.command,
            "cwd": question.order.cwd,
        }
        return text_result(text, details)

    async def _start(self, order: Order, agent_id: str) -> tuple[ProcessSession, str]:
        warning = ""
        for attempt_pty in (True, False) if order.use_pty else (False,):
            try:
                session = await self._processes.start(
                    order.command,
                    scope=agent_id,
                    cwd=order.cwd,
                    env=order.env,
                    use_pty=attempt_pty,
                    timeout=order.timeout,
                    max_output_chars=self._settings.max_output_chars,
                )
                return session, warning
            except OSError as error:
                if not attempt_pty:
                    raise ToolError(f"The command could not be started: {error}") from None
                warning += f"Warning: no terminal is available ({error}); the command runs without one.\n\n"
        raise AssertionError("unreachable")

    def _window(self, arguments: dict[str, Any]) -> float | None:
        """Seconds to wait before the command goes to the background; None: until it ends."""
        if not self._settings.allow_background:
            return None
        if arguments.get("background"):
            return 0
        wanted = arguments.get("yieldMs")
        milliseconds = self._settings.background_ms if wanted is None else max(10, min(MAX_YIELD_MS, wanted))
        return milliseconds / 1000

    async def _watch(self, session: ProcessSession, window: float | None, context: ToolContext) -> None:
        """Returns when the command has ended, or it is time to leave it."""
        started = self._clock.monotonic()
        shown = 0
        exited_at: float | None = None
        ended = asyncio.ensure_future(session.ended.wait())
        try:
            while not session.ended.is_set():
                now = self._clock.monotonic()
                if window is not None and now - started >= window:
                    return
                if session.process.exited.is_set():
                    exited_at = now if exited_at is None else exited_at
                    if now - exited_at >= LINGER_S:
                        if window is not None:
                            return
                        await session.process.stop()
                if context.update and session.output.total_bytes != shown:
                    shown = session.output.total_bytes
                    context.update(text_result(session.output.tail(), _running_details(session, with_tail=False)))
                left = UPDATE_INTERVAL_S if window is None else min(UPDATE_INTERVAL_S, started + window - now)
                tick = asyncio.ensure_future(self._clock.sleep(left))
                try:
                    await asyncio.wait({ended, tick}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    tick.cancel()
        finally:
            ended.cancel()


def completed(session: ProcessSession, warning: str, output: str) -> ToolResult:
    """The result of a command that ended; raises what the model should read when it ended badly."""
    if reason := failure(session):
        raise ToolError(f"{warning}{output}\n\n{reason}" if output else f"{warning}{reason}")
    details: dict[str, Any] = {
        "status": "completed",
        "exitCode": session.process.exit_code,
        "durationMs": (session.ended_at or session.started_at) - session.started_at,
        "cwd": session.cwd,
    }
    if session.output.truncated:
        details |= {"truncated": True, "totalBytes": session.output.total_bytes}
    return text_result(warning + (output or "(no output)"), details)


def printed(session: ProcessSession) -> str:
    """What the command printed, trimmed; when it was too much, the end of it, saying so."""
    text = session.output.text()
    if session.output.truncated:
        note = f"[Output cut: the last {len(text)} characters of {session.output.total_bytes} bytes]"
        return f"{note}\n{text.rstrip()}"
    return text.strip("\n").rstrip()


def failure(session: ProcessSession) -> str | None:
    """Why the command did not end well, in words; None when it did."""
    if session.timed_out:
        return f"Command timed out after {session.timeout:g} seconds"
    if session.exit_signal:
        return f"Command aborted by signal {session.exit_signal}"
    if session.process.exit_code is None:
        return "Command could not be ended; it may still be running"
    return f"Command exited with code {session.process.exit_code}" if session.process.exit_code else None


def still_running(session: ProcessSession, warning: str) -> ToolResult:
    text = (
        f"{warning}Command still running (session {session.id}, pid {session.pid}). "
        "Use process (list/poll/log/write/kill/clear/remove) for follow-up."
    )
    if session.process.exited.is_set():
        code = session.process.exit_code
        text += f"\nThe shell itself exited with code {code}; programs it started keep its output open."
    return text_result(text, _running_details(session, with_tail=True))


def _running_details(session: ProcessSession, *, with_tail: bool) -> dict[str, Any]:
    details: dict[str, Any] = {
        "status": "running",
        "sessionId": session.id,
        "pid": session.pid,
        "startedAt": session.started_at,
        "cwd": session.cwd,
    }
    return {**details, "tail": session.output.tail()} if with_tail else details
