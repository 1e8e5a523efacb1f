"""The nodes of a Gateway: machines that carry out commands of its agents.

``ConnectedNodes`` asks a node only for commands that it declares and that its platform may have. A command that records
its surroundings, or writes to people, is in no platform's set; ``gateway.nodes.allowCommands`` adds such commands, and
``gateway.nodes.denyCommands`` removes commands and wins. A command is sent to one connection as
``node.invoke.request`` and answered by that connection with ``node.invoke.result``. It has exactly one end: the answer,
the end of its time, or the end of the connection. If the node or the Gateway went away meanwhile, the node reports the
outcome later with ``node.event``. ``NodeRuns`` stores in ``nodes/runs.json`` which session gets that report.

``NodeEvents`` handles what a node sends on its own initiative: commands that ended there, messages for the agent,
spoken words. A node is a device of the owner and still not the owner, so its text is a message like any other and
carries no commands. It starts turns in its own session ``node-<nodeId>``, in the main session, or in one that exists.
Their answers go nowhere, or to where the agent's main session was last written from. The report of a command goes to
the session that the command came from, whatever session the event names.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.config.schema.gateway import GatewayNodes
from openclaw.gateway.auth.devices import Devices, NodePairing, Record
from openclaw.gateway.server.frames import NotJson, decode_any
from openclaw.gateway.server.registry import MethodError
from openclaw.inbound.incoming import Incoming, client_facts
from openclaw.inbound.pipeline import Blocked
from openclaw.models.thinking import parse_level
from openclaw.protocol.result import Result
from openclaw.rights import NO_RIGHTS
from openclaw.scheduler.turns import INTERNAL_ROUTE
from openclaw.sessions.entry import BLOCKED
from openclaw.sessions.keys import DEFAULT_MAIN_KEY, SessionRef
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.storage.message_ledger import MessageBody
from openclaw.text import clipped, shortened
from openclaw.tools.nodes import SYSTEM_RUN, NodeFacts, NodeFailed, UnknownNode

if TYPE_CHECKING:
    from openclaw.gateway.auth.connect import ConnectParams
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.session_directory import SessionDirectory
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.scheduler.turns import ScheduledTurns
    from openclaw.sessions.system_events import SessionNotes

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
"""The commands allowed on each platform without a setting."""
_PREFIXES: dict[str, Platform] = {
    "ios": "ios",
    "android": "android",
    "mac": "macos",
    "darwin": "macos",
    "win": "windows",
    "linux": "linux",
}
_FAMILIES: dict[str, Platform] = {"iphone": "ios", "ipad": "ios", **_PREFIXES}
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
MAX_RUNS = 256
KEPT_MS = 24 * 3_600_000
LEAST_PREFIX = 6
"""The fewest characters of an id that name a node."""
MOST_NAMED = 10
LONGEST_PATH = 8000
MAX_CAPS = 100
LONGEST_WORDS = 20_000
LONGEST_OUTPUT = 2000
LONGEST_COMMAND = 300
_WORDS = uuid.UUID("0f9f0f1c-6f57-4c0e-8d0b-2f6a3a8e5b1d")
"""The namespace of the run ids of words that a node sent with a key."""


class Nodes:
    """All nodes: connected, paired and busy. Tools use it as ``NodeCalls``."""

    def __init__(
        self,
        documents: DocumentStore,
        clock: Clock,
        devices: Devices,
        broadcaster: Broadcaster,
        settings: Callable[[], GatewayNodes],
    ) -> None:
        self._clock = clock
        self._broadcaster = broadcaster
        self.connected = ConnectedNodes(clock, settings)
        self.pairing = NodePairing(documents, clock)
        self.runs = NodeRuns(documents, clock)
        self._devices = devices
        self.begin, self.end, self.leave = self.runs.begin, self.runs.end, self.runs.leave

    @property
    def any(self) -> bool:
        """Whether there is a node at all. If not, prompts do not mention nodes."""
        return bool(self.connected.count or self._paired())

    def joined(self, client: Client, connect: ConnectParams) -> None:
        """Register the connection of a node. A client without a device has no id that a node could have."""
        if client.role != "node" or client.device_id is None:
            return
        info = connect.client
        facts = NodeFacts(
            node_id=client.device_id,
            display_name=info.display_name,
            platform=info.platform,
            version=info.version,
            device_family=info.device_family,
            model_identifier=info.model_identifier,
            remote_ip=None if client.is_local else client.ip,
            caps=tuple(sorted({cap for cap in connect.caps[:MAX_CAPS] if len(cap) <= LONGEST_NAME})),
            commands=tuple(connect.commands),
            path_env=connect.path_env[:LONGEST_PATH] if connect.path_env else None,
            permissions=dict(list(connect.permissions.items())[:MAX_CAPS]) or None,
            connected_at_ms=self._clock.now_ms(),
        )
        send = partial(self._broadcaster.send_to, [client.conn_id])
        self.connected.joined(NodeConnection(client.conn_id, facts, send))

    def all(self) -> list[NodeFacts]:
        paired = self._paired()
        nodes = {node_id: self._of_device(record) for node_id, record in paired.items()}
        for live in self.connected.all():
            name = self.pairing.name(live.node_id) or live.display_name
            nodes[live.node_id] = msgspec.structs.replace(
                live, display_name=name, paired=live.node_id in paired, connected=True
            )
        return sorted(nodes.values(), key=lambda node: (not node.connected, node.name.lower(), node.node_id))

    def find(self, node_id: str) -> NodeFacts | None:
        return next((node for node in self.all() if node.node_id == node_id), None)

    def name(self, node_id: str) -> str:
        node = self.find(node_id)
        return shortened(node.name if node else node_id[:12], LONGEST_NAME)

    def choose(self, name: str | None, command: str | None = None) -> NodeFacts:
        nodes = self.all()
        if not (name or "").strip():
            able = [node for node in nodes if node.connected and (command is None or command in node.commands)]
            if len(able) == 1:
                return able[0]
            if not able:
                raise UnknownNode("no node is connected to this Gateway" + (f" that has {command}" if command else ""))
            raise UnknownNode(f"several nodes are connected: {_named(able)}; say which")
        matches = matching(nodes, (name or "").strip())
        if len(matches) == 1:
            return matches[0]
        shown = clipped(repr((name or "").strip()), LONGEST_NAME)
        if matches:
            raise UnknownNode(f"several nodes are called {shown}: {_named(matches)}; use the id")
        raise UnknownNode(
            f"there is no node {shown}" + (f"; there are: {_named(nodes)}" if nodes else "; none is paired")
        )

    async def ask(self, node_id: str, command: str, params: Any, *, timeout_ms: int, key: str) -> Any:
        answer = await self.connected.invoke(node_id, command, params, timeout_ms=timeout_ms, key=key)
        return answer.payload

    def _paired(self) -> dict[str, Record]:
        return {str(record["deviceId"]): record for record in self._devices.with_role("node")}

    def _of_device(self, record: Record) -> NodeFacts:
        node_id = str(record["deviceId"])
        name, platform, ip = (str(record.get(field) or "") or None for field in ("displayName", "platform", "remoteIp"))
        name = self.pairing.name(node_id) or name
        return NodeFacts(node_id=node_id, display_name=name, platform=platform, remote_ip=ip, paired=True)


def matching(nodes: list[NodeFacts], name: str) -> list[NodeFacts]:
    """Return the nodes with this id, address or name, else those whose id begins with it."""
    exact = [node for node in nodes if name in (node.node_id, node.remote_ip)]
    named = [node for node in nodes if node.display_name and _plain(node.display_name) == _plain(name)]
    prefix = [node for node in nodes if len(name) >= LEAST_PREFIX and node.node_id.startswith(name.lower())]
    return exact or named or prefix


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")


def _named(nodes: list[NodeFacts]) -> str:
    shown = [f"{shortened(node.name, LONGEST_NAME)} ({node.node_id[:12]})" for node in nodes[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else "")


# Connections and commands


class ConnectedNodes:
    """All connections of nodes. ``settings`` returns the current ``gateway.nodes``."""

    def __init__(self, clock: Clock, settings: Callable[[], GatewayNodes]) -> None:
        self._clock = clock
        self._settings = settings
        self._connections: dict[str, list[NodeConnection]] = {}
        self._invocations: dict[str, _Invocation] = {}
        self._calls: dict[tuple[str, str], _KeyedCall] = {}

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
            if staying := [connection for connection in connections if connection.conn_id != conn_id]:
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
        """Run a command on a node. Raises ``NodeFailed``.

        A second call with the same key joins the first one or gets its answer. If everybody who waits is cancelled,
        the node gets a cancel event.
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
        digest = hashlib.sha256(f"{command}\0{params_json}".encode()).digest()
        call = self._calls.get((node_id, key))
        if call is None:
            if sum(invocation.connection is connection for invocation in self._invocations.values()) >= MAX_PENDING:
                raise NodeFailed("BUSY", f"the node is busy with {MAX_PENDING} commands")
            wait_ms = min(timeout_ms or INVOKE_TIMEOUT_MS, MAX_TIMEOUT_MS)
            task = asyncio.create_task(self._carry_out(connection, command, params_json, wait_ms, key))
            call = self._calls[node_id, key] = _KeyedCall(digest, task)
            task.add_done_callback(lambda done: self._ended(node_id, key, done))
        elif call.digest != digest:
            raise NodeFailed("INVALID", "idempotencyKey was used for another call")
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            if not call.waiting and not call.task.done():
                call.task.cancel()

    def answered(self, conn_id: str, id: str, end: NodeAnswer | NodeFailed) -> bool:
        """Accept the answer of a node. Returns False if nobody waits for it, or another node was asked."""
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
        call = self._calls.get((node_id, key))
        if call is None:
            return
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or (error is not None and not _is_final(error)):
            del self._calls[node_id, key]  # It may be sent again. The node also recognises the key.
            return
        call.ended_at = self._clock.monotonic()
        call.size = 0 if error else len(task.result().payload_json or msgspec.json.encode(task.result().payload))

    def _forget_old(self) -> None:
        over = [(name, call) for name, call in self._calls.items() if call.ended_at is not None]
        size, oldest = sum(call.size for _, call in over), self._clock.monotonic() - KNOWN_S
        for name, call in over:
            too_many = len(self._calls) >= MAX_KNOWN or size > MAX_KNOWN_BYTES
            if too_many or (call.ended_at or 0) < oldest:
                del self._calls[name]
                size -= call.size


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


class _KeyedCall:
    """A call by its idempotency key, while it runs and a while after it."""

    def __init__(self, digest: bytes, task: asyncio.Task[NodeAnswer]) -> None:
        self.digest = digest
        self.task = task
        self.waiting = 0
        self.ended_at: float | None = None
        self.size = 0


def _is_final(error: BaseException) -> bool:
    return isinstance(error, NodeFailed) and error.failure == "NODE"


class NodeConnection(msgspec.Struct, frozen=True):
    conn_id: str
    facts: NodeFacts
    send: Callable[[str, Any], None]
    """Sends an event to this connection."""


class NodeAnswer(msgspec.Struct, frozen=True):
    payload: Any = None
    payload_json: str | None = None
    """The answer as the node wrote it, if it came as a text."""


def answer_of(
    ok: bool, payload: Any, payload_json: str | None, error: dict[str, Any] | None
) -> NodeAnswer | NodeFailed:
    """Read the parameters of ``node.invoke.result``."""
    if not ok:
        fields = {name: clipped(str(value), ERROR_CHARS) for name, value in (error or {}).items() if value is not None}
        return NodeFailed("NODE", fields.get("message") or "node invoke failed", node_error=fields)
    if payload_json is None:
        return NodeAnswer(payload)
    try:
        return NodeAnswer(decode_any(payload_json.encode()), payload_json)
    except NotJson:
        return NodeAnswer(None, payload_json)


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
    """Return the commands allowed on this platform, under ``allowCommands`` and ``denyCommands``."""
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


class NodeRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    node_id: str
    agent_run_id: str
    """The run of the agent that began the command."""
    at: int


class NodeRuns:
    """The runs by their ids. What ``begin`` and ``end`` change is on disk when they return."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._clock = clock
        self._runs: SharedDocument[dict[str, NodeRun]] = SharedDocument(
            documents,
            "nodes/runs.json",
            dict,
            lambda data: msgspec.json.decode(data, type=dict[str, NodeRun]),
            msgspec.json.encode,
            damaged="drop",
            consequence="outcomes of commands on nodes may not be told",
        )
        self._awaited: set[str] = set()

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None:
        """Notes a command before it is sent."""
        now = self._clock.now_ms()

        def note(runs: dict[str, NodeRun]) -> list[str]:
            gone = [id for id, run in runs.items() if run.at <= now - KEPT_MS]
            gone += [id for id in runs if id not in gone][: max(0, len(runs) - len(gone) + 1 - MAX_RUNS)]
            for id in gone:
                del runs[id]
            runs[run_id] = NodeRun(node_id=node_id, agent_run_id=agent_run_id, at=now)
            return gone

        self._awaited.add(run_id)
        try:
            self._awaited.difference_update(await self._runs.change(note))
        except BaseException:
            self._awaited.discard(run_id)
            raise

    async def end(self, run_id: str) -> None:
        """Forgets a command whose outcome is known."""
        self._awaited.discard(run_id)
        await self._runs.change(lambda runs: runs.pop(run_id, None))

    def leave(self, run_id: str) -> None:
        """Stop waiting; a late report from the node is still accepted."""
        self._awaited.discard(run_id)

    async def find(self, run_id: str, node_id: str) -> NodeRun | None:
        """The run with this id, if this node was asked for it."""
        run = (await self._runs.current()).get(run_id)
        return run if run is not None and run.node_id == node_id else None

    def is_awaited(self, run_id: str) -> bool:
        """Return whether somebody waits for the node's answer. A report besides it is then redundant."""
        return run_id in self._awaited


# Events of nodes


class ExecEvent(msgspec.Struct, kw_only=True, rename="camel"):
    run_id: str = ""
    command: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    output: str | None = None
    reason: str | None = None


class Words(msgspec.Struct, kw_only=True, rename="camel"):
    """The payload of ``agent.request`` (``message``) and of ``voice.transcript`` (``text``)."""

    message: str = ""
    text: str = ""
    session_key: str | None = None
    thinking: str | None = None
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    timeout_seconds: float | None = None
    key: str | None = None
    """The same words with the same key are taken once."""


def exec_text(event: str, node: str, outcome: ExecEvent) -> str:
    command = clipped(" ".join(outcome.command.split()), LONGEST_COMMAND)
    named = f"node={node}, id={clipped(outcome.run_id, 80)}"
    if event == "exec.started":
        return f"Exec started ({named}): {command}"
    if event == "exec.denied":
        return f"Exec denied ({named}, {clipped(outcome.reason or 'denied', 200)}): {command}"
    how = "timeout" if outcome.timed_out else f"code {'?' if outcome.exit_code is None else outcome.exit_code}"
    output = (outcome.output or "").strip()[-LONGEST_OUTPUT:]
    return f"Exec finished ({named}, {how})" + (f"\n{output}" if output else f": {command}")


class NodeAck(Result):
    """The answer to what a node sent."""

    ok: bool
    ignored: bool = False
    """Whether nobody waits for it, or the event has no meaning here."""
    run_id: str = ""
    """The run that it started."""


IGNORED = NodeAck(True, ignored=True)


class NodeEvents:
    """Handles the events that nodes send on their own initiative."""

    def __init__(
        self,
        nodes: Nodes,
        directory: SessionDirectory,
        notes: SessionNotes,
        pipeline: Pipeline,
        turns: ScheduledTurns,
    ) -> None:
        self._nodes = nodes
        self._directory = directory
        self._notes = notes
        self._pipeline = pipeline
        self._turns = turns

    async def receive(self, node_id: str, event: str, payload: Any) -> NodeAck:
        """Handle an event and return the answer. Events without a meaning here are answered as ignored."""
        try:
            if event in ("exec.started", "exec.finished", "exec.denied"):
                return await self._exec_event(node_id, event, msgspec.convert(payload or {}, ExecEvent))
            if event in ("agent.request", "voice.transcript"):
                return await self._start_turn(node_id, event, msgspec.convert(payload or {}, Words))
        except msgspec.ValidationError as error:
            raise MethodError(f"invalid {event} payload: {clipped(str(error), 200)}") from None
        # chat.subscribe and the like: nodes get no events of conversations.
        return IGNORED

    async def _exec_event(self, node_id: str, event: str, outcome: ExecEvent) -> NodeAck:
        runs, notes = self._nodes.runs, self._notes
        run = await runs.find(outcome.run_id, node_id)
        if run is not None and runs.is_awaited(outcome.run_id):
            return NodeAck(True)
        text = exec_text(event, self._nodes.name(node_id), outcome)
        if run is None:
            notes.put(self._own_session(node_id).key, text)
            await notes.synced()
            return NodeAck(True)
        if event == "exec.started":
            return NodeAck(True)
        own_id = str(uuid.uuid5(_WORDS, f"{node_id}:{outcome.run_id}"))
        await self._pipeline.wake(run.agent_run_id, text, own_id)
        await runs.end(outcome.run_id)
        return NodeAck(True)

    def _own_session(self, node_id: str) -> SessionRef:
        return self._directory.target(f"node-{node_id}")

    async def _start_turn(self, node_id: str, event: str, words: Words) -> NodeAck:
        """Start a turn with the message of a node."""
        spoken = event == "voice.transcript"
        text = (words.text if spoken else words.message).strip()
        if not text:
            return IGNORED
        if len(text) > LONGEST_WORDS:
            raise MethodError(f"{event}: the text may have {LONGEST_WORDS} characters")
        session = await self._session_for(node_id, words, spoken)
        route = INTERNAL_ROUTE
        if words.deliver and not spoken:
            target = await self._turns.target(session.agent_id, words.channel, words.to)
            if target.problem:
                raise MethodError(f"{event}: {target.problem}")
            # Otherwise somebody who took over the node could send conversations of the agent to anybody.
            if target.route != (await self._turns.target(session.agent_id, None, None)).route:
                raise MethodError(
                    f"{event}: a node cannot choose who gets the answer; it goes where you last wrote from"
                )
            route = target.route
        run_id = str(uuid.uuid5(_WORDS, f"{node_id}:{words.key}") if words.key else uuid.uuid4())
        message = Incoming(
            facts=client_facts(session, NO_RIGHTS, sender_ids=(node_id,), sender_username=self._nodes.name(node_id)),
            text=text,
            door="chat",
            run_id=run_id,
            source="node",
            route=route,
            reads_commands=False,
            message_id=run_id,
            body=MessageBody(
                guest=True,
                thinking=parse_level(words.thinking or "") if words.thinking else None,
                timeout_seconds=words.timeout_seconds,
            ),
        )
        if isinstance(await self._pipeline.process(message), Blocked):
            raise MethodError(BLOCKED)
        return NodeAck(True, run_id=run_id)

    async def _session_for(self, node_id: str, words: Words, spoken: bool) -> SessionRef:
        main = self._directory.target(DEFAULT_MAIN_KEY)
        own = self._own_session(node_id)
        if not (words.session_key or "").strip():
            return main if spoken else own
        session = self._directory.target((words.session_key or "").strip())
        self._directory.require_agent(session.agent_id)
        if session not in (main, own) and await self._directory.entry(session) is None:
            raise MethodError("unknown session key")
        return session
