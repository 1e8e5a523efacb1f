"""What the sections of all channels have in common."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from openclaw.config.schema.agents import BlockCoalesce
from openclaw.config.schema.base import Amount, Count, OpenMap, Positive, Record, Sender
from openclaw.config.schema.tools import ToolPolicy

DmPolicy: TypeAlias = Literal["pairing", "allowlist", "open", "disabled"]
GroupPolicy: TypeAlias = Literal["open", "disabled", "allowlist"]


class HeartbeatVisibility(Record):
    show_ok: bool = False
    """Show heartbeats that found nothing."""
    show_alerts: bool = True
    """Show heartbeats that found something."""
    use_indicator: bool = True
    """Show the indicator."""


class ChannelDefaults(Record):
    group_policy: GroupPolicy | None = None
    """Group policy of channels that do not set one."""
    heartbeat: HeartbeatVisibility = HeartbeatVisibility()
    """Heartbeats in channels that do not say."""


class Markdown(Record):
    tables: Literal["off", "bullets", "code"] | None = None
    """How tables are shown; unset means the channel's default."""


class DmHistory(Record):
    history_limit: Count | None = None
    """User turns replayed for this person."""


class ChannelGroup(Record):
    enabled: bool = True
    """Listen in this group."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means what "*" says, else yes."""
    group_policy: GroupPolicy | None = None
    """Group policy here; unset means the account's."""
    allow_from: list[Sender] | None = None
    """People whose messages count here; unset means the account's list."""
    tools: ToolPolicy | None = None
    """Tools in this group."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""


class DirectChats(Record):
    enabled: bool = True
    """Listen to direct messages."""
    policy: DmPolicy | None = None
    """The same as dmPolicy."""
    allow_from: list[Sender] = []
    """Added to allowFrom."""


class AckReaction(Record):
    emoji: str = ""
    """The emoji; "" means none."""
    direct: bool = True
    """Acknowledge direct messages."""
    group: Literal["always", "mentions", "never"] = "mentions"
    """Which messages of groups are acknowledged."""


class ChannelAccount(Record):
    """One account of a channel. Accounts are filled up from the keys beside them."""

    name: str | None = None
    """Name to show."""
    enabled: bool = True
    """Use this account."""
    dm_policy: DmPolicy = "pairing"
    """Who may write directly. "open" needs "*" in allowFrom."""
    dm: DirectChats = DirectChats()
    """Direct messages; its keys win over dmPolicy."""
    allow_from: list[Sender] = []
    """People who may write, by their ids on the channel, or "*"."""
    group_policy: GroupPolicy = "allowlist"
    """Whose group messages count; unset means channels.defaults.groupPolicy, else allowlist."""
    group_allow_from: list[Sender] | None = None
    """People whose group messages count; unset means allowFrom."""
    groups: Mapping[str, ChannelGroup] = {}
    """Groups by id, "*" for the rest; when not empty, others are ignored."""
    history_limit: Count | None = None
    """Messages remembered between two replies in a group; unset means messages.groupChat.historyLimit."""
    dm_history_limit: Count | None = None
    """User turns replayed in direct chats."""
    dms: dict[str, DmHistory] = {}
    """The same per person."""
    text_chunk_limit: Positive = 4000
    """Characters of one message at most."""
    chunk_mode: Literal["length", "newline"] = "length"
    """Where long replies are cut."""
    block_streaming: bool | None = None
    """Send finished blocks early; unset means off."""
    block_streaming_coalesce: BlockCoalesce | None = None
    """Merging of small blocks; unset means agents.defaults.blockStreamingCoalesce."""
    media_max_mb: Amount = 8
    """Size of media at most."""
    reply_to_mode: Literal["off", "first", "all"] | None = None
    """Whether replies quote the message they answer; unset means the channel's default."""
    ack_reaction: str | AckReaction | None = None
    """Reaction that acknowledges a message; unset means messages.ackReaction, "" none. A section also says when."""
    reaction_notifications: Literal["off", "own", "all", "allowlist"] = "own"
    """Which reactions the agent hears of."""
    reaction_allowlist: list[Sender] = []
    """People whose reactions count with "allowlist"."""
    reaction_level: Literal["off", "ack", "minimal", "extensive"] = "minimal"
    """How freely the agent reacts."""
    markdown: Markdown = Markdown()
    """Rendering."""
    heartbeat: HeartbeatVisibility | None = None
    """Heartbeats; unset means channels.defaults.heartbeat."""
    response_prefix: str | None = None
    """Put before replies; unset means messages.responsePrefix, "" none."""
    capabilities: list[str] | OpenMap = []
    """Extra capabilities named in the prompt: a list, or a map of names to what they are set to."""
    config_writes: bool = True
    """Let the channel change this file, for example when an id changes."""
    default_to: str | None = None
    """Recipient when none is given."""
