"""``channels.telegram``: Telegram, as a bot."""

from typing import Annotated, Literal

from msgspec import Meta

from openclaw.config.schema.agents import BlockChunk
from openclaw.config.schema.base import Amount, Count, Positive, Ratio, Record, Secret, Sensitive
from openclaw.config.schema.channels.base import ChannelAccount, ChannelGroup


class TelegramGroup(ChannelGroup):
    topics: dict[str, ChannelGroup] = {}
    """Topics by id."""


class TelegramActions(Record):
    reactions: bool = True
    """The agent may react."""
    send_message: bool = True
    """The agent may write messages."""
    delete_message: bool = True
    """The agent may delete its messages."""
    edit_message: bool = True
    """The agent may change its messages."""
    sticker: bool = False
    """The agent may send stickers."""


class TelegramCommand(Record):
    command: Annotated[str, Meta(pattern=r"^/?[a-zA-Z0-9_]{1,32}$")]
    """Name, without the slash."""
    description: Annotated[str, Meta(min_length=1, max_length=256)]
    """What the menu says about it."""


class TelegramNetwork(Record):
    auto_select_family: bool | None = None
    """Try IPv4 and IPv6 side by side."""


class TelegramRetry(Record):
    attempts: Positive | None = None
    """Tries of one request."""
    min_delay_ms: Count | None = None
    """Shortest pause."""
    max_delay_ms: Count | None = None
    """Longest pause."""
    jitter: Ratio | None = None
    """Share of the pause that is left to chance."""


class TelegramAccount(ChannelAccount):
    bot_token: Secret | None = None
    """Token of the bot; unset means the variable TELEGRAM_BOT_TOKEN."""
    token_file: str | None = None
    """File that holds the token; wins over botToken."""
    api_root: str = "https://api.telegram.org"
    """Address of the Bot API, without a slash at the end."""
    timeout_seconds: Positive | None = None
    """Time for a request; unset means 60."""
    proxy: Sensitive | None = None
    """Proxy for all requests, such as socks5://host:port."""
    webhook_url: str | None = None
    """Public address for updates; unset means long polling."""
    webhook_secret: Secret | None = None
    """Secret that updates must carry."""
    webhook_path: str = "/telegram-webhook"
    """Path on the Gateway's port."""
    stream_mode: Literal["off", "partial", "block"] = "partial"
    """Show a draft of the reply while it is written."""
    draft_chunk: BlockChunk | None = None
    """Pieces by which a draft grows with streamMode block."""
    link_preview: bool = True
    """Show previews of links."""
    custom_commands: list[TelegramCommand] = []
    """More commands for the menu; the agent reads them as text."""
    actions: TelegramActions = TelegramActions()
    """What the agent may do."""
    network: TelegramNetwork = TelegramNetwork()
    """Connections."""
    retry: TelegramRetry = TelegramRetry()
    """Repeated requests."""
    groups: dict[str, TelegramGroup] = {}
    """Groups by id, "*" for the rest; when not empty, others are ignored."""
    media_max_mb: Amount = 5
    """Size of media at most."""


class TelegramConfig(TelegramAccount):
    accounts: dict[str, TelegramAccount] = {}
    """Several accounts by id; empty means one called default."""
    default_account: str | None = None
    """The account used when none is named."""
