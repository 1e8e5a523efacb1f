"""Changing the session of a key from outside: stop what runs, do it in the lane, tell everyone who has it open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openclaw.gateway import session_rows
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.targets import Target, entry_of
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import shown_key
from openclaw.sessions.reset import MARKER_TYPE, PreviousSession, Reason, Rotation, previous_sessions, rotate
from openclaw.sessions.resume import NotResumable, choose, resume
from openclaw.storage.base import AbortReason, SessionRow, TranscriptRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

SETTLE_S = 15.0


async def stop_runs(gateway: Gateway, target: Target, reason: AbortReason) -> None:
    gateway.dispatcher.abort(target.key, reason=reason)
    if not await gateway.dispatcher.settle(target.key, SETTLE_S):
        raise MethodError(f"Session {target.key} is still active; try again in a moment.", code="UNAVAILABLE")


async def start_over(gateway: Gateway, target: Target, reason: Reason = "reset", *, why: str = "") -> Rotation:
    """A new session id for the key. What runs and waits is stopped first: it belongs to the old one."""
    await stop_runs(gateway, target, AbortReason.RESET)

    async def work() -> Rotation:
        now = gateway.runtime.clock.now_ms()
        return await rotate(gateway.runtime, target.agent_id, target.key, reason, now, why=why)

    rotation = await gateway.dispatcher.exclusively(target.key, work)
    announce(gateway, target, rotation)
    return rotation


async def take_up(gateway: Gateway, target: Target, wanted: str | int | PreviousSession | None) -> Rotation:
    """An earlier session becomes current again. Raises ``NotResumable`` with words for the person who asked."""
    if gateway.dispatcher.occupied(target.key):
        raise NotResumable("A message of this session is being answered. Wait for it or send /stop, then try again.")

    async def work() -> Rotation:
        return await resume(gateway.runtime, target.agent_id, target.key, wanted, gateway.runtime.clock.now_ms())

    rotation = await gateway.dispatcher.exclusively(target.key, work)
    announce(gateway, target, rotation)
    return rotation


def announce(gateway: Gateway, target: Target, rotation: Rotation) -> None:
    """The marker for those who have the chat open; histories read it from the transcript."""
    session_id, at = rotation.new["sessionId"], rotation.new.get("updatedAt")
    message: dict[str, Any] = {"role": "system", "content": [{"type": "text", "text": rotation.marker_text}]}
    message |= {"timestamp": at, "__openclaw": {"kind": MARKER_TYPE, "id": session_id, "reason": rotation.reason}}
    payload = {"runId": f"session-{session_id}-{at}", "sessionKey": shown_key(target.key), "seq": 0, "state": "final"}
    gateway.broadcaster.publish("chat", {**payload, "message": message})


async def earlier_sessions(gateway: Gateway, target: Target) -> list[dict[str, Any]]:
    """Newest first, numbered as ``resume`` counts them, with a title taken from what was said."""
    listed = previous_sessions(await entry_of(gateway, target))
    return [await _view(gateway, target, number, previous) for number, previous in enumerate(listed, start=1)]


async def _view(gateway: Gateway, target: Target, number: int, previous: PreviousSession) -> dict[str, Any]:
    entry = SessionEntry(sessionId=previous.session_id, updatedAt=previous.ended_at)
    if previous.session_file:
        entry["sessionFile"] = previous.session_file
    row = SessionRow(target.agent_id, target.key, entry)
    begun, messages = (
        await session_rows.first_messages(gateway, row),
        await session_rows.last_messages(gateway, row, 20),
    )
    spoken = [text for message in reversed(messages) if (text := session_rows.preview_text(message).strip())]
    view: dict[str, Any] = {"index": number, "sessionId": previous.session_id, "endedAt": previous.ended_at}
    view |= {"reason": previous.reason, "title": session_rows.derived_title(row, [*begun, *messages])}
    view["lastMessagePreview"] = session_rows.shortened(spoken[0], 240) if spoken else ""
    return view


def earlier_transcripts(target: Target, entry: SessionEntry) -> list[TranscriptRef]:
    return [
        TranscriptRef(agent_id=target.agent_id, session_id=previous.session_id, file=previous.session_file)
        for previous in previous_sessions(entry)
    ]


async def unlisted_session(gateway: Gateway, target: Target, session_id: str) -> PreviousSession | None:
    """A transcript of this agent that no key has or remembers, e.g. one that fell off the end of a list."""
    ref = TranscriptRef(agent_id=target.agent_id, session_id=session_id)
    if (
        gateway.runtime.transcripts.locate(ref) is None
        or await gateway.runtime.sessions.find_session_id(session_id) is not None
    ):
        return None
    for row in await gateway.runtime.sessions.rows():
        if any(previous.session_id == session_id for previous in previous_sessions(row.entry)):
            return None
    return PreviousSession(session_id=session_id)


async def wanted_session(gateway: Gateway, target: Target, session_id: str) -> str | PreviousSession:
    """What a session id means for an operator, who may also reach sessions that are no longer listed."""
    try:
        return choose(previous_sessions(await entry_of(gateway, target)), session_id).session_id
    except NotResumable:
        return await unlisted_session(gateway, target, session_id) or session_id
