"""Numbers as cards show them."""

from __future__ import annotations

import math

from openclaw.outbound.usage_text import money as money
from openclaw.outbound.usage_text import token_count as token_count


def percent(part: int, whole: int) -> str:
    return f"{min(999, math.floor(100 * part / whole + 0.5))}%"


def ago(then_ms: int, now_ms: int) -> str:
    minutes = max(0, now_ms - then_ms) // 60_000
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes}m ago"
    if minutes < 48 * 60:
        return f"{minutes // 60}h ago"
    return f"{minutes // (24 * 60)}d ago"


def duration(ms: int) -> str:
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"


def shortened(text: str, limit: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
