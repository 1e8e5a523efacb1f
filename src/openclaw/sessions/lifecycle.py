"""How a key gets a new session, and the line in the chat that says so.

Every way there (``/new``, ``/reset``, the daily and idle resets, ``sessions.reset``, cron) goes through this file. The
old transcript is never touched; ``sessions/resume.py`` brings it back.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from openclaw.config.agents import workspace_dir
from openclaw.sessions import freshness
from openclaw.sessions.carry_over import Reason, rotated_entry
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.tree import fields_of
from openclaw.storage.base import Entry, SessionStore, TranscriptRef, TranscriptStore

if TYPE_CHECKING:
    from openclaw.config.store import ConfigStore

log = logging.getLogger("openclaw.sessions")

MARKER_TYPE = "session"
"""``customType`` of the markers in a transcript."""
ASKED: dict[Reason, str] = {
    "new": "as asked with /new",
    "reset": "as asked with a reset",
    "cron": "a scheduled run begins",
}

Due: TypeAlias = Callable[[SessionEntry | None], tuple[Reason, str] | None]
"""Whether the entry, as it is now, must give way: why, and the same in words."""


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """A key has got another session."""

    old: SessionEntry | None
    new: SessionEntry
    reason: Reason
    marker_text: str
    """One line for the chat, in plain words."""


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a message tells about the session it belongs to."""

    channel: str | None = None
    chat_type: str = "direct"
    thread: bool = False
    """It carries a thread id, label, starter or parent."""
    thread_label: str | None = None
    parent_key: str | None = None
    """Store key of the conversation the thread branched off, where its context is to be taken along."""


class Stores(Protocol):
    """The part of the runtime that sessions need."""

    @property
    def state_dir(self) -> Path: ...

    @property
    def config(self) -> ConfigStore: ...

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def transcripts(self) -> TranscriptStore: ...


async def ensure_fresh(
    stores: Stores,
    agent_id: str,
    key: str,
    facts: MessageFacts,
    now_ms: int,
    *,
    busy: Callable[[], bool] = lambda: False,
    zone: tzinfo | None = None,
) -> tuple[SessionEntry, Rotation | None]:
    """The session a new message belongs to; one that has expired gives way to a new one first.

    Call it once for a message that is new (after dedupe) and before anything touches the entry: what counts is the
    activity before this message. While ``busy`` says that something of the session runs or waits, it goes on.
    ``zone`` None: the host's own.
    """

    def due(current: SessionEntry | None) -> tuple[Reason, str] | None:
        return None if current is None or busy() else _expired(stores, key, facts, current, now_ms, zone)

    entry = await stores.sessions.get(agent_id, key)
    if entry is None:
        return await _begin(stores, agent_id, key, facts, now_ms), None
    if due(entry) is None:
        return entry, None
    return await _replace(stores, agent_id, key, facts, now_ms, due)


async def rotate(stores: Stores, agent_id: str, key: str, reason: Reason, now_ms: int, *, why: str = "") -> Rotation:
    """A new session because somebody asked for one. Do it in the session's lane, with its runs stopped."""
    words = why or ASKED.get(reason, reason)
    _, rotation = await _replace(stores, agent_id, key, MessageFacts(), now_ms, lambda _: (reason, words))
    assert rotation is not None
    return rotation


def _expired(
    stores: Stores, key: str, facts: MessageFacts, entry: SessionEntry, now_ms: int, zone: tzinfo | None
) -> tuple[Reason, str] | None:
    active = freshness.activity_at(entry)
    if freshness.just_spoken(active, now_ms) or not freshness.expires(key):
        return None
    kind = freshness.session_type(key, chat_type=facts.chat_type, thread=facts.thread or bool(facts.parent_key))
    policy = freshness.reset_policy(stores.config.current.session, kind, facts.channel)
    reason = freshness.expiry(active, policy, now_ms, zone)
    return (reason, freshness.why_stale(active, policy, now_ms, zone) or "") if reason else None


async def _replace(
    stores: Stores, agent_id: str, key: str, facts: MessageFacts, now_ms: int, due: Due
) -> tuple[SessionEntry, Rotation | None]:
    before = await stores.sessions.get(agent_id, key)
    remember = before is not None and await was_used(stores, agent_id, before)
    decided: list[tuple[SessionEntry | None, Reason, str]] = []

    def change(current: SessionEntry | None) -> SessionEntry:
        found = due(current)
        if found is None and current is not None:
            return current  # Another message came first and has begun the new session already.
        reason, words = found or ("new", "")
        decided.append((cast("SessionEntry", dict(current)) if current is not None else None, reason, words))
        same = before is not None and current is not None and before["sessionId"] == current["sessionId"]
        return rotated_entry(current, now_ms, reason, remember=remember or not same)

    entry = await stores.sessions.update(agent_id, key, change)
    assert entry is not None
    if not decided:
        return entry, None
    old, reason, words = decided[0]
    entry = await _branch_off(stores, agent_id, key, entry, facts)
    text = f"New session ({words})."
    if old is not None and entry.get("previousSessions"):
        text += " /resume brings the old one back."
    rotation = Rotation(old=old, new=entry, reason=reason, marker_text=text)
    log.info("session %s of %s begins: %s", entry["sessionId"], key, words)
    if old is not None:
        await mark(stores, agent_id, rotation)
    return entry, rotation


async def _begin(stores: Stores, agent_id: str, key: str, facts: MessageFacts, now_ms: int) -> SessionEntry:
    """The first session of a key."""
    made = str(uuid.uuid4())

    def change(current: SessionEntry | None) -> SessionEntry:
        return current if current is not None else SessionEntry(sessionId=made, updatedAt=now_ms, compactionCount=0)

    # Not awaited on disk: the first message that is taken in sees to that.
    entry = await stores.sessions.update(agent_id, key, change, durable=False)
    assert entry is not None
    if entry["sessionId"] != made:
        return entry
    entry = await _branch_off(stores, agent_id, key, entry, facts)
    stores.transcripts.begin(transcript_ref(agent_id, entry), cwd=home_of(stores, agent_id))
    return entry


async def was_used(stores: Stores, agent_id: str, entry: SessionEntry) -> bool:
    """Whether there is anything to go back to, beyond the line that began it."""
    shown = await stores.transcripts.tail(transcript_ref(agent_id, entry), 2)
    return any(not _is_beginning(line) for line in shown)


def _is_beginning(line: Entry) -> bool:
    fields = fields_of(line.raw) if line.type == "custom" else {}
    data = fields.get("data")
    return fields.get("customType") == MARKER_TYPE and isinstance(data, dict) and data.get("reason") != "resume"


async def mark(stores: Stores, agent_id: str, rotation: Rotation) -> None:
    """Writes the line between sessions into the transcript: histories show it, the model does not see it."""
    entry = rotation.new
    transcript = await stores.transcripts.open(transcript_ref(agent_id, entry), cwd=home_of(stores, agent_id))
    assert transcript is not None
    data = {"text": rotation.marker_text, "reason": rotation.reason}
    if rotation.old is not None:
        data["previousSessionId"] = rotation.old["sessionId"]
    name = f"{entry['sessionId']}/{rotation.reason}/{entry.get('updatedAt')}/{data.get('previousSessionId')}"
    fields = {"type": "custom", "customType": MARKER_TYPE, "display": True, "data": data}
    await transcript.append(fields, entry_id=hashlib.sha256(name.encode()).hexdigest()[:16], durable=True)


def transcript_ref(agent_id: str, entry: SessionEntry) -> TranscriptRef:
    return TranscriptRef(agent_id=agent_id, session_id=entry["sessionId"], file=entry.get("sessionFile"))


def home_of(stores: Stores, agent_id: str) -> str:
    """The folder a transcript of this agent is said to be about."""
    return str(workspace_dir(stores.config.current, str(stores.state_dir), agent_id))


# Threads


async def _branch_off(
    stores: Stores, agent_id: str, key: str, entry: SessionEntry, facts: MessageFacts
) -> SessionEntry:
    """A thread's session begins with what was said where it branched off, and with that conversation's model."""
    parent_key = facts.parent_key
    parent = await stores.sessions.get(agent_id, parent_key) if parent_key and parent_key != key else None
    if parent is not None:
        await fork_from_parent(stores, agent_id, entry["sessionId"], parent)
    taken: dict[str, Any] = {"displayName": facts.thread_label} if facts.thread_label else {}
    if parent is not None and parent.get("modelOverride"):
        taken |= {name: parent.get(name) for name in ("providerOverride", "modelOverride") if parent.get(name)}
    if not taken:
        return entry

    def change(current: SessionEntry | None) -> SessionEntry | None:
        if current is None or current["sessionId"] != entry["sessionId"]:
            return current
        return cast("SessionEntry", {**current, **taken})

    return await stores.sessions.update(agent_id, key, change, durable=False) or entry


async def fork_from_parent(stores: Stores, agent_id: str, session_id: str, parent: SessionEntry) -> bool:
    """Copies the parent's active branch into the new session's transcript. False: it begins empty instead."""
    try:
        source = await stores.transcripts.open(transcript_ref(agent_id, parent), create=False)
        if source is None:
            return False
        ref = TranscriptRef(agent_id=agent_id, session_id=session_id)
        await stores.transcripts.fork(source, ref, cwd=home_of(stores, agent_id))
    except (OSError, ValueError) as problem:
        log.warning("session %s begins without its parent's context: %s", session_id, problem)
        return False
    return True
