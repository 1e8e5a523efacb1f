"""``messages.*``, ``outbox.*`` and ``send``: what became of a message, what waits to be delivered, and sending one.

``messages.*`` tells of every message from acceptance to its end, as facts and in plain words. ``outbox.*`` is about
the parts of replies that wait for their delivery or were given up. ``send`` writes to somebody on a channel without the
agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from openclaw.gateway.messenger import MessageToSend, SendRefused
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.inbound.held import Waiting
from openclaw.messages import Route
from openclaw.runs.delivery_report import delivery_text
from openclaw.runs.history import LONGEST_NUMBER, MessageHistory, answered_by, find_message, load_history
from openclaw.runs.reasons import reason_text
from openclaw.runs.run import LONGEST_CHAIN
from openclaw.runs.why import explain_message, explain_rejected, summary
from openclaw.sessions.keys import key_problem, shown_key
from openclaw.sessions.prompt_prefix import typed_text
from openclaw.sessions.reset import previous_sessions
from openclaw.storage.message_ledger import LedgerRow, MessageState, OutboxRow, PartState, Reason, RejectedMessage
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.transcripts import TranscriptRef
from openclaw.text import clipped

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()
LAST_MESSAGES = 10
EARLIER_LOOKED_AT = 500
LONGEST_TEXT = 2_000
LONGEST_ARGUMENTS = 2_000
MOST_WARNINGS = 5
SHOWN_OF_PART = 300
"""The characters of a part that a list shows."""
MOST_PARTS = 500
_STATES: dict[str, tuple[PartState, ...]] = {
    "open": ("pending", "sending", "dead"),
    "waiting": ("pending", "sending"),
    "dead": ("dead",),
    "sent": ("sent",),
}


class MessagesList(Params):
    session_key: NonEmpty | None = None
    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50


@methods.add("messages.list", MessagesList)
async def list_messages(call: MethodCall, params: MessagesList) -> Any:
    """The accepted messages, newest first."""
    key = None if params.session_key is None else call.gateway.directory.target(params.session_key).key
    rows = await call.gateway.runtime.stores.ledger.recent(session_key=key, state=params.state, limit=params.limit)
    listed = [row_facts(row) for row in rows]
    if key is None and params.state is None:
        # What waits for more words of its sender has no session and no number yet.
        waiting = await call.gateway.pipeline.held.waiting()
        listed = [*(held_facts(one) for one in reversed(waiting)), *listed][: params.limit]
    return {"ts": call.gateway.runtime.clock.now_ms(), "messages": listed}


class MessagesGet(Params):
    id: Annotated[int, msgspec.Meta(ge=1, lt=10**LONGEST_NUMBER)] | None = None
    run_id: NonEmpty | None = None


@methods.add("messages.get", MessagesGet)
async def get(call: MethodCall, params: MessagesGet) -> Any:
    """One accepted message with its changes, tool calls and deliveries."""
    ledger = call.gateway.runtime.stores.ledger
    if params.run_id is not None and params.id is None:
        row = await ledger.by_run(params.run_id)
    elif params.id is not None and params.run_id is None:
        row = await ledger.get(params.id)
    else:
        raise MethodError("Provide either id or runId (not both)")
    if row is None:
        raise MethodError(f"No message found: {params.run_id or params.id}")
    return facts(await load_history(call.gateway.runtime, row))


def text_of(row: LedgerRow) -> str:
    """The message as its sender wrote it."""
    return clipped(row.body.written or typed_text(row.body.prompt or ""), LONGEST_TEXT)


def row_facts(row: LedgerRow) -> dict[str, Any]:
    result = row.result or {}
    return {
        "id": row.id,
        "runId": row.run_id,
        "sessionKey": shown_key(row.session_key),
        "sessionId": row.session_id,
        "agentId": row.agent_id,
        "source": row.source,
        "channel": row.route.channel or None,
        "state": row.state,
        "reason": reason_text(row.reason),
        "attempts": row.attempts,
        "acceptedAt": row.accepted_at,
        "startedAt": row.started_at,
        "endedAt": row.ended_at,
        "text": text_of(row),
        "model": result.get("model"),
        "answeredBy": answered_by(row),
        **({"messageIds": row.body.message_ids} if row.body.message_ids else {}),
        "reply": clipped(result["text"], LONGEST_TEXT) if isinstance(result.get("text"), str) else None,
    }


def held_facts(one: Waiting) -> dict[str, Any]:
    """The facts of a message that is held. It has neither a number nor a session yet."""
    inbound = one.inbound
    unknown = (
        "id",
        "runId",
        "sessionKey",
        "sessionId",
        "agentId",
        "startedAt",
        "endedAt",
        "model",
        "answeredBy",
        "reply",
    )
    return {
        **dict.fromkeys(unknown),
        "source": one.channel,
        "channel": one.channel,
        "state": "held",
        "reason": one.words(),
        "attempts": one.held.attempts,
        "acceptedAt": inbound.timestamp_ms if inbound else None,
        "text": clipped(inbound.text, LONGEST_TEXT) if inbound else "",
        "messageIds": [one.message_id],
    }


def facts(life: MessageHistory) -> dict[str, Any]:
    """The facts of a message with its changes, tool calls and deliveries."""
    return {
        **row_facts(life.row),
        "changes": [
            {"at": change.at, "state": change.state, "reason": reason_text(change.reason)} for change in life.changes
        ],
        "toolCalls": [
            {
                "id": call.call_id,
                "name": call.name,
                "ok": call.ok,
                "startedAt": call.started_at,
                "finishedAt": call.finished_at,
                "arguments": clipped(call.arguments, LONGEST_ARGUMENTS),
            }
            for call in life.tool_calls
        ],
        "deliveries": [{**_delivery_facts(part), "messageId": part.message_id} for part in life.outbox],
    }


def _delivery_facts(part: OutboxRow) -> dict[str, Any]:
    return {
        "part": part.part,
        "channel": part.channel,
        "state": part.state,
        "attempts": part.attempts,
        "createdAt": part.created_at,
        "nextAt": part.next_at or None,
        "error": delivery_text(part),
        "possiblyDuplicate": part.doubts > 0,
    }


# Why


class MessagesWhy(Params):
    ref: NonEmpty
    """A ledger id, a run id or its beginning, a session key, a session id or a label."""


@methods.add("messages.why", MessagesWhy)
async def why(call: MethodCall, params: MessagesWhy) -> Any:
    """What became of a message, a run or the messages of a session, in plain words."""
    found = await _explain(call.gateway, params.ref)
    return {"ts": call.gateway.runtime.clock.now_ms(), "ref": params.ref, **found}


async def _explain(gateway: Gateway, ref: str) -> dict[str, Any]:
    """Returns the facts and the ``history`` of a message or a session.

    A message goes by its ledger id, its run id, the beginning of its run id or its channel's id, also if it was turned
    away. A session goes by its key, id or label. Raises ``MethodError`` when the name fits nothing, or more than one
    run.
    """
    name = ref.strip()
    row = await find_message(gateway.runtime.stores.ledger, name)
    if row is None:
        found = await _session(gateway, name)
        if found is not None:
            return found
        if (held := await _held(gateway, name)) is not None:
            return held
        if notes := await gateway.runtime.stores.ledger.rejected([name]):
            return _turned_away(gateway, notes)
        row = await _by_prefix(gateway, name)
    return await _why_message(gateway, row)


async def _why_message(gateway: Gateway, row: LedgerRow) -> dict[str, Any]:
    life = await load_history(gateway.runtime, row)
    story = explain_message(gateway.runtime, gateway.runs, life)
    story += await _damage(gateway, row.agent_id, row.session_key, row.session_id)
    answer = {"kind": "message", "message": facts(life), "story": story}
    answering = await _answering(gateway, row)
    if answering is not None:
        theirs = await load_history(gateway.runtime, answering)
        answer["answeredBy"] = {
            "message": facts(theirs),
            "story": explain_message(gateway.runtime, gateway.runs, theirs),
        }
    return answer


async def _answering(gateway: Gateway, row: LedgerRow) -> LedgerRow | None:
    """Returns the message whose run answered this one, or None when it has a run of its own."""
    found: LedgerRow | None = None
    for _ in range(LONGEST_CHAIN):
        by = answered_by(found or row)
        following = await gateway.runtime.stores.ledger.by_run(by) if by else None
        if following is None:
            break
        found = following
    return found


def _turned_away(gateway: Gateway, notes: list[RejectedMessage]) -> dict[str, Any]:
    """The answer about a message that was not taken in. Its words are not known."""
    views = [
        {
            "messageId": note.message_id,
            "channel": note.channel,
            "chat": note.chat or None,
            "sender": note.sender or None,
            "code": note.code,
            "reason": reason_text(Reason(note.code, note.detail)),
            "count": note.count,
            "firstAt": note.first_at,
            "lastAt": note.last_at,
        }
        for note in notes
    ]
    return {"kind": "turnedAway", "turnedAway": views, "story": explain_rejected(notes, gateway.user_zone())}


async def _held(gateway: Gateway, name: str) -> dict[str, Any] | None:
    """Returns what is known of a message that was received and not accepted yet."""
    for one in await gateway.pipeline.held.waiting() if name else ():
        if name in (one.held.key, one.message_id):
            tries = f" {one.held.attempts} Gateways have tried since it came." if one.held.attempts > 1 else ""
            story = [f"Received from {one.channel} and kept; no run has begun: {one.words()}.{tries}"]
            return {"kind": "message", "message": held_facts(one), "story": story}
    return None


async def _by_prefix(gateway: Gateway, name: str) -> LedgerRow:
    rows = await gateway.runtime.stores.ledger.runs_beginning(name, 6) if name else []
    if not rows:
        raise MethodError(
            f'Nothing is known of "{clipped(name, 81)}": it is no message, run, session or label. '
            "`openclaw why main` lists the last messages of the main session."
        )
    if len(rows) > 1:
        ids = ", ".join(clipped(row.run_id, 81) for row in rows[:5]) + (", …" if len(rows) > 5 else "")
        raise MethodError(f'"{clipped(name, 81)}" is how several runs begin: {ids}. Give more of the one you mean.')
    return rows[0]


async def _session(gateway: Gateway, name: str) -> dict[str, Any] | None:
    """Returns the last messages of a session, of an earlier session of its key, or of a deleted one."""
    if not name:
        return None
    found = await gateway.directory.find(name)
    if found is not None:
        rows = await gateway.runtime.stores.ledger.recent(session_key=found.key, limit=LAST_MESSAGES)
        answer = _session_answer(gateway, found.key, found.entry["sessionId"], rows)
        answer["story"] += await _damage(gateway, found.agent_id, found.key, found.entry["sessionId"])
        return answer
    for row in (await gateway.runtime.stores.sessions.select(SessionQuery(ever=frozenset({name})))).rows:
        if any(previous.session_id == name for previous in previous_sessions(row.entry)):
            rows = await gateway.runtime.stores.ledger.recent(session_key=row.key, limit=EARLIER_LOOKED_AT)
            rows = [one for one in rows if one.session_id == name][:LAST_MESSAGES]
            return _session_answer(gateway, row.key, name, rows)
    if key_problem(name):
        return None
    deleted = gateway.directory.target(name).key
    rows = await gateway.runtime.stores.ledger.recent(session_key=deleted, limit=LAST_MESSAGES)
    return _session_answer(gateway, deleted, rows[0].session_id, rows) if rows else None


def _session_answer(gateway: Gateway, key: str, session_id: str, rows: list[LedgerRow]) -> dict[str, Any]:
    """Makes the answer about a session, with the oldest message first."""
    now, zone = gateway.runtime.clock.now_ms(), gateway.user_zone()
    oldest_first = rows[::-1]
    story = [summary(row, text_of(row), now, zone) for row in oldest_first]
    return {
        "kind": "session",
        "sessionKey": shown_key(key),
        "sessionId": session_id,
        "messages": [row_facts(row) for row in oldest_first],
        "story": story or [f"No message of session {shown_key(key)} is on record."],
    }


async def _damage(gateway: Gateway, agent_id: str, session_key: str, session_id: str) -> list[str]:
    """Tells what is damaged in the transcript of a session."""
    entry = await gateway.runtime.stores.sessions.get(agent_id, session_key)
    file = entry.get("sessionFile") if entry is not None and entry["sessionId"] == session_id else None
    ref = TranscriptRef(agent_id=agent_id, session_id=session_id, file=file)
    transcripts = gateway.runtime.stores.transcripts
    path = await transcripts.locate(ref) if session_id else None
    # Opening a compressed one would decompress it. It was sound when it was compressed.
    transcript = await transcripts.open(ref, create=False) if path is not None and path.endswith(".jsonl") else None
    if transcript is None or not transcript.warnings:
        return []
    found = "; ".join(transcript.warnings[:MOST_WARNINGS])
    return [f"The transcript of its session is damaged, and what cannot be read was left out: {found}."]


# The outbox


class OutboxList(Params):
    state: Literal["open", "waiting", "dead", "sent"] = "open"
    """``open`` is everything that was not delivered."""
    channel: NonEmpty | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 100


@methods.add("outbox.list", OutboxList)
async def list_outbox(call: MethodCall, params: OutboxList) -> Any:
    """The parts of replies, newest first."""
    ledger = call.gateway.runtime.stores.ledger
    rows = await ledger.outbox_parts(_STATES[params.state], channel=params.channel, limit=params.limit)
    return {
        "ts": call.gateway.runtime.clock.now_ms(),
        "waiting": await ledger.outbox_depth(),
        "parts": [_part_facts(row) for row in rows],
    }


def _part_facts(row: OutboxRow) -> dict[str, Any]:
    payload = row.payload
    return {
        **_delivery_facts(row),
        "id": row.id,
        "messageId": row.ledger_id,
        "runId": row.run_id,
        "accountId": row.route.account_id,
        "to": row.route.to or None,
        "act": payload.get("act", "send"),
        "text": clipped(str(payload.get("text") or ""), SHOWN_OF_PART),
        "media": len(payload.get("media") or ()),
    }


class OutboxChoice(Params):
    ids: Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(max_length=MOST_PARTS)] = []
    """The ids of parts."""
    run_id: NonEmpty | None = None
    """All parts of the message with this run id."""
    all: bool = False
    """Every part that the method can be used on."""


@methods.add("outbox.retry", OutboxChoice)
async def retry(call: MethodCall, params: OutboxChoice) -> Any:
    """Tries parts anew that were given up."""
    rows = await _chosen(call.gateway, params, "dead")
    return {"ok": True, "retried": await call.gateway.channel_services.delivery.again(rows)}


@methods.add("outbox.drop", OutboxChoice)
async def drop(call: MethodCall, params: OutboxChoice) -> Any:
    """Gives up parts that wait. One that is being sent this moment is not dropped."""
    rows = await _chosen(call.gateway, params, "pending")
    return {"ok": True, "dropped": await call.gateway.channel_services.delivery.drop(rows)}


async def _chosen(gateway: Gateway, params: OutboxChoice, state: PartState) -> list[OutboxRow]:
    ledger = gateway.runtime.stores.ledger
    if not (params.ids or params.run_id or params.all):
        raise MethodError("name parts by ids, a message by runId, or all")
    if params.run_id:
        row = await ledger.by_run(params.run_id)
        if row is None:
            raise MethodError(f"no message has the run id {params.run_id}")
        found = [part for part in await ledger.outbox_of(row.id) if part.state == state]
    else:
        found = await ledger.outbox_parts((state,), limit=MOST_PARTS)
    if params.ids:
        found = [part for part in found if part.id in params.ids]
        if missing := set(params.ids) - {part.id for part in found}:
            word = "was given up" if state == "dead" else "waits"
            raise MethodError(f"no part {', '.join(map(str, sorted(missing)))} {word}; see outbox.list")
    return found


# Sending


class SendParams(Params):
    to: NonEmpty
    message: str
    idempotency_key: NonEmpty
    media_url: str | None = None
    media_urls: list[str] | None = None
    gif_playback: bool | None = None
    channel: str | None = None
    account_id: str | None = None
    session_key: str | None = None


@methods.add("send", SendParams)
async def send(call: MethodCall, params: SendParams) -> Any:
    """Writes the message down, then sends it. It goes out even after a crash, and one key never sends twice."""
    gateway = call.gateway
    row, message = await gateway.runtime.stores.ledger.by_run(params.idempotency_key), None
    if row is None or row.source != "send":
        try:
            message = await _message_to_send(gateway, params)
        except SendRefused as refused:
            raise MethodError(str(refused)) from None
        row, new = await gateway.messenger.post(message)
        message = message if new else None
    outcome = await gateway.messenger.delivery_outcome(row)
    if outcome.error:
        payload = {**outcome.answer, "status": "error", "summary": outcome.error}
        raise MethodError(outcome.error, code="UNAVAILABLE", payload=payload)
    if message is not None:
        await gateway.messenger.open_session(message.session)
        await gateway.messenger.write_to_transcript(message)
    return outcome.answer


async def _message_to_send(gateway: Gateway, params: SendParams) -> MessageToSend:
    running = gateway.messenger.account_for(params.channel, params.account_id)
    route = Route(channel=running.kind.id, to=params.to.strip(), account_id=running.account.id)
    target = gateway.messenger.session_for(running, params.to)
    if params.session_key:
        target = gateway.directory.target(params.session_key)
    gateway.directory.check_send_policy(target, await gateway.directory.entry(target), channel=running.kind.id)
    addresses = [*([params.media_url] if params.media_url else []), *(params.media_urls or [])]
    media = await gateway.messenger.fetched_media(addresses, running)
    if not params.message.strip() and not media:
        raise MethodError("message or mediaUrl required")
    return MessageToSend(
        run_id=params.idempotency_key,
        source="send",
        agent_id=target.agent_id,
        session_key=target.key,
        route=route,
        text=params.message,
        media=tuple(media),
    )
