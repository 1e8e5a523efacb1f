"""``chat.*``: the methods by which web pages, terminals and other clients talk to a session."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import msgspec

from openclaw.agent.recorder import entry_id
from openclaw.agent.sandbox import opener_of
from openclaw.foreign_text import disarmed
from openclaw.gateway.methods.agent import thinking_level
from openclaw.gateway.server.events import RunStream
from openclaw.gateway.server.params import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import (
    MethodCall,
    MethodError,
    MethodTable,
    entry_of,
    require_configured,
    target_of,
)
from openclaw.gateway.views.history import named_files, page_of_history, read_history
from openclaw.inbound.attachments import BadAttachment, InboundFile, read_images
from openclaw.inbound.commands.registry import COMMANDS
from openclaw.inbound.incoming import Handled, Incoming, client_facts
from openclaw.inbound.notices import injected_message
from openclaw.inbound.pipeline import Accepted
from openclaw.outbound.media_lines import is_web
from openclaw.outbound.reply_files import Unsendable, workspace_file
from openclaw.runs.dispatcher import Submission
from openclaw.runs.why_text import reason_text
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import group_of, shown_key
from openclaw.sessions.prompt_prefix import typed_words, without_wrappers
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.base import END_STATES, AbortReason, MessageBody

methods = MethodTable()

MOST_MEDIA_BYTES = 4 * 1024 * 1024

WEBCHAT_FIELDS: dict[str, Any] = {
    "chatType": "direct",
    "deliveryContext": {"channel": "webchat"},
    "lastChannel": "webchat",
    "origin": {"provider": "webchat", "surface": "webchat", "chatType": "direct"},
}


def _entry_fields(key: str, entry: SessionEntry | None, writer: str | None) -> dict[str, Any]:
    """Returns what a message of this client says about its session. ``writer`` is the name that the client has.

    A session that a channel has described stays as it is, and a group's session stays a group's.
    """
    known: dict[str, Any] = dict((entry or {}).get("origin") or {})
    if entry is not None and (entry.get("chatType") or entry.get("lastChannel")):
        renamed = writer and known.get("provider") == "webchat" and known.get("label") != writer
        return {"origin": {**known, "label": writer}} if renamed else {}
    origin: dict[str, Any] = {**WEBCHAT_FIELDS["origin"], **({"label": writer} if writer else {})}
    channel, chat_type = group_of(key)
    if channel is None:
        return {**WEBCHAT_FIELDS, "origin": origin}
    return {**WEBCHAT_FIELDS, "channel": channel, "chatType": chat_type, "origin": {**origin, "chatType": chat_type}}


class ChatSend(Params):
    session_key: NonEmpty
    message: str
    idempotency_key: NonEmpty
    thinking: str | None = None
    deliver: bool | None = None
    attachments: list[InboundFile] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


@methods.add("chat.send", ChatSend)
async def send(call: MethodCall) -> Any:
    """Accepts a message for a session; the reply follows as events."""
    params: ChatSend = call.params
    gateway, client, run_id = call.gateway, call.client, params.idempotency_key
    session = target_of(gateway, params.session_key)
    require_configured(gateway, session)
    attachments = params.attachments or []
    if not params.message.strip() and not attachments:
        raise MethodError("message or attachment required")
    try:
        images, warnings = read_images(attachments)
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None
    client.follow_run(run_id)
    entry = await entry_of(gateway, session)
    message = Incoming(
        facts=client_facts(
            session,
            client.rights,
            has_media=bool(images),
            sender_ids=(client.client_info.id,),
            sender_username=client.client_info.display_name,
        ),
        text=params.message,
        door="chat",
        run_id=run_id,
        source="webchat",
        route={"channel": "webchat", "sessionKey": session.key},
        policy_channel="webchat" if entry is None and group_of(session.key)[0] is None else None,
        message_id=run_id,
        body=MessageBody(
            thinking=None if params.message.lstrip().startswith("/") else thinking_level(params.thinking),
            timeout_seconds=None if params.timeout_ms is None else params.timeout_ms / 1000,
        ),
        images=images,
        entry_fields=_entry_fields(session.key, entry, client.client_info.display_name),
        watcher=client.conn_id,
    )
    answer = await _answer(call, message)
    return {**answer, "warnings": warnings} if warnings else answer


async def _answer(call: MethodCall, message: Incoming) -> dict[str, Any]:
    gateway, run_id = call.gateway, message.run_id
    result = await gateway.pipeline.process(message)
    if isinstance(result, Accepted):
        if result.submission.new or not _ended(result.submission):
            call.client.finish_after(run_id)
        return _acknowledgement(result.submission)
    if isinstance(result, Handled):
        if result.stopped is not None:
            return {"ok": True, "aborted": bool(result.stopped), "runIds": result.stopped}
        call.client.finish_after(run_id)
        gateway.spawn(_answer_after_acknowledgement(call, message, result))
        return {"runId": run_id, "status": "started"}
    raise MethodError("send blocked by session policy")


async def _answer_after_acknowledgement(call: MethodCall, message: Incoming, result: Handled) -> None:
    """Says what a command has to say once the client has read that it was accepted.

    A client that gets both in one piece takes up the answer first, and then waits for an answer for ever.
    """
    await call.client.sink.read()
    await call.gateway.pipeline.answer(message, result)


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
async def abort(call: MethodCall) -> Any:
    """Stops the run of a session, or one run, and what waits with it."""
    params: ChatAbort = call.params
    target = target_of(call.gateway, params.session_key)
    await call.gateway.dispatcher.admission.wait_for_earlier(target.key)
    if params.run_id is not None:
        record = call.gateway.dispatcher.find(params.run_id)
        if record is not None and record.session_key != target.key:
            raise MethodError("runId does not match sessionKey")

    def note_aborted(entry: SessionEntry | None) -> SessionEntry | None:
        if entry is not None:
            entry["abortedLastRun"] = True
        return entry

    meant = [params.run_id] if params.run_id is None else _meant_runs(call, target.key, params.run_id)
    stopped: list[str] = []
    for run_id in meant:
        stopped += await call.gateway.dispatcher.abort(target.key, run_id, AbortReason.RPC)
    if stopped:
        # The flag is set at once, because the next message may come before the run has unwound.
        await call.gateway.runtime.sessions.update(target.agent_id, target.key, note_aborted, durable=False)
    return {"ok": True, "aborted": bool(stopped), "runIds": stopped}


def _meant_runs(call: MethodCall, session_key: str, run_id: str) -> list[str]:
    """Returns what a client wants to stop that names one of its messages.

    Clients name the message they sent last, and what people see is the run that this message waits for, so that run is
    stopped too. A terminal means only that run: it always names its last message, which then gets its turn.
    """
    named = call.gateway.dispatcher.find(run_id)
    running = next((one for one in call.gateway.dispatcher.active(session_key) if one.state == "running"), None)
    if named is None or named.ended or running is None or running is named:
        return [run_id]
    client = call.client.client_info
    terminal = client.id == "gateway-client" and client.mode == "ui"
    # The waiting one goes first. Otherwise it would begin when the other one has stopped.
    return [running.run_id] if terminal else [run_id, running.run_id]


class ChatHistory(Params):
    session_key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    format: Literal["messages"] | None = None
    """``messages`` asks for the public shape (text, tool_use, tool_result). The default is the stored shape."""


@methods.add("chat.history", ChatHistory)
async def history(call: MethodCall) -> Any:
    """The last messages of a session."""
    params: ChatHistory = call.params
    target = target_of(call.gateway, params.session_key)
    entry = await entry_of(call.gateway, target)
    answer: dict[str, Any] = {"sessionKey": params.session_key}
    if entry is None:
        return {**answer, "messages": []}
    answer["sessionId"] = entry["sessionId"]
    entries = await call.gateway.runtime.transcripts.tail(transcript_ref(target.agent_id, entry), params.limit)
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    answer["messages"] = read_history(entries, public=params.format == "messages", with_reasoning=reasoning)
    levels = {name: entry.get(name) for name in ("thinkingLevel", "verboseLevel") if entry.get(name)}
    return {**answer, **levels}


class ChatView(Params):
    session_key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 60
    before: NonEmpty | None = None
    """The id of an entry. Only the messages before it are returned."""
    run_id: NonEmpty | None = None
    """A run whose own message the caller looks for. The answer names that message's entry as ``asked``."""


@methods.add("chat.view", ChatView)
async def view(call: MethodCall) -> Any:
    """What a page shows of a session: its last messages with their ids, the run under way, and what waits.

    Events up to ``seq`` are contained in the answer. The caller gets the tool events of these runs from now on.
    """
    params: ChatView = call.params
    gateway = call.gateway
    target = target_of(gateway, params.session_key)
    # The number of the last event and the state of the run come first. What happens while the session is read is then
    # in the answer or in a later event, or in both, and never in neither.
    answer: dict[str, Any] = {"sessionKey": shown_key(target.key), **_under_way(call, target.key)}
    if params.run_id is not None:
        answer["asked"] = entry_id(params.run_id, 0)
    entry = await entry_of(gateway, target)
    if entry is None:
        return {**answer, "sessionId": None, "messages": [], "more": False}
    ref = transcript_ref(target.agent_id, entry)
    entries = await gateway.runtime.transcripts.tail(ref, params.limit, params.before)
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    shown = ("thinkingLevel", "verboseLevel", "reasoningLevel", "label", "totalTokens", "contextTokens", "model")
    return {
        **answer,
        **{name: entry.get(name) for name in shown if entry.get(name)},
        "sessionId": entry["sessionId"],
        "messages": page_of_history(entries, with_reasoning=reasoning),
        "more": len(entries) >= params.limit,
    }


def _under_way(call: MethodCall, session_key: str) -> dict[str, Any]:
    gateway = call.gateway
    broadcaster = gateway.broadcaster
    run: dict[str, Any] | None = None
    waiting: list[dict[str, Any]] = []
    for record in gateway.dispatcher.active(session_key):
        record.watchers.add(call.client.conn_id)
        body = record.row.body
        if record.state == "running":
            streams = (one for one in gateway.dispatcher.observers(record.run_id) if isinstance(one, RunStream))
            so_far = next(streams, None)
            run = {"runId": record.run_id, "startedAt": record.started_at, **(so_far.so_far() if so_far else {})}
            if not body.internal:
                run["said"] = {"id": entry_id(record.run_id, 0), **_said(body)}
        elif not body.internal and not record.ended:
            waiting.append({"runId": record.run_id, "acceptedAt": record.row.accepted_at, **_said(body)})
    return {"seq": broadcaster.seq, "epoch": broadcaster.epoch, "run": run, "waiting": waiting}


def _said(body: MessageBody) -> dict[str, Any]:
    return {"text": body.written or typed_words(body.prompt or ""), "images": len(body.images)}


class ChatMedia(Params):
    session_key: NonEmpty
    entry_id: NonEmpty
    index: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Which of the files that the message names."""


@methods.add("chat.media", ChatMedia)
async def media(call: MethodCall) -> Any:
    """A file of the workspace that a message of the agent names, in base64. No other file is read.

    Addresses on the web are not fetched: the caller opens them.
    """
    params: ChatMedia = call.params
    runtime, target = call.gateway.runtime, target_of(call.gateway, params.session_key)
    entry = await entry_of(call.gateway, target)
    ref = transcript_ref(target.agent_id, entry) if entry is not None else None
    transcript = await runtime.transcripts.open(ref, create=False) if ref is not None else None
    found = await transcript.entry(params.entry_id) if transcript is not None else None
    named = named_files(found) if found is not None else ()
    if params.index >= len(named):
        raise MethodError("this message names no such file")
    if is_web(named[params.index]):
        raise MethodError("this file is on the web; open its address")
    opener = await opener_of(runtime, target.agent_id, target.key, entry)
    try:
        data, name, mime = await workspace_file(named[params.index], opener, MOST_MEDIA_BYTES)
    except Unsendable as problem:
        raise MethodError(f"{problem}") from None
    return {"fileName": name, "mimeType": mime, "size": len(data), "content": base64.b64encode(data).decode()}


class ChatDrop(Params):
    session_key: NonEmpty
    run_id: NonEmpty


@methods.add("chat.drop", ChatDrop)
async def drop(call: MethodCall) -> Any:
    """Takes one waiting message out of the queue. A message that is running already is not stopped."""
    params: ChatDrop = call.params
    target = target_of(call.gateway, params.session_key)
    dispatcher = call.gateway.dispatcher
    if not any(record.run_id == params.run_id for record in dispatcher.waiting(target.key)):
        return {"ok": True, "dropped": False}
    dropped = await dispatcher.abort(target.key, params.run_id, AbortReason.REMOVED)
    return {"ok": True, "dropped": bool(dropped)}


class ChatReword(Params):
    session_key: NonEmpty
    run_id: NonEmpty
    message: NonEmpty


@methods.add("chat.reword", ChatReword)
async def reword(call: MethodCall) -> Any:
    """Gives a waiting message of the owner other words. It keeps its place in the queue, its time and its pictures.

    A message that is running already is left as it is: ``reworded`` is false then.
    """
    params: ChatReword = call.params
    target = target_of(call.gateway, params.session_key)
    if params.message.lstrip().startswith("/"):
        raise MethodError("a command cannot take the place of a message; drop the message and send the command")

    def changed(body: MessageBody) -> MessageBody:
        if body.prompt is None or body.command or body.internal or body.sender or body.guest:
            raise MethodError("only a message that was written here can be changed")
        text, before = disarmed(params.message, of_owner=True), without_wrappers(body.prompt)
        head, _, tail = body.prompt.rpartition(before)
        written = params.message if text != params.message else ""
        return msgspec.structs.replace(body, prompt=f"{head}{text}{tail}", written=written)

    return {"ok": True, "reworded": await call.gateway.dispatcher.reword(target.key, params.run_id, changed)}


@methods.add("chat.commands", NoParams)
async def commands(call: MethodCall) -> Any:
    """The commands that a client may write in a chat, for its palette."""
    config, rights = call.gateway.runtime.config.current, call.client.rights
    usable = [one for one in COMMANDS if one.enabled(config) and not one.group_only and one.right in rights]
    shown = ("name", "usage", "help", "category")
    return {"commands": [{name: getattr(one, name) for name in shown} for one in usable]}


class ChatInject(Params):
    session_key: NonEmpty
    message: NonEmpty
    label: Annotated[str, msgspec.Meta(max_length=100)] | None = None


@methods.add("chat.inject", ChatInject)
async def inject(call: MethodCall) -> Any:
    """Adds an assistant message that no model wrote, such as a note from another program."""
    params: ChatInject = call.params
    gateway = call.gateway
    target = target_of(gateway, params.session_key)
    if await entry_of(gateway, target) is None:
        raise MethodError("session not found")
    text = f"[{params.label}]\n\n{params.message}" if params.label else params.message
    message = injected_message(text, gateway.runtime.clock.now_ms())
    entry_id = await gateway.notices.write(target, message)
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
