"""What the events of Discord's gateway mean for the agent. It asks Discord nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from openclaw.channels.base import is_number
from openclaw.channels.submit import MAX_TEXT, ChannelEvent, Edited, Posted, Reacted, reaction_text
from openclaw.clock import iso_ms
from openclaw.inbound.message import ClaimedName, Inbound, Peer, Quoted, Sender, slug
from openclaw.inbound.prompt_text import display_name

DISCORD_EPOCH_MS = 1_420_070_400_000
THREADS = frozenset({10, 11, 12})
TEXT_ROOMS = frozenset({0, 5})
"""Channels in which a thread can begin at a message: plain ones and those for announcements."""
_ORDINARY = frozenset({0, 19, 20, 21})
"""Types of messages that people write: plain ones, replies, commands, the first message of a thread."""
_USER = re.compile(r"<@!?(\d{1,20})>")
_CHANNEL = re.compile(r"<#(\d{1,20})>")
_EMOJI = re.compile(r"<a?:(\w{1,64}):\d{1,20}>")


class DiscordUser(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    username: str = ""
    global_name: str | None = None
    discriminator: str = "0"
    bot: bool = False

    @property
    def tag(self) -> str:
        return self.username if self.discriminator in ("", "0") else f"{self.username}#{self.discriminator}"


class GuildMember(msgspec.Struct, frozen=True, kw_only=True):
    nick: str | None = None
    user: DiscordUser | None = None


class DiscordAttachment(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = msgspec.field(default=None, name="filename")
    url: str = ""
    size: int | None = None
    mime_type: str | None = msgspec.field(default=None, name="content_type")


class SnapshotMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str = ""
    timestamp: str | None = None
    attachments: tuple[DiscordAttachment, ...] = ()


class ForwardedMessage(msgspec.Struct, frozen=True, kw_only=True):
    message: SnapshotMessage = SnapshotMessage()


class StickerItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class DiscordMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    channel_id: str
    guild_id: str | None = None
    author: DiscordUser | None = None
    member: GuildMember | None = None
    type: int = 0
    content: str = ""
    timestamp: str | None = None
    edited_timestamp: str | None = None
    mentions: tuple[DiscordUser, ...] = ()
    mention_roles: tuple[str, ...] = ()
    attachments: tuple[DiscordAttachment, ...] = ()
    sticker_items: tuple[StickerItem, ...] = ()
    message_snapshots: tuple[ForwardedMessage, ...] = ()
    referenced_message: DiscordMessage | None = None


class DeletedMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    channel_id: str
    guild_id: str | None = None


class DiscordEmoji(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None


class DiscordReaction(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str
    channel_id: str
    message_id: str
    guild_id: str | None = None
    member: GuildMember | None = None
    emoji: DiscordEmoji = DiscordEmoji()
    message_author_id: str | None = None


class CommandOption(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    value: str | int | float | bool | None = None


class InteractionData(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    options: tuple[CommandOption, ...] = ()
    custom_id: str = ""


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    application_id: str = ""
    type: int
    token: str
    channel_id: str = ""
    guild_id: str | None = None
    data: InteractionData | None = None
    member: GuildMember | None = None
    user: DiscordUser | None = None
    message: DiscordMessage | None = None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A channel or thread, as the gateway describes it."""

    id: str
    type: int = 0
    name: str | None = None
    parent_id: str | None = None
    topic: str | None = None
    guild_id: str | None = None
    owner_id: str | None = None
    """Who began a thread."""


class Guild(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    channels: tuple[Room, ...] = ()
    threads: tuple[Room, ...] = ()


class Rooms:
    """The servers and channels that the gateway has told of."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.guilds: dict[str, str | None] = {}

    def type_of(self, channel_id: str) -> int:
        room = self.rooms.get(channel_id)
        return room.type if room else 0

    def learn(self, event: str, data: Any) -> None:
        """Takes in an event about servers or channels. Raises ``msgspec.ValidationError``."""
        if event in ("GUILD_CREATE", "GUILD_UPDATE"):
            guild = msgspec.convert(data, Guild)
            self.guilds[guild.id] = guild.name
            for room in (*guild.channels, *guild.threads):
                self.rooms[room.id] = msgspec.structs.replace(room, guild_id=guild.id)
        elif event in ("CHANNEL_DELETE", "THREAD_DELETE"):
            self.rooms.pop(str(data.get("id")), None)
        elif event.startswith(("CHANNEL_", "THREAD_")) and event.endswith(("_CREATE", "_UPDATE")):
            room = msgspec.convert(data, Room)
            self.rooms[room.id] = room


ROOM_EVENTS = frozenset(
    f"{what}_{how}" for what in ("GUILD", "CHANNEL", "THREAD") for how in ("CREATE", "UPDATE", "DELETE")
)


class OwnUser(msgspec.Struct, frozen=True):
    id: str
    name: str = ""


class CommandEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A slash command or the press of a button. It must be answered within three seconds."""

    inbound: Inbound
    id: str
    application_id: str
    token: str
    press: bool


DiscordEvent: TypeAlias = ChannelEvent | CommandEvent


def interpret(
    event: str, data: Any, own: OwnUser, account_id: str, rooms: Rooms, *, bots: bool = False
) -> DiscordEvent | None:
    """What an event of the gateway says. None for our own messages, other bots and what concerns nobody.

    ``bots``: listen to other bots. Raises ``msgspec.ValidationError``.
    """
    match event:
        case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
            message = msgspec.convert(data, DiscordMessage)
            author = message.author
            if author is None or author.id == own.id or (author.bot and not bots) or message.type not in _ORDINARY:
                return None
            inbound = _said(message, author, own, account_id, rooms)
            if event == "MESSAGE_UPDATE":
                # The platform also changes messages by itself, when it adds the preview of a link.
                return Edited(inbound=inbound) if message.edited_timestamp and inbound.says_something else None
            files = (
                *message.attachments,
                *(file for one in message.message_snapshots for file in one.message.attachments),
            )
            return Posted(inbound=inbound, files=files) if inbound.says_something or files else None
        case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE":
            return _reacted(msgspec.convert(data, DiscordReaction), event.endswith("ADD"), own, account_id, rooms)
        case "INTERACTION_CREATE":
            return _command(msgspec.convert(data, Interaction), own, account_id, rooms)
        case _:
            return None


def _place(channel_id: str, guild_id: str | None, person: str, own: OwnUser, rooms: Rooms) -> dict[str, Any]:
    """The fields of ``Inbound`` that say where something happened. A thread is a conversation of its own."""
    if guild_id is None:
        return {"peer": Peer(kind="direct", id=person), "to": f"user:{person}"}
    room = rooms.rooms.get(channel_id) or Room(id=channel_id)
    parent = rooms.rooms.get(room.parent_id or "") if room.type in THREADS else None
    named = parent or room
    place: dict[str, Any] = {
        "peer": Peer(kind="channel", id=channel_id),
        "to": f"channel:{channel_id}",
        "guild_id": guild_id,
        "group_space": rooms.guilds.get(guild_id) or guild_id,
        "group_channel": f"#{named.name}" if named.name else None,
    }
    if room.type in THREADS and room.parent_id:
        place |= {"parent_peer": Peer(kind="channel", id=room.parent_id), "thread_label": room.name}
        place |= {"thread_id": channel_id, "inherits_parent": True, "own_thread": room.owner_id == own.id}
    place["names"] = tuple(_listed_as(guild_id, named, rooms))
    if named.topic:
        place["untrusted"] = (f"Topic of the channel: {named.topic}",)
    return place


def _listed_as(guild_id: str, room: Room, rooms: Rooms) -> Iterator[ClaimedName]:
    """The names under which lists may have the server and the channel, unless they could mean another one, too.

    Anyone can give a server the name of another, or the digits of its id.
    """
    server = slug(rooms.guilds.get(guild_id) or "")
    if server and not is_number(server) and [slug(one or "") for one in rooms.guilds.values()].count(server) == 1:
        yield ClaimedName(kind="space", name=server, id=guild_id)
    name = room.name or ""
    alike = [other for other in rooms.rooms.values() if (other.guild_id, other.name) == (guild_id, name)]
    if name and name != "*" and not is_number(name) and sum(other.type not in THREADS for other in alike) == 1:
        yield ClaimedName(kind="room", name=name, id=room.id, space=guild_id)
        yield ClaimedName(kind="room", name=f"#{name}", id=room.id, space=guild_id)


def _sender(user: DiscordUser, member: GuildMember | None) -> Sender:
    name = (member.nick if member else None) or user.global_name or user.username
    return Sender(id=user.id, name=name or None, username=user.username or None, tag=user.tag or None)


def _said(message: DiscordMessage, author: DiscordUser, own: OwnUser, account_id: str, rooms: Rooms) -> Inbound:
    names = _names(message)
    replied = message.referenced_message
    forwarded = message.message_snapshots[0].message if message.message_snapshots else None
    text = message.content or (forwarded.content if forwarded else "")
    if not text and message.sticker_items:
        text = f"(sticker {message.sticker_items[0].name})"
    mentioned = own.id in names
    return Inbound(
        channel="discord",
        account_id=account_id,
        message_id=message.id,
        revision=message.edited_timestamp or "",
        sender=_sender(author, message.member),
        text=readable_text(text[:MAX_TEXT], own, names, rooms),
        timestamp_ms=iso_ms(message.timestamp) or snowflake_ms(message.id),
        mentioned=mentioned,
        mentions_others=any(user != own.id for user in names) or bool(message.mention_roles),
        can_detect_mention=True,
        quoted=_quoted(replied, own) if replied and message.type != 21 else None,
        forwarded_from="another channel" if forwarded else None,
        forwarded_at_ms=iso_ms(forwarded.timestamp) if forwarded else None,
        thread_starter=replied.content if replied and message.type == 21 else None,
        can_start_thread=message.guild_id is not None and rooms.type_of(message.channel_id) in TEXT_ROOMS,
        **_place(message.channel_id, message.guild_id, author.id, own, rooms),
    )


def said_in(data: Any, own: OwnUser, rooms: Rooms) -> str | None:
    """The text of a message that was fetched. Raises ``msgspec.ValidationError``."""
    message = msgspec.convert(data, DiscordMessage)
    return readable_text(message.content[:MAX_TEXT], own, _names(message), rooms) or None


def _names(message: DiscordMessage) -> dict[str, str]:
    return {user.id: user.global_name or user.username for user in message.mentions}


def readable_text(text: str, own: OwnUser, names: dict[str, str], rooms: Rooms) -> str:
    """The text with names in place of ids. A mention of us at the beginning or the end is left out."""
    if "<" not in text:
        return text
    bare = text.strip()
    for ours in (f"<@{own.id}>", f"<@!{own.id}>"):
        if bare.startswith(ours):
            bare = bare[len(ours) :].lstrip(" \t\n,:")
        if bare.endswith(ours):
            bare = bare[: -len(ours)].rstrip()

    def user(found: re.Match[str]) -> str:
        name = own.name if found[1] == own.id else names.get(found[1])
        return f"@{display_name(name)}" if name else found[0]

    def channel(found: re.Match[str]) -> str:
        room = rooms.rooms.get(found[1])
        return f"#{display_name(room.name)}" if room and room.name else found[0]

    return _EMOJI.sub(r":\1:", _CHANNEL.sub(channel, _USER.sub(user, bare)))


def _quoted(replied: DiscordMessage, own: OwnUser) -> Quoted:
    author = replied.author
    return Quoted(
        id=replied.id,
        sender=(author.global_name or author.username) if author else None,
        text=replied.content[:MAX_TEXT],
        from_us=author is not None and author.id == own.id,
    )


def _reacted(change: DiscordReaction, added: bool, own: OwnUser, account_id: str, rooms: Rooms) -> Reacted | None:
    user = change.member.user if change.member and change.member.user else DiscordUser(id=change.user_id)
    if change.user_id == own.id or user.bot:
        return None
    to_us = change.message_author_id == own.id
    inbound = Inbound(
        channel="discord",
        account_id=account_id,
        message_id=f"reaction:{change.message_id}:{change.user_id}",
        sender=_sender(user, change.member),
        **_place(change.channel_id, change.guild_id, change.user_id, own, rooms),
    )
    emoji, whose = change.emoji.name or "an emoji", "your message" if to_us else "a message"
    inbound.text = reaction_text(inbound, emoji, whose, change.message_id, removed=not added)
    return Reacted(inbound=inbound, to_us=to_us)


def _command(asked: Interaction, own: OwnUser, account_id: str, rooms: Rooms) -> CommandEvent | None:
    user = (asked.member.user if asked.member else None) or asked.user
    if user is None or asked.data is None or asked.type not in (2, 3):
        return None
    press = asked.type == 3
    words = " ".join(str(option.value) for option in asked.data.options if option.value is not None)
    text = asked.data.custom_id if press else f"/{asked.data.name} {words}".strip()
    inbound = Inbound(
        channel="discord",
        account_id=account_id,
        message_id=f"interaction:{asked.id}",
        sender=_sender(user, asked.member),
        text=text,
        timestamp_ms=snowflake_ms(asked.id),
        mentioned=True,
        native_command=not press,
        quoted=Quoted(id=asked.message.id, text=asked.message.content, from_us=True) if asked.message else None,
        **_place(asked.channel_id, asked.guild_id, user.id, own, rooms),
    )
    # An application that is older than bots has another id than its bot, and names it with each command.
    application_id = asked.application_id or own.id
    return CommandEvent(inbound=inbound, id=asked.id, application_id=application_id, token=asked.token, press=press)


def snowflake_ms(snowflake: str) -> int:
    """When the thing with this id was made."""
    return (int(snowflake) >> 22) + DISCORD_EPOCH_MS if is_number(snowflake) else 0
