"""``outbox.*``: the parts of replies that wait for their delivery, and those that were given up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.runs.why_text import delivery_text
from openclaw.storage.base import OutboxRow, PartState
from openclaw.text import clipped

methods = MethodTable()

LONGEST_TEXT = 300
MOST = 500
_STATES: dict[str, tuple[PartState, ...]] = {
    "open": ("pending", "sending", "dead"),
    "waiting": ("pending", "sending"),
    "dead": ("dead",),
    "sent": ("sent",),
}


class OutboxList(Params):
    state: Literal["open", "waiting", "dead", "sent"] = "open"
    """``open`` is everything that was not delivered."""
    channel: NonEmpty | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 100


@methods.add("outbox.list", OutboxList)
async def list_outbox(call: MethodCall) -> Any:
    """The parts of replies, newest first."""
    params: OutboxList = call.params
    ledger = call.gateway.runtime.ledger
    rows = await ledger.outbox_parts(_STATES[params.state], channel=params.channel, limit=params.limit)
    return {
        "ts": call.gateway.runtime.clock.now_ms(),
        "waiting": await ledger.outbox_depth(),
        "parts": [part_facts(row) for row in rows],
    }


class OutboxChoice(Params):
    ids: Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(max_length=MOST)] = []
    """The ids of parts."""
    run_id: NonEmpty | None = None
    """All parts of the message with this run id."""
    all: bool = False
    """Every part that the method can be used on."""


@methods.add("outbox.retry", OutboxChoice)
async def retry(call: MethodCall) -> Any:
    """Tries parts anew that were given up."""
    rows = await _chosen(call, "dead")
    return {"ok": True, "retried": await call.gateway.channel_services.delivery.again(rows)}


@methods.add("outbox.drop", OutboxChoice)
async def drop(call: MethodCall) -> Any:
    """Gives up parts that wait. One that is being sent this moment is not dropped."""
    rows = await _chosen(call, "pending")
    return {"ok": True, "dropped": await call.gateway.channel_services.delivery.drop(rows)}


async def _chosen(call: MethodCall, state: PartState) -> list[OutboxRow]:
    params: OutboxChoice = call.params
    ledger = call.gateway.runtime.ledger
    if not (params.ids or params.run_id or params.all):
        raise MethodError("name parts by ids, a message by runId, or all")
    if params.run_id:
        row = await ledger.by_run(params.run_id)
        if row is None:
            raise MethodError(f"no message has the run id {params.run_id}")
        found = [part for part in await ledger.outbox_of(row.id) if part.state == state]
    else:
        found = await ledger.outbox_parts((state,), limit=MOST)
    if params.ids:
        found = [part for part in found if part.id in params.ids]
        if missing := set(params.ids) - {part.id for part in found}:
            word = "was given up" if state == "dead" else "waits"
            raise MethodError(f"no part {', '.join(map(str, sorted(missing)))} {word}; see outbox.list")
    return found


def part_facts(row: OutboxRow) -> dict[str, Any]:
    payload = row.payload
    return {
        "id": row.id,
        "messageId": row.ledger_id,
        "runId": row.run_id,
        "part": row.part,
        "channel": row.channel,
        "accountId": row.route.get("accountId"),
        "to": row.route.get("to"),
        "state": row.state,
        "act": payload.get("act", "send"),
        "text": clipped(str(payload.get("text") or ""), LONGEST_TEXT),
        "media": len(payload.get("media") or ()),
        "attempts": row.attempts,
        "createdAt": row.created_at,
        "nextAt": row.next_at or None,
        "error": delivery_text(row),
        "possiblyDuplicate": row.doubts > 0,
    }
