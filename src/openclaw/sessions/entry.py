"""The entry of a session in the store: its fields, its delivery route and its display name.

An entry is a plain mapping, so that fields we do not know survive every rewrite. ``repair_entry`` makes an entry that a
person edited usable: every store calls it for what it reads. An entry holds the last route twice:
nested in ``deliveryContext`` and flat in ``lastChannel``, ``lastTo``, ``lastAccountId`` and ``lastThreadId``.

``is_blocked`` decides whether messages may be sent to a session: by rules on channel, chat type and key, or by the
entry's own setting.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Required, TypedDict, get_args, get_origin, get_type_hints

import msgspec

from openclaw import json_text
from openclaw.config.schema.messages import SendMatch, SendPolicy
from openclaw.messages import Route
from openclaw.sessions.keys import channel_of, chat_type_of, rest_of, session_of_file

_RENAMED = {"provider": "channel", "lastProvider": "lastChannel", "room": "groupChannel"}
_FLAT = {"channel": "lastChannel", "to": "lastTo", "accountId": "lastAccountId", "threadId": "lastThreadId"}
_LEADING = frozenset({*_RENAMED, *_FLAT.values(), "channel", "deliveryContext", "sessionId"})
"""Fields whose change makes ``normalize_entry`` change other fields."""
_CHANNEL_ALIASES = {
    "imsg": "imessage",
    "google-chat": "googlechat",
    "gchat": "googlechat",
    "teams": "msteams",
    "internet-relay-chat": "irc",
}
_DROPPED = re.compile(r"[^a-z0-9#@._+-]+")
_DASHES = re.compile(r"-{2,}")


class DeliveryContext(TypedDict, total=False):
    channel: str
    to: str
    accountId: str
    threadId: str | int


class SessionEntry(TypedDict, total=False):
    sessionId: Required[str]
    updatedAt: int
    sessionFile: str
    spawnedBy: str
    systemSent: bool
    abortedLastRun: bool
    chatType: str
    thinkingLevel: str
    verboseLevel: str
    reasoningLevel: str
    elevatedLevel: str
    execHost: str
    execSecurity: str
    execAsk: str
    execNode: str
    responseUsage: str
    provider: str
    providerOverride: str
    modelOverride: str
    authProfileOverride: str
    groupActivation: Literal["mention", "always"]
    sendPolicy: Literal["allow", "deny"]
    queueMode: str
    queueDebounceMs: int
    queueCap: int
    queueDrop: str
    inputTokens: int
    outputTokens: int
    totalTokens: int
    cacheRead: int
    cacheWrite: int
    contextTokens: int
    modelProvider: str
    model: str
    compactionCount: int
    memoryFlushAt: int
    memoryFlushCompactionCount: int
    label: str
    displayName: str
    channel: str
    groupId: str
    subject: str
    groupChannel: str
    room: str
    space: str
    origin: dict[str, Any]
    deliveryContext: DeliveryContext
    lastChannel: str
    lastTo: str
    lastAccountId: str
    lastThreadId: str | int
    ownerChat: bool
    """Whether the owner wrote the last message of a direct chat that has a session of its own."""
    systemPromptReport: dict[str, Any]
    fallbackNoticeSelectedModel: str
    """The chosen model, and the model that answers in its place, as people were told."""
    fallbackNoticeActiveModel: str
    fallbackNoticeReason: str
    """The kind of failure because of which the chosen model does not answer."""
    budgetOverrideUntil: int
    """Until this moment (milliseconds) the session may spend more than its limits."""
    pinnedAt: int
    """When the owner pinned the conversation to the top of lists."""
    archivedAt: int
    """When the owner archived the conversation. Later activity brings it back into lists."""
    readAt: int
    """When the owner last saw the conversation on a page."""
    plan: list[dict[str, Any]]
    """The steps of the agent's plan; see ``tools/plan.py``."""
    previousSessions: list[dict[str, Any]]
    """Sessions that this key had before, newest first; see ``sessions/reset.py``."""


_LARGEST = 2**53
"""Numbers from here on are not exact in every program that reads the file."""
_LATEST = 2**47
"""Times from here on (in the year 6429) are no dates on every calendar."""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_time(value: Any) -> bool:
    return _is_count(value) and value < _LATEST


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _rule(hint: Any) -> Callable[[Any], bool] | None:
    """Return the test that the values of a field of this type pass; None for the route, which has its own rules."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        allowed = get_args(hint)
        return lambda value: isinstance(value, str) and value in allowed
    if kind is int:
        return _is_count
    return (lambda value: isinstance(value, kind)) if kind in (str, bool, dict, list) else None


_RULES: Mapping[str, Callable[[Any], bool]] = {
    **{name: rule for name, hint in get_type_hints(SessionEntry).items() if (rule := _rule(hint)) is not None},
    "sessionId": _is_id,
    "updatedAt": _is_time,
}


def damaged_fields(entry: Mapping[str, Any]) -> list[str]:
    """Return the known fields whose values are impossible, and ``sessionId`` if it is missing."""
    damaged = [name for name, value in entry.items() if (rule := _RULES.get(name)) is not None and not rule(value)]
    return damaged if "sessionId" in entry else ["sessionId", *damaged]


def repair_entry(
    key: str, entry: Mapping[str, Any], *, now_ms: int | None = None, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a copy of the entry without damaged fields and with a ``sessionId``. People write in the store.

    ``known`` is the entry before an edit. Its session and its last activity are kept. Otherwise the session is the one
    whose transcript the entry names, or a new one, which is the same for every reader of this entry. A wrong
    time of the last activity becomes ``now_ms``, so that the session is not put away as an old one.
    """
    fields = {name: _whole(name, value) for name, value in entry.items()}
    damaged = damaged_fields(fields)
    repaired = {name: value for name, value in fields.items() if name not in damaged}
    for name in ("sessionId", "updatedAt"):
        if name not in repaired and known is not None and name in known:
            repaired[name] = known[name]
    if "sessionId" not in repaired:
        repaired["sessionId"] = session_of_file(repaired.get("sessionFile", "")) or _made_session_id(key, entry)
    if now_ms is not None and "updatedAt" in damaged:
        repaired.setdefault("updatedAt", now_ms)
    return repaired


def _whole(name: str, value: Any) -> Any:
    """Return the value of a field, without its fraction if the field holds whole numbers."""
    counts = _RULES.get(name) in (_is_count, _is_time)
    return int(value) if counts and isinstance(value, float) and 0 <= value < _LARGEST else value


def _made_session_id(key: str, entry: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json_text.encode([key, entry])).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def normalize_channel(value: Any) -> str | None:
    """The channel id in lower case with its alias resolved, or None if the value does not name a channel."""
    if not isinstance(value, str):
        return None
    lowered = value.strip().lower()
    return _CHANNEL_ALIASES.get(lowered, lowered) or None


def _route_fields(context: Any) -> dict[str, Any]:
    """The valid fields of a delivery context. Everything else is dropped."""
    if not isinstance(context, Mapping):
        return {}
    route: dict[str, Any] = {}
    if (channel := normalize_channel(context.get("channel"))) is not None:
        route["channel"] = channel
    for name in ("to", "accountId"):
        value = context.get(name)
        if isinstance(value, str) and value.strip():
            route[name] = value.strip()
    thread = context.get("threadId")
    if isinstance(thread, int | float) and not isinstance(thread, bool) and abs(thread) < 2**63:
        route["threadId"] = int(thread)
    elif isinstance(thread, str) and thread.strip():
        route["threadId"] = thread.strip()
    return route


def last_route(entry: SessionEntry | None) -> Route:
    """Return the route of the session's last message; an empty one if the entry names none."""
    return msgspec.convert(_route_fields((entry or {}).get("deliveryContext")), Route)


def is_plain(changes: Iterable[str]) -> bool:
    """Whether these fields may change without ``normalize_entry``."""
    return _LEADING.isdisjoint(changes)


def normalize_entry(entry: dict[str, Any], previous: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A copy of the entry with current field names and with both spellings of the route in agreement.

    ``previous`` is the normalised entry before a change. Unchanged fields do not belong to a new route.
    Otherwise a thread id that was left out would come back from the other spelling.
    """
    result = dict(entry)
    for old, new in _RENAMED.items():
        if old in result and isinstance(value := result.pop(old), str) and not isinstance(result.get(new), str):
            result[new] = value
    flat = {name: result.get(field) for name, field in _FLAT.items()}
    if not isinstance(flat["channel"], str) or not flat["channel"].strip():
        flat["channel"] = result.get("channel")
    flat, nested = _route_fields(flat), _route_fields(result.get("deliveryContext"))
    if previous is not None:
        changed = {name for name, field in _FLAT.items() if result.get(field) != previous.get(field)}
        if result.get("deliveryContext") != previous.get("deliveryContext"):
            flat = {name: value for name, value in flat.items() if name in changed}
        elif changed:
            nested = {}
    route = {name: value for name in _FLAT if (value := flat.get(name, nested.get(name))) is not None}
    if route:
        result["deliveryContext"] = route
    else:
        result.pop("deliveryContext", None)
    for name, field in _FLAT.items():
        if name in route:
            result[field] = route[name]
        else:
            result.pop(field, None)
    return result


def group_display_name(
    channel: str, *, id: str, subject: str | None = None, group_channel: str | None = None, space: str | None = None
) -> str:
    """The name under which a group is listed: ``discord:friends#general`` or ``whatsapp:g-my-family-group``.

    The id serves as the name of a chat that has none.
    """
    if group_channel:
        mark = "" if group_channel.startswith("#") else "#"
        source = f"{space}{mark}{group_channel}" if space else group_channel
    else:
        source = subject or space or id
    token = _slug(source) or _slug(id if len(id) <= 14 else f"{id[:6]}...{id[-4:]}")
    if token and not token.startswith(("@", "#", "g-")) and "#" not in token:
        token = f"g-{token}"
    return f"{channel}:{token}"


def _slug(text: str) -> str:
    lowered = "-".join(text.strip().lower().split())
    return _DASHES.sub("-", _DROPPED.sub("-", lowered)).strip("-.")


# The send policy

BLOCKED = "send blocked by session policy"
"""The error for callers whose message or reply the policy rejects."""


def is_blocked(
    policy: SendPolicy | None,
    key: str,
    entry: Mapping[str, Any] | None,
    *,
    channel: str | None = None,
    chat_type: str | None = None,
) -> bool:
    """The session's own setting counts first, then a matching deny, then a matching allow, then the default."""
    override = (entry or {}).get("sendPolicy")
    if override in ("allow", "deny"):
        return override == "deny"
    if policy is None:
        return False
    where = (channel or str((entry or {}).get("channel") or "") or channel_of(entry, key)).strip().lower()
    kind = _chat_type(chat_type or (entry or {}).get("chatType") or chat_type_of(key))
    actions = [rule.action for rule in policy.rules if _matches(rule.match, key, where, kind)]
    return "deny" in actions or (not actions and policy.default == "deny")


def _matches(match: SendMatch, key: str, channel: str, chat_type: str) -> bool:
    if match.channel and match.channel.strip().lower() != channel:
        return False
    if match.chat_type and _chat_type(match.chat_type) != chat_type:
        return False
    prefix = (match.key_prefix or "").strip().lower()
    return not prefix or key.startswith(prefix) or rest_of(key).startswith(prefix)


def _chat_type(value: Any) -> str:
    text = str(value or "").strip().lower()
    return {"dm": "direct", "room": "channel"}.get(text, text)
