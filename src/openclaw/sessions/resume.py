"""Goes back to a session that a key had before. The current session takes its place in the list of previous ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import cast

from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import PreviousSession, Rotation, Stores, mark, previous_sessions, resumed_entry, was_used
from openclaw.storage.base import TranscriptRef

SHORTEST_ID = 4


class NotResumable(Exception):
    """The session cannot be resumed. The message tells the person why and what to do."""


def choose(listed: Sequence[PreviousSession], wanted: str | int | None) -> PreviousSession:
    """Finds a session by its number (1 is the newest), its id or the beginning of it. The default is the newest.

    Raises ``NotResumable`` when nothing or more than one session matches.
    """
    if not listed:
        raise NotResumable("There is no earlier session here to resume.")
    text = str(wanted if wanted is not None else "").strip().lower()
    if not text:
        return listed[0]
    exact = [previous for previous in listed if previous.session_id.lower() == text]
    if exact:
        return exact[0]
    if text.isascii() and text.lstrip("-").isdigit() and len(text) < SHORTEST_ID:
        if 1 <= int(text) <= len(listed):
            return listed[int(text) - 1]
        raise NotResumable(f"There is no earlier session number {text}: choose 1 to {len(listed)}.")
    matches = [previous for previous in listed if previous.session_id.lower().startswith(text)]
    if len(matches) == 1 and len(text) >= SHORTEST_ID:
        return matches[0]
    shown = text if len(text) <= 64 else text[:64] + "…"
    if len(matches) > 1:
        raise NotResumable(f"Several earlier sessions begin with {shown}: give more of the id.")
    raise NotResumable(f"No earlier session of this chat is called {shown}: choose 1 to {len(listed)}, or an id.")


async def resume(
    stores: Stores,
    agent_id: str,
    key: str,
    wanted: str | int | PreviousSession | None,
    now_ms: int,
    *,
    zone: tzinfo | None = None,
) -> Rotation:
    """Makes an earlier session current again. Call it in the session's lane while none of its runs is active.

    A ``PreviousSession`` is resumed as it is; the caller has made sure that no other key uses it.
    """
    before = await stores.sessions.get(agent_id, key)
    if before is None:
        raise NotResumable("There is no earlier session here to resume.")
    chosen = wanted if isinstance(wanted, PreviousSession) else choose(previous_sessions(before), wanted)
    if chosen.session_id == before["sessionId"]:
        raise NotResumable("That session is the current one already.")
    ref = TranscriptRef(agent_id=agent_id, session_id=chosen.session_id, file=chosen.session_file)
    if await stores.transcripts.locate(ref) is None:
        raise NotResumable(f"The transcript of session {chosen.session_id} is gone from the disk; choose another one.")
    remember = await was_used(stores, agent_id, before)
    replaced: list[SessionEntry] = []

    def change(current: SessionEntry | None) -> SessionEntry | None:
        if current is None or current["sessionId"] != before["sessionId"]:
            return current
        replaced.append(cast("SessionEntry", dict(current)))
        return resumed_entry(current, chosen, now_ms, remember=remember)

    entry = await stores.sessions.update(agent_id, key, change)
    if entry is None or not replaced:
        raise NotResumable("The session changed in the same moment; try again.")
    text = f"Back in an earlier session{_ended(chosen, zone)}."
    if remember:
        text += " /resume returns to the other one."
    rotation = Rotation(old=replaced[0], new=entry, reason="resume", marker_text=text)
    await mark(stores, agent_id, rotation)
    return rotation


def _ended(chosen: PreviousSession, zone: tzinfo | None) -> str:
    """When the session ended, on the clock that the resets use, as words for the marker."""
    if not chosen.ended_at:
        return ""
    moment = datetime.fromtimestamp(chosen.ended_at // 1000, UTC).astimezone(zone)
    return f" (it ended on {moment:%a} {moment.day} {moment:%b %Y at %H:%M})"
