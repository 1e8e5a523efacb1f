"""One WhatsApp number: receives through a webhook of the Cloud API and sends through its HTTP calls.

A request goes ``_on_webhook`` → ``_receive`` → ``_handle`` and is acknowledged once its messages are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import aiohttp
import msgspec

from openclaw.channels.base import (
    ChannelContext,
    NotConfigured,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    is_number,
    require_action,
    require_running,
    secret_of,
)
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.http import call, converted, download, is_trusted_url, new_session, retry_after_s
from openclaw.channels.media import NotFetched, check_size, files_to_send, safe_file_name, store_file
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    Posted,
    PostSubmitter,
    Reacted,
    ReadReceipts,
    body_signature,
    confirm_webhook,
    reaction_text,
    secrets_equal,
    submit_event,
)
from openclaw.channels.whatsapp import recipient
from openclaw.clock import Backoff
from openclaw.config.schema.channels import WhatsAppAccount
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Sender
from openclaw.messages import Route
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed, SendReceipt
from openclaw.untrusted_text import disarmed_name, short_name

MAX_MESSAGES = 1000
"""Per request. The platform sends far fewer."""
WINDOW_CLOSED = 131047
"""The error code for a message sent more than 24 hours after the person's last one."""
RECONNECT = Backoff(initial_s=2.0, max_s=120.0)
CHECK_S = 300.0
"""How often the token is checked while the account is connected."""
TIMEOUT_S = 30.0
MAX_CAPTION = 1024
FILE_HOSTS = (".fbsbx.com", ".facebook.com", ".fbcdn.net", ".whatsapp.net", ".whatsapp.com")
_AUTH_CODES = frozenset({0, 3, 10, 190})
_LIMITED = {4: 60.0, 80007: 60.0, 130429: 5.0, 131048: 300.0, 131056: 6.0}
"""Rate-limit code → seconds until a retry is worthwhile."""
_TRANSIENT_CODES = frozenset({1, 2, 131000, 131016, 133004})
# fmt: off
_KINDS = {
    "image/jpeg": ("image", 5), "image/png": ("image", 5), "video/mp4": ("video", 16), "video/3gpp": ("video", 16),
    "audio/aac": ("audio", 16), "audio/mp4": ("audio", 16), "audio/mpeg": ("audio", 16), "audio/amr": ("audio", 16),
    "audio/ogg": ("audio", 16),
}
# fmt: on
"""MIME type → WhatsApp's media kind and its limit in MB. Everything else is a document."""
NO_CODE = -1


class WhatsAppChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: WhatsAppAccount = context.account.settings
        self._root = self._settings.api_root.rstrip("/")
        self._token = self._app_secret = self._verify_token = ""
        self._http: aiohttp.ClientSession | None = None
        self._posts = PostSubmitter(context, self._fetch)
        self._sent: RecentDict[str, str] = RecentDict()
        """Id of a sent message → its key."""
        self._arrived: RecentDict[str, str] = RecentDict()
        """Key of a sent message → its id."""
        self._last: RecentDict[str, str] = RecentDict()
        """Conversation → the person's last message, to which the typing indicator is attached."""
        self._receipts = ReadReceipts(lambda _, message_id: self._mark_read(message_id), context.clock)

    # Receiving

    async def run(self) -> None:
        settings, context = self._settings, self._context
        self._token = await secret_of(context, settings.access_token, "accessToken", "WHATSAPP_ACCESS_TOKEN")
        self._app_secret = await secret_of(context, settings.app_secret, "appSecret", "WHATSAPP_APP_SECRET")
        self._verify_token = await secret_of(context, settings.verify_token, "verifyToken", "WHATSAPP_VERIFY_TOKEN")
        async with new_session() as http:
            self._http = http
            stop_serving = self._context.serve(self._settings.webhook_path, self._on_webhook)
            try:
                await Reconnect(self._context, RECONNECT).poll(self._check, CHECK_S)
            finally:
                stop_serving()
                await self._receipts.close()
                self._http = None

    async def _check(self) -> None:
        """Request our own number to check the token.

        Compatible servers that only accept messages answer this with an HTTP error without a code.
        """
        try:
            await self._call("GET", f"{self._settings.phone_number_id}", query={"fields": "display_phone_number"})
        except GraphRefused as refusal:
            if refusal.code == NO_CODE and refusal.status in (404, 405, 501):
                return
            if refusal.code in _AUTH_CODES or refusal.permanent:
                key = "accessToken" if refusal.code in _AUTH_CODES else "phoneNumberId"
                raise NotConfigured(f"{self._context.key(key)}: {refusal}") from None
            raise

    async def _on_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method == "GET":
            query = request.query
            if query.get("hub.mode") == "subscribe" and secrets_equal(
                query.get("hub.verify_token", ""), self._verify_token
            ):
                return WebhookAnswer(text=query.get("hub.challenge", "")[:200])
            return WebhookAnswer(status=403, text="the verify token is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        signature = await body_signature(self._app_secret, request.body)
        if not secrets_equal(request.headers.get("x-hub-signature-256", ""), f"sha256={signature}"):
            return WebhookAnswer(status=401, text="the signature is not that of appSecret")
        return await confirm_webhook(self._receive(request.body), self._context.log)

    async def _receive(self, body: bytes) -> None:
        for value in decode_changes(body, self._log_invalid):
            if value.metadata.phone_number_id != self._settings.phone_number_id:
                continue  # An app with several numbers receives the messages of all of them.
            for event in interpret(value, self._context.account.id, self._is_ours, self._log_invalid):
                await self._handle(event)

    def _is_ours(self, message_id: str) -> bool:
        return self._sent.get(message_id) is not None

    def _log_invalid(self, what: str, error: Exception) -> None:
        self._context.log.warning("skipped an invalid %s from WhatsApp: %s", what, error)

    async def _handle(self, event: WhatsAppEvent) -> None:
        match event:
            case Posted(inbound=inbound):
                if await self._posts.submit(event):
                    self._last[inbound.to] = inbound.message_id
                    if self._settings.send_read_receipts:
                        self._receipts.add(inbound.to, inbound.message_id)
            case Confirmed(message_id=message_id, key=key):
                if key:
                    self._arrived[key] = message_id
                    self._sent[message_id] = key
            case FailedDelivery():
                await self._report_failure(event)
            case _:
                await submit_event(self._context, event)

    async def _report_failure(self, failed: FailedDelivery) -> None:
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

    async def _mark_read(self, message_id: str, *, typing: bool = False) -> None:
        indicator = {"typing_indicator": {"type": "text"}} if typing else {}
        try:
            await self._post("messages", {"status": "read", "message_id": message_id, **indicator})
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    async def _fetch(self, file: WaFile) -> Media:
        """Request the file's URL, then download it. Both need the token."""
        try:
            response = await self._call("GET", file.id)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        url = response.url or ""
        check_size(self._context, response.file_size if isinstance(response.file_size, int) else 0)
        if not is_trusted_url(url, self._root, FILE_HOSTS):
            raise NotFetched("its URL is not on a WhatsApp server")
        http, headers = require_running(self._http, "WhatsApp"), {"Authorization": f"Bearer {self._token}"}
        return await store_file(self._context, await download(self._context, http, url, headers=headers), file)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        kind, number = recipient(route.to)
        target = {"recipient_type": kind, "to": number}
        if message.act == "react":
            return await self._react(target, message)
        if message.act != "send":
            raise SendFailed("WhatsApp does not let a business edit or delete messages", permanent=True)
        quote = {"context": {"message_id": message.reply_to_id}} if message.reply_to_id else {}
        receipt = SendReceipt()
        for index, content in enumerate(await self._contents(message)):
            # A failure repeats all steps, so the steps that arrived are skipped by their keys.
            step = f"{key}/{index}" if index else key
            if (arrived := self._arrived.get(step)) is not None:
                receipt = SendReceipt(message_id=arrived)
                continue
            payload = content if isinstance(content, dict) else await self._upload(*content)
            callback = {"biz_opaque_callback_data": step[:512]}
            response = await self._post("messages", {**target, **payload, **(quote if not index else {}), **callback})
            receipt = SendReceipt(message_id=response.message_id)
            self._arrived[step] = receipt.message_id
            self._sent[receipt.message_id] = step
        return receipt

    async def _contents(self, message: OutgoingMessage) -> list[dict[str, object] | tuple[MediaRef, bytes, str]]:
        """Split a message into WhatsApp's messages: a text and files. The first file may carry the text."""
        text = render(message.text, "whatsapp", tables=self._settings.markdown.tables).text
        files = await files_to_send(self._context, message)
        as_caption = bool(files) and len(text) <= MAX_CAPTION and _media_kind(*files[0]) != "audio"
        contents: list[dict[str, object] | tuple[MediaRef, bytes, str]] = []
        if text and not as_caption:
            contents.append({"type": "text", "text": {"body": text, "preview_url": False}})
        for index, (media, data) in enumerate(files):
            contents.append((media, data, text if as_caption and not index else ""))
        return contents

    async def _upload(self, media: MediaRef, data: bytes, caption: str) -> Mapping[str, object]:
        """Upload a file without showing it, and return the payload of the message that shows it."""
        name, kind = safe_file_name(media), _media_kind(media, data)
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("messaging_product", "whatsapp")
        form.add_field("type", media.mime_type)
        form.add_field("file", data, filename=name, content_type=media.mime_type)
        try:
            response = await self._call("POST", f"{self._settings.phone_number_id}/media", form=form, timeout_s=120.0)
        except SendFailed as failure:
            failure.maybe_sent = False
            raise
        content: dict[str, object] = {"id": response.id or ""}
        if caption:
            content["caption"] = caption
        if kind == "document":
            content["filename"] = name
        if kind == "audio" and media.voice and media.mime_type == "audio/ogg":
            content["voice"] = True  # The platform supports voice messages in this format only.
        return {"type": kind, kind: content}

    async def _react(self, target: dict[str, str], message: OutgoingMessage) -> SendReceipt:
        require_action(self._context, "reactions", self._settings.actions.reactions)
        if not message.target_id:
            raise SendFailed("a reaction needs the id of the message", permanent=True)
        emoji = "" if message.remove else message.emoji
        reaction = {"message_id": message.target_id, "emoji": emoji}
        response = await self._post("messages", {**target, "type": "reaction", "reaction": reaction})
        return SendReceipt(message_id=response.message_id or message.target_id)

    async def typing(self, route: Route, on: bool) -> None:
        """Show the indicator on a message of the person. It disappears after 25 s or with the reply.

        A run may start before ``submit_event`` returns, so the message of the route takes precedence.
        """
        message_id = route.reply_to_id or self._last.get(route.to)
        if on and message_id:
            await self._mark_read(message_id, typing=True)

    async def probe(self) -> Mapping[str, object]:
        query = {"fields": "display_phone_number,verified_name,quality_rating"}
        response = await self._call("GET", f"{self._settings.phone_number_id}", query=query)
        return {"ok": True, "number": response.display_phone_number, "name": response.verified_name}

    async def _post(self, what: str, body: Mapping[str, object]) -> GraphResponse:
        path = f"{self._settings.phone_number_id}/{what}"
        return await self._call("POST", path, json={"messaging_product": "whatsapp", **body})

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, object] | None = None,
        form: aiohttp.FormData | None = None,
        query: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> GraphResponse:
        """Call the Cloud API. Raises ``SendFailed``."""
        http, headers = require_running(self._http, "WhatsApp"), {"Authorization": f"Bearer {self._token}"}
        response, body = await call(
            http,
            "WhatsApp",
            method,
            f"{self._root}/{path}",
            GraphResponse,
            json=json,
            form=form,
            query=query,
            headers=headers,
            timeout_s=timeout_s,
        )
        if not 200 <= response.status < 300 or body.error is not msgspec.UNSET:
            raise failure_of(response.status, body, retry_after_s(response.headers))
        return body


class WaSentMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""


class GraphResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the Cloud API's responses that are read here."""

    id: str | None = None
    """The id of an uploaded file."""
    url: str | None = None
    file_size: object = None
    display_phone_number: str | None = None
    verified_name: str | None = None
    messages: tuple[WaSentMessage, ...] | None = None
    error: object = msgspec.UNSET
    """A ``GraphError``."""

    @property
    def message_id(self) -> str:
        return self.messages[0].id if self.messages else ""


class GraphErrorData(msgspec.Struct, frozen=True, kw_only=True):
    details: str | None = None


class GraphError(msgspec.Struct, frozen=True, kw_only=True):
    code: int = NO_CODE
    message: str | None = None
    error_data: GraphErrorData | None = None


class GraphRefused(SendFailed):
    """The Cloud API returned an error. ``status`` is the HTTP status."""

    code: int = NO_CODE
    status: int = 0


def failure_of(status: int, body: GraphResponse, wait_s: float | None = None) -> GraphRefused:
    """Translate an error of the Cloud API. ``wait_s`` is the response's ``Retry-After``."""
    error = converted(body.error, GraphError)
    text = (error.error_data.details if error.error_data else None) or error.message or f"HTTP {status}"
    limited = status == 429 or error.code in _LIMITED
    transient = status >= 500 or error.code in _TRANSIENT_CODES
    unauthorized = error.code in _AUTH_CODES or status == 401
    failure = GraphRefused(
        f"WhatsApp rejected it: {describe_error(WaError(code=error.code, message=text))}",
        permanent=not (limited or transient or unauthorized),
        # The message waits until the owner configures a new token.
        reached=not unauthorized,
        maybe_sent=status >= 500 and not limited,
        retry_after_s=wait_s if wait_s is not None else _LIMITED.get(error.code, 30.0) if limited else None,
    )
    failure.code, failure.status = error.code, status
    return failure


def _media_kind(media: MediaRef, data: bytes) -> str:
    kind, limit_mb = _KINDS.get(media.mime_type.partition(";")[0].strip().lower(), ("document", 100))
    return kind if len(data) <= limit_mb * 1024 * 1024 else "document"


# Incoming requests


class WaText(msgspec.Struct, frozen=True, kw_only=True):
    body: str = ""


class WaFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image, video, audio, document or sticker."""

    id: str = ""
    mime_type: str | None = None
    caption: str | None = None
    name: str | None = msgspec.field(default=None, name="filename")
    size: int | None = None
    """Unknown until the file's URL is requested."""


class WaReaction(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str = ""
    emoji: str | None = None


class WaChoice(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    title: str | None = None
    text: str | None = None


class WaInteractive(msgspec.Struct, frozen=True, kw_only=True):
    button_reply: WaChoice | None = None
    list_reply: WaChoice | None = None


class WaLocation(msgspec.Struct, frozen=True, kw_only=True):
    latitude: float = 0.0
    longitude: float = 0.0
    name: str | None = None
    address: str | None = None


class WaContactName(msgspec.Struct, frozen=True, kw_only=True):
    formatted_name: str | None = None


class WaPhone(msgspec.Struct, frozen=True, kw_only=True):
    phone: str | None = None


class WaSharedContact(msgspec.Struct, frozen=True, kw_only=True):
    """A contact card in a message."""

    name: WaContactName | None = None
    phones: tuple[WaPhone, ...] | None = None


class WaContext(msgspec.Struct, frozen=True, kw_only=True):
    """The message that is replied to, or whether this one was forwarded."""

    id: str | None = None
    author: str | None = msgspec.field(default=None, name="from")
    forwarded: bool = False
    frequently_forwarded: bool = False


class WaMessage(msgspec.Struct, frozen=True, kw_only=True):
    author: str = msgspec.field(default="", name="from")
    id: str = ""
    timestamp: str = ""
    type: str = ""
    group_id: str | None = None
    text: WaText | None = None
    image: WaFile | None = None
    video: WaFile | None = None
    audio: WaFile | None = None
    document: WaFile | None = None
    sticker: WaFile | None = None
    reaction: WaReaction | None = None
    button: WaChoice | None = None
    interactive: WaInteractive | None = None
    location: WaLocation | None = None
    contacts: tuple[object, ...] | None = None
    """Each a ``WaSharedContact``."""
    context: WaContext | None = None


class WaError(msgspec.Struct, frozen=True, kw_only=True):
    code: int = 0
    title: str = ""
    message: str = ""


class WaStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    status: str = ""
    recipient_id: str = ""
    biz_opaque_callback_data: str = ""
    """The key that the message was sent with."""
    errors: tuple[WaError, ...] | None = None


class WaProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None


class WaContact(msgspec.Struct, frozen=True, kw_only=True):
    wa_id: str = ""
    profile: WaProfile | None = None


class WaMetadata(msgspec.Struct, frozen=True, kw_only=True):
    display_phone_number: str = ""
    phone_number_id: str = ""


class WaValue(msgspec.Struct, frozen=True, kw_only=True):
    metadata: WaMetadata = WaMetadata()
    contacts: tuple[WaContact, ...] | None = None
    messages: tuple[msgspec.Raw, ...] | None = None
    """Each a ``WaMessage``. Decoded one by one, so that an invalid one does not discard the others."""
    statuses: tuple[msgspec.Raw, ...] | None = None
    """Each a ``WaStatus``."""


class WaChange(msgspec.Struct, frozen=True, kw_only=True):
    field: str = ""
    value: msgspec.Raw = msgspec.Raw(b"{}")


class WaEntry(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[WaChange, ...] = ()


class WaNotification(msgspec.Struct, frozen=True, kw_only=True):
    entry: tuple[WaEntry, ...] = ()


_decode_notification = msgspec.json.Decoder(WaNotification).decode
_decode_value = msgspec.json.Decoder(WaValue).decode
_decode_message = msgspec.json.Decoder(WaMessage).decode
_decode_status = msgspec.json.Decoder(WaStatus).decode

Record = TypeVar("Record")
OnInvalid: TypeAlias = Callable[[str, Exception], None]
"""Receives the kind of a record that could not be decoded, and the error."""


def decode_changes(body: bytes, on_invalid: OnInvalid) -> list[WaValue]:
    """Decode the changes of the field ``messages`` in a request. Unknown fields are ignored."""
    try:
        notification = _decode_notification(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        on_invalid("request", error)
        return []
    changes = [change.value for entry in notification.entry for change in entry.changes if change.field == "messages"]
    return _decode_all(changes, _decode_value, "change", on_invalid)


def _decode_all(
    parts: Sequence[msgspec.Raw] | None, decode: Callable[[msgspec.Raw], Record], what: str, on_invalid: OnInvalid
) -> list[Record]:
    records: list[Record] = []
    for part in (parts or ())[:MAX_MESSAGES]:
        try:
            records.append(decode(part))
        except (msgspec.MsgspecError, RecursionError) as error:
            on_invalid(what, error)
    return records


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the platform accepted and did not deliver."""

    message_id: str
    to: str
    reason: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The platform received a message, even if its response to the request was lost."""

    message_id: str
    key: str


WhatsAppEvent: TypeAlias = ChannelEvent | Confirmed | FailedDelivery


def interpret(
    value: WaValue, account_id: str, is_ours: Callable[[str], bool], on_invalid: OnInvalid
) -> list[WhatsAppEvent]:
    """Return the events of one change, in order. ``is_ours`` reports whether the agent sent a message id."""
    names = {contact.wa_id: contact.profile.name for contact in value.contacts or () if contact.profile}
    our_number = value.metadata.display_phone_number.lstrip("+")
    events: list[WhatsAppEvent] = []
    for message in _decode_all(value.messages, _decode_message, "message", on_invalid):
        if not message.author or not message.id or message.author == our_number:
            continue
        event = _event(message, names.get(message.author), our_number, account_id, is_ours)
        if event is not None:
            events.append(event)
    for status in _decode_all(value.statuses, _decode_status, "status", on_invalid):
        if status.status != "failed":
            events.append(Confirmed(message_id=status.id, key=status.biz_opaque_callback_data))
        else:
            problems = [describe_error(error) for error in status.errors or ()]
            reason = "; ".join(problems) or "WhatsApp gives no reason"
            events.append(FailedDelivery(message_id=status.id, to=f"+{status.recipient_id}", reason=reason))
    return events


def describe_error(error: WaError) -> str:
    if error.code == WINDOW_CLOSED:
        return (
            "the person has not written for more than 24 hours, and WhatsApp lets a business answer only that long;"
            " they must write first (code 131047)"
        )
    text = error.message or error.title or "an error without a name"
    return f"{text[:300]} (code {error.code})"


def _event(
    message: WaMessage, name: str | None, our_number: str, account_id: str, is_ours: Callable[[str], bool]
) -> WhatsAppEvent | None:
    number = f"+{message.author}"
    stamp = int(message.timestamp) if is_number(message.timestamp) else 0
    group = message.group_id
    context = message.context
    text = _text_of(message)[:MAX_TEXT]
    inbound = Inbound(
        channel="whatsapp",
        account_id=account_id,
        message_id=message.id,
        peer=Peer(kind="group", id=group) if group else Peer(kind="direct", id=number),
        sender=Sender(id=number, name=(name or "").strip() or None, e164=number),
        to=f"group:{group}" if group else number,
        text=text,
        timestamp_ms=stamp * 1000,
        mentioned=bool(our_number) and f"@{our_number}" in text,
        quoted=_quoted(context, our_number),
        forwarded_from="somebody" if context and (context.forwarded or context.frequently_forwarded) else None,
    )
    if message.reaction is not None:
        return _reaction(inbound, message.reaction, is_ours(message.reaction.message_id))
    file = message.image or message.video or message.audio or message.document or message.sticker
    if not inbound.text.strip() and file is None:
        if message.type in ("unsupported", "unknown", "system", "ephemeral", ""):
            return None
        inbound.untrusted = (f"A message of the kind {disarmed_name(message.type)[:40]} that cannot be shown here",)
        inbound.text = f"[{disarmed_name(message.type)[:40]}]"
    return Posted(inbound=inbound, files=(file,) if file else ())


def _text_of(message: WaMessage) -> str:
    """Return the written text, the chosen button, or a description of a location or contacts."""
    if message.text is not None:
        return message.text.body
    if message.button is not None:
        return message.button.text or ""
    if message.interactive is not None:
        choice = message.interactive.button_reply or message.interactive.list_reply
        return (choice.title or choice.id or "") if choice else ""
    if message.location is not None:
        location = message.location
        label = " ".join(part for part in (location.name, location.address) if part)
        return f"📍 {location.latitude:.6f}, {location.longitude:.6f} {label}".strip()
    if message.contacts:
        return "\n".join(_describe_contact(contact) for contact in message.contacts[:20])
    file = message.image or message.video or message.document
    return (file.caption or "") if file else ""


def _describe_contact(value: object) -> str:
    contact = converted(value, WaSharedContact)
    if contact.name is None or contact.name.formatted_name is None:
        return "Contact"
    numbers = [short_name(phone.phone or "") for phone in (contact.phones or ())[:5]]
    return f"Contact: {short_name(contact.name.formatted_name)} {' '.join(numbers)}".strip()


def _quoted(context: WaContext | None, our_number: str) -> Quoted | None:
    """Return the quoted message. WhatsApp gives only its id, not its text."""
    if context is None or not context.id:
        return None
    author = (context.author or "").lstrip("+")
    return Quoted(id=context.id, sender=f"+{author}" if author else None, from_us=bool(author) and author == our_number)


def _reaction(inbound: Inbound, reaction: WaReaction, to_us: bool) -> Reacted | None:
    if not reaction.message_id:
        return None
    # The ids of sent messages are lost at a restart. In a direct chat people react to the agent's messages.
    to_us = to_us or inbound.peer.kind == "direct"
    whose, emoji = "your message" if to_us else "a message", reaction.emoji or ""
    inbound.text = reaction_text(inbound, emoji, whose, reaction.message_id, removed=not emoji)
    return Reacted(inbound=inbound, to_us=to_us)
