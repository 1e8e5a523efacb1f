"""What Slack's events mean for the agent. It asks Slack nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

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
"""The form of a channel's id, in either case. Names that people choose are in lower case."""
STAMP = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)
"""The form of a message's id, which is also its time."""
_TOKEN = re.compile(r"<([^<>\n]{1,3000})>")
_HEARD = frozenset({None, "", "file_share", "me_message", "thread_broadcast", "bot_message"})
"""Subtypes of messages in which somebody says something. The others tell of joins, names, topics and the like."""

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
    """An event, or a message inside of one. Unknown fields are ignored."""

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
        """The id of the conversation. Empty for events that belong to none."""
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
    """Whether other bots are heard in a channel."""

    def wrote(self, event: SlackEvent) -> bool:
        return event.user == self.user or (bool(self.bot_id) and event.bot_id == self.bot_id)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What Slack was asked about the place of an event."""

    names: Mapping[str, str] = {}
    """User id → name."""
    room_kind: RoomKind | None = None
    room_name: str | None = None
    thread_starter: SlackEvent | None = None


def is_for_us(event: SlackEvent, bot: Bot) -> bool:
    """Whether the event can concern the agent. It is asked before anything is looked up."""
    match event.type:
        case "reaction_added" | "reaction_removed":
            on_message = event.item is not None and event.item.type == "message" and bool(event.item.ts)
            return on_message and bool(event.user) and event.user != bot.user
        case "message" if event.subtype in ("message_changed", "message_deleted"):
            said = spoken(event)
            before = event.previous_message
            if said is None or not _is_person(said, event.room, bot):
                return False
            # A preview of a link also arrives as a change, with the same text.
            return event.subtype == "message_deleted" or before is None or before.text != said.text
        case "message" | "app_mention":
            return event.subtype in _HEARD and bool(event.ts and event.channel) and _is_person(event, event.room, bot)
        case _:
            return False


def spoken(event: SlackEvent) -> SlackEvent | None:
    """The message that the event is about. For a deletion, it is the one that is gone."""
    match event.subtype:
        case "message_changed":
            return event.message
        case "message_deleted":
            return event.previous_message
        case _:
            return event


def people_in(event: SlackEvent) -> list[str]:
    """The ids whose names make the event readable, the author's first."""
    said = spoken(event) or event
    named = [token[1:].partition("|")[0] for token in _TOKEN.findall((said.text or "")[:MAX_TEXT]) if token[0] == "@"]
    return list(dict.fromkeys(name for name in (event.user or said.user, *named) if name))[:MAX_NAMES]


def interpret(event: SlackEvent, bot: Bot, around: Surroundings) -> ChannelEvent | None:
    """What an event that ``is_for_us`` says. None if there is nothing in it."""
    said = spoken(event)
    if event.item is not None:
        return _reaction(event, event.item, bot, around)
    if said is None:
        return None
    inbound = _inbound(event, said, bot, around)
    match event.subtype:
        case "message_changed":
            inbound.revision = (said.edited.ts if said.edited else "") or event.event_ts or event.ts or ""
            return Edited(inbound=inbound)
        case "message_deleted":
            inbound.message_id = event.deleted_ts or said.ts or ""
            return Deleted(inbound=inbound)
        case _:
            files = said.files or ()
            something = inbound.says_something or files or inbound.quoted
            return Posted(inbound=inbound, files=files) if something else None


def interpret_command(command: SlashCommand, bot: Bot, around: Surroundings, *, ephemeral: bool) -> Inbound:
    """A slash command. Its answer goes to the person alone, or to the whole channel."""
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


def room_kind(room: str, told: str | None = None) -> RoomKind:
    """The kind of a conversation: as Slack calls it, or else by the first letter of its id."""
    if told in ("im", "mpim"):
        return told
    return "im" if told is None and room.startswith("D") else "channel"


def stamp_ms(stamp: str | None) -> int:
    return int(float(stamp) * 1000) if stamp and STAMP.fullmatch(stamp) else 0


def readable(text: str, bot: Bot, names: Mapping[str, str]) -> str:
    """Slack's markup as plain text. A mention of us at the beginning or the end is left out."""
    text = _without_mention(text, f"<@{bot.user}>")
    return (
        html.unescape(_TOKEN.sub(lambda found: _token(found[1], names), text)) if "<" in text or "&" in text else text
    )


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
    """The names under which lists may have a channel. One that looks like an id counts with ``#`` only."""
    name = around.room_name or ""
    if kind != "channel" or not name:
        return ()
    spellings = (f"#{name}",) if _LIKE_ID.fullmatch(name) else (f"#{name}", name)
    return tuple(ClaimedName(kind="room", name=spelling, id=room) for spelling in spellings)


def _inbound(event: SlackEvent, said: SlackEvent, bot: Bot, around: Surroundings) -> Inbound:
    room, text = event.room, (said.text or "")[:MAX_TEXT]
    user = said.user or said.bot_id or ""
    kind = around.room_kind or room_kind(room, event.channel_type)
    thread = said.thread_ts if said.thread_ts != said.ts else None
    mentioned = [name for name in people_in(event) if f"<@{name}" in text]
    return Inbound(
        channel="slack",
        account_id=bot.account_id,
        message_id=said.ts or "",
        peer=_peer(kind, room, user),
        sender=Sender(id=user, name=around.names.get(user)),
        to=f"user:{user}" if kind == "im" else f"channel:{room}",
        text=readable(text, bot, around.names),
        timestamp_ms=stamp_ms(said.ts),
        mentioned=event.type == "app_mention" or bot.user in mentioned,
        mentions_others=any(name != bot.user for name in mentioned),
        team_id=bot.team or None,
        thread_id=thread,
        thread_has_session=thread is not None,
        group_channel=around.room_name if kind == "channel" else None,
        names=_names(kind, room, around),
        group_subject=around.room_name if kind == "mpim" else None,
        quoted=_quoted(said, thread, bot, around),
        **_thread_words(thread, bot, around),
    )


def _quoted(said: SlackEvent, thread: str | None, bot: Bot, around: Surroundings) -> Quoted | None:
    """A message that was shared, or else the first of the thread if it is ours: a reply to it needs no mention."""
    for shared in said.attachments or ():
        if (shared.is_share or shared.is_msg_unfurl) and (shared.text or "").strip():
            author = around.names.get(shared.author_id or "") or shared.author_name or shared.author_id
            text = readable((shared.text or "")[:MAX_TEXT], bot, around.names)
            return Quoted(id=str(shared.ts) if shared.ts else None, sender=author, text=text, is_quote=True)
    starter = around.thread_starter
    ours = said.parent_user_id == bot.user or (starter is not None and bot.wrote(starter))
    return Quoted(id=thread, sender=bot.user, from_us=True) if thread and ours else None


def _thread_words(thread: str | None, bot: Bot, around: Surroundings) -> dict[str, Any]:
    starter = around.thread_starter
    if thread is None or starter is None:
        return {}
    text = readable((starter.text or "")[:MAX_TEXT], bot, around.names).strip()
    who = "you" if bot.wrote(starter) else display_name(around.names.get(starter.user or "")) or starter.user or "a bot"
    files = f" [{len(starter.files)} files]" if starter.files else ""
    place = f" in #{around.room_name}" if around.room_name else ""
    return {
        "thread_starter": f"{who}: {text}{files}" if text or files else None,
        "thread_label": f"Slack thread{place}: {clipped(' '.join(text.split()), 80)}" if text else None,
    }


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
