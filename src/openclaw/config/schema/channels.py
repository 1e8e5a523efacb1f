"""``channels``: what all channels have in common, and Signal. Other channels keep their own keys in open maps."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from openclaw.config.schema.agents import BlockCoalesce
from openclaw.config.schema.base import Amount, Count, OpenMap, Port, Positive, Record, Sender
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


class SignalGroup(Record):
    require_mention: bool | None = None
    """Answer only when mentioned; unset means what "*" says, else yes."""
    tools: ToolPolicy | None = None
    """Tools in this group."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""


class SignalActions(Record):
    reactions: bool = True
    """The agent may react."""


class SignalAccount(Record):
    """One Signal account. Accounts are filled up from the keys beside them."""

    name: str | None = None
    """Name to show."""
    enabled: bool = True
    """Use this account."""
    account: str | None = None
    """Phone number, in international form."""
    cli_path: str = "signal-cli"
    """Program to start."""
    http_url: str | None = None
    """Address of a daemon that already runs; wins over host and port."""
    http_host: str = "127.0.0.1"
    """Host of the daemon."""
    http_port: Port = 8080
    """Port of the daemon."""
    auto_start: bool | None = None
    """Start the daemon; unset means unless httpUrl is given."""
    startup_timeout_ms: Annotated[int, Meta(ge=1000, le=120_000)] = 30_000
    """Time for the daemon to be ready."""
    receive_mode: Literal["on-start", "manual"] | None = None
    """The daemon's receive mode."""
    ignore_attachments: bool = False
    """Do not fetch attachments."""
    ignore_stories: bool = True
    """Ignore stories."""
    send_read_receipts: bool = False
    """Confirm that messages were read."""
    dm_policy: DmPolicy = "pairing"
    """Who may write directly. "open" needs "*" in allowFrom."""
    allow_from: list[Sender] = []
    """People who may write: numbers, uuid:<id>, or "*"."""
    group_policy: GroupPolicy = "allowlist"
    """Whose group messages count; unset means channels.defaults.groupPolicy, else allowlist."""
    group_allow_from: list[Sender] | None = None
    """People whose group messages count; unset means allowFrom."""
    groups: dict[str, SignalGroup] = {}
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
    reaction_notifications: Literal["off", "own", "all", "allowlist"] = "own"
    """Which reactions the agent hears of."""
    reaction_allowlist: list[Sender] = []
    """People whose reactions count with "allowlist"."""
    reaction_level: Literal["off", "ack", "minimal", "extensive"] = "minimal"
    """How freely the agent reacts."""
    actions: SignalActions = SignalActions()
    """What the agent may do."""
    markdown: Markdown = Markdown()
    """Rendering."""
    heartbeat: HeartbeatVisibility | None = None
    """Heartbeats; unset means channels.defaults.heartbeat."""
    response_prefix: str | None = None
    """Put before replies; unset means messages.responsePrefix, "" none."""
    capabilities: list[str] = []
    """Extra capabilities named in the prompt."""
    config_writes: bool = True
    """Let the channel change this file, for example when an id changes."""
    default_to: str | None = None
    """Recipient when none is given."""


class SignalConfig(SignalAccount):
    accounts: dict[str, SignalAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""


class Channels(Record):
    catch_all: ClassVar[str] = "others"

    defaults: ChannelDefaults = ChannelDefaults()
    """What all channels have in common."""
    signal: SignalConfig | None = None
    """Signal, through signal-cli."""
    others: dict[str, OpenMap] = {}
    """Every other channel by id, as written."""
