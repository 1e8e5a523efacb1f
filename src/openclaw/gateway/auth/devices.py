"""Paired devices, pairing requests and device tokens: ``devices/paired.json`` and ``devices/pending.json``.

Records are plain mappings, so that fields written by other versions survive. Token values leave this file only in
``hello-ok`` and in the answer to ``device.token.rotate``.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from openclaw.clock import Clock
from openclaw.gateway.auth.shared_auth import same_secret
from openclaw.storage.documents import DocumentStore, SharedDocument

PENDING_TTL_MS = 5 * 60_000
MAX_SKEW_MS = 600_000
"""How far the clock of a device may be from ours when it signs."""
MAX_PENDING = 100
Record: TypeAlias = dict[str, Any]


class Devices:
    """Owns both documents. Every change is on disk before it is answered."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._clock = clock
        self._paired = records_document(documents, "devices/paired.json")
        self._pending = records_document(documents, "devices/pending.json")

    async def load(self) -> None:
        """Reads what is new, also what another Gateway has changed."""
        await self._paired.latest()
        await self._pending.latest()

    def paired(self, device_id: str) -> Record | None:
        return self._paired.value.get(device_id)

    def with_role(self, role: str) -> list[Record]:
        """The paired devices that have this role."""
        return [record for record in self._paired.value.values() if role in _roles(record)]

    def waiting(self, request_id: str) -> Record | None:
        """The pairing request with this id, as long as it is valid."""
        return next((record for record in self._alive() if record.get("requestId") == request_id), None)

    def listing(self) -> dict[str, list[Record]]:
        """Both lists, newest first, without token values."""
        pending = sorted(self._alive(), key=lambda record: -number_in(record, "ts"))
        paired = sorted(self._paired.value.values(), key=lambda record: -number_in(record, "approvedAtMs"))
        return {"pending": pending, "paired": [summary(record) for record in paired]}

    def covers(self, device_id: str, public_key: str, role: str, scopes: Iterable[str]) -> bool:
        """Whether the device is paired with this key for this role and all of these scopes."""
        record = self.paired(device_id)
        if record is None or record.get("publicKey") != public_key:
            return False
        return role in _roles(record) and _covers(record, scopes)

    async def request_pairing(self, device_id: str, public_key: str, facts: Record) -> tuple[Record, bool]:
        """The device's pending request and whether it is new. ``facts`` is what the client says about itself."""
        is_repair = device_id in await self._paired.current()

        def ask(pending: dict[str, Record]) -> tuple[Record, bool]:
            for record in self._alive(pending):
                same = record.get("deviceId") == device_id and record.get("publicKey") == public_key
                if same and record.get("role") == facts["role"] and _covers(record, facts["scopes"]):
                    return record, False
            self._forget_expired(pending)
            for key in [key for key, record in pending.items() if record.get("deviceId") == device_id]:
                del pending[key]
            while len(pending) >= MAX_PENDING:
                del pending[next(iter(pending))]
            record: Record = {"requestId": str(uuid.uuid4()), "deviceId": device_id, "publicKey": public_key}
            record |= {key: value for key, value in facts.items() if value is not None}
            record |= {"isRepair": is_repair, "ts": self._clock.now_ms()}
            pending[record["requestId"]] = record
            return record, True

        return await self._pending.change(ask)

    async def approve(self, request_id: str) -> Record | None:
        """Pairs the device and returns it. Roles and scopes are added to the earlier ones; the token is new."""
        await self._pending.current()
        request = self.waiting(request_id)
        if request is None:
            return None
        device = await self._paired.change(lambda paired: self._pair(paired, request))
        # A crash before this leaves a request that can be approved again.
        await self._pending.change(lambda pending: pending.pop(request_id, None))
        return device

    def _pair(self, paired: dict[str, Record], request: Record) -> Record:
        now, role, scopes = self._clock.now_ms(), request["role"], request.get("scopes") or []
        before = paired.get(request["deviceId"]) or {}
        if before.get("publicKey") != request["publicKey"]:
            before = {"createdAtMs": before.get("createdAtMs", now)}
        kept = ("displayName", "platform", "clientId", "clientMode", "role", "remoteIp")
        device: Record = {**before, "deviceId": request["deviceId"], "publicKey": request["publicKey"]}
        device |= {name: request[name] for name in kept if request.get(name) is not None}
        device["roles"] = _union(_roles(before), [role])
        device["scopes"] = _union(before.get("scopes") or [], scopes)
        device["createdAtMs"] = before.get("createdAtMs", now)
        device["approvedAtMs"] = now
        device["tokens"] = {**_tokens(device), role: self._new_token(device, role, scopes)}
        paired[request["deviceId"]] = device
        return device

    async def reject(self, request_id: str) -> Record | None:
        await self._pending.current()
        request = self.waiting(request_id)
        if request is not None:
            await self._pending.change(lambda pending: pending.pop(request_id, None))
        return request

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
            wanted = list(scopes if scopes is not None else token_scopes(record, role))
            if role not in _roles(record) or not _covers(record, wanted):
                return None
            return self._new_token(record, role, wanted)

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

    def _alive(self, pending: dict[str, Record] | None = None) -> list[Record]:
        oldest = self._clock.now_ms() - PENDING_TTL_MS
        records = (self._pending.value if pending is None else pending).values()
        return [record for record in records if number_in(record, "ts") >= oldest]

    def _forget_expired(self, pending: dict[str, Record]) -> None:
        alive = {record["requestId"]: record for record in self._alive(pending) if "requestId" in record}
        pending.clear()
        pending.update(alive)


def summary(device: Record) -> Record:
    """A device without the values of its tokens, for listings."""
    shown = {key: value for key, value in device.items() if key != "tokens"}
    tokens = [{k: v for k, v in token.items() if k != "token"} for token in _tokens(device).values()]
    return {**shown, "tokens": tokens} if tokens else shown


def token_scopes(device: Record | None, role: str) -> list[str]:
    """The scopes that the device's token for this role has, or would get when it is made anew."""
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
