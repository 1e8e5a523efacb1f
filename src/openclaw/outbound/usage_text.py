"""Writes token counts and money for people, and the ``/usage`` line under a reply."""

from __future__ import annotations

import math

from openclaw.messages import Usage


def token_count(count: int | None) -> str:
    """``999``, ``1.2k``, ``16k`` or ``1.2m``. An unknown count is ``?``."""
    if count is None:
        return "?"
    if count < 1000:
        return str(count)
    if count < 10_000:
        return f"{count / 1000:.1f}k"
    if count < 1_000_000:
        return f"{math.floor(count / 1000 + 0.5)}k"
    return f"{count / 1_000_000:.1f}m"


def cache_share(read: int, written: int, fresh: int) -> str | None:
    """The share of the prompt that came from the provider's cache. None if it has no cache or does not tell."""
    if not read and not written:
        return None
    return f"{math.floor(100 * read / (read + written + fresh) + 0.5)}%"


def money(dollars: float) -> str:
    return f"${dollars:.4f}" if dollars < 0.01 else f"${dollars:.2f}"


def usage_footer(mode: str | None, usage: Usage | None, session_key: str, *, priced: bool) -> str:
    """The line that is shown under a reply and not stored. Empty if it is off or nothing was counted.

    ``priced`` says that the price of the model is known.
    """
    if mode not in ("on", "tokens", "full") or usage is None or not (usage.input or usage.output):
        return ""
    line = f"Usage: {token_count(usage.input)} in / {token_count(usage.output)} out"
    if priced:
        line += f" · est {money(usage.cost.total)}"
    if mode != "full":
        return line
    share = cache_share(usage.cache_read, usage.cache_write, usage.input)
    return f"{line} · session {session_key}" + (f" · cache {share}" if share else "")


def with_footer(text: str, footer: str) -> str:
    return f"{text.rstrip()}\n\n{footer}" if footer and text.strip() else text


def percent(part: int, whole: int) -> str:
    return f"{min(999, math.floor(100 * part / whole + 0.5))}%"
