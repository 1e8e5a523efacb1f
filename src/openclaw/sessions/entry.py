"""The entry of a session in the store: its fields, its delivery route and its display name.

An entry is a plain mapping, so that fields we do not know survive every rewrite. It holds the last route twice:
nested in ``deliveryContext`` and flat in ``lastChannel``, ``lastTo``, ``lastAccountId`` and ``lastThreadId``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Required, TypedDict

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

    ``previous`` is the normalised entry before a change. If the change touched one spelling only, that spelling is the
    whole route. Otherwise a thread id that was left out would come back from the other spelling.
    """
    result = dict(entry)
    for old, new in _RENAMED.items():
        if old in result and isinstance(value := result.pop(old), str) and not isinstance(result.get(new), str):
            result[new] = value
    flat = {name: result.get(field) for name, field in _FLAT.items()}
    if not isinstance(flat["channel"], str) or not flat["channel"].strip():
        flat["channel"] = result.get("channel")
    flat, nested = normalize_route(flat), normalize_route(result.get("deliveryContext"))
    if previous is not None:
        flat_changed = any(result.get(field) != previous.get(field) for field in _FLAT.values())
        nested_changed = result.get("deliveryContext") != previous.get("deliveryContext")
        if nested_changed and not flat_changed:
            flat = {}
        elif flat_changed and not nested_changed:
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
