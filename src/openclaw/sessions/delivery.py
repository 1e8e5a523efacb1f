"""The last route of a session entry, kept in two spellings, and the field names older stores used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_RENAMED = {"provider": "channel", "lastProvider": "lastChannel", "room": "groupChannel"}
_FLAT = {"channel": "lastChannel", "to": "lastTo", "accountId": "lastAccountId", "threadId": "lastThreadId"}
_LEADING = frozenset({*_RENAMED, *_FLAT.values(), "channel", "deliveryContext", "sessionId"})
"""Fields that others follow from."""
_CHANNEL_ALIASES = {
    "imsg": "imessage",
    "google-chat": "googlechat",
    "gchat": "googlechat",
    "teams": "msteams",
    "internet-relay-chat": "irc",
}


def normalize_channel(value: Any) -> str | None:
    """A channel id in lower case, its alias resolved; None when there is none."""
    if not isinstance(value, str):
        return None
    lowered = value.strip().lower()
    return _CHANNEL_ALIASES.get(lowered, lowered) or None


def normalize_route(context: Any) -> dict[str, Any]:
    """The usable part of a delivery context."""
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
    """Whether fields may change without any other field having to follow."""
    return _LEADING.isdisjoint(changes)


def normalize_entry(entry: dict[str, Any], previous: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A new entry with current field names and both spellings of the route in agreement.

    ``previous`` is the entry before a change: the spelling that was changed then says the whole route, so that a
    thread id that was left out does not come back from the other spelling. It must be one of ours.
    """
    renamed = _with_current_names(entry)
    flat, nested = _flat_route(renamed), normalize_route(renamed.get("deliveryContext"))
    if previous is not None:
        flat_changed = any(renamed.get(name) != previous.get(name) for name in _FLAT.values())
        nested_changed = renamed.get("deliveryContext") != previous.get("deliveryContext")
        if nested_changed and not flat_changed:
            flat = {}
        elif flat_changed and not nested_changed:
            nested = {}
    merged = {name: value for name in _FLAT if (value := flat.get(name, nested.get(name))) is not None}
    return _with_route(renamed, merged)


def _with_current_names(entry: dict[str, Any]) -> dict[str, Any]:
    renamed = dict(entry)
    for old, new in _RENAMED.items():
        if old in renamed and isinstance(value := renamed.pop(old), str) and not isinstance(renamed.get(new), str):
            renamed[new] = value
    return renamed


def _flat_route(entry: Mapping[str, Any]) -> dict[str, Any]:
    route = {name: entry.get(flat) for name, flat in _FLAT.items()}
    if not isinstance(route["channel"], str) or not route["channel"].strip():
        route["channel"] = entry.get("channel")
    return normalize_route(route)


def _with_route(entry: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    if not route:
        return entry
    entry["deliveryContext"] = route
    for name, flat in _FLAT.items():
        if name in route:
            entry[flat] = route[name]
        else:
            entry.pop(flat, None)
    return entry
