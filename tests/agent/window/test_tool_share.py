"""Which tools a model with a small window is offered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.window.tokens import overhead_tokens
from openclaw.agent.window.tool_share import SMALL_WINDOW, TOOL_SHARE, left_out, tools_within
from openclaw.messages import ToolSpec
from openclaw.tools.base import ToolContext, ToolResult, text_result


class Sized:
    """A tool with a schema of this many characters."""

    def __init__(self, name: str, size: int) -> None:
        self.spec = ToolSpec(name=name, description="x" * size, parameters={"type": "object", "properties": {}})
        self.summary = name

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return text_result("")


NAMES = [
    "read",
    "write",
    "edit",
    "exec",
    "browser",
    "cron",
    "message",
    "nodes",
    "server__tool",
    "plan",
    "sessions_list",
]


@pytest.mark.parametrize(
    ("window", "dropped"),
    [
        (200_000, ()),
        (16_000, ()),
        (15_999, ()),
        (9000, ("browser",)),
        (8192, ("browser", "cron")),
        (5000, ("browser", "cron", "message", "nodes", "server__tool", "sessions_list")),
        (
            1000,
            ("write", "edit", "exec", "browser", "cron", "message", "nodes", "server__tool", "plan", "sessions_list"),
        ),
    ],
)
def test_what_leaves_first(window: int, dropped: tuple[str, ...]) -> None:
    tools = [Sized(name, 800) for name in NAMES]
    assert left_out(tools, tools_within(list(tools), window)) == dropped


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 8000)), st.integers(1, SMALL_WINDOW * 2))
def test_tools_of_a_small_window_never_exceed_their_share(sizes: dict[str, int], window: int) -> None:
    tools = [Sized(name, size) for name, size in sizes.items()]
    kept = tools_within(list(tools), window)
    assert [tool for tool in tools if tool in kept] == kept, "the order stays"
    if window >= SMALL_WINDOW:
        assert kept == tools
    else:
        assert sum(overhead_tokens(tool.summary, "", [tool.spec]) for tool in kept) <= window // TOOL_SHARE
