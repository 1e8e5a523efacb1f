"""What a key keeps when it gets another session, and what it remembers of the session it had. Pure functions only."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec

from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.freshness import activity_at

Reason: TypeAlias = Literal["new", "reset", "daily", "idle", "cron", "resume"]
"""Why a key got another session."""
MOST_REMEMBERED = 20

CHAT_FIELDS = (
    *("sendPolicy", "groupActivation", "groupActivationNeedsSystemIntro", "label", "spawnedBy", "displayName"),
    *("chatType", "channel", "groupId", "subject", "groupChannel", "room", "space", "origin", "deliveryContext"),
    *("lastChannel", "lastTo", "lastAccountId", "lastThreadId", "lastHeartbeatText", "lastHeartbeatSentAt"),
)
"""What belongs to the chat rather than to one session in it, and so outlives the session."""

NARROWING: Mapping[str, frozenset[str]] = {
    "elevatedLevel": frozenset({"off", "ask"}),
    "execHost": frozenset({"sandbox"}),
    "execSecurity": frozenset({"deny", "allowlist"}),
    "execAsk": frozenset({"on-miss", "always"}),
}
"""Restrictions stay: losing one overnight would be a hole. Permissions granted for a session end with it."""

SESSION_FIELDS = (
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "ttsAuto", "responseUsage", "providerOverride"),
    *("modelOverride", "authProfileOverride", "authProfileOverrideSource", "authProfileOverrideCompactionCount"),
    *("queueMode", "queueDebounceMs", "queueCap", "queueDrop", "inputTokens", "outputTokens", "totalTokens"),
    *("cacheRead", "cacheWrite"),
    *("contextTokens", "modelProvider", "model", "compactionCount", "memoryFlushAt", "memoryFlushCompactionCount"),
    *("systemSent", "abortedLastRun"),
)
"""What belongs to one session: cleared by a rotation, back again when the session is resumed."""


class PreviousSession(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A session its key had before. Its transcript stays where it is."""

    session_id: str
    session_file: str | None = None
    ended_at: int = 0
    reason: str = ""
    """What ended it; a ``Reason`` unless other software wrote it."""
    state: dict[str, Any] = {}
    """Its ``SESSION_FIELDS``."""


def rotated_entry(
    entry: SessionEntry | None, now_ms: int, reason: Reason = "reset", *, remember: bool = True
) -> SessionEntry:
    """A fresh session under the same key. ``remember`` False: there is nothing in the old one to go back to."""
    old: dict[str, Any] = dict(entry or {})
    fresh: dict[str, Any] = {**blank_session(now_ms, old), **chat_fields(old)}
    if not old.get("modelOverride"):
        # Known still: the next answer comes from the same model, until its run says otherwise.
        fresh |= {name: old[name] for name in ("modelProvider", "model", "contextTokens") if name in old}
    kept = previous_sessions(old)
    if entry is not None and remember:
        kept.insert(0, ended_session(entry, now_ms, reason))
    return with_previous(fresh, kept)


def resumed_entry(entry: SessionEntry, chosen: PreviousSession, now_ms: int, *, remember: bool = True) -> SessionEntry:
    """The chosen session is current again, with its own settings and counters; the one that was takes its place."""
    old: dict[str, Any] = dict(entry)
    state = {name: value for name, value in chosen.state.items() if name in SESSION_FIELDS}
    back = {**blank_session(now_ms, old), "sessionId": chosen.session_id, **chat_fields(old), **state}
    if chosen.session_file:
        back["sessionFile"] = chosen.session_file
    kept = previous_sessions(old)
    if remember:
        kept.insert(0, ended_session(entry, now_ms, "resume"))
    return with_previous(back, kept)


def blank_session(now_ms: int, old: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sessionId": str(uuid.uuid4()),
        "updatedAt": max(now_ms, activity_at(old) or 0),
        "systemSent": False,
        "abortedLastRun": False,
        "compactionCount": 0,
        "inputTokens": 0,
        "outputTokens": 0,
        "totalTokens": 0,
    }


def chat_fields(old: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: old[name] for name in CHAT_FIELDS if name in old}
    return kept | {name: old[name] for name, narrow in NARROWING.items() if old.get(name) in narrow}


def ended_session(entry: SessionEntry, now_ms: int, reason: Reason) -> PreviousSession:
    fields: dict[str, Any] = dict(entry)
    return PreviousSession(
        session_id=entry["sessionId"],
        session_file=entry.get("sessionFile"),
        ended_at=now_ms,
        reason=reason,
        state={name: fields[name] for name in SESSION_FIELDS if fields.get(name)},
    )


def previous_sessions(entry: Mapping[str, Any] | None) -> list[PreviousSession]:
    """Newest first. What a person or other software wrote there and we cannot read is left out."""
    listed = (entry or {}).get("previousSessions")
    found: dict[str, PreviousSession] = {}
    for item in cast("list[Any]", listed) if isinstance(listed, list) else []:
        try:
            previous = msgspec.convert(item, PreviousSession)
        except msgspec.ValidationError:
            continue
        if previous.session_id:
            found.setdefault(previous.session_id, previous)
    return list(found.values())


def with_previous(fields: dict[str, Any], kept: list[PreviousSession]) -> SessionEntry:
    """The entry with its list: bounded, never naming the session that is current."""
    others = [previous for previous in kept if previous.session_id != fields["sessionId"]][:MOST_REMEMBERED]
    if others:
        fields["previousSessions"] = msgspec.to_builtins(others)
    return cast("SessionEntry", fields)
