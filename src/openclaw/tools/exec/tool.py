"""The ``exec`` tool: checks whether a command may run, asks a person if needed, and runs it, perhaps in the background.

``ExecTool.run`` is the whole way: the command is made ready, checked against the policy, put before a person if needed,
and started.

``NodeExec`` does the same for commands on nodes: those of ``exec`` with the host ``node``, and of ``nodes run``. The
node decides by its own rules whether a command may run there. If they want a person to be asked, the Gateway asks and
sends the command again with the answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.path_opener import PathRefused
from openclaw.questions.desk import QuestionDesk
from openclaw.storage.questions import Question
from openclaw.text import clipped, shortened
from openclaw.tools.arguments import RecordTool, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.allowlist import AllowRule, RefusedCommand, evaluate, parse, rule_for
from openclaw.tools.exec.approvals import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalRules,
    BadRules,
    ask_approval,
    decision_of,
    fingerprint_of,
    refusal_reason,
    refused_result,
)
from openclaw.tools.exec.binding import Binding, bind, bind_text
from openclaw.tools.exec.settings import (
    CommandPolicy,
    ExecArguments,
    ExecOverrides,
    ExecSettings,
    Fallback,
    HostRules,
    command_environment,
    command_policy,
    wanted_variables,
    working_directory,
)
from openclaw.tools.nodes import SYSTEM_RUN, NodeCalls, NodeFacts, NodeFailed, UnknownNode
from openclaw.tools.process import ProcessRegistry, ProcessSession
from openclaw.tools.shell_process import ShellCommand, clean

if TYPE_CHECKING:
    from openclaw.tools.sandbox.boundary import Boundary


log = logging.getLogger("openclaw.tools.exec")
UPDATE_INTERVAL_S = 0.25
LINGER_S = 0.5
"""After the shell has exited, we wait this long for children that hold its output open."""
MAX_YIELD_MS = 120_000
HEAD_SHARE = 5
"""A fifth of what a model reads of a long output is from its beginning."""
MAX_TIMEOUT_S = 2_147_000
OUTCOME_CHARS = 2000
"""Characters from the end of the output that the session gets; ``process log`` shows the rest."""
COMMAND_CHARS = 300
"""Characters of the command in notes to the session."""
MAX_NODE_TIMEOUT_S = 12 * 3600
ANSWER_GRACE_MS = 10_000
"""A node has this long to answer after the time of a command is up."""
MAX_BACKGROUND = 64
"""Commands on nodes that go on in the background."""


class NeedsApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a person must approve first."""

    command: ShellCommand
    policy: CommandPolicy
    """With the files it was asked about, so that nothing else runs after the answer."""
    sets: Mapping[str, str]
    """The variables that the call sets."""
    rule: AllowRule | str
    """What ``allow-always`` adds to the allowlist, or why it adds nothing."""
    refused: str | None
    """Why the allowlist refuses the command, or None if it allows it."""
    fallback: Fallback

    def refusal_after(self, question: Question) -> str | None:
        """The code of the reason why the command does not run after this question, or None if it runs."""
        reason = refusal_reason(question)
        if question.state != "expired" or self.fallback == "deny":
            return reason
        if self.fallback == "full":
            return None
        return None if self.refused is None else "approval-timeout (allowlist-miss)"


class ExecTool(RecordTool[ExecArguments]):
    name = "exec"
    summary = "Run shell commands (pty available for TTY-required CLIs)"
    description = (
        "Run a shell command. A command that takes longer goes on in the background; follow it with the process "
        "tool. Use pty=true for programs that need a terminal."
    )

    def __init__(
        self,
        settings: ExecSettings,
        processes: ProcessRegistry,
        rules: ApprovalRules | None = None,
        questions: QuestionDesk | None = None,
        sandbox: Boundary | None = None,
        nodes: NodeCalls | None = None,
        outputs: OutputStore | None = None,
    ) -> None:
        """Without ``questions`` nobody can be asked, so a command that needs an approval is refused.

        With a ``sandbox``, every command runs in it, unless it is elevated. Without ``nodes`` there are none. Without
        ``outputs`` the model gets the beginning and the end of a long output, and no file with all of it.
        """
        self.parallel = settings.parallel
        self._outputs = outputs
        self._settings = settings
        self._processes = processes
        self._rules = rules
        self._questions = questions
        self._sandbox = sandbox
        self._clock = processes.clock
        self._on_nodes = None if nodes is None else NodeExec(nodes, questions, self._clock, settings)

    async def execute(self, arguments: ExecArguments, context: ToolContext) -> ToolResult:
        text = required_text(arguments.command, "command")
        if "\0" in text:
            raise ToolError("The command holds a NUL character")
        rules = await self._rules.rules_for(context.agent_id) if self._rules else HostRules()
        overrides = await context.exec_overrides() if context.exec_overrides else None
        policy = command_policy(
            self._settings,
            overrides or ExecOverrides(),
            rules,
            requested=arguments,
            sandboxed=self._sandbox is not None,
        )
        if policy.host == "node":
            return await self._on_node(arguments, policy, overrides, context)
        sets = wanted_variables(arguments.env)
        command, warning = await self._wanted(arguments, sets, policy, context)
        checked = await check_command(command, sets, policy, rules, self._settings, context.workspace)
        if isinstance(checked, NeedsApproval):
            approved = await self._approved(checked, context)
            if isinstance(approved, ToolResult):
                return approved
            checked, note = approved
            warning += note
        session, complaint = await self._start(checked, context.process_scope)
        warning += complaint
        try:
            await self._watch(session, self._window(arguments), context)
        except asyncio.CancelledError:
            await self._processes.stop(session)
            raise
        if session.ended.is_set():
            limit = min(self._settings.max_output_chars, context.result_chars)
            output = await stored_output(session, limit, self._outputs)
            return completed(session, warning, output)
        notify = context.notify if self._settings.notify_on_exit else None
        self._processes.move_to_background(session, notify)
        return still_running(session, warning)

    async def run_on_node(self, arguments: ExecArguments, context: ToolContext) -> ToolResult:
        """Runs a command on a node under the rules for the host ``node``, whatever the usual host is."""
        overrides = await context.exec_overrides() if context.exec_overrides else None
        settings = msgspec.structs.replace(self._settings, host="node")
        on_node = msgspec.structs.replace(overrides or ExecOverrides(), host=None, elevated_allowed=False)
        policy = command_policy(settings, on_node, HostRules())
        return await self._on_node(arguments, policy, overrides, context)

    async def _on_node(
        self,
        arguments: ExecArguments,
        policy: CommandPolicy,
        overrides: ExecOverrides | None,
        context: ToolContext,
    ) -> ToolResult:
        sets = wanted_variables(arguments.env)
        if self._on_nodes is None:
            raise ToolError("exec host node: no node is connected to this Gateway")
        bound = (overrides.node if overrides else None) or self._settings.node
        command = NodeCommand(
            run_id=str(uuid.uuid4()),
            node=self._on_nodes.choose(bound, arguments.node),
            text=arguments.command,
            cwd=arguments.workdir.strip() or None,
            sets=sets,
            timeout_s=min(self._timeout(arguments), MAX_NODE_TIMEOUT_S),
            policy=policy,
            agent_id=context.agent_id,
            session_key=context.session_key,
        )
        return await self._on_nodes.run(command, self._window(arguments), context)

    def _timeout(self, arguments: ExecArguments) -> float:
        return arguments.timeout if arguments.timeout > 0 else self._settings.timeout_sec

    async def _wanted(
        self, arguments: ExecArguments, sets: Mapping[str, str], policy: CommandPolicy, context: ToolContext
    ) -> tuple[ShellCommand, str]:
        """Return the command as the call wants it, in the sandbox if there is one, and a warning about its folder."""
        text, timeout = arguments.command, self._timeout(arguments)
        if self._sandbox is not None and policy.host == "sandbox":
            longest = min(timeout, self._settings.timeout_sec)
            command, warning = await self._sandbox.command(
                text, arguments.workdir, sets, use_pty=arguments.pty, timeout=longest
            )
            return msgspec.structs.replace(command, takes_input=takes_input(arguments)), warning
        cwd, warning = working_directory(context.workspace, arguments.workdir)
        command = ShellCommand(
            text=text,
            cwd=cwd,
            env=command_environment(os.environ, context.env, sets, self._settings.path_prepend),
            use_pty=arguments.pty,
            timeout=min(timeout, MAX_TIMEOUT_S) or None,
            takes_input=takes_input(arguments),
        )
        return command, warning

    async def _approved(self, pending: NeedsApproval, context: ToolContext) -> tuple[ShellCommand, str] | ToolResult:
        """Ask a person. Returns the command, which begins once, and a warning; or the result of a refusal."""
        command, policy, questions = pending.command, pending.policy, self._questions
        if questions is None:
            why = f": {pending.refused}" if pending.refused else ""
            raise ToolError(f"exec needs an approval (ask={policy.ask}), but nobody can be asked here{why}")
        request = ApprovalRequest(
            command=command.text,
            cwd=command.cwd,
            host=policy.host,
            security=policy.security,
            ask=policy.ask,
            agent_id=context.agent_id,
            resolved_path=command.binding.program.path if command.binding and command.binding.program else None,
            session_key=context.session_key,
            env=dict(pending.sets) or None,
            once_only=pending.rule if isinstance(pending.rule, str) else None,
        )
        fingerprint = fingerprint_of(command.text, command.cwd, command.binding, dict(pending.sets), policy)
        question = await ask_approval(questions, "exec", request, context, fingerprint=fingerprint)
        if reason := pending.refusal_after(question):
            return refused_result(question, reason)
        warning = ""
        if decision_of(question) == "allow-always" and self._rules is not None and isinstance(pending.rule, AllowRule):
            try:
                await self._rules.allow_always(context.agent_id, pending.rule, command.text)
            except (BadRules, OSError) as problem:
                warning = f"Exec allowed once, and not for good (gateway id={question.id}): {problem}\n\n"
        # Noted before the command begins, so that no restart begins it again.
        if not await questions.begin_once(question):
            raise ToolError(f"the command of question {question.id} has begun before and is not repeated")
        return command, warning

    async def _start(self, command: ShellCommand, scope: str) -> tuple[ProcessSession, str]:
        """Starts the command, without a terminal if none is available; then the second value is a warning."""
        warning = ""
        for attempt_pty in (True, False) if command.use_pty else (False,):
            try:
                attempt = msgspec.structs.replace(command, use_pty=attempt_pty)
                return await self._processes.start(attempt, scope=scope), warning
            except OSError as error:
                if not attempt_pty:
                    raise ToolError(f"The command could not be started: {error}") from None
                warning += f"Warning: no terminal is available ({error}); the command runs without one.\n\n"
        raise AssertionError("unreachable")

    def _window(self, arguments: ExecArguments) -> float | None:
        """Seconds to wait before the command goes to the background. None means until it ends."""
        if not self._settings.allow_background:
            return None
        if arguments.background:
            return 0
        yield_ms = arguments.yield_ms
        milliseconds = self._settings.background_ms if yield_ms is None else max(10, min(MAX_YIELD_MS, yield_ms))
        return milliseconds / 1000

    async def _watch(self, session: ProcessSession, window: float | None, context: ToolContext) -> None:
        """Reports progress until the command has ended or the window is over."""
        started = self._clock.monotonic()
        reported = 0
        exited_at: float | None = None
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
            if context.update and session.output.total_bytes != reported:
                reported = session.output.total_bytes
                context.update(text_result(session.output.tail(), session.facts()))
            left = UPDATE_INTERVAL_S if window is None else min(UPDATE_INTERVAL_S, started + window - now)
            await wait_within(session.ended, left, self._clock)


async def check_command(
    command: ShellCommand,
    sets: Mapping[str, str],
    policy: CommandPolicy,
    rules: HostRules,
    settings: ExecSettings,
    workspace: Path,
) -> ShellCommand | NeedsApproval:
    """Returns the command to run, perhaps without a shell. Raises ``ToolError`` when it may not run here."""
    if policy.security == "full" and policy.ask != "always":
        return command
    try:
        verdict = await asyncio.to_thread(
            evaluate,
            command.text,
            rules=[*(AllowRule(pattern=pattern) for pattern in settings.allowlist), *rules.allowlist],
            safe_bins=settings.safe_bins,
            search_path=command.env["PATH"],
            cwd=command.cwd,
            workspace=workspace,
        )
    except OSError as error:
        raise ToolError(f"The files of the command cannot be read: {error}") from None
    if sets:
        verdict = RefusedCommand(f"it sets {', '.join(sets)}")
    refused = verdict.reason if isinstance(verdict, RefusedCommand) else None
    if policy.asks_first(listed=refused is None):
        return await asyncio.to_thread(_question, command, sets, policy, refused, rules.ask_fallback, workspace)
    if isinstance(verdict, RefusedCommand):
        raise ToolError(f"exec is denied (security=allowlist): {verdict.reason}")
    env = {} if verdict.is_filter else command.env
    return msgspec.structs.replace(command, binding=verdict.binding, env=env)


def _question(
    command: ShellCommand,
    sets: Mapping[str, str],
    policy: CommandPolicy,
    refused: str | None,
    fallback: Fallback,
    workspace: Path,
) -> NeedsApproval:
    """The command, tied to the files that it runs now. Blocking."""
    path, argv = command.env["PATH"], parse(command.text)
    binding: Binding | None = None
    try:
        if not isinstance(argv, RefusedCommand):
            binding = bind(argv, path, command.cwd)
        bound = msgspec.structs.replace(command, binding=binding or bind_text(command.text, path, command.cwd))
        rule = rule_for(command.text, path, command.cwd, workspace) if not sets else "it sets variables"
    except OSError as error:
        raise ToolError(f"The files of the command cannot be read: {error}") from None
    return NeedsApproval(command=bound, sets=sets, policy=policy, rule=rule, refused=refused, fallback=fallback)


def takes_input(arguments: ExecArguments) -> bool:
    """Whether somebody may write to the command. Any other command finds its input closed and does not wait for it."""
    return arguments.stdin or arguments.background or arguments.pty


class OutputStore(Protocol):
    """Stores the outputs that are too long for a model."""

    async def store(self, data: bytes, name: str) -> str:
        """Store an output and return the path under which the session can read it. Raises ``OSError``."""
        ...


class PrintedOutput(NamedTuple):
    text: str
    """What the model reads."""
    facts: Mapping[str, Any] = {}
    """What clients get besides it, if the output was cut."""


async def stored_output(session: ProcessSession, limit: int, outputs: OutputStore | None) -> PrintedOutput:
    """The output for a model, trimmed. It gets both ends of a long one, and all of it goes to a file."""
    output = session.output
    # A long output takes a while to clean up, so that happens in a thread.
    if not await asyncio.to_thread(output.exceeds, limit):
        return PrintedOutput(output.text().strip("\n").rstrip())
    head = limit // HEAD_SHARE
    beginning, end = await asyncio.to_thread(output.ends, head, limit - head)
    where = ""
    facts: dict[str, Any] = {"truncated": True, "totalBytes": output.total_bytes}
    if outputs is not None:
        data = await asyncio.to_thread(output.whole)
        try:
            path = await outputs.store(data, session.id) if data else ""
        except (OSError, PathRefused) as error:
            where = f" It could not be stored: {error}."
        else:
            if path:
                facts["outputFile"] = path
                part = "All of it is" if len(data) == output.total_bytes else f"The first {len(data)} bytes are"
                where = f" {part} in {path}"
    note = (
        f"[Output cut: {output.total_bytes} bytes in all, of which you see the first {len(beginning)} and the last "
        f"{len(end)} characters.{where}]"
    )
    return PrintedOutput(f"{beginning}\n{note}\n{end.rstrip()}", facts)


def completed(session: ProcessSession, warning: str, output: PrintedOutput) -> ToolResult:
    """The result of a command that has ended. Raises ``ToolError`` for the model if the command failed."""
    details: dict[str, Any] = {
        "status": "completed",
        "exitCode": session.process.exit_code,
        "durationMs": (session.ended_at or session.started_at) - session.started_at,
        "cwd": session.command.cwd,
        **output.facts,
    }
    if reason := failure(session):
        text = f"{warning}{output.text}\n\n{reason}" if output.text else f"{warning}{reason}"
        raise ToolError(text, {**details, "status": "error", "error": text})
    return text_result(warning + (output.text or "(no output)"), details)


def failure(session: ProcessSession) -> str | None:
    """A sentence that says why the command failed, or None if it did not."""
    if session.timed_out:
        return f"Command timed out after {session.command.timeout:g} seconds"
    if session.too_many:
        return f"Command was ended: it had more than {session.command.most_processes} processes"
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
    tail = session.output.tail()
    if tail.strip():
        text += f"\n\nOutput so far:\n{tail.rstrip()}"
    return text_result(text, {**session.facts(), "tail": tail})


# Commands on nodes


class NodeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command for a node, with everything the node needs to run it."""

    run_id: str
    node: NodeFacts
    text: str
    cwd: str | None
    sets: Mapping[str, str]
    timeout_s: float
    policy: CommandPolicy
    agent_id: str
    session_key: str

    def params(self, decision: ApprovalDecision | None = None) -> dict[str, Any]:
        """The parameters of ``system.run``. ``decision`` is what a person said who was asked."""
        params: dict[str, Any] = {
            "command": ["/bin/sh", "-lc", self.text],
            "rawCommand": self.text,
            "cwd": self.cwd,
            "env": dict(self.sets) or None,
            "timeoutMs": round(self.timeout_s * 1000),
            "agentId": self.agent_id,
            "sessionKey": self.session_key,
            "runId": self.run_id,
            # A node of ours takes the stricter of this and its own. Others know their own only.
            "security": self.policy.security,
        }
        return {**params, "approved": True, "approvalDecision": decision} if decision else params


class NodeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended on a node."""

    output: str = ""
    failure: str | None = None
    """A sentence that says why it failed, or None if it did not."""
    how: str = ""

    @classmethod
    def of(cls, payload: Any, command: NodeCommand, max_chars: int) -> NodeOutcome:
        fields: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
        parts = [str(fields[name]) for name in ("stdout", "stderr", "error") if fields.get(name)]
        text = clean("\n".join(part.rstrip("\n") for part in parts)).strip("\n").rstrip()
        if len(text) > max_chars:
            head = max_chars // HEAD_SHARE
            note = f"[Output cut: {len(text) - max_chars} characters left out here]"
            text = f"{text[:head]}\n{note}\n{text[head - max_chars :]}"
        code = fields.get("exitCode")
        if fields.get("timedOut"):
            return cls(output=text, failure=f"Command timed out after {command.timeout_s:g} seconds", how="timeout")
        if not isinstance(code, int):
            failure = None if fields.get("success") else "Command could not be run on the node"
            return cls(output=text, failure=failure, how="code ?")
        return cls(output=text, failure=f"Command exited with code {code}" if code else None, how=f"code {code}")


class NodeExec:
    """Runs commands on nodes. ``questions`` None: nobody can be asked."""

    def __init__(self, nodes: NodeCalls, questions: QuestionDesk | None, clock: Clock, settings: ExecSettings) -> None:
        self._nodes = nodes
        self._questions = questions
        self._clock = clock
        self._max_chars = settings.max_output_chars
        self._background: set[asyncio.Task[None]] = set()

    def choose(self, bound: str | None, requested: str | None) -> NodeFacts:
        """The node that a command runs on. ``bound`` is the one that the owner set. Raises ``ToolError``."""
        try:
            node = self._nodes.choose(bound or requested, SYSTEM_RUN)
            if bound and requested and self._nodes.choose(requested) != node:
                raise ToolError(
                    f"exec node {shortened(requested)} is not allowed: commands run on {shortened(node.name)}"
                )
        except UnknownNode as unknown:
            raise ToolError(f"exec host node: {unknown}") from None
        if not node.connected:
            raise ToolError(f"exec host node: {shortened(node.name)} is not connected to this Gateway")
        if SYSTEM_RUN not in node.commands:
            raise ToolError(f"exec host node: {shortened(node.name)} runs no commands ({SYSTEM_RUN})")
        return node

    async def run(self, command: NodeCommand, window_s: float | None, context: ToolContext) -> ToolResult:
        """Runs the command, after asking if needed. ``window_s`` is how long the call waits; None means to its end."""
        decision: ApprovalDecision | None = None
        needs_approval, once_only = command.policy.ask == "always", None
        while True:
            if needs_approval:
                approved = await self._approved(command, context, once_only)
                if isinstance(approved, ToolResult):
                    return approved
                decision = approved
            task = asyncio.create_task(self._carry_out(command, context, decision))
            try:
                await self._within(task, window_s)
            except asyncio.CancelledError:
                task.cancel()
                raise
            if not task.done():
                return self._in_background(task, command, context)
            try:
                return _result(task.result(), command)
            except NodeFailed as failed:
                if not failed.wants_approval or decision is not None:
                    raise ToolError(failure_text(failed, command)) from None
                needs_approval, once_only = True, failed.once_only

    async def _carry_out(
        self, command: NodeCommand, context: ToolContext, decision: ApprovalDecision | None
    ) -> NodeOutcome:
        """Has the node run the command. Raises ``NodeFailed``."""
        await self._nodes.begin(command.run_id, command.node.node_id, context.run_id)
        # An approved command is another call than the one that the node refused.
        key = f"{command.run_id}:{decision}" if decision else command.run_id
        timeout_ms = round(command.timeout_s * 1000) + ANSWER_GRACE_MS
        try:
            payload = await self._nodes.ask(
                command.node.node_id, SYSTEM_RUN, command.params(decision), timeout_ms=timeout_ms, key=key
            )
        except NodeFailed as failed:
            if failed.interrupted:
                self._nodes.leave(command.run_id)
            else:
                await self._end(command)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._end(command))
            raise
        await self._end(command)
        return NodeOutcome.of(payload, command, self._max_chars)

    async def _end(self, command: NodeCommand) -> None:
        try:
            await self._nodes.end(command.run_id)
        except OSError as error:  # The outcome is known all the same. The note of the command is dropped later.
            log.warning("a command on node %s stays noted as under way: %s", command.node.name, error)

    async def _within(self, task: asyncio.Task[Any], seconds: float | None) -> None:
        if seconds is None:
            await asyncio.wait([task])
            return
        pause = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait([task, pause], return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()

    # In the background

    def _in_background(self, task: asyncio.Task[NodeOutcome], command: NodeCommand, context: ToolContext) -> ToolResult:
        if len(self._background) >= MAX_BACKGROUND:
            task.cancel()
            raise ToolError(f"{MAX_BACKGROUND} commands are running on nodes already; the command was ended")

        async def follow() -> None:
            try:
                outcome = await task
            except NodeFailed as failed:
                named = f"node={shortened(command.node.name)}, id={command.run_id}"
                context.note(f"Exec failed ({named}): {failure_text(failed, command)}")
                return
            context.announce(_finished(command, command.run_id, outcome))

        following = asyncio.create_task(follow())
        self._background.add(following)
        following.add_done_callback(self._background.discard)
        text = (
            f"Command still running on node {shortened(command.node.name)} (id {command.run_id}). The outcome follows "
            "in this session when it has ended."
        )
        return text_result(text, {"status": "running", **_facts(command)})

    async def _approved(
        self, command: NodeCommand, context: ToolContext, once_only: str | None = None
    ) -> ApprovalDecision | ToolResult:
        """Ask a person. Returns the decision that allows the command, or the result of a refusal."""
        questions = self._questions
        if questions is None:
            raise ToolError("exec needs an approval, but nobody can be asked here")
        request = ApprovalRequest(
            command=command.text,
            cwd=command.cwd,
            host="node",
            node=command.node.name,
            security=command.policy.security,
            ask=command.policy.ask,
            agent_id=command.agent_id,
            session_key=command.session_key,
            env=dict(command.sets) or None,
            once_only=once_only,
        )
        fingerprint = fingerprint_of(command.node.node_id, command.text, command.cwd, dict(command.sets))
        question = await ask_approval(questions, "exec", request, context, fingerprint=fingerprint)
        decision = decision_of(question)
        if decision is None or decision == "deny":
            return refused_result(question, refusal_reason(question) or "user-denied")
        if not await questions.begin_once(question):
            raise ToolError(f"the command of question {question.id} has begun before and is not repeated")
        return decision


def failure_text(failed: NodeFailed, command: NodeCommand) -> str:
    """Why a node did not run a command, and whether it may do so still."""
    name = shortened(command.node.name)
    if failed.failure == "NOT_ALLOWED":
        return f"node {name} may not be asked to run commands: {failed}"
    if failed.interrupted:
        return (
            f"node {name}: {failed}. The command may or may not have run, and may still be running there. Its outcome "
            "follows in this session if the node reports it; check before you run it again"
        )
    return f"node {name}: {clipped(str(failed), OUTCOME_CHARS)}"


def _result(outcome: NodeOutcome, command: NodeCommand) -> ToolResult:
    if outcome.failure:
        raise ToolError(f"{outcome.output}\n\n{outcome.failure}" if outcome.output else outcome.failure)
    details = {"status": "completed", "exitCode": 0, **_facts(command)}
    return text_result(outcome.output or "(no output)", details)


def _facts(command: NodeCommand) -> dict[str, Any]:
    return {"host": "node", "nodeId": command.node.node_id, "node": command.node.name, "runId": command.run_id}


def _finished(command: NodeCommand, id: str, outcome: NodeOutcome) -> str:
    text = f"Exec finished (node={shortened(command.node.name)}, id={id}, {outcome.how})"
    output = outcome.output[-OUTCOME_CHARS:].strip()
    return f"{text}\n{output}" if output else text
