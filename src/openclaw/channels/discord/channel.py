"""One Discord bot: receives through the gateway's WebSocket and sends through the REST API.

An event goes ``_on_event`` → ``_handle`` → ``submit_event``. The bookmark stops before the first event that is not on
disk, so that a restart receives it again. When a session cannot be resumed, the missed messages are fetched from the
channels that were in use.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping
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
    require_action,
    require_running,
    secret_of,
)
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.discord import parse_address
from openclaw.channels.discord.connection import (
    DiscordConnection,
    DiscordFailed,
    GatewayLost,
    GatewaySession,
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
    message_text,
)
from openclaw.channels.http import converted, download, is_trusted_url, new_session
from openclaw.channels.media import NotFetched, files_to_send, opus_seconds, safe_file_name, store_file
from openclaw.channels.submit import ConversationTasks, Posted, Reacted, submit, submit_event, wants_reaction
from openclaw.clock import Backoff, retry_delay_s
from openclaw.config.schema.channels import DiscordAccount
from openclaw.inbound.message import Inbound, Media
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import Button, OutgoingMessage, SendFailed, SendReceipt
from openclaw.text import shortened

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
MAX_PENDING = 500
"""Concurrent events. Beyond this the gateway is not read."""
MAX_CHANNELS = 200
"""Channels whose last message is persisted."""
MAX_FILES = 10
ANSWER_INTERACTION_S = 2.0
"""Discord expects a response within three seconds, even while the disk is slow."""
INTERACTION_S = 14 * 60.0
"""A command's token expires after fifteen minutes."""
CATCH_UP = 100
"""The maximum number of messages of one request."""
CATCH_UP_REQUESTS = 50
CATCH_UP_TRIES = 8
BOOKMARK_CHARS = 16_384
VOICE_MESSAGE = 1 << 13
ARCHIVE_MINUTES = 60
"""Our threads are archived after this much inactivity."""
MAX_THREAD_NAME = 100
THREAD_EXISTS = 160004
"""Discord's code for "a thread has already been created for this message"."""
_WAVE = base64.b64encode(bytes([96] * 64)).decode()
"""The waveform shown for a voice message. Flat, because the recording is not decoded."""
_FILE_HOSTS = (".cdn.discordapp.com", ".media.discordapp.net")
_MENTION = re.compile(r"<[@#][!&]?\d{1,20}>")
_COMMAND = re.compile(r"[-_a-z0-9]{1,32}")


class SavedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state that survives a restart."""

    session: GatewaySession | None = msgspec.field(default=None, name="place")
    channels: dict[str, str] = {}
    """Channel → its last submitted message."""


def is_saved_state(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=SavedState)
    except msgspec.MsgspecError:
        return False
    return True


class CreatedObject(msgspec.Struct, frozen=True, kw_only=True):
    """A created message or channel."""

    id: str = ""


class OpenCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A slash command that is answered through its own token."""

    application_id: str
    token: str
    since: float
    """Arrival time by the monotonic clock."""
    answered: bool = False
    """Whether its deferred response has been replaced."""


class DiscordChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: DiscordAccount = context.account.settings
        self._bookmark = context.bookmark("session", BOOKMARK_CHARS, is_saved_state)
        self._connection: DiscordConnection | None = None
        self._files: aiohttp.ClientSession | None = None
        self._own = OwnUser("")
        self._rooms = Rooms()
        self._channels: RecentDict[str, str] = RecentDict(MAX_CHANNELS)
        """Channel → its last submitted message."""
        self._pending: set[int] = set()
        """The sequence numbers of the events in progress."""
        self._tasks = ConversationTasks(context.log, MAX_PENDING)
        self._received: RecentDict[str, Inbound] = RecentDict()
        """Message → its ``Inbound`` without text, because a deletion does not name the author."""
        self._direct: RecentDict[str, str] = RecentDict()
        """Person → their direct channel."""
        self._titles: RecentDict[str, str] = RecentDict()
        """Message → the name of a thread that starts with it."""
        self._threads: RecentDict[str, str] = RecentDict()
        """Thread → the channel that receives its messages: itself, or its parent if it could not be created."""
        self._starters: RecentDict[str, str | None] = RecentDict()
        """Thread → the text of its first message."""
        self._commands: RecentDict[str, OpenCommand] = RecentDict()
        """Message id of a slash command → its token."""
        self._reconnect = Reconnect(context, RECONNECT)

    async def run(self) -> None:
        token = await self._token()
        connection = await asyncio.to_thread(open_connection, token, self._settings, self._on_event)
        self._files = new_session()
        try:
            self._connection = connection
            await self._bookmark.load()
            await self._listen(connection, self._restore_state())
        finally:
            self._connection = None
            # Unfinished events are delivered again after the restart.
            self._move_bookmark(connection.session())
            await self._tasks.close()
            await self._bookmark.close()
            await self._files.close()
            await connection.close()

    async def _token(self) -> str:
        secret = await secret_of(self._context, self._settings.token, "token", "DISCORD_BOT_TOKEN")
        token = secret.removeprefix("Bot ").strip()
        redact.register([token])
        return token

    def _restore_state(self) -> GatewaySession | None:
        saved = msgspec.json.decode(self._bookmark.last_id or "{}", type=SavedState)
        self._channels.update(saved.channels)
        return saved.session

    # The gateway

    async def _listen(self, connection: DiscordConnection, session: GatewaySession | None) -> None:
        reconnect, logged_in = self._reconnect, False
        while True:
            try:
                if not logged_in:
                    user = await connection.login()
                    self._own, logged_in = OwnUser(user.id, user.username), True
                await connection.listen(await connection.gateway_url(), session, self._tasks.room)
            except DiscordFailed as failure:
                if failure.kind == "token":
                    raise NotConfigured(str(failure)) from None
                await reconnect.failed(str(failure), failure.retry_after_s or 0.0)
            except GatewayLost as lost:
                if lost.hopeless:
                    raise NotConfigured(str(lost)) from None
                session = connection.session() if lost.resume else None
                await reconnect.failed(str(lost))

    def _on_event(self, event: str, number: int, data: Any) -> None:
        """Start a task for a gateway event. The library calls this synchronously."""
        if event == "RESUMED":
            self._start("", number, self._resumed)
        elif event == "READY":
            match data:
                case {"application": {"id": str(application_id)}}:
                    pass
                case _:
                    application_id = self._own.id
            # A new session starts here. Earlier messages have to be fetched.
            self._start("", number, partial(self._connected, application_id, dict(self._channels)))
        elif event in ROOM_EVENTS:
            try:
                self._rooms.update(event, data)
            except (msgspec.ValidationError, AttributeError) as error:
                self._context.log.warning("skipped an invalid event from Discord: %s", error)
        elif event.startswith(("MESSAGE_", "INTERACTION_")):
            channel = str(data.get("channel_id")) if isinstance(data, dict) else ""
            self._start(channel, number, partial(self._handle, event, data))

    def _start(self, channel: str, number: int, work: Callable[[], Awaitable[None]]) -> None:
        self._pending.add(number)

        async def tracked() -> None:
            try:
                await work()
            finally:
                self._pending.discard(number)
            if self._connection is not None:
                self._move_bookmark(self._connection.session())

        self._tasks.start(channel, tracked)

    def _move_bookmark(self, session: GatewaySession | None) -> None:
        """Persist the session up to the first pending event."""
        if session is not None and self._pending:
            session = msgspec.structs.replace(session, sequence=min(min(self._pending) - 1, session.sequence))
        state = SavedState(session=session, channels=dict(self._channels))
        self._bookmark.move_to(msgspec.json.encode(state).decode())

    async def _resumed(self) -> None:
        self._reconnect.connected()

    async def _connected(self, application_id: str, last_messages: dict[str, str]) -> None:
        """Set up a new session. ``last_messages`` are the last submitted messages before it, by channel."""
        self._reconnect.connected()
        connection = self._connection
        if connection is None:
            return
        await self._register_commands(connection, application_id)
        for channel, last in last_messages.items():
            await self._catch_up(connection, channel, last)

    async def _catch_up(self, connection: DiscordConnection, channel: str, last: str) -> None:
        """Submit the messages of a channel that no session delivered, oldest first."""
        for _ in range(CATCH_UP_REQUESTS):
            missed = await self._missed(connection, channel, last)
            room = self._rooms.rooms.get(channel)
            for message in reversed(missed):
                guild = {"guild_id": room.guild_id} if room and room.guild_id else {}
                await self._handle("MESSAGE_CREATE", {**guild, **message})
            if len(missed) < CATCH_UP:
                return
            last = str(missed[0].get("id"))
        self._context.log.warning("too many missed messages in channel %s; the newest are not fetched", channel)

    async def _missed(self, connection: DiscordConnection, channel: str, last: str) -> list[Mapping[str, object]]:
        """Return the messages after the last one, newest first. Empty if they cannot be fetched."""
        path = f"/channels/{{channel_id}}/messages?after={last}&limit={CATCH_UP}"
        for attempt in range(1, CATCH_UP_TRIES + 1):
            try:
                messages = await connection.request("GET", path, {"channel_id": channel})
                return [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
            except DiscordFailed as failure:
                self._context.log.warning("missed messages in channel %s were not fetched: %s", channel, failure)
                if failure.permanent:
                    self._channels.pop(channel, None)
                    return []
                await self._context.clock.sleep(retry_delay_s(RECONNECT, attempt, failure.retry_after_s, random.random))
        return []

    async def _register_commands(self, connection: DiscordConnection, application_id: str) -> None:
        argument = {"type": 3, "name": "input", "description": "Arguments of the command", "required": False}
        commands = [
            {
                "type": 1,
                "name": command.name.lower(),
                "description": command.description.strip()[:100] or command.name,
                **({"options": [argument]} if command.takes_text else {}),
            }
            for command in self._context.commands()
            if _COMMAND.fullmatch(command.name.lower())
        ][:100]
        params = {"application_id": application_id}
        try:
            await connection.request("PUT", "/applications/{application_id}/commands", params, body=commands)
        except DiscordFailed as failure:
            self._context.log.warning("the command menu was not set: %s", failure)

    # One event

    async def _handle(self, event: str, data: Any) -> None:
        try:
            if event in ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK"):
                await self._deleted(data)
                return
            await self._ensure_room(data)
            account, bots = self._context.account.id, self._settings.allow_bots
            interpreted = interpret(event, data, self._own, account, self._rooms, bots=bots)
        except (msgspec.ValidationError, RecursionError) as error:
            self._context.log.warning("skipped an invalid event from Discord: %s", error)
            return
        if interpreted is not None:
            await self._submit(interpreted, data)
        if event == "MESSAGE_CREATE" and isinstance(data.get("id"), str):
            channel, message_id = str(data["channel_id"]), data["id"]
            if message_id.isdigit() and int(message_id) > int(self._channels.get(channel, "0")):
                self._channels[channel] = message_id

    async def _ensure_room(self, data: Any) -> None:
        """Fetch a server's channel, and the parent of a thread, that no gateway event has described."""
        if not isinstance(data, dict) or not data.get("guild_id"):
            return
        channel_id, connection = str(data.get("channel_id") or ""), self._connection
        for _ in range(2):
            if connection is None or not channel_id or channel_id in self._rooms.rooms:
                return
            try:
                channel = await connection.request("GET", "/channels/{channel_id}", {"channel_id": channel_id})
                self._rooms.update("CHANNEL_CREATE", channel)
            except (DiscordFailed, msgspec.ValidationError) as problem:
                self._context.log.info("channel %s could not be fetched: %s", channel_id, problem)
                if not isinstance(problem, DiscordFailed) or problem.kind in ("gone", "refused"):
                    self._rooms.rooms[channel_id] = Room(id=channel_id)
                return
            room = self._rooms.rooms.get(channel_id)
            channel_id = (room.parent_id or "") if room and room.type in THREADS else ""

    async def _submit(self, event: DiscordEvent, data: Any) -> None:
        inbound = event.inbound
        if isinstance(event, Posted | CommandEvent) and inbound.peer.kind == "direct":
            self._direct[inbound.peer.id] = str(data["channel_id"])
        if isinstance(event, CommandEvent):
            await self._submit_command(event)
            return
        if isinstance(event, Posted):
            if inbound.can_start_thread:
                self._titles[inbound.message_id] = thread_name(inbound.text, inbound.message_id)
            if inbound.thread_id is not None and inbound.thread_starter is None and not inbound.own_thread:
                inbound.thread_starter = await self._starter(inbound)
            without_text = msgspec.structs.replace(inbound, text="", media=(), quoted=None, untrusted=())
            self._received[inbound.message_id] = without_text
        guild = self._settings.guilds.get(inbound.guild_id or "")
        if isinstance(event, Reacted) and guild is not None and guild.reaction_notifications is not None:
            if wants_reaction(self._settings, event, guild.reaction_notifications):
                await submit(self._context, inbound, self._context.notice)
            return
        await submit_event(self._context, event, self._fetch)

    async def _starter(self, inbound: Inbound) -> str | None:
        """Return the text of a thread's first message, which has the thread's id."""
        thread, connection = str(inbound.thread_id), self._connection
        try:
            if thread in self._starters or connection is None or not await self._context.admits(inbound):
                return self._starters.get(thread)
        except OSError:
            return None  # Submitting the message itself retries until the disk works.
        parent = inbound.parent_peer.id if inbound.parent_peer else thread
        # The first message of a forum post is in the thread itself.
        params = {"channel_id": parent if self._rooms.type_of(parent) in TEXT_ROOMS else thread, "message_id": thread}
        try:
            message = await connection.request("GET", "/channels/{channel_id}/messages/{message_id}", params)
            starter = message_text(message, self._own, self._rooms)
        except (DiscordFailed, msgspec.ValidationError):
            starter = None
        self._starters[thread] = starter
        return starter

    async def _deleted(self, data: Any) -> None:
        ids = data.get("ids") if isinstance(data, dict) else None
        for item in ids if isinstance(ids, list) else [data]:
            deleted = msgspec.convert({**data, "id": item} if isinstance(item, str) else item, DeletedMessage)
            if (inbound := self._received.pop(deleted.id, None)) is not None:
                await submit(self._context, inbound, self._context.deleted)

    async def _submit_command(self, event: CommandEvent) -> None:
        """Submit a command and acknowledge it to the platform in time."""
        command = event.inbound.message_id
        self._commands[command] = OpenCommand(
            application_id=event.application_id, token=event.token, since=self._context.clock.monotonic()
        )
        task = asyncio.create_task(submit(self._context, event.inbound))
        try:
            await asyncio.wait([task], timeout=ANSWER_INTERACTION_S)
            rejected = task.done() and not task.cancelled() and task.exception() is None and not task.result()
            if rejected:
                response: Any = {"type": 4, "data": {"content": "You may not use this bot.", "flags": 64}}
            else:
                response = {"type": 6 if event.press else 5}
            if rejected or event.press:
                self._commands.pop(command, None)
            await self._answer_interaction(event, response)
            await task
        finally:
            task.cancel()

    async def _answer_interaction(self, event: CommandEvent, response: Any) -> None:
        path = "/interactions/{id}/{token}/callback"
        try:
            if self._connection is not None:
                await self._connection.request("POST", path, {"id": event.id, "token": event.token}, body=response)
        except DiscordFailed as failure:
            self._commands.pop(event.inbound.message_id, None)
            self._context.log.warning("a command could not be acknowledged: %s", failure)

    async def _fetch(self, file: DiscordAttachment) -> Media:
        if not is_trusted_url(file.url, self._settings.api_root, _FILE_HOSTS):
            raise NotFetched("it is not on a Discord server")
        return await store_file(
            self._context, await download(self._context, require_running(self._files, "Discord"), file.url), file
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
        first, message_id = self._body(route, message), ""
        if len(files) == 1 and files[0].seconds is not None and not message.text.strip():
            first |= voice_body(files[0])
        for start in range(0, max(len(files), 1), MAX_FILES):
            body = first if start == 0 else {}
            group = tuple(files[start : start + MAX_FILES])
            posted_id = await self._post(connection, route, {**body, "nonce": nonce(key, start)}, group)
            message_id = message_id or posted_id
        return SendReceipt(message_id=message_id)

    def _body(self, route: Route, message: OutgoingMessage) -> dict[str, object]:
        body: dict[str, object] = {
            "content": render(message.text, "discord", tables=self._settings.markdown.tables).text,
            # Nobody may use the agent to ping a whole server.
            "allowed_mentions": {"parse": ["users"], "replied_user": False},
            "enforce_nonce": True,
        }
        quoted = message.reply_to_id or ""
        if quoted == str(route.thread_id):
            quoted = ""  # A thread's first message is in the parent channel and cannot be quoted from the thread.
        if is_number(quoted):
            body["message_reference"] = {"message_id": quoted, "fail_if_not_exists": False}
        if message.buttons:
            rows = [[_button(button) for button in row] for row in message.buttons]
            body["components"] = [{"type": 1, "components": row} for row in rows]
        return body

    async def _post(
        self, connection: DiscordConnection, route: Route, body: Mapping[str, object], files: tuple[Upload, ...]
    ) -> str:
        command_id = route.reply_to_id
        command = self._commands.get(command_id)
        if command is not None and self._context.clock.monotonic() - command.since < INTERACTION_S:
            # A webhook accepts neither nonces nor references.
            unsupported = ("nonce", "enforce_nonce", "message_reference")
            plain = {name: value for name, value in body.items() if name not in unsupported}
            path = "/webhooks/{application_id}/{token}" + ("" if command.answered else "/messages/@original")
            params = {"application_id": command.application_id, "token": command.token}
            method = "POST" if command.answered else "PATCH"
            posted = await connection.request(method, path, params, body=plain, files=files)
            self._commands[command_id] = msgspec.structs.replace(command, answered=True)
        else:
            channel = await self._channel_of(connection, route)
            path = "/channels/{channel_id}/messages"
            posted = await connection.request("POST", path, {"channel_id": channel}, body=body, files=files)
        return converted(posted, CreatedObject).id

    async def _channel_of(
        self, connection: DiscordConnection, route: Route, message: OutgoingMessage | None = None
    ) -> str:
        """Return the channel of a route, opening a direct channel or starting a thread if needed.

        With a ``message`` that changes an earlier one, return the channel of that one.
        """
        peer = parse_address(route.to)
        if peer.kind != "direct":
            thread = str(route.thread_id or peer.id)
            if message is not None and message.target_id == thread:
                room = self._rooms.rooms.get(thread)
                return (room.parent_id if room else None) or peer.id
            return peer.id if thread == peer.id else await self._thread(connection, peer.id, thread)
        if (direct := self._direct.get(peer.id)) is not None:
            return direct
        opened = await connection.request("POST", "/users/@me/channels", body={"recipient_id": peer.id})
        channel = self._direct[peer.id] = converted(opened, CreatedObject).id
        return channel

    async def _thread(self, connection: DiscordConnection, channel: str, thread: str) -> str:
        """Start the thread at its message, once. Returns the channel instead if that is not possible."""
        if (existing := self._threads.get(thread)) is not None:
            return existing
        body = {"name": self._titles.get(thread) or f"Thread {thread}", "auto_archive_duration": ARCHIVE_MINUTES}
        params, target = {"channel_id": channel, "message_id": thread}, thread
        try:
            created = await connection.request(
                "POST", "/channels/{channel_id}/messages/{message_id}/threads", params, body=body
            )
            self._rooms.update("THREAD_CREATE", created)
        except msgspec.ValidationError:
            pass
        except DiscordFailed as failure:
            if failure.kind not in ("refused", "gone"):
                raise
            if failure.code != THREAD_EXISTS:
                self._context.log.warning("no thread was started; the reply goes to the channel: %s", failure)
                target = channel
        self._threads[thread] = target
        return target

    async def _change(self, connection: DiscordConnection, channel: str, message: OutgoingMessage) -> SendReceipt:
        target = message.target_id
        if not is_number(target):
            raise SendFailed(f"{target!r} is not a Discord message id", permanent=True)
        allowed = self._settings.actions
        switches = {"react": ("reactions", allowed.reactions), "pin": ("pins", allowed.pins)}
        key, on = switches.get(message.act, ("messages", allowed.messages))
        require_action(self._context, key, on)
        path = "/channels/{channel_id}/messages/{message_id}"
        params = {"channel_id": channel, "message_id": target}
        match message.act:
            case "edit":
                body = self._body(Route(channel="discord"), message)
                content = {name: body[name] for name in ("content", "allowed_mentions")}
                await connection.request("PATCH", path, params, body=content)
            case "delete":
                try:
                    await connection.request("DELETE", path, params)
                except DiscordFailed as failure:
                    if failure.kind != "gone":
                        raise
            case "pin":
                method = "DELETE" if message.remove else "PUT"
                await connection.request(method, "/channels/{channel_id}/messages/pins/{message_id}", params)
            case _:
                method = "DELETE" if message.remove else "PUT"
                params["emoji"] = message.emoji
                await connection.request(method, f"{path}/reactions/{{emoji}}/@me", params)
        return SendReceipt(message_id=target)

    async def typing(self, route: Route, on: bool) -> None:
        if not on:  # The indicator expires by itself.
            return
        connection = self._started()
        channel = await self._channel_of(connection, route)
        await connection.request("POST", "/channels/{channel_id}/typing", {"channel_id": channel})

    async def probe(self) -> Mapping[str, object]:
        user = await self._started().request("GET", "/users/@me")
        bot = {name: user.get(name) for name in ("id", "username")} if isinstance(user, dict) else {}
        return {"ok": True, "bot": bot}

    def _started(self) -> DiscordConnection:
        if self._connection is None or not self._own.id:
            raise SendFailed("Discord is not running", reached=False)
        return self._connection


def nonce(key: str, number: int = 0) -> str:
    """Return a nonce of at most 25 characters, by which Discord deduplicates messages for some minutes."""
    return hashlib.sha256(f"{key}:{number}".encode()).hexdigest()[:25]


def thread_name(text: str, message_id: str) -> str:
    """Return the name of a thread that starts with a message."""
    title = " ".join(_MENTION.sub("", text).split())
    return shortened(title, MAX_THREAD_NAME) if title else f"Thread {message_id}"


def voice_body(file: Upload) -> dict[str, object]:
    """Return the fields of a voice message, which consists of exactly one recording."""
    attachment = {"id": "0", "filename": file.name, "duration_secs": file.seconds, "waveform": _WAVE}
    return {"flags": VOICE_MESSAGE, "attachments": [attachment]}


def _button(button: Button) -> Mapping[str, object]:
    data = button.data or button.text
    if len(data) > 100:
        raise SendFailed(f"the button {button.text!r} carries more than 100 characters", permanent=True)
    return {"type": 2, "style": 2, "label": button.text[:80], "custom_id": data}
