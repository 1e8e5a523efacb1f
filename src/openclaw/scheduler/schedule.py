"""When a job is due: one-time moments, intervals and cron expressions, in the zone whose clock counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from openclaw.clock import iso_utc, named_zone

BACKOFF_MS = (30_000, 60_000, 300_000, 900_000, 3_600_000)
"""The pause after one failure in a row, after two, and so on. The last one holds for all that follow."""
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LATE_MS = 60_000
"""A one-time job may be added up to this long after its moment. It runs at once then."""
FARTHEST_MS = 10 * 365 * 86_400_000
MOST_TRIES = 1000
"""How many moments are looked at for one in the right year."""


class BadSchedule(ValueError):
    """The schedule cannot be used. The text says what is wrong with it."""


def next_run(schedule: Mapping[str, Any], now_ms: int, *, created_ms: int = 0) -> int | None:
    """Return the first moment of the schedule that is not over at ``now_ms``. None: there is none any more.

    ``created_ms`` anchors an interval that names no anchor. Raises ``BadSchedule``.
    """
    match schedule.get("kind"):
        case "at":
            at = at_ms(schedule)
            return at if at >= now_ms else None
        case "every":
            # The interval counts from a fixed anchor, so that slow runs do not shift it.
            every, value = max(1, int(schedule.get("everyMs") or 0)), schedule.get("anchorMs")
            anchor = int(value) if isinstance(value, int | float) else created_ms
            return anchor if now_ms < anchor else anchor + max(1, -((anchor - now_ms) // every)) * every
        case "cron":
            return _next_cron(str(schedule.get("expr") or ""), zone_of(schedule), now_ms)
        case kind:
            raise BadSchedule(f"schedule.kind must be at, every or cron, not {str(kind)[:40]!r}")


def at_ms(schedule: Mapping[str, Any]) -> int:
    """Return the moment of a one-time schedule. Older files call it ``atMs``."""
    value = schedule.get("at", schedule.get("atMs"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    return parse_moment(str(value or ""))


def parse_moment(text: str) -> int:
    """Return the milliseconds of an ISO time, or of a number of milliseconds. A time without a zone is UTC."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadSchedule(f"schedule.at is not a time: {text[:60]!r}; write 2026-11-20T08:00:00Z") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return int(moment.timestamp() * 1000)
    except (OverflowError, ValueError):
        raise BadSchedule(f"schedule.at is out of range: {text[:60]!r}") from None


def check_new(schedule: Mapping[str, Any], now_ms: int) -> None:
    """Raise ``BadSchedule`` for a schedule that a new job cannot have, such as one that is over."""
    if schedule.get("kind") == "every":
        every = schedule.get("everyMs")
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise BadSchedule("schedule.everyMs must be a number of milliseconds, 1 or more")
    if schedule.get("kind") != "at":
        if next_run(schedule, now_ms, created_ms=now_ms) is None:
            raise BadSchedule("the schedule never comes about")
        return
    at, shown = at_ms(schedule), str(schedule.get("at"))[:60]
    if at < now_ms - LATE_MS:
        minutes = max(1, (now_ms - at) // 60_000)
        details = f"({minutes} minute{'' if minutes == 1 else 's'} ago). Current time: {iso_utc(now_ms)}"
        raise BadSchedule(f"schedule.at is in the past: {shown} {details}")
    if at > now_ms + FARTHEST_MS:
        years = (at - now_ms) // (365 * 86_400_000)
        raise BadSchedule(f"schedule.at is too far in the future: {shown} ({years} years ahead). At most 10 years.")


def zone_of(schedule: Mapping[str, Any]) -> tzinfo:
    """Return the zone whose clock counts: the schedule's, else the machine's own."""
    name = str(schedule.get("tz") or "").strip()
    if not name:
        return local_zone()
    zone = named_zone(name)
    if zone is None:
        raise BadSchedule(f"schedule.tz is not a time zone: {name[:60]!r}; write an IANA name such as Europe/Madrid")
    return zone


def local_zone() -> tzinfo:
    """The machine's zone with its rules for summer time. Where these are unknown, its present distance from UTC."""
    name = os.environ.get("TZ", "").lstrip(":")
    if name and (zone := named_zone(name)) is not None:
        return zone
    if not name:
        try:
            with Path("/etc/localtime").open("rb") as file:
                return ZoneInfo.from_file(file)
        except (OSError, ValueError):
            pass
    return datetime.now(UTC).astimezone().tzinfo or UTC


def backoff_ms(failures: int) -> int:
    """How long a job that failed ``failures`` times in a row waits at least."""
    return BACKOFF_MS[min(failures, len(BACKOFF_MS)) - 1] if failures > 0 else 0


def _next_cron(expr: str, zone: tzinfo, now_ms: int) -> int | None:
    # The import is here, because nothing else of the Gateway needs it.
    from cronsim import CronSim, CronSimError

    fields = NICKNAMES.get(expr.strip().lower(), expr).split()
    years: set[int] | None = None
    if len(fields) == 7:
        years = _years(fields.pop())
    # CronSim looks for moments after the given one, and a moment that is exactly now counts.
    begin = datetime.fromtimestamp((now_ms - 1) / 1000, zone)
    try:
        moments = CronSim(" ".join(fields), begin)
        for _ in range(MOST_TRIES):
            moment = next(moments)
            if years is None or moment.year in years:
                return int(moment.timestamp() * 1000)
            if moment.year > max(years):
                return None
    except StopIteration:
        return None
    except CronSimError as problem:
        raise BadSchedule(f"schedule.expr {expr[:60]!r} is not a cron expression: {problem}") from None
    raise BadSchedule(f"schedule.expr {expr[:60]!r} comes about too rarely")


def _years(field: str) -> set[int] | None:
    if field == "*":
        return None
    years: set[int] = set()
    for part in field.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or len(part) > 9:
            raise BadSchedule(f"schedule.expr has a bad year: {field[:20]!r}")
        years |= set(range(int(first), int(last or first) + 1))
    if not years:
        raise BadSchedule(f"schedule.expr has a bad year: {field[:20]!r}")
    return years
