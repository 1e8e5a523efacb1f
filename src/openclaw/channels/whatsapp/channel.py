"""One WhatsApp number: receives through a webhook of the Cloud API and sends through its HTTP calls.

A received message goes ``_answer`` → ``_take`` → ``_hear``; the platform is told once it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import aiohttp
import msgspec

from openclaw.channels.base import (
    ChannelContext,
    NotConfigured,
    Reconnect,
    WebhookAnswer,
    WebhookRequest,
    is_number,
    need_action,
    running,
    secret_of,
)
from openclaw.channels.bookmark import Remembered
from openclaw.channels.http import call, download, is_on, mapping, new_session, retry_after_s
from openclaw.channels.media import NotFetched, check_size, files_to_send, kept_file, safe_file_name
from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    ConversationOrder,
    Posted,
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
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Route, Sender
from openclaw.outbound.channel_formats import render
from openclaw.outbound.reply import MediaRef, OutgoingMessage, SendFailed, SendReceipt
from openclaw.untrusted_text import disarmed_name, short_name

MAX_MESSAGES = 1000
"""Of one request. The platform sends far fewer."""
WINDOW_CLOSED = 131047
"""The code for a message more than 24 hours after the person's last one."""
RECONNECT = Backoff(initial_s=2.0, max_s=120.0)
CHECK_S = 300.0
"""How often the token is tried while all is well."""
TIMEOUT_S = 30.0
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


class WhatsAppChannel:
    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._settings: WhatsAppAccount = context.account.settings
        self._root = self._settings.api_root.rstrip("/")
        self._token = self._app_secret = self._verify_token = ""
        self._http: aiohttp.ClientSession | None = None
        self._turns = ConversationOrder()
        self._taken: Remembered[str, bool] = Remembered()
        """Messages that are on disk."""
        self._sent: Remembered[str, str] = Remembered()
        """Ids of our messages → the keys that they were sent with."""
        self._arrived: Remembered[str, str] = Remembered()
        """Keys of our messages → their ids."""
        self._last: Remembered[str, str] = Remembered()
        """Conversation → the person's last message. The typing sign belongs to it."""
        self._receipts = ReadReceipts(lambda _, message_id: self._mark_read(message_id), context.clock)

    # Receiving

    async def run(self) -> None:
        settings, context = self._settings, self._context
        self._token = await secret_of(context, settings.access_token, "accessToken", "WHATSAPP_ACCESS_TOKEN")
        self._app_secret = await secret_of(context, settings.app_secret, "appSecret", "WHATSAPP_APP_SECRET")
        self._verify_token = await secret_of(context, settings.verify_token, "verifyToken", "WHATSAPP_VERIFY_TOKEN")
        async with new_session() as http:
            self._http = http
            end = self._context.serve(self._settings.webhook_path, self._answer)
            try:
                await Reconnect(self._context, RECONNECT).while_checked(self._check, CHECK_S)
            finally:
                end()
                await self._receipts.close()
                self._http = None

    async def _check(self) -> None:
        """Asks for our number, which tries the token.

        Servers that only take messages do not know the question, and answer without a code.
        """
        try:
            await self._call("GET", f"{self._settings.phone_number_id}", query={"fields": "display_phone_number"})
        except GraphRefused as refusal:
            if refusal.code == NO_CODE and refusal.status in (404, 405, 501):
                return
            if refusal.code in _REFUSED or refusal.permanent:
                key = "accessToken" if refusal.code in _REFUSED else "phoneNumberId"
                raise NotConfigured(f"{self._context.key(key)}: {refusal}") from None
            raise

    async def _answer(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method == "GET":
            asked = request.query
            if asked.get("hub.mode") == "subscribe" and secrets_equal(
                asked.get("hub.verify_token", ""), self._verify_token
            ):
                return WebhookAnswer(text=asked.get("hub.challenge", "")[:200])
            return WebhookAnswer(status=403, text="the verify token is wrong")
        if request.method != "POST":
            return WebhookAnswer(status=405)
        signature = await body_signature(self._app_secret, request.body)
        if not secrets_equal(request.headers.get("x-hub-signature-256", ""), f"sha256={signature}"):
            return WebhookAnswer(status=401, text="the signature is not that of appSecret")
        return await confirm_webhook(self._take(request.body), self._context.log)

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
            case Posted(inbound=inbound):
                async with self._turns.of(inbound.to):
                    await self._hear_post(event)
            case Confirmed(message_id=message_id, key=key):
                if key:
                    self._arrived[key] = message_id
                    self._sent[message_id] = key
            case FailedDelivery():
                await self._tell_failure(event)
            case _:
                await submit_event(self._context, event)

    async def _hear_post(self, post: Posted) -> None:
        inbound = post.inbound
        if self._taken.get(inbound.message_id):
            return
        taken = await submit_event(self._context, post, self._fetch)
        self._taken[inbound.message_id] = True
        if taken:
            self._last[inbound.to] = inbound.message_id
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

    async def _mark_read(self, message_id: str, *, typing: bool = False) -> None:
        sign = {"typing_indicator": {"type": "text"}} if typing else {}
        try:
            await self._post("messages", {"status": "read", "message_id": message_id, **sign})
        except SendFailed as failure:
            self._context.log.info("message %s was not marked as read: %s", message_id, failure)

    async def _fetch(self, file: WaFile) -> Media:
        """Asks where the file is, then fetches it. Both need the token."""
        try:
            about = await self._call("GET", file.id)
        except SendFailed as failure:
            raise NotFetched(str(failure)) from None
        address, size = str(about.get("url") or ""), about.get("file_size")
        check_size(self._context, size if isinstance(size, int) else 0)
        if not is_on(address, self._root, FILE_HOSTS):
            raise NotFetched("its address is not one of WhatsApp's")
        http, headers = running(self._http, "WhatsApp"), {"Authorization": f"Bearer {self._token}"}
        return await kept_file(self._context, await download(self._context, http, address, headers=headers), file)

    # Sending

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        kind, number = recipient(route.to or "")
        target = {"recipient_type": kind, "to": number}
        if message.act == "react":
            return await self._react(target, message)
        if message.act != "send":
            raise SendFailed("WhatsApp lets a business neither change nor delete messages", permanent=True)
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
            self._arrived[step] = receipt.message_id
            self._sent[receipt.message_id] = step
        return receipt

    async def _contents(self, message: OutgoingMessage) -> list[dict[str, Any] | tuple[MediaRef, bytes, str]]:
        """The platform's messages that make up ours: a text, and files, of which the first may carry the text."""
        text = render(message.text, "whatsapp", tables=self._settings.markdown.tables).text
        files = await files_to_send(self._context, message)
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
        need_action(self._context, "reactions", self._settings.actions.reactions)
        if not message.target_id:
            raise SendFailed("the message to react to must be named", permanent=True)
        emoji = "" if message.remove else message.emoji
        reaction = {"message_id": message.target_id, "emoji": emoji}
        answer = await self._post("messages", {**target, "type": "reaction", "reaction": reaction})
        return SendReceipt(message_id=_message_id(answer) or message.target_id)

    async def typing(self, route: Route, on: bool) -> None:
        """Shows the sign, which belongs to a message of the person. It ends by itself after 25 s or with the answer.

        A run begins before ``submit_event`` returns, so the route names its message first.
        """
        message_id = route.reply_to_id or self._last.get(route.to or "")
        if on and message_id:
            await self._mark_read(message_id, typing=True)

    async def probe(self) -> dict[str, Any]:
        query = {"fields": "display_phone_number,verified_name,quality_rating"}
        answer = await self._call("GET", f"{self._settings.phone_number_id}", query=query)
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
        http, headers = running(self._http, "WhatsApp"), {"Authorization": f"Bearer {self._token}"}
        answer, given = await call(
            http,
            "WhatsApp",
            method,
            f"{self._root}/{path}",
            json=json,
            form=form,
            query=query,
            headers=headers,
            timeout_s=timeout_s,
        )
        if not 200 <= answer.status < 300 or "error" in given:
            raise failure_of(answer.status, given, retry_after_s(answer.headers))
        return given


class GraphRefused(SendFailed):
    """The Cloud API answered with an error. ``status`` is that of HTTP."""

    code: int = NO_CODE
    status: int = 0


def failure_of(status: int, answer: dict[str, Any], asked_s: float | None = None) -> GraphRefused:
    """What an error of the Cloud API means for the message."""
    told = mapping(answer.get("error"))
    code = told["code"] if isinstance(told.get("code"), int) else NO_CODE
    words = str(mapping(told.get("error_data")).get("details") or told.get("message") or f"HTTP {status}")
    limited = status == 429 or code in _LIMITED
    again = status >= 500 or code in _TRY_AGAIN
    refused = code in _REFUSED or status == 401
    failure = GraphRefused(
        f"WhatsApp refused it: {explained(WaError(code=code, message=words))}",
        permanent=not (limited or again or refused),
        # With a refused token nothing arrives until somebody puts in a new one. The message waits for that.
        reached=not refused,
        maybe_sent=status >= 500 and not limited,
        retry_after_s=asked_s if asked_s is not None else _LIMITED.get(code, 30.0) if limited else None,
    )
    failure.code, failure.status = code, status
    return failure


def _message_id(answer: dict[str, Any]) -> str:
    match answer:
        case {"messages": [{"id": str(message_id)}, *_]}:
            return message_id
        case _:
            return ""


def _shown_as(media: MediaRef, data: bytes) -> str:
    kind, limit_mb = _KINDS.get(media.mime_type.partition(";")[0].strip().lower(), ("document", 100))
    return kind if len(data) <= limit_mb * 1024 * 1024 else "document"


# What a request means


class WaText(msgspec.Struct, frozen=True, kw_only=True):
    body: str = ""


class WaFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image, video, audio, document or sticker. Its bytes are fetched by its id."""

    id: str = ""
    mime_type: str | None = None
    caption: str | None = None
    name: str | None = msgspec.field(default=None, name="filename")
    size: int | None = None
    """It is known only when the file is asked for."""


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


class WaContext(msgspec.Struct, frozen=True, kw_only=True):
    """The message that is answered, or that it is a forward."""

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
    contacts: list[Any] | None = None
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
    """What we gave the message when it was sent: its key."""
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
    """Each a ``WaMessage``. They are read one by one, so that an odd one does not cost the others."""
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
NotUnderstood: TypeAlias = Callable[[str, Exception], None]
"""Is told what could not be read, and why."""


def values_of(body: bytes, problem: NotUnderstood) -> list[WaValue]:
    """The changes of the field ``messages`` in a request. Unknown fields are ignored."""
    try:
        notification = _decode_notification(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        problem("request", error)
        return []
    changes = [change.value for entry in notification.entry for change in entry.changes if change.field == "messages"]
    return _read(changes, _decode_value, "change", problem)


def _read(
    parts: Sequence[msgspec.Raw] | None, decode: Callable[[msgspec.Raw], Record], what: str, problem: NotUnderstood
) -> list[Record]:
    found: list[Record] = []
    for part in (parts or ())[:MAX_MESSAGES]:
        try:
            found.append(decode(part))
        except (msgspec.MsgspecError, RecursionError) as error:
            problem(what, error)
    return found


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message of ours that the platform took and did not deliver."""

    message_id: str
    to: str
    reason: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The platform has a message of ours, even if its answer to the request was lost."""

    message_id: str
    key: str


WhatsAppEvent: TypeAlias = ChannelEvent | Confirmed | FailedDelivery


def interpret(
    value: WaValue, account_id: str, is_ours: Callable[[str], bool], problem: NotUnderstood
) -> list[WhatsAppEvent]:
    """Everything in one change, in order. ``is_ours`` says whether a message id is one that we sent."""
    names = {contact.wa_id: contact.profile.name for contact in value.contacts or () if contact.profile}
    our_number = value.metadata.display_phone_number.lstrip("+")
    found: list[WhatsAppEvent] = []
    for message in _read(value.messages, _decode_message, "message", problem):
        if not message.author or not message.id or message.author == our_number:
            continue
        event = _event(message, names.get(message.author), our_number, account_id, is_ours)
        if event is not None:
            found.append(event)
    for status in _read(value.statuses, _decode_status, "status", problem):
        if status.status != "failed":
            found.append(Confirmed(message_id=status.id, key=status.biz_opaque_callback_data))
        else:
            problems = [explained(error) for error in status.errors or ()]
            reason = "; ".join(problems) or "WhatsApp does not say why"
            found.append(FailedDelivery(message_id=status.id, to=f"+{status.recipient_id}", reason=reason))
    return found


def explained(error: WaError) -> str:
    """What went wrong, for the person who can act."""
    if error.code == WINDOW_CLOSED:
        return (
            "the person has not written for more than 24 hours, and WhatsApp lets a business answer only that long;"
            " they must write first (code 131047)"
        )
    words = error.message or error.title or "an error without a name"
    return f"{words[:300]} (code {error.code})"


def _event(
    message: WaMessage, name: str | None, our_number: str, account_id: str, is_ours: Callable[[str], bool]
) -> WhatsAppEvent | None:
    number = f"+{message.author}"
    stamp = int(message.timestamp) if is_number(message.timestamp) else 0
    group = message.group_id
    answered = message.context
    text = _words(message)[:MAX_TEXT]
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
        quoted=_quoted(answered, our_number),
        forwarded_from="somebody" if answered and (answered.forwarded or answered.frequently_forwarded) else None,
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


def _words(message: WaMessage) -> str:
    """What the person wrote, or chose, or what a location says."""
    if message.text is not None:
        return message.text.body
    if message.button is not None:
        return message.button.text or ""
    if message.interactive is not None:
        choice = message.interactive.button_reply or message.interactive.list_reply
        return (choice.title or choice.id or "") if choice else ""
    if message.location is not None:
        place = message.location
        named = " ".join(part for part in (place.name, place.address) if part)
        return f"📍 {place.latitude:.6f}, {place.longitude:.6f} {named}".strip()
    if message.contacts:
        return "\n".join(_contact(one) for one in message.contacts[:20])
    file = message.image or message.video or message.document
    return (file.caption or "") if file else ""


def _contact(contact: Any) -> str:
    match contact:
        case {"name": {"formatted_name": str(name)}, **rest}:
            phones: Any = rest.get("phones")
            listed: list[Any] = phones if isinstance(phones, list) else []
            numbers = [short_name(str(one.get("phone") or "")) for one in listed[:5] if isinstance(one, dict)]
            return f"Contact: {short_name(name)} {' '.join(numbers)}".strip()
        case _:
            return "Contact"


def _quoted(answered: WaContext | None, our_number: str) -> Quoted | None:
    """Only the id of the answered message is known, not its words."""
    if answered is None or not answered.id:
        return None
    author = (answered.author or "").lstrip("+")
    return Quoted(
        id=answered.id, sender=f"+{author}" if author else None, from_us=bool(author) and author == our_number
    )


def _reaction(inbound: Inbound, reaction: WaReaction, to_us: bool) -> Reacted | None:
    if not reaction.message_id:
        return None
    # In a direct chat people react to our messages. An id of ours is known only since the start.
    to_us = to_us or inbound.peer.kind == "direct"
    whose, emoji = "your message" if to_us else "a message", reaction.emoji or ""
    inbound.text = reaction_text(inbound, emoji, whose, reaction.message_id, removed=not emoji)
    return Reacted(inbound=inbound, to_us=to_us)
