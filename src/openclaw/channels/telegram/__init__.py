"""The Telegram channel kind: configured accounts and address format."""

from __future__ import annotations

import re

import msgspec

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import TelegramAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed


class TelegramKind(ConfiguredKind):
    id = "telegram"
    label = "Telegram"
    channel = "openclaw.channels.telegram.channel:TelegramChannel"
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
    )

    credentials = (
        AccountKey(
            "botToken",
            "Token of the bot",
            "to the token that @BotFather gave you",
            secret=True,
            variable="TELEGRAM_BOT_TOKEN",
            alternatives=("tokenFile",),
            shape=r"\d{3,20}:[\w-]{20,100}",
        ),
        AccountKey(
            "webhookSecret", "Secret of the webhook", secret=True, optional=True, prompted=False, shape=r"[\w-]{1,256}"
        ),
    )
    hint = "Send /newbot to @BotFather on Telegram; it replies with the token of your bot."
    library = "telegram"

    def other_problem(self, where: str, settings: TelegramAccount) -> str:
        if settings.webhook_url and not settings.webhook_secret:
            return f"set {where}.webhookSecret: without it anyone could send updates to the webhook"
        return ""

    def peer(self, to: str) -> Peer:
        target = parse_target(to)
        if isinstance(target.chat, int) and target.chat > 0:
            return Peer(kind="direct", id=str(target.chat))
        topic = f":topic:{target.topic}" if target.topic is not None else ""
        return Peer(kind="group", id=f"{target.chat}{topic}")


class TelegramTarget(msgspec.Struct, frozen=True):
    """The destination of a message."""

    chat: int | str
    """A chat id, or the ``@name`` of a public group or channel."""
    topic: int | None = None


_NUMBERED = re.compile(r"(-?\d{1,20})(?::(?:topic:)?(\d{1,20}))?")
_NAMED = re.compile(r"(?:https?://)?(?:t\.me/|@)([A-Za-z]\w{3,31})/?(?::topic:(\d{1,20}))?", re.ASCII)


def parse_target(to: str) -> TelegramTarget:
    """Parse ``telegram:123``, ``-100123:topic:7``, ``group:-100123``, ``@name`` or ``https://t.me/name``.

    Raises a permanent ``SendFailed`` for any other address.
    """
    text = bare_address(to, "telegram:", "tg:", "group:", "user:")
    if match := _NUMBERED.fullmatch(text):
        return TelegramTarget(int(match[1]), int(match[2]) if match[2] else None)
    if match := _NAMED.fullmatch(text):
        return TelegramTarget(f"@{match[1]}", int(match[2]) if match[2] else None)
    raise SendFailed(
        f"{to!r} is not a Telegram chat; use the id of the chat, <id>:topic:<number> or @name", permanent=True
    )
