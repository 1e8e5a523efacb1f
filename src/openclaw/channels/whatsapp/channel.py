"""One WhatsApp number: receives through a webhook of the Cloud API and sends through its HTTP calls.

A received message goes ``_answer`` → ``_take`` → ``_hear``; the platform is told once it is on disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from openclaw.channels.base import ChannelContext, NotConfigured, WebhookAnswer, WebhookRequest, offer, secret_of
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
from openclaw.channels.whatsapp.incoming import (
    Confirmed,
    FailedDelivery,
    WaError,
    WaFile,
    WhatsAppEvent,
    WhatsAppPost,
    WhatsAppReaction,
    explained,
    interpret,
    values_of,
    with_file,
)
from openclaw.channels.whatsapp.kind import recipient
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema.channels import WhatsAppAccount
from openclaw.http_body import read_bounded
from openclaw.inbound.message import Inbound, Media, Peer, Route, Sender
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.rendering import render
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed, SendReceipt

RECONNECT = Backoff(initial_s=2.0, max_s=120.0)
CHECK_S = 300.0
"""How often the token is tried while all is well."""
TIMEOUT_S = 30.0
FETCH_S = 45.0
MAX_ANSWER = 1024 * 1024
LONGEST_CAPTION = 1024
FILE_HOSTS = (".fbsbx.com", ".facebook.com", ".fbcdn.net", ".whatsapp.net", ".whatsapp.com")
_REFUSED = frozenset({0, 3, 10, 190})
_LIMITED = {4: 60.0, 80007: 60.0, 130429: 5.0, 131048: 300.0, 131056: 6.0}
"""Codes of rate limits → seconds until it is worth trying again."""
_TRY_AGAIN = frozenset({1, 2, 131000, 131016, 133004})
# fmt: off
_KINDS = {
    "image/jpeg": ("image", 5), "image/png": ("image", 5), "video/mp4": ("video", 16), "video/3gpp": ("video", 16),
    "audio/aac": ("audio", 16), "audio/mp4": ("audio", 16), "audio/mpeg": ("audio", 16), "audio/amr": ("audio", 16),
    "audio/ogg": ("audio", 16),
}
# fmt: on
"""MIME type → how WhatsApp shows it, up to how many MB. Everything else is a document."""


NO_CODE = -1


class GraphRefused(SendFailed):
    """The Cloud API answered with an error. ``status`` is that of HTTP."""

    code: int = NO_CODE
    status: int = 0


class WhatsAppChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: WhatsAppAccount = context.account.settings
        account = context.account.id
        self._where = "channels.whatsapp" if account == DEFAULT_ACCOUNT else f"channels.whatsapp.accounts.{account}"
        self._root = self._settings.api_root.rstrip("/")
        self._token = self._app_secret = self._verify_token = ""
        self._http: aiohttp.ClientSession | None = None
        self._turns = ConversationOrder()
        self._taken: Remembered[bool] = Remembered()
        """Messages that are on disk."""
        self._sent: Remembered[str] = Remembered()
        """Ids of our messages → the keys that they were sent with."""
        self._arrived: Remembered[str] = Remembered()
        """Keys of our messages → their ids."""
        self._last: Remembered[str] = Remembered()
        """Conversation → the person's last message. The typing sign belongs to it."""
        self._receipts = ReadReceipts(lambda _, message_id: self._mark_read(message_id), context.clock)

    # Receiving

    async def run(self) -> None:
        settings, where = self._settings, self._where
        self._token = await secret_of(
            self._context, settings.access_token, f"{where}.accessToken", "WHATSAPP_ACCESS_TOKEN"
        )
        self._app_secret = await secret_of(
            self._context, settings.app_secret, f"{where}.appSecret", "WHATSAPP_APP_SECRET"
        )
        self._verify_token = await secret_of(
            self._context, settings.verify_token, f"{where}.verifyToken", "WHATSAPP_VERIFY_TOKEN"
        )
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            self._http = http
            end = self._context.serve(self._settings.webhook_path, self._answer)
            try:
                await self._watch()
            finally:
                end()
                await self._receipts.close()
                self._http = None

    async def _watch(self) -> None:
        """Tries the token from time to time. What is posted to the webhook is heard all the while."""
        attempt = 0
        while True:
            try:
                await self._try_token()
            except SendFailed as failure:
                if isinstance(failure, GraphRefused) and (failure.code in _REFUSED or failure.permanent):
                    key = "accessToken" if failure.code in _REFUSED else "phoneNumberId"
                    raise NotConfigured(f"{self._where}.{key}: {failure}") from None
                attempt += 1
                self._context.disconnected(str(failure))
                await self._context.clock.sleep(RECONNECT.delay_s(attempt, random.random))
                continue
            attempt = 0
            self._context.connected()
            await self._context.clock.sleep(CHECK_S)

    async def _try_token(self) -> None:
        """Asks for our number. Servers that only take messages do not know the question, and answer without a code."""
        try:
            await self._call("GET", f"{self._settings.phone_number_id}", query={"fields": "display_phone_number"})
        except GraphRefused as refusal:
            if refusal.code != NO_CODE or refusal.status not in (404, 405, 501):
                raise

    async def _answer(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method == "GET":
            asked = request.query
            if asked.get("hub.mode") == "subscribe" and is_same(asked.get("hub.verify_token", ""), self._verify_token):
                return WebhookAnswer(text=asked.get("hub.challenge", "")[:200])
            return WebhookAnswer(status=403, text="the verify token is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        signature = hmac.new(self._app_secret.encode(), request.body, hashlib.sha256).hexdigest()
        if not is_same(request.headers.get("x-hub-signature-256", ""), f"sha256={signature}"):
            self._context.log.warning("a request without the signature of %s.appSecret was refused", self._where)
            return WebhookAnswer(status=401, text="the signature is wrong")
        return await answered(partial(self._take, request.body), self._context.log)

    async def _take(self, body: bytes) -> None:
        for value in values_of(body, self._not_understood):
            if value.metadata.phone_number_id != self._settings.phone_number_id:
                continue  # The app has several numbers and is told of all.
            for event in interpret(value, self._context.account.id, self._is_ours, self._not_understood):
                await self._hear(event)

    def _is_ours(self, message_id: str) -> bool:
        return self._sent.get(message_id) is not None

    def _not_understood(self, what: str, error: Exception) -> None:
        self._context.log.warning("a %s of WhatsApp was not understood and is passed over: %s", what, error)

    async def _hear(self, event: WhatsAppEvent) -> None:
        match event:
            case WhatsAppPost(inbound=inbound):
                async with self._turns.of(inbound.to):
                    await self._hear_post(event)
            case WhatsAppReaction() if self._wants(event):
                await self._context.notice(event.inbound)
            case Confirmed(message_id=message_id, key=key) if key:
                self._arrived.put(key, message_id)
                self._sent.put(message_id, key)
            case FailedDelivery():
                await self._tell_failure(event)
            case _:
                pass

    async def _hear_post(self, post: WhatsAppPost) -> None:
        inbound = post.inbound
        if self._taken.get(inbound.message_id):
            return
        files = (post.file,) if post.file is not None else ()
        media, notes = (
            await of_admitted(
                self._context,
                inbound,
                lambda: fetch_files(files, lambda file: file.filename or file.mime_type, self._fetch),
            )
            if files
            else ((), ())
        )
        taken = await offer(self._context, with_file(post, media, notes))
        self._taken.put(inbound.message_id, True)
        if taken:
            self._last.put(inbound.to, inbound.message_id)
            if self._settings.send_read_receipts:
                self._receipts.add(inbound.to, inbound.message_id)

    async def _tell_failure(self, failed: FailedDelivery) -> None:
        self._context.log.warning("message %s to %s was not delivered: %s", failed.message_id, failed.to, failed.reason)
        await self._context.notice(
            Inbound(
                channel="whatsapp",
                account_id=self._context.account.id,
                message_id=failed.message_id,
                peer=Peer(kind="direct", id=failed.to),
                sender=Sender(id=failed.to, e164=failed.to),
                to=failed.to,
                text=f"WhatsApp did not deliver your message {failed.message_id} to {failed.to}: {failed.reason}",
            )
        )

    def _wants(self, reaction: WhatsAppReaction) -> bool:
        match self._settings.reaction_notifications:
            case "off":
                return False
            case "own":
                return reaction.to_us
            case "all":
                return True
            case "allowlist":
                allowed = {str(entry).strip().lower() for entry in self._settings.reaction_allowlist}
                return "*" in allowed or reaction.inbound.sender.id in allowed

    async def _mark_read(self, message_id: str, *, typing: bool = False) -> None:
        sign = {"typing_indicator": {"type": "text"}} if typing else {}
        try:
            await self._post("messages", {"status": "read", "message_id": message_id, **sign})
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    async def _fetch(self, file: WaFile) -> Media:
        """Asks where the file is, then fetches it. Both need the token."""
        limit, where = int(self._settings.media_max_mb * MB), f"{self._where}.mediaMaxMb"
        try:
            about = await self._call("GET", file.id)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        address, size = str(about.get("url") or ""), about.get("file_size")
        if isinstance(size, int) and size > limit:
            raise NotFetched(f"it is larger than {limit / MB:g} MB ({where})")
        if not self._is_graph(address):
            raise NotFetched("its address is not one of WhatsApp's")
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with (
                asyncio.timeout(FETCH_S),
                self._session().get(address, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise NotFetched(f"WhatsApp answered {answer.status}")
                data = await read_within(answer, limit, where)
        except TimeoutError:
            raise NotFetched(f"it took longer than {FETCH_S:g} s") from None
        except aiohttp.ClientError as error:
            raise NotFetched(f"the connection to WhatsApp broke ({type(error).__name__})") from None
        return await kept_file(self._context.blobs, data, str(about.get("mime_type") or file.mime_type), file.filename)

    def _is_graph(self, address: str) -> bool:
        try:
            url, root = urlsplit(address), urlsplit(self._root)
            same_server = (url.scheme, url.hostname, url.port) == (root.scheme, root.hostname, root.port)
            return same_server or (url.scheme == "https" and f".{url.hostname or ''}".endswith(FILE_HOSTS))
        except ValueError:
            return False

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        kind, number = recipient(route.to or "")
        target = {"recipient_type": kind, "to": number}
        if message.act == "react":
            return await self._react(target, message)
        if message.act != "send":
            raise SendFailed("WhatsApp lets a business neither change nor delete messages", permanent=True)
        if not message.text.strip() and not message.media:
            raise SendFailed("there is nothing to send", permanent=True)
        quote = {"context": {"message_id": message.reply_to_id}} if message.reply_to_id else {}
        receipt = SendReceipt()
        for number_of_step, content in enumerate(await self._contents(message)):
            # A later step may fail, and then all are tried again. What has arrived is known by its key.
            step = f"{key}/{number_of_step}" if number_of_step else key
            if (arrived := self._arrived.get(step)) is not None:
                receipt = SendReceipt(message_id=arrived)
                continue
            payload = content if isinstance(content, dict) else await self._uploaded(*content)
            body = {
                **target,
                **payload,
                **(quote if not number_of_step else {}),
                "biz_opaque_callback_data": step[:512],
            }
            answer = await self._post("messages", body)
            receipt = SendReceipt(message_id=_message_id(answer))
            self._arrived.put(step, receipt.message_id)
            self._sent.put(receipt.message_id, step)
        return receipt

    async def _contents(self, message: OutgoingMessage) -> list[dict[str, Any] | tuple[MediaRef, bytes, str]]:
        """The platform's messages that make up ours: a text, and files, of which the first may carry the text."""
        text = render(message.text, "whatsapp", tables=self._settings.markdown.tables).text
        files = await files_to_send(self._context, message, self._settings.media_max_mb)
        as_caption = bool(files) and len(text) <= LONGEST_CAPTION and _shown_as(*files[0]) != "audio"
        contents: list[dict[str, Any] | tuple[MediaRef, bytes, str]] = []
        if text and not as_caption:
            contents.append({"type": "text", "text": {"body": text, "preview_url": False}})
        for index, (media, data) in enumerate(files):
            contents.append((media, data, text if as_caption and not index else ""))
        return contents

    async def _uploaded(self, media: MediaRef, data: bytes, caption: str) -> dict[str, Any]:
        """Uploads a file, which nobody sees yet, and returns the message that shows it."""
        name, kind = safe_file_name(media), _shown_as(media, data)
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("messaging_product", "whatsapp")
        form.add_field("type", media.mime_type)
        form.add_field("file", data, filename=name, content_type=media.mime_type)
        try:
            answer = await self._call("POST", f"{self._settings.phone_number_id}/media", form=form, timeout_s=120.0)
        except SendFailed as failure:
            failure.maybe_sent = False
            raise
        shown: dict[str, Any] = {"id": str(answer.get("id") or "")}
        if caption:
            shown["caption"] = caption
        if kind == "document":
            shown["filename"] = name
        if kind == "audio" and media.voice and media.mime_type == "audio/ogg":
            shown["voice"] = True  # The platform has voice messages in this format only.
        return {"type": kind, kind: shown}

    async def _react(self, target: dict[str, str], message: OutgoingMessage) -> SendReceipt:
        if not self._settings.actions.reactions:
            raise SendFailed(f"{self._where}.actions.reactions is off", permanent=True)
        if not message.target_id:
            raise SendFailed("the message to react to must be named", permanent=True)
        emoji = "" if message.remove else message.emoji
        reaction = {"message_id": message.target_id, "emoji": emoji}
        answer = await self._post("messages", {**target, "type": "reaction", "reaction": reaction})
        return SendReceipt(message_id=_message_id(answer) or message.target_id)

    async def typing(self, route: Route, on: bool) -> None:
        """The sign belongs to the person's last message, and ends by itself after 25 seconds or with the answer."""
        last = self._last.get(route.to or "")
        if on and last is not None:
            await self._mark_read(last, typing=True)

    async def probe(self) -> dict[str, Any]:
        query = {"fields": "display_phone_number,verified_name,quality_rating"}
        try:
            answer = await self._call("GET", f"{self._settings.phone_number_id}", query=query)
        except SendFailed as failure:
            return {"ok": False, "error": str(failure)}
        return {"ok": True, "number": answer.get("display_phone_number"), "name": answer.get("verified_name")}

    async def _post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        path = f"{self._settings.phone_number_id}/{what}"
        return await self._call("POST", path, json={"messaging_product": "whatsapp", **body})

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, Any] | None = None,
        form: aiohttp.FormData | None = None,
        query: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Calls the Cloud API. Raises ``SendFailed``."""
        headers = {"Authorization": f"Bearer {self._token}"}
        data = form if form is not None else msgspec.json.encode(json) if json is not None else None
        if json is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session().request(
                    method, f"{self._root}/{path}", params=query, data=data, headers=headers, allow_redirects=False
                ) as answer,
            ):
                body = await read_bounded(answer, MAX_ANSWER)
        except TimeoutError:
            raise SendFailed(f"WhatsApp gave no answer within {timeout_s:g} s", maybe_sent=True) from None
        except aiohttp.ClientConnectorError as error:
            raise SendFailed(f"WhatsApp cannot be reached: {error.os_error}", reached=False) from None
        except aiohttp.ClientError as error:
            problem = f"the connection to WhatsApp broke ({type(error).__name__})"
            raise SendFailed(problem, reached=False, maybe_sent=True) from None
        given = _object(body)
        if not 200 <= answer.status < 300 or "error" in given:
            raise failure_of(answer.status, given, answer.headers.get("Retry-After", ""))
        return given

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise SendFailed("WhatsApp is not running", reached=False)
        return self._http


def failure_of(status: int, answer: dict[str, Any], retry_after: str = "") -> GraphRefused:
    """What an error of the Cloud API means for the message."""
    told: dict[str, Any] = answer["error"] if isinstance(answer.get("error"), dict) else {}
    code = told["code"] if isinstance(told.get("code"), int) else NO_CODE
    details = told.get("error_data")
    words = str(details.get("details") or "") if isinstance(details, dict) else ""
    words = words or str(told.get("message") or f"HTTP {status}")
    limited = status == 429 or code in _LIMITED
    again = status >= 500 or code in _TRY_AGAIN
    refused = code in _REFUSED or status == 401
    failure = GraphRefused(
        f"WhatsApp refused it: {explained(WaError(code=code, message=words))}",
        permanent=not (limited or again or refused),
        # With a refused token nothing arrives until somebody puts in a new one. The message waits for that.
        reached=not refused,
        maybe_sent=status >= 500 and not limited,
        retry_after_s=float(retry_after) if retry_after.isdigit() else _LIMITED.get(code, 30.0) if limited else None,
    )
    failure.code, failure.status = code, status
    return failure


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _message_id(answer: dict[str, Any]) -> str:
    match answer:
        case {"messages": [{"id": str(message_id)}, *_]}:
            return message_id
        case _:
            return ""


def _shown_as(media: MediaRef, data: bytes) -> str:
    kind, limit_mb = _KINDS.get(media.mime_type.partition(";")[0].strip().lower(), ("document", 100))
    return kind if len(data) <= limit_mb * MB else "document"
