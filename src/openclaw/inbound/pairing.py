"""Keeps the requests of strangers who ask to be let in, and the list of those who were let in.

Each request has a code that is valid for an hour. Requests are kept per channel in
``credentials/<channel>-pairing.json``, the list in ``credentials/<channel>-allowFrom.json``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import msgspec

from openclaw.clock import Clock, iso_utc
from openclaw.config.store import exclusive, write_private
from openclaw.inbound.access import normal_id
from openclaw.sessions.keys import safe_file_name

log = logging.getLogger("openclaw.inbound.pairing")

CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_LENGTH = 8
TTL_MS = 3_600_000
MOST_PENDING = 3
"""The most requests per channel. A further stranger gets no answer until a place is free."""
_MOST_META = 200
_Mark: TypeAlias = tuple[int, int, int] | None


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
    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._folder = Path(state_dir) / "credentials"
        self._clock = clock
        self._allowed: dict[str, tuple[_Mark, frozenset[str]]] = {}
        self._changing = Lock()
        """Held while a file is read and written anew. ``exclusive`` keeps other processes out, but not everywhere."""

    async def ask(self, channel: str, sender_id: str, meta: Mapping[str, str | None] | None = None) -> Asked | None:
        """Returns the sender's code, or None when too many requests are waiting."""
        return await asyncio.to_thread(self._ask, channel, sender_id, meta or {})

    async def pending(self, channel: str | None = None) -> list[tuple[str, PairingRequest]]:
        """Returns the valid requests of one channel or of all, each with its channel, oldest first."""
        return await asyncio.to_thread(self._pending, channel)

    async def approve(self, code: str, channel: str | None = None) -> Approved | None:
        """Lets the sender of a code in for good. Returns None when the code is unknown or has expired."""
        return await asyncio.to_thread(self._approve, code.strip().upper(), channel)

    async def allowed(self, channel: str) -> frozenset[str]:
        """Returns the ids that were let in. The file is read again only when it has changed."""
        path = self._path(channel, "allowFrom")
        known = self._allowed.get(path.name)
        if known is None or known[0] != _mark(path):
            try:
                known = await asyncio.to_thread(_read_allowed, path, channel)
            except OSError as error:
                log.error("%s cannot be read (%s); nobody on it is let in until it can", path, error)
                return frozenset()
            self._allowed[path.name] = known
        return known[1]

    # These methods run in a thread

    def _ask(self, channel: str, sender_id: str, meta: Mapping[str, str | None]) -> Asked | None:
        path, now = self._path(channel, "pairing"), iso_utc(self._clock.now_ms())
        with self._changing, exclusive(str(path)):
            requests = self._alive(path)
            known = next((request for request in requests if request.id == sender_id), None)
            if known is None and len(requests) >= MOST_PENDING:
                return None
            request = known or PairingRequest(
                id=sender_id,
                code=_new_code({request.code for request in requests}),
                created_at=now,
                last_seen_at=now,
            )
            request.last_seen_at = now
            request.meta |= {key: value.strip()[:_MOST_META] for key, value in meta.items() if value and value.strip()}
            _write_requests(path, requests if known else [*requests, request])
            return Asked(request.code, known is None)

    def _pending(self, channel: str | None) -> list[tuple[str, PairingRequest]]:
        channels = [channel.strip().lower()] if channel else self._channels()
        return [(name, request) for name in channels for request in self._alive(self._path(name, "pairing"))]

    def _approve(self, code: str, channel: str | None) -> Approved | None:
        for name in [channel.strip().lower()] if channel else self._channels():
            path = self._path(name, "pairing")
            with self._changing, exclusive(str(path)):
                requests = self._alive(path)
                found = next((request for request in requests if request.code == code), None)
                if found is None:
                    continue
                # The list is written first, so that a crash between the two writes loses nobody.
                self._let_in(name, found.id)
                _write_requests(path, [request for request in requests if request is not found])
                return Approved(name, found.id)
        return None

    def _let_in(self, channel: str, sender_id: str) -> None:
        path, known = self._path(channel, "allowFrom"), normal_id(channel, sender_id)
        _, already = _read_allowed(path, channel)
        if known and known != "*" and known not in already:
            write_private(
                str(path), json.dumps({"version": 1, "allowFrom": [*sorted(already), known]}, indent=2) + "\n"
            )

    def _alive(self, path: Path) -> list[PairingRequest]:
        oldest = self._clock.now_ms() - TTL_MS
        items = _read_list(path, "requests")
        requests = [request for item in items if (request := _request(item)) is not None]
        return [request for request in requests if (_at(request.created_at) or 0) > oldest]

    def _channels(self) -> list[str]:
        found = sorted(self._folder.glob("*-pairing.json"))
        return [unquote(path.name.removesuffix("-pairing.json")) for path in found]

    def _path(self, channel: str, kind: str) -> Path:
        return _file_in(self._folder, channel, kind)


@lru_cache(maxsize=64)
def _file_in(folder: Path, channel: str, kind: str) -> Path:
    return folder / f"{safe_file_name(channel.strip().lower())}-{kind}.json"


def pairing_reply(channel: str, sender_id: str, code: str) -> str:
    """Returns the text that a stranger gets once."""
    return (
        "This assistant does not know you yet, so your message was not read.\n\n"
        f"Your {channel} id: {sender_id}\n\n"
        f"Pairing code: {code}\n\n"
        "Ask the owner to let you in with:\n"
        f"openclaw pairing approve {channel} {code}"
    )


def _new_code(taken: set[str]) -> str:
    while True:
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        if code not in taken:
            return code


def _at(written: str) -> int | None:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _request(item: Any) -> PairingRequest | None:
    """Reads one stored request. Returns None for one of another shape, which counts as expired."""
    try:
        return msgspec.convert(item, PairingRequest)
    except msgspec.ValidationError:
        return None


def _mark(path: Path) -> _Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_allowed(path: Path, channel: str) -> tuple[_Mark, frozenset[str]]:
    mark = _mark(path)
    ids = (normal_id(channel, item) for item in _read_list(path, "allowFrom") if isinstance(item, str))
    return mark, frozenset(known for known in ids if known not in ("", "*"))


def _write_requests(path: Path, requests: list[PairingRequest]) -> None:
    content = {"version": 1, "requests": msgspec.to_builtins(requests)}
    write_private(str(path), json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _read_list(path: Path, key: str) -> list[Any]:
    """Reads the list under ``key``. A damaged file counts as empty and is kept beside for repair."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        aside = path.with_name(f"{path.name}.corrupt")
        log.warning("%s cannot be read (%s); it is kept as %s", path, error, aside.name)
        path.replace(aside)
        return []
    values = cast("dict[str, Any]", content).get(key) if isinstance(content, dict) else None
    return cast("list[Any]", values) if isinstance(values, list) else []
