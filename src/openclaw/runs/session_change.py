"""Changes of the session behind a key: start over, resume an earlier one, list the earlier ones.

When an earlier session is resumed, the current one takes its place in the list of previous ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, cast

from openclaw.agent.recorder import entry_id
from openclaw.agent.runtime import Runtime
from openclaw.messages import UserMessage
from openclaw.outbound.session_preview import derived_title, first_messages, last_messages, preview_text, shortened
from openclaw.protocol.sessions import EarlierSession
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import (
    PreviousSession,
    Reason,
    Rotation,
    SessionState,
    mark,
    previous_sessions,
    resumed_entry,
    rotate,
    transcript_ref,
    was_used,
)
from openclaw.storage.message_ledger import AbortReason, LedgerRow
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Transcript, TranscriptRef

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
    state: SessionState,
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
    before = await state.stores.sessions.get(agent_id, key)
    if before is None:
        raise NotResumable("There is no earlier session here to resume.")
    chosen = wanted if isinstance(wanted, PreviousSession) else choose(previous_sessions(before), wanted)
    if chosen.session_id == before["sessionId"]:
        raise NotResumable("That session is the current one already.")
    ref = TranscriptRef(agent_id=agent_id, session_id=chosen.session_id, file=chosen.session_file)
    if await state.stores.transcripts.locate(ref) is None:
        raise NotResumable(f"The transcript of session {chosen.session_id} is gone from the disk; choose another one.")
    remember = await was_used(state, agent_id, before)
    replaced: list[SessionEntry] = []

    def change(current: SessionEntry | None) -> SessionEntry | None:
        if current is None or current["sessionId"] != before["sessionId"]:
            return current
        replaced.append(cast("SessionEntry", dict(current)))
        return resumed_entry(current, chosen, now_ms, remember=remember)

    entry = await state.stores.sessions.update(agent_id, key, change)
    if entry is None or not replaced:
        raise NotResumable("The session changed in the same moment; try again.")
    text = f"Back in an earlier session{_ended(chosen, zone)}."
    if remember:
        text += " /resume returns to the other one."
    rotation = Rotation(old=replaced[0], new=entry, reason="resume", marker_text=text)
    await mark(state, agent_id, rotation)
    return rotation


def _ended(chosen: PreviousSession, zone: tzinfo | None) -> str:
    """When the session ended, on the clock that the resets use, as words for the marker."""
    if not chosen.ended_at:
        return ""
    moment = datetime.fromtimestamp(chosen.ended_at // 1000, UTC).astimezone(zone)
    return f" (it ended on {moment:%a} {moment.day} {moment:%b %Y at %H:%M})"


SETTLE_S = 15.0
"""A change waits this long for the runs it stopped."""


class StillActive(Exception):
    """The session's runs were stopped but have not ended yet."""


async def set_entry_fields(runtime: Runtime, session: SessionRef, changes: dict[str, Any]) -> None:
    """Sets fields of the session's entry, which is made if there is none. A value of None removes the field."""
    now = runtime.clock.now_ms()

    def change(entry: SessionEntry | None) -> SessionEntry:
        fields: dict[str, Any] = {**(entry or {"sessionId": str(uuid.uuid4()), "updatedAt": now}), **changes}
        removed = {name for name, value in changes.items() if value is None}
        remaining = {name: value for name, value in fields.items() if name not in removed}
        return SessionEntry(**remaining)  # type: ignore[typeddict-item]

    await runtime.stores.sessions.update(session.agent_id, session.key, change)


async def stop_runs(runs: Runs, session: SessionRef, reason: AbortReason) -> None:
    await runs.abort(session.key, reason=reason)
    if not await runs.settle(session.key, SETTLE_S):
        raise StillActive(f"Session {session.key} is still active; try again in a moment.")


async def delete_session(
    runtime: Runtime, runs: Runs, session: SessionRef, *, archive: bool = True
) -> list[str] | None:
    """Removes a session after its runs were stopped. Returns the paths of its archived transcripts, None if it is gone.

    Without ``archive`` the transcripts stay where they are.
    """
    await stop_runs(runs, session, AbortReason.DELETE)

    async def remove() -> list[str] | None:
        entry = await runtime.stores.sessions.get(session.agent_id, session.key)
        if entry is None:
            return None
        await runtime.stores.sessions.update(session.agent_id, session.key, lambda _: None)
        refs = [transcript_ref(session.agent_id, entry), *earlier_transcripts(session, entry)]
        if archive:
            return [path for ref in refs for path in await runtime.stores.transcripts.archive(ref, "deleted")]
        for ref in refs:
            await runtime.stores.transcripts.forget(ref.session_id)
        return []

    return await runs.exclusively(session.key, remove)


async def undo_turn(runtime: Runtime, runs: Runs, row: LedgerRow) -> bool:
    """Takes a message and what followed from it out of the conversation. False if people went on speaking since.

    A message that waits or runs is stopped. Its messages stay in the transcript, on an abandoned branch.
    """
    session = SessionRef(row.agent_id, row.session_key)
    await runs.abort(session.key, row.run_id, AbortReason.WITHDRAWN)
    run = runs.index.get(row.run_id)
    if run is not None and not run.ended:
        await run.wait()

    async def leave() -> bool:
        entry = await runtime.stores.sessions.get(session.agent_id, session.key)
        if entry is None:
            return False
        transcript = await runtime.stores.transcripts.open(transcript_ref(session.agent_id, entry), create=False)
        return transcript is None or await _leave_turn(transcript, entry_id(row.run_id, 0))

    return await runs.exclusively(session.key, leave)


async def _leave_turn(transcript: Transcript, first: str) -> bool:
    """Goes back to before the entry ``first``, unless another message came after it."""
    if first not in transcript:
        return True  # The message never began.
    context = transcript.context()
    if first not in context.entry_ids:
        return False
    later = context.messages[context.entry_ids.index(first) + 1 :]
    entry = await transcript.entry(first)
    if entry is None or any(isinstance(message, UserMessage) for message in later):
        return False
    await transcript.branch(entry.parent_id)
    await transcript.append(
        {"type": "branch_summary", "fromId": entry.parent_id or "root", "summary": "", "details": {}}, durable=True
    )
    return True


async def start_over(runtime: Runtime, runs: Runs, session: SessionRef, reason: Reason = "reset") -> Rotation:
    """Gives the key a new session id. Active and waiting runs are stopped first, as they belong to the old session."""
    await stop_runs(runs, session, AbortReason.RESET)
    agent_id, key, clock = session.agent_id, session.key, runtime.clock
    return await runs.exclusively(key, lambda: rotate(runtime, agent_id, key, reason, clock.now_ms()))


async def resume_session(
    runtime: Runtime, runs: Runs, session: SessionRef, wanted: str | int | PreviousSession | None
) -> Rotation:
    """Makes an earlier session current again. Raises ``NotResumable`` with a text for the person who asked."""
    if runs.occupied(session.key):
        raise NotResumable("A message of this session is being answered. Wait for it or send /stop, then try again.")
    agent_id, key, clock = session.agent_id, session.key, runtime.clock
    return await runs.exclusively(key, lambda: resume(runtime, agent_id, key, wanted, clock.now_ms()))


async def earlier_sessions(runtime: Runtime, session: SessionRef) -> list[EarlierSession]:
    """List the earlier sessions, newest first, with the number that ``resume`` takes and a title."""
    listed = previous_sessions(await runtime.stores.sessions.get(session.agent_id, session.key))
    return [await _view(runtime, session, number, previous) for number, previous in enumerate(listed, start=1)]


async def _view(runtime: Runtime, session: SessionRef, number: int, previous: PreviousSession) -> EarlierSession:
    entry = SessionEntry(sessionId=previous.session_id, updatedAt=previous.ended_at)
    if previous.session_file:
        entry["sessionFile"] = previous.session_file
    row = SessionRow(session.agent_id, session.key, entry)
    begun = await first_messages(runtime.stores.transcripts, row)
    messages = await last_messages(runtime.stores.transcripts, row, 20)
    last = next((text for message in reversed(messages) if (text := preview_text(message).strip())), "")
    return EarlierSession(
        index=number,
        session_id=previous.session_id,
        ended_at=previous.ended_at,
        reason=previous.reason,
        title=derived_title(row, [*begun, *messages]),
        last_message_preview=shortened(last, 240),
    )


def earlier_transcripts(session: SessionRef, entry: SessionEntry) -> list[TranscriptRef]:
    return [
        TranscriptRef(agent_id=session.agent_id, session_id=previous.session_id, file=previous.session_file)
        for previous in previous_sessions(entry)
    ]


async def wanted_session(runtime: Runtime, session: SessionRef, session_id: str) -> str | PreviousSession:
    """Finds the session that an operator names by its id. It may be one that is no longer listed."""
    listed = previous_sessions(await runtime.stores.sessions.get(session.agent_id, session.key))
    try:
        return choose(listed, session_id).session_id
    except NotResumable:
        return await _unlisted_session(runtime, session, session_id) or session_id


async def _unlisted_session(runtime: Runtime, session: SessionRef, session_id: str) -> PreviousSession | None:
    """Finds a session of this agent that has a transcript but that no key lists any more."""
    ref = TranscriptRef(agent_id=session.agent_id, session_id=session_id)
    if await runtime.stores.transcripts.locate(ref) is None:
        return None
    listed = await runtime.stores.sessions.select(SessionQuery(ever=frozenset({session_id}), limit=1))
    if listed.rows:
        return None
    return PreviousSession(session_id=session_id)
