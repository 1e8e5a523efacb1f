"""Nodes that asked to be paired, nodes that are, and the names people gave to nodes: the folder ``nodes/``.

A node that connects over the WebSocket is paired as a device. ``node.pair.*`` is the older way, for programs that ask
for a node's token on its behalf. Records are plain mappings, so that fields written by other versions survive.
"""

from __future__ import annotations

import secrets
import uuid

from openclaw.clock import Clock
from openclaw.gateway.auth.devices import MAX_PENDING, PENDING_TTL_MS, Record, number_in, records_document
from openclaw.gateway.auth.shared_auth import same_secret
from openclaw.storage.documents import DocumentStore

MAX_PAIRED = 1000
MAX_NAMES = 1000


class TooManyNodes(Exception):
    """No further node can be paired."""


class NodePairing:
    """Owns the three documents. Every change is on disk before it is answered."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._clock = clock
        self._pending = records_document(documents, "nodes/pending.json")
        self._paired = records_document(documents, "nodes/paired.json")
        self._names = records_document(documents, "nodes/names.json")

    async def load(self) -> None:
        """Reads what is new, also what another Gateway has changed."""
        for document in (self._pending, self._paired, self._names):
            await document.latest()

    def listing(self) -> dict[str, list[Record]]:
        """Both lists, newest first, without tokens."""
        pending = sorted(self._alive(self._pending.value).values(), key=lambda record: -number_in(record, "ts"))
        paired = sorted(self._paired.value.values(), key=lambda record: -number_in(record, "approvedAtMs"))
        return {"pending": pending, "paired": [without_token(record) for record in paired]}

    def paired(self, node_id: str) -> Record | None:
        return self._paired.value.get(node_id)

    def name(self, node_id: str) -> str | None:
        """The name that a person gave to the node."""
        named = self._names.value.get(node_id, {}), self._paired.value.get(node_id, {})
        given = named[0].get("displayName") or named[1].get("displayName")
        return str(given) if given else None

    async def request(self, node_id: str, facts: Record) -> tuple[Record, bool]:
        """The node's pending request and whether it is new."""
        is_repair = node_id in await self._paired.current()

        def ask(pending: dict[str, Record]) -> tuple[Record, bool]:
            alive = self._alive(pending)
            for record in alive.values():
                if record.get("nodeId") == node_id:
                    return record, False
            pending.clear()
            pending.update(alive)
            while len(pending) >= MAX_PENDING:
                del pending[next(iter(pending))]
            record: Record = {"requestId": str(uuid.uuid4()), "nodeId": node_id}
            record |= {name: value for name, value in facts.items() if value is not None}
            record |= {"isRepair": is_repair, "ts": self._clock.now_ms()}
            pending[record["requestId"]] = record
            return record, True

        return await self._pending.change(ask)

    async def approve(self, request_id: str) -> Record | None:
        """Pairs the node with a new token and returns it. Raises ``TooManyNodes``."""
        request = self._alive(await self._pending.current()).get(request_id)
        if request is None:
            return None
        node = await self._paired.change(lambda paired: self._pair(paired, request))
        # A crash before this leaves a request that can be approved again, and then gives another token.
        await self._pending.change(lambda pending: pending.pop(request_id, None))
        return node

    def _pair(self, paired: dict[str, Record], request: Record) -> Record:
        node_id, now = request["nodeId"], self._clock.now_ms()
        if node_id not in paired and len(paired) >= MAX_PAIRED:
            raise TooManyNodes(f"{MAX_PAIRED} nodes are paired already")
        before = paired.get(node_id, {})
        told = {name: value for name, value in request.items() if name not in _OF_REQUEST}
        node = {**before, **told, "token": secrets.token_hex(16), "approvedAtMs": now}
        node["createdAtMs"] = before.get("createdAtMs", now)
        paired[node_id] = node
        return node

    async def reject(self, request_id: str) -> Record | None:
        request = self._alive(await self._pending.current()).get(request_id)
        if request is not None:
            await self._pending.change(lambda pending: pending.pop(request_id, None))
        return request

    def verify(self, node_id: str, token: str) -> Record | None:
        """The node, if this is its token."""
        node = self._paired.value.get(node_id)
        known = str(node.get("token") or "") if node else ""
        return node if known and same_secret(known, token) else None

    async def rename(self, node_id: str, name: str) -> None:
        def of_pairing(paired: dict[str, Record]) -> None:
            if node_id in paired:
                paired[node_id] = {**paired[node_id], "displayName": name}

        def of_node(names: dict[str, Record]) -> None:
            names.pop(node_id, None)
            while len(names) >= MAX_NAMES:
                del names[next(iter(names))]
            names[node_id] = {"displayName": name}

        await self._paired.change(of_pairing)
        await self._names.change(of_node)

    def _alive(self, pending: dict[str, Record]) -> dict[str, Record]:
        oldest = self._clock.now_ms() - PENDING_TTL_MS
        return {key: record for key, record in pending.items() if number_in(record, "ts") >= oldest}


_OF_REQUEST = frozenset({"requestId", "isRepair", "ts", "silent"})


def without_token(node: Record) -> Record:
    return {name: value for name, value in node.items() if name != "token"}
