"""Paired devices, pairing requests and device tokens: ``devices/paired.json`` and ``devices/pending.json``.

Records are plain mappings, so that fields written by other versions survive. Token values leave this file only in
``hello-ok`` and in the answer to ``device.token.rotate``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.gateway.auth.shared_auth import same_secret

PENDING_TTL_MS = 5 * 60_000
MAX_SKEW_MS = 600_000
"""How far the clock of a device may be from ours when it signs."""
MAX_PENDING = 100
Record: TypeAlias = dict[str, Any]

log = logging.getLogger("openclaw.gateway.devices")


class Devices:
    """Owns both files. Every change is on disk before it is answered."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._dir = Path(state_dir) / "devices"
        self._clock = clock
        self._paired: dict[str, Record] = {}
        self._pending: dict[str, Record] = {}
        self._loaded = False
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Reads both files once. Every change reads first, because a write without it would lose the old records."""
        async with self._change():
            pass

    @asynccontextmanager
    async def _change(self) -> AsyncGenerator[None]:
        async with self._changing:
            if not self._loaded:
                self._paired = await asyncio.to_thread(read_records, self._dir / "paired.json")
                self._pending = await asyncio.to_thread(read_records, self._dir / "pending.json")
                self._loaded = True
            yield

    def paired(self, device_id: str) -> Record | None:
        return self._paired.get(device_id)

    def with_role(self, role: str) -> list[Record]:
        """The paired devices that have this role."""
        return [record for record in self._paired.values() if role in _roles(record)]

    def waiting(self, request_id: str) -> Record | None:
        """The pairing request with this id, as long as it is valid."""
        return next((record for record in self._alive() if record.get("requestId") == request_id), None)

    def listing(self) -> dict[str, list[Record]]:
        """Both lists, newest first, without token values."""
        pending = sorted(self._alive(), key=lambda record: -number_in(record, "ts"))
        paired = sorted(self._paired.values(), key=lambda record: -number_in(record, "approvedAtMs"))
        return {"pending": pending, "paired": [summary(record) for record in paired]}

    def covers(self, device_id: str, public_key: str, role: str, scopes: Iterable[str]) -> bool:
        """Whether the device is paired with this key for this role and all of these scopes."""
        record = self._paired.get(device_id)
        if record is None or record.get("publicKey") != public_key:
            return False
        return role in _roles(record) and _covers(record, scopes)

    async def request_pairing(self, device_id: str, public_key: str, facts: Record) -> tuple[Record, bool]:
        """The device's pending request and whether it is new. ``facts`` is what the client says about itself."""
        async with self._change():
            self._forget_expired()
            for record in self._pending.values():
                same = record.get("deviceId") == device_id and record.get("publicKey") == public_key
                if same and record.get("role") == facts["role"] and _covers(record, facts["scopes"]):
                    return record, False
            self._pending = {k: r for k, r in self._pending.items() if r.get("deviceId") != device_id}
            while len(self._pending) >= MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            record: Record = {"requestId": str(uuid.uuid4()), "deviceId": device_id, "publicKey": public_key}
            record |= {key: value for key, value in facts.items() if value is not None}
            record |= {"isRepair": device_id in self._paired, "ts": self._clock.now_ms()}
            self._pending[record["requestId"]] = record
            await self._save_pending()
            return record, True

    async def approve(self, request_id: str) -> Record | None:
        """Pairs the device and returns it. Roles and scopes are added to the earlier ones; the token is new."""
        async with self._change():
            self._forget_expired()
            request = self._pending.get(request_id)
            if request is None:
                return None
            now, role, scopes = self._clock.now_ms(), request["role"], request.get("scopes") or []
            before = self._paired.get(request["deviceId"]) or {}
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
            self._paired[request["deviceId"]] = device
            await self._save_paired()
            del self._pending[request_id]
            await self._save_pending()
            return device

    async def reject(self, request_id: str) -> Record | None:
        async with self._change():
            self._forget_expired()
            request = self._pending.pop(request_id, None)
            if request is not None:
                await self._save_pending()
            return request

    async def remove(self, device_id: str) -> bool:
        """Forgets a device with its tokens and its request. Returns False when there is none."""
        async with self._change():
            asked = [key for key, record in self._pending.items() if record.get("deviceId") == device_id]
            if device_id not in self._paired:
                return False
            del self._paired[device_id]
            await self._save_paired()
            for key in asked:
                del self._pending[key]
            if asked:
                await self._save_pending()
            return True

    async def refresh(self, device_id: str, facts: Record) -> None:
        """Updates what a known device says about itself, and writes only when it changed."""
        async with self._change():
            record = self._paired.get(device_id)
            changed = {key: value for key, value in facts.items() if value is not None}
            if record is not None and any(record.get(key) != value for key, value in changed.items()):
                self._paired[device_id] = {**record, **changed}
                await self._save_paired()

    def token_is_valid(self, device_id: str, token: str, role: str, scopes: Iterable[str]) -> bool:
        record = self._paired.get(device_id)
        issued = _tokens(record).get(role) if record else None
        if not issued or issued.get("revokedAtMs"):
            return False
        return same_secret(str(issued.get("token") or ""), token) and _covers(issued, scopes)

    async def ensure_token(self, device_id: str, role: str, scopes: Sequence[str]) -> Record | None:
        """The token for this role, newly made when none covers the scopes. None when the device is not paired."""
        async with self._change():
            record = self._paired.get(device_id)
            if record is None:
                return None
            issued = _tokens(record).get(role)
            if issued and not issued.get("revokedAtMs") and _covers(issued, scopes):
                return issued
            return await self._save_token(record, role, self._new_token(record, role, scopes))

    async def rotate_token(self, device_id: str, role: str, scopes: Sequence[str] | None) -> Record | None:
        """Makes a new token. Its scopes default to the old ones and never exceed what the device was approved for."""
        async with self._change():
            record = self._paired.get(device_id)
            if record is None or role not in _roles(record):
                return None
            wanted = list(scopes if scopes is not None else token_scopes(record, role))
            if not _covers(record, wanted):
                return None
            return await self._save_token(record, role, self._new_token(record, role, wanted))

    async def revoke_token(self, device_id: str, role: str) -> Record | None:
        async with self._change():
            record = self._paired.get(device_id)
            if record is None or role not in _tokens(record):
                return None
            revoked = {**_tokens(record)[role], "revokedAtMs": self._clock.now_ms()}
            return await self._save_token(record, role, revoked)

    async def _save_token(self, record: Record, role: str, token: Record) -> Record:
        self._paired[record["deviceId"]] = {**record, "tokens": {**_tokens(record), role: token}}
        await self._save_paired()
        return token

    def _new_token(self, device: Record, role: str, scopes: Sequence[str]) -> Record:
        now, before = self._clock.now_ms(), _tokens(device).get(role)
        token: Record = {"token": secrets.token_hex(16), "role": role, "scopes": list(scopes)}
        token["createdAtMs"] = before.get("createdAtMs", now) if before else now
        return {**token, "rotatedAtMs": now} if before else token

    def _alive(self) -> list[Record]:
        oldest = self._clock.now_ms() - PENDING_TTL_MS
        return [record for record in self._pending.values() if number_in(record, "ts") >= oldest]

    def _forget_expired(self) -> None:
        self._pending = {record["requestId"]: record for record in self._alive() if "requestId" in record}

    async def _save_paired(self) -> None:
        await asyncio.to_thread(write_private_json, self._dir / "paired.json", self._paired)

    async def _save_pending(self) -> None:
        await asyncio.to_thread(write_private_json, self._dir / "pending.json", self._pending)


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


def read_records(path: Path) -> dict[str, Record]:
    """The records of a file. A file that cannot be read is renamed, not overwritten."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        aside = path.with_name(f"{path.name}.corrupt")
        log.warning("%s cannot be read (%s); it is kept as %s", path, error, aside)
        try:
            path.replace(aside)
        except OSError:
            pass
        return {}
    return {key: value for key, value in data.items() if isinstance(value, dict)} if isinstance(data, dict) else {}


def write_private_json(path: Path, value: Any) -> None:
    """Replaces the file atomically. Only its owner can read it."""
    write_private(str(path), json.dumps(value, indent=2, ensure_ascii=False) + "\n")
