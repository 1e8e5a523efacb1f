"""The entry of a session in the store: its fields, its delivery route and its display name.

An entry is a plain mapping, so that fields we do not know survive every rewrite. It holds the last route twice:
nested in ``deliveryContext`` and flat in ``lastChannel``, ``lastTo``, ``lastAccountId`` and ``lastThreadId``.

``is_blocked`` decides whether messages may be sent to a session: by rules on channel, chat type and key, or by the
entry's own setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Required, TypedDict, get_origin, get_type_hints

from openclaw.config.schema.messages import SendMatch, SendPolicy
from openclaw.sessions.keys import channel_of, chat_type_of, rest_of

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
    previousSessions: list[dict[str, Any]]
    """Sessions that this key had before, newest first; see ``sessions/reset.py``."""


_KINDS: dict[str, Any] = {
    name: int | float if kind is int else kind
    for name, hint in get_type_hints(SessionEntry).items()
    if (kind := get_origin(hint) or hint) in (str, int, bool, dict, list)
}
"""What the values of known fields are; the route has its own rules."""


def normalize_channel(value: Any) -> str | None:
    """The channel id in lower case with its alias resolved, or None if the value is no channel."""
    if not isinstance(value, str):
        return None
    lowered = value.strip().lower()
    return _CHANNEL_ALIASES.get(lowered, lowered) or None


def normalize_route(context: Any) -> dict[str, Any]:
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


def is_plain(changes: Iterable[str]) -> bool:
    """Whether these fields may change without ``normalize_entry``."""
    return _LEADING.isdisjoint(changes)


def normalize_entry(entry: dict[str, Any], previous: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A copy of the entry with current field names and with both spellings of the route in agreement.

    Known fields that hold something else than they can are left out: people write in the file.

    ``previous`` is the normalised entry before a change. What the change did not touch is no part of a new route.
    Otherwise a thread id that was left out would come back from the other spelling.
    """
    result = {name: value for name, value in entry.items() if isinstance(value, _KINDS.get(name, object))}
    for old, new in _RENAMED.items():
        if old in result and isinstance(value := result.pop(old), str) and not isinstance(result.get(new), str):
            result[new] = value
    flat = {name: result.get(field) for name, field in _FLAT.items()}
    if not isinstance(flat["channel"], str) or not flat["channel"].strip():
        flat["channel"] = result.get("channel")
    flat, nested = normalize_route(flat), normalize_route(result.get("deliveryContext"))
    if previous is not None:
        changed = {name for name, field in _FLAT.items() if result.get(field) != previous.get(field)}
        if result.get("deliveryContext") != previous.get("deliveryContext"):
            flat = {name: value for name, value in flat.items() if name in changed}
        elif changed:
            nested = {}
    route = {name: value for name in _FLAT if (value := flat.get(name, nested.get(name))) is not None}
    if not route:
        return result
    result["deliveryContext"] = route
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
