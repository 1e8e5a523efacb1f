"""Nodes as tools know them: other machines that carry out commands, and the ``nodes`` tool that asks them.

A node is asked only for what it declares and what ``gateway.nodes`` allows. Commands run under the rules of ``exec``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shlex
import uuid
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from openclaw.messages import UserBlock
from openclaw.pictures import ImageProblem, fit_image, off_loop, sniff_image
from openclaw.text import clipped, shortened
from openclaw.tools.arguments import Hidden, InvalidArguments, Number, RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult, indented, text_result
from openclaw.tools.exec.settings import ExecArguments

SYSTEM_RUN = "system.run"
DENIED = "SYSTEM_RUN_DENIED"
APPROVAL_REQUIRED = f"{DENIED}: approval required"
"""How a node's error begins when its rules want a person to be asked first."""

Failure: TypeAlias = Literal["NOT_CONNECTED", "NOT_ALLOWED", "TIMEOUT", "BUSY", "INVALID", "NODE"]


class NodeFailed(Exception):
    """A node did not carry out a command.

    ``failure`` is ``NODE`` when the node itself said so; ``node_error`` is what it said. If it was ``interrupted``,
    the command may still be running on the node.
    """

    def __init__(
        self, failure: Failure, text: str, *, node_error: dict[str, str] | None = None, interrupted: bool = False
    ) -> None:
        super().__init__(text)
        self.failure: Failure = failure
        self.node_error = node_error
        self.interrupted = interrupted

    @property
    def wants_approval(self) -> bool:
        return self.failure == "NODE" and str(self).startswith(APPROVAL_REQUIRED)

    @property
    def once_only(self) -> str | None:
        """Why the node would not remember ``allow-always``. None if it would, or if it gives no reason."""
        return (self.node_error or {}).get("onceOnly")


class UnknownNode(Exception):
    """No node is meant by a name, or several are. The message says which there are."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node as tools see it. Of a disconnected node only the name and the platform are known."""

    node_id: str
    display_name: str | None = None
    platform: str | None = None
    version: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    remote_ip: str | None = None
    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """The commands that the node accepts and the configuration allows."""
    path_env: str | None = None
    permissions: dict[str, bool] | None = None
    connected_at_ms: int = 0
    paired: bool = msgspec.field(default=False)
    connected: bool = msgspec.field(default=False)

    @property
    def name(self) -> str:
        return self.display_name or self.node_id[:12]


class NodeCalls(Protocol):
    """The nodes of a Gateway, as tools use them."""

    @property
    def any(self) -> bool:
        """Return whether any node is paired or connected. Without one, agents are not told of nodes."""
        ...

    def all(self) -> list[NodeFacts]:
        """Every node that is paired or connected. Connected ones come first."""
        ...

    def choose(self, name: str | None, command: str | None = None) -> NodeFacts:
        """Return the node with this id, name or address, or without a name the only one that has the command.

        Raises ``UnknownNode``.
        """
        ...

    async def ask(self, node_id: str, command: str, params: Any, *, timeout_ms: int, key: str) -> Any:
        """The payload of the node's answer. Raises ``NodeFailed``. Cancelled, it tells the node to stop."""
        ...

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None:
        """Notes a command, so that what the node tells of it later reaches the session of the agent's run."""
        ...

    async def end(self, run_id: str) -> None:
        """The outcome of the command is known."""
        ...

    def leave(self, run_id: str) -> None:
        """Nobody waits for the answer any more. What the node tells of it later counts."""
        ...


TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 300_000
MOST_LISTED = 50
MOST_CHARS = 20_000
"""Characters of a node's answer that the model reads."""
MOST_MEDIA_BYTES = 16 * 1024 * 1024
SENSORS: dict[str, str] = {
    "camera_list": "camera.list",
    "camera_snap": "camera.snap",
    "screen_record": "screen.record",
    "location_get": "location.get",
}
"""The actions that are one command of the node. Their parameters go to the node as they are."""
Action: TypeAlias = Literal[
    "status", "describe", "notify", "run", "camera_list", "camera_snap", "screen_record", "location_get"
]
_PASSED = (
    *("facing", "maxWidth", "quality", "delayMs", "deviceId", "durationMs", "fps", "screenIndex", "includeAudio"),
    *("maxAgeMs", "desiredAccuracy"),
)


class RunsOnNode(Protocol):
    """The ``exec`` tool, as this one needs it."""

    async def run_on_node(self, arguments: ExecArguments, context: ToolContext) -> ToolResult: ...


class NodesArguments(ToolArguments):
    action: Action
    node: Annotated[str, Meta(description="Name or id; may be left out if there is one")] | None = None
    title: str = ""
    body: str = ""
    command: list[str] = []
    cwd: str = ""
    env: dict[str, str] = {}
    command_timeout_ms: float = 0
    timeout_ms: Annotated[float, Meta(description="Milliseconds to wait for the node")] = 0
    # The rest goes to the node as it was sent.
    facing: Literal["front", "back"] | None = None
    max_width: Number | None = None
    quality: Number | None = None
    delay_ms: Hidden = None
    device_id: str | None = None
    duration_ms: Number | None = None
    fps: Hidden = None
    screen_index: Number | None = None
    include_audio: Hidden = None
    max_age_ms: Number | None = None
    desired_accuracy: Literal["coarse", "balanced", "precise"] | None = None


class NodesTool(RecordTool[NodesArguments]):
    name = "nodes"
    summary = "List paired nodes, notify on them, run commands there, use their camera, screen and location"
    description = (
        "Paired nodes are other machines of the owner. Actions: status (all nodes), describe, notify (title, "
        "body), run (command as a list of words, under the rules of exec), camera_list, camera_snap, "
        "screen_record, location_get. A node has only the commands that describe lists."
    )

    examples = (
        {"action": "status"},
        {"action": "describe", "node": "<name>"},
        {"action": "notify", "node": "<name>", "title": "Done", "body": "The backup is complete."},
        {"action": "run", "node": "<name>", "command": ["uname", "-a"]},
    )

    def __init__(self, nodes: NodeCalls, exec_tool: RunsOnNode | None) -> None:
        """Without ``exec_tool`` the agent may not run commands, on nodes either."""
        self._nodes = nodes
        self._exec = exec_tool

    async def execute(self, arguments: NodesArguments, context: ToolContext) -> ToolResult:
        action = arguments.action
        try:
            match action:
                case "status":
                    return self._status()
                case "describe":
                    node = self._nodes.choose(arguments.node)
                    return _result(action, node, msgspec.to_builtins(node))
                case "notify":
                    return await self._notify(arguments)
                case "run":
                    return await self._run(arguments, context)
                case _:
                    return await self._sense(arguments, context)
        except UnknownNode as unknown:
            raise ToolError(str(unknown)) from None

    def _status(self) -> ToolResult:
        nodes = self._nodes.all()
        rows = [_row(node) for node in nodes[:MOST_LISTED]]
        details = {"action": "status", "nodes": rows, "count": len(nodes)}
        if not nodes:
            return text_result("No node is paired or connected.", details)
        left = f"\n… and {len(nodes) - MOST_LISTED} more" if len(nodes) > MOST_LISTED else ""
        return text_result("\n".join(map(_line, nodes[:MOST_LISTED])) + left, details)

    async def _notify(self, arguments: NodesArguments) -> ToolResult:
        title, body = arguments.title.strip(), arguments.body.strip()
        if not title and not body:
            raise InvalidArguments("notify needs a title or a body")
        node = self._nodes.choose(arguments.node, "system.notify")
        payload = await self._ask(node, "system.notify", {"title": title, "body": body}, arguments)
        return _result("notify", node, payload if payload is not None else {"ok": True})

    async def _run(self, arguments: NodesArguments, context: ToolContext) -> ToolResult:
        if self._exec is None:
            raise ToolError("run is not allowed: this session may not run commands outside of its own place")
        if not arguments.command:
            raise InvalidArguments('run needs a command, as a list of words such as ["uname", "-a"]')
        command = ExecArguments(
            command=shlex.join(arguments.command),
            node=arguments.node,
            workdir=arguments.cwd,
            env=arguments.env,
            timeout=arguments.command_timeout_ms / 1000,
        )
        return await self._exec.run_on_node(command, context)

    async def _sense(self, arguments: NodesArguments, context: ToolContext) -> ToolResult:
        action, command = arguments.action, SENSORS[arguments.action]
        if not context.caller.may("devices"):
            raise ToolError(f"{action} is for the owner's own conversations; {context.caller.described} has none of it")
        node = self._nodes.choose(arguments.node, command)
        encoded = msgspec.to_builtins(arguments)
        params = {name: encoded[name] for name in _PASSED if name in encoded}
        payload = await self._ask(node, command, params, arguments)
        if not isinstance(payload, dict) or not isinstance(payload.get("base64"), str):
            return _result(action, node, payload)
        facts = {name: value for name, value in payload.items() if name != "base64"}
        data = _decoded(payload["base64"])
        if (mime := sniff_image(data)) and context.model_sees_images:
            try:
                fitted = await off_loop(lambda: fit_image(data, mime))
            except ImageProblem as problem:
                raise ToolError(f"the picture of node {shortened(node.name)} is left out: {problem}") from None
            result = _result(action, node, facts)
            content: list[UserBlock] = [*result.content, fitted.block]
            return ToolResult(content=content, details=result.details)
        kind = str(payload.get("format") or "bin").lower()
        suffix = kind if kind.isalnum() and len(kind) <= 5 else "bin"
        path = f"nodes/{command.replace('.', '-')}-{uuid.uuid4().hex[:8]}.{suffix}"

        def save() -> None:
            with context.opener.open_write_atomic(path) as file:
                file.write(data)

        await asyncio.to_thread(save)
        return _result(action, node, {**facts, "path": path, "bytes": len(data)})

    async def _ask(self, node: NodeFacts, command: str, params: dict[str, Any], arguments: NodesArguments) -> Any:
        """Raises ``ToolError`` with what the node or the Gateway said."""
        timeout = min(max(1000, int(arguments.timeout_ms or TIMEOUT_MS)), MAX_TIMEOUT_MS)
        name = shortened(node.name)
        try:
            return await self._nodes.ask(node.node_id, command, params, timeout_ms=timeout, key=str(uuid.uuid4()))
        except NodeFailed as failed:
            if failed.failure == "NOT_ALLOWED":
                has = ", ".join(node.commands) or "none"
                raise ToolError(f"node {name} cannot be asked for {command}: {failed}. Its commands: {has}") from None
            raise ToolError(f"node {name}: {clipped(str(failed), 2000)}") from None


def _row(node: NodeFacts) -> dict[str, Any]:
    row: dict[str, Any] = {"nodeId": node.node_id, "name": node.name, "connected": node.connected}
    return {**row, "platform": node.platform, "commands": list(node.commands), "caps": list(node.caps)}


def _line(node: NodeFacts) -> str:
    state = "connected" if node.connected else "not connected"
    has = f"; commands: {', '.join(node.commands)}" if node.commands else ""
    return f"{shortened(node.name)} ({node.node_id[:12]}, {shortened(node.platform or '?')}): {state}{has}"


def _result(action: str, node: NodeFacts, payload: Any) -> ToolResult:
    return text_result(clipped(indented(payload), MOST_CHARS), {"action": action, "node": node.name})


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ToolError("the node sent a file that is not base64") from None
    if len(data) > MOST_MEDIA_BYTES:
        raise ToolError(f"the node sent more than {MOST_MEDIA_BYTES} bytes")
    return data
