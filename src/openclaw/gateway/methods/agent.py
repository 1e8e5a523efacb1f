"""``agent`` and ``agent.wait``: runs on request. ``agent`` answers twice: at acceptance and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from openclaw.config.agents import main_session_key
from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, entry_of, require_agent, target_of
from openclaw.inbound.attachments import BadAttachment, InboundFile, read_images
from openclaw.inbound.directives import may_be_command
from openclaw.inbound.incoming import Handled, Incoming, client_facts
from openclaw.inbound.pipeline import Accepted
from openclaw.models.thinking import parse_level
from openclaw.outbound.reasoning import reasoning_message
from openclaw.paths import normalize_agent_id
from openclaw.runs.queue import RunRecord
from openclaw.runs.why_text import reason_text
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, group_of, is_subagent
from openclaw.storage.base import LedgerRow, MessageBody

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
    attachments: list[InboundFile] | None = None
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
async def agent(call: MethodCall) -> Any:
    """Runs one turn of an agent: an early answer when it is accepted, the result at its end."""
    params: AgentParams = call.params
    gateway = call.gateway
    for channel in (params.channel, params.reply_channel):
        if channel and channel.strip().lower() not in KNOWN_CHANNELS:
            raise MethodError(f"unknown channel: {channel}")
    session = await _session(call, params)
    try:
        images, _ = read_images(params.attachments or [])
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None
    call.client.follow_run(params.idempotency_key)
    entry = await entry_of(gateway, session)
    message = Incoming(
        facts=client_facts(session, call.client.rights, has_media=bool(images)),
        text=params.message,
        door="chat",
        run_id=params.idempotency_key,
        source="agent",
        route=_route(params, entry, session),
        reads_commands=_written_by_hand(params),
        # What the caller names as the channel does not get around the rules for the session's own.
        policy_channel=params.channel if entry is None and group_of(session.key)[0] is None else None,
        body=MessageBody(
            thinking=thinking_level(params.thinking),
            timeout_seconds=params.timeout,
            extra_system_prompt=params.extra_system_prompt or "",
        ),
        images=images,
        entry_fields=_entry_fields(params, session),
        watcher=call.client.conn_id,
    )
    result = await gateway.pipeline.process(message)
    if isinstance(result, Handled):
        return await _obeyed(call, message, result)
    if not isinstance(result, Accepted):
        raise MethodError("send blocked by session policy")
    record, row = result.submission.record, result.submission.row
    call.respond({"runId": params.idempotency_key, "status": "accepted", "acceptedAt": row.accepted_at})
    if record is not None:
        await record.wait()
        answer = _result(record)
    else:
        await gateway.dispatcher.wait(row.run_id, 24 * 3600)
        answer = _stored_result(await gateway.runtime.ledger.by_run(row.run_id) or row)
    if result.side_replies:
        said = [payload(text) for text in result.side_replies]
        answer["result"]["payloads"] = [*said, *answer["result"]["payloads"]]
    return answer


def _written_by_hand(params: AgentParams) -> bool:
    """Whether commands and settings in the text count. They do not count in the text of a program or a file."""
    made = params.lane or params.extra_system_prompt or params.spawned_by
    return not made and may_be_command(params.message) and "\n```" not in params.message


async def _obeyed(call: MethodCall, message: Incoming, handled: Handled) -> dict[str, Any]:
    """Answers a command. The answer has the shape of a run's."""
    gateway, run_id = call.gateway, message.run_id
    began = gateway.runtime.clock.now_ms()
    call.respond({"runId": run_id, "status": "accepted", "acceptedAt": began})
    reply = await gateway.pipeline.answer(message, handled)
    entry = await entry_of(gateway, message.facts.session)
    meta = {
        "durationMs": gateway.runtime.clock.now_ms() - began,
        "agentMeta": {"sessionId": entry["sessionId"] if entry else None},
        "aborted": False,
    }
    return _answer(run_id, [payload(reply)] if reply else [], meta)


async def _session(call: MethodCall, params: AgentParams) -> SessionRef:
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
        return SessionRef(found.agent_id, found.key)
    if agent_id is not None:
        return target_of(gateway, main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return target_of(gateway, "main")


def thinking_level(text: str | None) -> str | None:
    if not text:
        return None
    level = parse_level(text)
    if level is None:
        raise MethodError("invalid thinking level (use off|minimal|low|medium|high|xhigh)")
    return level


def _route(params: AgentParams, entry: SessionEntry | None, target: SessionRef) -> dict[str, Any]:
    """Returns where the reply goes. Without ``deliver`` only the caller gets it."""
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


def _entry_fields(params: AgentParams, target: SessionRef) -> dict[str, Any]:
    fields = {
        "label": params.label,
        "spawnedBy": params.spawned_by if is_subagent(target.key) else None,
        "groupId": params.group_id,
        "groupChannel": params.group_channel,
        "space": params.group_space,
    }
    return {name: value for name, value in fields.items() if value}


def _result(record: RunRecord) -> dict[str, Any]:
    result = record.result
    if record.state == "error":
        _fail(record.run_id, record.error or "the run failed")
    assert result is not None
    usage = result.usage
    meta = {
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
    reasoning = reasoning_message(result.reasoning)
    said = [payload(one.text, one.media) for one in result.shown] or ([payload(result.notice)] if result.notice else [])
    return _answer(record.run_id, [payload(reasoning), *said] if reasoning else said, meta)


def payload(text: str, media: Sequence[str] = ()) -> dict[str, Any]:
    """One message of an answer, as clients get it: the text and the files that go with it, by address."""
    said: dict[str, Any] = {"text": text, "mediaUrl": media[0] if media else None}
    return {**said, "mediaUrls": list(media)} if media else said


def _answer(run_id: str, payloads: list[dict[str, Any]], meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "runId": run_id,
        "status": "ok",
        "summary": "aborted" if meta["aborted"] else "completed",
        "result": {"payloads": payloads, "meta": meta},
    }


def _usage(usage: Any) -> dict[str, int]:
    counts = {"input": usage.input, "output": usage.output}
    if usage.cache_read:
        counts["cacheRead"] = usage.cache_read
    if usage.cache_write:
        counts["cacheWrite"] = usage.cache_write
    return {**counts, "total": usage.total_tokens}


def _stored_result(row: LedgerRow) -> dict[str, Any]:
    """Returns what the ledger knows of a run that ended long ago or before this Gateway started."""
    if row.state in ("failed", "expired"):
        _fail(row.run_id, reason_text(row.reason) or row.state)
    stored = row.result or {}
    text, media = stored.get("text"), stored.get("media") or []
    meta = {"agentMeta": {"sessionId": stored.get("sessionId")}, "aborted": row.state == "superseded"}
    return _answer(row.run_id, [payload(text or "", media)] if text or media else [], meta)


def _fail(run_id: str, error: str) -> None:
    payload = {"runId": run_id, "status": "error", "summary": error}
    raise MethodError(error, code="UNAVAILABLE", payload=payload)


class AgentWait(Params):
    run_id: NonEmpty
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 30_000


@methods.add("agent.wait", AgentWait)
async def wait(call: MethodCall) -> Any:
    """Waits for the end of a run, and says how it went."""
    params: AgentWait = call.params
    outcome = await call.gateway.dispatcher.wait(params.run_id, params.timeout_ms / 1000)
    known = {"startedAt": outcome.started_at, "endedAt": outcome.ended_at, "error": outcome.error}
    told = {name: value for name, value in known.items() if value is not None}
    return {"runId": params.run_id, "status": outcome.status, **told}
