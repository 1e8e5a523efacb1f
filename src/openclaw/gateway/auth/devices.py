"""Devices and nodes that are paired or ask to be: the documents in ``devices/`` and ``nodes/``.

Records are plain mappings, so that fields written by other versions survive. The token of a device leaves this file
only in ``hello-ok`` and in the answer to ``device.token.rotate``. A node that connects over the WebSocket is paired as
a device. ``node.pair.*`` is the older way, for programs that ask for a node's token on its behalf.
"""

from __future__ import annotations

import abc
import json
import secrets
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.gateway.auth.authorise import same_secret
from openclaw.storage.documents import DocumentStore, SharedDocument

if TYPE_CHECKING:
    from openclaw.gateway.server.events import Broadcaster

PENDING_TTL_MS = 5 * 60_000
MAX_SKEW_MS = 600_000
"""How far the clock of a device may be from ours when it signs."""
MAX_PENDING = 100
Record: TypeAlias = dict[str, Any]


class Pairing(abc.ABC):
    """Two documents: who asks to be paired, and who is. Every change is on disk before it is answered."""

    def __init__(self, documents: DocumentStore, clock: Clock, folder: str) -> None:
        self._clock = clock
        self._paired = records_document(documents, f"{folder}/paired.json")
        self._pending = records_document(documents, f"{folder}/pending.json")

    async def load(self) -> None:
        """Reads what is new, also what another Gateway has changed."""
        await self._paired.latest()
        await self._pending.latest()

    def paired(self, own_id: str) -> Record | None:
        return self._paired.value.get(own_id)

    def waiting(self, request_id: str) -> Record | None:
        """The pairing request with this id, as long as it is valid."""
        alive = self._alive(self._pending.value)
        return next((record for record in alive if record.get("requestId") == request_id), None)

    def listing(self) -> dict[str, list[Record]]:
        """Both lists, newest first, without token values."""
        pending = sorted(self._alive(self._pending.value), key=lambda record: -number_in(record, "ts"))
        paired = sorted(self._paired.value.values(), key=lambda record: -number_in(record, "approvedAtMs"))
        return {"pending": pending, "paired": [summary(record) for record in paired]}

    async def approve(self, request_id: str) -> Record | None:
        """Pairs who asked, and returns its record. The token is new."""
        await self._pending.current()
        request = self.waiting(request_id)
        if request is None:
            return None
        record = await self._paired.change(lambda paired: self._pair(paired, request))
        # A crash before this leaves a request that can be approved again, and then gives another token.
        await self._pending.change(lambda pending: pending.pop(request_id, None))
        return record

    @abc.abstractmethod
    def _pair(self, paired: dict[str, Record], request: Record) -> Record:
        """Adds the record of who asked, and returns it."""
        ...

    async def reject(self, request_id: str) -> Record | None:
        await self._pending.current()
        request = self.waiting(request_id)
        if request is not None:
            await self._pending.change(lambda pending: pending.pop(request_id, None))
        return request

    async def _ask(
        self, own: Record, facts: Record, is_same: Callable[[Record], bool] = lambda record: True
    ) -> tuple[Record, bool]:
        """Returns the pending request and whether it is new. ``own`` begins with the id of who asks.

        An earlier request of the same one is returned if ``is_same`` says that it asks for the same, or replaced.
        """
        name, own_id = next(iter(own.items()))
        is_repair = own_id in await self._paired.current()

        def ask(pending: dict[str, Record]) -> tuple[Record, bool]:
            alive = self._alive(pending)
            for record in alive:
                if record.get(name) == own_id and is_same(record):
                    return record, False
            others = [record for record in alive if record.get(name) != own_id and "requestId" in record]
            made: Record = {"requestId": str(uuid.uuid4()), **own}
            made |= {key: value for key, value in facts.items() if value is not None}
            made |= {"isRepair": is_repair, "ts": self._clock.now_ms()}
            pending.clear()
            pending.update((record["requestId"], record) for record in [*others[-(MAX_PENDING - 1) :], made])
            return made, True

        return await self._pending.change(ask)

    def _alive(self, pending: dict[str, Record]) -> list[Record]:
        oldest = self._clock.now_ms() - PENDING_TTL_MS
        return [record for record in pending.values() if number_in(record, "ts") >= oldest]


class Devices(Pairing):
    """The devices. Approved roles and scopes are added to the earlier ones."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        super().__init__(documents, clock, "devices")

    def with_role(self, role: str) -> list[Record]:
        """The paired devices that have this role."""
        return [record for record in self._paired.value.values() if role in _roles(record)]

    def covers(self, device_id: str, public_key: str, role: str, scopes: Iterable[str]) -> bool:
        """Whether the device is paired with this key for this role and all of these scopes."""
        record = self.paired(device_id)
        if record is None or record.get("publicKey") != public_key:
            return False
        return role in _roles(record) and _covers(record, scopes)

    async def request_pairing(self, device_id: str, public_key: str, facts: Record) -> tuple[Record, bool]:
        """The device's pending request and whether it is new. ``facts`` is what the client says about itself."""

        def is_same(record: Record) -> bool:
            same = record.get("publicKey") == public_key and record.get("role") == facts["role"]
            return same and _covers(record, facts["scopes"])

        return await self._ask({"deviceId": device_id, "publicKey": public_key}, facts, is_same)

    def _pair(self, paired: dict[str, Record], request: Record) -> Record:
        now, role, scopes = self._clock.now_ms(), request["role"], request.get("scopes") or []
        before = paired.get(request["deviceId"]) or {}
        if before.get("publicKey") != request["publicKey"]:
            before = {"createdAtMs": before.get("createdAtMs", now)}
        copied = ("displayName", "platform", "clientId", "clientMode", "role", "remoteIp")
        device: Record = {**before, "deviceId": request["deviceId"], "publicKey": request["publicKey"]}
        device |= {name: request[name] for name in copied if request.get(name) is not None}
        device["roles"] = _union(_roles(before), [role])
        device["scopes"] = _union(before.get("scopes") or [], scopes)
        device["createdAtMs"] = before.get("createdAtMs", now)
        device["approvedAtMs"] = now
        device["tokens"] = {**_tokens(device), role: self._new_token(device, role, scopes)}
        paired[request["deviceId"]] = device
        return device

    async def remove(self, device_id: str) -> bool:
        """Forgets a device with its tokens and its request. Returns False when there is none."""
        if await self._paired.change(lambda paired: paired.pop(device_id, None)) is None:
            return False

        def forget(pending: dict[str, Record]) -> None:
            for key in [key for key, record in pending.items() if record.get("deviceId") == device_id]:
                del pending[key]

        await self._pending.change(forget)
        return True

    async def refresh(self, device_id: str, facts: Record) -> None:
        """Updates what a known device says about itself, and writes only when it changed."""
        changed = {key: value for key, value in facts.items() if value is not None}
        record = self.paired(device_id)
        if record is None or all(record.get(key) == value for key, value in changed.items()):
            return

        def tell(paired: dict[str, Record]) -> None:
            if device_id in paired:
                paired[device_id] |= changed

        await self._paired.change(tell)

    def has_token(self, device_id: str, role: str) -> bool:
        """Whether the device is paired and has a token for this role that was not revoked."""
        record = self.paired(device_id)
        issued = _tokens(record).get(role) if record else None
        return issued is not None and not issued.get("revokedAtMs")

    def token_is_valid(self, device_id: str, token: str, role: str, scopes: Iterable[str]) -> bool:
        record = self.paired(device_id)
        issued = _tokens(record).get(role) if record else None
        if not issued or issued.get("revokedAtMs"):
            return False
        return same_secret(str(issued.get("token") or ""), token) and _covers(issued, scopes)

    async def ensure_token(self, device_id: str, role: str, scopes: Sequence[str]) -> Record | None:
        """The token for this role, newly made when none covers the scopes. None when the device is not paired."""

        def ensure(record: Record) -> Record:
            issued = _tokens(record).get(role)
            if issued and not issued.get("revokedAtMs") and _covers(issued, scopes):
                return issued
            return self._new_token(record, role, scopes)

        record = self.paired(device_id)
        issued = _tokens(record).get(role) if record is not None else None
        if record is not None and issued is not None and ensure(record) is issued:
            return issued
        return await self._set_token(device_id, role, ensure)

    async def rotate_token(self, device_id: str, role: str, scopes: Sequence[str] | None) -> Record | None:
        """Makes a new token. Its scopes default to the old ones and never exceed what the device was approved for."""

        def rotate(record: Record) -> Record | None:
            new_scopes = list(scopes if scopes is not None else token_scopes(record, role))
            if role not in _roles(record) or not _covers(record, new_scopes):
                return None
            return self._new_token(record, role, new_scopes)

        return await self._set_token(device_id, role, rotate)

    async def revoke_token(self, device_id: str, role: str) -> Record | None:
        def revoke(record: Record) -> Record | None:
            issued = _tokens(record).get(role)
            return {**issued, "revokedAtMs": self._clock.now_ms()} if issued is not None else None

        return await self._set_token(device_id, role, revoke)

    async def _set_token(self, device_id: str, role: str, make: Callable[[Record], Record | None]) -> Record | None:
        """Gives the device the token that ``make`` makes. None: the device is not paired, or none is made."""

        def change(paired: dict[str, Record]) -> Record | None:
            record = paired.get(device_id)
            token = make(record) if record is not None else None
            if record is not None and token is not None:
                paired[device_id] = {**record, "tokens": {**_tokens(record), role: token}}
            return token

        return await self._paired.change(change)

    def _new_token(self, device: Record, role: str, scopes: Sequence[str]) -> Record:
        now, before = self._clock.now_ms(), _tokens(device).get(role)
        token: Record = {"token": secrets.token_hex(16), "role": role, "scopes": list(scopes)}
        token["createdAtMs"] = before.get("createdAtMs", now) if before else now
        return {**token, "rotatedAtMs": now} if before else token


class PairResolved(msgspec.Struct, rename="camel"):
    request_id: str
    device_id: str
    decision: Literal["approved", "rejected"]
    ts: int


def announce_pairing(
    broadcaster: Broadcaster, clock: Clock, request: Record, decision: Literal["approved", "rejected"]
) -> None:
    """Publish the decision about a device that asked to be paired."""
    event = PairResolved(request["requestId"], request["deviceId"], decision, clock.now_ms())
    broadcaster.publish("device.pair.resolved", event, drop_if_slow=True)


def summary(device: Record) -> Record:
    """A device or a node without the values of its tokens, for listings."""
    shown = {key: value for key, value in device.items() if key not in ("tokens", "token")}
    tokens = [{k: v for k, v in token.items() if k != "token"} for token in _tokens(device).values()]
    return {**shown, "tokens": tokens} if tokens else shown


def token_scopes(device: Record | None, role: str) -> list[str]:
    """Return the scopes that the device's token for this role has, or that a new token would get."""
    if device is None:
        return []
    issued = _tokens(device).get(role) or {}
    return list(issued.get("scopes") or device.get("scopes") or [])


def _tokens(record: Record) -> dict[str, Record]:
    tokens = record.get("tokens")
    return tokens if isinstance(tokens, dict) else {}


def _roles(record: Record) -> list[str]:
    return _union(record.get("roles") or [], [record["role"]] if record.get("role") else [])


def _covers(grant: Record, scopes: Iterable[str]) -> bool:
    return set(scopes) <= set(grant.get("scopes") or [])


def _union(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def number_in(record: Record, key: str) -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def records_document(documents: DocumentStore, name: str) -> SharedDocument[dict[str, Record]]:
    """Records by their ids. A document that cannot be read is set aside, not overwritten."""
    return SharedDocument(documents, name, dict, _decode_records, _encode_records, damaged="aside")


def _decode_records(data: bytes) -> dict[str, Record]:
    content = json.loads(data)
    return (
        {key: value for key, value in content.items() if isinstance(value, dict)} if isinstance(content, dict) else {}
    )


def _encode_records(records: dict[str, Record]) -> bytes:
    return (json.dumps(records, indent=2, ensure_ascii=False) + "\n").encode()


# Nodes

MAX_PAIRED = 1000
MAX_NAMES = 1000


class TooManyNodes(Exception):
    """No further node can be paired."""


class NodePairing(Pairing):
    """The nodes, and the names that people gave to them."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        super().__init__(documents, clock, "nodes")
        self._names = records_document(documents, "nodes/names.json")

    async def load(self) -> None:
        await super().load()
        await self._names.latest()

    def name(self, node_id: str) -> str | None:
        """The name that a person gave to the node."""
        named = self._names.value.get(node_id, {}), self._paired.value.get(node_id, {})
        name = named[0].get("displayName") or named[1].get("displayName")
        return str(name) if name else None

    async def request(self, node_id: str, facts: Record) -> tuple[Record, bool]:
        """The node's pending request and whether it is new."""
        return await self._ask({"nodeId": node_id}, facts)

    def _pair(self, paired: dict[str, Record], request: Record) -> Record:
        """Raises ``TooManyNodes``."""
        node_id, now = request["nodeId"], self._clock.now_ms()
        if node_id not in paired and len(paired) >= MAX_PAIRED:
            raise TooManyNodes(f"{MAX_PAIRED} nodes are paired already")
        before = paired.get(node_id, {})
        facts = {name: value for name, value in request.items() if name not in _OF_REQUEST}
        node = {**before, **facts, "token": secrets.token_hex(16), "approvedAtMs": now}
        node["createdAtMs"] = before.get("createdAtMs", now)
        paired[node_id] = node
        return node

    def verify(self, node_id: str, token: str) -> Record | None:
        """The node, if this is its token."""
        node = self._paired.value.get(node_id)
        stored = str(node.get("token") or "") if node else ""
        return node if stored and same_secret(stored, token) else None

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


_OF_REQUEST = frozenset({"requestId", "isRepair", "ts", "silent"})
