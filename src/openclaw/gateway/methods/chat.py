"""``chat.*``: talking to a session from the web, a terminal or any WebSocket client."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import Call, MethodError, MethodTable
from openclaw.gateway.spoken import Said, say, show
from openclaw.gateway.targets import Target, check_send_policy, entry_of, require_configured, target_of, transcript_ref
from openclaw.gateway.views.history import injected_message, read_history
from openclaw.gateway.webchat import fresh_session, hear, may_be_command
from openclaw.inbound.attachments import Attachment, BadAttachment, Image, read_images
from openclaw.inbound.command_text import is_abort, is_control_message
from openclaw.inbound.commands.context import Handled
from openclaw.inbound.intake import Incoming, take_in
from openclaw.inbound.stamp import ABORT_NOTE, stamped
from openclaw.models.thinking import parse_level
from openclaw.runs.admission import Ticket
from openclaw.runs.dispatcher import Submission
from openclaw.runs.why_text import reason_text
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import group_of, shown_key
from openclaw.sessions.reset import home_of
from openclaw.storage.base import END_STATES, AbortReason

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()

WEBCHAT_FIELDS: dict[str, Any] = {
    "chatType": "direct",
    "deliveryContext": {"channel": "webchat"},
    "lastChannel": "webchat",
    "origin": {"provider": "webchat", "surface": "webchat", "chatType": "direct"},
}


def _first_fields(key: str) -> dict[str, Any]:
    """Of a session that begins here. Writing to a group from this side does not make it a direct chat."""
    channel, chat_type = group_of(key)
    if channel is None:
        return WEBCHAT_FIELDS
    origin = {**WEBCHAT_FIELDS["origin"], "chatType": chat_type}
    return {**WEBCHAT_FIELDS, "channel": channel, "chatType": chat_type, "origin": origin}


class ChatSend(Params):
    session_key: NonEmpty
    message: str
    idempotency_key: NonEmpty
    thinking: str | None = None
    deliver: bool | None = None
    attachments: list[Attachment] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


@methods.add("chat.send", ChatSend)
async def send(call: Call) -> Any:
    params: ChatSend = call.params
    gateway = call.gateway
    target = target_of(gateway, params.session_key)
    require_configured(gateway, target)
    attachments = params.attachments or []
    if not params.message.strip() and not attachments:
        raise MethodError("message or attachment required")
    try:
        images, warnings = read_images(attachments)
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None
    call.client.follow_run(params.idempotency_key)
    answer = await _in_order(call, params, target, images)
    return {**answer, "warnings": warnings} if warnings else answer


async def _in_order(call: Call, params: ChatSend, target: Target, images: list[Image]) -> dict[str, Any]:
    """What was sent before to the same session comes first; a word that stops the run does not wait for it long."""
    admission = call.gateway.dispatcher.admission
    if is_abort(params.message):
        await admission.wait_for_earlier(target.key)
        return await _repeated(call, params) or await _new(call, params, target, images)
    ticket = await admission.admit(target.key)
    try:
        if not is_control_message(params.message):
            await _check_policy(call, target)
        return await _repeated(call, params) or await _new(call, params, target, images, ticket)
    finally:
        ticket.done()


async def _check_policy(call: Call, target: Target) -> None:
    entry = await entry_of(call.gateway, target)
    check_send_policy(call.gateway, target, entry, channel="webchat" if entry is None else None)


async def _repeated(call: Call, params: ChatSend) -> dict[str, Any] | None:
    """The answer to a message that was sent before; None for one that seems new.

    The ledger is asked here only for what may be a command, which is carried out before it is written down. Everything
    else meets its earlier self when it is accepted, without a look-up of its own.
    """
    run_id = params.idempotency_key
    record = call.gateway.dispatcher.find(run_id)
    row = record.row if record else None
    if row is None and may_be_command(params.message):
        row = await call.gateway.runtime.ledger.by_run(run_id)
    if row is None:
        return None
    submission = Submission(row, False, False, record)
    if not _ended(submission):
        if record is not None:
            record.watchers.add(call.client.conn_id)
        call.client.finish_after(run_id)
    return _acknowledgement(submission)


async def _new(
    call: Call, params: ChatSend, target: Target, images: list[Image], ticket: Ticket | None = None
) -> dict[str, Any]:
    gateway, run_id = call.gateway, params.idempotency_key
    thinking = _thinking(params)
    outcome = await hear(gateway, target, params.message, has_media=bool(images), scopes=call.client.scopes)
    route = {"channel": "webchat", "sessionKey": target.key}
    if isinstance(outcome, Handled):
        if outcome.stopped is not None:
            return {"ok": True, "aborted": bool(outcome.stopped.run_ids), "runIds": outcome.stopped.run_ids}
        call.client.finish_after(run_id)
        said = Said(
            run_id=run_id, target=target, source="webchat", route=route, asked=params.message, text=outcome.reply
        )
        gateway.spawn(say(gateway, said) if outcome.later is None else _say_later(gateway, said, outcome.later))
        return {"runId": run_id, "status": "started"}
    if "/" in params.message:
        # A command is obeyed all the same (how else to lift the block?); what goes on to the model is not.
        await _check_policy(call, target)
    for number, reply in enumerate(outcome.side_replies):
        await show(gateway, target, f"{run_id}:{number}", reply)
    entry = await fresh_session(gateway, target)
    prompt = outcome.text
    if not outcome.greeting:
        zone = gateway.runtime.config.current.agents.defaults.user_timezone
        prompt = f"{stamped(prompt, gateway.runtime.clock.now_ms(), zone)}\n[message_id: {run_id}]"
        if entry.get("abortedLastRun"):
            prompt = f"{ABORT_NOTE}\n\n{prompt}"
    submission = await take_in(
        Incoming(
            run_id=run_id,
            agent_id=target.agent_id,
            session_key=target.key,
            source="webchat",
            route=route,
            prompt=prompt,
            images=images,
            thinking=thinking,
            timeout_s=None if params.timeout_ms is None else params.timeout_ms / 1000,
            hints=outcome.hints,
            entry_fields={} if entry.get("chatType") or entry.get("lastChannel") else _first_fields(target.key),
            watcher=call.client.conn_id,
        ),
        gateway.runtime,
        gateway.dispatcher,
        ticket,
    )
    if submission.new or not _ended(submission):
        call.client.finish_after(run_id)
    return _acknowledgement(submission)


async def _say_later(gateway: Gateway, said: Said, later: Coroutine[Any, Any, str | None]) -> None:
    said.text = await later
    await say(gateway, said)


def _thinking(params: ChatSend) -> str | None:
    if not params.thinking or params.message.lstrip().startswith("/"):
        return None
    level = parse_level(params.thinking)
    if level is None:
        raise MethodError("invalid thinking level (use off|minimal|low|medium|high|xhigh)")
    return level


def _ended(submission: Submission) -> bool:
    return submission.record.ended if submission.record else submission.row.state in END_STATES


def _acknowledgement(submission: Submission) -> dict[str, Any]:
    run_id = submission.row.run_id
    if submission.new:
        queued = {"queued": True} if submission.queued else {}
        return {"runId": run_id, "status": "started", **queued}
    if not _ended(submission):
        return {"runId": run_id, "status": "in_flight"}
    record, row = submission.record, submission.row
    failed = record.state == "error" if record else row.state in ("failed", "expired")
    if failed:
        message = (record.error if record else reason_text(row.reason)) or "the run failed"
        payload = {"runId": run_id, "status": "error", "summary": message}
        raise MethodError(message, code="UNAVAILABLE", payload=payload)
    return {"runId": run_id, "status": "ok"}


class ChatAbort(Params):
    session_key: NonEmpty
    run_id: NonEmpty | None = None


@methods.add("chat.abort", ChatAbort)
async def abort(call: Call) -> Any:
    params: ChatAbort = call.params
    target = target_of(call.gateway, params.session_key)
    await call.gateway.dispatcher.admission.wait_for_earlier(target.key)
    if params.run_id is not None:
        record = call.gateway.dispatcher.find(params.run_id)
        if record is not None and record.session_key != target.key:
            raise MethodError("runId does not match sessionKey")
    stopped = call.gateway.dispatcher.abort(target.key, params.run_id, AbortReason.RPC)
    if stopped:
        # At once, and not when the run has unwound: the next message may be here before that.
        await call.gateway.runtime.sessions.update(target.agent_id, target.key, _noted_as_aborted, durable=False)
    return {"ok": True, "aborted": bool(stopped), "runIds": stopped}


def _noted_as_aborted(entry: SessionEntry | None) -> SessionEntry | None:
    if entry is not None:
        entry["abortedLastRun"] = True
    return entry


class ChatHistory(Params):
    session_key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    format: Literal["messages"] | None = None
    """``messages``: the public shape (text, tool_use, tool_result); otherwise the stored one."""


@methods.add("chat.history", ChatHistory)
async def history(call: Call) -> Any:
    params: ChatHistory = call.params
    target = target_of(call.gateway, params.session_key)
    entry = await entry_of(call.gateway, target)
    answer: dict[str, Any] = {"sessionKey": params.session_key}
    if entry is None:
        return {**answer, "messages": []}
    answer["sessionId"] = entry["sessionId"]
    entries = await call.gateway.runtime.transcripts.tail(transcript_ref(target, entry), params.limit)
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    answer["messages"] = read_history(entries, public=params.format == "messages", with_reasoning=reasoning)
    levels = {name: entry.get(name) for name in ("thinkingLevel", "verboseLevel") if entry.get(name)}
    return {**answer, **levels}


class ChatInject(Params):
    session_key: NonEmpty
    message: NonEmpty
    label: Annotated[str, msgspec.Meta(max_length=100)] | None = None


@methods.add("chat.inject", ChatInject)
async def inject(call: Call) -> Any:
    """An assistant message that no model wrote, e.g. a note from another program."""
    params: ChatInject = call.params
    gateway = call.gateway
    target = target_of(gateway, params.session_key)
    entry = await entry_of(gateway, target)
    if entry is None:
        raise MethodError("session not found")
    text = f"[{params.label}]\n\n{params.message}" if params.label else params.message
    message = injected_message(text, gateway.runtime.clock.now_ms())

    async def append() -> str:
        transcript = await gateway.runtime.transcripts.open(
            transcript_ref(target, entry), cwd=home_of(gateway.runtime, target.agent_id)
        )
        assert transcript is not None
        return await transcript.append({"type": "message", "message": message}, durable=True)

    entry_id = await gateway.dispatcher.exclusively(target.key, append)
    shown = {"role": "assistant", "content": [{"type": "text", "text": text}], "timestamp": message.timestamp}
    payload = {
        "runId": f"inject-{entry_id}",
        "sessionKey": shown_key(target.key),
        "seq": 0,
        "state": "final",
        "message": shown,
    }
    gateway.broadcaster.publish("chat", payload)
    return {"ok": True, "messageId": entry_id}
