"""Durations as people write them: ``30m``, ``1h30m``, ``90s``, ``250ms``, or a bare number in a default unit."""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MAX_MS = 100 * 365 * 86_400_000


def duration_ms(value: str | int | float, default_unit: str = "m") -> int:
    """Returns milliseconds. It raises a ValueError that says what is wrong."""
    text = str(value).strip()
    if _NUMBER.fullmatch(text):
        return _bounded(float(text) * UNITS_MS[default_unit], text)
    total, at = 0.0, 0
    while part := _PART.match(text, at):
        total += float(part[1]) * UNITS_MS[part[2].lower()]
        at = part.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a duration; write something like 30m, 1h30m, 90s or 250ms")
    return _bounded(total, text)


def _bounded(ms: float, text: str) -> int:
    if ms > _MAX_MS:
        raise ValueError(f"the duration {text!r} is longer than a hundred years")
    return round(ms)
