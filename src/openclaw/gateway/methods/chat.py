"""``chat.*`` and ``agent``: the methods by which web pages, terminals and other clients talk to a session.

``chat.send`` answers when the message is accepted, and its reply follows as events. ``agent`` answers twice: when the
message is accepted, and with the result of the run at its end.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from openclaw.agent.plan import plan_of_entry
from openclaw.agent.recorder import entry_id
from openclaw.agent.runtime import Runtime
from openclaw.agent.tool_set import opener_of
from openclaw.config.agents import main_session_key
from openclaw.gateway.methods.sessions import session_model
from openclaw.gateway.server.events import Broadcaster
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.gateway.session_directory import no_session, refuse_subagent
from openclaw.gateway.session_views import named_files, page_of_history, read_history
from openclaw.inbound.attachments import (
    BadAttachment,
    Image,
    InboundFile,
    place_files,
    read_images,
    split_pictures,
)
from openclaw.inbound.commands.registry import COMMANDS
from openclaw.inbound.incoming import Handled, Incoming, client_facts
from openclaw.inbound.notices import injected_message
from openclaw.inbound.pipeline import Accepted, Blocked, Empty, TakenElsewhere
from openclaw.inbound.prompt_text import media_note
from openclaw.messages import Route, Usage
from openclaw.models.thinking import level_unless_set, parse_level
from openclaw.outbound.answer_filter import is_web, reasoning_message
from openclaw.outbound.reply_files import Unsendable, workspace_file
from openclaw.paths import normalize_agent_id
from openclaw.protocol.chat import (
    AgentAccepted,
    AgentAnswer,
    AgentMeta,
    ChatAccepted,
    ChatCommand,
    ChatCommands,
    ChatMessages,
    ChatPage,
    ChatStopped,
    MediaFile,
    MessageDropped,
    MessageInjected,
    MessagePromoted,
    MessageReworded,
    PersonText,
    PlanStepView,
    ReplyPayload,
    RunMeta,
    RunReply,
    RunStatus,
    RunUnderWay,
    UsageCounts,
    WaitingMessage,
)
from openclaw.runs.accept import Submission
from openclaw.runs.reasons import reason_text
from openclaw.runs.run import Run, RunWatched
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import BLOCKED, SessionEntry, last_route
from openclaw.sessions.keys import SessionRef, group_of, is_subagent, shown_key
from openclaw.sessions.prompt_prefix import typed_text, without_wrappers
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.message_ledger import END_STATES, AbortReason, LedgerRow, MessageBody
from openclaw.untrusted_text import disarmed

methods = MethodTable()
MOST_MEDIA_BYTES = 4 * 1024 * 1024
NO_PLATFORM = frozenset({"webchat", "last", "internal"})
"""What a caller may name as a channel besides the platforms."""
WEBCHAT_FIELDS: dict[str, Any] = {
    "chatType": "direct",
    "deliveryContext": {"channel": "webchat"},
    "lastChannel": "webchat",
    "origin": {"provider": "webchat", "surface": "webchat", "chatType": "direct"},
}


class ChatSend(Params):
    session_key: NonEmpty
    """The session's key, id or label. A new name begins a session."""
    message: str
    idempotency_key: NonEmpty
    agent_id: NonEmpty | None = None
    """The agent of a session that is not named by its full key."""
    thinking: str | None = None
    deliver: bool | None = None
    attachments: list[InboundFile] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


@methods.add("chat.send", ChatSend)
async def send(call: MethodCall, params: ChatSend) -> ChatAccepted | ChatStopped:
    """Accept a message for a session; the reply follows as events."""
    gateway, client, run_id = call.gateway, call.client, params.idempotency_key
    named = await gateway.directory.to_write(params.session_key, params.agent_id)
    session, entry = named.ref, named.entry
    if not params.message.strip() and not params.attachments:
        raise MethodError("message or attachment required")
    pictures, files = _split(params.attachments)
    images, warnings = _images(pictures)
    text = params.message
    if files and not text.lstrip().startswith("/"):
        text = await _with_files(gateway.runtime, text, files, session, entry)
    elif files:
        warnings = [*warnings, "files do not go with a command; dropped"]
    message = Incoming(
        facts=client_facts(
            session,
            client.rights,
            has_media=bool(images),
            sender_ids=(client.client_info.id,),
            sender_username=client.client_info.display_name,
        ),
        text=text,
        door="chat",
        run_id=run_id,
        source="webchat",
        route=Route(channel="webchat", session_key=session.key),
        policy_channel=_policy_channel(session, entry, "webchat"),
        message_id=run_id,
        body=MessageBody(
            thinking=None if params.message.lstrip().startswith("/") else _thinking_level(params.thinking),
            timeout_seconds=None if params.timeout_ms is None else params.timeout_ms / 1000,
        ),
        images=images,
        entry_fields=_chat_fields(session.key, entry, client.client_info.display_name),
        watcher=client.conn_id,
    )
    result = await _submit(call, message)
    if isinstance(result, Accepted):
        answer = _acknowledgement(result.submission)
        if answer.status != "ok":
            client.finish_after(run_id)
    elif result.stopped is not None:
        return ChatStopped(True, bool(result.stopped), result.stopped, warnings)
    else:
        answer = ChatAccepted(run_id, "started")
        client.finish_after(run_id)
        if isinstance(result, Handled):
            gateway.spawn(_reply_after_acknowledgement(call, message, result))
    answer.warnings = warnings
    return answer


async def _reply_after_acknowledgement(call: MethodCall, message: Incoming, result: Handled) -> None:
    """Send a command's reply once the client has read that the command was accepted.

    A client that gets both in one piece handles the reply first, and then waits for it forever.
    """
    await call.client.sink.until_read()
    await call.gateway.pipeline.answer(message, result)


def _acknowledgement(submission: Submission) -> ChatAccepted:
    run, row = submission.run, submission.row
    if submission.new:
        return ChatAccepted(row.run_id, "started", submission.queued)
    if not _has_ended(run, row):
        return ChatAccepted(row.run_id, "in_flight")
    _check_not_failed(run, row)
    return ChatAccepted(row.run_id, "ok")


def _has_ended(run: Run | None, row: LedgerRow) -> bool:
    return run.ended if run else row.state in END_STATES


def _check_not_failed(run: Run | None, row: LedgerRow) -> None:
    """Raise the error answer of a run that failed. ``run`` is None for a run that ended long ago."""
    failed = run.state == "error" if run else row.state in ("failed", "expired")
    if failed:
        error = (run.error if run else reason_text(row.reason)) or "the run failed"
        failure = {"runId": row.run_id, "status": "error", "summary": error}
        raise MethodError(error, code="UNAVAILABLE", payload=failure)


def _chat_fields(key: str, entry: SessionEntry | None, writer: str | None) -> dict[str, Any]:
    """Return what a message of this client says about its session. ``writer`` is the name that the client has.

    A session that a channel has described stays as it is, and a group's session stays a group's.
    """
    stored_origin: dict[str, Any] = dict((entry or {}).get("origin") or {})
    if entry is not None and (entry.get("chatType") or entry.get("lastChannel")):
        renamed = writer and stored_origin.get("provider") == "webchat" and stored_origin.get("label") != writer
        return {"origin": {**stored_origin, "label": writer}} if renamed else {}
    origin: dict[str, Any] = {**WEBCHAT_FIELDS["origin"], **({"label": writer} if writer else {})}
    channel, chat_type = group_of(key)
    if channel is None:
        return {**WEBCHAT_FIELDS, "origin": origin}
    return {**WEBCHAT_FIELDS, "channel": channel, "chatType": chat_type, "origin": {**origin, "chatType": chat_type}}


# What ``chat.send`` and ``agent`` share


async def _submit(call: MethodCall, message: Incoming) -> Accepted | Handled | TakenElsewhere:
    """Submit a message of a client to the pipeline. The client gets the events of its run from now on.

    ``TakenElsewhere`` is a command that another node has carried out and answers, because it owns the session.
    """
    call.client.follow_run(message.run_id)
    result = await call.gateway.pipeline.process(message)
    if isinstance(result, Blocked | Empty):
        raise MethodError(BLOCKED)
    return result


def _split(attachments: list[InboundFile] | None) -> tuple[list[InboundFile], list[InboundFile]]:
    try:
        return split_pictures(attachments or [])
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None


async def _with_files(
    runtime: Runtime, text: str, files: list[InboundFile], session: SessionRef, entry: SessionEntry | None
) -> str:
    """Put files into the workspace and return the text with their paths, as a channel's message has them."""
    try:
        placed = await place_files(runtime, files, session, entry)
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None
    return "\n".join(part for part in (media_note(placed), text) if part.strip())


def _images(attachments: list[InboundFile] | None) -> tuple[list[Image], list[str]]:
    """The pictures, and a warning for every file that is none."""
    try:
        return read_images(attachments or [])
    except BadAttachment as bad:
        raise MethodError(f"Error: {bad}") from None


def _policy_channel(session: SessionRef, entry: SessionEntry | None, named: str | None) -> str | None:
    """The channel for the send policy. A name that the caller gives does not get around the session's own channel."""
    return named if entry is None and group_of(session.key)[0] is None else None


def _thinking_level(text: str | None) -> str | None:
    if not text:
        return None
    level = parse_level(text)
    if level is None:
        raise MethodError("invalid thinking level (use off|minimal|low|medium|high|xhigh)")
    return level


# ``agent``


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
async def agent(call: MethodCall, params: AgentParams) -> AgentAnswer:
    """Run one turn of an agent: an early answer when it is accepted, the result at its end."""
    gateway = call.gateway
    kinds = gateway.channel_services.channels.kinds
    for channel in (params.channel, params.reply_channel):
        name = (channel or "").strip().lower()
        if channel and name not in NO_PLATFORM and not kinds.knows(name):
            raise MethodError(f"unknown channel: {channel}")
    session = await _session(call, params)
    images, _ = _images(params.attachments)
    entry = await gateway.directory.entry(session)
    message = Incoming(
        facts=client_facts(session, call.client.rights, has_media=bool(images)),
        text=params.message,
        door="chat",
        run_id=params.idempotency_key,
        source="agent",
        route=_route(params, entry, session),
        reads_commands=_written_by_hand(params),
        policy_channel=_policy_channel(session, entry, params.channel),
        body=MessageBody(
            thinking=_thinking_level(params.thinking),
            timeout_seconds=params.timeout,
            extra_system_prompt=params.extra_system_prompt or "",
        ),
        images=images,
        entry_fields=_agent_fields(params, session),
        watcher=call.client.conn_id,
    )
    result = await _submit(call, message)
    if isinstance(result, Handled | TakenElsewhere):
        return await _command_result(call, message, result)
    run, row = result.submission.run, result.submission.row
    if result.submission.new or not _has_ended(run, row):
        call.respond(AgentAccepted(params.idempotency_key, "accepted", row.accepted_at))
    await gateway.runs.index.wait(row.run_id, None)
    if run is not None and run.ended:
        answer = _run_result(run)
    else:
        answer = _stored_result(await gateway.runtime.stores.ledger.by_run(row.run_id) or row)
    answer.result.payloads = [*map(_payload, result.side_replies), *answer.result.payloads]
    return answer


def _written_by_hand(params: AgentParams) -> bool:
    """Whether a person wrote the text. Commands and settings in the text of a program do not count."""
    return not (params.lane or params.extra_system_prompt or params.spawned_by)


async def _session(call: MethodCall, params: AgentParams) -> SessionRef:
    gateway = call.gateway
    agent_id = normalize_agent_id(params.agent_id) if params.agent_id else None
    spawned = bool(params.spawned_by or params.lane)
    if params.session_key:
        return (await gateway.directory.to_write(params.session_key, agent_id, spawned=spawned)).ref
    if agent_id is not None:
        gateway.directory.require_agent(agent_id)
    if params.session_id:
        row = await gateway.runtime.stores.sessions.find_session_id(params.session_id)
        if row is None:
            raise no_session(params.session_id)
        target = SessionRef(row.agent_id, row.key)
        if not spawned:
            refuse_subagent(target, params.session_id)
        return target
    if agent_id is not None:
        return gateway.directory.target(main_session_key(gateway.runtime.config.current, agent_id), agent_id)
    return gateway.directory.target("main")


def _route(params: AgentParams, entry: SessionEntry | None, target: SessionRef) -> Route:
    """Return where the reply goes. Without ``deliver`` only the caller gets it."""
    if not params.deliver:
        return Route(channel="internal", session_key=target.key)
    last = last_route(entry)
    return Route(
        channel=params.reply_channel or params.channel or last.channel or "webchat",
        to=params.reply_to or params.to or last.to,
        account_id=params.reply_account_id or params.account_id or last.account_id or None,
        thread_id=params.thread_id or last.thread_id or None,
        session_key=target.key,
    )


def _agent_fields(params: AgentParams, target: SessionRef) -> dict[str, Any]:
    fields = {
        "label": params.label,
        "spawnedBy": params.spawned_by if is_subagent(target.key) else None,
        "groupId": params.group_id,
        "groupChannel": params.group_channel,
        "space": params.group_space,
    }
    return {name: value for name, value in fields.items() if value}


def _run_result(run: Run) -> AgentAnswer:
    _check_not_failed(run, run.row)
    result = run.result
    assert result is not None
    account = result.account
    meta = RunMeta(
        duration_ms=result.duration_ms,
        agent_meta=AgentMeta(
            result.session_id, account.provider, account.model, _usage(account.usage) if account.usage else None
        ),
        aborted=run.state == "aborted",
        system_prompt_report=account.report.whole() if account.report else {},
    )
    payloads = [_payload(reasoning)] if (reasoning := reasoning_message(result.reasoning)) else []
    payloads += [_payload(message.text, message.media) for message in result.shown] or (
        [_payload(result.notice)] if result.notice else []
    )
    return _completed(run.run_id, payloads, meta)


def _stored_result(row: LedgerRow) -> AgentAnswer:
    """Return what the ledger has of a run that ended before this Gateway started, or at another node."""
    _check_not_failed(None, row)
    stored = row.result or {}
    text, media = stored.get("text"), stored.get("media") or []
    meta = RunMeta(agent_meta=AgentMeta(stored.get("sessionId")), aborted=row.state == "superseded")
    return _completed(row.run_id, [_payload(text or "", media)] if text or media else [], meta)


async def _command_result(call: MethodCall, message: Incoming, handled: Handled | TakenElsewhere) -> AgentAnswer:
    """Answer a command. The answer has the shape of a run's."""
    gateway, run_id = call.gateway, message.run_id
    began = gateway.runtime.clock.now_ms()
    call.respond(AgentAccepted(run_id, "accepted", began))
    if isinstance(handled, Handled):
        reply = await gateway.pipeline.answer(message, handled)
    elif handled.stopped is None:
        await gateway.runs.index.wait(run_id, None)
        row = await gateway.runtime.stores.ledger.by_run(run_id)
        reply = (row.result or {}).get("text") if row is not None else None
    else:
        reply = None  # A stop has no reply.
    entry = await gateway.directory.entry(message.facts.session)
    meta = RunMeta(
        duration_ms=gateway.runtime.clock.now_ms() - began,
        agent_meta=AgentMeta(entry["sessionId"] if entry else None),
        aborted=False,
    )
    return _completed(run_id, [_payload(reply)] if reply else [], meta)


def _completed(run_id: str, payloads: list[ReplyPayload], meta: RunMeta) -> AgentAnswer:
    """Return the last answer of ``agent``."""
    return AgentAnswer(run_id, "ok", "aborted" if meta.aborted else "completed", RunReply(payloads, meta))


def _payload(text: str, media: Sequence[str] = ()) -> ReplyPayload:
    return ReplyPayload(text, media[0] if media else None, list(media))


def _usage(usage: Usage) -> UsageCounts:
    return UsageCounts(
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        total=usage.total_tokens,
    )


class AgentWait(Params):
    run_id: NonEmpty
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 30_000


@methods.add("agent.wait", AgentWait)
async def wait(call: MethodCall, params: AgentWait) -> RunStatus:
    """Wait for the end of a run, and return how it went."""
    outcome = await call.gateway.runs.index.wait(params.run_id, params.timeout_ms / 1000)
    return RunStatus(params.run_id, outcome.status, outcome.started_at, outcome.ended_at, outcome.error)


# Runs and messages under way


class ChatAbort(Params):
    session_key: NonEmpty
    run_id: NonEmpty | None = None


@methods.add("chat.abort", ChatAbort)
async def abort(call: MethodCall, params: ChatAbort) -> ChatStopped:
    """Stop the run of a session, or one run, and what waits with it."""
    target, runs = call.gateway.directory.target(params.session_key), call.gateway.runs
    async with call.gateway.directory.order.of(target.key):
        pass  # A message that was sent before is on its way to be admitted now.
    await runs.admission.wait_for_earlier(target.key)
    named = runs.index.get(params.run_id) if params.run_id is not None else None
    if named is not None and named.session_key != target.key:
        raise MethodError("runId does not match sessionKey")

    def note_aborted(entry: SessionEntry | None) -> SessionEntry | None:
        if entry is not None:
            entry["abortedLastRun"] = True
        return entry

    stopped: list[str] = []
    for run_id in _meant_runs(call, target.key, named) if named is not None else [params.run_id]:
        stopped += await runs.abort(target.key, run_id, AbortReason.RPC)
    if stopped:
        # The flag is set at once, because the next message may come before the run has unwound.
        await call.gateway.runtime.stores.sessions.update(target.agent_id, target.key, note_aborted, durable=False)
    return ChatStopped(True, bool(stopped), stopped)


def _meant_runs(call: MethodCall, session_key: str, named: Run) -> list[str]:
    """Return the runs that a client wants to stop when it names one of its messages.

    Most clients name the message that they sent last. If that message waits, the person sees another run at work and
    means that one too, so both are stopped. A terminal also names its last message, but means only the run at work.
    The waiting message is then answered next.
    """
    running = next((one for one in call.gateway.runs.active(session_key) if one.state == "running"), None)
    if named.ended or running is None or running is named:
        return [named.run_id]
    client = call.client.client_info
    terminal = client.id == "gateway-client" and client.mode == "ui"
    # The waiting one goes first. Otherwise it would begin when the other one has stopped.
    return [running.run_id] if terminal else [named.run_id, running.run_id]


class ChatDrop(Params):
    session_key: NonEmpty
    run_id: NonEmpty


@methods.add("chat.drop", ChatDrop)
async def drop(call: MethodCall, params: ChatDrop) -> MessageDropped:
    """Remove one waiting message from the queue. A message that is running already is not stopped."""
    target = call.gateway.directory.target(params.session_key)
    runs = call.gateway.runs
    if not any(run.run_id == params.run_id for run in runs.waiting(target.key)):
        return MessageDropped(True, False)
    dropped = await runs.abort(target.key, params.run_id, AbortReason.REMOVED)
    return MessageDropped(True, bool(dropped))


class ChatPromote(Params):
    session_key: NonEmpty
    run_id: NonEmpty


@methods.add("chat.promote", ChatPromote)
async def promote(call: MethodCall, params: ChatPromote) -> MessagePromoted:
    """Answers a waiting message now: it goes next, and the run before it is stopped."""
    target, runs = call.gateway.directory.target(params.session_key), call.gateway.runs
    if not runs.promote(target.key, params.run_id):
        return MessagePromoted(True, False)
    running = next((run for run in runs.active(target.key) if run.state == "running"), None)
    if running is not None and running.run_id != params.run_id:
        await runs.abort(target.key, running.run_id, AbortReason.RPC)
    return MessagePromoted(True, True)


class ChatReword(Params):
    session_key: NonEmpty
    run_id: NonEmpty
    message: NonEmpty


@methods.add("chat.reword", ChatReword)
async def reword(call: MethodCall, params: ChatReword) -> MessageReworded:
    """Change the text of a waiting message of the owner. It keeps its place in the queue, its time and its pictures.

    A message that is running already is left as it is: ``reworded`` is false then.
    """
    target = call.gateway.directory.target(params.session_key)
    if params.message.lstrip().startswith("/"):
        raise MethodError("a command cannot take the place of a message; drop the message and send the command")

    def changed(body: MessageBody) -> MessageBody:
        if body.prompt is None or body.command or body.internal or body.sender or body.guest:
            raise MethodError("only a message that was written here can be changed")
        if (body.exec or body.elevated or body.elevated_allowed) and "admin" not in call.client.rights:
            # The rules that the owner loosened for a message hold for the owner's words and no others.
            raise MethodError("missing scope: operator.admin (the message has its own rules for commands)")
        before = body.written or without_wrappers(body.prompt)
        head, _, tail = body.prompt.rpartition(before)
        written = params.message if disarmed(params.message, of_owner=True) != params.message else ""
        return msgspec.structs.replace(body, prompt=f"{head}{params.message}{tail}", written=written)

    return MessageReworded(True, await call.gateway.runs.reword(target.key, params.run_id, changed))


# What a client is shown


class ChatHistory(Params):
    session_key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    format: Literal["messages"] | None = None
    """``messages`` asks for the public shape (text, tool_use, tool_result). The default is the stored shape."""


@methods.add("chat.history", ChatHistory)
async def history(call: MethodCall, params: ChatHistory) -> ChatMessages:
    """The last messages of a session."""
    target = call.gateway.directory.target(params.session_key)
    entry = await call.gateway.directory.entry(target)
    if entry is None:
        return ChatMessages(session_key=params.session_key, messages=[])
    entries = await call.gateway.runtime.stores.transcripts.tail(transcript_ref(target.agent_id, entry), params.limit)
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    usual = call.gateway.runtime.config.current.agents.defaults
    thinking, verbose = entry.get("thinkingLevel"), entry.get("verboseLevel")
    if not thinking and (model := session_model({**entry}, target, call.gateway.runtime)) is not None:
        thinking = level_unless_set(model, usual.thinking_default)
    if not verbose and usual.verbose_default != "off":
        verbose = usual.verbose_default
    return ChatMessages(
        session_key=params.session_key,
        session_id=entry["sessionId"],
        messages=read_history(entries, public=params.format == "messages", with_reasoning=reasoning),
        thinking_level=thinking or None,
        verbose_level=verbose or None,
    )


class ChatView(Params):
    session_key: NonEmpty
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 60
    before: NonEmpty | None = None
    """The id of an entry. Only the messages before it are returned."""
    run_id: NonEmpty | None = None
    """A run whose own message the caller looks for. The answer names that message's entry as ``asked``."""


@methods.add("chat.view", ChatView)
async def view(call: MethodCall, params: ChatView) -> ChatPage:
    """What a page shows of a session: its last messages with their ids, the run under way, and what waits.

    Events up to ``seq`` are contained in the answer. The caller gets the tool events of these runs from now on.
    """
    gateway = call.gateway
    target = gateway.directory.target(params.session_key)
    # The number of the last event and the state of the run come first. What happens while the session is read is then
    # in the answer or in a later event, or in both, and never in neither.
    page = _page_of_runs(target.key, gateway.runs, gateway.broadcaster, call.client.conn_id)
    if params.run_id is not None:
        page.asked = entry_id(params.run_id, 0)
    entry = await gateway.directory.entry(target)
    if entry is None:
        return page
    ref = transcript_ref(target.agent_id, entry)
    entries = await gateway.runtime.stores.transcripts.tail(ref, params.limit, params.before)
    page.thinking_level, page.verbose_level = entry.get("thinkingLevel") or None, entry.get("verboseLevel") or None
    page.reasoning_level, page.label = entry.get("reasoningLevel") or None, entry.get("label") or None
    page.total_tokens, page.context_tokens = entry.get("totalTokens") or None, entry.get("contextTokens") or None
    page.model, page.session_id = entry.get("model") or None, entry["sessionId"]
    reasoning = entry.get("reasoningLevel") in ("on", "stream")
    page.model_provider, page.display_name = entry.get("modelProvider") or None, entry.get("displayName") or None
    page.model_override, page.provider_override = entry.get("modelOverride"), entry.get("providerOverride")
    page.subject, page.pinned_at = entry.get("subject") or None, entry.get("pinnedAt")
    page.plan = [PlanStepView(step=item.step, status=item.status) for item in plan_of_entry(entry)]
    page.messages, page.more = page_of_history(entries, with_reasoning=reasoning), len(entries) >= params.limit
    return page


def _page_of_runs(session_key: str, runs: Runs, broadcaster: Broadcaster, conn_id: str) -> ChatPage:
    """Return a page without messages: the run under way, and the messages that wait."""
    active: RunUnderWay | None = None
    waiting: list[WaitingMessage] = []
    for run in runs.active(session_key):
        run.emit(RunWatched(conn_id))
        body = run.row.body
        text, images = body.written or typed_text(body.prompt or ""), len(body.images)
        if run.state == "running":
            stream = broadcaster.run_streams.get(run.run_id)
            active = RunUnderWay(run.run_id, run.started_at, **(stream.so_far() if stream else {}))
            if not body.internal:
                active.said = PersonText(entry_id(run.run_id, 0), text, images)
        elif not body.internal and not run.ended:
            waiting.append(WaitingMessage(run.run_id, run.row.accepted_at, text, images))
    return ChatPage(
        session_key=shown_key(session_key),
        seq=broadcaster.seq,
        epoch=broadcaster.epoch,
        run=active,
        waiting=waiting,
        session_id=None,
        messages=[],
        more=False,
    )


class ChatMedia(Params):
    session_key: NonEmpty
    entry_id: NonEmpty
    index: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Which of the files that the message names."""


@methods.add("chat.media", ChatMedia)
async def media(call: MethodCall, params: ChatMedia) -> MediaFile:
    """A file of the workspace that a message of the agent names, in base64. No other file is read.

    Addresses on the web are not fetched: the caller opens them.
    """
    runtime, target = call.gateway.runtime, call.gateway.directory.target(params.session_key)
    entry = await call.gateway.directory.entry(target)
    ref = transcript_ref(target.agent_id, entry) if entry is not None else None
    transcript = await runtime.stores.transcripts.open(ref, create=False) if ref is not None else None
    message = await transcript.entry(params.entry_id) if transcript is not None else None
    named = named_files(message) if message is not None else ()
    if params.index >= len(named):
        raise MethodError("this message names no such file")
    if is_web(named[params.index]):
        raise MethodError("this file is on the web; open its address")
    opener = await opener_of(runtime, target.agent_id, target.key, entry)
    try:
        data, name, mime = await workspace_file(named[params.index], opener, MOST_MEDIA_BYTES)
    except Unsendable as problem:
        raise MethodError(f"{problem}") from None
    return MediaFile(name, mime, len(data), base64.b64encode(data).decode())


@methods.add("chat.commands", NoParams)
async def commands(call: MethodCall) -> ChatCommands:
    """The commands that a client may write in a chat, for its palette."""
    config, rights = call.gateway.runtime.config.current, call.client.rights
    return ChatCommands(
        [
            ChatCommand(command.name, command.usage, command.help, command.category)
            for command in COMMANDS
            if command.enabled(config) and not command.group_only and command.right in rights
        ]
    )


class ChatInject(Params):
    session_key: NonEmpty
    message: NonEmpty
    label: Annotated[str, msgspec.Meta(max_length=100)] | None = None


@methods.add("chat.inject", ChatInject)
async def inject(call: MethodCall, params: ChatInject) -> MessageInjected:
    """Add an assistant message that no model wrote, such as a note from another program."""
    gateway = call.gateway
    target = gateway.directory.target(params.session_key)
    if await gateway.directory.entry(target) is None:
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
    return MessageInjected(True, entry_id)
