"""Translates Matrix events. Makes no requests.

Servers forward events of other servers and clients unchecked, so any field of an event may be missing or malformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import msgspec

from openclaw.channels.submit import MAX_TEXT, Deleted, Edited, Posted
from openclaw.inbound.message import ClaimedName, Inbound, Peer, Quoted, Sender
from openclaw.untrusted_text import short_name

_FILES = frozenset({"m.image", "m.file", "m.audio", "m.video"})

ThreadReplies: TypeAlias = Literal["off", "inbound", "always"]


class OwnAccount(msgspec.Struct, frozen=True):
    """Our own account."""

    id: str
    name: str = ""


class RoomFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a room that decide how its events are handled."""

    id: str
    direct: bool = False
    name: str | None = None
    alias: str | None = None
    """The room's alias in the configuration."""
    members: Mapping[str, str] = {}
    """User → display name."""


class MatrixFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message, still on the server."""

    url: str
    mime_type: str
    name: str | None = None
    size: int | None = None
    secret: Mapping[str, object] | None = None
    """The decryption keys of an encrypted file."""


class RoomMessage(Posted, frozen=True, kw_only=True):
    quoted_id: str | None = None
    """The message that this one replies to. Its author and text must still be fetched."""


class RoomReaction(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction. The author of its target must still be fetched."""

    inbound: Inbound
    target_id: str
    emoji: str


class UnreadableEvent(msgspec.Struct, frozen=True):
    """An encrypted event that cannot be decrypted."""


MatrixEvent: TypeAlias = RoomMessage | Edited | RoomReaction | Deleted | UnreadableEvent
"""An edit or deletion is valid only if its target is a message by the same author, which must still be checked."""


class RoomEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    event_id: str
    sender: str
    origin_server_ts: int = 0
    content: Mapping[str, object] = {}
    redacts: str | None = None
    state_key: str | None = None


class InviteContent(msgspec.Struct, frozen=True, kw_only=True):
    is_direct: object = None


class InviteEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A state event of an invitation, which lacks an id."""

    state_key: str | None = None
    sender: str = ""
    content: InviteContent = InviteContent()


def is_direct(marked: bool, members: int) -> bool:
    """Return whether a room is a direct chat. ``marked`` means that the account's list of direct chats has it.

    The inviter sets the mark, so a room of three is never direct. Otherwise a stranger could make the owner and the
    agent talk in front of others as if they were alone.
    """
    return members == 2 or (marked and members < 2)


def parse_event(source: object) -> RoomEvent | None:
    """Return the event, or None if a required field is missing."""
    try:
        return msgspec.convert(source, RoomEvent)
    except msgspec.ValidationError:
        return None


def interpret(
    event: RoomEvent, room: RoomFacts, me: OwnAccount, account_id: str, threads: ThreadReplies = "inbound"
) -> MatrixEvent | None:
    """Translate an event. Returns None for state, our own events, and notices, which bots must not answer."""
    if event.sender == me.id or event.state_key is not None:
        return None
    match event.type:
        case "m.room.encrypted":
            return UnreadableEvent()
        case "m.reaction":
            relation = _map(event.content, "m.relates_to")
            target, emoji = _text(relation, "event_id"), _text(relation, "key")
            if not target or not emoji.strip():
                return None
            inbound = _inbound(event, room, me, account_id, "")
            return RoomReaction(inbound=inbound, target_id=target, emoji=emoji)
        case "m.room.redaction":
            target = event.redacts or _text(event.content, "redacts")
            inbound = _inbound(event, room, me, account_id, "")
            inbound.message_id = target
            return Deleted(inbound=inbound) if target else None
        case "m.room.message" | "m.sticker":
            return _message(event, room, me, account_id, threads)
        case _:
            return None


def _message(
    event: RoomEvent, room: RoomFacts, me: OwnAccount, account_id: str, threads: ThreadReplies
) -> RoomMessage | Edited | None:
    content, relation = event.content, _map(event.content, "m.relates_to")
    kind = "m.image" if event.type == "m.sticker" else _text(content, "msgtype")
    if kind == "m.notice" or not kind:
        return None
    if _text(relation, "rel_type") == "m.replace":
        new, target = _map(content, "m.new_content"), _text(relation, "event_id")
        text = _text(new, "body")
        if not target or not text.strip() or _text(new, "msgtype") == "m.notice":
            return None
        inbound = _inbound(event, room, me, account_id, text, mentions=new)
        inbound.message_id, inbound.revision = target, event.event_id
        return Edited(inbound=inbound)
    file = _file(content) if kind in _FILES else None
    replied = _text(_map(relation, "m.in_reply_to"), "event_id")
    in_thread = _text(relation, "rel_type") == "m.thread"
    text = _caption(content) if kind in _FILES else _text(content, "body")
    text = without_quote(text) if replied else text
    if kind == "m.emote" and text.strip():
        text = f"* {short_name(room.members.get(event.sender) or event.sender)} {text}"
    if not text.strip() and file is None:
        return None
    inbound = _inbound(event, room, me, account_id, text, mentions=content)
    root = _text(relation, "event_id") if in_thread else ""
    if threads == "always" and not room.direct:
        root = root or event.event_id
    if root and threads != "off":
        inbound.thread_id, inbound.thread_has_session = root, True
    # In a thread, a fallback reply only serves clients without threads.
    quoted = replied if not (in_thread and relation.get("is_falling_back") is True) else ""
    return RoomMessage(inbound=inbound, files=(file,) if file else (), quoted_id=quoted or None)


def _names(room: RoomFacts) -> tuple[ClaimedName, ...]:
    alias = room.alias or ""
    if room.direct or not alias.startswith("#"):
        return ()
    return (ClaimedName(kind="room", name=alias, id=room.id),)


def _inbound(
    event: RoomEvent,
    room: RoomFacts,
    me: OwnAccount,
    account_id: str,
    text: str,
    mentions: Mapping[str, object] = {},
) -> Inbound:
    mentioned, others = mentions_in(mentions, text, me)
    return Inbound(
        channel="matrix",
        account_id=account_id,
        message_id=event.event_id,
        peer=Peer(kind="direct", id=event.sender) if room.direct else Peer(kind="channel", id=room.id),
        sender=Sender(id=event.sender, name=room.members.get(event.sender) or None, username=event.sender),
        to=f"room:{room.id}",
        text=without_own_name(text, me)[:MAX_TEXT] if mentioned else text[:MAX_TEXT],
        timestamp_ms=max(event.origin_server_ts, 0),
        mentioned=mentioned,
        mentions_others=others,
        group_subject=room.name if not room.direct else None,
        names=_names(room),
    )


def mentions_in(content: Mapping[str, object], text: str, me: OwnAccount) -> tuple[bool, bool]:
    """Return whether we and whether others are mentioned. Without ``m.mentions``, look for our name in the text."""
    user_ids = _map(content, "m.mentions").get("user_ids")
    if isinstance(user_ids, list):
        people = [person for person in cast("list[object]", user_ids) if isinstance(person, str)]
        return me.id in people, any(person != me.id for person in people)
    formatted = _text(content, "formatted_body")
    if f"matrix.to/#/{me.id}" in formatted or f"matrix.to/#/{me.id.replace('@', '%40')}" in formatted:
        return True, False
    return me.id in text or _starts_with_name(text, me) > 0, False


def without_own_name(text: str, me: OwnAccount) -> str:
    """Strip our name from the start, so that ``claw: /status`` is a command."""
    return text.lstrip()[_starts_with_name(text, me) :].lstrip() or text.strip()


def _starts_with_name(text: str, me: OwnAccount) -> int:
    """Return the length of our leading name. A bare name counts only before a colon or comma."""
    head = text.lstrip()
    for name in (me.id, me.name, me.id[1:].partition(":")[0]):
        if not name:
            continue
        for spelling in (name, f"@{name}"):
            if head[: len(spelling)].lower() == spelling.lower():
                rest = head[len(spelling) :]
                if rest[:1] in (":", ","):
                    return len(spelling) + 1
                if name == me.id and not rest[:1].strip():
                    return len(spelling)
    return 0


def without_quote(text: str) -> str:
    """Strip the quotation that older clients put before a reply: ``> <@user:server> …``."""
    if not text.startswith("> "):
        return text
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if not line.startswith(">"):
            return "\n".join(lines[index:]).lstrip("\n")
    return text


def quoted_of(event: RoomEvent, me: OwnAccount) -> Quoted:
    text = without_quote(_text(event.content, "body"))
    return Quoted(id=event.event_id, sender=event.sender, text=text[:MAX_TEXT], from_us=event.sender == me.id)


def _file(content: Mapping[str, object]) -> MatrixFile | None:
    info, secret = _map(content, "info"), _map(content, "file")
    url = _text(secret, "url") or _text(content, "url")
    if not url.startswith("mxc://"):
        return None
    size = info.get("size")
    return MatrixFile(
        url=url,
        mime_type=_text(info, "mimetype") or "application/octet-stream",
        name=_text(content, "filename") or _text(content, "body") or None,
        size=size if isinstance(size, int) else None,
        secret=secret or None,
    )


def _caption(content: Mapping[str, object]) -> str:
    """Return the caption of a file. Without a separate file name, the body is the name and not a caption."""
    name, body = _text(content, "filename"), _text(content, "body")
    return body if name and name != body else ""


def _text(content: Mapping[str, object], key: str) -> str:
    value = content.get(key)
    return value if isinstance(value, str) else ""


def _map(content: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = content.get(key)
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
