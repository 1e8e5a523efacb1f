"""Telegram's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

import re
from importlib.util import find_spec

import msgspec

from openclaw.channels.base import Capabilities, Channel, ChannelContext, NotConfigured
from openclaw.channels.kind import ConfiguredKind, Section
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema import Config
from openclaw.config.schema.channels.telegram import TelegramAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

TOKEN_VARIABLE = "TELEGRAM_BOT_TOKEN"


class TelegramKind(ConfiguredKind):
    id = "telegram"
    label = "Telegram"
    capabilities = Capabilities(
        chat_types=("direct", "group", "thread"),
        media=True,
        reactions=True,
        typing=True,
        threads=True,
        mentions=True,
        reply=True,
        edit=True,
        pin=True,
        unsend=True,
        buttons=True,
        drafts=True,
        native_commands=True,
        idempotent=False,
    )

    def section(self, config: Config) -> Section | None:
        telegram = config.channels.telegram
        return Section(telegram, telegram.accounts, telegram.default_account) if telegram else None

    def problem(self, account_id: str, where: str, settings: TelegramAccount) -> str:
        from_environ = account_id == DEFAULT_ACCOUNT and bool(self.environ.get(TOKEN_VARIABLE))
        if not settings.bot_token and not settings.token_file and not from_environ:
            return f"set {where}.botToken to the token that @BotFather gave you"
        if settings.webhook_url and not settings.webhook_secret:
            return f"set {where}.webhookSecret: without it anyone could send updates to the webhook"
        return ""

    def peer(self, to: str) -> Peer:
        target = parse_target(to)
        if isinstance(target.chat, int) and target.chat > 0:
            return Peer(kind="direct", id=str(target.chat))
        topic = f":topic:{target.topic}" if target.topic is not None else ""
        return Peer(kind="group", id=f"{target.chat}{topic}")

    def open(self, context: ChannelContext) -> Channel:
        if find_spec("telegram") is None:
            raise NotConfigured("install the library of this channel: pip install 'openclaw[telegram]'")
        from openclaw.channels.telegram.channel import TelegramChannel

        return TelegramChannel(context)


class TelegramTarget(msgspec.Struct, frozen=True):
    """Where a message goes on Telegram."""

    chat: int | str
    """The number of a chat, or ``@name`` of a public group or channel."""
    topic: int | None = None


_NUMBERED = re.compile(r"(-?\d{1,20})(?::(?:topic:)?(\d{1,20}))?")
_NAMED = re.compile(r"(?:https?://)?(?:t\.me/|@)([A-Za-z]\w{3,31})/?(?::topic:(\d{1,20}))?", re.ASCII)


def parse_target(to: str) -> TelegramTarget:
    """Reads ``telegram:123``, ``-100123:topic:7``, ``group:-100123``, ``@name`` or ``https://t.me/name``.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = to.strip()
    for prefix in ("telegram:", "tg:", "group:", "user:"):
        if text.lower().startswith(prefix):
            text = text[len(prefix) :].strip()
    if found := _NUMBERED.fullmatch(text):
        return TelegramTarget(int(found[1]), int(found[2]) if found[2] else None)
    if found := _NAMED.fullmatch(text):
        return TelegramTarget(f"@{found[1]}", int(found[2]) if found[2] else None)
    raise SendFailed(
        f"{to!r} is no Telegram chat; use the number of the chat, <number>:topic:<number> or @name", permanent=True
    )
