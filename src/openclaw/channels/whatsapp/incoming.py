"""Turns what the Cloud API posts to the webhook into messages, reactions and failed deliveries. It asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from openclaw.foreign_text import disarmed_name
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Sender
from openclaw.inbound.prompt_text import display_name

MAX_TEXT = 256 * 1024
LONGEST_EMOJI = 32
MAX_MESSAGES = 1000
"""Of one request. The platform sends far fewer."""
WINDOW_CLOSED = 131047
"""The code for a message more than 24 hours after the person's last one."""


class WaText(msgspec.Struct, frozen=True, kw_only=True):
    body: str = ""


class WaFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image, video, audio, document or sticker. Its bytes are fetched by its id."""

    id: str = ""
    mime_type: str | None = None
    caption: str | None = None
    filename: str | None = None
    voice: bool = False


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
    object: str = ""
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


class WhatsAppPost(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the agent. The platform still has its file."""

    inbound: Inbound
    file: WaFile | None = None


class WhatsAppReaction(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction. ``inbound.text`` describes it."""

    inbound: Inbound
    to_us: bool


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message of ours that the platform took and did not deliver."""

    message_id: str
    to: str
    reason: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The platform has a message of ours, even if its answer to the request was lost."""

    message_id: str
    key: str


WhatsAppEvent: TypeAlias = Confirmed | WhatsAppPost | WhatsAppReaction | FailedDelivery


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
    stamp = int(message.timestamp) if message.timestamp.isascii() and message.timestamp.isdigit() else 0
    group = message.group_id
    answered = message.context
    inbound = Inbound(
        channel="whatsapp",
        account_id=account_id,
        message_id=message.id,
        peer=Peer(kind="group", id=group) if group else Peer(kind="direct", id=number),
        sender=Sender(id=number, name=(name or "").strip() or None, e164=number),
        to=f"group:{group}" if group else number,
        text=_words(message)[:MAX_TEXT],
        timestamp_ms=stamp * 1000,
        mentioned=bool(our_number) and f"@{our_number}" in _words(message)[:MAX_TEXT],
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
    return WhatsAppPost(inbound=inbound, file=file)


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
            numbers = [str(one.get("phone") or "") for one in listed if isinstance(one, dict)]
            return f"Contact: {name} {' '.join(numbers[:5])}".strip()
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


def _reaction(inbound: Inbound, reaction: WaReaction, to_us: bool) -> WhatsAppReaction | None:
    if not reaction.message_id:
        return None
    who = display_name(inbound.sender.name) or inbound.sender.id
    emoji = disarmed_name(reaction.emoji or "")[:LONGEST_EMOJI]
    # In a direct chat people react to our messages. An id of ours is known only since the start.
    to_us = to_us or inbound.peer.kind == "direct"
    whose = "your message" if to_us else "a message"
    did = f"reacted with {emoji}" if emoji else "took back the reaction"
    inbound.text = f"WhatsApp: {who} {did} to {whose} (id {disarmed_name(reaction.message_id)})"
    return WhatsAppReaction(inbound=inbound, to_us=to_us)


def with_file(post: WhatsAppPost, media: tuple[Media, ...], notes: tuple[str, ...]) -> Inbound:
    inbound = post.inbound
    inbound.media, inbound.untrusted = media, (*inbound.untrusted, *notes)
    return inbound
