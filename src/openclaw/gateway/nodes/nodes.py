"""The nodes of a Gateway: those that are connected, those that are paired, and the commands of agents on them.

Usually the answer of the node ends a command. If the node or the Gateway went away meanwhile, the node tells the
outcome later with ``node.event``, and the session that began the command is told then. ``nodes/runs.json`` names those
commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema.gateway import GatewayNodes
from openclaw.gateway.auth.devices import Devices, Record
from openclaw.gateway.auth.node_pairing import NodePairing
from openclaw.gateway.nodes.connected import ConnectedNodes, NodeConnection
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.text import clipped, shortened
from openclaw.tools.nodes import NodeFacts, UnknownNode

if TYPE_CHECKING:
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.server.handshake import ConnectParams


MAX_RUNS = 256
KEPT_MS = 24 * 3_600_000


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
        """Nobody waits for the answer any more. What the node tells later counts."""
        self._awaited.discard(run_id)

    async def find(self, run_id: str, node_id: str) -> NodeRun | None:
        """The run with this id, if this node was asked for it."""
        run = (await self._runs.current()).get(run_id)
        return run if run is not None and run.node_id == node_id else None

    def is_awaited(self, run_id: str) -> bool:
        """Whether somebody waits for the node's answer. What the node tells beside it is then no news."""
        return run_id in self._awaited


LEAST_PREFIX = 6
"""The fewest characters of an id that name a node."""
MOST_NAMED = 10
LONGEST_NAME = 200
LONGEST_PATH = 8000
MAX_CAPS = 100


class Nodes:
    """One noun for all of it. Tools use it as ``NodeCalls``."""

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
        """Whether there is a node at all. If not, agents are not told of nodes."""
        return bool(self.connected.count or self._paired())

    def joined(self, client: Client, connect: ConnectParams) -> None:
        """Takes in the connection of a node. Without a device there is nothing that a node could be known by."""
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
        found = {node_id: self._of_device(record) for node_id, record in paired.items()}
        for live in self.connected.all():
            name = self.pairing.name(live.node_id) or live.display_name
            found[live.node_id] = msgspec.structs.replace(
                live, display_name=name, paired=live.node_id in paired, connected=True
            )
        return sorted(found.values(), key=lambda node: (not node.connected, node.name.lower(), node.node_id))

    def find(self, node_id: str) -> NodeFacts | None:
        return next((node for node in self.all() if node.node_id == node_id), None)

    def name(self, node_id: str) -> str:
        node = self.find(node_id)
        return shortened(node.name if node else node_id[:12], LONGEST_NAME)

    def choose(self, wanted: str | None, command: str | None = None) -> NodeFacts:
        nodes = self.all()
        if not (wanted or "").strip():
            able = [node for node in nodes if node.connected and (command is None or command in node.commands)]
            if len(able) == 1:
                return able[0]
            if not able:
                raise UnknownNode("no node is connected to this Gateway" + (f" that has {command}" if command else ""))
            raise UnknownNode(f"several nodes are connected: {_named(able)}; say which")
        found = matching(nodes, (wanted or "").strip())
        if len(found) == 1:
            return found[0]
        shown = clipped(repr((wanted or "").strip()), LONGEST_NAME)
        if found:
            raise UnknownNode(f"several nodes are called {shown}: {_named(found)}; use the id")
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


def matching(nodes: list[NodeFacts], wanted: str) -> list[NodeFacts]:
    """The nodes with this id, address or name; else those whose id begins like this."""
    exact = [node for node in nodes if wanted in (node.node_id, node.remote_ip)]
    named = [node for node in nodes if node.display_name and _plain(node.display_name) == _plain(wanted)]
    prefix = [node for node in nodes if len(wanted) >= LEAST_PREFIX and node.node_id.startswith(wanted.lower())]
    return exact or named or prefix


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")


def _named(nodes: list[NodeFacts]) -> str:
    shown = [f"{shortened(node.name, LONGEST_NAME)} ({node.node_id[:12]})" for node in nodes[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else "")
