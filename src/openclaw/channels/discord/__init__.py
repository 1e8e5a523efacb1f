"""Discord's entry in the list of channels: its configured accounts, and the form of its addresses."""

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
    hint = "Make an application at discord.com/developers, add a bot, switch Message Content on, copy its token."
    library = "discord"

    def peer(self, to: str) -> Peer:
        return parse_address(to)


def parse_address(to: str) -> Peer:
    """Reads ``user:1``, ``channel:1``, ``<@1>``, ``<#1>`` or ``1``, which is a channel, with or without ``discord:``.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    found = _ADDRESS.fullmatch(bare_address(to, "discord:"))
    if found is None:
        raise SendFailed(f"{to!r} is no address on Discord; use user:<id> or channel:<id>", permanent=True)
    return Peer(kind="direct" if found[1].startswith(("user", "<@")) else "channel", id=found[2])
