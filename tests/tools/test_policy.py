from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.messages import TextBlock
from openclaw.path_opener import PathRefused
from openclaw.tools.arguments import validate_arguments
from openclaw.tools.base import ToolContext
from openclaw.tools.policy import PROFILES, ToolFilter, ToolSettings, allowed_tools, built_in_tools, profile
from openclaw.tools.process import ProcessRegistry

NAMES = [
    "read",
    "write",
    "edit",
    "apply_patch",
    "exec",
    "process",
    "browser",
    "sessions_list",
    "session_status",
    "mcp_x",
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ToolFilter(), NAMES),
        (ToolFilter(allow=("read", "WRITE ")), ["read", "write"]),
        (ToolFilter(allow=("group:fs",), deny=("write",)), ["read", "edit", "apply_patch"]),
        (ToolFilter(allow=("*",), deny=("group:runtime",)), [n for n in NAMES if n not in ("exec", "process")]),
        (ToolFilter(deny=("*",)), []),
        (ToolFilter(allow=("sess*",)), ["sessions_list", "session_status"]),
        (ToolFilter(allow=("mcp_*", "*ess")), ["process", "mcp_x"]),
        (ToolFilter(allow=("bash",)), ["apply_patch", "exec"]),
        (ToolFilter(allow=("exec",), deny=("apply-patch",)), ["exec"]),
        (ToolFilter(allow=("group:unknown",)), []),
        (ToolFilter(allow=("re.d",)), []),
    ],
)
def test_one_policy(policy: ToolFilter, expected: list[str]) -> None:
    assert allowed_tools(NAMES, [policy]) == expected


def test_a_tool_must_pass_every_policy() -> None:
    policies = [None, profile("coding"), ToolFilter(deny=("exec",)), ToolFilter(allow=("exec", "read", "browser"))]
    assert allowed_tools(NAMES, policies) == ["read", "apply_patch"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minimal", ["session_status"]),
        ("messaging", ["sessions_list", "session_status"]),
        ("full", NAMES),
    ],
)
def test_profiles(name: str, expected: list[str]) -> None:
    assert allowed_tools(NAMES, [profile(name)]) == expected


def test_a_profile_can_be_widened_and_must_exist() -> None:
    assert allowed_tools(NAMES, [profile("minimal", ["browser"])]) == ["browser", "session_status"]
    assert profile("full", ["browser"]) == PROFILES["full"]
    with pytest.raises(ValueError, match='Unknown tool profile "codng"; use one of minimal'):
        profile("codng")


async def test_the_built_in_tools_work_together(
    workspace: Path, context: ToolContext, processes: ProcessRegistry
) -> None:
    made = built_in_tools(workspace=workspace, settings=ToolSettings(), processes=processes)
    tools = {tool.spec.name: tool for tool in made}
    assert list(tools) == ["read", "search", "write", "edit", "exec", "process"]

    async def call(name: str, **arguments: object) -> str:
        result = await tools[name].run(validate_arguments(tools[name].spec, arguments), context)
        block = result.content[0]
        assert isinstance(block, TextBlock)
        return block.text

    await call("write", path="count.sh", content="echo one\n")
    await call("edit", file_path="count.sh", old_string="one", new_string="two")
    assert await call("exec", cmd="sh count.sh") == "two"
    assert await call("read", path="count.sh", limit="1") == "echo two\n"
    assert await call("process", action="list") == "No running or recent sessions."


async def test_confinement_is_a_setting(
    workspace: Path, tmp_path: Path, context: ToolContext, processes: ProcessRegistry
) -> None:
    (tmp_path / "outside.txt").write_text("x")
    for confine in (True, False):
        settings = ToolSettings(confine=confine)
        read = built_in_tools(workspace=workspace, settings=settings, processes=processes)[0]
        if confine:
            with pytest.raises(PathRefused, match="leaves the workspace"):
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
