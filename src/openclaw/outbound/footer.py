"""The line of ``/usage`` under a reply. Part of what is shown, never of what is stored."""

from __future__ import annotations

from openclaw.messages import Usage
from openclaw.outbound.figures import cache_share, money, token_count


def usage_footer(mode: str | None, usage: Usage | None, session_key: str, *, priced: bool) -> str:
    """Empty when nobody asked for it or nothing was counted. ``priced``: the model's price is known."""
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
