"""``agent`` and ``agent.wait``: a run on request, answered twice: when it is accepted and when it has ended."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from openclaw.agent.result import RunResult
from openclaw.config.agents import main_session_key
from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import Call, MethodError, MethodTable
from openclaw.gateway.spoken import Said, say, show
from openclaw.gateway.targets import Target, check_send_policy, entry_of, require_agent, target_of
from openclaw.gateway.webchat import fresh_session, hear, may_be_command, operator_may_elevate
from openclaw.inbound.attachments import Attachment, BadAttachment, Image, read_images
from openclaw.inbound.command_text import is_abort, is_control_message
from openclaw.inbound.commands.context import Continue, Handled, Outcome
from openclaw.inbound.intake import Incoming, take_in
from openclaw.inbound.stamp import ABORT_NOTE, stamped
from openclaw.models.thinking import parse_level
from openclaw.outbound.reasoning import reasoning_message
from openclaw.paths import normalize_agent_id
from openclaw.runs.admission import Ticket
from openclaw.runs.dispatcher import Submission
from openclaw.runs.run_index import RunRecord
from openclaw.runs.why_text import reason_text
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import is_subagent
from openclaw.storage.base import LedgerRow

methods = MethodTable()

KNOWN_CHANNELS = frozenset(
    {"whatsapp", "telegram", "discord", "slack", "signal", "imessage", "webchat", "last", "internal", "matrix", "irc"}
)


class AgentParams(Params):
    message: NonEmpty
    idempotency_key: NonEmpty
    agent_id: NonEmpty | None = None
    to: str | None = None
    reply_to: str | None = None
    session_id: str | None = None
    session_key: str | None = None
    thinking: str | None = None
    deliver: bool | None = None
    attachments: list[Attachment] | None = None
    channel: str | None = None
    reply_channel: str | None = None
    account_id: str | None = None
    reply_account_id: str | None = None
    thread_id: str | None = None
    group_id: str | None = None
    group_channel: str | None = None
    group_space: str | None = None
    timeout: Annotated[int, msgspec.Meta(ge=0)] | None = None
    lane: str | None = None
    extra_system_prompt: str | None = None
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    spawned_by: str | None = None


@methods.add("agent", AgentParams)
async def agent(call: Call) -> Any:
    params: AgentParams = call.params
    _check_channel(params)
    target = await _target(call, params)
    try:
        images, _ = read_images(params.attachments or [])
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None
    call.client.follow_run(params.idempotency_key)
    outcome, submission = await _in_order(call, params, target, images)
    if isinstance(outcome, Handled):
        return await _obeyed(call, params, target, outcome)
    assert submission is not None
    accepted_at = submission.row.accepted_at
    call.respond({"runId": params.idempotency_key, "status": "accepted", "acceptedAt": accepted_at})
    answer = await _final(call, submission)
    if outcome.side_replies:
        said = [{"text": text, "mediaUrl": None} for text in outcome.side_replies]
        answer["result"]["payloads"] = [*said, *answer["result"]["payloads"]]
    return answer


async def _in_order(
    call: Call, params: AgentParams, target: Target, images: list[Image]
) -> tuple[Outcome, Submission | None]:
    """What was sent before to the same session comes first; a word that stops the run does not wait for it long."""
    admission = call.gateway.dispatcher.admission
    if _written_by_hand(params) and is_abort(params.message):
        await admission.wait_for_earlier(target.key)
        return await _take_in(call, params, target, images)
    ticket = await admission.admit(target.key)
    try:
        return await _take_in(call, params, target, images, ticket)
    finally:
        ticket.done()


async def _take_in(
    call: Call, params: AgentParams, target: Target, images: list[Image], ticket: Ticket | None = None
) -> tuple[Outcome, Submission | None]:
    """What the message turned out to be; if it goes on to the agent, it is on disk."""
    gateway = call.gateway
    commanded = _written_by_hand(params)
    if not (commanded and is_control_message(params.message)):
        check_send_policy(gateway, target, await entry_of(gateway, target), channel=params.channel)
    outcome: Outcome = Continue(text=params.message)
    if commanded and not await _known(call, params):
        outcome = await hear(gateway, target, params.message, has_media=bool(images))
    if isinstance(outcome, Handled):
        return outcome, None
    entry = await fresh_session(gateway, target)
    check_send_policy(gateway, target, entry, channel=params.channel)
    for number, reply in enumerate(outcome.side_replies):
        await show(gateway, target, f"{params.idempotency_key}:{number}", reply)
    incoming = Incoming(
        run_id=params.idempotency_key,
        agent_id=target.agent_id,
        session_key=target.key,
        source="agent",
        route=_route(params, entry, target),
        prompt=_prompt(call, outcome, entry),
        images=images,
        thinking=_thinking(params),
        timeout_s=params.timeout,
        extra_system_prompt=params.extra_system_prompt or "",
        hints=replace(outcome.hints, elevated_allowed=operator_may_elevate(gateway, target)),
        entry_fields=_entry_fields(params, target),
        watcher=call.client.conn_id,
    )
    return outcome, await take_in(incoming, gateway.runtime, gateway.dispatcher, ticket)


def _prompt(call: Call, outcome: Continue, entry: SessionEntry) -> str:
    if outcome.greeting:
        return outcome.text
    zone = call.gateway.runtime.config.current.agents.defaults.user_timezone
    prompt = stamped(outcome.text, call.gateway.runtime.clock.now_ms(), zone)
    return f"{ABORT_NOTE}\n\n{prompt}" if entry.get("abortedLastRun") else prompt


def _written_by_hand(params: AgentParams) -> bool:
    """Whether commands and settings in the text are meant as such. What a program or a file says is only read."""
    made = params.lane or params.extra_system_prompt or params.spawned_by
    return not made and may_be_command(params.message) and "\n```" not in params.message


async def _known(call: Call, params: AgentParams) -> bool:
    """A command is carried out before it is written down, so that one sent again has to be noticed here."""
    run_id = params.idempotency_key
    return (
        call.gateway.dispatcher.find(run_id) is not None or await call.gateway.runtime.ledger.by_run(run_id) is not None
    )


async def _obeyed(call: Call, params: AgentParams, target: Target, outcome: Handled) -> dict[str, Any]:
    """A command needs no model; its answer has the shape of any other."""
    gateway, run_id = call.gateway, params.idempotency_key
    began = gateway.runtime.clock.now_ms()
    call.respond({"runId": run_id, "status": "accepted", "acceptedAt": began})
    reply = outcome.reply if outcome.later is None else await outcome.later
    said = Said(
        run_id=run_id,
        target=target,
        source="agent",
        route=_route(params, await entry_of(gateway, target), target),
        asked=params.message,
        text=reply,
    )
    await say(gateway, said)
    entry = await entry_of(gateway, target)
    meta = {
        "durationMs": gateway.runtime.clock.now_ms() - began,
        "agentMeta": {"sessionId": entry["sessionId"] if entry else None},
        "aborted": False,
    }
    payloads = [{"text": reply, "mediaUrl": None}] if reply else []
    result = {"payloads": payloads, "meta": meta}
    return {"runId": run_id, "status": "ok", "summary": "completed", "result": result}


def _check_channel(params: AgentParams) -> None:
    for channel in (params.channel, params.reply_channel):
        if channel and channel.strip().lower() not in KNOWN_CHANNELS:
            raise MethodError(f"unknown channel: {channel}")


async def _target(call: Call, params: AgentParams) -> Target:
    gateway = call.gateway
    agent_id = normalize_agent_id(params.agent_id) if params.agent_id else None
    if agent_id is not None:
        require_agent(gateway, agent_id)
    if params.session_key:
        target = target_of(gateway, params.session_key, agent_id)
        if agent_id is not None and target.agent_id != agent_id:
            raise MethodError(f'agent "{agent_id}" does not match session key agent "{target.agent_id}"')
        return target
    if params.session_id:
        found = await gateway.runtime.sessions.find_session_id(params.session_id)
        if found is None:
            raise MethodError(f"No session found: {params.session_id}")
        return Target(found.agent_id, found.key)
    if agent_id is not None:
        return target_of(gateway, main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return target_of(gateway, "main")


def _thinking(params: AgentParams) -> str | None:
    if not params.thinking:
        return None
    level = parse_level(params.thinking)
    if level is None:
        raise MethodError("invalid thinking level (use off|minimal|low|medium|high|xhigh)")
    return level


def _route(params: AgentParams, entry: SessionEntry | None, target: Target) -> dict[str, Any]:
    """Fixed here, when the message is accepted; without ``deliver`` the reply goes nowhere but to the caller."""
    if not params.deliver:
        return {"channel": "internal", "sessionKey": target.key}
    last = (entry or {}).get("deliveryContext") or {}
    channel = params.reply_channel or params.channel or last.get("channel") or "webchat"
    route = {
        "channel": channel,
        "to": params.reply_to or params.to or last.get("to"),
        "accountId": params.reply_account_id or params.account_id or last.get("accountId"),
        "threadId": params.thread_id or last.get("threadId"),
        "sessionKey": target.key,
    }
    return {name: value for name, value in route.items() if value}


def _entry_fields(params: AgentParams, target: Target) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if params.label:
        fields["label"] = params.label
    if params.spawned_by and is_subagent(target.key):
        fields["spawnedBy"] = params.spawned_by
    for name, value in (
        ("groupId", params.group_id),
        ("groupChannel", params.group_channel),
        ("space", params.group_space),
    ):
        if value:
            fields[name] = value
    return fields


async def _final(call: Call, submission: Submission) -> Any:
    record = submission.record
    if record is not None:
        await record.wait()
        return _result(record)
    row = submission.row
    await call.gateway.dispatcher.wait(row.run_id, 24 * 3600)
    return _stored_result(await call.gateway.runtime.ledger.by_run(row.run_id) or row)


def _result(record: RunRecord) -> dict[str, Any]:
    result = record.result
    if record.state == "error":
        _fail(record.run_id, record.error or "the run failed")
    assert result is not None
    usage = result.usage
    meta: dict[str, Any] = {
        "durationMs": result.duration_ms,
        "agentMeta": {
            "sessionId": result.session_id,
            "provider": result.provider,
            "model": result.model,
            **({"usage": _usage(usage)} if usage else {}),
        },
        "aborted": record.state == "aborted",
        "systemPromptReport": result.report.whole() if result.report else {},
    }
    payloads = [{"text": text, "mediaUrl": None} for text in _texts(result)]
    summary = "aborted" if record.state == "aborted" else "completed"
    return {
        "runId": record.run_id,
        "status": "ok",
        "summary": summary,
        "result": {"payloads": payloads, "meta": meta},
    }


def _texts(result: RunResult) -> list[str]:
    reasoning = reasoning_message(result.reasoning)
    said = result.shown_texts or ([result.notice] if result.notice else [])
    return [reasoning, *said] if reasoning else said


def _usage(usage: Any) -> dict[str, int]:
    counts = {"input": usage.input, "output": usage.output}
    if usage.cache_read:
        counts["cacheRead"] = usage.cache_read
    if usage.cache_write:
        counts["cacheWrite"] = usage.cache_write
    return {**counts, "total": usage.total_tokens}


def _stored_result(row: LedgerRow) -> dict[str, Any]:
    """What is known of a run that ended before this Gateway started or long ago."""
    if row.state in ("failed", "expired"):
        _fail(row.run_id, reason_text(row.reason) or row.state)
    stored = row.result or {}
    text = stored.get("text")
    meta = {"agentMeta": {"sessionId": stored.get("sessionId")}, "aborted": row.state == "superseded"}
    return {
        "runId": row.run_id,
        "status": "ok",
        "summary": "aborted" if row.state == "superseded" else "completed",
        "result": {"payloads": [{"text": text, "mediaUrl": None}] if text else [], "meta": meta},
    }


def _fail(run_id: str, error: str) -> None:
    payload = {"runId": run_id, "status": "error", "summary": error}
    raise MethodError(error, code="UNAVAILABLE", payload=payload)


class AgentWait(Params):
    run_id: NonEmpty
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 30_000


@methods.add("agent.wait", AgentWait)
async def wait(call: Call) -> Any:
    params: AgentWait = call.params
    outcome = await call.gateway.dispatcher.wait(params.run_id, params.timeout_ms / 1000)
    answer: dict[str, Any] = {"runId": params.run_id, "status": outcome.status}
    for name, value in (
        ("startedAt", outcome.started_at),
        ("endedAt", outcome.ended_at),
        ("error", outcome.error),
    ):
        if value is not None:
            answer[name] = value
    return answer
