"""Translates Slack's events. Makes no requests."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from openclaw.channels.submit import (
    MAX_TEXT,
    ChannelEvent,
    Deleted,
    Edited,
    Posted,
    Reacted,
    reaction_text,
)
from openclaw.inbound.message import ClaimedName, Inbound, Peer, PeerKind, Quoted, Sender
from openclaw.inbound.prompt_text import display_name
from openclaw.text import clipped

MAX_NAMES = 20
"""People whose names are looked up for one message."""
_LIKE_ID = re.compile(r"\*|.*[A-Z].*|[cdg][a-z0-9]*\d[a-z0-9]*", re.ASCII)
"""The form of a channel id, in either case. Channel names are always lower case."""
STAMP = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)
"""The form of a message id, which is also its timestamp."""
_TOKEN = re.compile(r"<([^<>\n]{1,3000})>")
_POST_SUBTYPES = frozenset({None, "", "file_share", "me_message", "thread_broadcast", "bot_message"})
"""Subtypes of messages that somebody wrote. The others report joins, names, topics and the like."""

RoomKind: TypeAlias = Literal["im", "mpim", "channel"]


class SlackFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    name: str | None = None
    mime_type: str | None = msgspec.field(default=None, name="mimetype")
    size: int | None = None
    mode: str | None = None
    url_private: str | None = None
    url_private_download: str | None = None


class SlackAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was shared into another one."""

    is_share: bool = False
    is_msg_unfurl: bool = False
    text: str | None = None
    author_id: str | None = None
    author_name: str | None = None
    ts: str | int | float | None = None


class SlackItem(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    channel: str = ""
    ts: str = ""


class SlackChange(msgspec.Struct, frozen=True, kw_only=True):
    ts: str = ""


class SlackEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event, or a message inside one. Unknown fields are ignored."""

    type: str = ""
    subtype: str | None = None
    channel: str | None = None
    channel_type: str | None = None
    user: str | None = None
    bot_id: str | None = None
    text: str | None = None
    ts: str | None = None
    thread_ts: str | None = None
    parent_user_id: str | None = None
    files: tuple[SlackFile, ...] | None = None
    attachments: tuple[SlackAttachment, ...] | None = None
    message: SlackEvent | None = None
    previous_message: SlackEvent | None = None
    edited: SlackChange | None = None
    deleted_ts: str | None = None
    reaction: str | None = None
    item: SlackItem | None = None
    item_user: str | None = None
    event_ts: str | None = None

    @property
    def room(self) -> str:
        """The id of the conversation, or empty."""
        return self.channel or (self.item.channel if self.item else "")


class SlashCommand(msgspec.Struct, frozen=True, kw_only=True):
    command: str = ""
    text: str | None = None
    user_id: str = ""
    user_name: str | None = None
    channel_id: str = ""
    team_id: str | None = None
    trigger_id: str = ""


class Bot(msgspec.Struct, frozen=True, kw_only=True):
    """Our own account."""

    user: str
    bot_id: str = ""
    team: str = ""
    account_id: str = "default"
    allow_bots: Callable[[str], bool] = lambda _: False
    """Whether messages of other bots in a channel are accepted."""

    def wrote(self, event: SlackEvent) -> bool:
        return event.user == self.user or (bool(self.bot_id) and event.bot_id == self.bot_id)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The names and the conversation around an event, as looked up from Slack."""

    names: Mapping[str, str] = {}
    """User id → name."""
    room_kind: RoomKind | None = None
    room_name: str | None = None
    thread_starter: SlackEvent | None = None


def is_for_us(event: SlackEvent, bot: Bot) -> bool:
    """Return whether the event can concern the agent. Checked before anything is looked up."""
    match event.type:
        case "reaction_added" | "reaction_removed":
            on_message = event.item is not None and event.item.type == "message" and bool(event.item.ts)
            return on_message and bool(event.user) and event.user != bot.user
        case "message" if event.subtype in ("message_changed", "message_deleted"):
            message = message_of(event)
            before = event.previous_message
            if message is None or not _is_person(message, event.room, bot):
                return False
            # An added link preview also arrives as a change, with the same text.
            return event.subtype == "message_deleted" or before is None or before.text != message.text
        case "message" | "app_mention":
            return (
                event.subtype in _POST_SUBTYPES
                and bool(event.ts and event.channel)
                and _is_person(event, event.room, bot)
            )
        case _:
            return False


def message_of(event: SlackEvent) -> SlackEvent | None:
    """Return the message of an event. For a deletion, that is the deleted message."""
    match event.subtype:
        case "message_changed":
            return event.message
        case "message_deleted":
            return event.previous_message
        case _:
            return event


def people_in(event: SlackEvent) -> list[str]:
    """Return the user ids in an event, the author's first."""
    message = message_of(event) or event
    tokens = _TOKEN.findall((message.text or "")[:MAX_TEXT])
    mentioned = [token[1:].partition("|")[0] for token in tokens if token[0] == "@"]
    return list(dict.fromkeys(user for user in (event.user or message.user, *mentioned) if user))[:MAX_NAMES]


def interpret(event: SlackEvent, bot: Bot, around: Surroundings) -> ChannelEvent | None:
    """Translate an event that ``is_for_us``. Returns None for an empty message."""
    message = message_of(event)
    if event.item is not None:
        return _reaction(event, event.item, bot, around)
    if message is None:
        return None
    inbound = _inbound(event, message, bot, around)
    match event.subtype:
        case "message_changed":
            inbound.revision = (message.edited.ts if message.edited else "") or event.event_ts or event.ts or ""
            return Edited(inbound=inbound)
        case "message_deleted":
            inbound.message_id = event.deleted_ts or message.ts or ""
            return Deleted(inbound=inbound)
        case _:
            files = message.files or ()
            has_content = inbound.has_content or files or inbound.quoted
            return Posted(inbound=inbound, files=files) if has_content else None


def interpret_command(command: SlashCommand, bot: Bot, around: Surroundings, *, ephemeral: bool) -> Inbound:
    """Translate a slash command. The reply goes to the person alone if ``ephemeral``, else to the channel."""
    kind = around.room_kind or room_kind(command.channel_id)
    sender = Sender(id=command.user_id, name=around.names.get(command.user_id), username=command.user_name)
    to = f"channel:{command.channel_id}"
    if kind == "im":
        to = f"user:{command.user_id}"
    elif ephemeral:
        to = f"ephemeral:{command.channel_id}:{command.user_id}"
    return Inbound(
        channel="slack",
        account_id=bot.account_id,
        message_id=f"slash:{command.trigger_id}" if command.trigger_id else "",
        peer=_peer(kind, command.channel_id, command.user_id),
        sender=sender,
        to=to,
        text=(command.text or "")[:MAX_TEXT],
        mentioned=True,
        team_id=command.team_id or bot.team or None,
        group_channel=around.room_name if kind == "channel" else None,
        names=_names(kind, command.channel_id, around),
        native_command=True,
    )


def room_kind(room: str, channel_type: str | None = None) -> RoomKind:
    """Return the kind of a conversation by Slack's type or, without one, by the first letter of its id."""
    if channel_type in ("im", "mpim"):
        return channel_type
    return "im" if channel_type is None and room.startswith("D") else "channel"


def stamp_ms(stamp: str | None) -> int:
    return int(float(stamp) * 1000) if stamp and STAMP.fullmatch(stamp) else 0


def readable(text: str, bot: Bot, names: Mapping[str, str]) -> str:
    """Convert Slack's markup to plain text. A mention of the agent at the start or end is dropped."""
    text = _without_mention(text, f"<@{bot.user}>")
    if "<" not in text and "&" not in text:
        return text
    return html.unescape(_TOKEN.sub(lambda match: _token(match[1], names), text))


def _without_mention(text: str, mention: str) -> str:
    if mention not in text:
        return text
    while (rest := text.lstrip()).startswith(mention):
        text = rest[len(mention) :].lstrip(" \t\n:,")
    while (rest := text.rstrip()).endswith(mention):
        text = rest[: -len(mention)].rstrip()
    return text


def _token(token: str, names: Mapping[str, str]) -> str:
    value, _, label = token.partition("|")
    match value[:1]:
        case "":
            return label
        case "@":
            return f"@{display_name(names.get(value[1:]) or label or value[1:])}"
        case "#":
            return f"#{display_name(label or value[1:])}"
        case "!":
            name = value[1:]
            if name.startswith("subteam^"):
                return f"@{display_name(label.removeprefix('@') or name)}"
            return display_name(label) or (f"@{name}" if name in ("here", "channel", "everyone") else name)
        case _:
            address = value.removeprefix("mailto:").removeprefix("tel:")
            return f"{label} ({address})" if label and label not in (address, value) else address


def _is_person(event: SlackEvent, room: str, bot: Bot) -> bool:
    if bot.wrote(event):
        return False
    if event.bot_id or event.subtype == "bot_message":
        return bool(event.user or event.bot_id) and bot.allow_bots(room)
    return bool(event.user)


def _peer(kind: RoomKind, room: str, user: str) -> Peer:
    peer: PeerKind = "direct" if kind == "im" else "group" if kind == "mpim" else "channel"
    return Peer(kind=peer, id=user if kind == "im" else room)


def _names(kind: RoomKind, room: str, around: Surroundings) -> tuple[ClaimedName, ...]:
    """Return the spellings of a channel's name for allowlists. A name that looks like an id needs its ``#``."""
    name = around.room_name or ""
    if kind != "channel" or not name:
        return ()
    spellings = (f"#{name}",) if _LIKE_ID.fullmatch(name) else (f"#{name}", name)
    return tuple(ClaimedName(kind="room", name=spelling, id=room) for spelling in spellings)


def _inbound(event: SlackEvent, message: SlackEvent, bot: Bot, around: Surroundings) -> Inbound:
    room, text = event.room, (message.text or "")[:MAX_TEXT]
    user = message.user or message.bot_id or ""
    kind = around.room_kind or room_kind(room, event.channel_type)
    thread = message.thread_ts if message.thread_ts != message.ts else None
    thread_starter, thread_label = _describe_thread(bot, around) if thread else (None, None)
    mentioned = [name for name in people_in(event) if f"<@{name}" in text]
    return Inbound(
        channel="slack",
        account_id=bot.account_id,
        message_id=message.ts or "",
        peer=_peer(kind, room, user),
        sender=Sender(id=user, name=around.names.get(user)),
        to=f"user:{user}" if kind == "im" else f"channel:{room}",
        text=readable(text, bot, around.names),
        timestamp_ms=stamp_ms(message.ts),
        mentioned=event.type == "app_mention" or bot.user in mentioned,
        mentions_others=any(name != bot.user for name in mentioned),
        team_id=bot.team or None,
        thread_id=thread,
        thread_has_session=thread is not None,
        group_channel=around.room_name if kind == "channel" else None,
        names=_names(kind, room, around),
        group_subject=around.room_name if kind == "mpim" else None,
        quoted=_quoted(message, thread, bot, around),
        thread_starter=thread_starter,
        thread_label=thread_label,
    )


def _quoted(message: SlackEvent, thread: str | None, bot: Bot, around: Surroundings) -> Quoted | None:
    """Return the shared message, or the thread's first one if it is ours: a reply to it needs no mention."""
    for shared in message.attachments or ():
        if (shared.is_share or shared.is_msg_unfurl) and (shared.text or "").strip():
            author = around.names.get(shared.author_id or "") or shared.author_name or shared.author_id
            text = readable((shared.text or "")[:MAX_TEXT], bot, around.names)
            return Quoted(id=str(shared.ts) if shared.ts else None, sender=author, text=text, is_quote=True)
    starter = around.thread_starter
    ours = message.parent_user_id == bot.user or (starter is not None and bot.wrote(starter))
    return Quoted(id=thread, sender=bot.user, from_us=True) if thread and ours else None


def _describe_thread(bot: Bot, around: Surroundings) -> tuple[str | None, str | None]:
    """Return the first message of the thread, and a label for the thread."""
    starter = around.thread_starter
    if starter is None:
        return None, None
    text = readable((starter.text or "")[:MAX_TEXT], bot, around.names).strip()
    who = "you" if bot.wrote(starter) else display_name(around.names.get(starter.user or "")) or starter.user or "a bot"
    files = f" [{len(starter.files)} files]" if starter.files else ""
    room = f" in #{around.room_name}" if around.room_name else ""
    label = f"Slack thread{room}: {clipped(' '.join(text.split()), 80)}" if text else None
    return f"{who}: {text}{files}" if text or files else None, label


def _reaction(event: SlackEvent, item: SlackItem, bot: Bot, around: Surroundings) -> Reacted | None:
    user, to_us = event.user or "", event.item_user == bot.user
    author = around.names.get(event.item_user or "") or event.item_user or "somebody"
    kind = around.room_kind or room_kind(item.channel)
    inbound = Inbound(
        channel="slack",
        account_id=bot.account_id,
        message_id=event.event_ts or item.ts,
        peer=_peer(kind, item.channel, user),
        sender=Sender(id=user, name=around.names.get(user)),
        to=f"user:{user}" if kind == "im" else f"channel:{item.channel}",
        timestamp_ms=stamp_ms(event.event_ts),
        team_id=bot.team or None,
        group_channel=around.room_name if kind == "channel" else None,
        names=_names(kind, item.channel, around),
    )
    whose = "your message" if to_us else f"the message of {display_name(author)}"
    removed = event.type == "reaction_removed"
    inbound.text = reaction_text(inbound, f":{event.reaction}:", whose, item.ts, removed=removed)
    return Reacted(inbound=inbound, to_us=to_us) if event.reaction else None
