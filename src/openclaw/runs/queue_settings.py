"""The queue settings of a session, and what its queue mode does with a new message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.config.schema.messages import Queue, QueueDrop, QueueMode
from openclaw.storage.message_ledger import Reason, ReasonCode

MODES: dict[str, QueueMode] = {
    "steer": "steer",
    "queue": "steer",
    "queued": "steer",
    "steering": "steer",
    "followup": "followup",
    "followups": "followup",
    "follow-up": "followup",
    "follow-ups": "followup",
    "collect": "collect",
    "coalesce": "collect",
    "steer-backlog": "steer-backlog",
    "steer+backlog": "steer-backlog",
    "steer_backlog": "steer-backlog",
    "interrupt": "interrupt",
    "interrupts": "interrupt",
    "abort": "interrupt",
}
DROPS: dict[str, QueueDrop] = {
    "old": "old",
    "oldest": "old",
    "new": "new",
    "newest": "new",
    "summarize": "summarize",
    "summary": "summarize",
}
DEFAULT_DEBOUNCE_MS = 1000
DEFAULT_CAP = 20


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that hold for one message."""

    mode: QueueMode = "collect"
    debounce_ms: int = DEFAULT_DEBOUNCE_MS
    """Collected messages run when no message has come for this time."""
    cap: int = DEFAULT_CAP
    """The number of messages of one session that may wait."""
    drop: QueueDrop = "summarize"
    """What happens when more come: the oldest is dropped, the oldest is dropped and summarized, or the new one is
    refused."""


class QueueOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that one message asks for. A field is None where the message asks for nothing."""

    mode: QueueMode | None = None
    debounce_ms: int | None = None
    cap: int | None = None
    drop: QueueDrop | None = None


def parse_mode(text: str | None) -> QueueMode | None:
    return MODES.get(text.strip().lower()) if text else None


def parse_drop(text: str | None) -> QueueDrop | None:
    return DROPS.get(text.strip().lower()) if text else None


def queue_settings(
    config: Queue, entry: Mapping[str, Any] | None, channel: str, overrides: QueueOverrides | None = None
) -> QueueSettings:
    """Takes each setting from the message, else the session, else the channel, else the general configuration."""
    overrides, session, where = overrides or QueueOverrides(), entry or {}, channel.strip().lower()
    mode = (
        overrides.mode
        or parse_mode(session.get("queueMode"))
        or parse_mode(config.by_channel.get(where))
        or MODES[config.mode]
    )
    debounce = _first_number(
        overrides.debounce_ms,
        session.get("queueDebounceMs"),
        config.debounce_ms_by_channel.get(where),
        default=config.debounce_ms,
    )
    cap = _first_number(overrides.cap, session.get("queueCap"), default=config.cap)
    drop = overrides.drop or parse_drop(session.get("queueDrop")) or config.drop
    return QueueSettings(mode=mode, debounce_ms=max(0, int(debounce)), cap=max(1, int(cap)), drop=drop)


def _first_number(*values: Any, default: int) -> float:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return default


# Decisions

Decision: TypeAlias = Literal["run", "wait", "steer", "interrupt", "refuse"]


def decide(settings: QueueSettings, *, busy: bool, steerable: bool, waiting: int) -> Decision:
    """Decides what happens to a new message. ``steerable`` says whether the active run can still take it in."""
    if not busy:
        return "run"
    if settings.mode == "interrupt":
        return "interrupt"
    if settings.mode in ("steer", "steer-backlog") and steerable:
        return "steer"
    if waiting >= settings.cap and settings.drop == "new":
        return "refuse"
    return "wait"


def waiting_reason(settings: QueueSettings) -> Reason:
    return Reason(ReasonCode.COLLECTING if settings.mode == "collect" else ReasonCode.SESSION_BUSY)
