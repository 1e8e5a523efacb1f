"""Whether a conversation goes on or a new session begins: reset rules and the clock. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.config.schema.messages import Session, SessionReset
from openclaw.sessions.keys import rest_of

SessionType: TypeAlias = Literal["direct", "group", "thread"]
Expiry: TypeAlias = Literal["daily", "idle"]

DEFAULT_HOUR = 4
DEFAULT_IDLE_MINUTES = 60
QUIET_SOURCES = frozenset({"heartbeat"})
"""Sources of messages behind which there is nobody."""
_QUARTER_HOUR_MS = 15 * 60_000
_THREAD_MARKS = (":thread:", ":topic:")
_GROUP_MARKS = (":group:", ":channel:", ":room:")
_TASK_PREFIXES = ("subagent:", "acp:", "cron:", "hook:")


class Policy(msgspec.Struct, frozen=True):
    mode: Expiry
    at_hour: int
    """Hour of the daily reset on the Gateway host's clock; counts in mode ``daily`` only."""
    idle_minutes: int | None
    """Silence after which a session ends, in either mode; None: silence does not matter."""


def session_type(key: str, *, chat_type: str = "direct", thread: bool = False) -> SessionType:
    """``thread``: the message says it belongs to a thread, whatever the key looks like."""
    # The agent's name is not part of the question: an agent may well be called "group".
    rest = f":{rest_of(key)}"
    if thread or any(mark in rest for mark in _THREAD_MARKS):
        return "thread"
    if chat_type not in ("", "direct", "dm") or any(mark in rest for mark in _GROUP_MARKS):
        return "group"
    return "direct"


def expires(key: str) -> bool:
    """Sessions made for one task (sub-agents, cron, hooks) end with their task, not with the day."""
    return not rest_of(key).startswith(_TASK_PREFIXES)


def reset_policy(session: Session, kind: SessionType, channel: str | None = None) -> Policy:
    """A rule for the channel replaces all others; otherwise the kind of chat refines the general rule."""
    override = _by_channel(session.reset_by_channel, channel)
    typed = None if override is not None else _by_type(session, kind)
    base = override if override is not None else session.reset
    legacy = session.idle_minutes if override is None else None
    by_type = session.reset_by_type
    nothing_else = base is None and not any((by_type.direct, by_type.dm, by_type.group, by_type.thread))
    fallback: Expiry = "idle" if nothing_else and legacy is not None else "daily"
    mode = _first(typed, base, "mode") or fallback
    idle, hour = _whole(_first(typed, base, "idle_minutes")), _whole(_first(typed, base, "at_hour"))
    if idle is None:
        idle = _whole(legacy)
    return Policy(
        mode=mode,
        at_hour=DEFAULT_HOUR if hour is None else min(max(hour, 0), 23),
        idle_minutes=max(idle, 1) if idle is not None else DEFAULT_IDLE_MINUTES if mode == "idle" else None,
    )


def _by_channel(rules: Mapping[str, SessionReset], channel: str | None) -> SessionReset | None:
    wanted = (channel or "").strip().lower()
    return next((rule for name, rule in rules.items() if name.strip().lower() == wanted), None) if wanted else None


def _by_type(session: Session, kind: SessionType) -> SessionReset | None:
    rules = session.reset_by_type
    if kind == "direct":
        return rules.direct or rules.dm
    return rules.group if kind == "group" else rules.thread


def _first(typed: SessionReset | None, base: SessionReset | None, name: str) -> Any:
    return next(
        (value for rule in (typed, base) if rule is not None and (value := getattr(rule, name)) is not None), None
    )


def _whole(value: Any) -> int | None:
    return int(value // 1) if isinstance(value, int | float) and not isinstance(value, bool) else None


# The clock


def activity_at(entry: Mapping[str, Any] | None) -> int | None:
    """When somebody last said something here; None where the entry does not tell.

    ``updatedAt`` means activity: an accepted message, a finished answer, a setting a person changed. Notes about the
    route, labels, heartbeats and compactions leave it alone, or no session would ever end.
    """
    value = (entry or {}).get("updatedAt")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def touched(entry: Mapping[str, Any], now_ms: int, source: str = "") -> int:
    """``updatedAt`` after a message from ``source`` or its answer; what the Gateway says to itself is not activity."""
    before = activity_at(entry)
    return max(now_ms, before or 0) if before is None or source not in QUIET_SOURCES else before


def is_fresh(updated_at: int | None, policy: Policy, now_ms: int, zone: tzinfo | None = None) -> bool:
    """``updated_at`` is the activity stored before the message in question. ``zone`` None: the host's own."""
    return expiry(updated_at, policy, now_ms, zone) is None


def just_spoken(updated_at: int | None, now_ms: int) -> bool:
    """So lately that no rule can have ended the session: silence counts in minutes, and days begin on the hour.

    Every clock of the world is a number of quarter hours ahead of or behind the others.
    """
    return (
        updated_at is not None
        and 0 <= now_ms - updated_at <= 60_000
        and now_ms // _QUARTER_HOUR_MS == updated_at // _QUARTER_HOUR_MS
    )


def expiry(updated_at: int | None, policy: Policy, now_ms: int, zone: tzinfo | None = None) -> Expiry | None:
    """What ended the session; of both, what came first. A session that does not tell its age goes on."""
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


def why_stale(updated_at: int | None, policy: Policy, now_ms: int, zone: tzinfo | None = None) -> str | None:
    """The reason in words, None for a session that goes on."""
    match expiry(updated_at, policy, now_ms, zone):
        case "daily":
            return f"daily reset at {policy.at_hour:02d}:00"
        case "idle":
            return f"nothing was said for {_duration(policy.idle_minutes or 0)}"
        case None:
            return None


def last_boundary(at_hour: int, now_ms: int, zone: tzinfo | None = None) -> int:
    """The latest ``at_hour:00`` on the local calendar that is not after ``now_ms``."""
    # Day by day on the calendar: a day of a clock change has 23 or 25 hours, and some were left out altogether.
    day = _local(now_ms, zone).date()
    while (boundary := _epoch_ms(day, at_hour, zone)) > now_ms:
        day -= timedelta(days=1)
    return boundary


def next_boundary(at_hour: int, after_ms: int, zone: tzinfo | None = None) -> int:
    """The first ``at_hour:00`` later than ``after_ms``."""
    day = _local(after_ms, zone).date()
    while (boundary := _epoch_ms(day, at_hour, zone)) <= after_ms:
        day += timedelta(days=1)
    return boundary


def _local(ms: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC).astimezone(zone)


def _epoch_ms(day: date, hour: int, zone: tzinfo | None) -> int:
    # An hour that the clock skips means the moment it would have been; one that comes twice means the first.
    return int(datetime(day.year, day.month, day.day, hour, tzinfo=zone).timestamp()) * 1000


def _duration(minutes: int) -> str:
    for size, name in ((24 * 60, "day"), (60, "hour")):
        if minutes % size == 0:
            minutes, unit = minutes // size, name
            break
    else:
        unit = "minute"
    return f"{minutes} {unit}{'' if minutes == 1 else 's'}"
