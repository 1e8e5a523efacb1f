"""The nodes of a Gateway: those that are connected, those that are paired, and the commands of agents on them."""

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
from openclaw.gateway.nodes.runs import NodeRuns
from openclaw.storage.documents import DocumentStore
from openclaw.text import clipped, shortened
from openclaw.tools.node_calls import NodeFacts, UnknownNode

if TYPE_CHECKING:
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.server.handshake import ConnectParams

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
