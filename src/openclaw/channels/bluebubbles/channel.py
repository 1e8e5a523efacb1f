"""One BlueBubbles server: receives through its webhook and sends through its HTTP calls.

The server posts an event once and never again. So what came since the last known message is also asked for, after every
start and from time to time; dedupe drops what was heard already.
"""

from __future__ import annotations

import asyncio
import random
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, WebhookAnswer, WebhookRequest, offer, secret_of
from openclaw.channels.bluebubbles.incoming import (
    EMOJI,
    BbAttachment,
    BbMessage,
    BubbleEdit,
    BubblePost,
    BubbleUnsend,
    Tapback,
    decode_event,
    decode_message,
    interpret,
)
from openclaw.channels.bluebubbles.kind import chat_guid
from openclaw.channels.bookmark import Remembered
from openclaw.channels.media import (
    MB,
    NotFetched,
    fetch_files,
    files_to_send,
    kept_file,
    of_admitted,
    read_within,
    safe_file_name,
)
from openclaw.channels.webhook import ConversationOrder, ReadReceipts, answered, is_same
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema.channels import BlueBubblesAccount
from openclaw.http_body import read_bounded
from openclaw.inbound.message import Media, Route
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.rendering import render
from openclaw.outbound.reply import REPEAT_MARK, MediaRef, OutgoingMessage, SendFailed, SendReceipt

RECONNECT = Backoff(initial_s=1.0, max_s=30.0)
CHECK_S = 60.0
TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 90.0
"""The Mac answers when Messages has sent the text, which can take long."""
FETCH_S = 45.0
NOT_OFFERED = (404, 405, 501)
"""The server does not know the call."""
MAX_ANSWER = 16 * 1024 * 1024
PAGE = 100
MAX_PAGES = 50
OVERLAP_MS = 60_000
"""Messages may arrive in another order than that of their times. What was heard already starts nothing."""
_TAPBACK_OF = {sign.rstrip("\ufe0f"): name for name, sign in EMOJI.items()}


class ServerRefused(SendFailed):
    """The server answered with an error. ``status`` is its HTTP status."""

    status: int = 0


class BlueBubblesChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: BlueBubblesAccount = context.account.settings
        account, base = context.account.id, f"channels.{context.channel}"
        self._where = base if account == DEFAULT_ACCOUNT else f"{base}.accounts.{account}"
        url = (self._settings.server_url or "").strip().rstrip("/")
        self._root = url if "://" in url else f"http://{url}"
        self._password = ""
        self._private_api = False
        self._http: aiohttp.ClientSession | None = None
        self._bookmark = context.bookmark("last-message")
        self._turns = ConversationOrder()
        self._receipts = ReadReceipts(self._mark_read, context.clock)
        self._taken: Remembered[bool] = Remembered()
        """Messages that are on disk."""
        self._arrived: Remembered[str] = Remembered()
        """Keys of our messages → their ids."""
        self._ours: Remembered[bool] = Remembered()
        self._tried_at: Remembered[int] = Remembered()
        """Keys of our messages → when they were first sent."""
        self._ahead_ms = 0
        """How far the clock of the server is ahead of ours."""

    # Receiving

    async def run(self) -> None:
        self._password = await secret_of(self._context, self._settings.password, f"{self._where}.password")
        await self._bookmark.load()
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            self._http = http
            end = self._context.serve(self._settings.webhook_path, self._answer)
            try:
                await self._watch()
            finally:
                end()
                await self._receipts.close()
                self._http = None
                await self._bookmark.close()

    async def _watch(self) -> None:
        """Asks from time to time whether the server is there, and for what its webhook did not bring."""
        attempt = 0
        while True:
            try:
                about = await self._about()
                self._private_api = bool(about.get("private_api")) and about.get("helper_connected") is not False
                await self._catch_up()
            except SendFailed as failure:
                if isinstance(failure, ServerRefused) and failure.status in (401, 403):
                    raise NotConfigured(f"{self._where}.password: {failure}") from None
                attempt += 1
                self._context.disconnected(str(failure))
                await self._context.clock.sleep(RECONNECT.delay_s(attempt, random.random))
                continue
            attempt = 0
            self._context.connected()
            await self._context.clock.sleep(CHECK_S)

    async def _about(self) -> dict[str, Any]:
        """What the server says about itself. One that cannot say it is there if it answers a ping."""
        try:
            return _mapping((await self._call("GET", "server/info")).get("data"))
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            await self._call("GET", "ping")
            return {}

    async def _catch_up(self) -> None:
        """Asks for what the webhook did not bring, if the server can be asked."""
        try:
            await self._take_missed()
        except ServerRefused as refusal:
            if refusal.status not in NOT_OFFERED:
                raise
            self._context.log.info("what came while the Gateway was away cannot be asked for: %s", refusal)

    async def _take_missed(self) -> None:
        """Takes in what came since the bookmark. At the very first start nothing is: old messages stay unanswered."""
        if not self._bookmark.last_id.isdigit():
            newest = await self._query({"limit": 1, "sort": "DESC"})
            self._bookmark.move_to(str(newest[0].date_created or 1) if newest else "1")
            return
        after = int(self._bookmark.last_id) - OVERLAP_MS
        for page in range(MAX_PAGES):
            found = await self._query({"after": after, "sort": "ASC", "limit": PAGE, "offset": page * PAGE})
            for message in found:
                if not self._taken.get(message.guid):
                    await self._hear("new-message", message)
            if len(found) < PAGE:
                return

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
            self._context.log.warning("a request without the password (%s.password) was refused", self._where)
            return WebhookAnswer(status=401, text="the password is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        return await answered(partial(self._take, request.body), self._context.log)

    def _knows_password(self, request: WebhookRequest) -> bool:
        """The address of the webhook names the password, as every address of the server's own API does."""
        given = [request.query.get(name, "") for name in ("password", "guid", "token")]
        given += [request.headers.get(name, "") for name in ("x-password", "x-guid", "x-bluebubbles-guid")]
        given.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        return any(is_same(one, self._password) for one in given if one)

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

    async def _hear(self, kind: str, message: BbMessage) -> None:
        if message.is_from_me:
            self._ours.put(message.guid, True)
            if message.temp_guid:
                self._arrived.put(message.temp_guid, message.guid)
        match interpret(kind, message, self._context.channel, self._context.account.id):
            case BubblePost() as post:
                async with self._turns.of(post.inbound.to):
                    await self._hear_post(post)
            case BubbleEdit(inbound=inbound):
                await self._context.edited(inbound)
            case BubbleUnsend(inbound=inbound):
                await self._context.deleted(inbound)
            case Tapback() as tapback if kind == "new-message" and self._wants(tapback):
                await self._context.notice(tapback.inbound)
            case _:
                pass
        if kind == "new-message":
            self._taken.put(message.guid, True)
            if (message.date_created or 0) > int(self._bookmark.last_id or 0):
                self._bookmark.move_to(str(message.date_created))

    async def _hear_post(self, post: BubblePost) -> None:
        inbound = post.inbound
        if self._taken.get(inbound.message_id):
            return
        if post.files:
            media, notes = await of_admitted(
                self._context,
                inbound,
                lambda: fetch_files(post.files, lambda file: file.transfer_name or file.mime_type, self._fetch),
            )
            inbound.media, inbound.untrusted = media, (*inbound.untrusted, *notes)
        taken = await offer(self._context, inbound)
        self._taken.put(inbound.message_id, True)
        if taken and self._settings.send_read_receipts and self._private_api:
            self._receipts.add(inbound.to, inbound.message_id)

    async def _mark_read(self, chat: str, message_id: str) -> None:
        try:
            await self._call("POST", f"chat/{quote(chat_guid(chat), safe='')}/read", timeout_s=5.0)
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    def _wants(self, tapback: Tapback) -> bool:
        match self._settings.reaction_notifications:
            case "off":
                return False
            case "own":
                # Ids of ours are known since the start. In a direct chat people react to us or to themselves.
                return self._ours.get(tapback.target) is not None or tapback.inbound.peer.kind == "direct"
            case "all":
                return True
            case "allowlist":
                allowed = {str(entry).strip().lower() for entry in self._settings.reaction_allowlist}
                return "*" in allowed or tapback.inbound.sender.id.lower() in allowed

    async def _fetch(self, file: BbAttachment) -> Media:
        limit, where = int(self._settings.media_max_mb * MB), f"{self._where}.mediaMaxMb"
        if (file.total_bytes or 0) > limit:
            raise NotFetched(f"it is larger than {limit / MB:g} MB ({where})")
        address = f"{self._root}/api/v1/attachment/{quote(file.guid, safe='')}/download"
        try:
            async with (
                asyncio.timeout(FETCH_S),
                self._session().get(address, params={"password": self._password}, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise NotFetched(f"the server answered {answer.status}")
                data = await read_within(answer, limit, where)
        except TimeoutError:
            raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
        except aiohttp.ClientError as error:
            raise NotFetched(f"the connection to the server broke ({type(error).__name__})") from None
        return await kept_file(self._context.blobs, data, file.mime_type, file.transfer_name)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        chat = chat_guid(route.to or "")
        if message.act != "send":
            return await self._change(chat, message)
        text = render(message.text, "plain", tables=self._settings.markdown.tables).text
        files = await files_to_send(self._context, message, self._settings.media_max_mb)
        if not text.strip() and not files:
            raise SendFailed("there is nothing to send", permanent=True)
        first_try = self._tried_at.get(key)
        if first_try is None:
            self._tried_at.put(key, self._context.clock.now_ms())
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
                self._arrived.put(part, arrived)
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
        guid = str(_mapping(answer.get("data")).get("guid") or "")
        self._arrived.put(key, guid)
        self._ours.put(guid, True)
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
                raise SendFailed(f"{self._where}.actions does not allow it", permanent=True)
        return SendReceipt(message_id=message.target_id)

    async def typing(self, route: Route, on: bool) -> None:
        if self._private_api:
            chat = quote(chat_guid(route.to or ""), safe="")
            await self._call("POST" if on else "DELETE", f"chat/{chat}/typing", timeout_s=5.0)

    async def probe(self) -> dict[str, Any]:
        try:
            about = await self._about()
        except SendFailed as failure:
            return {"ok": False, "error": str(failure)}
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
        data = form if form is not None else msgspec.json.encode(json) if json is not None else None
        headers = {"Content-Type": "application/json"} if json is not None else {}
        address, query = f"{self._root}/api/v1/{path}", {"password": self._password}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session().request(
                    method, address, params=query, data=data, headers=headers, allow_redirects=False
                ) as answer,
            ):
                body = await read_bounded(answer, MAX_ANSWER)
                self._ahead_ms = _ahead_ms(answer.headers.get("Date", ""), self._context.clock.now_ms())
        except TimeoutError:
            raise SendFailed(f"the server gave no answer within {timeout_s:g} s", maybe_sent=True) from None
        except aiohttp.ClientConnectorError as error:
            raise SendFailed(f"the server cannot be reached: {error.os_error}", reached=False) from None
        except (aiohttp.ClientError, ValueError) as error:
            problem = f"the connection to the server broke ({type(error).__name__})"
            raise SendFailed(problem, reached=False, maybe_sent=True) from None
        given = _decoded(body)
        if not 200 <= answer.status < 300:
            raise failure_of(answer.status, given)
        return given

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise SendFailed("the channel is not running", reached=False)
        return self._http


def failure_of(status: int, answer: dict[str, Any]) -> ServerRefused:
    told = _mapping(answer.get("error"))
    words = str(told.get("message") or answer.get("message") or f"HTTP {status}")[:300]
    queued = "already queued" in words.lower()
    refused = status in (401, 403)
    failure = ServerRefused(
        f"the BlueBubbles server refused it: {words} (HTTP {status})",
        permanent=400 <= status < 500 and status not in (408, 429) and not queued and not refused,
        reached=not refused,
        maybe_sent=status >= 500 or status == 408 or queued,
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


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return _mapping(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
