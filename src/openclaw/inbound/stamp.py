"""The time stamp in front of a message, and how views take wrappers off again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_STAMPED = re.compile(r"^\[[^\]]*\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}[^\]]*\]")
_MESSAGE_ID_LINE = re.compile(r"^[ \t]*\[message_id: [^\]]*\][ \t]*$\n?", re.MULTILINE)


def stamped(text: str, now_ms: int, zone: str | None) -> str:
    """``[Sun 2026-11-15 18:22 UTC] text``; left alone when the text carries a stamp already."""
    if _STAMPED.match(text) or "Current time: " in text:
        return text
    return f"[{minute_stamp(now_ms, zone)}] {text}"


def minute_stamp(now_ms: int, zone: str | None) -> str:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    if zone:
        try:
            moment = moment.astimezone(ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError):
            pass
    else:
        moment = moment.astimezone()
    return f"{_WEEKDAYS[moment.weekday()]} {moment:%Y-%m-%d %H:%M} {zone_label(moment)}"


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def zone_label(moment: datetime) -> str:
    """``UTC``, ``PST``, ``EDT``; elsewhere ``GMT+1``, ``GMT+5:30``."""
    name = moment.tzname() or "UTC"
    if name in _US_LABELS:
        return name
    offset = moment.utcoffset()
    minutes = int(offset.total_seconds() // 60) if offset else 0
    if minutes == 0:
        return "UTC" if name in ("UTC", "Etc/UTC") else "GMT"
    hours, rest = divmod(abs(minutes), 60)
    return f"GMT{'+' if minutes > 0 else '-'}{hours}" + (f":{rest:02d}" if rest else "")


_US_LABELS = frozenset({"UTC", "PST", "PDT", "MST", "MDT", "CST", "CDT", "EST", "EDT", "AKST", "AKDT", "HST"})


def without_wrappers(text: str) -> str:
    """What the person typed: the stamp or channel envelope and message-id lines taken off."""
    plain = _MESSAGE_ID_LINE.sub("", text) if "[message_id: " in text else text
    match = _STAMPED.match(plain)
    return (plain[match.end() :].lstrip() if match else plain).rstrip("\n")
