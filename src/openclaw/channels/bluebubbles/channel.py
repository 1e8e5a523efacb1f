"""One BlueBubbles server: receives through its webhook and sends through its HTTP calls.

The server posts each event only once. So the channel also queries the messages since its bookmark, at every start and
then periodically; deduplication drops repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import aiohttp
import msgspec

from openclaw.channels.base import (
    ChannelContext,
    NotConfigured,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    is_number,
    require_running,
    secret_of,
)
from openclaw.channels.bluebubbles import chat_guid, normalize_handle
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.http import call, converted, download, new_session, retry_after_s
from openclaw.channels.media import files_to_send, safe_file_name, store_file
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    Deleted,
    Edited,
    Posted,
    PostSubmitter,
    Reacted,
    ReadReceipts,
    confirm_webhook,
    reaction_text,
    secrets_equal,
    submit_event,
)
from openclaw.clock import Backoff
from openclaw.config.schema.channels import BlueBubblesAccount
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Sender
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import REPEAT_MARK, MediaRef, OutgoingMessage, SendFailed, SendReceipt

PLACEHOLDER = "\ufffc"
"""Marks the position of a file in the text."""
TAPBACKS = {
    2000: "love",
    2001: "like",
    2002: "dislike",
    2003: "laugh",
    2004: "emphasize",
    2005: "question",
}
EMOJI = {"love": "❤️", "like": "👍", "dislike": "👎", "laugh": "😂", "emphasize": "‼️", "question": "❓"}
_GROUP_STYLE = 43
RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
CHECK_S = 60.0
TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 90.0
"""The Mac answers only after Messages has sent the text, which can take long."""
NOT_OFFERED = (404, 405, 501)
"""Statuses of a server that does not have an endpoint."""
PAGE = 100
MAX_PAGES = 50
OVERLAP_MS = 60_000
"""Messages may arrive out of order, so a query starts this long before the bookmark."""
_TAPBACK_OF = {emoji.rstrip("\ufe0f"): name for name, emoji in EMOJI.items()}


class BlueBubblesChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: BlueBubblesAccount = context.account.settings
        url = (self._settings.server_url or "").strip().rstrip("/")
        self._root = url if "://" in url else f"http://{url}"
        self._password = ""
        self._private_api = False
        self._http: aiohttp.ClientSession | None = None
        self._bookmark = context.bookmark("last-message", is_id=is_number)
        self._caught_up = False
        """Whether the missed messages are submitted. Until then the webhook does not move the bookmark."""
        self._posts = PostSubmitter(context, self._fetch)
        self._receipts = ReadReceipts(self._mark_read, context.clock)
        self._arrived: RecentDict[str, str] = RecentDict()
        """Key of a sent message → its id."""
        self._ours: RecentDict[str, None] = RecentDict()
        """The ids of sent messages."""
        self._tried_at: RecentDict[str, int] = RecentDict()
        """Key of a sent message → time of its first attempt."""
        self._ahead_ms = 0
        """How far the server's clock is ahead of ours."""

    # Receiving

    async def run(self) -> None:
        self._password = await secret_of(self._context, self._settings.password, "password")
        await self._bookmark.load()
        async with new_session() as http:
            self._http = http
            stop_serving = self._context.serve(self._settings.webhook_path, self._on_webhook)
            try:
                await Reconnect(self._context, RECONNECT).poll(self._check, CHECK_S)
            finally:
                stop_serving()
                await self._receipts.close()
                self._http = None
                await self._bookmark.close()

    async def _check(self) -> None:
        """Check the server, and query the messages that its webhook did not deliver."""
        try:
            info = await self._server_info()
            self._private_api = info.private_api and info.helper_connected is not False
            await self._catch_up()
        except ServerRefused as refusal:
            if refusal.status in (401, 403):
                raise NotConfigured(f"{self._context.key('password')}: {refusal}") from None
            raise

    async def _server_info(self) -> ServerInfo:
        """Return the server's description of itself. An old server without one must at least answer a ping."""
        try:
            return converted((await self._call("GET", "server/info")).data, ServerInfo)
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            await self._call("GET", "ping")
            return ServerInfo()

    async def _catch_up(self) -> None:
        """Submit the messages since the bookmark that the webhook did not deliver, if the server supports queries.

        The very first start submits nothing, so that old messages stay unanswered.
        """
        try:
            if not is_number(self._bookmark.last_id):
                newest = await self._query({"limit": 1, "sort": "DESC"})
                self._bookmark.move_to(str(newest[0].date_created or 1) if newest else "1")
                self._caught_up = True
                return
            self._caught_up = False
            after = int(self._bookmark.last_id) - OVERLAP_MS
            for page in range(MAX_PAGES):
                messages = await self._query({"after": after, "sort": "ASC", "limit": PAGE, "offset": page * PAGE})
                for message in messages:
                    if message.guid not in self._posts.submitted:
                        await self._handle("new-message", message)
                    self._move_bookmark(message)
                if len(messages) < PAGE:
                    self._caught_up = True
                    return
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            self._context.log.info("messages sent while the Gateway was down cannot be queried: %s", refusal)

    async def _query(self, filters: Mapping[str, object]) -> list[BbMessage]:
        body = {"with": ["chat", "chats", "attachment", "handle"], **filters}
        rows = (await self._call("POST", "message/query", json=body)).data
        messages: list[BbMessage] = []
        for row in rows if isinstance(rows, list) else ():
            try:
                messages.append(msgspec.convert(row, BbMessage))
            except msgspec.ValidationError as error:
                self._context.log.warning("skipped an invalid message from the server: %s", error)
        return messages

    async def _on_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        if not self._has_password(request):
            return WebhookAnswer(status=401, text="the password is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        return await confirm_webhook(self._receive(request.body), self._context.log)

    def _has_password(self, request: WebhookRequest) -> bool:
        """Return whether the request holds the password, which the server's API also expects in the URL."""
        passwords = [request.query.get(name, "") for name in ("password", "guid", "token")]
        passwords += [request.headers.get(name, "") for name in ("x-password", "x-guid", "x-bluebubbles-guid")]
        passwords.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        return any(secrets_equal(password, self._password) for password in passwords if password)

    async def _receive(self, body: bytes) -> None:
        try:
            event = decode_event(body)
            if event.type not in ("new-message", "updated-message"):
                return
            message = decode_message(event.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("skipped an invalid event from BlueBubbles: %s", error)
            return
        await self._handle(event.type, message)
        if self._caught_up and event.type == "new-message":
            self._move_bookmark(message)

    async def _handle(self, kind: str, message: BbMessage) -> None:
        if message.is_from_me:
            self._ours[message.guid] = None
            if message.temp_guid:
                self._arrived[message.temp_guid] = message.guid
        event = interpret(kind, message, self._context.channel, self._context.account.id, self._is_ours)
        if isinstance(event, Posted):
            admitted = await self._posts.submit(event)
            if admitted and self._settings.send_read_receipts and self._private_api:
                self._receipts.add(event.inbound.to, event.inbound.message_id)
        elif event is not None:
            await submit_event(self._context, event)
        if kind == "new-message":
            self._posts.submitted[message.guid] = None

    def _move_bookmark(self, message: BbMessage) -> None:
        if (message.date_created or 0) > int(self._bookmark.last_id):
            self._bookmark.move_to(str(message.date_created))

    def _is_ours(self, message_id: str) -> bool:
        return message_id in self._ours

    async def _mark_read(self, chat: str, message_id: str) -> None:
        try:
            await self._call("POST", f"chat/{quote(chat_guid(chat), safe='')}/read", timeout_s=5.0)
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    async def _fetch(self, file: BbAttachment) -> Media:
        url = f"{self._root}/api/v1/attachment/{quote(file.guid, safe='')}/download"
        http = require_running(self._http, "BlueBubbles")
        return await store_file(
            self._context, await download(self._context, http, url, query={"password": self._password}), file
        )

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        chat = chat_guid(route.to)
        if message.act != "send":
            return await self._change(chat, message)
        text = render(message.text, "plain", tables=self._settings.markdown.tables).text
        files = await files_to_send(self._context, message)
        first_try = self._tried_at.get(key)
        if first_try is None:
            self._tried_at[key] = self._context.clock.now_ms()
        receipt = SendReceipt()
        if text.strip():
            bare = text.removeprefix(f"{REPEAT_MARK} ") if message.possibly_duplicate else text
            arrived = await self._find(chat, key, bare, first_try)
            if arrived == "":
                text = bare
            receipt = SendReceipt(message_id=arrived or await self._send_text(chat, message, text, key))
        for number, (media, data) in enumerate(files):
            part = f"{key}/{number}"
            if (arrived := self._arrived.get(part)) is None:
                arrived = await self._send_file(chat, media, data, part)
                self._arrived[part] = arrived
            receipt = SendReceipt(message_id=arrived)
        return receipt

    async def _send_text(self, chat: str, message: OutgoingMessage, text: str, key: str) -> str:
        body: dict[str, object] = {"chatGuid": chat, "tempGuid": key, "message": text, "method": self._method()}
        if message.reply_to_id and self._private_api:
            body |= {"selectedMessageGuid": message.reply_to_id, "partIndex": 0}
        return self._sent(key, await self._call("POST", "message/text", json=body, timeout_s=SEND_TIMEOUT_S))

    async def _send_file(self, chat: str, media: MediaRef, data: bytes, key: str) -> str:
        name = safe_file_name(media)
        form = aiohttp.FormData(quote_fields=False)
        for field, value in (("chatGuid", chat), ("tempGuid", key), ("name", name), ("method", self._method())):
            form.add_field(field, value)
        if media.voice:
            form.add_field("isAudioMessage", "true")
        form.add_field("attachment", data, filename=name, content_type=media.mime_type)
        return self._sent(key, await self._call("POST", "message/attachment", form=form, timeout_s=SEND_TIMEOUT_S))

    def _sent(self, key: str, response: BbResponse) -> str:
        guid = converted(response.data, SentText).guid or ""
        self._arrived[key] = guid
        self._ours[guid] = None
        return guid

    async def _find(self, chat: str, key: str, text: str, first_try: int | None) -> str | None:
        """Return the id of the text if an earlier attempt delivered it, ``""`` if none did, or None if unknown.

        The server deduplicates by key only while it is sending the first text.
        """
        if (arrived := self._arrived.get(key)) is not None:
            return arrived
        if first_try is None:
            return None
        try:
            after = first_try + self._ahead_ms - 5000
            messages = await self._query({"chatGuid": chat, "after": after, "sort": "ASC", "limit": PAGE})
        except SendFailed as failure:
            self._context.log.info("cannot check whether a message has arrived: %s", failure)
            return None
        own = (message for message in messages if message.is_from_me)
        return next((message.guid for message in own if (message.text or "").strip() == text.strip()), "")

    async def _change(self, chat: str, message: OutgoingMessage) -> SendReceipt:
        """Edit or unsend one of the agent's messages, or react to any message. Requires the Private API."""
        actions, target = self._settings.actions, quote(message.target_id, safe="")
        if not message.target_id:
            raise SendFailed("the id of the message is missing", permanent=True)
        if not self._private_api:
            raise SendFailed("this needs the Private API of the BlueBubbles server, which is off", permanent=True)
        match message.act:
            case "edit" if actions.edit:
                text = render(message.text, "plain", tables=self._settings.markdown.tables).text
                edit = {"editedMessage": text, "backwardsCompatibilityMessage": f"Edited to: {text}", "partIndex": 0}
                await self._call("POST", f"message/{target}/edit", json=edit)
            case "delete" if actions.unsend:
                await self._call("POST", f"message/{target}/unsend", json={"partIndex": 0})
            case "react" if actions.reactions:
                name = _TAPBACK_OF.get(message.emoji.strip().rstrip("\ufe0f"), message.emoji.strip().lower())
                if name not in EMOJI:
                    emoji = " ".join(EMOJI.values())
                    raise SendFailed(f"iMessage only supports the reactions {emoji}", permanent=True)
                reaction = f"-{name}" if message.remove else name
                body = {
                    "chatGuid": chat,
                    "selectedMessageGuid": message.target_id,
                    "reaction": reaction,
                    "partIndex": 0,
                }
                await self._call("POST", "message/react", json=body)
            case _:
                raise SendFailed(f"{self._context.key('actions')} does not allow it", permanent=True)
        return SendReceipt(message_id=message.target_id)

    async def typing(self, route: Route, on: bool) -> None:
        if self._private_api:
            chat = quote(chat_guid(route.to), safe="")
            await self._call("POST" if on else "DELETE", f"chat/{chat}/typing", timeout_s=5.0)

    async def probe(self) -> Mapping[str, object]:
        info = await self._server_info()
        return {"ok": True, "version": info.server_version, "privateApi": info.private_api}

    def _method(self) -> str:
        return "private-api" if self._private_api else "apple-script"

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, object] | None = None,
        form: aiohttp.FormData | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> BbResponse:
        """Call the server. Raises ``SendFailed``. The password is in the URL, so no error shows the URL."""
        http, url = require_running(self._http, "BlueBubbles"), f"{self._root}/api/v1/{path}"
        query = {"password": self._password}
        response, body = await call(
            http, "the server", method, url, BbResponse, json=json, form=form, query=query, timeout_s=timeout_s
        )
        self._ahead_ms = _ahead_ms(response.headers.get("Date", ""), self._context.clock.now_ms())
        if not 200 <= response.status < 300:
            raise failure_of(response.status, body, retry_after_s(response.headers))
        return body


class BbError(msgspec.Struct, frozen=True, kw_only=True):
    message: str | None = None


class BbResponse(msgspec.Struct, frozen=True, kw_only=True):
    message: object = None
    data: object = None
    error: object = None
    """A ``BbError``."""


class SentText(msgspec.Struct, frozen=True, kw_only=True):
    guid: str | None = None


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    server_version: str | None = None
    private_api: bool = False
    helper_connected: bool | None = None
    """Whether the Private API's helper runs. Old servers do not report it."""


class ServerRefused(SendFailed):
    """The server returned an error. ``status`` is the HTTP status."""

    status: int = 0


def failure_of(status: int, body: BbResponse, wait_s: float | None = None) -> ServerRefused:
    text = str(converted(body.error, BbError).message or body.message or f"HTTP {status}")[:300]
    # The server is still sending an earlier attempt.
    queued = "already queued" in text.lower()
    unauthorized = status in (401, 403)
    failure = ServerRefused(
        f"the BlueBubbles server rejected it: {text} (HTTP {status})",
        permanent=400 <= status < 500 and status not in (408, 429) and not queued and not unauthorized,
        reached=not unauthorized,
        maybe_sent=status >= 500 or status == 408 or queued,
        retry_after_s=wait_s,
    )
    failure.status = status
    return failure


def _ahead_ms(date: str, now_ms: int) -> int:
    """Return how far the server's clock is ahead of ours, ignoring differences of a few seconds."""
    try:
        ahead = int(parsedate_to_datetime(date).timestamp() * 1000) - now_ms
    except ValueError:
        return 0
    return ahead if abs(ahead) > 5000 else 0


# Incoming events


class BbHandle(msgspec.Struct, frozen=True, kw_only=True):
    address: str = ""


class BbChat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    display_name: str | None = None
    style: int | None = None


class BbAttachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    mime_type: str | None = None
    name: str | None = msgspec.field(default=None, name="transferName")
    size: int | None = msgspec.field(default=None, name="totalBytes")
    hide_attachment: bool | None = None


class BbMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    temp_guid: str | None = None
    text: str | None = None
    handle: BbHandle | None = None
    chats: tuple[BbChat, ...] | None = None
    chat_guid: str | None = None
    attachments: tuple[BbAttachment, ...] | None = None
    is_from_me: bool | None = None
    date_created: int | None = None
    date_edited: int | None = None
    date_retracted: int | None = None
    item_type: int | None = None
    """Not 0 for group changes: somebody joined, left, or named the group."""
    associated_message_guid: str | None = None
    associated_message_type: str | int | None = None
    associated_message_emoji: str | None = None
    thread_originator_guid: str | None = None


class BbEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")


decode_event = msgspec.json.Decoder(BbEvent).decode
decode_message = msgspec.json.Decoder(BbMessage).decode


def interpret(
    kind: str, message: BbMessage, channel: str, account_id: str, is_ours: Callable[[str], bool]
) -> ChannelEvent | None:
    """Translate an event. Returns None for our own messages, receipts and group changes.

    ``is_ours`` reports whether the agent sent a message id.
    """
    sender = normalize_handle(message.handle.address) if message.handle else ""
    if message.is_from_me or not message.guid or not sender or message.item_type:
        return None
    # Some servers omit the chat of a direct message.
    chat = message.chats[0] if message.chats else BbChat(guid=message.chat_guid or f"iMessage;-;{sender}")
    if not chat.guid:
        return None
    group = ";+;" in chat.guid or chat.style == _GROUP_STYLE
    inbound = Inbound(
        channel=channel,
        account_id=account_id,
        message_id=message.guid,
        peer=Peer(kind="group", id=chat.guid) if group else Peer(kind="direct", id=sender),
        sender=Sender(id=sender, e164=sender if sender.startswith("+") else None),
        to=f"chat_guid:{chat.guid}",
        text=(message.text or "").replace(PLACEHOLDER, "").strip("\n")[:MAX_TEXT],
        timestamp_ms=message.date_created or 0,
        can_detect_mention=False,
        group_subject=(chat.display_name or "").strip() or None if group else None,
    )
    if message.associated_message_guid and message.associated_message_type:
        return _tapback(inbound, message, is_ours) if kind == "new-message" else None
    if kind == "updated-message":
        if message.date_retracted:
            return Deleted(inbound=inbound)
        if message.date_edited:
            inbound.revision = str(message.date_edited)
            return Edited(inbound=inbound)
        return None
    if message.thread_originator_guid:
        inbound.quoted = Quoted(id=message.thread_originator_guid)
    files = tuple(file for file in message.attachments or () if file.guid and not file.hide_attachment)
    return Posted(inbound=inbound, files=files) if inbound.text.strip() or files else None


def _tapback(inbound: Inbound, message: BbMessage, is_ours: Callable[[str], bool]) -> Reacted | None:
    name, removed = _tapback_name(message.associated_message_type)
    emoji = EMOJI.get(name) or (message.associated_message_emoji or "")[:16]
    if not emoji:
        return None  # A sticker or a game on a message.
    # The id is "p:<part>/<guid>" or "bp:<guid>".
    target = (message.associated_message_guid or "").rpartition("/")[2].rpartition(":")[2]
    # The ids of sent messages are lost at a restart. In a direct chat most reactions are to the agent's messages.
    to_us = is_ours(target) or inbound.peer.kind == "direct"
    inbound.text = reaction_text(inbound, emoji, "your message" if to_us else "a message", target, removed=removed)
    return Reacted(inbound=inbound, to_us=to_us)


def _tapback_name(kind: str | int | None) -> tuple[str, bool]:
    """Return the name of a tapback and whether it was removed. Older servers send a number, newer ones a name."""
    if isinstance(kind, str) and kind.lstrip("-").isdigit():
        kind = int(kind)
    if isinstance(kind, int):
        return TAPBACKS.get(kind if kind < 3000 else kind - 1000, ""), kind >= 3000
    name = kind or ""
    return name.removeprefix("-"), name.startswith("-")
