"""One BlueBubbles server: receives through its webhook and sends through its HTTP calls.

The server posts an event once and never again. So what came since the last known message is also asked for, after every
start and from time to time; dedupe drops what was heard already.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any
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
    running,
    secret_of,
)
from openclaw.channels.bluebubbles import chat_guid, normalize_handle
from openclaw.channels.bookmark import Remembered
from openclaw.channels.http import call, download, mapping, new_session, retry_after_s
from openclaw.channels.media import files_to_send, kept_file, safe_file_name
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    ConversationOrder,
    Deleted,
    Edited,
    Posted,
    Reacted,
    ReadReceipts,
    confirm_webhook,
    reaction_text,
    secrets_equal,
    submit_event,
)
from openclaw.clock import Backoff
from openclaw.config.schema.channels import BlueBubblesAccount
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Route, Sender
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import REPEAT_MARK, MediaRef, OutgoingMessage, SendFailed, SendReceipt

PLACEHOLDER = "\ufffc"
"""Stands in the text for a file."""
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
"""The Mac answers when Messages has sent the text, which can take long."""
NOT_OFFERED = (404, 405, 501)
"""The server does not know the call."""
PAGE = 100
MAX_PAGES = 50
OVERLAP_MS = 60_000
"""Messages may arrive in another order than that of their times. What was heard already starts nothing."""
_TAPBACK_OF = {sign.rstrip("\ufe0f"): name for name, sign in EMOJI.items()}


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
        """Whether what was missed is taken in. Until then the webhook leaves the bookmark alone."""
        self._turns = ConversationOrder()
        self._receipts = ReadReceipts(self._mark_read, context.clock)
        self._taken: Remembered[str, bool] = Remembered()
        """Messages that are on disk."""
        self._arrived: Remembered[str, str] = Remembered()
        """Keys of our messages → their ids."""
        self._ours: Remembered[str, bool] = Remembered()
        self._tried_at: Remembered[str, int] = Remembered()
        """Keys of our messages → when they were first sent."""
        self._ahead_ms = 0
        """How far the clock of the server is ahead of ours."""

    # Receiving

    async def run(self) -> None:
        self._password = await secret_of(self._context, self._settings.password, "password")
        await self._bookmark.load()
        async with new_session() as http:
            self._http = http
            end = self._context.serve(self._settings.webhook_path, self._answer)
            try:
                await Reconnect(self._context, RECONNECT).while_checked(self._check, CHECK_S)
            finally:
                end()
                await self._receipts.close()
                self._http = None
                await self._bookmark.close()

    async def _check(self) -> None:
        """Asks whether the server is there, and for what its webhook did not bring."""
        try:
            about = await self._about()
            self._private_api = bool(about.get("private_api")) and about.get("helper_connected") is not False
            await self._catch_up()
        except ServerRefused as refusal:
            if refusal.status in (401, 403):
                raise NotConfigured(f"{self._context.key('password')}: {refusal}") from None
            raise

    async def _about(self) -> dict[str, Any]:
        """What the server says about itself. One that cannot say it is there if it answers a ping."""
        try:
            return mapping((await self._call("GET", "server/info")).get("data"))
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            await self._call("GET", "ping")
            return {}

    async def _catch_up(self) -> None:
        """Takes in what the webhook did not bring since the bookmark, if the server can be asked.

        At the very first start nothing is taken in: old messages stay unanswered.
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
                found = await self._query({"after": after, "sort": "ASC", "limit": PAGE, "offset": page * PAGE})
                for message in found:
                    if not self._taken.get(message.guid):
                        await self._hear("new-message", message)
                    self._move_bookmark(message)
                if len(found) < PAGE:
                    self._caught_up = True
                    return
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            self._context.log.info("what came while the Gateway was away cannot be asked for: %s", refusal)

    async def _query(self, wanted: dict[str, Any]) -> list[BbMessage]:
        body = {"with": ["chat", "chats", "attachment", "handle"], **wanted}
        answer = await self._call("POST", "message/query", json=body)
        found: list[BbMessage] = []
        for row in answer.get("data") or ():
            try:
                found.append(msgspec.convert(row, BbMessage))
            except msgspec.ValidationError as error:
                self._context.log.warning("a message of the server was not understood: %s", error)
        return found

    async def _answer(self, request: WebhookRequest) -> WebhookAnswer:
        if not self._knows_password(request):
            return WebhookAnswer(status=401, text="the password is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        return await confirm_webhook(self._take(request.body), self._context.log)

    def _knows_password(self, request: WebhookRequest) -> bool:
        """The address of the webhook names the password, as every address of the server's own API does."""
        given = [request.query.get(name, "") for name in ("password", "guid", "token")]
        given += [request.headers.get(name, "") for name in ("x-password", "x-guid", "x-bluebubbles-guid")]
        given.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        return any(secrets_equal(one, self._password) for one in given if one)

    async def _take(self, body: bytes) -> None:
        try:
            event = decode_event(body)
            if event.type not in ("new-message", "updated-message"):
                return
            message = decode_message(event.data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._context.log.warning("an event of BlueBubbles was not understood and is passed over: %s", error)
            return
        await self._hear(event.type, message)
        if self._caught_up and event.type == "new-message":
            self._move_bookmark(message)

    async def _hear(self, kind: str, message: BbMessage) -> None:
        if message.is_from_me:
            self._ours[message.guid] = True
            if message.temp_guid:
                self._arrived[message.temp_guid] = message.guid
        event = interpret(kind, message, self._context.channel, self._context.account.id, self._is_ours)
        if isinstance(event, Posted):
            async with self._turns.of(event.inbound.to):
                await self._hear_post(event)
        elif event is not None:
            await submit_event(self._context, event)
        if kind == "new-message":
            self._taken[message.guid] = True

    def _move_bookmark(self, message: BbMessage) -> None:
        if (message.date_created or 0) > int(self._bookmark.last_id):
            self._bookmark.move_to(str(message.date_created))

    def _is_ours(self, message_id: str) -> bool:
        return self._ours.get(message_id) is not None

    async def _hear_post(self, post: Posted) -> None:
        inbound = post.inbound
        if self._taken.get(inbound.message_id):
            return
        taken = await submit_event(self._context, post, self._fetch)
        self._taken[inbound.message_id] = True
        if taken and self._settings.send_read_receipts and self._private_api:
            self._receipts.add(inbound.to, inbound.message_id)

    async def _mark_read(self, chat: str, message_id: str) -> None:
        try:
            await self._call("POST", f"chat/{quote(chat_guid(chat), safe='')}/read", timeout_s=5.0)
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    async def _fetch(self, file: BbAttachment) -> Media:
        address = f"{self._root}/api/v1/attachment/{quote(file.guid, safe='')}/download"
        http = running(self._http, "BlueBubbles")
        return await kept_file(
            self._context, await download(self._context, http, address, query={"password": self._password}), file
        )

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        chat = chat_guid(route.to or "")
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
        body: dict[str, Any] = {"chatGuid": chat, "tempGuid": key, "message": text, "method": self._method()}
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

    def _sent(self, key: str, answer: dict[str, Any]) -> str:
        guid = str(mapping(answer.get("data")).get("guid") or "")
        self._arrived[key] = guid
        self._ours[guid] = True
        return guid

    async def _find(self, chat: str, key: str, text: str, first_try: int | None) -> str | None:
        """The id of our text if an earlier try brought it there, ``""`` if none did, None if nobody knows.

        The server drops a second text with the same key only while it sends the first.
        """
        if (arrived := self._arrived.get(key)) is not None:
            return arrived
        if first_try is None:
            return None
        try:
            after = first_try + self._ahead_ms - 5000
            found = await self._query({"chatGuid": chat, "after": after, "sort": "ASC", "limit": PAGE})
        except SendFailed as failure:
            self._context.log.info("whether a message has arrived cannot be looked up: %s", failure)
            return None
        return next((one.guid for one in found if one.is_from_me and (one.text or "").strip() == text.strip()), "")

    async def _change(self, chat: str, message: OutgoingMessage) -> SendReceipt:
        """Edits or takes back a message of ours, or reacts to one of anybody. All of it needs the Private API."""
        actions, target = self._settings.actions, quote(message.target_id, safe="")
        if not message.target_id:
            raise SendFailed("the message must be named", permanent=True)
        if not self._private_api:
            raise SendFailed("this needs the Private API of the BlueBubbles server, which is off", permanent=True)
        match message.act:
            case "edit" if actions.edit:
                text = render(message.text, "plain", tables=self._settings.markdown.tables).text
                words = {"editedMessage": text, "backwardsCompatibilityMessage": f"Edited to: {text}", "partIndex": 0}
                await self._call("POST", f"message/{target}/edit", json=words)
            case "delete" if actions.unsend:
                await self._call("POST", f"message/{target}/unsend", json={"partIndex": 0})
            case "react" if actions.reactions:
                name = _TAPBACK_OF.get(message.emoji.strip().rstrip("\ufe0f"), message.emoji.strip().lower())
                if name not in EMOJI:
                    signs = " ".join(EMOJI.values())
                    raise SendFailed(f"iMessage reacts with {signs} only", permanent=True)
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
            chat = quote(chat_guid(route.to or ""), safe="")
            await self._call("POST" if on else "DELETE", f"chat/{chat}/typing", timeout_s=5.0)

    async def probe(self) -> dict[str, Any]:
        about = await self._about()
        return {"ok": True, "version": about.get("server_version"), "privateApi": bool(about.get("private_api"))}

    def _method(self) -> str:
        return "private-api" if self._private_api else "apple-script"

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, Any] | None = None,
        form: aiohttp.FormData | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Calls the server. Raises ``SendFailed``. The password is in the address, so no error shows the address."""
        http, address = running(self._http, "BlueBubbles"), f"{self._root}/api/v1/{path}"
        query = {"password": self._password}
        answer, given = await call(
            http, "the server", method, address, json=json, form=form, query=query, timeout_s=timeout_s
        )
        self._ahead_ms = _ahead_ms(answer.headers.get("Date", ""), self._context.clock.now_ms())
        if not 200 <= answer.status < 300:
            raise failure_of(answer.status, given, retry_after_s(answer.headers))
        return given


class ServerRefused(SendFailed):
    """The server answered with an error. ``status`` is its HTTP status."""

    status: int = 0


def failure_of(status: int, answer: dict[str, Any], asked_s: float | None = None) -> ServerRefused:
    told = mapping(answer.get("error"))
    words = str(told.get("message") or answer.get("message") or f"HTTP {status}")[:300]
    queued = "already queued" in words.lower()
    refused = status in (401, 403)
    failure = ServerRefused(
        f"the BlueBubbles server refused it: {words} (HTTP {status})",
        permanent=400 <= status < 500 and status not in (408, 429) and not queued and not refused,
        reached=not refused,
        maybe_sent=status >= 500 or status == 408 or queued,
        retry_after_s=asked_s,
    )
    failure.status = status
    return failure


def _ahead_ms(date: str, now_ms: int) -> int:
    """How far the clock of the server is ahead of ours. Differences of a few seconds do not count."""
    try:
        ahead = int(parsedate_to_datetime(date).timestamp() * 1000) - now_ms
    except ValueError:
        return 0
    return ahead if abs(ahead) > 5000 else 0


# What an event means


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
    """Other than 0: somebody joined, left, or named the group."""
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
    """What an event says. None for our own messages, receipts, and what happens to a group.

    ``is_ours`` says whether a message id is one that we sent.
    """
    sender = normalize_handle(message.handle.address) if message.handle else ""
    if message.is_from_me or not message.guid or not sender or message.item_type:
        return None
    # Not every server names the chat of a direct message.
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
    sign = EMOJI.get(name) or (message.associated_message_emoji or "")[:16]
    if not sign:
        return None  # A sticker or a game that is put on a message.
    # The id is "p:<part>/<guid>" or "bp:<guid>".
    target = (message.associated_message_guid or "").rpartition("/")[2].rpartition(":")[2]
    # Ids of ours are known since the start. In a direct chat people react to us or to themselves.
    to_us = is_ours(target) or inbound.peer.kind == "direct"
    inbound.text = reaction_text(inbound, sign, "your message" if to_us else "a message", target, removed=removed)
    return Reacted(inbound=inbound, to_us=to_us)


def _tapback_name(given: Any) -> tuple[str, bool]:
    """The name of a tapback, and whether it was taken back. Older servers tell a number, newer ones a word."""
    if isinstance(given, str) and given.lstrip("-").isdigit():
        given = int(given)
    if isinstance(given, int):
        return TAPBACKS.get(given if given < 3000 else given - 1000, ""), given >= 3000
    word = str(given or "")
    return word.removeprefix("-"), word.startswith("-")
