"""Discord's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

import re
from importlib.util import find_spec

from openclaw.channels.base import Capabilities, Channel, ChannelContext, NotConfigured
from openclaw.channels.kind import ConfiguredKind, Section
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema import Config
from openclaw.config.schema.channels.discord import DiscordAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

TOKEN_VARIABLE = "DISCORD_BOT_TOKEN"
_ADDRESS = re.compile(r"(user:|channel:|<@!?|<#|)(\d{1,20})>?")


class DiscordKind(ConfiguredKind):
    id = "discord"
    label = "Discord"
    capabilities = Capabilities(
        chat_types=("direct", "channel", "thread"),
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
        native_commands=True,
        idempotent=True,
    )

    def section(self, config: Config) -> Section | None:
        discord = config.channels.discord
        return Section(discord, discord.accounts, discord.default_account) if discord else None

    def problem(self, account_id: str, where: str, settings: DiscordAccount) -> str:
        from_environ = account_id == DEFAULT_ACCOUNT and bool(self.environ.get(TOKEN_VARIABLE))
        if not settings.token and not from_environ:
            return f"set {where}.token to the token of the bot (Discord Developer Portal → Bot → Reset Token)"
        return ""

    def peer(self, to: str) -> Peer:
        return parse_address(to)

    def open(self, context: ChannelContext) -> Channel:
        if find_spec("discord") is None:
            raise NotConfigured("install the library of this channel: pip install 'openclaw[discord]'")
        from openclaw.channels.discord.channel import DiscordChannel

        return DiscordChannel(context)


def parse_address(to: str) -> Peer:
    """Reads ``user:1``, ``channel:1``, ``<@1>``, ``<#1>`` or ``1``, which is a channel, with or without ``discord:``.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = to.strip()
    if text.lower().startswith("discord:"):
        text = text[len("discord:") :].strip()
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise SendFailed(f"{to!r} is no address on Discord; use user:<id> or channel:<id>", permanent=True)
    return Peer(kind="direct" if found[1].startswith(("user", "<@")) else "channel", id=found[2])
