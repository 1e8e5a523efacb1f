"""How a session ends and how its key gets the next one: the reset rules, what is carried over, the new session.

``/new``, ``/reset``, the daily and idle resets, ``sessions.reset`` and cron all come through this file. No function
here changes the old transcript; ``runs/session_change.py`` brings an old session back.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import msgspec

from openclaw.config.agents import workspace_dir
from openclaw.config.schema.messages import Session
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import GROUP_MARKS, rest_of
from openclaw.sessions.tree import fields_of
from openclaw.storage.sessions import SessionStore
from openclaw.storage.transcripts import TranscriptRef, TranscriptStore

if TYPE_CHECKING:
    from openclaw.config.store import ConfigStore

log = logging.getLogger("openclaw.sessions")

SessionType: TypeAlias = Literal["direct", "group", "thread"]
Expiry: TypeAlias = Literal["daily", "idle"]
ResetMode: TypeAlias = Literal["daily", "idle", "none"]
Reason: TypeAlias = Literal["new", "reset", "daily", "idle", "cron", "resume"]
"""Why a key got another session."""
Due: TypeAlias = Callable[[SessionEntry | None], tuple[Reason, str] | None]
"""Says whether the session of an entry must end: the reason and the same in words, or None."""

MARKER_TYPE = "session"
"""``customType`` of the transcript entries that mark where a session begins."""
MOST_REMEMBERED = 20
"""An entry lists at most this many previous sessions."""
QUIET_SOURCES = frozenset({"heartbeat"})
"""Messages from these sources come from no person, so they do not keep a session alive."""
DEFAULT_HOUR = 4
MINUTE_MS = 60_000
DEFAULT_IDLE_MINUTES = 60
_REQUESTED: dict[Reason, str] = {
    "new": "as asked with /new",
    "reset": "as asked with a reset",
    "cron": "a scheduled run begins",
}
_THREAD_MARKS = (":thread:", ":topic:")
_TASK_PREFIXES = ("subagent:", "acp:", "cron:", "hook:")

CHAT_FIELDS = (
    *("sendPolicy", "groupActivation", "groupActivationNeedsSystemIntro", "label", "spawnedBy", "displayName"),
    *("chatType", "channel", "groupId", "subject", "groupChannel", "room", "space", "origin", "deliveryContext"),
    *("lastChannel", "lastTo", "lastAccountId", "lastThreadId", "lastHeartbeatText", "lastHeartbeatSentAt"),
    "ownerChat",
)
"""Entry fields that belong to the chat. A new session keeps them."""

NARROWING: Mapping[str, frozenset[str]] = {
    "elevatedLevel": frozenset({"off", "ask"}),
    "execHost": frozenset({"sandbox"}),
    "execSecurity": frozenset({"deny", "allowlist"}),
    "execAsk": frozenset({"on-miss", "always"}),
}
"""Values of permission fields that restrict. A new session keeps them; wider permissions end with the session."""

SESSION_FIELDS = (
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "ttsAuto", "responseUsage", "providerOverride"),
    *("modelOverride", "authProfileOverride", "authProfileOverrideSource", "authProfileOverrideCompactionCount"),
    *("queueMode", "queueDebounceMs", "queueCap", "queueDrop", "inputTokens", "outputTokens", "totalTokens"),
    *("cacheRead", "cacheWrite"),
    *("contextTokens", "modelProvider", "model", "compactionCount", "memoryFlushAt", "memoryFlushCompactionCount"),
    *("systemSent", "abortedLastRun", "plan"),
)
"""Entry fields that belong to one session. A reset clears them; a resume restores them."""

_FOREIGN_SESSION_FIELDS = ("cliSessionIds", "cliSessionBindings", "claudeCliSessionId")
"""Entry fields of other versions that belong to one session."""
_KNOWN_FIELDS = frozenset({*SessionEntry.__annotations__, *CHAT_FIELDS, *SESSION_FIELDS, *_FOREIGN_SESSION_FIELDS})
"""A new session keeps all other fields of the entry, because other software or a person wrote them."""


class SessionStores(Protocol):
    """The stores that a reset reads and writes."""

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def transcripts(self) -> TranscriptStore: ...


class SessionState(Protocol):
    """What a reset needs of the Gateway."""

    @property
    def state_dir(self) -> Path: ...

    @property
    def config(self) -> ConfigStore: ...

    @property
    def stores(self) -> SessionStores: ...


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a message tells about the session it belongs to."""

    channel: str | None = None
    chat_type: str = "direct"
    thread: bool = False
    """The message carries a thread id, label, starter or parent."""
    thread_label: str | None = None
    parent_key: str | None = None
    """Store key of the conversation whose context the thread's session copies."""


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """A key has got another session."""

    old: SessionEntry | None
    new: SessionEntry
    reason: Reason
    marker_text: str
    """One line for the chat, in plain words."""


# A new session for a key


async def ensure_fresh(
    state: SessionState,
    agent_id: str,
    key: str,
    facts: MessageFacts,
    now_ms: int,
    *,
    busy: Callable[[], bool] = lambda: False,
    zone: tzinfo | None = None,
) -> tuple[SessionEntry, Rotation | None]:
    """Returns the session that a new message belongs to. An expired session is replaced first.

    Call it once per message, after dedupe and before anything changes the entry, because it judges the activity before
    this message. A session is not replaced while ``busy`` says that one of its messages runs or waits. The reset hours
    count on the clock of ``zone``, or on the host's clock when it is None.
    """

    def due(current: SessionEntry | None) -> tuple[Reason, str] | None:
        if current is None or busy() or not expires(key):
            return None
        active_at = activity_at(current)
        if active_at is not None and active_at // MINUTE_MS == now_ms // MINUTE_MS:
            return None  # Sessions expire at whole minutes, and after one idle minute at the earliest.
        kind = session_type(key, chat_type=facts.chat_type, thread=facts.thread or bool(facts.parent_key))
        policy = reset_policy(state.config.current.session, kind, facts.channel)
        reason = expiry(active_at, policy, now_ms, zone)
        return (reason, expiry_text(reason, policy)) if reason else None

    entry = await state.stores.sessions.get(agent_id, key)
    if entry is None:
        return await _begin(state, agent_id, key, facts, now_ms), None
    if due(entry) is None:
        return entry, None
    return await _replace(state, agent_id, key, facts, now_ms, due)


async def rotate(state: SessionState, agent_id: str, key: str, reason: Reason, now_ms: int) -> Rotation:
    """Starts a new session on request. Call it in the session's lane after its runs have stopped."""
    words = _REQUESTED.get(reason, reason)
    _, rotation = await _replace(state, agent_id, key, MessageFacts(), now_ms, lambda _: (reason, words))
    assert rotation is not None
    return rotation


async def _begin(state: SessionState, agent_id: str, key: str, facts: MessageFacts, now_ms: int) -> SessionEntry:
    """Starts the first session of a key."""
    made = str(uuid.uuid4())

    def change(current: SessionEntry | None) -> SessionEntry:
        return current if current is not None else SessionEntry(sessionId=made, updatedAt=now_ms, compactionCount=0)

    # This write need not be durable: accepting the first message makes it so.
    entry = await state.stores.sessions.update(agent_id, key, change, durable=False)
    assert entry is not None
    if entry["sessionId"] != made:
        return entry
    entry = await _branch_off(state, agent_id, key, entry, facts)
    state.stores.transcripts.begin(transcript_ref(agent_id, entry), cwd=home_of(state, agent_id))
    return entry


async def _replace(
    state: SessionState, agent_id: str, key: str, facts: MessageFacts, now_ms: int, due: Due
) -> tuple[SessionEntry, Rotation | None]:
    """Starts the next session of a key if ``due`` still says so when the entry is changed."""
    before = await state.stores.sessions.get(agent_id, key)
    remember = before is not None and await was_used(state, agent_id, before)
    decided: list[tuple[SessionEntry | None, Reason, str]] = []

    def change(current: SessionEntry | None) -> SessionEntry:
        found = due(current)
        if found is None and current is not None:
            return current  # Another message has already started the new session.
        reason, words = found or ("new", "")
        decided.append((cast("SessionEntry", dict(current)) if current is not None else None, reason, words))
        same = before is not None and current is not None and before["sessionId"] == current["sessionId"]
        return rotated_entry(current, now_ms, reason, remember=remember or not same)

    entry = await state.stores.sessions.update(agent_id, key, change)
    assert entry is not None
    if not decided:
        return entry, None
    old, reason, words = decided[0]
    entry = await _branch_off(state, agent_id, key, entry, facts)
    text = f"New session ({words})."
    if old is not None and entry.get("previousSessions"):
        text += " /resume brings the old one back."
    rotation = Rotation(old=old, new=entry, reason=reason, marker_text=text)
    log.info("session %s of %s begins: %s", entry["sessionId"], key, words)
    if old is not None:
        await mark(state, agent_id, rotation)
    return entry, rotation


async def was_used(state: SessionState, agent_id: str, entry: SessionEntry) -> bool:
    """Whether the session's transcript holds anything besides the marker of its beginning."""
    shown = await state.stores.transcripts.tail(transcript_ref(agent_id, entry), 2)
    for line in shown:
        fields = fields_of(line.raw) if line.type == "custom" else {}
        data = fields.get("data")
        if fields.get("customType") != MARKER_TYPE or not isinstance(data, dict) or data.get("reason") == "resume":
            return True
    return False


async def mark(state: SessionState, agent_id: str, rotation: Rotation) -> None:
    """Writes the marker of a new session into its transcript. Histories show it; the model does not see it."""
    entry = rotation.new
    transcript = await state.stores.transcripts.open(transcript_ref(agent_id, entry), cwd=home_of(state, agent_id))
    assert transcript is not None
    data = {"text": rotation.marker_text, "reason": rotation.reason}
    if rotation.old is not None:
        data["previousSessionId"] = rotation.old["sessionId"]
    name = f"{entry['sessionId']}/{rotation.reason}/{entry.get('updatedAt')}/{data.get('previousSessionId')}"
    fields = {"type": "custom", "customType": MARKER_TYPE, "display": True, "data": data}
    await transcript.append(fields, entry_id=hashlib.sha256(name.encode()).hexdigest()[:16], durable=True)


async def _branch_off(
    state: SessionState, agent_id: str, key: str, entry: SessionEntry, facts: MessageFacts
) -> SessionEntry:
    """Gives a thread's session the context, the model and the label of the conversation that it branches off from."""
    parent_key = facts.parent_key
    parent = await state.stores.sessions.get(agent_id, parent_key) if parent_key and parent_key != key else None
    if parent is not None:
        await _copy_context(state, agent_id, entry["sessionId"], parent)
    taken: dict[str, Any] = {"displayName": facts.thread_label} if facts.thread_label else {}
    if parent is not None and parent.get("modelOverride"):
        taken |= {name: parent.get(name) for name in ("providerOverride", "modelOverride") if parent.get(name)}
    if not taken:
        return entry

    def change(current: SessionEntry | None) -> SessionEntry | None:
        if current is None or current["sessionId"] != entry["sessionId"]:
            return current
        return cast("SessionEntry", {**current, **taken})

    return await state.stores.sessions.update(agent_id, key, change, durable=False) or entry


async def _copy_context(state: SessionState, agent_id: str, session_id: str, parent: SessionEntry) -> None:
    """Copies the parent's active branch into the new transcript. The session begins empty when that fails."""
    try:
        source = await state.stores.transcripts.open(transcript_ref(agent_id, parent), create=False)
        if source is not None:
            ref = TranscriptRef(agent_id=agent_id, session_id=session_id)
            await state.stores.transcripts.fork(source, ref, cwd=home_of(state, agent_id))
    except (OSError, ValueError) as problem:
        log.warning("session %s begins without its parent's context: %s", session_id, problem)


def transcript_ref(agent_id: str, entry: SessionEntry) -> TranscriptRef:
    return TranscriptRef(agent_id=agent_id, session_id=entry["sessionId"], file=entry.get("sessionFile"))


def home_of(state: SessionState, agent_id: str) -> str:
    """The working directory that the transcripts of this agent name in their header."""
    return str(workspace_dir(state.config.current, str(state.state_dir), agent_id))


# When a session ends


class ResetPolicy(msgspec.Struct, frozen=True):
    mode: ResetMode
    at_hour: int
    """Hour of the daily reset on the Gateway host's clock. It counts in mode ``daily`` only."""
    idle_minutes: int | None
    """A session ends after this much silence, in mode ``daily`` or ``idle``. None: silence does not end it."""


def session_type(key: str, *, chat_type: str = "direct", thread: bool = False) -> SessionType:
    """``thread`` says that the message belongs to a thread, even if the key does not show it."""
    # The agent id is left out because an agent may be called "group".
    rest = f":{rest_of(key)}"
    if thread or any(mark in rest for mark in _THREAD_MARKS):
        return "thread"
    if chat_type not in ("", "direct", "dm") or any(mark in rest for mark in GROUP_MARKS):
        return "group"
    return "direct"


def expires(key: str) -> bool:
    """Whether the reset rules apply. The session of one task (sub-agent, cron, hook) ends with its task instead."""
    return not rest_of(key).startswith(_TASK_PREFIXES)


def reset_policy(session: Session, kind: SessionType, channel: str | None = None) -> ResetPolicy:
    """A rule for the channel replaces all others. Otherwise the rule for the chat type refines the general rule."""
    by_type = session.reset_by_type
    typed = {"direct": by_type.direct or by_type.dm, "group": by_type.group, "thread": by_type.thread}[kind]
    base, legacy = session.reset, session.idle_minutes
    channel_id = (channel or "").strip().lower()
    for name, rule in session.reset_by_channel.items():
        if channel_id and name.strip().lower() == channel_id:
            typed, base, legacy = None, rule, None
            break

    def setting(name: str) -> Any:
        """The first value that a rule gives for a setting."""
        values = (getattr(rule, name) for rule in (typed, base) if rule is not None)
        return next((value for value in values if value is not None), None)

    any_rule = base is not None or any((by_type.direct, by_type.dm, by_type.group, by_type.thread))
    mode: ResetMode = setting("mode") or ("daily" if any_rule or legacy is None else "idle")
    hour = _whole(setting("at_hour"))
    idle = _whole(setting("idle_minutes")) if mode != "none" else None
    if idle is None and mode != "none":
        idle = _whole(legacy)
    if idle is None and mode == "idle":
        idle = DEFAULT_IDLE_MINUTES
    return ResetPolicy(
        mode=mode,
        at_hour=DEFAULT_HOUR if hour is None else min(max(hour, 0), 23),
        idle_minutes=None if idle is None else max(idle, 1),
    )


def _whole(value: Any) -> int | None:
    return int(value // 1) if isinstance(value, int | float) and not isinstance(value, bool) else None


def activity_at(entry: Mapping[str, Any] | None) -> int | None:
    """When the session was last active, from ``updatedAt``; None when the entry does not say.

    Activity is an accepted message, a finished answer or a setting that a person changed. Notes about the route,
    labels, heartbeats and compactions must not change ``updatedAt``, because then no session would ever end.
    """
    value = (entry or {}).get("updatedAt")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def touched(entry: Mapping[str, Any], now_ms: int, source: str = "") -> int:
    """The ``updatedAt`` that follows a message from ``source`` or its answer. Quiet sources do not change it."""
    before = activity_at(entry)
    return max(now_ms, before or 0) if before is None or source not in QUIET_SOURCES else before


def expiry(updated_at: int | None, policy: ResetPolicy, now_ms: int, zone: tzinfo | None = None) -> Expiry | None:
    """The rule that ended the session, or None. When both rules ended it, the earlier one counts.

    A session whose last activity is unknown does not expire. ``zone`` None means the host's own.
    """
    if updated_at is None:
        return None
    ends: dict[Expiry, int] = {}
    if policy.mode == "daily" and updated_at < last_boundary(policy.at_hour, now_ms, zone):
        ends["daily"] = next_boundary(policy.at_hour, updated_at, zone)
    if policy.idle_minutes is not None:
        silent_until = updated_at + policy.idle_minutes * 60_000
        if now_ms > silent_until:
            ends["idle"] = silent_until
    return min(ends, key=lambda name: ends[name], default=None)


def expiry_text(reason: Expiry, policy: ResetPolicy) -> str:
    if reason == "daily":
        return f"daily reset at {policy.at_hour:02d}:00"
    count, unit = policy.idle_minutes or 0, "minute"
    for size, name in ((24 * 60, "day"), (60, "hour")):
        if count % size == 0:
            count, unit = count // size, name
            break
    return f"nothing was said for {count} {unit}{'' if count == 1 else 's'}"


def last_boundary(at_hour: int, now_ms: int, zone: tzinfo | None = None) -> int:
    """The latest ``at_hour:00`` on the local calendar that is not after ``now_ms``."""
    # Days are counted on the calendar: a day with a clock change has 23 or 25 hours, and zones have skipped whole days.
    day = _local_day(now_ms, zone)
    while (boundary := _epoch_ms(day, at_hour, zone)) > now_ms:
        day -= timedelta(days=1)
    return boundary


def next_boundary(at_hour: int, after_ms: int, zone: tzinfo | None = None) -> int:
    """The first ``at_hour:00`` later than ``after_ms``."""
    day = _local_day(after_ms, zone)
    while (boundary := _epoch_ms(day, at_hour, zone)) <= after_ms:
        day += timedelta(days=1)
    return boundary


def _local_day(ms: int, zone: tzinfo | None) -> date:
    return datetime.fromtimestamp(ms // 1000, UTC).astimezone(zone).date()


def _epoch_ms(day: date, hour: int, zone: tzinfo | None) -> int:
    # A skipped hour means the moment it would have been. Of an hour that comes twice, the first one counts.
    return int(datetime(day.year, day.month, day.day, hour, tzinfo=zone).timestamp()) * 1000


# What is carried over


class PreviousSession(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A session that its key had before. Its transcript stays where it is."""

    session_id: str
    session_file: str | None = None
    ended_at: int = 0
    reason: str = ""
    """What ended it: a ``Reason``, or another word if other software wrote it."""
    state: dict[str, Any] = {}
    """Its ``SESSION_FIELDS``."""


def rotated_entry(
    entry: SessionEntry | None, now_ms: int, reason: Reason = "reset", *, remember: bool = True
) -> SessionEntry:
    """The entry of a new session under the same key. ``remember`` False leaves the old one out of its list."""
    old: dict[str, Any] = dict(entry or {})
    fresh = _blank_session(now_ms, old)
    if not old.get("modelOverride"):
        # The next answer comes from the same model, so its figures stay until the next run reports its own.
        fresh |= {name: old[name] for name in ("modelProvider", "model", "contextTokens") if name in old}
    previous = previous_sessions(old)
    if entry is not None and remember:
        previous.insert(0, _ended_session(entry, now_ms, reason))
    return _with_previous(fresh, previous)


def resumed_entry(entry: SessionEntry, chosen: PreviousSession, now_ms: int, *, remember: bool = True) -> SessionEntry:
    """The entry with ``chosen`` as its session again, with that session's settings and counters.

    The session that was current joins the list of previous ones if ``remember`` is True.
    """
    old: dict[str, Any] = dict(entry)
    state = {name: value for name, value in chosen.state.items() if name in SESSION_FIELDS}
    back = {**_blank_session(now_ms, old), "sessionId": chosen.session_id, **state}
    if chosen.session_file:
        back["sessionFile"] = chosen.session_file
    previous = previous_sessions(old)
    if remember:
        previous.insert(0, _ended_session(entry, now_ms, "resume"))
    return _with_previous(back, previous)


def previous_sessions(entry: Mapping[str, Any] | None) -> list[PreviousSession]:
    """The previous sessions that an entry lists, newest first. Items that cannot be read are left out."""
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


def _blank_session(now_ms: int, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a session without messages, with the fields of the old entry that belong to the chat or are unknown."""
    blank = {name: value for name, value in old.items() if name not in _KNOWN_FIELDS} | {
        "sessionId": str(uuid.uuid4()),
        "updatedAt": max(now_ms, activity_at(old) or 0),
        "systemSent": False,
        "abortedLastRun": False,
        "compactionCount": 0,
        "inputTokens": 0,
        "outputTokens": 0,
        "totalTokens": 0,
    }
    blank |= {name: old[name] for name in CHAT_FIELDS if name in old}
    return blank | {name: old[name] for name, narrow in NARROWING.items() if old.get(name) in narrow}


def _ended_session(entry: SessionEntry, now_ms: int, reason: Reason) -> PreviousSession:
    fields: dict[str, Any] = dict(entry)
    return PreviousSession(
        session_id=entry["sessionId"],
        session_file=entry.get("sessionFile"),
        ended_at=now_ms,
        reason=reason,
        state={name: fields[name] for name in SESSION_FIELDS if fields.get(name)},
    )


def _with_previous(fields: dict[str, Any], kept: list[PreviousSession]) -> SessionEntry:
    """Adds the list of previous sessions to an entry. The list is bounded and leaves out the current session."""
    others = [previous for previous in kept if previous.session_id != fields["sessionId"]][:MOST_REMEMBERED]
    if others:
        fields["previousSessions"] = msgspec.to_builtins(others)
    return cast("SessionEntry", fields)
