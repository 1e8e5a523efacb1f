"""Calls to a Matrix homeserver through matrix-nio. Results are plain values, and failures one exception."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import msgspec
import nio
from nio.api import RelationshipType
from nio.crypto import ENCRYPTION_ENABLED

from openclaw.channels.base import ChannelContext
from openclaw.channels.http import converted, read_file, retry_after_s
from openclaw.channels.matrix.incoming import InviteEvent, RoomEvent, parse_event
from openclaw.channels.media import NotFetched
from openclaw.outbound.reply import SendFailed

POLL_MS = 30_000
REQUEST_S = 60.0
FIRST_SYNC_S = 300.0
TRANSFER_S = 300.0
TIMELINE = 50
MAX_MISSED_PAGES = 50
"""Pages of a hundred missed events that are fetched per room."""
UNKNOWN_TOKEN = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})


class MatrixFailed(SendFailed):
    """A call failed. The message gives the reason and never contains a secret."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", wait_s: float | None = None, sent: bool = True
    ) -> None:
        """``sent`` means that the request may have reached the server."""
        super().__init__(
            message,
            permanent=400 <= status < 500 and status not in (408, 429) and code not in UNKNOWN_TOKEN,
            reached=status != 0,
            maybe_sent=sent and (status == 0 or status >= 500),
            retry_after_s=wait_s,
        )
        self.status = status
        """The HTTP status, or 0 without a response."""
        self.code = code


class LoggedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a login."""

    homeserver: str
    user_id: str
    device_id: str
    access_token: str


class RoomUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The new events of a room."""

    room_id: str
    events: list[RoomEvent]
    """Oldest first."""
    limited: bool
    """Whether older new events were left out."""
    before: str | None
    """The token from which the older events can be fetched."""
    state: list[RoomEvent]


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    next: str
    rooms: list[RoomUpdate]
    invites: dict[str, list[InviteEvent]]
    """Room → the state that its invitation shows."""
    direct: dict[str, list[str]] | None
    """Person → their direct rooms, if they changed."""


class PinnedEvents(msgspec.Struct, frozen=True, kw_only=True):
    pinned: tuple[object, ...] = ()


class MatrixClient:
    """One login. ``device_id`` is empty until ``use`` or ``log_in``."""

    def __init__(self, homeserver: str, user_id: str, *, encryption: bool, store: Path) -> None:
        config = nio.AsyncClientConfig(
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_S,
            encryption_enabled=encryption,
            store_sync_tokens=False,
        )
        # At lower levels nio logs passwords and tokens, and a warning for every error response.
        logging.getLogger("nio").setLevel(logging.ERROR)
        self._homeserver = homeserver
        self._encryption = encryption
        # nio's methods are only partly annotated.
        self._nio: Any = nio.AsyncClient(
            homeserver, user_id, store_path=str(store) if encryption else "", config=config
        )
        self._has_full_state = False
        self.user_id = user_id
        self.device_id = ""

    @staticmethod
    def can_encrypt() -> bool:
        return ENCRYPTION_ENABLED

    async def close(self) -> None:
        await self._nio.close()

    # Login

    async def use(self, access_token: str, user_id: str = "", device_id: str = "") -> None:
        """Continue with an existing token. Raises ``MatrixFailed`` if the server rejects it."""
        self._nio.access_token = access_token
        self._nio.user_id = user_id
        whoami = await self._call(self._nio.whoami())
        self._logged_in(whoami.user_id, whoami.device_id or device_id, access_token)

    async def log_in(self, password: str, device_id: str, device_name: str) -> LoggedIn:
        self._nio.access_token = ""
        self._nio.device_id = device_id or None
        login = await self._call(self._nio.login(password, device_name=device_name))
        self._logged_in(login.user_id, login.device_id, login.access_token)
        return LoggedIn(
            homeserver=self._homeserver,
            user_id=login.user_id,
            device_id=login.device_id,
            access_token=login.access_token,
        )

    def _logged_in(self, user_id: str, device_id: str, access_token: str) -> None:
        self.user_id, self.device_id = user_id, device_id
        if self._encryption and device_id:
            self._nio.restore_login(user_id, device_id, access_token)
        else:
            self._nio.user_id, self._nio.device_id, self._nio.access_token = user_id, device_id, access_token

    async def whoami(self) -> str:
        return (await self._call(self._nio.whoami())).user_id

    # Receiving

    async def sync(self, since: str, *, wait: bool) -> SyncResult:
        """Return the changes since the token. An empty token yields the current position without older messages.

        ``wait`` lets the server delay its response until something is new.
        """
        sync_filter = {
            "presence": {"types": []},
            "room": {
                "timeline": {"limit": TIMELINE if since else 1},
                "ephemeral": {"types": []},
                "state": {"lazy_load_members": True},
            },
        }
        async with asyncio.timeout(FIRST_SYNC_S):
            response = await self._call(
                self._nio.sync(
                    timeout=POLL_MS if wait else 0,
                    sync_filter=sync_filter,
                    since=since or None,
                    # Encrypting requires the members of all rooms.
                    full_state=self._encryption and not self._has_full_state,
                )
            )
        self._has_full_state = True
        if self._encryption:
            await self._exchange_keys()
        rooms = [
            RoomUpdate(
                room_id=room_id,
                events=_room_events(room.timeline.events),
                limited=bool(room.timeline.limited),
                before=room.timeline.prev_batch,
                state=_room_events(room.state),
            )
            for room_id, room in response.rooms.join.items()
        ]
        invites = {
            room_id: [converted(source, InviteEvent) for source in _sources(room.invite_state)]
            for room_id, room in response.rooms.invite.items()
        }
        return SyncResult(
            next=response.next_batch, rooms=rooms, invites=invites, direct=_direct(response.account_data_events)
        )

    async def _exchange_keys(self) -> None:
        """Exchange encryption keys, which nio does only in its own sync loop."""
        await self._nio.send_to_device_messages()
        if self._nio.should_upload_keys:
            await self._call(self._nio.keys_upload())
        if self._nio.should_query_keys:
            await self._call(self._nio.keys_query())
        if self._nio.should_claim_keys:
            await self._call(self._nio.keys_claim(self._nio.get_users_for_key_claiming()))

    async def missed(self, room_id: str, before: str, since: str) -> list[RoomEvent]:
        """Return the events of a room between two tokens, oldest first."""
        events: list[RoomEvent] = []
        start = before
        for _ in range(MAX_MISSED_PAGES):
            page = await self._call(self._nio.room_messages(room_id, start=start, end=since, limit=100))
            events += _room_events(page.chunk)
            if not page.chunk or not page.end or page.end == start:
                break
            start = page.end
        return events[::-1]

    async def event(self, room_id: str, event_id: str) -> RoomEvent | None:
        return parse_event((await self._call(self._nio.room_get_event(room_id, event_id))).event.source)

    async def members(self, room_id: str) -> dict[str, str]:
        """Return the display names by user."""
        response = await self._call(self._nio.joined_members(room_id))
        return {member.user_id: member.display_name or "" for member in response.members}

    async def state(self, room_id: str, kind: str, *, hidden: bool = True) -> Mapping[str, object]:
        """Return the content of a state event, or an empty mapping if the room has none.

        With ``hidden``, state that the room hides from us also counts as missing.
        """
        try:
            return (await self._call(self._nio.room_get_state_event(room_id, kind))).content
        except MatrixFailed as failure:
            if failure.status == 404 or (failure.status == 403 and hidden):
                return {}
            raise

    async def direct_rooms(self) -> dict[str, list[str]]:
        try:
            response = await self._call(self._nio.list_direct_rooms())
        except MatrixFailed as failure:
            if failure.status == 404:
                return {}
            raise
        return _rooms_by_person(response.rooms)

    async def download(self, mxc: str, context: ChannelContext) -> bytes:
        """Download a file. Raises ``NotFetched``."""
        server, _, media = mxc.removeprefix("mxc://").partition("/")
        if server.startswith(".") or media.startswith("."):
            raise NotFetched("its URL is invalid")  # Dots could escape to another path of the server.
        media_path = f"{quote(server, safe='')}/{quote(media, safe='')}"
        for path in (f"/_matrix/client/v1/media/download/{media_path}", f"/_matrix/media/v3/download/{media_path}"):
            try:
                async with asyncio.timeout(TRANSFER_S):
                    request = await self._nio.send("GET", path, None, self._headers(), None, TRANSFER_S)
                    async with cast("aiohttp.ClientResponse", request) as response:
                        if response.status == 404 and path.startswith("/_matrix/client/"):
                            continue  # An old server without this endpoint, or the file is gone.
                        if response.status != 200:
                            raise NotFetched(f"the server answered {response.status}")
                        return await read_file(context, response)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise NotFetched(_reason(error)) from None
        raise NotFetched("the server does not have it")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._nio.access_token}"}

    # Sending

    async def send(self, room_id: str, kind: str, content: Mapping[str, object], transaction: str) -> str:
        """Send an event and return its id. The server deduplicates by ``transaction``."""
        sending = self._nio.room_send(room_id, kind, dict(content), tx_id=transaction, ignore_unverified_devices=True)
        return (await self._call(sending)).event_id

    async def redact(self, room_id: str, event_id: str, transaction: str) -> str:
        return (await self._call(self._nio.room_redact(room_id, event_id, tx_id=transaction))).event_id

    async def pin(self, room_id: str, event_id: str, *, pinned: bool) -> None:
        """Pin or unpin an event. Requires the permission of the room."""
        kind = "m.room.pinned_events"
        # A list that is hidden from us must not be replaced by one with only our event.
        state = converted(await self.state(room_id, kind, hidden=False), PinnedEvents)
        before = [str(pinned_id) for pinned_id in state.pinned]
        after = [pinned_id for pinned_id in before if pinned_id != event_id] + ([event_id] if pinned else [])
        if after != before:
            await self._call(self._nio.room_put_state(room_id, kind, {"pinned": after}))

    async def upload(
        self, data: bytes, mime_type: str, name: str | None, encrypt: bool
    ) -> tuple[str, Mapping[str, object]]:
        """Return the URL of the uploaded file, and its decryption keys if it is encrypted."""
        async with asyncio.timeout(TRANSFER_S):
            response, secret = await self._nio.upload(
                lambda *_: io.BytesIO(data), content_type=mime_type, filename=name, filesize=len(data), encrypt=encrypt
            )
        _check(response)
        return response.content_uri, secret or {}

    async def typing(self, room_id: str, on: bool) -> None:
        await self._call(self._nio.room_typing(room_id, on, timeout=POLL_MS))

    async def read(self, room_id: str, event_id: str) -> None:
        await self._call(self._nio.update_receipt_marker(room_id, event_id))

    async def own_reaction(self, room_id: str, target: str, emoji: str) -> str:
        """Return the id of our reaction to an event, or an empty string."""
        relation = RelationshipType.annotation
        async for event in self._nio.room_get_event_relations(room_id, target, relation, "m.reaction"):
            related = event.source.get("content", {}).get("m.relates_to", {})
            if event.source.get("sender") == self.user_id and related.get("key") == emoji:
                return event.source.get("event_id", "")
        return ""

    # Rooms

    async def join(self, room: str) -> str:
        return (await self._call(self._nio.join(room))).room_id

    async def resolve(self, alias: str) -> str:
        return (await self._call(self._nio.room_resolve_alias(alias))).room_id

    async def create_direct(self, person: str) -> str:
        preset = nio.RoomPreset.trusted_private_chat
        return (await self._call(self._nio.room_create(is_direct=True, preset=preset, invite=[person]))).room_id

    async def mark_direct(self, rooms: Mapping[str, list[str]]) -> None:
        """Store the direct rooms on the server, for the account's other clients."""
        path = f"/_matrix/client/v3/user/{quote(self.user_id, safe='')}/account_data/m.direct"
        headers = {**self._headers(), "Content-Type": "application/json"}
        sending = self._nio.send("PUT", path, msgspec.json.encode(rooms), headers)
        async with cast("aiohttp.ClientResponse", await self._call(sending)) as response:
            if response.status != 200:
                raise MatrixFailed(f"the server answered {response.status}", status=response.status)

    def is_encrypted(self, room_id: str) -> bool:
        room = self._nio.rooms.get(room_id)
        return bool(room is not None and room.encrypted)

    async def _call(self, request: Awaitable[Any]) -> Any:
        """Await a request of nio. Raises ``MatrixFailed`` for a network error or an error response."""
        try:
            response = await request
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise MatrixFailed(f"{self._homeserver} cannot be reached: {_reason(error)}", sent=False) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise MatrixFailed(f"{self._homeserver} does not answer: {_reason(error)}") from None
        except nio.LocalProtocolError as error:
            raise MatrixFailed(str(error), sent=False) from None
        return _check(response)


def _check(response: Any) -> Any:
    if not isinstance(response, nio.ErrorResponse):
        return response
    transport: Any = response.transport_response
    status = int(transport.status) if transport is not None else 0
    wait_ms = response.retry_after_ms
    header_s = retry_after_s(transport.headers) if transport is not None else None
    raise MatrixFailed(
        f"{response.status_code or status}: {response.message}",
        status=status,
        code=str(response.status_code or ""),
        wait_s=wait_ms / 1000 if isinstance(wait_ms, int | float) else header_s,
    )


def _room_events(events: list[Any]) -> list[RoomEvent]:
    return [event for source in _sources(events) if (event := parse_event(source)) is not None]


def _sources(events: list[Any]) -> list[Mapping[str, object]]:
    """Return the events as the server sent them. nio moves the content of some to an attribute."""
    sources: list[Mapping[str, object]] = []
    for event in events:
        source: Any = getattr(event, "source", None)
        if isinstance(source, dict):
            content: Any = getattr(event, "content", None)
            sources.append({"content": content, **source} if content is not None else source)
    return sources


def _direct(events: list[Any]) -> dict[str, list[str]] | None:
    for event in events:
        if getattr(event, "type", "") == "m.direct":
            return _rooms_by_person(getattr(event, "content", None))
    return None


def _rooms_by_person(content: Any) -> dict[str, list[str]]:
    if not isinstance(content, dict):
        return {}
    return {person: [str(room) for room in rooms] for person, rooms in content.items() if isinstance(rooms, list)}


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.strerror or "no connection"
    return "it took too long" if isinstance(error, TimeoutError) else type(error).__name__
