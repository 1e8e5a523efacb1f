"""Turns events of the signal-cli daemon into messages and reactions for the Gateway, and fetches attachments."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from openclaw.channels.media import Fetched, NotFetched, fetch_files, kept_file
from openclaw.channels.signal.connection import RpcError, RpcUnreachable, SignalRpc
from openclaw.channels.signal.kind import normalize_number
from openclaw.foreign_text import disarmed_name
from openclaw.inbound.message import Inbound, Media, Peer, Quoted, Sender
from openclaw.inbound.prompt_text import display_name
from openclaw.storage.base import BlobStore

MAX_TEXT = 256 * 1024
FETCH_TIMEOUT_S = 60.0
LONGEST_EMOJI = 32


class Mention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    start: int = 0
    length: int = 0
    name: str | None = None
    number: str | None = None
    uuid: str | None = None


class SignalAttachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str | None = None
    content_type: str | None = None
    filename: str | None = None
    size: int | None = None


class Quote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: int | None = None
    author: str | None = None
    author_number: str | None = None
    author_uuid: str | None = None
    text: str | None = None


class Reaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    emoji: str = ""
    target_author: str | None = None
    target_author_number: str | None = None
    target_author_uuid: str | None = None
    target_sent_timestamp: int = 0
    is_remove: bool = False


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group_id: str
    group_name: str | None = None
    type: str | None = None


class RemoteDelete(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    timestamp: int


class DataMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    timestamp: int | None = None
    message: str | None = None
    mentions: tuple[Mention, ...] | None = None
    attachments: tuple[SignalAttachment, ...] | None = None
    quote: Quote | None = None
    reaction: Reaction | None = None
    group_info: GroupInfo | None = None
    remote_delete: RemoteDelete | None = None


class EditMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_sent_timestamp: int | None = None
    data_message: DataMessage | None = None


class SignalEnvelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    source: str | None = None
    source_number: str | None = None
    source_uuid: str | None = None
    source_name: str | None = None
    timestamp: int | None = None
    data_message: DataMessage | None = None
    edit_message: EditMessage | None = None
    sync_message: Any = None


class ReceiveEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    account: str | None = None
    envelope: SignalEnvelope | None = None


decode_event = msgspec.json.Decoder(ReceiveEvent).decode
"""Decodes an event and ignores unknown fields. Raises ``msgspec.MsgspecError``."""


class IncomingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the agent. The daemon still has its attachments."""

    inbound: Inbound
    attachments: tuple[SignalAttachment, ...] = ()


class SignalEdit(msgspec.Struct, frozen=True, kw_only=True):
    """New words of an earlier message, whose id it has."""

    inbound: Inbound


class SignalDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A message was taken back by its sender. ``inbound`` has its id."""

    inbound: Inbound


class IncomingReaction(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to a message. ``inbound.text`` describes it."""

    inbound: Inbound
    to_us: bool


class OwnIdentity(msgspec.Struct, frozen=True):
    """The number and the uuid of our own account."""

    number: str | None
    uuid: str | None = None

    def is_me(self, *names: str | None) -> bool:
        mine = {self.number, self.uuid and self.uuid.lower()} - {None}
        return any(name is not None and (name in mine or name.lower() in mine) for name in names)


def with_learned_uuid(own: OwnIdentity, event: ReceiveEvent) -> OwnIdentity:
    """Our identity with our uuid, if the event names it beside our number. Mentions may carry only the uuid."""
    envelope = event.envelope
    if own.uuid is not None or own.number is None or envelope is None:
        return own
    data = envelope.data_message
    pairs = [(envelope.source_number, envelope.source_uuid)]
    if data is not None:
        pairs += [(mention.number, mention.uuid) for mention in data.mentions or ()]
        pairs += [(data.quote.author_number, data.quote.author_uuid)] if data.quote else []
        pairs += [(data.reaction.target_author_number, data.reaction.target_author_uuid)] if data.reaction else []
    found = next((uuid for number, uuid in pairs if uuid and number == own.number), None)
    return OwnIdentity(own.number, found) if found else own


SignalEvent: TypeAlias = IncomingMessage | SignalEdit | SignalDeletion | IncomingReaction


def interpret(event: ReceiveEvent, own: OwnIdentity, account_id: str) -> SignalEvent | None:
    """What an event says. None for receipts, typing, calls and our own messages."""
    envelope = event.envelope
    if envelope is None or envelope.sync_message is not None:
        return None
    edit = envelope.edit_message
    data = envelope.data_message or (edit.data_message if edit else None)
    sender = _sender(envelope)
    if data is None or sender is None or own.is_me(envelope.source_number, envelope.source_uuid, envelope.source):
        return None
    inbound = _inbound(envelope, data, sender, own, account_id)
    if data.remote_delete is not None:
        inbound.message_id = _message_id(data.remote_delete.timestamp, sender, data.group_info)
        return SignalDeletion(inbound=inbound)
    if edit is not None and edit.target_sent_timestamp and inbound.text.strip():
        inbound.revision = str(inbound.timestamp_ms)
        inbound.message_id = _message_id(edit.target_sent_timestamp, sender, data.group_info)
        return SignalEdit(inbound=inbound)
    if data.reaction is not None:
        return _reaction(inbound, data.reaction, own)
    if not inbound.text.strip() and not data.attachments:
        return None
    return IncomingMessage(inbound=inbound, attachments=data.attachments or ())


def _sender(envelope: SignalEnvelope) -> Sender | None:
    number = normalize_number(envelope.source_number or envelope.source or "")
    if number is None and not envelope.source_uuid:
        return None
    uuid = envelope.source_uuid
    # People may be listed by either. Those who hide their number have only the uuid.
    known = (f"uuid:{uuid}", uuid) if uuid else ()
    name = (envelope.source_name or "").strip() or None
    return Sender(id=number or f"uuid:{uuid}", name=name, e164=number, other_ids=known)


def _message_id(timestamp: int, sender: Sender, group: GroupInfo | None) -> str:
    """A timestamp identifies a message only together with its sender. In a direct chat the sender is the peer."""
    return f"{timestamp}:{sender.id}" if group else str(timestamp)


def _inbound(envelope: SignalEnvelope, data: DataMessage, sender: Sender, own: OwnIdentity, account_id: str) -> Inbound:
    group = data.group_info
    timestamp = data.timestamp or envelope.timestamp or 0
    address = sender.e164 or sender.id.removeprefix("uuid:")
    mentions = data.mentions or ()
    return Inbound(
        channel="signal",
        account_id=account_id,
        message_id=_message_id(timestamp, sender, group),
        peer=Peer(kind="group", id=group.group_id) if group else Peer(kind="direct", id=sender.id),
        sender=sender,
        to=f"group:{group.group_id}" if group else f"signal:{address}",
        text=with_mentions((data.message or "")[:MAX_TEXT], mentions, own),
        timestamp_ms=timestamp,
        mentioned=any(own.is_me(mention.number, mention.uuid) for mention in mentions),
        mentions_others=any(not own.is_me(mention.number, mention.uuid) for mention in mentions),
        can_detect_mention=own.number is not None or own.uuid is not None,
        quoted=_quoted(data.quote, own),
        group_subject=group.group_name if group else None,
    )


def _quoted(quote: Quote | None, own: OwnIdentity) -> Quoted | None:
    if quote is None:
        return None
    author = quote.author_number or quote.author or (f"uuid:{quote.author_uuid}" if quote.author_uuid else None)
    return Quoted(
        id=str(quote.id) if quote.id else None,
        sender=author,
        text=quote.text or "",
        from_us=own.is_me(quote.author_number, quote.author_uuid, quote.author),
    )


def _reaction(inbound: Inbound, reaction: Reaction, own: OwnIdentity) -> IncomingReaction | None:
    if not reaction.emoji.strip() or not reaction.target_sent_timestamp:
        return None
    to_us = own.is_me(reaction.target_author_number, reaction.target_author_uuid, reaction.target_author)
    author = reaction.target_author_number or reaction.target_author or reaction.target_author_uuid
    whose = "your message" if to_us else f"the message of {author or 'somebody'}"
    who = display_name(inbound.sender.name) or inbound.sender.id
    emoji = disarmed_name(reaction.emoji)[:LONGEST_EMOJI]
    did = "took back the reaction" if reaction.is_remove else "reacted with"
    inbound.text = f"Signal: {who} {did} {emoji} to {whose} (id {reaction.target_sent_timestamp})"
    return IncomingReaction(inbound=inbound, to_us=to_us)


def with_mentions(text: str, mentions: tuple[Mention, ...], own: OwnIdentity) -> str:
    """The text with names in place of mentions. A mention of us at the beginning or the end is left out."""
    if not mentions:
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    pieces: list[str] = []
    position = 0
    for mention in sorted(mentions, key=lambda mention: mention.start):
        start, end = 2 * mention.start, 2 * (mention.start + mention.length)
        if start < position or end > len(units) or mention.length < 1:
            continue
        before = _text(units[position:start])
        mine = own.is_me(mention.number, mention.uuid)
        edge = not "".join(pieces).strip() + before.strip() or not _text(units[end:]).strip()
        name = mention.name if mention.name and mention.name not in (mention.number, mention.uuid) else None
        pieces += [before, "" if mine and edge else f"@{name or mention.number or mention.uuid or 'somebody'}"]
        position = end
    joined = "".join([*pieces, _text(units[position:])])
    return joined.strip() if any(own.is_me(mention.number, mention.uuid) for mention in mentions) else joined


def _text(units: bytes) -> str:
    return units.decode("utf-16-le", "replace")


async def fetch_attachments(
    rpc: SignalRpc, blobs: BlobStore, attachments: Sequence[SignalAttachment], origin: dict[str, Any], limit: int
) -> Fetched:
    """Puts the files into the blob store. Returns them, and for the agent a line for each that was not fetched."""
    return await fetch_files(
        attachments,
        lambda attachment: attachment.filename or attachment.content_type,
        lambda attachment: _fetch(rpc, blobs, attachment, origin, limit),
    )


async def _fetch(
    rpc: SignalRpc, blobs: BlobStore, attachment: SignalAttachment, origin: dict[str, Any], limit: int
) -> Media:
    if not attachment.id:
        raise NotFetched("the daemon has not kept it")
    too_large = f"it is larger than {limit / 1024 / 1024:g} MB (channels.signal.mediaMaxMb)"
    if attachment.size is not None and attachment.size > limit:
        raise NotFetched(too_large)
    try:
        answer = await rpc.call("getAttachment", {"id": attachment.id, **origin}, FETCH_TIMEOUT_S)
    except (RpcError, RpcUnreachable) as error:
        raise NotFetched(str(error)) from None
    encoded = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(encoded, str):
        raise NotFetched("the daemon gave no data")
    try:
        data = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
    except binascii.Error:
        raise NotFetched("the daemon's data is not base64") from None
    if len(data) > limit:
        raise NotFetched(too_large)
    return await kept_file(blobs, data, attachment.content_type, attachment.filename)
