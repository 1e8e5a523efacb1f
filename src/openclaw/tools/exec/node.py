"""Commands on nodes: ``exec`` with the host ``node``, and ``nodes run``.

The node decides by its own rules whether a command may run there. If they want a person to be asked, the Gateway asks
and sends the command again with the answer. A command that takes long goes on in the background.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.text import clipped, shortened
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.approvals import Approval, ApprovalRequest, Approvals, Decision, asked_person, pending_result
from openclaw.tools.exec.settings import CommandPolicy, ExecSettings
from openclaw.tools.nodes import SYSTEM_RUN, NodeCalls, NodeFacts, NodeFailed, UnknownNode
from openclaw.tools.shell_process import clean

ANSWER_GRACE_MS = 10_000
"""A node has this long to answer after the time of a command is up."""
OUTCOME_CHARS = 2000
COMMAND_CHARS = 300
MAX_BACKGROUND = 64


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

    def params(self, decision: Decision | None = None) -> dict[str, Any]:
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
        told: Mapping[str, Any] = payload if isinstance(payload, dict) else {}
        parts = [str(told[name]) for name in ("stdout", "stderr", "error") if told.get(name)]
        text = clean("\n".join(part.rstrip("\n") for part in parts)).strip("\n").rstrip()
        if len(text) > max_chars:
            text = f"[Output cut: the last {max_chars} characters of {len(text)}]\n{text[-max_chars:]}"
        code = told.get("exitCode")
        if told.get("timedOut"):
            return cls(output=text, failure=f"Command timed out after {command.timeout_s:g} seconds", how="timeout")
        if not isinstance(code, int):
            failure = None if told.get("success") else "Command could not be run on the node"
            return cls(output=text, failure=failure, how="code ?")
        return cls(output=text, failure=f"Command exited with code {code}" if code else None, how=f"code {code}")


class NodeExec:
    """Runs commands on nodes. ``approvals`` None: nobody can be asked."""

    def __init__(self, nodes: NodeCalls, approvals: Approvals | None, clock: Clock, settings: ExecSettings) -> None:
        self._nodes = nodes
        self._approvals = approvals
        self._clock = clock
        self._max_chars = settings.max_output_chars
        self._notice_s = settings.approval_running_notice_ms / 1000
        self._background: set[asyncio.Task[None]] = set()

    def choose(self, bound: str | None, wanted: str | None) -> NodeFacts:
        """The node that a command runs on. ``bound`` is the one that the owner set. Raises ``ToolError``."""
        try:
            node = self._nodes.choose(bound or wanted, SYSTEM_RUN)
            if bound and wanted and self._nodes.choose(wanted) != node:
                raise ToolError(f"exec node {shortened(wanted)} is not allowed: commands run on {shortened(node.name)}")
        except UnknownNode as unknown:
            raise ToolError(f"exec host node: {unknown}") from None
        if not node.connected:
            raise ToolError(f"exec host node: {shortened(node.name)} is not connected to this Gateway")
        if SYSTEM_RUN not in node.commands:
            raise ToolError(f"exec host node: {shortened(node.name)} runs no commands ({SYSTEM_RUN})")
        return node

    async def run(self, command: NodeCommand, window_s: float | None, context: ToolContext) -> ToolResult:
        """Runs the command, or asks first. ``window_s`` is how long the call waits; None means until it ends."""
        if command.policy.ask == "always":
            return await self._ask(command, context)
        task = asyncio.create_task(self._carry_out(command, context, None))
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
            if failed.wants_approval:
                return await self._ask(command, context)
            raise ToolError(failure_text(failed, command)) from None

    async def _carry_out(self, command: NodeCommand, context: ToolContext, decision: Decision | None) -> NodeOutcome:
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
                await self._nodes.end(command.run_id)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._nodes.end(command.run_id))
            raise
        await self._nodes.end(command.run_id)
        return NodeOutcome.of(payload, command, self._max_chars)

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
                self._note(context, f"Exec failed ({_named(command)}): {failure_text(failed, command)}")
                return
            (context.wake or context.notify or _nobody)(_finished(command, command.run_id, outcome))

        following = asyncio.create_task(follow())
        self._background.add(following)
        following.add_done_callback(self._background.discard)
        text = (
            f"Command still running on node {shortened(command.node.name)} (id {command.run_id}). The outcome follows "
            "in this session when it has ended."
        )
        return text_result(text, {"status": "running", **_facts(command)})

    def _note(self, context: ToolContext, text: str) -> None:
        (context.notify or _nobody)(text)

    # Approvals

    async def _ask(self, command: NodeCommand, context: ToolContext) -> ToolResult:
        if self._approvals is None:
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
        )
        approval = await asked_person(self._approvals, request, context.run_id)
        self._approvals.spawn(self._after_answer(approval, command, self._approvals, context))
        return pending_result(approval)

    async def _after_answer(
        self, approval: Approval, command: NodeCommand, approvals: Approvals, context: ToolContext
    ) -> None:
        decision = await approval.wait()
        if not approval.withdrawn:
            await self._act_on(decision, approval, command, approvals, context)
        await approvals.settled(approval)

    async def _act_on(
        self,
        decision: Decision | None,
        approval: Approval,
        command: NodeCommand,
        approvals: Approvals,
        context: ToolContext,
    ) -> None:
        shown = clipped(" ".join(approval.request.command.split()), COMMAND_CHARS)
        named = f"node={shortened(command.node.name)}, id={approval.id}"
        if decision is None or decision == "deny":
            why = "user-denied" if decision else "approval-timeout"
            self._note(context, f"Exec denied ({named}, {why}): {shown}")
            return
        await approvals.keep(approval, "running")
        task = asyncio.create_task(self._carry_out(command, context, decision))
        try:
            await self._within(task, self._notice_s or None)
            if not task.done():
                self._note(context, f"Exec running ({named}, >{self._notice_s:g}s): {shown}")
            outcome = await task
        except NodeFailed as failed:
            self._note(context, f"Exec denied ({named}): {failure_text(failed, command)}: {shown}")
            return
        finally:
            task.cancel()
        (context.wake or context.notify or _nobody)(_finished(command, approval.id, outcome))


def new_command(
    text: str,
    node: NodeFacts,
    policy: CommandPolicy,
    context: ToolContext,
    *,
    cwd: str | None,
    sets: Mapping[str, str],
    timeout_s: float,
) -> NodeCommand:
    return NodeCommand(
        run_id=str(uuid.uuid4()),
        node=node,
        text=text,
        cwd=(cwd or "").strip() or None,
        sets=sets,
        timeout_s=timeout_s,
        policy=policy,
        agent_id=context.agent_id,
        session_key=context.session_key,
    )


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


def _named(command: NodeCommand) -> str:
    return f"node={shortened(command.node.name)}, id={command.run_id}"


def _finished(command: NodeCommand, id: str, outcome: NodeOutcome) -> str:
    text = f"Exec finished (node={shortened(command.node.name)}, id={id}, {outcome.how})"
    output = outcome.output[-OUTCOME_CHARS:].strip()
    return f"{text}\n{output}" if output else text


def _nobody(text: str) -> None:
    """Nobody is to be told."""
