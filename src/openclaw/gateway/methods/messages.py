"""``messages.*``: every accepted message from acceptance to its end, as facts and in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, find_row, target_of
from openclaw.inbound.held import Waiting
from openclaw.runs.run_index import LONGEST_CHAIN
from openclaw.runs.why_text import (
    LONGEST_NUMBER,
    Life,
    answered_by,
    delivery_text,
    life_of,
    named_message,
    reason_text,
    story_of,
    summary,
    tell_turned_away,
)
from openclaw.sessions.keys import key_problem, shown_key
from openclaw.sessions.prompt_prefix import typed_words
from openclaw.sessions.reset import previous_sessions
from openclaw.storage.base import LedgerRow, MessageState, Reason, TranscriptRef, TurnedAway
from openclaw.storage.session_query import SessionQuery
from openclaw.text import clipped

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

methods = MethodTable()

LAST_MESSAGES = 10
EARLIER_LOOKED_AT = 500
LONGEST_TEXT = 2_000
LONGEST_ARGUMENTS = 2_000
MOST_WARNINGS = 5


class MessagesList(Params):
    session_key: NonEmpty | None = None
    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50


@methods.add("messages.list", MessagesList)
async def list_messages(call: MethodCall) -> Any:
    """The accepted messages, newest first."""
    params: MessagesList = call.params
    key = None if params.session_key is None else target_of(call.gateway, params.session_key).key
    rows = await call.gateway.runtime.ledger.recent(session_key=key, state=params.state, limit=params.limit)
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
async def get(call: MethodCall) -> Any:
    """One accepted message with its changes, tool calls and deliveries."""
    params: MessagesGet = call.params
    ledger = call.gateway.runtime.ledger
    if params.run_id is not None and params.id is None:
        row = await ledger.by_run(params.run_id)
    elif params.id is not None and params.run_id is None:
        row = await ledger.get(params.id)
    else:
        raise MethodError("Provide either id or runId (not both)")
    if row is None:
        raise MethodError(f"No message found: {params.run_id or params.id}")
    return facts(await life_of(call.gateway.runtime, row))


class MessagesWhy(Params):
    ref: NonEmpty
    """A ledger id, a run id or its beginning, a session key, a session id or a label."""


@methods.add("messages.why", MessagesWhy)
async def why(call: MethodCall) -> Any:
    """What became of a message, a run or the messages of a session, in plain words."""
    found = await explain(call.gateway, call.params.ref)
    return {"ts": call.gateway.runtime.clock.now_ms(), "ref": call.params.ref, **found}


async def explain(gateway: Gateway, ref: str) -> dict[str, Any]:
    """Returns the facts and the ``story`` of a message or a session.

    A message goes by its ledger id, its run id, the beginning of its run id or its channel's id, also if it was turned
    away. A session goes by its
    key, id or label. Raises ``MethodError`` when the name fits nothing, or more than one run.
    """
    name = ref.strip()
    row = await named_message(gateway.runtime.ledger, name)
    if row is None:
        found = await _session(gateway, name)
        if found is not None:
            return found
        row = await gateway.runtime.ledger.by_message_id(name) if name else None
        if row is None and (held := await _held(gateway, name)) is not None:
            return held
        if row is None and (notes := await gateway.runtime.ledger.turned_away([name])):
            return _turned_away(gateway, notes)
        row = row or await _by_prefix(gateway, name)
    return await why_message(gateway, row)


def _turned_away(gateway: Gateway, notes: list[TurnedAway]) -> dict[str, Any]:
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
    return {"kind": "turnedAway", "turnedAway": views, "story": tell_turned_away(notes, gateway.user_zone())}


async def why_message(gateway: Gateway, row: LedgerRow) -> dict[str, Any]:
    life = await life_of(gateway.runtime, row)
    story = story_of(gateway.runtime, gateway.dispatcher, life)
    story += await _damage(gateway, row.agent_id, row.session_key, row.session_id)
    answer = {"kind": "message", "message": facts(life), "story": story}
    answering = await _answering(gateway, row)
    if answering is not None:
        theirs = await life_of(gateway.runtime, answering)
        answer["answeredBy"] = {
            "message": facts(theirs),
            "story": story_of(gateway.runtime, gateway.dispatcher, theirs),
        }
    return answer


async def _held(gateway: Gateway, name: str) -> dict[str, Any] | None:
    """Returns what is known of a message that was received and not accepted yet."""
    for one in await gateway.pipeline.held.waiting() if name else ():
        if name in (one.held.key, one.message_id):
            tries = f" {one.held.attempts} Gateways have tried since it came." if one.held.attempts > 1 else ""
            story = [f"Received from {one.channel} and kept; no run has begun: {one.words()}.{tries}"]
            return {"kind": "message", "message": held_facts(one), "story": story}
    return None


async def _damage(gateway: Gateway, agent_id: str, session_key: str, session_id: str) -> list[str]:
    """Tells what is damaged in the transcript of a session."""
    entry = await gateway.runtime.sessions.get(agent_id, session_key)
    file = entry.get("sessionFile") if entry is not None and entry["sessionId"] == session_id else None
    ref = TranscriptRef(agent_id=agent_id, session_id=session_id, file=file)
    transcripts = gateway.runtime.transcripts
    path = await transcripts.locate(ref) if session_id else None
    # Opening a compressed one would decompress it. It was sound when it was compressed.
    transcript = await transcripts.open(ref, create=False) if path is not None and path.endswith(".jsonl") else None
    if transcript is None or not transcript.warnings:
        return []
    found = "; ".join(transcript.warnings[:MOST_WARNINGS])
    return [f"The transcript of its session is damaged, and what cannot be read was left out: {found}."]


async def _by_prefix(gateway: Gateway, name: str) -> LedgerRow:
    rows = await gateway.runtime.ledger.runs_beginning(name, 6) if name else []
    if not rows:
        raise MethodError(
            f'Nothing is known of "{clipped(name, 81)}": it is no message, run, session or label. '
            "`openclaw why main` lists the last messages of the main session."
        )
    if len(rows) > 1:
        ids = ", ".join(clipped(row.run_id, 81) for row in rows[:5]) + (", …" if len(rows) > 5 else "")
        raise MethodError(f'"{clipped(name, 81)}" is how several runs begin: {ids}. Give more of the one you mean.')
    return rows[0]


async def _answering(gateway: Gateway, row: LedgerRow) -> LedgerRow | None:
    """Returns the message whose run answered this one, or None when it has a run of its own."""
    found: LedgerRow | None = None
    for _ in range(LONGEST_CHAIN):
        by = answered_by(found or row)
        following = await gateway.runtime.ledger.by_run(by) if by else None
        if following is None:
            break
        found = following
    return found


# Sessions


async def _session(gateway: Gateway, name: str) -> dict[str, Any] | None:
    """Returns the last messages of a session, of an earlier session of its key, or of a deleted one."""
    if not name:
        return None
    found = await find_row(gateway, name)
    if found is not None:
        rows = await gateway.runtime.ledger.recent(session_key=found.key, limit=LAST_MESSAGES)
        answer = _session_answer(gateway, found.key, found.entry["sessionId"], rows)
        answer["story"] += await _damage(gateway, found.agent_id, found.key, found.entry["sessionId"])
        return answer
    for row in (await gateway.runtime.sessions.select(SessionQuery(ever=frozenset({name})))).rows:
        if any(previous.session_id == name for previous in previous_sessions(row.entry)):
            rows = await gateway.runtime.ledger.recent(session_key=row.key, limit=EARLIER_LOOKED_AT)
            rows = [one for one in rows if one.session_id == name][:LAST_MESSAGES]
            return _session_answer(gateway, row.key, name, rows)
    if key_problem(name):
        return None
    deleted = target_of(gateway, name).key
    rows = await gateway.runtime.ledger.recent(session_key=deleted, limit=LAST_MESSAGES)
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


# Facts on the wire


def text_of(row: LedgerRow) -> str:
    """The message as its sender wrote it."""
    return clipped(row.body.written or typed_words(row.body.prompt or ""), LONGEST_TEXT)


def row_facts(row: LedgerRow) -> dict[str, Any]:
    result = row.result or {}
    view: dict[str, Any] = {"id": row.id, "runId": row.run_id, "sessionKey": shown_key(row.session_key)}
    view |= {"sessionId": row.session_id, "agentId": row.agent_id, "source": row.source}
    view |= {
        "channel": row.route.get("channel"),
        "state": row.state,
        "reason": reason_text(row.reason),
        "attempts": row.attempts,
    }
    view |= {"acceptedAt": row.accepted_at, "startedAt": row.started_at, "endedAt": row.ended_at}
    view |= {"text": text_of(row), "model": result.get("model"), "answeredBy": answered_by(row)}
    if row.body.message_ids:
        view["messageIds"] = row.body.message_ids
    view["reply"] = clipped(result["text"], LONGEST_TEXT) if isinstance(result.get("text"), str) else None
    return view


def held_facts(one: Waiting) -> dict[str, Any]:
    """The facts of a message that is held. It has neither a number nor a session yet."""
    inbound = one.inbound
    view: dict[str, Any] = {"id": None, "runId": None, "sessionKey": None, "sessionId": None, "agentId": None}
    view |= {"source": one.channel, "channel": one.channel, "state": "held", "reason": one.words()}
    view |= {"attempts": one.held.attempts, "acceptedAt": inbound.timestamp_ms if inbound else None}
    view |= {"startedAt": None, "endedAt": None, "text": clipped(inbound.text, LONGEST_TEXT) if inbound else ""}
    return {**view, "model": None, "answeredBy": None, "messageIds": [one.message_id], "reply": None}


def facts(life: Life) -> dict[str, Any]:
    view = row_facts(life.row)
    view["changes"] = [
        {"at": change.at, "state": change.state, "reason": reason_text(change.reason)} for change in life.changes
    ]
    view["toolCalls"] = [
        {
            "id": call.call_id,
            "name": call.name,
            "ok": call.ok,
            "startedAt": call.started_at,
            "finishedAt": call.finished_at,
            "arguments": clipped(call.arguments, LONGEST_ARGUMENTS),
        }
        for call in life.tool_calls
    ]
    view["deliveries"] = [
        {
            "part": part.part,
            "channel": part.channel,
            "state": part.state,
            "attempts": part.attempts,
            "createdAt": part.created_at,
            "nextAt": part.next_at or None,
            "error": delivery_text(part),
            "possiblyDuplicate": part.doubts > 0,
            "messageId": part.message_id,
        }
        for part in life.outbox
    ]
    return view
