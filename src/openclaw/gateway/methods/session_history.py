"""``sessions.archived`` and ``sessions.resume``: the sessions a key had before, and the way back to them."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.params import NonEmpty, Params, Positive
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.rotation import earlier_sessions, take_up, wanted_session
from openclaw.gateway.session_target import entry_of, target_of
from openclaw.sessions.keys import shown_key
from openclaw.sessions.resume import NotResumable


class SessionsArchived(Params):
    key: NonEmpty


@method("sessions.archived", SessionsArchived, access="read")
async def archived(call: Call) -> Any:
    target = target_of(call.gateway, call.params.key)
    entry = await entry_of(call.gateway, target)
    answer: dict[str, Any] = {"ts": call.gateway.clock.now_ms(), "key": shown_key(target.key)}
    answer["sessionId"] = entry["sessionId"] if entry else None
    return {**answer, "sessions": await earlier_sessions(call.gateway, target)}


class SessionsResume(Params):
    key: NonEmpty
    session_id: NonEmpty | None = None
    """Whole or its beginning."""
    index: Positive | None = None
    """1 is the newest; without either, the newest."""


@method("sessions.resume", SessionsResume, access="admin")
async def resume(call: Call) -> Any:
    params: SessionsResume = call.params
    if params.session_id is not None and params.index is not None:
        raise MethodError("Provide either sessionId or index (not both)")
    target = target_of(call.gateway, params.key)
    try:
        wanted = params.index
        if params.session_id is not None:
            wanted = await wanted_session(call.gateway, target, params.session_id.strip())
        rotation = await take_up(call.gateway, target, wanted)
    except NotResumable as refused:
        raise MethodError(str(refused)) from None
    previous = rotation.old["sessionId"] if rotation.old else None
    answer = {
        "ok": True,
        "key": shown_key(target.key),
        "sessionId": rotation.new["sessionId"],
        "previousSessionId": previous,
    }
    return {**answer, "marker": rotation.marker_text, "entry": rotation.new}
