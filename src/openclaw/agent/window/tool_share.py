"""The tools that fit a small window: their schemas must leave room for the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.agent.window.tokens import overhead_tokens
from openclaw.tools.base import Tool

SMALL_WINDOW = 16_000
"""Models with a smaller window get a selection of the tools."""
TOOL_SHARE = 4
"""The tools take at most one part in so many of a small window."""
LEAVE_FIRST = ("browser", "cron", "message", "nodes")
_CORE = """
read exec edit write search memory_search web_fetch memory_get plan session_status process web_search sessions_search
sessions_history sessions_send sessions_spawn sessions_list agents_list
"""
_LEAVE_LAST = {name: place for place, name in enumerate(_CORE.split())}


def tools_within(tools: list[Tool], window: int) -> list[Tool]:
    """Return the tools that a model with this window is offered, in their order. A large window takes all of them.

    The tools of ``LEAVE_FIRST`` are left out first, then those of servers and extensions, and the most basic ones last.
    """
    if window >= SMALL_WINDOW:
        return tools
    room = window // TOOL_SHARE
    kept = list(tools)
    sizes = {tool.spec.name: overhead_tokens(tool.summary, "", [tool.spec]) for tool in tools}
    for tool in sorted(tools, key=_leaves):
        if sum(sizes[one.spec.name] for one in kept) <= room:
            break
        kept.remove(tool)
    return kept


def _leaves(tool: Tool) -> tuple[int, int]:
    """The order in which tools are left out."""
    name = tool.spec.name
    if name in LEAVE_FIRST:
        return 0, LEAVE_FIRST.index(name)
    return (2, -_LEAVE_LAST[name]) if name in _LEAVE_LAST else (1, 0)


def left_out(tools: Sequence[Tool], kept: Sequence[Tool]) -> tuple[str, ...]:
    names = {tool.spec.name for tool in kept}
    return tuple(tool.spec.name for tool in tools if tool.spec.name not in names)


def left_out_text(names: Sequence[str], window: int) -> str:
    """Say which tools the model is not offered, for people."""
    return f"left out of a window of {window:,} tokens: {', '.join(names)}"
