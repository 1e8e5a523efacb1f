"""One Discord bot: receives through the gateway's WebSocket and sends through the REST API.

An event goes ``_on_event`` → ``_handle`` → ``offer``, which hands it to the Gateway. How far the session was read is
remembered only up to the first event that is not yet on disk, so that a restart asks for the rest again. Messages that
came while no session could be resumed are fetched from the channels that were in use.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw import redact
from openclaw.channels.base import ChannelContext, NotConfigured, offer, secret_of
from openclaw.channels.discord.connection import (
    DiscordConnection,
    DiscordFailed,
    GatewayLost,
    SessionPlace,
    Upload,
    open_connection,
)
from openclaw.channels.discord.incoming import (
    ROOM_EVENTS,
    TEXT_ROOMS,
    THREADS,
    ChangedEvent,
    CommandEvent,
    DeletedMessage,
    DiscordAttachment,
    DiscordEvent,
    OwnUser,
    ReactedEvent,
    Room,
    Rooms,
    SaidEvent,
    interpret,
    said_in,
)
from openclaw.channels.discord.kind import DiscordKind, parse_address
from openclaw.channels.media import kept_file, of_admitted, opus_seconds
from openclaw.config.schema.channels import DiscordAccount
from openclaw.inbound.message import Inbound, Media, Route
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.rendering import render
from openclaw.outbound.reply import Button, MediaRef, OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import shortened

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
MOST_PENDING = 500
"""Events that are being taken in at the same time. Beyond it nothing is read from the gateway."""
REMEMBERED = 2000
MOST_CHANNELS = 200
"""Channels whose last message is remembered."""
MOST_FILES = 10
ANSWER_INTERACTION_S = 2.0
"""A command must be answered within three seconds, even while the disk is slow."""
INTERACTION_S = 14 * 60.0
"""So long a command can be answered."""
FETCH_S = 60.0
CATCH_UP = 100
BOOKMARK_CHARS = 16_384
VOICE_MESSAGE = 1 << 13
ARCHIVE_MINUTES = 60
"""A thread that we began is put away after this much silence."""
THREAD_NAME = 100
THREAD_EXISTS = 160004
"""Discord's number for "a thread has already been created for this message"."""
_WAVE = base64.b64encode(bytes([96] * 64)).decode()
"""What is drawn for a voice message. The recording is not decoded, so it has the same height everywhere."""
_FILE_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_MENTION = re.compile(r"<[@#][!&]?\d{1,20}>")
_COMMAND = re.compile(r"[-_a-z0-9]{1,32}")


class KeptState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept over restarts."""

    place: SessionPlace | None = None
    channels: dict[str, str] = {}
    """Channel → its last message that was taken in."""


class DiscordChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: DiscordAccount = context.account.settings
        self._bookmark = context.bookmark("session", BOOKMARK_CHARS)
        self._connection: DiscordConnection | None = None
        self._files: aiohttp.ClientSession | None = None
        self._own = OwnUser("")
        self._application = ""
        self._rooms = Rooms()
        self._channels: OrderedDict[str, str] = OrderedDict()
        self._pending: dict[int, str] = {}
        """Number of an event that is being taken in → its channel."""
        self._last: dict[str, asyncio.Task[None]] = {}
        """Channel → its newest task. The tasks of a channel run one after the other."""
        self._authors: OrderedDict[str, Inbound] = OrderedDict()
        """Message → how it came in, because a deletion names nobody."""
        self._direct: OrderedDict[str, str] = OrderedDict()
        """Person → their direct channel."""
        self._titles: OrderedDict[str, str] = OrderedDict()
        """Message → how a thread is called that begins with it."""
        self._threads: OrderedDict[str, str] = OrderedDict()
        """Thread → where its messages go: into itself, or into its channel if there is no such thread."""
        self._starters: OrderedDict[str, str | None] = OrderedDict()
        """Thread → the text of the message that it began with."""
        self._interactions: OrderedDict[str, tuple[str, float, bool]] = OrderedDict()
        """Command → its token, when it came, and whether it has its first answer."""
        self._ready = False

    async def run(self) -> None:
        token = await self._token()
        connection = await asyncio.to_thread(open_connection, token, self._settings, self._on_event)
        self._files = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        try:
            self._connection = connection
            await self._bookmark.load()
            await self._listen(connection, self._recalled())
        finally:
            self._connection = None
            # What is still being taken in comes again after the restart.
            self._move_bookmark(connection.place())
            tasks = list(self._last.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._bookmark.close()
            await self._files.close()
            await connection.close()

    async def _token(self) -> str:
        token = DiscordKind.credentials[0]
        given = await secret_of(self._context, self._settings.token, f"channels.discord.{token.key}", token.variable)
        bare = given.removeprefix("Bot ").strip()
        redact.know([bare])
        return bare

    def _recalled(self) -> SessionPlace | None:
        try:
            kept = msgspec.json.decode(self._bookmark.last_id or "{}", type=KeptState)
        except msgspec.MsgspecError:
            return None
        self._channels.update(kept.channels)
        return kept.place

    # The gateway

    async def _listen(self, connection: DiscordConnection, place: SessionPlace | None) -> None:
        attempt, own = 0, False
        while True:
            try:
                if not own:
                    found = await connection.login()
                    self._own, own = OwnUser(str(found.get("id")), str(found.get("username") or "")), True
                gateway = await connection.gateway_address()
                await connection.listen(gateway, place, self._pause)
            except DiscordFailed as failure:
                if failure.kind == "token":
                    raise NotConfigured(str(failure)) from None
                reason, wait_s = str(failure), failure.retry_after_s or 0.0
            except GatewayLost as lost:
                if lost.hopeless:
                    raise NotConfigured(str(lost)) from None
                reason, wait_s = str(lost), 0.0
                place = connection.place() if lost.resume else None
            attempt = 1 if self._ready else attempt + 1
            self._ready = False
            self._context.disconnected(reason)
            delay_s = max(RECONNECT.delay_s(attempt, random.random), wait_s)
            self._context.log.warning("Discord is not connected: %s; again in %.1f s", reason, delay_s)
            await self._context.clock.sleep(delay_s)

    async def _pause(self) -> None:
        while len(self._pending) >= MOST_PENDING and self._last:
            await asyncio.wait(list(self._last.values()), return_when=asyncio.FIRST_COMPLETED)

    def _on_event(self, event: str, number: int, data: Any) -> None:
        """Takes an event from the gateway. It may not wait, so the work is done in tasks."""
        if event in ("READY", "RESUMED"):
            self._ready = True
            if event == "READY":
                match data:
                    case {"application": {"id": str(application)}}:
                        self._application = application
                    case _:
                        self._application = self._own.id
            # A new session begins now. What was written before it has to be fetched.
            missed = dict(self._channels) if event == "READY" else None
            self._start("", number, self._connected(missed))
        elif event in ROOM_EVENTS:
            try:
                self._rooms.learn(event, data)
            except (msgspec.ValidationError, AttributeError) as error:
                self._context.log.warning("an event of Discord was not understood: %s", error)
        elif event.startswith(("MESSAGE_", "INTERACTION_")):
            channel = str(data.get("channel_id")) if isinstance(data, dict) else ""
            self._start(channel, number, self._handle(event, data))

    def _start(self, channel: str, number: int, work: Any) -> None:
        before = self._last.get(channel)
        self._pending[number] = channel

        async def in_turn() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                await work
            except Exception:
                self._context.log.exception("an event of Discord could not be handled")
            finally:
                work.close()
                self._pending.pop(number, None)
                if self._last.get(channel) is asyncio.current_task():
                    del self._last[channel]
            if self._connection is not None:
                self._move_bookmark(self._connection.place())

        self._last[channel] = asyncio.create_task(in_turn())

    def _move_bookmark(self, place: SessionPlace | None) -> None:
        """Remembers how far everything is on disk."""
        if place is not None and self._pending:
            place = msgspec.structs.replace(place, sequence=min(min(self._pending) - 1, place.sequence))
        while len(self._channels) > MOST_CHANNELS:
            self._channels.popitem(last=False)
        kept = KeptState(place=place, channels=dict(self._channels))
        self._bookmark.move_to(msgspec.json.encode(kept).decode())

    async def _connected(self, missed: dict[str, str] | None) -> None:
        """``missed``: the last messages that were taken in before a new session. None: the old one goes on."""
        self._context.connected()
        connection = self._connection
        if missed is None or connection is None:
            return
        await self._register_commands(connection)
        for channel, last in missed.items():
            await self._catch_up(connection, channel, last)

    async def _catch_up(self, connection: DiscordConnection, channel: str, last: str) -> None:
        """Fetches what was written in a channel while no session could be resumed."""
        try:
            path = f"/channels/{{channel_id}}/messages?after={last}&limit={CATCH_UP}"
            missed = await connection.request("GET", path, {"channel_id": channel})
        except DiscordFailed as failure:
            self._context.log.info("what was missed in channel %s was not fetched: %s", channel, failure)
            if failure.kind in ("gone", "refused"):
                self._channels.pop(channel, None)
            return
        room = self._rooms.rooms.get(channel)
        for message in reversed(missed if isinstance(missed, list) else []):
            guild = {"guild_id": room.guild_id} if room and room.guild_id else {}
            await self._handle("MESSAGE_CREATE", {**guild, **message})

    async def _register_commands(self, connection: DiscordConnection) -> None:
        words = {"type": 3, "name": "input", "description": "What the command is to do", "required": False}
        listed = [
            {
                "type": 1,
                "name": command.name.lower(),
                "description": command.description.strip()[:100] or command.name,
                **({"options": [words]} if command.takes_text else {}),
            }
            for command in self._context.commands()
            if _COMMAND.fullmatch(command.name.lower())
        ][:100]
        place = {"application_id": self._application}
        try:
            await connection.request("PUT", "/applications/{application_id}/commands", place, body=listed)
        except DiscordFailed as failure:
            self._context.log.warning("the menu of commands was not set: %s", failure)

    # One event

    async def _handle(self, event: str, data: Any) -> None:
        try:
            if event in ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK"):
                await self._deleted(data)
                return
            await self._know_room(data)
            account, bots = self._context.account.id, self._settings.allow_bots
            found = interpret(event, data, self._own, account, self._rooms, bots=bots)
        except (msgspec.ValidationError, RecursionError) as error:
            self._context.log.warning("an event of Discord was not understood and is passed over: %s", error)
            return
        if found is not None:
            await self._take(found, data)
        if event == "MESSAGE_CREATE" and isinstance(data.get("id"), str):
            self._note_read(str(data["channel_id"]), data["id"])

    async def _know_room(self, data: Any) -> None:
        """Asks what a channel of a server is, if the gateway has not told. A thread belongs to another channel."""
        if not isinstance(data, dict) or not data.get("guild_id"):
            return
        wanted, connection = str(data.get("channel_id") or ""), self._connection
        for _ in range(2):
            if connection is None or not wanted or wanted in self._rooms.rooms:
                return
            try:
                found = await connection.request("GET", "/channels/{channel_id}", {"channel_id": wanted})
                self._rooms.learn("CHANNEL_CREATE", found)
            except (DiscordFailed, msgspec.ValidationError) as problem:
                self._context.log.info("what channel %s is cannot be found out: %s", wanted, problem)
                if not isinstance(problem, DiscordFailed) or problem.kind in ("gone", "refused"):
                    self._rooms.rooms[wanted] = Room(id=wanted)
                return
            room = self._rooms.rooms.get(wanted)
            wanted = (room.parent_id or "") if room and room.type in THREADS else ""

    def _note_read(self, channel: str, message_id: str) -> None:
        if not message_id.isdigit() or int(self._channels.get(channel, "0")) >= int(message_id):
            return
        self._channels[channel] = message_id
        self._channels.move_to_end(channel)

    async def _take(self, event: DiscordEvent, data: Any) -> None:
        match event:
            case SaidEvent(inbound=inbound, attachments=attachments):
                if inbound.peer.kind == "direct":
                    _remember(self._direct, inbound.peer.id, str(data["channel_id"]))
                if attachments:
                    media, notes = await of_admitted(self._context, inbound, lambda: self._fetch(attachments))
                    inbound.media, inbound.untrusted = media, (*inbound.untrusted, *notes)
                if inbound.can_start_thread:
                    _remember(self._titles, inbound.message_id, thread_name(inbound.text, inbound.message_id))
                if inbound.thread_id is not None and inbound.thread_starter is None and not inbound.own_thread:
                    inbound.thread_starter = await self._starter(inbound)
                without_text = msgspec.structs.replace(inbound, text="", media=(), quoted=None, untrusted=())
                _remember(self._authors, inbound.message_id, without_text)
                await offer(self._context, inbound)
            case ChangedEvent(inbound=inbound):
                await offer(self._context, inbound, self._context.edited)
            case ReactedEvent() if self._wants(event):
                await offer(self._context, event.inbound, self._context.notice)
            case CommandEvent():
                if event.inbound.peer.kind == "direct":
                    _remember(self._direct, event.inbound.peer.id, str(data["channel_id"]))
                await self._take_command(event)
            case _:
                pass

    async def _starter(self, inbound: Inbound) -> str | None:
        """The text of the message that a thread began with. It has the thread's id."""
        thread, connection = str(inbound.thread_id), self._connection
        if thread in self._starters or connection is None or not await self._context.admits(inbound):
            return self._starters.get(thread)
        parent = inbound.parent_peer.id if inbound.parent_peer else thread
        # The first message of a forum's thread is in the thread itself.
        place = {"channel_id": parent if self._rooms.type_of(parent) in TEXT_ROOMS else thread, "message_id": thread}
        try:
            found = await connection.request("GET", "/channels/{channel_id}/messages/{message_id}", place)
            starter = said_in(found, self._own, self._rooms)
        except (DiscordFailed, msgspec.ValidationError):
            starter = None
        _remember(self._starters, thread, starter)
        return starter

    async def _deleted(self, data: Any) -> None:
        ids = data.get("ids") if isinstance(data, dict) else None
        for one in ids if isinstance(ids, list) else [data]:
            gone = msgspec.convert({**data, "id": one} if isinstance(one, str) else one, DeletedMessage)
            if (inbound := self._authors.pop(gone.id, None)) is not None:
                await offer(self._context, inbound, self._context.deleted)

    def _wants(self, event: ReactedEvent) -> bool:
        guild = self._settings.guilds.get(event.inbound.guild_id or "")
        wish = guild.reaction_notifications if guild else None
        match wish or self._settings.reaction_notifications:
            case "off":
                return False
            case "own":
                return event.to_us
            case "all":
                return True
            case "allowlist":
                allowed = {str(entry).strip().lower() for entry in self._settings.reaction_allowlist}
                return "*" in allowed or event.inbound.sender.id in allowed

    async def _take_command(self, event: CommandEvent) -> None:
        """Hands a command in and tells the platform that the answer follows, in time."""
        _remember(self._interactions, f"interaction:{event.id}", (event.token, self._context.clock.monotonic(), False))
        taking = asyncio.create_task(offer(self._context, event.inbound))
        try:
            await asyncio.wait([taking], timeout=ANSWER_INTERACTION_S)
            refused = taking.done() and not taking.cancelled() and taking.exception() is None and not taking.result()
            if refused:
                self._interactions.pop(f"interaction:{event.id}", None)
                answer: Any = {"type": 4, "data": {"content": "You may not use this bot.", "flags": 64}}
            else:
                answer = {"type": 6 if event.press else 5}
            if event.press:
                self._interactions.pop(f"interaction:{event.id}", None)
            await self._answer_interaction(event, answer)
            await taking
        finally:
            taking.cancel()

    async def _answer_interaction(self, event: CommandEvent, answer: Any) -> None:
        path = "/interactions/{id}/{token}/callback"
        try:
            if self._connection is not None:
                await self._connection.request("POST", path, {"id": event.id, "token": event.token}, body=answer)
        except DiscordFailed as failure:
            self._interactions.pop(f"interaction:{event.id}", None)
            self._context.log.warning("a command could not be acknowledged: %s", failure)

    async def _fetch(self, attachments: tuple[DiscordAttachment, ...]) -> tuple[tuple[Media, ...], tuple[str, ...]]:
        """Puts the files into the blob store. Returns them, and for the agent a line for each that was not fetched."""
        media: list[Media] = []
        notes: list[str] = []
        for file in attachments[:MOST_FILES]:
            try:
                data = await self._download(file)
            except ValueError as reason:
                notes.append(f"Attachment {file.filename or 'a file'} was not fetched: {reason}")
                continue
            media.append(await kept_file(self._context.blobs, data, file.content_type, file.filename or None))
        return tuple(media), tuple(notes)

    async def _download(self, file: DiscordAttachment) -> bytes:
        """The content of a file. Raises ``ValueError`` with the reason."""
        limit = int(self._settings.media_max_mb * 1024 * 1024)
        too_large = f"it is larger than {limit / 1024 / 1024:g} MB (channels.discord.mediaMaxMb)"
        host, own = urlsplit(file.url).netloc, urlsplit(self._settings.api_root).netloc
        if file.size is not None and file.size > limit:
            raise ValueError(too_large)
        if (host not in _FILE_HOSTS and host != own) or self._files is None:
            raise ValueError("it is not on a server of Discord")
        parts: list[bytes] = []
        total = 0
        try:
            async with asyncio.timeout(FETCH_S), self._files.get(file.url, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise ValueError(f"the server answered {answer.status}")
                async for chunk in answer.content.iter_chunked(256 * 1024):
                    total += len(chunk)
                    if total > limit:
                        raise ValueError(too_large)
                    parts.append(chunk)
        except (aiohttp.ClientError, OSError) as error:
            raise ValueError(f"the connection broke ({type(error).__name__})") from None
        return b"".join(parts)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        connection = self._started()
        try:
            if message.act != "send":
                return await self._change(connection, await self._channel_of(connection, route, message), message)
            files = [await self._upload(media) for media in message.media]
            if not files and not message.text.strip():
                raise SendFailed("there is nothing to send", permanent=True)
            first, sent = self._body(route, message), ""
            if len(files) == 1 and files[0].seconds is not None and not message.text.strip():
                first |= voice_body(files[0])
            for number in range(0, max(len(files), 1), MOST_FILES):
                body = first if number == 0 else {}
                group = tuple(files[number : number + MOST_FILES])
                found = await self._post(connection, route, {**body, "nonce": nonce(key, number)}, group)
                sent = sent or found
            return SendReceipt(message_id=sent)
        except DiscordFailed as failure:
            raise failure.as_send_failure() from None

    def _body(self, route: Route, message: OutgoingMessage) -> dict[str, Any]:
        body: dict[str, Any] = {
            "content": render(message.text, "discord", tables=self._settings.markdown.tables).text,
            # Nobody can make the agent call a whole server.
            "allowed_mentions": {"parse": ["users"], "replied_user": False},
            "enforce_nonce": True,
        }
        quoted = message.reply_to_id or ""
        if quoted == str(route.thread_id):
            quoted = ""  # The thread begins with it. It is in another channel, where no message of this one can quote.
        if quoted.isascii() and quoted.isdigit():
            body["message_reference"] = {"message_id": quoted, "fail_if_not_exists": False}
        if message.buttons:
            body["components"] = [{"type": 1, "components": [_button(one) for one in row]} for row in message.buttons]
        return body

    async def _post(
        self, connection: DiscordConnection, route: Route, body: dict[str, Any], files: tuple[Upload, ...]
    ) -> str:
        asked = route.reply_to_id or ""
        token, at, answered = self._interactions.get(asked, ("", 0.0, False))
        if token and self._context.clock.monotonic() - at < INTERACTION_S:
            plain = {name: value for name, value in body.items() if name not in ("nonce", "enforce_nonce")}
            plain.pop("message_reference", None)
            path = "/webhooks/{application_id}/{token}" + ("" if answered else "/messages/@original")
            place: dict[str, str] = {"application_id": self._application, "token": token}
            method = "POST" if answered else "PATCH"
            found = await connection.request(method, path, place, body=plain, files=files)
            _remember(self._interactions, asked, (token, at, True))
        else:
            channel = await self._channel_of(connection, route)
            path = "/channels/{channel_id}/messages"
            found = await connection.request("POST", path, {"channel_id": channel}, body=body, files=files)
        return str(found.get("id") or "") if isinstance(found, dict) else ""

    async def _channel_of(
        self, connection: DiscordConnection, route: Route, message: OutgoingMessage | None = None
    ) -> str:
        """The channel that a route leads to. A direct one is opened if it is not known, and a thread is begun.

        ``message`` does something to an earlier one: then it is the channel of that one.
        """
        peer = parse_address(route.to or "")
        if peer.kind != "direct":
            thread = str(route.thread_id or peer.id)
            if message is not None and message.target_id == thread:
                room = self._rooms.rooms.get(thread)
                return (room.parent_id if room else None) or peer.id
            return peer.id if thread == peer.id else await self._thread(connection, peer.id, thread)
        if (known := self._direct.get(peer.id)) is not None:
            return known
        found = await connection.request("POST", "/users/@me/channels", body={"recipient_id": peer.id})
        channel = str(found.get("id")) if isinstance(found, dict) else ""
        _remember(self._direct, peer.id, channel)
        return channel

    async def _thread(self, connection: DiscordConnection, channel: str, thread: str) -> str:
        """Begins the thread at its message, once. Where that cannot be done, the channel takes its place."""
        if (known := self._threads.get(thread)) is not None:
            return known
        body = {"name": self._titles.get(thread) or f"Thread {thread}", "auto_archive_duration": ARCHIVE_MINUTES}
        place, where = {"channel_id": channel, "message_id": thread}, thread
        try:
            made = await connection.request(
                "POST", "/channels/{channel_id}/messages/{message_id}/threads", place, body=body
            )
            self._rooms.learn("THREAD_CREATE", made)
        except msgspec.ValidationError:
            pass
        except DiscordFailed as failure:
            if failure.kind not in ("refused", "gone"):
                raise
            if failure.code != THREAD_EXISTS:
                self._context.log.warning("no thread was begun, the answer is in the channel: %s", failure)
                where = channel
        _remember(self._threads, thread, where)
        return where

    async def _upload(self, media: MediaRef) -> Upload:
        name = re.sub(r"[^\w.+-]+", "_", media.file_name or "").strip("._")[-80:] or "file"
        data = await self._context.blobs.get(media.blob)
        if data is None:
            raise SendFailed(f"the file {name} is gone", permanent=True)
        limit = self._settings.media_max_mb
        if len(data) > limit * 1024 * 1024:
            too_large = f"the file {name} is larger than {limit:g} MB (channels.discord.mediaMaxMb)"
            raise SendFailed(too_large, permanent=True)
        return Upload(name, data, media.mime_type, opus_seconds(data) if media.voice else None)

    async def _change(self, connection: DiscordConnection, channel: str, message: OutgoingMessage) -> SendReceipt:
        target = message.target_id
        if not (target.isascii() and target.isdigit()):
            raise SendFailed(f"{target!r} is no id of a message on Discord", permanent=True)
        allowed = self._settings.actions
        switches = {"react": ("reactions", allowed.reactions), "pin": ("pins", allowed.pins)}
        key, on = switches.get(message.act, ("messages", allowed.messages))
        if not on:
            raise SendFailed(f"channels.discord.actions.{key} is off", permanent=True)
        path = "/channels/{channel_id}/messages/{message_id}"
        where = {"channel_id": channel, "message_id": target}
        match message.act:
            case "edit":
                body = self._body(Route(channel="discord"), message)
                content = {name: body[name] for name in ("content", "allowed_mentions")}
                await connection.request("PATCH", path, where, body=content)
            case "delete":
                try:
                    await connection.request("DELETE", path, where)
                except DiscordFailed as failure:
                    if failure.kind != "gone":
                        raise
            case "pin":
                method = "DELETE" if message.remove else "PUT"
                await connection.request(method, "/channels/{channel_id}/messages/pins/{message_id}", where)
            case _:
                method, where = "DELETE" if message.remove else "PUT", {**where, "emoji": message.emoji}
                await connection.request(method, f"{path}/reactions/{{emoji}}/@me", where)
        return SendReceipt(message_id=target)

    async def typing(self, route: Route, on: bool) -> None:
        if not on:  # The sign ends by itself.
            return
        connection = self._started()
        try:
            channel = await self._channel_of(connection, route)
            await connection.request("POST", "/channels/{channel_id}/typing", {"channel_id": channel})
        except DiscordFailed as failure:
            raise failure.as_send_failure() from None

    async def probe(self) -> dict[str, Any]:
        try:
            found = await self._started().request("GET", "/users/@me")
        except (DiscordFailed, SendFailed) as failure:
            return {"ok": False, "error": str(failure)}
        bot = {name: found.get(name) for name in ("id", "username")} if isinstance(found, dict) else {}
        return {"ok": True, "bot": bot}

    def _started(self) -> DiscordConnection:
        if self._connection is None or not self._own.id:
            raise SendFailed("Discord is not running", reached=False)
        return self._connection


def nonce(key: str, number: int = 0) -> str:
    """The platform drops a second message with the same one within some minutes. It takes 25 characters."""
    return hashlib.sha256(f"{key}:{number}".encode()).hexdigest()[:25]


def thread_name(text: str, message_id: str) -> str:
    """What a thread is called that begins with a message."""
    words = " ".join(_MENTION.sub("", text).split())
    return shortened(words, THREAD_NAME) if words else f"Thread {message_id}"


def voice_body(file: Upload) -> dict[str, Any]:
    """What makes a message a voice message, which has one recording and nothing else."""
    facts = {"id": "0", "filename": file.name, "duration_secs": file.seconds, "waveform": _WAVE}
    return {"flags": VOICE_MESSAGE, "attachments": [facts]}


def _button(button: Button) -> dict[str, Any]:
    data = button.data or button.text
    if len(data) > 100:
        raise SendFailed(f"the button {button.text!r} carries more than 100 characters", permanent=True)
    return {"type": 2, "style": 2, "label": button.text[:80], "custom_id": data}


def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
