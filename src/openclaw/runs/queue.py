"""The queue modes: what happens to a message that comes while its session is busy, and the texts for the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.config.schema.messages import Queue
from openclaw.storage.base import MessageBody, Reason, ReasonCode

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "steer-backlog", "interrupt"]
DropPolicy: TypeAlias = Literal["old", "new", "summarize"]

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
DROPS: dict[str, DropPolicy] = {
    "old": "old",
    "oldest": "old",
    "new": "new",
    "newest": "new",
    "summarize": "summarize",
    "summary": "summarize",
}
DEFAULT_DEBOUNCE_MS = 1000
DEFAULT_CAP = 20
SUMMARY_LENGTH = 160
COLLECTED = "[Queued messages while agent was busy]"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that hold for one message."""

    mode: QueueMode = "collect"
    debounce_ms: int = DEFAULT_DEBOUNCE_MS
    """Collected messages run when no message has come for this time."""
    cap: int = DEFAULT_CAP
    """The number of messages of one session that may wait."""
    drop: DropPolicy = "summarize"
    """What happens when more come: the oldest is dropped, the oldest is dropped and summarized, or the new one is
    refused."""


class QueueWish(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that one message asks for. A field is None where the message asks for nothing."""

    mode: QueueMode | None = None
    debounce_ms: int | None = None
    cap: int | None = None
    drop: DropPolicy | None = None


_NO_WISH = QueueWish()


def parse_mode(text: str | None) -> QueueMode | None:
    return MODES.get(text.strip().lower()) if text else None


def parse_drop(text: str | None) -> DropPolicy | None:
    return DROPS.get(text.strip().lower()) if text else None


def queue_settings(
    config: Queue, entry: Mapping[str, Any] | None, channel: str, wish: QueueWish | None = None
) -> QueueSettings:
    """Takes each setting from the message, else the session, else the channel, else the general configuration."""
    wish, session, where = wish or _NO_WISH, entry or {}, channel.strip().lower()
    mode = (
        wish.mode
        or parse_mode(session.get("queueMode"))
        or parse_mode(config.by_channel.get(where))
        or parse_mode(config.mode)
        or "collect"
    )
    debounce = _first(
        wish.debounce_ms,
        session.get("queueDebounceMs"),
        config.debounce_ms_by_channel.get(where),
        config.debounce_ms,
        DEFAULT_DEBOUNCE_MS,
    )
    cap = _first(wish.cap, session.get("queueCap"), config.cap, DEFAULT_CAP)
    drop = wish.drop or parse_drop(session.get("queueDrop")) or parse_drop(config.drop) or "summarize"
    return QueueSettings(mode=mode, debounce_ms=max(0, int(debounce)), cap=max(1, int(cap)), drop=drop)


def _first(*values: Any) -> float:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    raise ValueError("none of the settings is a number")


# Merging


def route_key(route: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the destination of a reply. Two messages may share an answer only when their keys are equal."""
    names = ("channel", "to", "accountId", "threadId")
    return tuple("" if route.get(name) is None else str(route[name]) for name in names)


def same_destination(routes: Sequence[Mapping[str, Any]]) -> bool:
    return len({route_key(route) for route in routes}) <= 1


def same_rights(bodies: Sequence[MessageBody]) -> bool:
    """Tells whether the commands of a run have the same rights for all senders. Only then may they share a run."""
    first, *others = [(body.exec, body.elevated, body.elevated_allowed) for body in bodies]
    return all(other == first for other in others)


def collected_prompt(prompts: Sequence[str], overflow: str = "") -> str:
    blocks = [COLLECTED, *([overflow] if overflow else [])]
    blocks += [f"---\nQueued #{number}\n{prompt}" for number, prompt in enumerate(prompts, 1)]
    return "\n\n".join(blocks)


def overflow_text(count: int, lines: Sequence[str]) -> str:
    """Tells the agent which messages were dropped. Empty when none was."""
    if not count:
        return ""
    plural = "message" if count == 1 else "messages"
    head = f"[Queue overflow] Dropped {count} {plural} due to cap."
    return "\n".join([head, "Summary:", *(f"- {line}" for line in lines)]) if lines else head


def summary_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_LENGTH else line[: SUMMARY_LENGTH - 1] + "…"


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
