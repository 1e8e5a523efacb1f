"""``channels.telegram``: Telegram, as a bot."""

from typing import Literal

from openclaw.config.schema.base import Amount, Positive, Secret
from openclaw.config.schema.channels.base import ChannelAccount, ChannelGroup


class TelegramGroup(ChannelGroup):
    topics: dict[str, ChannelGroup] = {}
    """Topics by id."""


class TelegramAccount(ChannelAccount):
    bot_token: Secret | None = None
    """Token of the bot; unset means the variable TELEGRAM_BOT_TOKEN."""
    token_file: str | None = None
    """File that holds the token."""
    api_root: str = "https://api.telegram.org"
    """Address of the Bot API, without a slash at the end."""
    timeout_seconds: Positive | None = None
    """Time for a request."""
    webhook_url: str | None = None
    """Public address for updates; unset means long polling."""
    webhook_secret: Secret | None = None
    """Secret that updates must carry."""
    webhook_path: str = "/telegram-webhook"
    """Path on the Gateway's port."""
    stream_mode: Literal["off", "partial", "block"] = "partial"
    """Show a draft of the reply while it is written."""
    groups: dict[str, TelegramGroup] = {}
    """Groups by id, "*" for the rest; when not empty, others are ignored."""
    media_max_mb: Amount = 5
    """Size of media at most."""


class TelegramConfig(TelegramAccount):
    accounts: dict[str, TelegramAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
