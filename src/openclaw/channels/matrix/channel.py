"""One Matrix account: follows its rooms through sync, and sends, edits and redacts messages.

An event goes ``_follow`` → ``_handle_batch`` → ``_handle`` → ``submit_event``. The sync token advances only when all
messages of a batch are on disk, so that the server sends them again after a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, Reconnect, require_action, require_running, secret_of
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.matrix import MatrixKind, parse_address
from openclaw.channels.matrix.client import (
    UNKNOWN_TOKEN,
    LoggedIn,
    MatrixClient,
    MatrixFailed,
    RoomUpdate,
    SyncResult,
)
from openclaw.channels.matrix.incoming import (
    InviteEvent,
    MatrixFile,
    OwnAccount,
    RoomEvent,
    RoomFacts,
    RoomMessage,
    RoomReaction,
    UnreadableEvent,
    interpret,
    is_direct,
    quoted_of,
)
from openclaw.channels.media import NotFetched, files_to_send, safe_file_name, store_file
from openclaw.channels.submit import Deleted, Edited, Reacted, ReadReceipts, reaction_text, submit_event
from openclaw.clock import Backoff
from openclaw.config.schema.channels import MatrixAccount
from openclaw.inbound.message import Media, Quoted
from openclaw.inbound.prompt_text import display_name
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed, SendReceipt
from openclaw.redact import register
from openclaw.storage.documents import SharedDocument
from openclaw.storage.files.disk import FileDocuments

RECONNECT = Backoff(initial_s=1.0, max_s=60.0)
JOIN_TRIES = 3
_MESSAGES = ("m.room.message", "m.sticker", "m.room.encrypted")
_HTML = "org.matrix.custom.html"


class MatrixChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: MatrixAccount = context.account.settings
        self._kind = MatrixKind(context.environ)
        self._homeserver = self._kind.address(context.account.id, self._settings)
        self._reconnect = Reconnect(context, RECONNECT)
        self._bookmark = context.bookmark("sync-token")
        # The keys of an encrypted account are files of this machine, so its login must stay here.
        local = self._settings.encryption and context.documents.shared
        self._login: SharedDocument[dict[str, str]] = SharedDocument(
            FileDocuments(context.state_dir) if local else context.documents,
            "login.json" if local else context.document("login.json"),
            empty=dict,
            decode=lambda data: msgspec.json.decode(data, type=dict[str, str]),
            encode=msgspec.json.encode,
            damaged="drop",
            consequence="the account logs in again",
        )
        self._client: MatrixClient | None = None
        self._is_connected = False
        self._token_refused = False
        """The server rejected the token and has not accepted another one since."""
        self._me = OwnAccount("")
        self._direct: dict[str, list[str]] = {}
        self._aliases: dict[str, str] = {}
        """Room → its alias in the configuration."""
        self._rooms: RecentDict[str, RoomFacts] = RecentDict()
        self._authors: RecentDict[str, str] = RecentDict()
        """Message → its author. A dropped entry is fetched again."""
        self._unreadable: set[str] = set()
        self._receipts = ReadReceipts(self._mark_read, context.clock)

    # The connection

    async def run(self) -> None:
        if self._settings.encryption and not MatrixClient.can_encrypt():
            key = self._context.key("encryption")
            raise NotConfigured(f"{key} needs its library: pip install 'matrix-nio[e2e]'; or set it to false")
        await self._bookmark.load()
        user = self._kind.user_id(self._context.account.id, self._settings)
        store = self._context.state_dir
        if self._settings.encryption:
            await asyncio.to_thread(store.mkdir, 0o700, parents=True, exist_ok=True)
        client = MatrixClient(self._homeserver, user, encryption=self._settings.encryption, store=store)
        try:
            await self._follow(client)
        finally:
            self._client = None
            await self._receipts.close()
            await self._bookmark.close()
            await client.close()

    async def _follow(self, client: MatrixClient) -> None:
        """Sync until cancelled, retrying when the server fails."""
        while True:
            try:
                if self._client is None:
                    await self._begin(client)
                    self._client = client
                batch = await client.sync(self._bookmark.last_id, wait=self._is_connected)
                if not self._is_connected:
                    self._is_connected, self._token_refused = True, False
                    self._reconnect.connected()
                await self._handle_batch(client, batch)
                self._bookmark.move_to(batch.next)
            except (MatrixFailed, TimeoutError) as failure:
                self._is_connected = False
                if isinstance(failure, MatrixFailed):
                    await self._check(failure)
                wait_s = failure.retry_after_s if isinstance(failure, MatrixFailed) else None
                await self._reconnect.failed(str(failure) or "the server took too long", wait_s or 0.0)

    async def _check(self, failure: MatrixFailed) -> None:
        """Raise ``NotConfigured`` if a retry cannot succeed."""
        if failure.code in UNKNOWN_TOKEN:
            # The stored login is invalid, but a password allows a new one.
            self._client, repeated, self._token_refused = None, self._token_refused, True
            if repeated or not await self._can_log_in():
                key = self._context.key("accessToken")
                raise NotConfigured(f"{self._homeserver} does not accept the access token: set {key}")
        elif failure.code in ("M_USER_DEACTIVATED", "M_USER_LOCKED", "M_USER_SUSPENDED"):
            raise NotConfigured(f"{self._homeserver} does not admit the account: {failure}")
        elif failure.status == 400 and self._client is not None and self._bookmark.last_id:
            self._context.log.error("the server rejected the sync token (%s); continuing from now", failure)
            self._bookmark.last_id = ""

    async def _begin(self, client: MatrixClient) -> None:
        await self._log_in(client)
        self._direct = await client.direct_rooms()
        self._me = OwnAccount(client.user_id)
        for alias in [name for name in self._settings.groups if name.startswith("#")]:
            try:
                self._aliases[await client.resolve(alias)] = alias
            except MatrixFailed as failure:
                self._context.log.warning("%s in groups cannot be resolved: %s", alias, failure)

    # Login

    async def _log_in(self, client: MatrixClient) -> None:
        settings = self._settings
        if token := await self._access_token():
            await client.use(token, client.user_id, settings.device_id or "")
            return
        stored = await self._stored_login()
        if stored is not None and stored.homeserver == self._homeserver and stored.user_id == client.user_id:
            register([stored.access_token])
            try:
                await client.use(stored.access_token, stored.user_id, stored.device_id)
                return
            except MatrixFailed as failure:
                if failure.code not in UNKNOWN_TOKEN:
                    raise
        password = await self._password()
        device = settings.device_id or (stored.device_id if stored else "")
        try:
            identity = await client.log_in(password, device, settings.device_name)
        except MatrixFailed as failure:
            if failure.status == 403:
                raise NotConfigured(
                    f"{self._homeserver} rejected the login of {client.user_id}: check {self._context.key('password')}"
                ) from None
            raise
        register([identity.access_token])
        await self._login.change(lambda login: login.update(msgspec.to_builtins(identity)))

    async def _stored_login(self) -> LoggedIn | None:
        try:
            login = await self._login.current()
            return msgspec.convert(login, LoggedIn) if login else None
        except (OSError, msgspec.ValidationError) as error:
            self._context.log.warning("%s cannot be read: %s", self._login.place, error)
            return None

    async def _can_log_in(self) -> bool:
        return not await self._access_token() and bool(await self._password())

    async def _access_token(self) -> str:
        token = self._settings.access_token
        return await secret_of(self._context, token, "accessToken", "MATRIX_ACCESS_TOKEN", needed=False)

    async def _password(self) -> str:
        return await secret_of(self._context, self._settings.password, "password", "MATRIX_PASSWORD", needed=False)

    # Receiving

    async def _handle_batch(self, client: MatrixClient, batch: SyncResult) -> None:
        if batch.direct is not None:
            self._direct = batch.direct
            self._rooms.clear()
        for room_id, state in batch.invites.items():
            await self._invited(client, room_id, state)
        for update in batch.rooms:
            if any(event.type in ("m.room.member", "m.room.name") for event in (*update.state, *update.events)):
                self._rooms.pop(update.room_id, None)
            if self._bookmark.last_id:
                for event in await self._new_events(client, update):
                    await self._handle(client, update.room_id, event)

    async def _new_events(self, client: MatrixClient, update: RoomUpdate) -> list[RoomEvent]:
        """Return the unseen events of a room. For a room that we just joined, those since our invitation."""
        events = update.events
        joined = [index for index, event in enumerate(events) if self._is_our_membership(event, "join")]
        if joined:
            invited = [index for index, event in enumerate(events) if self._is_our_membership(event, "invite")]
            return events[(invited or joined)[-1] :]
        if update.limited and update.before:
            try:
                return await client.missed(update.room_id, update.before, self._bookmark.last_id) + events
            except MatrixFailed as failure:
                if not failure.permanent:
                    raise
        return events

    def _is_our_membership(self, event: RoomEvent, membership: str) -> bool:
        mine = event.type == "m.room.member" and event.state_key == self._me.id
        return mine and event.content.get("membership") == membership

    async def _handle(self, client: MatrixClient, room_id: str, event: RoomEvent) -> None:
        if event.state_key is not None:
            return
        if event.type in _MESSAGES:
            self._authors[event.event_id] = event.sender
        if event.sender == self._me.id:
            return
        room = await self._facts(client, room_id)
        me = OwnAccount(self._me.id, room.members.get(self._me.id, ""))
        match interpret(event, room, me, self._context.account.id, self._settings.thread_replies):
            case RoomMessage() as message:
                await self._submit(client, room, message)
            case Edited() | Deleted() as change:
                if await self._author(client, room_id, change.inbound.message_id) == event.sender:
                    await submit_event(self._context, change)
            case RoomReaction(inbound=inbound, target_id=target_id, emoji=emoji):
                author = await self._author(client, room_id, target_id)
                to_us = author == self._me.id
                whose = "your message" if to_us else f"the message of {display_name(author or 'somebody')}"
                inbound.text = reaction_text(inbound, emoji, whose, target_id)
                await submit_event(self._context, Reacted(inbound=inbound, to_us=to_us))
            case UnreadableEvent() if room_id not in self._unreadable:
                self._unreadable.add(room_id)
                hint = (
                    "their keys are missing" if self._settings.encryption else f"see {self._context.key('encryption')}"
                )
                self._context.log.warning("messages in %s are encrypted and cannot be read (%s)", room_id, hint)
            case _:
                pass

    async def _submit(self, client: MatrixClient, room: RoomFacts, message: RoomMessage) -> None:
        inbound = message.inbound
        if message.quoted_id:
            inbound.quoted = await self._quoted(client, room.id, message.quoted_id)
        admitted = await submit_event(self._context, message, partial(self._fetch, client))
        if admitted and self._settings.send_read_receipts:
            self._receipts.add(room.id, inbound.message_id)

    async def _quoted(self, client: MatrixClient, room_id: str, event_id: str) -> Quoted:
        event = await self._event(client, room_id, event_id)
        return quoted_of(event, self._me) if event else Quoted(id=event_id)

    async def _fetch(self, client: MatrixClient, file: MatrixFile) -> Media:
        data = await client.download(file.url, self._context)
        if file.secret is not None:
            data = await asyncio.to_thread(_decrypted, data, file.secret)
        return await store_file(self._context, data, file)

    async def _author(self, client: MatrixClient, room_id: str, event_id: str) -> str | None:
        """Return the author of a message, or None if the event is unknown or not a message."""
        if (author := self._authors.get(event_id)) is not None:
            return author
        event = await self._event(client, room_id, event_id)
        if event is None or event.type not in _MESSAGES:
            return None
        self._authors[event_id] = event.sender
        return event.sender

    async def _event(self, client: MatrixClient, room_id: str, event_id: str) -> RoomEvent | None:
        try:
            return await client.event(room_id, event_id)
        except MatrixFailed as failure:
            if not failure.permanent:
                raise
            return None

    async def _mark_read(self, room_id: str, event_id: str) -> None:
        try:
            if self._client is not None:
                await self._client.read(room_id, event_id)
        except MatrixFailed as failure:
            self._context.log.info("a message was not marked as read: %s", failure)

    # Rooms

    async def _facts(self, client: MatrixClient, room_id: str) -> RoomFacts:
        if (cached := self._rooms.get(room_id)) is not None:
            return cached
        try:
            members = await client.members(room_id)
        except MatrixFailed as failure:
            if not failure.permanent:
                raise
            members = {}  # We have left the room.
        alias = self._aliases.get(room_id)
        name = (await client.state(room_id, "m.room.name")).get("name")
        room = RoomFacts(
            id=room_id,
            direct=self._is_direct(room_id, members) and alias is None and room_id not in self._settings.groups,
            name=name if isinstance(name, str) else None,
            alias=alias,
            members=members,
        )
        self._rooms[room_id] = room
        return room

    def _is_direct(self, room_id: str, members: dict[str, str]) -> bool:
        return is_direct(any(room_id in rooms for rooms in self._direct.values()), len(members))

    async def _invited(self, client: MatrixClient, room_id: str, state: list[InviteEvent]) -> None:
        invitation = next((event for event in state if event.state_key == self._me.id), InviteEvent())
        inviter = invitation.sender
        if not await self._accepts(client, room_id, inviter):
            self._context.log.info("rejected the invitation of %s to %s", inviter, room_id)
            return
        for attempt in range(1, JOIN_TRIES + 1):
            try:
                await client.join(room_id)
            except MatrixFailed as failure:
                self._context.log.warning("cannot join %s (try %d): %s", room_id, attempt, failure)
                if failure.permanent:
                    return
                await self._context.clock.sleep(failure.retry_after_s or RECONNECT.delay_s(attempt, random.random))
            else:
                if invitation.content.is_direct is True:
                    await self._mark_direct(client, inviter, room_id)
                return

    async def _mark_direct(self, client: MatrixClient, person: str, room_id: str) -> None:
        self._direct = {**self._direct, person: [*self._direct.get(person, []), room_id]}
        self._rooms.pop(room_id, None)
        try:
            await client.mark_direct(self._direct)
        except MatrixFailed as failure:
            self._context.log.warning("the server did not store that %s is a direct chat: %s", room_id, failure)

    async def _accepts(self, client: MatrixClient, room_id: str, inviter: str) -> bool:
        match self._settings.auto_join:
            case "always":
                return True
            case "off":
                return False
            case "allowlist":
                allowed = {entry.strip() for entry in self._settings.auto_join_allowlist}
                if allowed & {"*", room_id, inviter}:
                    return True
                for alias in [entry for entry in allowed if entry.startswith("#")]:
                    try:
                        if await client.resolve(alias) == room_id:
                            return True
                    except MatrixFailed as failure:
                        self._context.log.warning("%s cannot be resolved: %s", alias, failure)
                return False

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        client = require_running(self._client, "Matrix")
        room_id = await self._room_of(client, route.to)
        if message.act != "send":
            return SendReceipt(message_id=await self._change(client, room_id, message, key))
        relation = relates_to(message.reply_to_id, route.thread_id)
        files = await files_to_send(self._context, message)
        sent: list[str] = []
        if message.text:
            content = {**self._text_content(message.text), **relation}
            sent.append(await client.send(room_id, "m.room.message", content, transaction(key, "text")))
        for number, (media, data) in enumerate(files):
            content = {**await self._file_content(client, room_id, media, data), **relation}
            sent.append(await client.send(room_id, "m.room.message", content, transaction(key, f"file-{number}")))
        for event_id in sent:
            self._authors[event_id] = self._me.id
        return SendReceipt(message_id=sent[0])

    async def _change(self, client: MatrixClient, room_id: str, message: OutgoingMessage, key: str) -> str:
        """Edit or redact one of the agent's messages, or react to or pin any message."""
        target, name = message.target_id, transaction(key, message.act)
        if not target.startswith("$"):
            raise SendFailed(f"{target!r} is not a Matrix event id", permanent=True)
        match message.act:
            case "edit":
                new_content = self._text_content(message.text)
                relation = {"rel_type": "m.replace", "event_id": target}
                fallback = {**new_content, "body": f"* {new_content['body']}"}
                content = {**fallback, "m.new_content": new_content, "m.relates_to": relation}
                await client.send(room_id, "m.room.message", content, name)
            case "delete":
                await client.redact(room_id, target, name)
            case "pin":
                require_action(self._context, "pins", self._settings.actions.pins)
                await client.pin(room_id, target, pinned=not message.remove)
            case _ if message.remove:
                if reaction := await client.own_reaction(room_id, target, message.emoji):
                    await client.redact(room_id, reaction, name)
            case _:
                require_action(self._context, "reactions", self._settings.actions.reactions)
                relation = {"rel_type": "m.annotation", "event_id": target, "key": message.emoji}
                try:
                    await client.send(room_id, "m.reaction", {"m.relates_to": relation}, name)
                except MatrixFailed as failure:
                    if failure.code != "M_DUPLICATE_ANNOTATION":
                        raise
        return target

    def _text_content(self, text: str) -> Mapping[str, object]:
        rendered = render(text, "matrix", tables=self._settings.markdown.tables)
        formatted = {"format": _HTML, "formatted_body": rendered.html} if rendered.html else {}
        return {"msgtype": "m.text", "body": rendered.text, **formatted, "m.mentions": {}}

    async def _file_content(
        self, client: MatrixClient, room_id: str, media: MediaRef, data: bytes
    ) -> Mapping[str, object]:
        name = safe_file_name(media)
        encrypt = self._settings.encryption and client.is_encrypted(room_id)
        url, secret = await client.upload(data, media.mime_type, name, encrypt)
        kind = media.mime_type.partition("/")[0]
        source = {"file": {**secret, "url": url}} if encrypt else {"url": url}
        return {
            "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
            "body": name,
            "filename": name,
            "info": {"mimetype": media.mime_type, "size": len(data)},
            **source,
            **({"org.matrix.msc3245.voice": {}} if media.voice else {}),
        }

    async def _room_of(self, client: MatrixClient, to: str) -> str:
        """Return the room at an address. For a person, that is a direct room, which is created if needed."""
        address = parse_address(to)
        match address.kind:
            case "room":
                return address.id
            case "alias":
                return await client.resolve(address.id)
            case "user":
                for room_id in reversed(self._direct.get(address.id, [])):
                    facts = await self._facts(client, room_id)
                    if self._me.id in facts.members:
                        return room_id
                for facts in self._rooms.values():
                    if facts.direct and address.id in facts.members:
                        return facts.id
                room_id = await client.create_direct(address.id)
                await self._mark_direct(client, address.id, room_id)
                return room_id

    async def typing(self, route: Route, on: bool) -> None:
        client = require_running(self._client, "Matrix")
        await client.typing(await self._room_of(client, route.to), on)

    async def probe(self) -> Mapping[str, object]:
        client = require_running(self._client, "Matrix")
        return {"ok": True, "userId": await client.whoami(), "deviceId": client.device_id}


def transaction(key: str, part: str) -> str:
    """Return the transaction id of a part, by which the server deduplicates attempts."""
    return f"oc-{hashlib.sha256(f'{key}|{part}'.encode()).hexdigest()[:40]}"


def relates_to(reply_to: str | None, thread: str | int | None) -> Mapping[str, object]:
    """Return the relation of a message to its thread and to the message that it replies to."""
    replied = reply_to if reply_to and reply_to.startswith("$") else ""
    if thread is not None and str(thread).startswith("$"):
        fallback = {"m.in_reply_to": {"event_id": replied or str(thread)}, "is_falling_back": not replied}
        return {"m.relates_to": {"rel_type": "m.thread", "event_id": str(thread), **fallback}}
    return {"m.relates_to": {"m.in_reply_to": {"event_id": replied}}} if replied else {}


def _decrypted(data: bytes, secret: Any) -> bytes:
    from nio.crypto.attachments import decrypt_attachment
    from nio.exceptions import EncryptionError

    try:
        return decrypt_attachment(data, secret["key"]["k"], secret["hashes"]["sha256"], secret["iv"])
    except (EncryptionError, KeyError, TypeError, ValueError):
        raise NotFetched("it cannot be decrypted") from None
