"""Nodes that asked to be paired, nodes that are, and the names people gave to nodes: the folder ``nodes/``.

A node that connects over the WebSocket is paired as a device. ``node.pair.*`` is the older way, for programs that ask
for a node's token on its behalf. Records are plain mappings, so that fields written by other versions survive.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from openclaw.clock import Clock
from openclaw.gateway.auth.devices import (
    MAX_PENDING,
    PENDING_TTL_MS,
    Record,
    number_in,
    read_records,
    write_private_json,
)
from openclaw.gateway.auth.shared_auth import same_secret

MAX_PAIRED = 1000
MAX_NAMES = 1000


class TooManyNodes(Exception):
    """No further node can be paired."""


class NodePairing:
    """Owns the three files. Every change is on disk before it is answered."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._dir = Path(state_dir) / "nodes"
        self._clock = clock
        self._pending: dict[str, Record] = {}
        self._paired: dict[str, Record] = {}
        self._names: dict[str, Record] = {}
        self._loaded = False
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def _change(self) -> AsyncGenerator[None]:
        """Holds the files. The first change reads them, because a write without that would lose the old records."""
        async with self._changing:
            if not self._loaded:
                self._pending = await asyncio.to_thread(read_records, self._dir / "pending.json")
                self._paired = await asyncio.to_thread(read_records, self._dir / "paired.json")
                self._names = await asyncio.to_thread(read_records, self._dir / "names.json")
                self._loaded = True
            yield

    async def load(self) -> None:
        async with self._change():
            pass

    def listing(self) -> dict[str, list[Record]]:
        """Both lists, newest first, without tokens."""
        pending = sorted(self._alive().values(), key=lambda record: -number_in(record, "ts"))
        paired = sorted(self._paired.values(), key=lambda record: -number_in(record, "approvedAtMs"))
        return {"pending": pending, "paired": [without_token(record) for record in paired]}

    def paired(self, node_id: str) -> Record | None:
        return self._paired.get(node_id)

    def name(self, node_id: str) -> str | None:
        """The name that a person gave to the node."""
        given = self._names.get(node_id, {}).get("displayName") or self._paired.get(node_id, {}).get("displayName")
        return str(given) if given else None

    async def request(self, node_id: str, facts: Record) -> tuple[Record, bool]:
        """The node's pending request and whether it is new."""
        async with self._change():
            self._pending = self._alive()
            for record in self._pending.values():
                if record.get("nodeId") == node_id:
                    return record, False
            while len(self._pending) >= MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            record: Record = {"requestId": str(uuid.uuid4()), "nodeId": node_id}
            record |= {name: value for name, value in facts.items() if value is not None}
            record |= {"isRepair": node_id in self._paired, "ts": self._clock.now_ms()}
            self._pending[record["requestId"]] = record
            await self._save("pending", self._pending)
            return record, True

    async def approve(self, request_id: str) -> Record | None:
        """Pairs the node with a new token and returns it. Raises ``TooManyNodes``."""
        async with self._change():
            request = self._alive().get(request_id)
            if request is None:
                return None
            node_id, now = request["nodeId"], self._clock.now_ms()
            if node_id not in self._paired and len(self._paired) >= MAX_PAIRED:
                raise TooManyNodes(f"{MAX_PAIRED} nodes are paired already")
            before = self._paired.get(node_id, {})
            told = {name: value for name, value in request.items() if name not in _OF_REQUEST}
            node = {**before, **told, "token": secrets.token_hex(16), "approvedAtMs": now}
            node["createdAtMs"] = before.get("createdAtMs", now)
            self._paired[node_id] = node
            await self._save("paired", self._paired)
            # A crash before this leaves a request that can be approved again, and then gives another token.
            self._pending.pop(request_id, None)
            await self._save("pending", self._pending)
            return node

    async def reject(self, request_id: str) -> Record | None:
        async with self._change():
            request = self._alive().get(request_id)
            if request is not None:
                del self._pending[request_id]
                await self._save("pending", self._pending)
            return request

    def verify(self, node_id: str, token: str) -> Record | None:
        """The node, if this is its token."""
        node = self._paired.get(node_id)
        known = str(node.get("token") or "") if node else ""
        return node if known and same_secret(known, token) else None

    async def rename(self, node_id: str, name: str) -> None:
        async with self._change():
            if node_id in self._paired:
                self._paired[node_id] = {**self._paired[node_id], "displayName": name}
                await self._save("paired", self._paired)
            self._names.pop(node_id, None)
            while len(self._names) >= MAX_NAMES:
                del self._names[next(iter(self._names))]
            self._names[node_id] = {"displayName": name}
            await self._save("names", self._names)

    def _alive(self) -> dict[str, Record]:
        oldest = self._clock.now_ms() - PENDING_TTL_MS
        return {key: record for key, record in self._pending.items() if number_in(record, "ts") >= oldest}

    async def _save(self, name: str, records: dict[str, Record]) -> None:
        await asyncio.to_thread(write_private_json, self._dir / f"{name}.json", records)


_OF_REQUEST = frozenset({"requestId", "isRepair", "ts", "silent"})


def without_token(node: Record) -> Record:
    return {name: value for name, value in node.items() if name != "token"}
