"""``exec.approval.*`` and ``exec.approvals.*``: questions to people about commands, and the rules that decide."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.result import Result
from openclaw.tools.exec.approvals import (
    TIMEOUT_MS,
    Approval,
    ApprovalDecision,
    ApprovalJournal,
    ApprovalRequest,
    BadRules,
    PendingApproval,
    UnknownApproval,
)
from openclaw.tools.exec.binding import fenced

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.server.events import Broadcaster
    from openclaw.inbound.notices import Notices
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.runs.run import RunIndex

log = logging.getLogger("openclaw.gateway")
methods = MethodTable()

SHOWN_COMMAND = 1000
"""The number of characters of a command in the news about one that is over. A question shows all of it."""
_LOST = uuid.UUID("6f0a3a52-5c3c-4d0e-9a55-2b8a1e0b7c11")
"""The namespace of the run ids that tell a session of a lost question."""


class RequestParams(Params):
    command: NonEmpty
    id: NonEmpty | None = None
    cwd: str | None = None
    host: str | None = None
    node: str | None = None
    security: str | None = None
    ask: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None
    env: dict[str, str] | None = None
    once_only: str | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ApprovalResult(Result):
    id: str
    decision: ApprovalDecision | None
    """Null if nobody decided in time."""
    created_at_ms: int
    expires_at_ms: int


@methods.add("exec.approval.request", RequestParams)
async def request(call: MethodCall, params: RequestParams) -> ApprovalResult:
    """Answers once a person has decided, or nobody did in time."""
    fields = msgspec.structs.asdict(params)
    id, timeout_ms = fields.pop("id"), fields.pop("timeout_ms") or TIMEOUT_MS
    approvals = call.gateway.runtime.tools.approvals
    try:
        approval = approvals.ask(ApprovalRequest(**fields), id=id, timeout_ms=timeout_ms)
    except ValueError as error:
        raise MethodError(str(error)) from None
    await approvals.keep(approval)
    decision = await approval.wait()
    await approvals.settled(approval)
    return ApprovalResult(approval.id, decision, approval.created_at_ms, approval.expires_at_ms)


class ResolveParams(Params):
    id: NonEmpty
    decision: NonEmpty


class ApprovalAnswered(Result):
    ok: bool
    allowed_once: str = ""
    """Why a command that was always allowed is allowed only this time."""


@methods.add("exec.approval.resolve", ResolveParams)
async def resolve(call: MethodCall, params: ResolveParams) -> ApprovalAnswered:
    """Answers whether a command may run."""
    try:
        decision = msgspec.convert(params.decision, ApprovalDecision)
    except msgspec.ValidationError:
        raise MethodError("invalid decision") from None
    info = call.client.client_info
    try:
        approval = call.gateway.runtime.tools.approvals.resolve(params.id, decision, info.display_name or info.id)
    except UnknownApproval as unknown:
        raise MethodError(str(unknown)) from None
    if decision == "allow-always" and approval.request.once_only:
        return ApprovalAnswered(True, approval.request.once_only)
    return ApprovalAnswered(True)


class ApprovalQuestion(Result):
    """A question about a command, as clients get it."""

    id: str
    request: ApprovalRequest
    created_at_ms: int
    expires_at_ms: int


class ApprovalQuestions(Result):
    approvals: list[ApprovalQuestion]


@methods.add("exec.approval.list", NoParams)
async def list_open(call: MethodCall) -> ApprovalQuestions:
    """The questions that nobody has answered yet, oldest first, for a client that comes later."""
    return ApprovalQuestions([question_view(approval) for approval in call.gateway.runtime.tools.approvals.pending()])


@methods.add("exec.approvals.get", NoParams)
async def get(call: MethodCall) -> OpenObject:
    """The rules for commands on this machine."""
    try:
        return (await call.gateway.runtime.tools.approval_rules.snapshot()).view()
    except BadRules as bad:
        raise MethodError(str(bad), code="UNAVAILABLE") from None


class SetParams(Params):
    file: dict[str, Any]
    base_hash: NonEmpty | None = None


@methods.add("exec.approvals.set", SetParams)
async def set_rules(call: MethodCall, params: SetParams) -> OpenObject:
    """Writes the rules for commands on this machine."""
    try:
        return (await call.gateway.runtime.tools.approval_rules.replace(params.file, params.base_hash)).view()
    except BadRules as bad:
        raise MethodError(str(bad)) from None


# Notifications about questions


class ApprovalResolved(msgspec.Struct, rename="camel"):
    id: str
    decision: ApprovalDecision | None
    resolved_by: str | None
    ts: int


def watch_approvals(
    runtime: Runtime,
    broadcaster: Broadcaster,
    index: RunIndex,
    notices: Notices,
    spawn: Callable[[Coroutine[Any, Any, None]], object],
) -> None:
    """Notify the clients that may answer, and the chat a question arose in, of every question and its end."""

    def notify_chat(approval: Approval, event: str, text: str) -> None:
        """Notify the chat that the run was started from, unless the configuration keeps questions to the clients."""
        run = index.get(approval.run_id) if approval.run_id else None
        settings = runtime.config.current.approvals.get("exec", {})
        if run is not None and not (isinstance(settings, dict) and settings.get("enabled") is False):
            spawn(notices.notify_run(run, f"approval-{approval.id}-{event}", text))

    def requested(approval: Approval) -> None:
        broadcaster.publish("exec.approval.requested", question_view(approval), drop_if_slow=True)
        notify_chat(approval, "asked", question_text(approval))

    def decided(approval: Approval, by: str | None) -> None:
        event = ApprovalResolved(approval.id, approval.decision, by, runtime.clock.now_ms())
        broadcaster.publish("exec.approval.resolved", event, drop_if_slow=True)

    def expired(approval: Approval) -> None:
        if not approval.withdrawn:
            notify_chat(approval, "expired", f"⏱️ Nobody answered approval {approval.slug} in time.")

    approvals = runtime.tools.approvals
    approvals.on_requested, approvals.on_decided, approvals.on_expired = requested, decided, expired


def question_view(approval: Approval) -> ApprovalQuestion:
    return ApprovalQuestion(approval.id, approval.request, approval.created_at_ms, approval.expires_at_ms)


def question_text(approval: Approval) -> str:
    """The whole question. Long ones go out in several messages."""
    request = approval.request
    seconds = round((approval.expires_at_ms - approval.created_at_ms) / 1000)
    lines = [f"🔒 May I run this command? (id {approval.slug})", "", fenced(request.command), ""]
    if request.node:
        lines += ["On the node:", fenced(request.node)]
    if request.cwd:
        lines += ["In:", fenced(request.cwd)]
    if request.env:
        lines += ["It sets:", fenced("\n".join(f"{name}={value}" for name, value in request.env.items()))]
    if request.once_only:
        lines += ["It cannot be allowed for good:", fenced(request.once_only)]
    lines.append(f"Answer within {seconds} s: /approve {approval.slug} {approval.choices}")
    return "\n".join(lines)


async def report_lost(journal: ApprovalJournal | None, pipeline: Pipeline) -> None:
    """Report to each session once which of its questions the restart of the Gateway closed."""
    if journal is None:
        return
    try:
        while journal.left_over:
            lost = journal.left_over[0]
            if lost.run_id:
                # The id follows from the question, so a second attempt after a crash repeats nothing.
                await pipeline.wake(lost.run_id, lost_text(lost), str(uuid.uuid5(_LOST, lost.id)))
            await journal.note(msgspec.structs.replace(lost, state="lost"))
            journal.left_over.pop(0)
    except OSError as error:
        log.error("cannot report to sessions yet which questions a restart closed: %s", error)


def lost_text(lost: PendingApproval) -> str:
    command = " ".join(lost.command.split())[:SHOWN_COMMAND]
    if lost.state == "running":
        return (
            f"Exec interrupted (gateway id={lost.id}, gateway-restarted): {command}\n"
            "It had been approved and was running when the Gateway stopped. It was not repeated; it may or may not "
            "have taken effect. Check before you do it again."
        )
    return (
        f"Exec denied (gateway id={lost.id}, gateway-restarted): {command}\n"
        "The Gateway was restarted before anybody answered, so the command was not run and the question is closed. "
        "Say so; if the command is still wanted, it has to be asked for again."
    )
