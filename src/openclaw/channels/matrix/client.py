"""The calls to a Matrix homeserver, through matrix-nio. Answers are plain values, and failures are one exception."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import msgspec
import nio
from nio.api import RelationshipType
from nio.crypto import ENCRYPTION_ENABLED

from openclaw.channels.base import ChannelContext
from openclaw.channels.http import read_file, retry_after_s
from openclaw.channels.media import NotFetched
from openclaw.outbound.reply import SendFailed

POLL_MS = 30_000
REQUEST_S = 60.0
FIRST_SYNC_S = 300.0
TRANSFER_S = 300.0
TIMELINE = 50
MOST_MISSED_PAGES = 50
"""Pages of a hundred events that are fetched of what one room said while we were away."""
UNKNOWN_TOKEN = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN"})


class MatrixFailed(SendFailed):
    """A call failed. The message says why and never holds a secret."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", wait_s: float | None = None, sent: bool = True
    ) -> None:
        """``sent``: the request may have reached the server."""
        super().__init__(
            message,
            permanent=400 <= status < 500 and status not in (408, 429) and code not in UNKNOWN_TOKEN,
            reached=status != 0,
            maybe_sent=sent and (status == 0 or status >= 500),
            retry_after_s=wait_s,
        )
        self.status = status
        """The status of the answer. 0: there was none."""
        self.code = code


class LoggedIn(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in, and with what."""

    homeserver: str
    user_id: str
    device_id: str
    access_token: str


class RoomUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a room has said since the last time."""

    room_id: str
    events: list[dict[str, Any]]
    """Oldest first, as the server wrote them."""
    limited: bool
    """There were more, before these."""
    before: str | None
    state: list[dict[str, Any]]


class SyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one sync."""

    next: str
    rooms: list[RoomUpdate]
    invites: dict[str, list[dict[str, Any]]]
    direct: dict[str, list[str]] | None
    """Direct rooms by person, if they changed."""


class MatrixClient:
    """One log-in. ``identity`` is empty until ``use`` or ``log_in``."""

    def __init__(self, homeserver: str, user_id: str, *, encryption: bool, store: Path) -> None:
        config = nio.AsyncClientConfig(
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_S,
            encryption_enabled=encryption,
            store_sync_tokens=False,
        )
        # At lower levels nio writes passwords and tokens to the log, and a warning for every refusal.
        logging.getLogger("nio").setLevel(logging.ERROR)
        self._homeserver = homeserver
        self._encryption = encryption
        # What nio's methods return is not annotated throughout.
        self._nio: Any = nio.AsyncClient(
            homeserver, user_id, store_path=str(store) if encryption else "", config=config
        )
        self._knows_rooms = False
        self.user_id = user_id
        self.device_id = ""

    @staticmethod
    def can_encrypt() -> bool:
        return ENCRYPTION_ENABLED

    async def close(self) -> None:
        await self._nio.close()

    # Log-in

    async def use(self, access_token: str, user_id: str = "", device_id: str = "") -> None:
        """Goes on with a token. Raises ``MatrixFailed`` if the server does not know it."""
        self._nio.access_token = access_token
        self._nio.user_id = user_id
        known = await self._call(self._nio.whoami())
        self._logged_in(known.user_id, known.device_id or device_id, access_token)

    async def log_in(self, password: str, device_id: str, device_name: str) -> LoggedIn:
        self._nio.access_token = ""
        self._nio.device_id = device_id or None
        answer = await self._call(self._nio.login(password, device_name=device_name))
        self._logged_in(answer.user_id, answer.device_id, answer.access_token)
        return LoggedIn(
            homeserver=self._homeserver,
            user_id=answer.user_id,
            device_id=answer.device_id,
            access_token=answer.access_token,
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

    async def sync(self, since: str, *, wait: bool) -> SyncAnswer:
        """What is new since the token. Without one, where the server is now, and no older messages.

        ``wait``: the answer may take some time if nothing is new.
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
            answer = await self._call(
                self._nio.sync(
                    timeout=POLL_MS if wait else 0,
                    sync_filter=sync_filter,
                    since=since or None,
                    # Who writes encrypted must know who is in all its rooms.
                    full_state=self._encryption and not self._knows_rooms,
                )
            )
        self._knows_rooms = True
        if self._encryption:
            await self._exchange_keys()
        rooms = [
            RoomUpdate(
                room_id=room_id,
                events=_sources(room.timeline.events),
                limited=bool(room.timeline.limited),
                before=room.timeline.prev_batch,
                state=_sources(room.state),
            )
            for room_id, room in answer.rooms.join.items()
        ]
        invites = {room_id: _sources(room.invite_state) for room_id, room in answer.rooms.invite.items()}
        return SyncAnswer(
            next=answer.next_batch, rooms=rooms, invites=invites, direct=_direct(answer.account_data_events)
        )

    async def _exchange_keys(self) -> None:
        """What nio does itself only in its own loop."""
        await self._nio.send_to_device_messages()
        if self._nio.should_upload_keys:
            await self._call(self._nio.keys_upload())
        if self._nio.should_query_keys:
            await self._call(self._nio.keys_query())
        if self._nio.should_claim_keys:
            await self._call(self._nio.keys_claim(self._nio.get_users_for_key_claiming()))

    async def missed(self, room_id: str, before: str, since: str) -> list[dict[str, Any]]:
        """What a room said between the two tokens, oldest first."""
        found: list[dict[str, Any]] = []
        start = before
        for _ in range(MOST_MISSED_PAGES):
            page = await self._call(self._nio.room_messages(room_id, start=start, end=since, limit=100))
            found += _sources(page.chunk)
            if not page.chunk or not page.end or page.end == start:
                break
            start = page.end
        return found[::-1]

    async def event(self, room_id: str, event_id: str) -> Any:
        return (await self._call(self._nio.room_get_event(room_id, event_id))).event.source

    async def members(self, room_id: str) -> dict[str, str]:
        """Display names by user."""
        answer = await self._call(self._nio.joined_members(room_id))
        return {member.user_id: member.display_name or "" for member in answer.members}

    async def state(self, room_id: str, kind: str, *, hidden: bool = True) -> dict[str, Any]:
        """The content of a state event, or nothing if the room has none.

        ``hidden``: nothing also stands for what the room does not let us see.
        """
        try:
            return (await self._call(self._nio.room_get_state_event(room_id, kind))).content
        except MatrixFailed as failure:
            if failure.status == 404 or (failure.status == 403 and hidden):
                return {}
            raise

    async def direct_rooms(self) -> dict[str, list[str]]:
        try:
            answer = await self._call(self._nio.list_direct_rooms())
        except MatrixFailed as failure:
            if failure.status == 404:
                return {}
            raise
        return _rooms_by_person(answer.rooms)

    async def download(self, mxc: str, context: ChannelContext) -> bytes:
        """The content of a file. Raises ``NotFetched``."""
        server, _, media = mxc.removeprefix("mxc://").partition("/")
        if server.startswith(".") or media.startswith("."):
            raise NotFetched("its address is none")  # It would lead to another path of the server.
        place = f"{quote(server, safe='')}/{quote(media, safe='')}"
        for path in (f"/_matrix/client/v1/media/download/{place}", f"/_matrix/media/v3/download/{place}"):
            try:
                async with asyncio.timeout(TRANSFER_S):
                    answer = await self._nio.send("GET", path, None, self._headers(), None, TRANSFER_S)
                    async with cast("aiohttp.ClientResponse", answer) as response:
                        if response.status == 404 and path.startswith("/_matrix/client/"):
                            continue  # An old server, or the file is gone.
                        if response.status != 200:
                            raise NotFetched(f"the server answered {response.status}")
                        return await read_file(context, response)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise NotFetched(_reason(error)) from None
        raise NotFetched("the server does not have it")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._nio.access_token}"}

    # Sending

    async def send(self, room_id: str, kind: str, content: Mapping[str, Any], transaction: str) -> str:
        """Sends an event and returns its id. The server drops a second one with the same ``transaction``."""
        sending = self._nio.room_send(room_id, kind, dict(content), tx_id=transaction, ignore_unverified_devices=True)
        return (await self._call(sending)).event_id

    async def redact(self, room_id: str, event_id: str, transaction: str) -> str:
        return (await self._call(self._nio.room_redact(room_id, event_id, tx_id=transaction))).event_id

    async def pin(self, room_id: str, event_id: str, *, pinned: bool) -> None:
        """Adds an event to the pinned ones of a room, or takes it away. The room must let us do so."""
        kind = "m.room.pinned_events"
        # A list that we may not see must not be replaced by one that has only our event.
        before = [str(one) for one in (await self.state(room_id, kind, hidden=False)).get("pinned") or ()]
        after = [one for one in before if one != event_id] + ([event_id] if pinned else [])
        if after != before:
            await self._call(self._nio.room_put_state(room_id, kind, {"pinned": after}))

    async def upload(self, data: bytes, mime_type: str, name: str | None, encrypt: bool) -> tuple[str, dict[str, Any]]:
        """Returns the address of the file, and how it is decrypted if it is encrypted."""
        async with asyncio.timeout(TRANSFER_S):
            answer, secret = await self._nio.upload(
                lambda *_: io.BytesIO(data), content_type=mime_type, filename=name, filesize=len(data), encrypt=encrypt
            )
        _check(answer)
        return answer.content_uri, secret or {}

    async def typing(self, room_id: str, on: bool) -> None:
        await self._call(self._nio.room_typing(room_id, on, timeout=POLL_MS))

    async def read(self, room_id: str, event_id: str) -> None:
        await self._call(self._nio.update_receipt_marker(room_id, event_id))

    async def own_reaction(self, room_id: str, target: str, emoji: str) -> str:
        """The id of our reaction to an event, or an empty text."""
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
        """Tells the server which rooms are direct chats, so that other clients of the account know it too."""
        path = f"/_matrix/client/v3/user/{quote(self.user_id, safe='')}/account_data/m.direct"
        headers = {**self._headers(), "Content-Type": "application/json"}
        sending = self._nio.send("PUT", path, msgspec.json.encode(rooms), headers)
        async with cast("aiohttp.ClientResponse", await self._call(sending)) as answer:
            if answer.status != 200:
                raise MatrixFailed(f"the server answered {answer.status}", status=answer.status)

    def is_encrypted(self, room_id: str) -> bool:
        room = self._nio.rooms.get(room_id)
        return bool(room is not None and room.encrypted)

    async def _call(self, answering: Any) -> Any:
        """Waits for an answer. Raises ``MatrixFailed`` if there is none, or if it is a refusal."""
        try:
            answer = await answering
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise MatrixFailed(f"{self._homeserver} cannot be reached: {_reason(error)}", sent=False) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise MatrixFailed(f"{self._homeserver} does not answer: {_reason(error)}") from None
        except nio.LocalProtocolError as error:
            raise MatrixFailed(str(error), sent=False) from None
        return _check(answer)


def _check(answer: Any) -> Any:
    if not isinstance(answer, nio.ErrorResponse):
        return answer
    transport: Any = answer.transport_response
    status = int(transport.status) if transport is not None else 0
    wait_ms = answer.retry_after_ms
    asked_s = retry_after_s(transport.headers) if transport is not None else None
    raise MatrixFailed(
        f"{answer.status_code or status}: {answer.message}",
        status=status,
        code=str(answer.status_code or ""),
        wait_s=wait_ms / 1000 if isinstance(wait_ms, int | float) else asked_s,
    )


def _sources(events: list[Any]) -> list[dict[str, Any]]:
    """The events as the server wrote them. nio takes the content out of some, and keeps it beside."""
    sources: list[dict[str, Any]] = []
    for event in events:
        source: Any = getattr(event, "source", None)
        if isinstance(source, dict):
            content: Any = getattr(event, "content", None)
            sources.append({"content": content, **cast("dict[str, Any]", source)} if content is not None else source)
    return sources


def _direct(events: list[Any]) -> dict[str, list[str]] | None:
    for event in events:
        if getattr(event, "type", "") == "m.direct":
            return _rooms_by_person(getattr(event, "content", None))
    return None


def _rooms_by_person(content: Any) -> dict[str, list[str]]:
    if not isinstance(content, dict):
        return {}
    listed = cast("dict[str, Any]", content)
    return {person: [str(room) for room in rooms] for person, rooms in listed.items() if isinstance(rooms, list)}


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.strerror or "no connection"
    return "it took too long" if isinstance(error, TimeoutError) else type(error).__name__
