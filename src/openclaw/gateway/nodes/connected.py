"""The nodes that are connected, which commands they may be asked for, and the commands they were asked to carry out.

A node is asked for what it declares and what its platform may have. A command that records its surroundings, or writes
to people, is in no platform's set. ``gateway.nodes.allowCommands`` adds such commands, ``gateway.nodes.denyCommands``
takes commands away and wins. A command is sent to one connection as ``node.invoke.request`` and answered by that
connection with ``node.invoke.result``. It has exactly one end: the answer, the end of its time, or the end of the
connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.config.schema.gateway import GatewayNodes
from openclaw.gateway.server.params import NotJson, decode_any
from openclaw.text import clipped
from openclaw.tools.nodes import SYSTEM_RUN, NodeFacts, NodeFailed

RULES_GET = "system.execApprovals.get"
RULES_SET = "system.execApprovals.set"
OWN_METHODS = frozenset({RULES_GET, RULES_SET})
"""Commands that have methods of their own, which need more than ``node.invoke`` does."""
LONGEST_NAME = 200
MAX_DECLARED = 256

_SYSTEM = frozenset({SYSTEM_RUN, "system.which", "system.notify", RULES_GET, RULES_SET, "browser.proxy"})
_CANVAS = frozenset(
    f"canvas.{name}"
    for name in ("present", "hide", "navigate", "eval", "snapshot", "a2ui.push", "a2ui.pushJSONL", "a2ui.reset")
)
_HANDHELD = _CANVAS | {
    *("camera.list", "location.get", "device.info", "device.status", "contacts.search", "calendar.events"),
    *("reminders.list", "photos.latest", "motion.activity", "motion.pedometer"),
}
Platform: TypeAlias = Literal["ios", "android", "macos", "linux", "windows", "unknown"]
USUAL: dict[Platform, frozenset[str]] = {
    "ios": _HANDHELD | {"system.notify"},
    "android": _HANDHELD,
    "macos": _HANDHELD | _SYSTEM,
    "linux": _SYSTEM,
    "windows": _SYSTEM,
    "unknown": _CANVAS | _SYSTEM | {"camera.list", "location.get"},
}
"""What a node of each platform may be asked for without a setting."""
_PREFIXES: dict[str, Platform] = {
    "ios": "ios",
    "android": "android",
    "mac": "macos",
    "darwin": "macos",
    "win": "windows",
    "linux": "linux",
}
_FAMILIES: dict[str, Platform] = {"iphone": "ios", "ipad": "ios", **_PREFIXES}


def platform_of(platform: str, family: str | None = None) -> Platform:
    """The platform that a node names: by how its platform begins, else by its device family."""
    named, kind = platform.strip().lower(), (family or "").strip().lower()
    for prefix, meant in _PREFIXES.items():
        if named.startswith(prefix):
            return meant
    for word, meant in _FAMILIES.items():
        if word in kind:
            return meant
    return "unknown"


def permitted(platform: Platform, allow: Iterable[str], deny: Iterable[str]) -> frozenset[str]:
    """What a node of this platform may be asked for, under ``allowCommands`` and ``denyCommands``."""
    added = {name.strip() for name in allow}
    return (USUAL[platform] | added) - {name.strip() for name in deny} - {""}


def declared(commands: Iterable[str], may: Collection[str]) -> tuple[str, ...]:
    """The commands that a node says it has, as far as it may be asked for them."""
    names = dict.fromkeys(name.strip() for name in commands)
    return tuple(sorted(name for name in list(names)[:MAX_DECLARED] if name in may and len(name) <= LONGEST_NAME))


def refusal(command: str, has: Collection[str], may: Collection[str]) -> str | None:
    """Why a node is not asked for a command, or None."""
    if command not in may:
        return "command not allowlisted"
    if not has:
        return "node did not declare commands"
    return None if command in has else "command not declared by node"


INVOKE_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 24 * 3_600_000
MAX_NODES = 100
MAX_PENDING = 64
"""Commands that one node may be busy with."""
MAX_PARAMS_BYTES = 256 * 1024
MAX_KNOWN = 256
MAX_KNOWN_BYTES = 4 * 1024 * 1024
KNOWN_S = 300.0
"""A repeated call with the same key gets the answer of the first one for this long."""
ERROR_CHARS = 4000


class NodeAnswer(msgspec.Struct, frozen=True):
    payload: Any = None
    payload_json: str | None = None
    """The answer as the node wrote it, if it came as a text."""


class NodeConnection(msgspec.Struct, frozen=True):
    conn_id: str
    facts: NodeFacts
    send: Callable[[str, Any], None]
    """Sends an event to this connection."""


class _Invocation:
    """One command that a node was asked for."""

    def __init__(self, connection: NodeConnection, command: str) -> None:
        self.id = str(uuid.uuid4())
        self.connection = connection
        self.command = command
        self.ended = asyncio.Event()
        self.end: NodeAnswer | NodeFailed | None = None

    def settle(self, end: NodeAnswer | NodeFailed) -> None:
        if self.end is None:
            self.end = end
            self.ended.set()


class _Known:
    """A call by its idempotency key, while it runs and a while after it."""

    def __init__(self, asked: bytes, task: asyncio.Task[NodeAnswer]) -> None:
        self.asked = asked
        self.task = task
        self.waiting = 0
        self.ended_at: float | None = None
        self.size = 0


class ConnectedNodes:
    """All connections of nodes. ``settings`` returns the current ``gateway.nodes``."""

    def __init__(self, clock: Clock, settings: Callable[[], GatewayNodes]) -> None:
        self._clock = clock
        self._settings = settings
        self._connections: dict[str, list[NodeConnection]] = {}
        self._invocations: dict[str, _Invocation] = {}
        self._known: dict[tuple[str, str], _Known] = {}

    # Connections

    def has_room(self, node_id: str) -> bool:
        return node_id in self._connections or len(self._connections) < MAX_NODES

    @property
    def count(self) -> int:
        return len(self._connections)

    def joined(self, connection: NodeConnection) -> None:
        """The newest connection of a node serves it. An older one takes over again when the newer one ends."""
        self._connections.setdefault(connection.facts.node_id, []).append(connection)

    def left(self, conn_id: str) -> None:
        """Ends what the connection was asked for."""
        for node_id, connections in list(self._connections.items()):
            if staying := [one for one in connections if one.conn_id != conn_id]:
                self._connections[node_id] = staying
            else:
                del self._connections[node_id]
        for invocation in list(self._invocations.values()):
            if invocation.connection.conn_id == conn_id:
                text = f"node disconnected before it answered ({invocation.command})"
                invocation.settle(NodeFailed("NOT_CONNECTED", text, interrupted=True))

    def get(self, node_id: str) -> NodeFacts | None:
        connection = self._newest(node_id)
        return self._shown(connection.facts) if connection else None

    def all(self) -> list[NodeFacts]:
        return [self._shown(connections[-1].facts) for connections in self._connections.values()]

    def _newest(self, node_id: str) -> NodeConnection | None:
        connections = self._connections.get(node_id)
        return connections[-1] if connections else None

    def _may(self, facts: NodeFacts) -> frozenset[str]:
        settings = self._settings()
        return permitted(
            platform_of(facts.platform or "", facts.device_family), settings.allow_commands, settings.deny_commands
        )

    def _shown(self, facts: NodeFacts) -> NodeFacts:
        """The node with the commands that it may be asked for now. The configuration may have changed meanwhile."""
        return msgspec.structs.replace(facts, commands=declared(facts.commands, self._may(facts)))

    # Commands

    async def invoke(
        self, node_id: str, command: str, params: Any = None, *, timeout_ms: int | None = None, key: str
    ) -> NodeAnswer:
        """Has a node carry out a command. Raises ``NodeFailed``.

        A second call with the same key joins the first one or gets its answer. If everybody who waits is cancelled,
        the node is told to stop.
        """
        connection = self._newest(node_id)
        if connection is None:
            raise NodeFailed("NOT_CONNECTED", "node not connected")
        facts = connection.facts
        if why := refusal(command, declared(facts.commands, self._may(facts)), self._may(facts)):
            raise NodeFailed("NOT_ALLOWED", why)
        params_json = None if params is None else msgspec.json.encode(params).decode()
        if params_json is not None and len(params_json) > MAX_PARAMS_BYTES:
            raise NodeFailed("INVALID", f"params may have {MAX_PARAMS_BYTES} bytes")
        self._forget_old()
        asked = hashlib.sha256(f"{command}\0{params_json}".encode()).digest()
        known = self._known.get((node_id, key))
        if known is None:
            if sum(one.connection is connection for one in self._invocations.values()) >= MAX_PENDING:
                raise NodeFailed("BUSY", f"the node is busy with {MAX_PENDING} commands")
            wait_ms = min(timeout_ms or INVOKE_TIMEOUT_MS, MAX_TIMEOUT_MS)
            task = asyncio.create_task(self._carry_out(connection, command, params_json, wait_ms, key))
            known = self._known[node_id, key] = _Known(asked, task)
            task.add_done_callback(lambda done: self._ended(node_id, key, done))
        elif known.asked != asked:
            raise NodeFailed("INVALID", "idempotencyKey was used for another call")
        known.waiting += 1
        try:
            return await asyncio.shield(known.task)
        finally:
            known.waiting -= 1
            if not known.waiting and not known.task.done():
                known.task.cancel()

    def answered(self, conn_id: str, id: str, end: NodeAnswer | NodeFailed) -> bool:
        """Takes the answer of a node. Returns False when nobody waits for it, or another node was asked."""
        invocation = self._invocations.get(id)
        if invocation is None or invocation.connection.conn_id != conn_id:
            return False
        invocation.settle(end)
        return True

    async def _carry_out(
        self, connection: NodeConnection, command: str, params_json: str | None, timeout_ms: int, key: str
    ) -> NodeAnswer:
        invocation = _Invocation(connection, command)
        self._invocations[invocation.id] = invocation
        request = {"id": invocation.id, "nodeId": connection.facts.node_id, "command": command}
        request |= {"paramsJSON": params_json, "timeoutMs": timeout_ms, "idempotencyKey": key}
        try:
            connection.send("node.invoke.request", request)
            await wait_within(invocation.ended, timeout_ms / 1000, self._clock)
        finally:
            del self._invocations[invocation.id]
            if invocation.end is None:
                connection.send("node.invoke.cancel", {"id": invocation.id, "nodeId": connection.facts.node_id})
        if invocation.end is None:
            text = f"node invoke timed out after {timeout_ms} ms ({command})"
            raise NodeFailed("TIMEOUT", text, interrupted=True)
        if isinstance(invocation.end, NodeFailed):
            raise invocation.end
        return invocation.end

    def _ended(self, node_id: str, key: str, task: asyncio.Task[NodeAnswer]) -> None:
        known = self._known.get((node_id, key))
        if known is None:
            return
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or (error is not None and not _is_final(error)):
            del self._known[node_id, key]  # It may be asked again. The node knows the key, too.
            return
        known.ended_at = self._clock.monotonic()
        known.size = 0 if error else len(task.result().payload_json or msgspec.json.encode(task.result().payload))

    def _forget_old(self) -> None:
        over = [(name, known) for name, known in self._known.items() if known.ended_at is not None]
        size, oldest = sum(known.size for _, known in over), self._clock.monotonic() - KNOWN_S
        for name, known in over:
            too_many = len(self._known) >= MAX_KNOWN or size > MAX_KNOWN_BYTES
            if too_many or (known.ended_at or 0) < oldest:
                del self._known[name]
                size -= known.size


def _is_final(error: BaseException) -> bool:
    return isinstance(error, NodeFailed) and error.failure == "NODE"


def answer_of(
    ok: bool, payload: Any, payload_json: str | None, error: dict[str, Any] | None
) -> NodeAnswer | NodeFailed:
    """What the parameters of ``node.invoke.result`` say."""
    if not ok:
        told = {name: clipped(str(value), ERROR_CHARS) for name, value in (error or {}).items() if value is not None}
        return NodeFailed("NODE", told.get("message") or "node invoke failed", node_error=told)
    if payload_json is None:
        return NodeAnswer(payload)
    try:
        return NodeAnswer(decode_any(payload_json.encode()), payload_json)
    except NotJson:
        return NodeAnswer(None, payload_json)
