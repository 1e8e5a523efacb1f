"""One Discord bot: receives through the gateway's WebSocket and sends through the REST API.

An event goes ``_on_event`` → ``_handle`` → ``submit``, which hands it to the Gateway. How far the session was read is
remembered only up to the first event that is not yet on disk, so that a restart asks for the rest again. Messages that
came while no session could be resumed are fetched from the channels that were in use.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import msgspec

from openclaw import redact
from openclaw.channels.base import (
    ChannelContext,
    NotConfigured,
    Reconnect,
    is_number,
    need_action,
    running,
    secret_of,
)
from openclaw.channels.bookmark import Remembered
from openclaw.channels.discord import parse_address
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
    CommandEvent,
    DeletedMessage,
    DiscordAttachment,
    DiscordEvent,
    OwnUser,
    Room,
    Rooms,
    interpret,
    said_in,
)
from openclaw.channels.http import download, is_on, new_session
from openclaw.channels.media import NotFetched, files_to_send, kept_file, opus_seconds, safe_file_name
from openclaw.channels.submit import ConversationTasks, Posted, Reacted, submit, submit_event, wants_reaction
from openclaw.clock import Backoff, retry_delay_s
from openclaw.config.schema.channels import DiscordAccount
from openclaw.inbound.message import Inbound, Media, Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import Button, OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import shortened

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
MOST_PENDING = 500
"""Events that are being taken in at the same time. Beyond it nothing is read from the gateway."""
MOST_CHANNELS = 200
"""Channels whose last message is remembered."""
MOST_FILES = 10
ANSWER_INTERACTION_S = 2.0
"""A command must be answered within three seconds, even while the disk is slow."""
INTERACTION_S = 14 * 60.0
"""So long a command can be answered."""
CATCH_UP = 100
"""Messages that one request fetches at most."""
CATCH_UP_REQUESTS = 50
CATCH_UP_TRIES = 8
BOOKMARK_CHARS = 16_384
VOICE_MESSAGE = 1 << 13
ARCHIVE_MINUTES = 60
"""A thread that we began is put away after this much silence."""
THREAD_NAME = 100
THREAD_EXISTS = 160004
"""Discord's number for "a thread has already been created for this message"."""
_WAVE = base64.b64encode(bytes([96] * 64)).decode()
"""What is drawn for a voice message. The recording is not decoded, so it has the same height everywhere."""
_FILE_HOSTS = (".cdn.discordapp.com", ".media.discordapp.net")
_MENTION = re.compile(r"<[@#][!&]?\d{1,20}>")
_COMMAND = re.compile(r"[-_a-z0-9]{1,32}")


class KeptState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept over restarts."""

    place: SessionPlace | None = None
    channels: dict[str, str] = {}
    """Channel → its last message that was taken in."""


def _is_kept_state(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=KeptState)
    except msgspec.MsgspecError:
        return False
    return True


class OpenCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A slash command whose answer appears in its place."""

    application_id: str
    token: str
    since: float
    """When it came, by the monotonic clock. Its token expires."""
    answered: bool = False
    """Whether it has its first answer."""


class DiscordChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: DiscordAccount = context.account.settings
        self._bookmark = context.bookmark("session", BOOKMARK_CHARS, _is_kept_state)
        self._connection: DiscordConnection | None = None
        self._files: aiohttp.ClientSession | None = None
        self._own = OwnUser("")
        self._rooms = Rooms()
        self._channels: Remembered[str, str] = Remembered(MOST_CHANNELS)
        """Channel → its last message that was taken in."""
        self._pending: set[int] = set()
        """The numbers of the events that are being taken in."""
        self._tasks = ConversationTasks(context.log, MOST_PENDING)
        self._authors: Remembered[str, Inbound] = Remembered()
        """Message → how it came in, because a deletion names nobody."""
        self._direct: Remembered[str, str] = Remembered()
        """Person → their direct channel."""
        self._titles: Remembered[str, str] = Remembered()
        """Message → how a thread is called that begins with it."""
        self._threads: Remembered[str, str] = Remembered()
        """Thread → where its messages go: into itself, or into its channel if there is no such thread."""
        self._starters: Remembered[str, str | None] = Remembered()
        """Thread → the text of the message that it began with."""
        self._commands: Remembered[str, OpenCommand] = Remembered()
        """The message id of a slash command → what its answer needs."""
        self._reconnect = Reconnect(context, RECONNECT)

    async def run(self) -> None:
        token = await self._token()
        connection = await asyncio.to_thread(open_connection, token, self._settings, self._on_event)
        self._files = new_session()
        try:
            self._connection = connection
            await self._bookmark.load()
            await self._listen(connection, self._recalled())
        finally:
            self._connection = None
            # What is still being taken in comes again after the restart.
            self._move_bookmark(connection.place())
            await self._tasks.close()
            await self._bookmark.close()
            await self._files.close()
            await connection.close()

    async def _token(self) -> str:
        given = await secret_of(self._context, self._settings.token, "token", "DISCORD_BOT_TOKEN")
        bare = given.removeprefix("Bot ").strip()
        redact.know([bare])
        return bare

    def _recalled(self) -> SessionPlace | None:
        kept = msgspec.json.decode(self._bookmark.last_id or "{}", type=KeptState)
        self._channels.update(kept.channels)
        return kept.place

    # The gateway

    async def _listen(self, connection: DiscordConnection, place: SessionPlace | None) -> None:
        reconnect, own = self._reconnect, False
        while True:
            try:
                if not own:
                    found = await connection.login()
                    self._own, own = OwnUser(str(found.get("id")), str(found.get("username") or "")), True
                gateway = await connection.gateway_address()
                await connection.listen(gateway, place, self._tasks.room)
            except DiscordFailed as failure:
                if failure.kind == "token":
                    raise NotConfigured(str(failure)) from None
                await reconnect.failed(str(failure), failure.retry_after_s or 0.0)
            except GatewayLost as lost:
                if lost.hopeless:
                    raise NotConfigured(str(lost)) from None
                place = connection.place() if lost.resume else None
                await reconnect.failed(str(lost))

    def _on_event(self, event: str, number: int, data: Any) -> None:
        """Takes an event from the gateway. It may not wait, so the work is done in tasks."""
        if event == "RESUMED":
            self._start("", number, self._resumed)
        elif event == "READY":
            match data:
                case {"application": {"id": str(application_id)}}:
                    pass
                case _:
                    application_id = self._own.id
            # A new session begins now. What was written before it has to be fetched.
            self._start("", number, partial(self._connected, application_id, dict(self._channels)))
        elif event in ROOM_EVENTS:
            try:
                self._rooms.learn(event, data)
            except (msgspec.ValidationError, AttributeError) as error:
                self._context.log.warning("an event of Discord was not understood: %s", error)
        elif event.startswith(("MESSAGE_", "INTERACTION_")):
            channel = str(data.get("channel_id")) if isinstance(data, dict) else ""
            self._start(channel, number, partial(self._handle, event, data))

    def _start(self, channel: str, number: int, work: Callable[[], Awaitable[None]]) -> None:
        self._pending.add(number)

        async def noted() -> None:
            try:
                await work()
            finally:
                self._pending.discard(number)
            if self._connection is not None:
                self._move_bookmark(self._connection.place())

        self._tasks.start(channel, noted)

    def _move_bookmark(self, place: SessionPlace | None) -> None:
        """Remembers how far everything is on disk."""
        if place is not None and self._pending:
            place = msgspec.structs.replace(place, sequence=min(min(self._pending) - 1, place.sequence))
        kept = KeptState(place=place, channels=dict(self._channels))
        self._bookmark.move_to(msgspec.json.encode(kept).decode())

    async def _resumed(self) -> None:
        self._reconnect.connected()

    async def _connected(self, application_id: str, missed: dict[str, str]) -> None:
        """Begins a new session. ``missed`` are the last messages that were taken in before it."""
        self._reconnect.connected()
        connection = self._connection
        if connection is None:
            return
        await self._register_commands(connection, application_id)
        for channel, last in missed.items():
            await self._catch_up(connection, channel, last)

    async def _catch_up(self, connection: DiscordConnection, channel: str, last: str) -> None:
        """Takes in what was written in a channel while no session could be resumed, oldest first."""
        for _ in range(CATCH_UP_REQUESTS):
            missed = await self._missed(connection, channel, last)
            room = self._rooms.rooms.get(channel)
            for message in reversed(missed):
                guild = {"guild_id": room.guild_id} if room and room.guild_id else {}
                await self._handle("MESSAGE_CREATE", {**guild, **message})
            if len(missed) < CATCH_UP:
                return
            last = str(missed[0].get("id"))
        self._context.log.warning("more was written in channel %s meanwhile than is fetched", channel)

    async def _missed(self, connection: DiscordConnection, channel: str, last: str) -> list[dict[str, Any]]:
        """The messages that follow the last one, newest first. Empty if they cannot be had."""
        path = f"/channels/{{channel_id}}/messages?after={last}&limit={CATCH_UP}"
        for attempt in range(1, CATCH_UP_TRIES + 1):
            try:
                found = await connection.request("GET", path, {"channel_id": channel})
                return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
            except DiscordFailed as failure:
                self._context.log.warning("what was missed in channel %s was not fetched: %s", channel, failure)
                if failure.permanent:
                    self._channels.pop(channel, None)
                    return []
                await self._context.clock.sleep(retry_delay_s(RECONNECT, attempt, failure.retry_after_s, random.random))
        return []

    async def _register_commands(self, connection: DiscordConnection, application_id: str) -> None:
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
        place = {"application_id": application_id}
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

    async def _take(self, event: DiscordEvent, data: Any) -> None:
        inbound = event.inbound
        if isinstance(event, Posted | CommandEvent) and inbound.peer.kind == "direct":
            self._direct[inbound.peer.id] = str(data["channel_id"])
        if isinstance(event, CommandEvent):
            await self._take_command(event)
            return
        if isinstance(event, Posted):
            if inbound.can_start_thread:
                self._titles[inbound.message_id] = thread_name(inbound.text, inbound.message_id)
            if inbound.thread_id is not None and inbound.thread_starter is None and not inbound.own_thread:
                inbound.thread_starter = await self._starter(inbound)
            without_text = msgspec.structs.replace(inbound, text="", media=(), quoted=None, untrusted=())
            self._authors[inbound.message_id] = without_text
        guild = self._settings.guilds.get(inbound.guild_id or "")
        if isinstance(event, Reacted) and guild is not None and guild.reaction_notifications is not None:
            if wants_reaction(self._settings, event, guild.reaction_notifications):
                await submit(self._context, inbound, self._context.notice)
            return
        await submit_event(self._context, event, self._fetch)

    async def _starter(self, inbound: Inbound) -> str | None:
        """The text of the message that a thread began with. It has the thread's id."""
        thread, connection = str(inbound.thread_id), self._connection
        try:
            if thread in self._starters or connection is None or not await self._context.admits(inbound):
                return self._starters.get(thread)
        except OSError:
            return None  # The message itself is offered until it can be kept.
        parent = inbound.parent_peer.id if inbound.parent_peer else thread
        # The first message of a forum's thread is in the thread itself.
        place = {"channel_id": parent if self._rooms.type_of(parent) in TEXT_ROOMS else thread, "message_id": thread}
        try:
            found = await connection.request("GET", "/channels/{channel_id}/messages/{message_id}", place)
            starter = said_in(found, self._own, self._rooms)
        except (DiscordFailed, msgspec.ValidationError):
            starter = None
        self._starters[thread] = starter
        return starter

    async def _deleted(self, data: Any) -> None:
        ids = data.get("ids") if isinstance(data, dict) else None
        for one in ids if isinstance(ids, list) else [data]:
            gone = msgspec.convert({**data, "id": one} if isinstance(one, str) else one, DeletedMessage)
            if (inbound := self._authors.pop(gone.id, None)) is not None:
                await submit(self._context, inbound, self._context.deleted)

    async def _take_command(self, event: CommandEvent) -> None:
        """Hands a command in and tells the platform that the answer follows, in time."""
        command = event.inbound.message_id
        self._commands[command] = OpenCommand(
            application_id=event.application_id, token=event.token, since=self._context.clock.monotonic()
        )
        taking = asyncio.create_task(submit(self._context, event.inbound))
        try:
            await asyncio.wait([taking], timeout=ANSWER_INTERACTION_S)
            refused = taking.done() and not taking.cancelled() and taking.exception() is None and not taking.result()
            if refused:
                self._commands.pop(command, None)
                answer: Any = {"type": 4, "data": {"content": "You may not use this bot.", "flags": 64}}
            else:
                answer = {"type": 6 if event.press else 5}
            if event.press:
                self._commands.pop(command, None)
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
            self._commands.pop(event.inbound.message_id, None)
            self._context.log.warning("a command could not be acknowledged: %s", failure)

    async def _fetch(self, file: DiscordAttachment) -> Media:
        if not is_on(file.url, self._settings.api_root, _FILE_HOSTS):
            raise NotFetched("it is not on a server of Discord")
        return await kept_file(
            self._context, await download(self._context, running(self._files, "Discord"), file.url), file
        )

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        connection = self._started()
        if message.act != "send":
            return await self._change(connection, await self._channel_of(connection, route, message), message)
        files = [
            Upload(safe_file_name(media), data, media.mime_type, opus_seconds(data) if media.voice else None)
            for media, data in await files_to_send(self._context, message)
        ]
        first, sent = self._body(route, message), ""
        if len(files) == 1 and files[0].seconds is not None and not message.text.strip():
            first |= voice_body(files[0])
        for number in range(0, max(len(files), 1), MOST_FILES):
            body = first if number == 0 else {}
            group = tuple(files[number : number + MOST_FILES])
            found = await self._post(connection, route, {**body, "nonce": nonce(key, number)}, group)
            sent = sent or found
        return SendReceipt(message_id=sent)

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
        if is_number(quoted):
            body["message_reference"] = {"message_id": quoted, "fail_if_not_exists": False}
        if message.buttons:
            body["components"] = [{"type": 1, "components": [_button(one) for one in row]} for row in message.buttons]
        return body

    async def _post(
        self, connection: DiscordConnection, route: Route, body: dict[str, Any], files: tuple[Upload, ...]
    ) -> str:
        asked = route.reply_to_id or ""
        command = self._commands.get(asked)
        if command is not None and self._context.clock.monotonic() - command.since < INTERACTION_S:
            plain = {name: value for name, value in body.items() if name not in ("nonce", "enforce_nonce")}
            plain.pop("message_reference", None)
            path = "/webhooks/{application_id}/{token}" + ("" if command.answered else "/messages/@original")
            place = {"application_id": command.application_id, "token": command.token}
            method = "POST" if command.answered else "PATCH"
            found = await connection.request(method, path, place, body=plain, files=files)
            self._commands[asked] = msgspec.structs.replace(command, answered=True)
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
        self._direct[peer.id] = channel
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
        self._threads[thread] = where
        return where

    async def _change(self, connection: DiscordConnection, channel: str, message: OutgoingMessage) -> SendReceipt:
        target = message.target_id
        if not is_number(target):
            raise SendFailed(f"{target!r} is no id of a message on Discord", permanent=True)
        allowed = self._settings.actions
        switches = {"react": ("reactions", allowed.reactions), "pin": ("pins", allowed.pins)}
        key, on = switches.get(message.act, ("messages", allowed.messages))
        need_action(self._context, key, on)
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
        channel = await self._channel_of(connection, route)
        await connection.request("POST", "/channels/{channel_id}/typing", {"channel_id": channel})

    async def probe(self) -> dict[str, Any]:
        found = await self._started().request("GET", "/users/@me")
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
