"""``channels.discord``: Discord, as a bot."""

from typing import Literal

from openclaw.config.schema.base import Count, Positive, Ratio, Record, Secret, Sender, Sensitive
from openclaw.config.schema.channels.base import ChannelAccount
from openclaw.config.schema.tools import ToolPolicy


class DiscordChannelRules(Record):
    enabled: bool = True
    """Listen in this channel."""
    allow: bool = True
    """The same as enabled."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means what the server says."""
    users: list[Sender] | None = None
    """People whose messages count here; unset means the server's list."""
    tools: ToolPolicy | None = None
    """Tools in this channel."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""
    skills: list[str] | None = None
    """Skills in this channel."""
    system_prompt: str | None = None
    """Added to the prompt in this channel."""
    auto_thread: bool = False
    """Answer in a thread of its own."""
    include_thread_starter: bool = True
    """Show the agent the message that a thread began with."""


class DiscordGuild(Record):
    slug: str | None = None
    """Readable name of the server."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means yes."""
    users: list[Sender] | None = None
    """People whose messages count on this server; unset means groupAllowFrom, else everyone on it."""
    reaction_notifications: Literal["off", "own", "all", "allowlist"] | None = None
    """Which reactions the agent hears of; unset means what the account says."""
    tools: ToolPolicy | None = None
    """Tools on this server."""
    tools_by_sender: dict[str, ToolPolicy] = {}
    """Tools per sender."""
    channels: dict[str, DiscordChannelRules] = {}
    """Channels by id or name, "*" for the rest; when not empty, others are ignored."""


class DiscordActions(Record):
    reactions: bool = True
    """The agent may react."""
    messages: bool = True
    """The agent may change and delete its messages."""
    pins: bool = True
    """The agent may pin messages."""


class DiscordIntents(Record):
    presence: bool = False
    """Ask for people's presence."""
    guild_members: bool = False
    """Ask for the members of servers."""


class DiscordRetry(Record):
    attempts: Positive | None = None
    """Tries of one request."""
    min_delay_ms: Count | None = None
    """Shortest pause."""
    max_delay_ms: Count | None = None
    """Longest pause."""
    jitter: Ratio | None = None
    """Share of the pause that is left to chance."""


class DiscordAccount(ChannelAccount):
    token: Secret | None = None
    """Token of the bot; unset means the variable DISCORD_BOT_TOKEN."""
    api_root: str = "https://discord.com/api/v10"
    """Address of the API."""
    proxy: Sensitive | None = None
    """HTTP proxy for all requests."""
    guilds: dict[str, DiscordGuild] = {}
    """Servers by id or slug, "*" for the rest."""
    text_chunk_limit: Positive = 2000
    """Characters of one message at most."""
    max_lines_per_message: Positive = 17
    """Lines of one message at most."""
    allow_bots: bool = False
    """Listen to other bots, too."""
    actions: DiscordActions = DiscordActions()
    """What the agent may do."""
    intents: DiscordIntents = DiscordIntents()
    """Further events to ask for."""
    retry: DiscordRetry = DiscordRetry()
    """Repeated requests."""


class DiscordConfig(DiscordAccount):
    accounts: dict[str, DiscordAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
