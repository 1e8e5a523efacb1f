"""When notes are due, and what the agent is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.compaction.memory_flush import AppendingWrite, due, settled, texts, usable_tools, workspace_closed
from openclaw.clock import SystemClock
from openclaw.config.load import build
from openclaw.config.schema.agents import MemoryFlush, SandboxPrune
from openclaw.messages import AssistantMessage, TextBlock, UserMessage
from openclaw.path_opener import PathOpener
from openclaw.sessions.entry import SessionEntry
from openclaw.tools.base import ToolContext
from openclaw.tools.files import WriteTool
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.launch import make_plan

NOON_UTC = 1_794_830_400_000


def entry(total: int, count: int | None = None, flushed: int | None = None) -> SessionEntry:
    made = SessionEntry(sessionId="s", totalTokens=total)
    if count is not None:
        made["compactionCount"] = count
    if flushed is not None:
        made["memoryFlushCompactionCount"] = flushed
    return made


@pytest.mark.parametrize(
    ("found", "window", "floor", "soft", "expected"),
    [
        (entry(85), 100, 10, 5, True),
        (entry(84), 100, 10, 5, False),
        (entry(10_000), 100_000, 20_000, 10_000, False),
        (entry(90_000, 2, 2), 100_000, 5000, 2000, False),
        (entry(96_000, 1), 100_000, 5000, 2000, True),
        (entry(96_000, 0, 0), 100_000, 5000, 2000, False),
        (entry(96_000, flushed=0), 100_000, 5000, 2000, False),
        (entry(0), 100, 10, 5, False),
        (None, 100, 10, 5, False),
        (entry(15_000), 16_000, 20_000, 4000, False),
    ],
)
def test_notes_are_due_once_per_cycle_below_the_threshold(
    found: SessionEntry | None, window: int, floor: int, soft: int, expected: bool
) -> None:
    assert due(found, window, floor, soft) is expected


@pytest.mark.parametrize(("zone", "date"), [("UTC", "2026-11-16"), ("Pacific/Kiritimati", "2026-11-17")])
def test_the_date_is_the_one_where_the_person_is(zone: str, date: str) -> None:
    prompt, system = texts(MemoryFlush(), NOON_UTC, zone)
    assert f"memory/{date}.md" in prompt and zone in prompt
    assert "NO_REPLY" in prompt and "NO_REPLY" in system


def test_own_words_may_name_the_date_and_always_allow_silence() -> None:
    prompt, system = texts(MemoryFlush(prompt="Note to notes/YYYY-MM-DD.md {", system_prompt="Short."), NOON_UTC, "UTC")
    assert prompt.startswith("Note to notes/2026-11-16.md {") and "NO_REPLY" in prompt
    assert system.startswith("Short.") and "NO_REPLY" in system


@pytest.mark.parametrize(
    ("access", "closed"),
    [(None, False), ("ro", True), ("none", True), ("rw", False)],
)
def test_a_workspace_that_may_not_be_written_is_closed(tmp_path: Path, access: str | None, closed: bool) -> None:
    sandbox = None
    if access is not None:
        config = build({"agents": {"defaults": {"sandbox": {"mode": "all", "workspaceAccess": access}}}})
        plan = make_plan(config, tmp_path, "main", "agent:main:main", [("main", "agent:main:main")])
        sandbox = Boundary(plan, [], SandboxPrune(), SystemClock())
    assert workspace_closed(sandbox, tmp_path) is closed
    assert workspace_closed(sandbox, tmp_path / "absent")


def test_words_that_wait_for_an_answer_are_left_out() -> None:
    said = [UserMessage(content=[TextBlock(text="a")]), AssistantMessage(content=[TextBlock(text="b")])]
    assert settled([*said, UserMessage(content=[TextBlock(text="c")])]) == said
    assert settled([UserMessage(content=[TextBlock(text="c")])]) == []


async def test_write_only_adds_during_a_flush(tmp_path: Path) -> None:
    tools = usable_tools({"write": WriteTool(PathOpener(tmp_path, confine=True))})
    write = tools["write"]
    assert isinstance(write, AppendingWrite)
    context = ToolContext(agent_id="main", session_key="k", workspace=tmp_path)
    for content in ("- one", "- two\n", "- one\n- two\n- three\n"):
        await write.run({"path": "memory/today.md", "content": content}, context)
    assert (tmp_path / "memory/today.md").read_text() == "- one\n- two\n- three\n"


def test_nothing_that_could_be_noticed_outside_can_be_used() -> None:
    class Other:
        summary = ""
        spec: Any = None

        async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any: ...

    assert set(usable_tools({"message": Other(), "exec": Other(), "read": Other()})) == {"read"}
