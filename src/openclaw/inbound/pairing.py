"""Pairing requests of strangers, their codes, and the people whom the owner approved."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from openclaw.clock import Clock, iso_utc
from openclaw.inbound.access import normal_id
from openclaw.sessions.keys import safe_file_name
from openclaw.storage.documents import DocumentStore, SharedDocument

log = logging.getLogger("openclaw.inbound.pairing")
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_LENGTH = 8
TTL_MS = 3_600_000
MOST_PENDING = 3
"""The most requests per channel. A further stranger gets no answer until a place is free."""
FOLDER = "credentials"
REQUESTS, ALLOWED = "-pairing.json", "-allowFrom.json"
"""How the names of the documents end, after that of the channel."""
_MOST_META = 200


class PairingRequest(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    id: str
    code: str
    created_at: str
    last_seen_at: str
    meta: dict[str, str] = {}


class Asked(msgspec.Struct, frozen=True):
    code: str
    new: bool
    """Only a new request is answered. A stranger who writes again gets no second answer."""


class Approved(msgspec.Struct, frozen=True):
    channel: str
    id: str


class PairingStore:
    """The requests of strangers and the lists of approved people, per channel.

    They are kept in ``credentials/<channel>-pairing.json`` and ``credentials/<channel>-allowFrom.json``. The code of a
    request is valid for an hour.
    """

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._requests: dict[str, SharedDocument[list[PairingRequest]]] = {}
        self._lists: dict[str, SharedDocument[set[str]]] = {}

    async def ask(self, channel: str, sender_id: str, meta: Mapping[str, str | None] | None = None) -> Asked | None:
        """Return the sender's code, or None when too many requests are waiting."""
        now = iso_utc(self._clock.now_ms())

        def note(requests: list[PairingRequest]) -> Asked | None:
            requests[:] = self._alive(requests)
            existing = next((request for request in requests if request.id == sender_id), None)
            if existing is None and len(requests) >= MOST_PENDING:
                return None
            request = existing or PairingRequest(id=sender_id, code=_new_code(), created_at=now, last_seen_at=now)
            request.last_seen_at = now
            details = {
                key: value.strip()[:_MOST_META] for key, value in (meta or {}).items() if value and value.strip()
            }
            request.meta = {**request.meta, **details}
            if existing is None:
                requests.append(request)
            return Asked(request.code, existing is None)

        return await self._waiting(channel).change(note)

    async def pending(self, channel: str | None = None) -> list[tuple[str, PairingRequest]]:
        """Return the valid requests of one channel or of all, each with its channel, oldest first."""
        matches: list[tuple[str, PairingRequest]] = []
        for name in await self._named(channel):
            matches += [(name, request) for request in self._alive(await self._waiting(name).current())]
        return matches

    async def approve(self, code: str, channel: str | None = None) -> Approved | None:
        """Approve the sender of a code permanently. Returns None if the code is unknown or has expired."""
        code = code.strip().upper()
        for name in await self._named(channel):
            requests = self._alive(await self._waiting(name).current())
            candidate = next((request for request in requests if request.code == code), None)
            if candidate is None:
                continue
            # The list is written first, so that a crash between the two writes loses nobody.
            await self._approve(name, candidate.id)

            def forget(waiting: list[PairingRequest]) -> None:
                waiting[:] = [request for request in self._alive(waiting) if request.code != code]

            await self._waiting(name).change(forget)
            return Approved(name, candidate.id)
        return None

    async def allowed(self, channel: str) -> frozenset[str]:
        """Return the approved ids. The list is read again only when it has changed."""
        existing = self._allowed(channel)
        try:
            return frozenset(await existing.latest())
        except OSError as error:
            if self._documents.shared:
                raise  # A database that is away must not reject approved people.
            log.error("%s cannot be read (%s); nobody on it is admitted until it can", existing.place, error)
            return frozenset()

    async def _approve(self, channel: str, sender_id: str) -> None:
        existing = normal_id(channel, sender_id)
        if existing not in ("", "*"):
            await self._allowed(channel).change(lambda ids: ids.add(existing))

    def _alive(self, requests: list[PairingRequest]) -> list[PairingRequest]:
        oldest = self._clock.now_ms() - TTL_MS
        return [request for request in requests if _at(request.created_at) > oldest]

    async def _named(self, channel: str | None) -> list[str]:
        """Return the channel, or all that have requests."""
        return [channel.strip().lower()] if channel else await self._channels_with(REQUESTS)

    async def approved(self) -> dict[str, frozenset[str]]:
        """Return the approved ids by channel."""
        return {channel: await self.allowed(channel) for channel in await self._channels_with(ALLOWED)}

    async def _channels_with(self, ending: str) -> list[str]:
        names = await self._documents.list(f"{FOLDER}/")
        matches = [name.removeprefix(f"{FOLDER}/") for name in names if name.endswith(ending)]
        return [unquote(name.removesuffix(ending)) for name in matches if "/" not in name]

    def _waiting(self, channel: str) -> SharedDocument[list[PairingRequest]]:
        name = _name(channel, REQUESTS)
        if name not in self._requests:
            self._requests[name] = SharedDocument(
                self._documents, name, list, _decode_requests, _encode_requests, damaged="aside"
            )
        return self._requests[name]

    def _allowed(self, channel: str) -> SharedDocument[set[str]]:
        name = _name(channel, ALLOWED)
        if name not in self._lists:

            def decode(data: bytes) -> set[str]:
                ids = (normal_id(channel, item) for item in _decode_list(data, "allowFrom") if isinstance(item, str))
                return {existing for existing in ids if existing not in ("", "*")}

            self._lists[name] = SharedDocument(self._documents, name, set, decode, _encode_allowed, damaged="aside")
        return self._lists[name]


def pairing_reply(channel: str, sender_id: str, code: str) -> str:
    """Return the text that a stranger gets once."""
    return (
        "This assistant does not know you yet, so your message was not read.\n\n"
        f"Your {channel} id: {sender_id}\n\n"
        f"Pairing code: {code}\n\n"
        "Ask the owner to let you in with:\n"
        f"openclaw pairing approve {channel} {code}"
    )


def _name(channel: str, ending: str) -> str:
    return f"{FOLDER}/{safe_file_name(channel.strip().lower())}{ending}"


def _new_code() -> str:
    return "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))


def _at(written: str) -> int:
    """Parse an ISO timestamp to epoch milliseconds. An invalid one counts as expired."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return 0
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _decode_requests(data: bytes) -> list[PairingRequest]:
    """Read the stored requests. One of another shape counts as expired."""
    requests: list[PairingRequest] = []
    for item in _decode_list(data, "requests"):
        with contextlib.suppress(msgspec.ValidationError):
            requests.append(msgspec.convert(item, PairingRequest))
    return requests


def _encode_requests(requests: list[PairingRequest]) -> bytes:
    content = {"version": 1, "requests": msgspec.to_builtins(requests)}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _encode_allowed(ids: set[str]) -> bytes:
    return (json.dumps({"version": 1, "allowFrom": sorted(ids)}, indent=2) + "\n").encode()


def _decode_list(data: bytes, key: str) -> list[Any]:
    content = json.loads(data)
    values = cast("dict[str, Any]", content).get(key) if isinstance(content, dict) else None
    return cast("list[Any]", values) if isinstance(values, list) else []
