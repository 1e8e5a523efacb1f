"""The Discord channel kind: configured accounts and address format."""

from __future__ import annotations

import re

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

_ADDRESS = re.compile(r"(user:|channel:|<@!?|<#|)(\d{1,20})>?")


class DiscordKind(ConfiguredKind):
    id = "discord"
    label = "Discord"
    channel = "openclaw.channels.discord.channel:DiscordChannel"
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

    credentials = (
        AccountKey(
            "token",
            "Token of the bot",
            "to the token of the bot (Discord Developer Portal → Bot → Reset Token)",
            secret=True,
            variable="DISCORD_BOT_TOKEN",
            shape=r"(?:Bot )?[\w-]{10,100}\.[\w-]{4,20}\.[\w-]{10,120}",
        ),
    )
    hint = "Create an application at discord.com/developers, add a bot, enable Message Content, copy its token."
    library = "discord"

    def peer(self, to: str) -> Peer:
        return parse_address(to)


def parse_address(to: str) -> Peer:
    """Parse ``user:1``, ``channel:1``, ``<@1>``, ``<#1>`` or ``1`` (a channel), with an optional ``discord:``.

    Raises a permanent ``SendFailed`` for any other address.
    """
    match = _ADDRESS.fullmatch(bare_address(to, "discord:"))
    if match is None:
        raise SendFailed(f"{to!r} is not a Discord address; use user:<id> or channel:<id>", permanent=True)
    return Peer(kind="direct" if match[1].startswith(("user", "<@")) else "channel", id=match[2])
