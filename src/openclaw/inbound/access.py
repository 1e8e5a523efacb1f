"""Decides who may talk to the agent, who may command it and who owns it. No other place decides that.

People and places are known by their stable ids. Names decide nothing, because anyone can change them; a name in the
configuration stands for the id to which it was resolved once (``inbound/names.py``). In doubt, access is denied.
The settings of a channel decide, and the list of those who were let in by a code (``inbound/pairing.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from openclaw.config.channels import DEFAULT_ACCOUNT, account_settings
from openclaw.config.schema import Config
from openclaw.config.schema.channels import (
    ChannelGroup,
    DiscordAccount,
    DmPolicy,
    GroupPolicy,
    SlackAccount,
    SlackRoom,
    TelegramGroup,
)
from openclaw.config.schema.system import Commands
from openclaw.config.validate import KNOWN_CHANNELS
from openclaw.inbound.message import ClaimedName, Inbound, slug
from openclaw.rights import Right, rights_of_person

STORE_COUNTS_IN_GROUPS = frozenset({"telegram", "signal", "imessage", "bluebubbles"})
"""On these channels a paired person may also speak in groups."""
_OWNER_ENFORCED = frozenset({"whatsapp"})
_PREFIXES = {
    "telegram": ("tg:",),
    "discord": ("user:", "pk:"),
    "slack": ("user:",),
    "bluebubbles": ("imessage:",),
    "imessage": ("bluebubbles:",),
}
_WHATSAPP = re.compile(r"(\d{5,15})(?:@s\.whatsapp\.net)?")
_MENTION = re.compile(r"<@!?([^<>|]+)(?:\|[^<>]*)?>")
_PHONE = re.compile(r"\+[\d\s().-]{4,}")
_PLAIN_ID = re.compile(r"\*|-?\d+|!.*|[CDG][A-Z0-9]+", re.ASCII)
"""The ids of Telegram, Discord, Matrix and Slack, and the entry for all others."""
_NOT_DIGITS = re.compile(r"[^\d+]")


class Allow(msgspec.Struct, frozen=True):
    pass


class Drop(msgspec.Struct, frozen=True):
    """The sender gets no answer. The reason goes to the log."""

    reason: str


class Pair(msgspec.Struct, frozen=True):
    """The sender is a stranger, who may ask to be let in."""

    sender_id: str


Access: TypeAlias = Allow | Drop | Pair


def decide_access(inbound: Inbound, settings: ChannelSettings, allow_store: Collection[str]) -> Access:
    """Decide whether a message is admitted. ``allow_store`` holds the ids approved by pairing."""
    if inbound.peer.kind == "direct":
        return _direct(inbound, settings, allow_store)
    return _group(inbound, settings, allow_store)


def _direct(inbound: Inbound, settings: ChannelSettings, allow_store: Collection[str]) -> Access:
    ids = sender_ids(inbound)
    if settings.dm_policy == "disabled":
        return Drop("direct messages are disabled")
    existing = _known(settings.channel, settings.allow_from)
    # "open" counts only together with "*". Without it the policy is as closed as an allow list.
    if "*" in existing or _admits(existing | _known(settings.channel, allow_store), ids):
        return Allow()
    if settings.dm_policy != "pairing":
        return Drop("sender is not on the allow list")
    return Pair(ids[0]) if ids else Drop("sender has no id")


def _group(inbound: Inbound, settings: ChannelSettings, allow_store: Collection[str]) -> Access:
    if settings.group_dms is not None and inbound.peer.kind == "group":
        return _group_dm(inbound, settings, settings.group_dms, allow_store)
    own = _listed(settings, inbound)
    topic = _topic(own, inbound)
    chain = [item for item in (topic, own) if item]
    if not all(item.enabled for item in chain):
        return Drop("group is disabled")
    policy = next((item.policy for item in chain if item.policy), settings.group_policy)
    if policy == "disabled":
        return Drop("group messages are disabled")
    members = next((item.allow_from for item in chain if item.allow_from is not None), None)
    if settings.lists_rooms:
        if policy == "allowlist" and own is None and "*" not in settings.groups:
            return Drop("channel is not on the list of channels")
        if members is not None and not _admits(_known(settings.channel, members), sender_ids(inbound)):
            return Drop("sender is not on the list of the channel")
        return Allow()
    if members is not None or policy == "allowlist":
        if members is None:
            members = settings.allow_from if settings.group_allow_from is None else settings.group_allow_from
        existing = _known(settings.channel, members)
        if settings.channel in STORE_COUNTS_IN_GROUPS:
            existing |= _known(settings.channel, allow_store)
        if not _admits(existing, sender_ids(inbound)):
            return Drop("sender is not on the group allow list")
    if not group_rules(settings, inbound).allowed:
        return Drop("group is not on the list of groups")
    return Allow()


def _group_dm(inbound: Inbound, settings: ChannelSettings, rooms: GroupDms, allow_store: Collection[str]) -> Access:
    """Return a direct chat with several people. Everybody in it must be known by themselves, as in a direct chat."""
    if not rooms.enabled or settings.dm_policy == "disabled":
        return Drop("direct messages with several people are disabled")
    if rooms.listed and normal_id(settings.channel, inbound.peer.id) not in _known(settings.channel, rooms.listed):
        return Drop("this direct chat with several people is not on the list")
    people = _known(settings.channel, settings.allow_from) | _known(settings.channel, allow_store)
    return Allow() if _admits(people, sender_ids(inbound)) else Drop("sender is not on the allow list")


# Rights


def sender_rights(
    inbound: Inbound,
    settings: ChannelSettings,
    allow_store: Collection[str],
    commands: Commands,
) -> frozenset[Right]:
    """What a sender may do besides talking. Only lists in the configuration make owners; pairing makes guests."""
    channel, ids = settings.channel, sender_ids(inbound)
    owners = _owners_of_channel(commands.owner_allow_from, channel)
    people = _known(channel, settings.allow_from)
    if owners:
        passes = _admits(owners, ids)
    else:
        invited = people | _known(channel, allow_store)
        passes = channel not in _OWNER_ENFORCED or not invited or _admits(invited, ids)
    if all(str(entry).strip() == "*" for entry in commands.owner_allow_from):
        owners = people  # Nobody is named as the owner, so the people whom the channel's own list names are.
    return rights_of_person(
        authorised=passes and command_authorised(inbound, settings, allow_store, commands),
        owner=not owners.isdisjoint(ids),
    )


def command_authorised(
    inbound: Inbound, settings: ChannelSettings, allow_store: Collection[str], commands: Commands
) -> bool:
    """Return whether a configured list admits the sender. Without any list nobody is admitted."""
    channel, ids = settings.channel, sender_ids(inbound)
    value = commands.allow_from.get(channel, commands.allow_from.get("*"))
    if value is not None:
        return _admits(_known(channel, tuple(map(str, value))), ids)
    if not commands.use_access_groups:
        return True
    people = _known(channel, settings.allow_from) | _known(channel, allow_store)
    if _admits(people, ids):
        return True
    if inbound.peer.kind == "direct":
        return False
    own = _listed(settings, inbound)
    members = settings.group_allow_from if own is None or own.allow_from is None else own.allow_from
    return _admits(_known(channel, members or ()), ids)


def _owners_of_channel(entries: Iterable[str | int], channel: str) -> frozenset[str]:
    """Entries such as ``signal:+1555`` count on their channel only. Bare entries count everywhere."""
    owners: set[str] = set()
    for entry in map(str, entries):
        named = entry.strip().lower().partition(":")[0]
        if named == channel or named not in KNOWN_CHANNELS:
            owners.add(normal_id(channel, entry))
    return frozenset(owners - {""})


# Groups


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool
    require_mention: bool
    mention_is_set: bool = False
    """Whether the configuration sets ``require_mention`` for this group. Otherwise it is the default."""
    auto_thread: bool = False
    """A message is answered in a thread that begins with it."""
    thread_starter: bool = True
    """The agent is shown the message that a thread began with."""
    system_prompt: str = ""
    skills: tuple[str, ...] | None = None
    """The only skills of the agent that count here. None: all."""


def group_rules(settings: ChannelSettings, inbound: Inbound) -> GroupRules:
    """Return what the list of groups says about this one. An empty list allows all groups."""
    if settings.group_dms is not None and inbound.peer.kind == "group":
        return GroupRules(allowed=True, require_mention=False, mention_is_set=True)
    own, rest = _listed(settings, inbound), settings.groups.get("*")
    if settings.guilds is not None and inbound.guild_id:
        # Without a list, only an open policy lets servers in.
        everywhere = not settings.guilds and settings.group_policy == "open"
        wish = own.require_mention if own else None
        auto_thread = own is not None and own.auto_thread
        if auto_thread and inbound.own_thread:
            wish = False
        return GroupRules(
            allowed=own is not None or everywhere,
            require_mention=wish is not False,
            mention_is_set=wish is not None,
            auto_thread=auto_thread,
            thread_starter=own is None or own.thread_starter,
            system_prompt=own.system_prompt if own else "",
            skills=own.skills if own else None,
        )
    topic = _topic(own, inbound) or _topic(rest, inbound)
    chain = [item for item in (topic, own or rest) if item]
    wishes = [*(item.require_mention for item in (topic, own, rest) if item), settings.require_mention]
    return GroupRules(
        allowed=not settings.groups or own is not None or rest is not None,
        require_mention=next((wish for wish in wishes if wish is not None), True),
        mention_is_set=any(wish is not None for wish in wishes),
        system_prompt="\n\n".join(item.system_prompt for item in reversed(chain) if item.system_prompt),
        skills=next((item.skills for item in chain if item.skills is not None), None),
    )


def _listed(settings: ChannelSettings, inbound: Inbound) -> GroupSettings | None:
    """Return the entry of this group, or of the group that its topic or thread belongs to."""
    if settings.guilds is not None and inbound.guild_id:
        return _in_guild(settings, settings.guilds, inbound)
    names = [inbound.peer.id, inbound.peer.id.partition(":topic:")[0]]
    if inbound.parent_peer is not None:
        names.append(inbound.parent_peer.id)
    if settings.lists_rooms:
        names.append(inbound.peer.id.lower())
    names += [name.name for name in inbound.known_as if name.kind == "room"]
    return next((settings.groups[name] for name in names if name != "*" and name in settings.groups), None)


def _in_guild(settings: ChannelSettings, guilds: Mapping[str, GuildSettings], inbound: Inbound) -> GroupSettings | None:
    """Return what holds in a channel of a server. None: the server or the channel is not on the list.

    A list names servers and channels, not people: whoever can write there counts, unless ``users`` says otherwise.
    """
    guild = _guild(guilds, inbound)
    if guild is None:
        return None
    parent = inbound.parent_peer.id if inbound.parent_peer else ""
    named = [name.name for name in inbound.known_as if name.kind == "room"]
    keys = (inbound.peer.id, parent, *named, "*")
    channel = next((guild.channels[key] for key in keys if key and key in guild.channels), None)
    if guild.channels and channel is None:
        return None
    wishes = (channel.require_mention if channel else None, guild.require_mention)
    users = channel.allow_from if channel and channel.allow_from is not None else guild.users
    return GroupSettings(
        enabled=channel is None or channel.enabled,
        require_mention=next((wish for wish in wishes if wish is not None), None),
        policy="disabled" if settings.group_policy == "disabled" else "open",
        allow_from=settings.group_allow_from if users is None else users,
        auto_thread=channel is not None and channel.auto_thread,
        thread_starter=channel is None or channel.thread_starter,
        system_prompt=channel.system_prompt if channel else "",
        skills=channel.skills if channel else None,
    )


def _guild(guilds: Mapping[str, GuildSettings], inbound: Inbound) -> GuildSettings | None:
    keys = [inbound.guild_id or "", *(name.name for name in inbound.known_as if name.kind == "space"), "*"]
    return next((guilds[key] for key in keys if key in guilds), None)


def may_list_names(settings: ChannelSettings, people: Collection[str]) -> bool:
    """Return whether a list has an entry that may be a name. Ids of most platforms are known by their form."""
    guilds = settings.guilds or {}
    rooms = [*settings.groups, *guilds, *(room for guild in guilds.values() for room in guild.channels)]
    return bool(people) or any(not _PLAIN_ID.fullmatch(room) for room in rooms)


def listed_names(inbound: Inbound, settings: ChannelSettings, people: Collection[str]) -> list[ClaimedName]:
    """Return the names of the sender and the place that the configuration lists.

    ``people`` are the names of people that it mentions: see ``names_of_people``. Where it lists the id, a name is not
    needed. The names of a server must be verified before those of its rooms are listed.
    """
    listed: list[ClaimedName] = []
    guilds = settings.guilds if inbound.guild_id else None
    for name in inbound.names:
        if name.kind == "person":
            counts = normal_id(settings.channel, name.name) in people
        elif name.kind == "space":
            counts = guilds is not None and name.id not in guilds and name.name in guilds
        else:
            guild = _guild(guilds, inbound) if guilds is not None else None
            rooms = settings.groups if guilds is None else guild.channels if guild is not None else {}
            counts = name.id not in rooms and name.name in rooms
        if counts:
            listed.append(name)
    return listed


def names_of_people(config: Config, channel: str) -> frozenset[str]:
    """Return every name such as ``@ann`` that the configuration mentions, in its one spelling."""
    result: set[str] = set()
    waiting: list[Any] = [msgspec.to_builtins(config)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += cast("dict[Any, Any]", value).values()
        elif isinstance(value, list | tuple):
            waiting += cast("Sequence[Any]", value)
        elif isinstance(value, str) and len(value) < 200 and (name := normal_id(channel, value)).startswith("@"):
            result.add(name)
    return frozenset(result)


def _topic(group: GroupSettings | None, inbound: Inbound) -> GroupSettings | None:
    return group.topics.get(str(inbound.thread_id)) if group and inbound.thread_id is not None else None


# Ids


def sender_ids(inbound: Inbound) -> list[str]:
    """Return the ids that stand for the sender, best first. A group's own id never stands for a person."""
    channel, sender = inbound.channel.strip().lower(), inbound.sender
    supplied = [sender.id, sender.e164 or ""]
    if channel == "whatsapp":
        supplied.reverse()
    supplied += sender.other_ids
    supplied += [name.name for name in inbound.known_as if name.kind == "person"]
    if inbound.peer.kind == "direct":
        supplied.append(inbound.peer.id)
    return [
        existing
        for existing in dict.fromkeys(normal_id(channel, value) for value in supplied)
        if existing not in ("", "*")
    ]


@lru_cache(maxsize=4096)
def normal_id(channel: str, value: str) -> str:
    """Return the one spelling of an id: no channel prefix, lower case, phone numbers without blanks and signs."""
    text = _MENTION.sub(r"\1", value.strip().lower())
    for prefix in (f"{channel}:", *_PREFIXES.get(channel, ())):
        text = text.removeprefix(prefix).strip()
    if channel == "whatsapp" and (number := _WHATSAPP.fullmatch(text)):
        return f"+{number[1]}"
    return _NOT_DIGITS.sub("", text) if _PHONE.fullmatch(text) else text


def _known(channel: str, entries: Collection[str]) -> frozenset[str]:
    return _normal_ids(channel, entries if isinstance(entries, tuple | frozenset) else tuple(entries))


@lru_cache(maxsize=512)
def _normal_ids(channel: str, entries: tuple[str, ...] | frozenset[str]) -> frozenset[str]:
    """The result is cached: lists are long, change rarely and are needed for every message."""
    return frozenset(existing for entry in entries if (existing := normal_id(channel, entry)))


def _admits(known: frozenset[str], ids: Collection[str]) -> bool:
    return "*" in known or not known.isdisjoint(ids)


# The settings of a channel


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    require_mention: bool | None = None
    policy: GroupPolicy | None = None
    allow_from: tuple[str, ...] | None = None
    system_prompt: str = ""
    skills: tuple[str, ...] | None = None
    auto_thread: bool = False
    thread_starter: bool = True
    topics: Mapping[str, GroupSettings] = {}


class GuildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A server of Discord."""

    require_mention: bool | None = None
    users: tuple[str, ...] | None = None
    channels: Mapping[str, GroupSettings] = {}


class GroupDms(msgspec.Struct, frozen=True, kw_only=True):
    """Direct chats with several people, on platforms that tell them from groups."""

    enabled: bool = False
    listed: tuple[str, ...] = ()
    """Their ids. Empty means all."""


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    dm_policy: DmPolicy = "pairing"
    allow_from: tuple[str, ...] = ()
    group_policy: GroupPolicy = "allowlist"
    group_allow_from: tuple[str, ...] | None = None
    """None means unset, so that ``allow_from`` counts. An empty list admits nobody."""
    groups: Mapping[str, GroupSettings] = {}
    guilds: Mapping[str, GuildSettings] | None = None
    """Servers by id, or by a name that was resolved. None: the platform has none."""
    lists_rooms: bool = False
    """The policy "allowlist" means the rooms in ``groups``, not the people in ``allow_from``."""
    require_mention: bool | None = None
    """For groups that do not say."""
    group_dms: GroupDms | None = None
    """None for platforms with groups; there a peer of the kind ``group`` is one."""
    history_limit: int | None = None
    threads_share_history: bool = False
    """The messages that come before a reply in a thread are those of the whole channel."""


def channel_settings(config: Config, channel: str, account_id: str = DEFAULT_ACCOUNT) -> ChannelSettings:
    """Return the settings of one account. A channel without a section gets the careful defaults."""
    name = channel.strip().lower()
    account = account_settings(config, channel, account_id)
    if account is None:
        return ChannelSettings(channel=name)
    direct = account.dm
    settings = ChannelSettings(
        channel=name,
        dm_policy=direct.policy or account.dm_policy if direct.enabled else "disabled",
        allow_from=_ids(account.allow_from) + _ids(direct.allow_from),
        group_policy=account.group_policy,
        group_allow_from=None if account.group_allow_from is None else _ids(account.group_allow_from),
        groups={_group_name(name, group): group_settings(settings) for group, settings in account.groups.items()},
        guilds=_guilds(account) if isinstance(account, DiscordAccount) else None,
        history_limit=account.history_limit,
    )
    return _with_rooms(settings, account) if isinstance(account, SlackAccount) else settings


def _with_rooms(settings: ChannelSettings, account: SlackAccount) -> ChannelSettings:
    """What Slack has besides: its rooms are ``channels``, and a direct chat may have several people."""
    rooms = {name: _slack_room(room) for name, room in account.channels.items()}
    return msgspec.structs.replace(
        settings,
        groups={**settings.groups, **rooms},
        lists_rooms=True,
        require_mention=account.require_mention,
        threads_share_history=account.thread.history_scope == "channel",
        group_dms=GroupDms(enabled=account.dm.group_enabled, listed=_ids(account.dm.group_channels)),
    )


def _slack_room(room: SlackRoom) -> GroupSettings:
    people = room.users if room.allow_from is None else room.allow_from
    return msgspec.structs.replace(
        group_settings(room),
        enabled=room.enabled and room.allow is not False,
        allow_from=None if people is None else _ids(people),
    )


def _guilds(account: DiscordAccount) -> dict[str, GuildSettings]:
    matches: dict[str, GuildSettings] = {}
    for key, guild in account.guilds.items():
        rules = GuildSettings(
            require_mention=guild.require_mention,
            users=None if guild.users is None else _ids(guild.users),
            channels={
                name: GroupSettings(
                    enabled=room.enabled and room.allow,
                    require_mention=room.require_mention,
                    allow_from=None if room.users is None else _ids(room.users),
                    system_prompt=(room.system_prompt or "").strip(),
                    skills=None if room.skills is None else tuple(room.skills),
                    auto_thread=room.auto_thread,
                    thread_starter=room.include_thread_starter,
                )
                for name, room in guild.channels.items()
            },
        )
        matches[key] = rules
        if guild.slug and not key.strip().isdigit():  # Where the id is listed, no name is needed.
            matches.setdefault(slug(guild.slug), rules)
    return matches


def _group_name(channel: str, group: str) -> str:
    """Return the id under which a group is looked up. Only where case means nothing, it is lower case."""
    return group.strip().lower() if channel == "irc" else group


def group_settings(group: ChannelGroup) -> GroupSettings:
    topics = group.topics if isinstance(group, TelegramGroup) else {}
    return GroupSettings(
        enabled=group.enabled,
        require_mention=group.require_mention,
        policy=group.group_policy,
        allow_from=None if group.allow_from is None else _ids(group.allow_from),
        system_prompt=(group.system_prompt or "").strip(),
        skills=None if group.skills is None else tuple(group.skills),
        topics={topic: group_settings(settings) for topic, settings in topics.items()},
    )


def _ids(entries: Iterable[str | int]) -> tuple[str, ...]:
    return tuple(text for entry in entries if (text := str(entry).strip()))
