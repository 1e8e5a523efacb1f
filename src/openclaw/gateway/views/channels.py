"""The state of the channels in a few words, for status and health answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw.channels.manager import ChannelManager, RunningAccount


def by_channel(channels: ChannelManager) -> dict[str, list[RunningAccount]]:
    """Groups the accounts by the id of their channel."""
    grouped: dict[str, list[RunningAccount]] = {}
    for running in channels.accounts():
        grouped.setdefault(running.kind.id, []).append(running)
    return grouped


def summary_of(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The flags of one channel, from the views of its accounts. It is as well as the best of them."""
    best = max(views, key=lambda view: (view["connected"], view["running"], view["configured"], view["enabled"]))
    flags = {name: best[name] for name in ("enabled", "configured", "running", "connected")}
    return {**flags, "lastError": best["lastError"]} if best.get("lastError") else flags


def summary_lines(channels: ChannelManager) -> list[str]:
    """One line for each channel, such as ``Signal: connected``."""
    lines: list[str] = []
    for accounts in by_channel(channels).values():
        summary = summary_of([running.status.view() for running in accounts])
        if not summary["enabled"]:
            state = "disabled"
        elif not summary["configured"]:
            state = "not configured"
        elif summary["connected"]:
            state = "connected"
        else:
            state = "connecting" if summary["running"] else "not running"
            state += f" ({summary['lastError']})" if summary.get("lastError") else ""
        lines.append(f"{accounts[0].kind.label}: {state}")
    return lines
