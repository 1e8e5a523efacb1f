"""``exec.approval.*`` and ``exec.approvals.*``: asking people about commands, and the rules they left behind."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.server.params import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import Call, MethodError, MethodTable
from openclaw.tools.exec.approvals import (
    TIMEOUT_MS,
    ApprovalRequest,
    ApprovalRules,
    Approvals,
    BadRules,
    Decision,
    UnknownApproval,
)

methods = MethodTable()


class RequestParams(Params):
    command: NonEmpty
    id: NonEmpty | None = None
    cwd: str | None = None
    host: str | None = None
    security: str | None = None
    ask: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None


@methods.add("exec.approval.request", RequestParams)
async def request(call: Call) -> Any:
    """Answers once a person has decided. ``decision`` is null when nobody decided in time."""
    params: RequestParams = call.params
    asked = ApprovalRequest(
        command=params.command,
        cwd=params.cwd,
        host=params.host,
        security=params.security,
        ask=params.ask,
        agent_id=params.agent_id,
        resolved_path=params.resolved_path,
        session_key=params.session_key,
    )
    try:
        approval = _approvals(call).ask(asked, id=params.id, timeout_ms=params.timeout_ms or TIMEOUT_MS)
    except ValueError as error:
        raise MethodError(str(error)) from None
    await _approvals(call).keep(approval)
    decision = await approval.wait()
    await _approvals(call).settled(approval)
    return {
        "id": approval.id,
        "decision": decision,
        "createdAtMs": approval.created_at_ms,
        "expiresAtMs": approval.expires_at_ms,
    }


class ResolveParams(Params):
    id: NonEmpty
    decision: NonEmpty


@methods.add("exec.approval.resolve", ResolveParams)
async def resolve(call: Call) -> Any:
    params: ResolveParams = call.params
    try:
        decision = msgspec.convert(params.decision, Decision)
    except msgspec.ValidationError:
        raise MethodError("invalid decision") from None
    info = call.client.client_info
    try:
        _approvals(call).resolve(params.id, decision, info.display_name or info.id)
    except UnknownApproval as unknown:
        raise MethodError(str(unknown)) from None
    return {"ok": True}


@methods.add("exec.approvals.get", NoParams)
async def get(call: Call) -> Any:
    try:
        return (await _rules(call).snapshot()).view()
    except BadRules as bad:
        raise MethodError(str(bad), code="UNAVAILABLE") from None


class SetParams(Params):
    file: dict[str, Any]
    base_hash: NonEmpty | None = None


@methods.add("exec.approvals.set", SetParams)
async def set_rules(call: Call) -> Any:
    params: SetParams = call.params
    try:
        return (await _rules(call).replace(params.file, params.base_hash)).view()
    except BadRules as bad:
        raise MethodError(str(bad)) from None


def _approvals(call: Call) -> Approvals:
    approvals = call.gateway.runtime.approvals
    assert approvals is not None
    return approvals


def _rules(call: Call) -> ApprovalRules:
    rules = call.gateway.runtime.approval_rules
    assert rules is not None
    return rules
