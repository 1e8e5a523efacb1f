"""``channels.discord``: Discord, as a bot."""

from openclaw.config.schema.base import Positive, Record, Secret, Sender
from openclaw.config.schema.channels.base import ChannelAccount, ChannelGroup


class DiscordGuild(Record):
    slug: str | None = None
    """Readable name of the server."""
    require_mention: bool | None = None
    """Answer only when mentioned; unset means yes."""
    users: list[Sender] | None = None
    """People whose messages count on this server; unset means the account's list."""
    channels: dict[str, ChannelGroup] = {}
    """Channels by id, "*" for the rest; when not empty, others are ignored."""


class DiscordAccount(ChannelAccount):
    token: Secret | None = None
    """Token of the bot; unset means the variable DISCORD_BOT_TOKEN."""
    api_root: str = "https://discord.com/api/v10"
    """Address of the API."""
    guilds: dict[str, DiscordGuild] = {}
    """Servers by id or slug, "*" for the rest."""
    text_chunk_limit: Positive = 2000
    """Characters of one message at most."""


class DiscordConfig(DiscordAccount):
    accounts: dict[str, DiscordAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
