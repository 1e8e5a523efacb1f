"""The only source of time, so that a test can hold it still; and how times, zones and durations are written."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, epoch milliseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; for intervals and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_within(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Waits until the event is set or the time is up. Returns whether the event is set."""
    waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # The waits are not awaited here, because a cancellation of the caller would be lost in that.
        for wait in waits:
            wait.cancel()
    return event.is_set()


def iso_utc(ms: int) -> str:
    """``2026-11-15T18:22:05.123Z``, the form transcripts use."""
    return f"{_iso_seconds(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=16)
def _iso_seconds(seconds: int) -> str:
    # The result is cached, because several entries are written in one second and strftime is slow.
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def named_zone(name: str | None) -> tzinfo | None:
    """The time zone with an IANA name; None when there is no name or no such zone."""
    if name == "UTC":  # This works also on machines without time zone data.
        return UTC
    # The import is here because it is large and the start does not need it.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PART = re.compile(rf"({_NUMBER.pattern})\s*(ms|[smhdw])\s*", re.IGNORECASE)
_MAX_MS = 100 * 365 * 86_400_000


def duration_ms(value: str | int | float, default_unit: str = "m") -> int:
    """The milliseconds of ``30m``, ``1h30m``, ``90s``, ``250ms`` or a bare number in the default unit.

    It raises a ValueError that says what is wrong.
    """
    text = str(value).strip()
    with_units = text + default_unit if _NUMBER.fullmatch(text) else text
    total, at = 0.0, 0
    while part := _PART.match(with_units, at):
        total += float(part[1]) * _UNITS_MS[part[2].lower()]
        at = part.end()
    if not text or at != len(with_units):
        raise ValueError(f"{text!r} is not a duration; write something like 30m, 1h30m, 90s or 250ms")
    if total > _MAX_MS:
        raise ValueError(f"the duration {text!r} is longer than a hundred years")
    return round(total)
