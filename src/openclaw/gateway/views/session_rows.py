"""Sessions as lists show them. Every list takes its rows from here, so that all show the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from openclaw.config.agents import default_agent_id
from openclaw.models.catalogue import UnknownModel
from openclaw.sessions.entry import group_display_name
from openclaw.sessions.keys import RESERVED_KEYS, channel_of, kind_of, rest_of, shown_key
from openclaw.storage.base import SessionRow
from openclaw.storage.session_query import SessionQuery

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

_COPIED = (
    "label",
    "displayName",
    "channel",
    "subject",
    "groupChannel",
    "space",
    "chatType",
    "origin",
    "updatedAt",
    "sessionId",
    "systemSent",
    "abortedLastRun",
    "thinkingLevel",
    "verboseLevel",
    "reasoningLevel",
    "elevatedLevel",
    "sendPolicy",
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheRead",
    "cacheWrite",
    "responseUsage",
    "modelProvider",
    "model",
    "contextTokens",
    "compactionCount",
    "deliveryContext",
    "lastChannel",
    "lastTo",
    "lastAccountId",
    "spawnedBy",
)


def list_kind(row: SessionRow) -> str:
    """Returns ``direct``, ``group`` or ``unknown``."""
    if row.key == "unknown":
        return row.key
    return "group" if kind_of(row.key, row.entry) == "group" else "direct"


def row_view(row: SessionRow, defaults: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = {"key": shown_key(row.key), "kind": list_kind(row)}
    entry: dict[str, Any] = dict(row.entry)
    for name in _COPIED:
        if name in entry:
            view[name] = entry[name]
    if entry.get("modelOverride"):
        view["model"] = entry["modelOverride"]
        view["modelProvider"] = entry.get("providerOverride") or view.get("modelProvider") or defaults["modelProvider"]
    view["channel"] = channel_of(entry, row.key)
    if name := display_name(row, view["kind"], view["channel"]):
        view["displayName"] = name
    # Some clients still read these older names.
    view |= {old: view[new] for old, new in (("provider", "channel"), ("room", "groupChannel")) if new in view}
    for name in ("modelProvider", "model", "contextTokens"):
        if not view.get(name):
            view[name] = defaults[name]
    return view


def display_name(row: SessionRow, kind: str, channel: str) -> str | None:
    """The name in lists: the stored one, the group's, the label, or who wrote."""
    entry = row.entry
    if stored := entry.get("displayName"):
        return stored
    if kind == "group":
        return group_display_name(
            channel,
            id=entry.get("groupId") or rest_of(row.key).split(":", 2)[-1],
            subject=entry.get("subject"),
            group_channel=entry.get("groupChannel"),
            space=entry.get("space"),
        )
    return entry.get("label") or (entry.get("origin") or {}).get("label")


def model_defaults(gateway: Gateway, agent_id: str | None = None) -> dict[str, Any]:
    """Returns the model of a session that chose none. The values are null when none can be resolved."""
    config = gateway.runtime.config.current
    try:
        model = gateway.runtime.catalogue().default_for(config, agent_id or default_agent_id(config))
    except UnknownModel:
        return {"modelProvider": None, "model": None, "contextTokens": None}
    return {"modelProvider": model.provider, "model": model.id, "contextTokens": model.context_window}


class Listed(NamedTuple):
    rows: Sequence[SessionRow]
    total: int
    """The number of all sessions that may be listed, not only of ``rows``."""


async def most_recent(gateway: Gateway, agent_id: str, limit: int) -> Listed:
    """Returns the newest sessions of an agent without reserved keys. It does not walk through the whole store."""
    sessions = gateway.runtime.sessions
    shared = gateway.runtime.config.current.session.scope == "global"
    reserved = [key for key in RESERVED_KEYS if key != "global" or not shared]
    held_back = [key for key in reserved if await sessions.get(agent_id, key) is not None]
    hidden = hidden_keys(include_global=shared, include_unknown=False)
    shown = await sessions.select(SessionQuery(agent_id=agent_id, hidden_keys=hidden, aliases=False, limit=limit))
    return Listed(shown.rows, await sessions.count(agent_id) - len(held_back))


def hidden_keys(*, include_global: bool, include_unknown: bool) -> tuple[str, ...]:
    """The reserved keys that a list leaves out."""
    asked = {"global": include_global, "unknown": include_unknown}
    return tuple(key for key, shown in asked.items() if not shown)
