"""``messages.*``: every accepted message from acceptance to its end, as facts and in plain words."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, target_of
from openclaw.gateway.views.why import LONGEST_NUMBER, explain, facts, row_facts
from openclaw.runs.why_text import life_of
from openclaw.storage.base import MessageState

methods = MethodTable()


class MessagesList(Params):
    session_key: NonEmpty | None = None
    state: MessageState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50


@methods.add("messages.list", MessagesList, access="read")
async def list_messages(call: MethodCall) -> Any:
    """The accepted messages, newest first."""
    params: MessagesList = call.params
    key = None if params.session_key is None else target_of(call.gateway, params.session_key).key
    rows = await call.gateway.runtime.ledger.recent(session_key=key, state=params.state, limit=params.limit)
    return {"ts": call.gateway.runtime.clock.now_ms(), "messages": [row_facts(row) for row in rows]}


class MessagesGet(Params):
    id: Annotated[int, msgspec.Meta(ge=1, lt=10**LONGEST_NUMBER)] | None = None
    run_id: NonEmpty | None = None


@methods.add("messages.get", MessagesGet, access="read")
async def get(call: MethodCall) -> Any:
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


@methods.add("messages.why", MessagesWhy, access="read")
async def why(call: MethodCall) -> Any:
    found = await explain(call.gateway, call.params.ref)
    return {"ts": call.gateway.runtime.clock.now_ms(), "ref": call.params.ref, **found}
