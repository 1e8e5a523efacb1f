"""The only source of time, so that a test can hold it still.

Also how times, zones and durations are read and written, and how long to wait before the next attempt.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Protocol

import msgspec


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
    """Wait until the event is set or the time is up. Returns whether the event is set."""
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


def iso_ms(text: str | None) -> int | None:
    """Return the time that a text of ISO 8601 names. None: it names none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000) if text else None
    except (ValueError, OverflowError):
        return None


def named_zone(name: str | None) -> tzinfo | None:
    """Return the time zone with an IANA name; None if the name is empty or unknown."""
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
    """Return the milliseconds of ``30m``, ``1h30m``, ``90s``, ``250ms`` or a bare number in the default unit.

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


Chance = Callable[[], float]
"""Returns a random number in [0, 1)."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Growing delays with jitter, so that clients of one server do not all reconnect at the same moment."""

    initial_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2

    def delay_s(self, attempt: int, chance: Chance) -> float:
        """``attempt`` counts from 1."""
        # The exponent is bounded, because a large one would overflow a float.
        grown = self.initial_s * self.factor ** min(max(attempt, 1) - 1, 64)
        return min(self.max_s, grown + grown * self.jitter * chance())


def retry_delay_s(policy: Backoff, attempt: int, retry_after_s: float | None, chance: Chance) -> float:
    """The delay before a request is repeated: what the server asks for, or else a growing delay.

    It stays within the policy's bounds, and its jitter can lengthen or shorten it.
    """
    if retry_after_s is not None:
        requested = max(retry_after_s, policy.initial_s)
    else:
        requested = policy.initial_s * policy.factor ** min(max(attempt, 1) - 1, 64)
    requested = min(requested, policy.max_s)
    requested *= 1 + policy.jitter * (2 * chance() - 1)
    return min(max(requested, policy.initial_s), policy.max_s)
