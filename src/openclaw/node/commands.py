"""What the reference node carries out: commands of the system, under the exec rules of its own machine."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.storage.files.documents import FileDocuments
from openclaw.text import clipped
from openclaw.tools.base import ToolError
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.approvals import ApprovalRules, BadRules
from openclaw.tools.exec.environment import command_environment, wanted_variables, working_directory
from openclaw.tools.exec.settings import ExecOverrides, ExecSettings, command_policy
from openclaw.tools.exec.tool import NeedsApproval, check_command
from openclaw.tools.nodes import APPROVAL_REQUIRED, DENIED
from openclaw.tools.process import ProcessRegistry, ProcessSession
from openclaw.tools.shell_process import ShellCommand

MAX_OUTPUT_CHARS = 200_000
MAX_OUTPUT_BYTES = 300_000
"""What of an output goes into an answer, as JSON writes it. A frame may have 512 KiB."""
MAX_TIMEOUT_MS = 24 * 3_600_000
MAX_BINS = 200
MAX_ASKED = 64
"""Commands that wait for a person's approval."""
LONGEST_TEXT = 100_000
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})


class CommandFailed(Exception):
    """The answer to a command is an error. ``reason`` is the code of the reason, for the event ``exec.denied``."""

    def __init__(self, code: str, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class SystemRun(msgspec.Struct, kw_only=True, rename="camel"):
    command: list[str] = []
    raw_command: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    timeout_ms: float | None = None
    agent_id: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    approved: bool | None = None
    approval_decision: str | None = None
    security: str | None = None
    """How strict the Gateway is. The stricter of this and the node's own rules counts."""


class SystemWhich(msgspec.Struct, kw_only=True):
    bins: list[str] = []


class SystemNotify(msgspec.Struct, kw_only=True):
    title: str = ""
    body: str = ""


class RulesSet(msgspec.Struct, kw_only=True, rename="camel"):
    file: dict[str, Any]
    base_hash: str | None = None


class NodeCommands:
    """Carries out commands. ``close`` ends those that still run."""

    def __init__(self, state_dir: str, settings: ExecSettings, clock: Clock, environ: Mapping[str, str]) -> None:
        self._settings = msgspec.structs.replace(settings, host="gateway", max_output_chars=MAX_OUTPUT_CHARS)
        self._rules = ApprovalRules(FileDocuments(state_dir), clock)
        self._processes = ProcessRegistry(clock=clock)
        self._environ = environ
        self._asked: dict[str, tuple[str, NeedsApproval]] = {}
        self._table: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "system.run": self._run,
            "system.which": self._which,
            "system.execApprovals.get": self._get_rules,
            "system.execApprovals.set": self._set_rules,
        }
        self._notifier = shutil.which("notify-send", path=environ.get("PATH"))
        if self._notifier is not None:
            self._table["system.notify"] = self._notify

    @property
    def names(self) -> list[str]:
        """What the node declares."""
        return list(self._table)

    async def carry_out(self, command: str, params: Any) -> Any:
        """The payload of the answer. Raises ``CommandFailed``. Cancelled, it ends the processes that it started."""
        action = self._table.get(command)
        if action is None:
            raise CommandFailed("UNAVAILABLE", "command not supported")
        try:
            return await action({} if params is None else params)
        except msgspec.ValidationError as error:
            raise CommandFailed("INVALID_REQUEST", f"invalid {command} params: {error}") from None

    async def close(self) -> None:
        await self._processes.close()

    # system.run

    async def _run(self, params: Any) -> dict[str, Any]:
        wanted = msgspec.convert(params, SystemRun)
        text = command_text(wanted.command, wanted.raw_command)
        agent_id = wanted.agent_id or "main"
        try:
            command = await self._checked(wanted, text, agent_id)
            session = await self._processes.start(command, scope="node", max_output_chars=MAX_OUTPUT_CHARS)
        except ToolError as refused:
            raise CommandFailed("UNAVAILABLE", f"{DENIED}: {refused}", "allowlist-miss") from None
        except OSError as error:
            raise CommandFailed("UNAVAILABLE", f"{DENIED}: the command could not be started: {error}") from None
        try:
            await session.ended.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._processes.stop(session))
            raise
        return await asyncio.to_thread(_ended, session)

    async def _checked(self, wanted: SystemRun, text: str, agent_id: str) -> ShellCommand:
        """The command, if it may run. Raises ``CommandFailed`` and ``ToolError``."""
        rules = await self._rules.rules_for(agent_id)
        # What the rules file says is this machine's own will. Without it the level is ``allowlist``, with a question.
        own = ExecOverrides(security=self._settings.security or rules.security, ask=rules.ask)
        try:
            policy = command_policy(self._settings, own, rules, {"security": wanted.security})
        except ToolError as denied:
            raise CommandFailed("UNAVAILABLE", f"SYSTEM_RUN_DISABLED: {denied}", "security=deny") from None
        sets = wanted_variables(wanted.env or {})
        home = Path(self._environ.get("HOME") or "/")
        cwd, missing = working_directory(home, wanted.cwd)
        if missing:
            raise ToolError(f"the working directory {clipped(repr(wanted.cwd), 200)} is not available here")
        timeout = min(wanted.timeout_ms or self._settings.timeout_sec * 1000, MAX_TIMEOUT_MS) / 1000
        command = ShellCommand(
            text=text,
            cwd=cwd,
            env=command_environment(self._environ, {}, sets, self._settings.path_prepend),
            use_pty=False,
            timeout=timeout,
        )
        checked = await check_command(command, sets, policy, rules, self._settings, home)
        if isinstance(checked, ShellCommand):
            return checked
        approved = wanted.approved is True or wanted.approval_decision in ("allow-once", "allow-always")
        if not approved:
            self._remember(wanted.run_id, text, checked)
            raise CommandFailed("UNAVAILABLE", APPROVAL_REQUIRED, "approval-required")
        # What the person was asked about is tied to the files that it was then.
        asked = self._asked.pop(wanted.run_id or "", None)
        meant = asked[1] if asked is not None and asked[0] == text else checked
        if wanted.approval_decision == "allow-always" and isinstance(meant.rule, AllowRule):
            await self._rules.allow_always(agent_id, meant.rule, text)
        return msgspec.structs.replace(meant.command, timeout=timeout)

    def _remember(self, run_id: str | None, text: str, asked: NeedsApproval) -> None:
        if run_id:
            while len(self._asked) >= MAX_ASKED:
                del self._asked[next(iter(self._asked))]
            self._asked[run_id] = (text, asked)

    # The others

    async def _which(self, params: Any) -> dict[str, Any]:
        wanted = msgspec.convert(params, SystemWhich)
        env = command_environment(self._environ, {}, {}, self._settings.path_prepend)

        def find() -> dict[str, str]:
            names = [name.strip() for name in wanted.bins[:MAX_BINS]]
            found = {name: shutil.which(name, path=env["PATH"]) for name in names if name and "/" not in name}
            return {name: path for name, path in found.items() if path}

        return {"bins": await asyncio.to_thread(find)}

    async def _notify(self, params: Any) -> dict[str, Any]:
        wanted = msgspec.convert(params, SystemNotify)
        if self._notifier is None or not (wanted.title or wanted.body).strip():
            raise CommandFailed("INVALID_REQUEST", "INVALID_REQUEST: empty notification")
        words = [self._notifier, "--", clipped(wanted.title or wanted.body, 500)]
        words += [clipped(wanted.body, 2000)] if wanted.title and wanted.body else []
        env = command_environment(self._environ, {}, {}, [])
        command = ShellCommand(text=shlex.join(words), cwd="/", env=env, use_pty=False, timeout=10)
        session = await self._processes.start(command, scope="node", max_output_chars=2000)
        await session.ended.wait()
        if session.process.exit_code != 0:
            raise CommandFailed("UNAVAILABLE", f"notify-send failed: {session.output.tail(200).strip()}")
        return {"ok": True}

    async def _get_rules(self, _: Any) -> dict[str, Any]:
        try:
            return (await self._rules.snapshot()).view()
        except BadRules as bad:
            raise CommandFailed("UNAVAILABLE", str(bad)) from None

    async def _set_rules(self, params: Any) -> dict[str, Any]:
        wanted = msgspec.convert(params, RulesSet)
        try:
            return (await self._rules.replace(wanted.file, wanted.base_hash)).view()
        except BadRules as bad:
            raise CommandFailed("INVALID_REQUEST", str(bad)) from None


def command_text(words: list[str], raw: str | None) -> str:
    """The text that a shell reads. What a person was shown and what runs must be the same. Raises ``CommandFailed``."""
    if not words or any("\0" in word for word in words):
        raise CommandFailed("INVALID_REQUEST", "command required")
    wrapped = words[2] if len(words) == 3 and is_shell(words[0]) and words[1] in ("-c", "-lc") else None
    text = wrapped if wrapped is not None else shlex.join(words)
    if raw is not None and raw.strip() and raw.strip() != text.strip() and _words(raw) != words:
        raise CommandFailed("INVALID_REQUEST", "rawCommand does not match command")
    if not text.strip() or len(text) > LONGEST_TEXT:
        raise CommandFailed("INVALID_REQUEST", f"command must have 1 to {LONGEST_TEXT} characters")
    return text


def is_shell(program: str) -> bool:
    folder, _, name = program.rpartition("/")
    return folder in ("", "/bin", "/usr/bin") and name in SHELLS


def _words(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _ended(session: ProcessSession) -> dict[str, Any]:
    output, code = within_bytes(session.output.text()), session.process.exit_code
    failed = code != 0 or session.timed_out
    error = f"ended by {session.exit_signal}" if session.exit_signal and not session.timed_out else None
    answer: dict[str, Any] = {"exitCode": code, "timedOut": session.timed_out, "success": not failed}
    answer |= {"stdout": output, "stderr": "", "error": error}
    return {**answer, "truncated": True} if session.output.truncated else answer


def within_bytes(text: str, most: int = MAX_OUTPUT_BYTES) -> str:
    """The end of a text that has at most so many bytes as JSON writes it."""
    while (size := len(msgspec.json.encode(text))) > most:
        text = text[-max(0, len(text) * most // size - 16) :] if len(text) > 32 else ""
    return text
