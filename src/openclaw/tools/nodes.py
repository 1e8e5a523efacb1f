"""Nodes as tools know them: other machines that carry out commands, and the ``nodes`` tool that asks them.

A node is asked only for what it declares and what ``gateway.nodes`` allows. Commands run under the rules of ``exec``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shlex
import uuid
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.messages import ToolSpec, UserBlock
from openclaw.pictures import ImageProblem, fit_image, off_loop, sniff_image
from openclaw.text import clipped, shortened
from openclaw.tools.base import ToolContext, ToolError, ToolResult, indented, text_result

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
    """What is known of a node. Of one that is not connected, its name and platform are."""

    node_id: str
    display_name: str | None = None
    platform: str | None = None
    version: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    remote_ip: str | None = None
    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """What it may be asked for."""
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

    def all(self) -> list[NodeFacts]:
        """Every node that is paired or connected. Connected ones come first."""
        ...

    def choose(self, wanted: str | None, command: str | None = None) -> NodeFacts:
        """The node that is meant, by id, name or address. Without ``wanted`` it is the only one that has the command.

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
_ACTIONS = ("status", "describe", "notify", "run", *SENSORS)
_PASSED = (
    *("facing", "maxWidth", "quality", "delayMs", "deviceId", "durationMs", "fps", "screenIndex", "includeAudio"),
    *("maxAgeMs", "desiredAccuracy"),
)


class RunsOnNode(Protocol):
    """The ``exec`` tool, as this one needs it."""

    async def run_on_node(self, text: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult: ...


class NodesTool:
    summary = "List paired nodes, notify on them, run commands there, use their camera, screen and location"
    spec = ToolSpec(
        name="nodes",
        description=(
            "Paired nodes are other machines of the owner. Actions: status (all nodes), describe, notify (title, "
            "body), run (command as a list of words, under the rules of exec), camera_list, camera_snap, "
            "screen_record, location_get. A node has only the commands that describe lists."
        ),
        parameters={
            "type": "object",
            "required": ["action"],
            "properties": {
                "action": {"type": "string", "enum": [*_ACTIONS]},
                "node": {"type": "string", "description": "Name or id; may be left out if there is one"},
                "title": {"type": "string"},
                "body": {"type": "string"},
                "command": {"type": "array", "items": {"type": "string"}},
                "cwd": {"type": "string"},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "commandTimeoutMs": {"type": "number"},
                "timeoutMs": {"type": "number", "description": "Milliseconds to wait for the node"},
                "facing": {"type": "string", "enum": ["front", "back"]},
                "maxWidth": {"type": "number"},
                "quality": {"type": "number"},
                "deviceId": {"type": "string"},
                "durationMs": {"type": "number"},
                "screenIndex": {"type": "number"},
                "maxAgeMs": {"type": "number"},
                "desiredAccuracy": {"type": "string", "enum": ["coarse", "balanced", "precise"]},
            },
        },
    )

    def __init__(self, nodes: NodeCalls, exec_tool: RunsOnNode | None) -> None:
        """Without ``exec_tool`` the agent may not run commands, on nodes either."""
        self._nodes = nodes
        self._exec = exec_tool

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        action = str(arguments.get("action") or "").strip()
        try:
            match action:
                case "status":
                    return self._status()
                case "describe":
                    node = self._nodes.choose(arguments.get("node"))
                    return _told(action, node, msgspec.to_builtins(node))
                case "notify":
                    return await self._notify(arguments)
                case "run":
                    return await self._run(arguments, context)
                case _ if action in SENSORS:
                    return await self._sense(action, arguments, context)
                case _:
                    raise ToolError(f"Unknown action {shortened(action)!r}; known: {', '.join(_ACTIONS)}")
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

    async def _notify(self, arguments: dict[str, Any]) -> ToolResult:
        title, body = (str(arguments.get(name) or "").strip() for name in ("title", "body"))
        if not title and not body:
            raise ToolError("notify needs a title or a body")
        node = self._nodes.choose(arguments.get("node"), "system.notify")
        payload = await self._ask(node, "system.notify", {"title": title, "body": body}, arguments)
        return _told("notify", node, payload if payload is not None else {"ok": True})

    async def _run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if self._exec is None:
            raise ToolError("run is not allowed: this session may not run commands outside of its own place")
        words = arguments.get("command")
        if not isinstance(words, list) or not words:
            raise ToolError('run needs a command, as a list of words such as ["uname", "-a"]')
        timeout = arguments.get("commandTimeoutMs")
        wanted = {"node": arguments.get("node"), "workdir": arguments.get("cwd"), "env": arguments.get("env")}
        wanted["timeout"] = timeout / 1000 if timeout else None
        return await self._exec.run_on_node(shlex.join(map(str, words)), wanted, context)

    async def _sense(self, action: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        command = SENSORS[action]
        if not context.caller.may("devices"):
            raise ToolError(f"{action} is for the owner's own conversations; {context.caller.described} has none of it")
        node = self._nodes.choose(arguments.get("node"), command)
        params = {name: arguments[name] for name in _PASSED if arguments.get(name) is not None}
        payload = await self._ask(node, command, params, arguments)
        if not isinstance(payload, dict) or not isinstance(payload.get("base64"), str):
            return _told(action, node, payload)
        facts = {name: value for name, value in payload.items() if name != "base64"}
        data = _decoded(payload["base64"])
        if (mime := sniff_image(data)) and context.model_sees_images:
            try:
                fitted = await off_loop(lambda: fit_image(data, mime))
            except ImageProblem as problem:
                raise ToolError(f"the picture of node {shortened(node.name)} is left out: {problem}") from None
            told = _told(action, node, facts)
            content: list[UserBlock] = [*told.content, fitted.block]
            return ToolResult(content=content, details=told.details)
        kind = str(payload.get("format") or "bin").lower()
        suffix = kind if kind.isalnum() and len(kind) <= 5 else "bin"
        path = f"nodes/{command.replace('.', '-')}-{uuid.uuid4().hex[:8]}.{suffix}"

        def save() -> None:
            with context.opener.open_write_atomic(path) as file:
                file.write(data)

        await asyncio.to_thread(save)
        return _told(action, node, {**facts, "path": path, "bytes": len(data)})

    async def _ask(self, node: NodeFacts, command: str, params: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Raises ``ToolError`` with what the node or the Gateway said."""
        timeout = min(max(1000, int(arguments.get("timeoutMs") or TIMEOUT_MS)), MAX_TIMEOUT_MS)
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


def _told(action: str, node: NodeFacts, payload: Any) -> ToolResult:
    return text_result(clipped(indented(payload), MOST_CHARS), {"action": action, "node": node.name})


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ToolError("the node sent a file that is not base64") from None
    if len(data) > MOST_MEDIA_BYTES:
        raise ToolError(f"the node sent more than {MOST_MEDIA_BYTES} bytes")
    return data
