from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.messages import TextBlock
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.opener import PathOpener
from openclaw.tools.write import WriteTool


@pytest.fixture
def tool(workspace: Path) -> WriteTool:
    return WriteTool(PathOpener(workspace, confine=True))


async def test_writing_makes_parents_and_reports_real_bytes(tool: WriteTool, context: ToolContext) -> None:
    result = await tool.run({"path": "notes/today.md", "content": "héllo"}, context)
    assert result.content == [TextBlock(text="Successfully wrote 6 bytes to notes/today.md")]
    assert (context.workspace / "notes" / "today.md").read_text() == "héllo"


async def test_writing_replaces_and_keeps_line_ends_as_given(tool: WriteTool, context: ToolContext) -> None:
    (context.workspace / "a").write_text("old and longer")
    await tool.run({"file_path": "a", "content": "x\r\ny\n"}, context)
    assert (context.workspace / "a").read_bytes() == b"x\r\ny\n"
    await tool.run({"path": "a", "content": ""}, context)
    assert (context.workspace / "a").read_bytes() == b""


async def test_what_is_missing_or_impossible_is_said(tool: WriteTool, context: ToolContext) -> None:
    with pytest.raises(ToolError, match=r"Missing required parameter: content \(content\)"):
        await tool.run({"path": "a"}, context)
    with pytest.raises(ToolError, match="path leaves the workspace"):
        await tool.run({"path": "/etc/a", "content": ""}, context)
    with pytest.raises(ToolError, match="half of a character"):
        await tool.run({"path": "a", "content": "x\ud800"}, context)
    assert not (context.workspace / "a").exists()
