from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.messages import TextBlock
from openclaw.tools.arguments import validate_arguments
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.builtin import ToolSettings, built_in_tools
from openclaw.tools.process_registry import ProcessRegistry


async def test_the_built_in_tools_work_together(
    workspace: Path, context: ToolContext, processes: ProcessRegistry
) -> None:
    made = built_in_tools(workspace=workspace, settings=ToolSettings(), processes=processes)
    tools = {tool.spec.name: tool for tool in made}
    assert list(tools) == ["read", "write", "edit", "exec", "process"]

    async def call(name: str, **arguments: object) -> str:
        result = await tools[name].run(validate_arguments(tools[name].spec, arguments), context)
        block = result.content[0]
        assert isinstance(block, TextBlock)
        return block.text

    await call("write", path="count.sh", content="echo one\n")
    await call("edit", file_path="count.sh", old_string="one", new_string="two")
    assert await call("exec", cmd="sh count.sh") == "two"
    assert (
        await call("read", path="count.sh", limit="1")
        == "echo two\n\n[1 more lines in file. Use offset=2 to continue.]"
    )
    assert await call("process", action="list") == "No running or recent sessions."


async def test_confinement_is_a_setting(
    workspace: Path, tmp_path: Path, context: ToolContext, processes: ProcessRegistry
) -> None:
    (tmp_path / "outside.txt").write_text("x")
    for confine in (True, False):
        settings = ToolSettings(confine=confine)
        read = built_in_tools(workspace=workspace, settings=settings, processes=processes)[0]
        if confine:
            with pytest.raises(ToolError, match="leaves the workspace"):
                await read.run({"path": "../outside.txt"}, context)
        else:
            assert await read.run({"path": "../outside.txt"}, context)


def test_every_tool_describes_itself_to_the_model(workspace: Path) -> None:
    for tool in built_in_tools(workspace=workspace, settings=ToolSettings(), processes=ProcessRegistry()):
        schema = tool.spec.parameters
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
        assert tool.summary
        assert tool.spec.description
