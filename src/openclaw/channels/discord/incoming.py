"""Translates the events of Discord's gateway. Makes no requests."""

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
"""Channel types in which a message can start a thread: text and announcement channels."""
_ORDINARY = frozenset({0, 19, 20, 21})
"""Message types that people write: plain, reply, slash command, and thread starter."""
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
    """A channel or thread."""

    id: str
    type: int = 0
    name: str | None = None
    parent_id: str | None = None
    topic: str | None = None
    guild_id: str | None = None
    owner_id: str | None = None
    """The user who started a thread."""


class Guild(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str | None = None
    channels: tuple[Room, ...] = ()
    threads: tuple[Room, ...] = ()


class Rooms:
    """The servers and channels known from gateway events."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.guilds: dict[str, str | None] = {}

    def type_of(self, channel_id: str) -> int:
        room = self.rooms.get(channel_id)
        return room.type if room else 0

    def update(self, event: str, data: Any) -> None:
        """Apply an event about servers or channels. Raises ``msgspec.ValidationError``."""
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
    """A slash command or button press. Discord expects a response within three seconds."""

    inbound: Inbound
    id: str
    application_id: str
    token: str
    press: bool


DiscordEvent: TypeAlias = ChannelEvent | CommandEvent


def interpret(
    event: str, data: Any, own: OwnUser, account_id: str, rooms: Rooms, *, bots: bool = False
) -> DiscordEvent | None:
    """Translate a gateway event. Returns None for our own messages, system messages and, without ``bots``, bots.

    Raises ``msgspec.ValidationError``.
    """
    match event:
        case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
            message = msgspec.convert(data, DiscordMessage)
            author = message.author
            if author is None or author.id == own.id or (author.bot and not bots) or message.type not in _ORDINARY:
                return None
            inbound = _message_inbound(message, author, own, account_id, rooms)
            if event == "MESSAGE_UPDATE":
                # Discord also updates a message to add a link preview.
                return Edited(inbound=inbound) if message.edited_timestamp and inbound.has_content else None
            files = (
                *message.attachments,
                *(file for snapshot in message.message_snapshots for file in snapshot.message.attachments),
            )
            return Posted(inbound=inbound, files=files) if inbound.has_content or files else None
        case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE":
            return _reacted(msgspec.convert(data, DiscordReaction), event.endswith("ADD"), own, account_id, rooms)
        case "INTERACTION_CREATE":
            return _command(msgspec.convert(data, Interaction), own, account_id, rooms)
        case _:
            return None


def _inbound(
    message_id: str,
    sender: Sender,
    channel_id: str,
    guild_id: str | None,
    own: OwnUser,
    account_id: str,
    rooms: Rooms,
) -> Inbound:
    """Return an ``Inbound`` with its conversation filled in. A thread is a separate conversation."""
    inbound = Inbound(
        channel="discord",
        account_id=account_id,
        message_id=message_id,
        sender=sender,
        peer=Peer(kind="direct", id=sender.id),
        to=f"user:{sender.id}",
    )
    if guild_id is None:
        return inbound
    room = rooms.rooms.get(channel_id) or Room(id=channel_id)
    parent = rooms.rooms.get(room.parent_id or "") if room.type in THREADS else None
    named = parent or room
    inbound.peer, inbound.to = Peer(kind="channel", id=channel_id), f"channel:{channel_id}"
    inbound.guild_id, inbound.group_space = guild_id, rooms.guilds.get(guild_id) or guild_id
    inbound.group_channel = f"#{named.name}" if named.name else None
    if room.type in THREADS and room.parent_id:
        inbound.parent_peer, inbound.inherits_parent = Peer(kind="channel", id=room.parent_id), True
        inbound.thread_id, inbound.thread_label = channel_id, room.name
        inbound.own_thread = room.owner_id == own.id
    inbound.names = tuple(_claimed_names(guild_id, named, rooms))
    if named.topic:
        inbound.untrusted = (f"Topic of the channel: {named.topic}",)
    return inbound


def _claimed_names(guild_id: str, room: Room, rooms: Rooms) -> Iterator[ClaimedName]:
    """Yield the unambiguous names of the server and the channel, which allowlists may use.

    Anyone can give a server the name of another, or the digits of its id.
    """
    server = slug(rooms.guilds.get(guild_id) or "")
    if server and not is_number(server) and [slug(name or "") for name in rooms.guilds.values()].count(server) == 1:
        yield ClaimedName(kind="space", name=server, id=guild_id)
    name = room.name or ""
    alike = [other for other in rooms.rooms.values() if (other.guild_id, other.name) == (guild_id, name)]
    if name and name != "*" and not is_number(name) and sum(other.type not in THREADS for other in alike) == 1:
        yield ClaimedName(kind="room", name=name, id=room.id, space=guild_id)
        yield ClaimedName(kind="room", name=f"#{name}", id=room.id, space=guild_id)


def _sender(user: DiscordUser, member: GuildMember | None) -> Sender:
    name = (member.nick if member else None) or user.global_name or user.username
    return Sender(id=user.id, name=name or None, username=user.username or None, tag=user.tag or None)


def _message_inbound(
    message: DiscordMessage, author: DiscordUser, own: OwnUser, account_id: str, rooms: Rooms
) -> Inbound:
    names = _names(message)
    replied = message.referenced_message
    forwarded = message.message_snapshots[0].message if message.message_snapshots else None
    text = message.content or (forwarded.content if forwarded else "")
    if not text and message.sticker_items:
        text = f"(sticker {message.sticker_items[0].name})"
    sender = _sender(author, message.member)
    return msgspec.structs.replace(
        _inbound(message.id, sender, message.channel_id, message.guild_id, own, account_id, rooms),
        revision=message.edited_timestamp or "",
        text=readable_text(text[:MAX_TEXT], own, names, rooms),
        timestamp_ms=iso_ms(message.timestamp) or snowflake_ms(message.id),
        mentioned=own.id in names,
        mentions_others=any(user != own.id for user in names) or bool(message.mention_roles),
        can_detect_mention=True,
        quoted=_quoted(replied, own) if replied and message.type != 21 else None,
        forwarded_from="another channel" if forwarded else None,
        forwarded_at_ms=iso_ms(forwarded.timestamp) if forwarded else None,
        thread_starter=replied.content if replied and message.type == 21 else None,
        can_start_thread=message.guild_id is not None and rooms.type_of(message.channel_id) in TEXT_ROOMS,
    )


def message_text(data: Any, own: OwnUser, rooms: Rooms) -> str | None:
    """Return the text of a fetched message. Raises ``msgspec.ValidationError``."""
    message = msgspec.convert(data, DiscordMessage)
    return readable_text(message.content[:MAX_TEXT], own, _names(message), rooms) or None


def _names(message: DiscordMessage) -> dict[str, str]:
    return {user.id: user.global_name or user.username for user in message.mentions}


def readable_text(text: str, own: OwnUser, names: dict[str, str], rooms: Rooms) -> str:
    """Replace ids by names. A mention of the agent at the start or end is dropped."""
    if "<" not in text:
        return text
    bare = text.strip()
    for ours in (f"<@{own.id}>", f"<@!{own.id}>"):
        if bare.startswith(ours):
            bare = bare[len(ours) :].lstrip(" \t\n,:")
        if bare.endswith(ours):
            bare = bare[: -len(ours)].rstrip()

    def user(match: re.Match[str]) -> str:
        name = own.name if match[1] == own.id else names.get(match[1])
        return f"@{display_name(name)}" if name else match[0]

    def channel(match: re.Match[str]) -> str:
        room = rooms.rooms.get(match[1])
        return f"#{display_name(room.name)}" if room and room.name else match[0]

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
    message_id, sender = f"reaction:{change.message_id}:{change.user_id}", _sender(user, change.member)
    inbound = _inbound(message_id, sender, change.channel_id, change.guild_id, own, account_id, rooms)
    emoji, whose = change.emoji.name or "an emoji", "your message" if to_us else "a message"
    inbound.text = reaction_text(inbound, emoji, whose, change.message_id, removed=not added)
    return Reacted(inbound=inbound, to_us=to_us)


def _command(interaction: Interaction, own: OwnUser, account_id: str, rooms: Rooms) -> CommandEvent | None:
    user = (interaction.member.user if interaction.member else None) or interaction.user
    data, message = interaction.data, interaction.message
    if user is None or data is None or interaction.type not in (2, 3):
        return None
    press = interaction.type == 3
    arguments = " ".join(str(option.value) for option in data.options if option.value is not None)
    message_id, sender = f"interaction:{interaction.id}", _sender(user, interaction.member)
    inbound = _inbound(message_id, sender, interaction.channel_id, interaction.guild_id, own, account_id, rooms)
    inbound.text = data.custom_id if press else f"/{data.name} {arguments}".strip()
    inbound.timestamp_ms = snowflake_ms(interaction.id)
    inbound.mentioned, inbound.native_command = True, not press
    inbound.quoted = Quoted(id=message.id, text=message.content, from_us=True) if message else None
    return CommandEvent(
        inbound=inbound,
        id=interaction.id,
        # The application of an old bot has a different id than the bot.
        application_id=interaction.application_id or own.id,
        token=interaction.token,
        press=press,
    )


def snowflake_ms(snowflake: str) -> int:
    """Return the creation time that an id encodes."""
    return (int(snowflake) >> 22) + DISCORD_EPOCH_MS if is_number(snowflake) else 0
