"""``why``: finds the message, run or session that a person names, and returns its facts and its story."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from openclaw.gateway.server.registry import MethodError, find_row, target_of
from openclaw.runs.dispatcher import LONGEST_CHAIN
from openclaw.runs.why_text import Life, answered_by, delivery_text, life_of, reason_text, story_of, summary
from openclaw.sessions.keys import key_problem, shown_key
from openclaw.sessions.prompt_prefix import without_wrappers
from openclaw.sessions.reset import previous_sessions
from openclaw.storage.base import LedgerRow, OutboxRow, ToolCallRow
from openclaw.text import clipped

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

_PUBLIC = re.compile(r"^(chatcmpl|resp|msg)_")
"""The prefixes of the ids under which OpenAI's clients know a run."""
LAST_MESSAGES = 10
EARLIER_LOOKED_AT = 500
LONGEST_TEXT = 2_000
LONGEST_ARGUMENTS = 2_000
LONGEST_NUMBER = 18
"""The most digits of a ledger id, which has 64 bits."""


async def explain(gateway: Gateway, ref: str) -> dict[str, Any]:
    """Returns the facts and the ``story`` of a message or a session.

    A message goes by its ledger id, its run id, the beginning of its run id or its channel's id. A session goes by its
    key, id or label. Raises ``MethodError`` when the name fits nothing, or more than one run.
    """
    name = ref.strip()
    row = await _exact(gateway, name)
    if row is None:
        found = await _session(gateway, name)
        if found is not None:
            return found
        row = await _by_platform_id(gateway, name) or await _by_prefix(gateway, name)
    return await why_message(gateway, row)


async def why_message(gateway: Gateway, row: LedgerRow) -> dict[str, Any]:
    life = await life_of(gateway.runtime, row)
    answer = {"kind": "message", "message": facts(life), "story": story_of(gateway.runtime, gateway.dispatcher, life)}
    answering = await _answering(gateway, row)
    if answering is not None:
        theirs = await life_of(gateway.runtime, answering)
        answer["answeredBy"] = {
            "message": facts(theirs),
            "story": story_of(gateway.runtime, gateway.dispatcher, theirs),
        }
    return answer


async def _exact(gateway: Gateway, name: str) -> LedgerRow | None:
    row = await gateway.runtime.ledger.by_run(_PUBLIC.sub("", name))
    number = name.removeprefix("#")
    if row is None and number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER:
        row = await gateway.runtime.ledger.get(int(number))
    return row


async def _by_platform_id(gateway: Gateway, name: str) -> LedgerRow | None:
    """Finds the message among the latest ones by its channel's id."""
    if not name:
        return None
    rows = await gateway.runtime.ledger.recent(limit=EARLIER_LOOKED_AT)
    return next((row for row in rows if name in row.body.message_ids), None)


async def _by_prefix(gateway: Gateway, name: str) -> LedgerRow:
    rows = await gateway.runtime.ledger.runs_beginning(name, 6) if name else []
    if not rows:
        raise MethodError(
            f'Nothing is known of "{_shown(name)}": it is no message, run, session or label. '
            "`openclaw why main` lists the last messages of the main session."
        )
    if len(rows) > 1:
        ids = ", ".join(_shown(row.run_id) for row in rows[:5]) + (", …" if len(rows) > 5 else "")
        raise MethodError(f'"{_shown(name)}" is how several runs begin: {ids}. Give more of the one you mean.')
    return rows[0]


def _shown(name: str) -> str:
    return name if len(name) <= 80 else name[:80] + "…"


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
        return _session_answer(gateway, found.key, found.entry["sessionId"], rows)
    if (key := await _key_of_earlier(gateway, name)) is not None:
        rows = await gateway.runtime.ledger.recent(session_key=key, limit=EARLIER_LOOKED_AT)
        rows = [row for row in rows if row.session_id == name][:LAST_MESSAGES]
        return _session_answer(gateway, key, name, rows)
    if key_problem(name):
        return None
    deleted = target_of(gateway, name).key
    rows = await gateway.runtime.ledger.recent(session_key=deleted, limit=LAST_MESSAGES)
    return _session_answer(gateway, deleted, rows[0].session_id, rows) if rows else None


async def _key_of_earlier(gateway: Gateway, session_id: str) -> str | None:
    for row in await gateway.runtime.sessions.rows():
        if any(previous.session_id == session_id for previous in previous_sessions(row.entry)):
            return row.key
    return None


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
    return clipped(without_wrappers(row.body.prompt or ""), LONGEST_TEXT)


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


def facts(life: Life) -> dict[str, Any]:
    view = row_facts(life.row)
    view["changes"] = [
        {"at": change.at, "state": change.state, "reason": reason_text(change.reason)} for change in life.changes
    ]
    view["toolCalls"] = [_tool_call(call) for call in life.tool_calls]
    view["deliveries"] = [_delivery(part) for part in life.outbox]
    return view


def _tool_call(call: ToolCallRow) -> dict[str, Any]:
    view: dict[str, Any] = {"id": call.call_id, "name": call.name, "ok": call.ok}
    view |= {"startedAt": call.started_at, "finishedAt": call.finished_at}
    return {**view, "arguments": clipped(call.arguments, LONGEST_ARGUMENTS)}


def _delivery(part: OutboxRow) -> dict[str, Any]:
    view: dict[str, Any] = {"part": part.part, "channel": part.channel, "state": part.state, "attempts": part.attempts}
    view |= {"createdAt": part.created_at, "nextAt": part.next_at or None}
    view |= {"error": delivery_text(part), "possiblyDuplicate": part.doubts > 0}
    return {**view, "messageId": part.message_id}
