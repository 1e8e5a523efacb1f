"""``exec.approval.*`` and ``exec.approvals.*``: questions to people about commands, and the rules that decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.result import Result
from openclaw.questions.desk import UnknownQuestion
from openclaw.storage.questions import Question
from openclaw.tools.exec.approvals import (
    TIMEOUT_MS,
    ApprovalDecision,
    ApprovalRequest,
    BadRules,
    approval_question,
    decision_of,
    request_of,
)

if TYPE_CHECKING:
    from openclaw.gateway.server.events import Broadcaster

methods = MethodTable()


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
    desk = call.gateway.runtime.tools.questions
    if id is not None and any(question.id == id for question in desk.open_questions()):
        raise MethodError("approval id already pending")
    try:
        asked = approval_question(ApprovalRequest(**fields), id=id or "", timeout_ms=timeout_ms)
        question = await desk.wait(await desk.ask(asked))
    except ValueError as error:
        raise MethodError(str(error)) from None
    return ApprovalResult(question.id, decision_of(question), question.created_at, question.expires_at)


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
    desk = call.gateway.runtime.tools.questions
    try:
        question = await desk.find(params.id)
        if not question.is_approval:
            raise MethodError(f"question {params.id} is no approval; use question.answer")
        question = await desk.answer(params.id, decision, info.display_name or info.id)
    except UnknownQuestion as unknown:
        raise MethodError(str(unknown).replace("question id", "approval id")) from None
    once_only = request_of(question).once_only
    return ApprovalAnswered(True, once_only if decision == "allow-always" and once_only else "")


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
    questions = call.gateway.runtime.tools.questions.open_questions()
    return ApprovalQuestions([approval_view(question) for question in questions if question.is_approval])


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


# Notifications about approvals


class ApprovalResolved(msgspec.Struct, rename="camel"):
    id: str
    decision: ApprovalDecision | None
    resolved_by: str | None
    ts: int


class ApprovalEvents:
    """Publishes approvals to clients that know no other questions."""

    def __init__(self, broadcaster: Broadcaster) -> None:
        self._broadcaster = broadcaster

    def opened(self, question: Question) -> None:
        if question.is_approval:
            self._broadcaster.publish("exec.approval.requested", approval_view(question), drop_if_slow=True)

    def ended(self, question: Question) -> None:
        if question.is_approval and question.state == "answered":
            by, at = question.answered_by or None, question.ended_at or 0
            event = ApprovalResolved(question.id, decision_of(question), by, at)
            self._broadcaster.publish("exec.approval.resolved", event, drop_if_slow=True)


def approval_view(question: Question) -> ApprovalQuestion:
    return ApprovalQuestion(question.id, request_of(question), question.created_at, question.expires_at)
