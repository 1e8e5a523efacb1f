"""When a key gets a new session, and what it takes along."""

from __future__ import annotations

import uuid
from typing import Any

from openclaw.sessions.entry import SessionEntry

CARRIED_OVER = (
    "thinkingLevel",
    "verboseLevel",
    "reasoningLevel",
    "responseUsage",
    "model",
    "modelProvider",
    "contextTokens",
    "sendPolicy",
    "label",
    "displayName",
    "chatType",
    "channel",
    "groupId",
    "subject",
    "groupChannel",
    "space",
    "origin",
    "deliveryContext",
    "lastChannel",
    "lastTo",
    "lastAccountId",
    "spawnedBy",
)


def rotated_entry(entry: SessionEntry | None, now_ms: int) -> SessionEntry:
    """A fresh session under the same key: settings stay, counters and choices of model start again."""
    old: dict[str, Any] = dict(entry or {})
    kept = {name: old[name] for name in CARRIED_OVER if name in old}
    fresh: dict[str, Any] = {
        "sessionId": str(uuid.uuid4()),
        "updatedAt": now_ms,
        "systemSent": False,
        "abortedLastRun": False,
        **kept,
        "inputTokens": 0,
        "outputTokens": 0,
        "totalTokens": 0,
    }
    return SessionEntry(**fresh)  # type: ignore[typeddict-item]
