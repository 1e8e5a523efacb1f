"""Turns what a BlueBubbles server tells into messages, tapbacks, changes and deletions. It asks nobody."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from openclaw.channels.bluebubbles.kind import normalize_handle
from openclaw.inbound.message import Inbound, Peer, Quoted, Sender
from openclaw.inbound.prompt_text import channel_name

MAX_TEXT = 256 * 1024
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


class BbHandle(msgspec.Struct, frozen=True, kw_only=True):
    address: str = ""
    service: str | None = None


class BbChat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    display_name: str | None = None
    style: int | None = None


class BbAttachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    mime_type: str | None = None
    transfer_name: str | None = None
    total_bytes: int | None = None
    hide_attachment: bool | None = None


class BbMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    guid: str = ""
    temp_guid: str | None = None
    text: str | None = None
    subject: str | None = None
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


class BubblePost(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the agent. The server still has its files."""

    inbound: Inbound
    files: tuple[BbAttachment, ...] = ()


class Tapback(msgspec.Struct, frozen=True, kw_only=True):
    inbound: Inbound
    target: str
    """The id of the message."""


class BubbleEdit(msgspec.Struct, frozen=True, kw_only=True):
    inbound: Inbound


class BubbleUnsend(msgspec.Struct, frozen=True, kw_only=True):
    inbound: Inbound


BubbleEvent: TypeAlias = BubblePost | Tapback | BubbleEdit | BubbleUnsend


def interpret(kind: str, message: BbMessage, channel: str, account_id: str) -> BubbleEvent | None:
    """What an event says. None for our own messages, receipts, and what happens to a group."""
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
        return _tapback(inbound, message)
    if kind == "updated-message":
        if message.date_retracted:
            return BubbleUnsend(inbound=inbound)
        if message.date_edited:
            inbound.revision = str(message.date_edited)
            return BubbleEdit(inbound=inbound)
        return None
    if message.thread_originator_guid:
        inbound.quoted = Quoted(id=message.thread_originator_guid)
    files = tuple(file for file in message.attachments or () if file.guid and not file.hide_attachment)
    return BubblePost(inbound=inbound, files=files) if inbound.text.strip() or files else None


def _tapback(inbound: Inbound, message: BbMessage) -> Tapback | None:
    name, removed = _tapback_name(message.associated_message_type)
    sign = EMOJI.get(name) or (message.associated_message_emoji or "")[:16]
    if not sign:
        return None  # A sticker or a game that is put on a message.
    # The id is "p:<part>/<guid>" or "bp:<guid>".
    target = (message.associated_message_guid or "").rpartition("/")[2].rpartition(":")[2]
    did = "took back the reaction" if removed else "reacted with"
    where = channel_name(inbound.channel)
    inbound.text = f"{where}: {inbound.sender.id} {did} {sign} to the message {target}"
    return Tapback(inbound=inbound, target=target)


def _tapback_name(given: Any) -> tuple[str, bool]:
    """The name of a tapback, and whether it was taken back. Older servers tell a number, newer ones a word."""
    if isinstance(given, str) and given.lstrip("-").isdigit():
        given = int(given)
    if isinstance(given, int):
        return TAPBACKS.get(given if given < 3000 else given - 1000, ""), given >= 3000
    word = str(given or "")
    return word.removeprefix("-"), word.startswith("-")
