"""The ``nodes`` tool: what the agent sees of nodes, and what it may ask of them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from openclaw.messages import ImageBlock, TextBlock
from openclaw.rights import OWNER_CALLER, Caller, CallerKind
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.exec.settings import ExecArguments
from openclaw.tools.nodes import SENSORS, NodeFacts, NodeFailed, NodesTool, UnknownNode

ATTIC = NodeFacts(
    node_id="a" * 64, display_name="attic", platform="linux", commands=("system.run", "location.get"), connected=True
)


class Nodes:
    """Nodes whose answers a test sets."""

    def __init__(self, *nodes: NodeFacts) -> None:
        self.nodes = list(nodes)
        self.answer: Any = {"ok": True}
        self.asked: list[tuple[str, str, Any, int]] = []

    def all(self) -> list[NodeFacts]:
        return self.nodes

    def choose(self, wanted: str | None, command: str | None = None) -> NodeFacts:
        if not self.nodes:
            raise UnknownNode("no node is connected to this Gateway")
        return self.nodes[0]

    async def ask(self, node_id: str, command: str, params: Any, *, timeout_ms: int, key: str) -> Any:
        self.asked.append((node_id, command, params, timeout_ms))
        if isinstance(self.answer, NodeFailed):
            raise self.answer
        return self.answer

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None: ...

    async def end(self, run_id: str) -> None: ...

    def leave(self, run_id: str) -> None: ...


class Exec:
    def __init__(self) -> None:
        self.ran: list[ExecArguments] = []

    async def run_on_node(self, arguments: ExecArguments, context: ToolContext) -> ToolResult:
        self.ran.append(arguments)
        return text_result("ran")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(agent_id="main", session_key="agent:main:main", workspace=tmp_path, caller=OWNER_CALLER)


def text_of(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


async def test_the_agent_sees_the_nodes_and_what_they_can_do(context: ToolContext) -> None:
    off = NodeFacts(node_id="b" * 64, platform="macos", paired=True)
    tool = NodesTool(Nodes(ATTIC, off), None)
    shown = text_of(await tool.run({"action": "status"}, context))
    assert "attic (aaaaaaaaaaaa, linux): connected; commands: system.run, location.get" in shown
    assert "bbbbbbbbbbbb (bbbbbbbbbbbb, macos): not connected" in shown
    many = [NodeFacts(node_id=f"{number:064}") for number in range(200)]
    assert len(text_of(await NodesTool(Nodes(*many), None).run({"action": "status"}, context))) < 5000
    assert "location.get" in text_of(await tool.run({"action": "describe", "node": "attic"}, context))


async def test_commands_run_under_the_rules_of_exec_or_not_at_all(context: ToolContext) -> None:
    runs = Exec()
    tool = NodesTool(Nodes(ATTIC), runs)
    await tool.run({"action": "run", "command": ["echo", "a b"], "cwd": "/x", "commandTimeoutMs": 500}, context)
    assert runs.ran == [ExecArguments(command="echo 'a b'", workdir="/x", timeout=0.5)]
    with pytest.raises(ToolError, match="needs a command"):
        await tool.run({"action": "run"}, context)
    with pytest.raises(ToolError, match="run is not allowed"):
        await NodesTool(Nodes(ATTIC), None).run({"action": "run", "command": ["id"]}, context)


async def test_a_picture_is_shown_and_other_files_are_kept(context: ToolContext, tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(picture, "PNG")
    nodes = Nodes(ATTIC)
    tool = NodesTool(nodes, None)
    nodes.answer = {"format": "jpg", "base64": base64.b64encode(picture.getvalue()).decode(), "width": 20}
    shown = await tool.run({"action": "camera_snap", "facing": "front"}, context)
    assert isinstance(shown.content[1], ImageBlock) and shown.content[1].mime_type == "image/png", "by its bytes"
    assert nodes.asked[-1][1:3] == ("camera.snap", {"facing": "front"})
    nodes.answer = {"format": "../../mp4", "base64": base64.b64encode(b"film").decode()}
    await tool.run({"action": "screen_record"}, context)
    (kept,) = (tmp_path / "nodes").iterdir()
    assert kept.suffix == ".bin" and kept.read_bytes() == b"film"
    nodes.answer = {"format": "jpg", "base64": "###"}
    with pytest.raises(ToolError, match="not base64"):
        await tool.run({"action": "camera_snap"}, context)
    nodes.answer = {"lat": 1.5, "note": "x" * 100_000}
    assert len(text_of(await tool.run({"action": "location_get", "timeoutMs": 5}, context))) <= 20_000
    assert nodes.asked[-1][3] == 1000


@pytest.mark.parametrize("action", SENSORS)
@pytest.mark.parametrize("kind", ["guest", "group", "hook", "node"])
async def test_only_the_owner_gets_a_sensor(action: str, kind: CallerKind, context: ToolContext) -> None:
    nodes, context.caller = Nodes(ATTIC), Caller(kind)
    with pytest.raises(ToolError, match="for the owner's own conversations"):
        await NodesTool(nodes, None).run({"action": action}, context)
    assert not nodes.asked


@pytest.mark.parametrize(
    ("arguments", "failure", "error"),
    [
        ({"action": "fly"}, None, 'action: must be one of "status", "describe"'),
        ({"action": "notify"}, None, "needs a title or a body"),
        (
            {"action": "camera_snap"},
            NodeFailed("NOT_ALLOWED", "command not declared by node"),
            r"cannot be asked for camera\.snap: command not declared by node\. Its commands: system\.run",
        ),
        (
            {"action": "notify", "title": "x"},
            NodeFailed("TIMEOUT", "node invoke timed out"),
            "attic: node invoke timed",
        ),
        ({"action": "location_get"}, NodeFailed("NODE", "LOCATION_DISABLED: no"), "LOCATION_DISABLED"),
    ],
)
async def test_failures_are_told_in_words(
    arguments: dict[str, Any], failure: NodeFailed | None, error: str, context: ToolContext
) -> None:
    nodes = Nodes(ATTIC)
    nodes.answer = failure
    with pytest.raises(ToolError, match=error):
        await NodesTool(nodes, None).run(arguments, context)
    with pytest.raises(ToolError, match=r"no node is connected|needs a title|must be one of"):
        await NodesTool(Nodes(), None).run(arguments, context)
