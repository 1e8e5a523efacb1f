"""Slack's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import SlackAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

TargetKind: TypeAlias = Literal["user", "channel", "ephemeral"]
_PERSON = re.compile(r"[UWB][A-Z0-9_]{1,30}")
_CHANNEL = re.compile(r"[CGD][A-Z0-9_]{1,30}")


BOT_TOKEN = AccountKey(
    "botToken",
    "Bot token (xoxb-…)",
    "to the bot's token (xoxb-…)",
    secret=True,
    variable="SLACK_BOT_TOKEN",
    shape=r"xox[bp]-[\w-]{4,300}",
)
APP_TOKEN = AccountKey(
    "appToken",
    "App token (xapp-…)",
    "to the app's token (xapp-…)",
    secret=True,
    variable="SLACK_APP_TOKEN",
    shape=r"xapp-[\w-]{4,300}",
)
SIGNING_SECRET = AccountKey(
    "signingSecret",
    "Signing secret",
    "to the app's signing secret (Basic Information), which the mode http needs",
    secret=True,
    variable="SLACK_SIGNING_SECRET",
    asked=False,
    optional=True,
)


class SlackKind(ConfiguredKind):
    id = "slack"
    label = "Slack"
    channel = "openclaw.channels.slack.channel:SlackChannel"
    capabilities = Capabilities(
        chat_types=("direct", "channel", "group"),
        media=True,
        reactions=True,
        typing=True,
        typing_outlasts_reply=True,
        threads=True,
        mentions=True,
        reply=True,
        edit=True,
        pin=True,
        unsend=True,
        native_commands=True,
    )

    credentials = (BOT_TOKEN, APP_TOKEN, SIGNING_SECRET)
    hint = (
        "Make an app at api.slack.com/apps, switch Socket Mode on and install it; it has a bot token and an app token."
    )
    library = "slack_sdk"

    def problem(self, account_id: str, where: str, settings: SlackAccount) -> str:
        needed = (BOT_TOKEN, SIGNING_SECRET if settings.mode == "http" else APP_TOKEN)
        for one in needed:
            if not self.value(account_id, settings, one):
                return f"set {where}.{one.key} {one.advice}"
        return ""

    def peer(self, to: str) -> Peer:
        target = target_of(to)
        return Peer(kind="direct" if target.kind == "user" else "channel", id=target.id)


class SlackTarget(msgspec.Struct, frozen=True):
    kind: TargetKind
    id: str
    """The user, or the channel."""
    only_for: str = ""
    """The person who alone sees an ``ephemeral`` message in the channel."""


def target_of(to: str) -> SlackTarget:
    """Reads ``user:U…``, ``channel:C…``, ``<@U…>``, ``<#C…>`` or a bare id, with or without ``slack:`` before it.

    Raises a permanent ``SendFailed`` if it is none of these. Ids are written in capitals, whatever the address has.
    """
    text = bare_address(to, "slack:")
    if text.startswith(("<@", "<#")) and text.endswith(">"):
        text = text[2:-1].partition("|")[0]
    kind, _, rest = text.partition(":")
    given = rest.strip().upper()
    match kind.lower():
        case "user" | "dm" if _PERSON.fullmatch(given):
            return SlackTarget("user", given)
        case "channel" | "group" if _CHANNEL.fullmatch(given):
            return SlackTarget("channel", given)
        case "ephemeral":
            channel, _, person = given.partition(":")
            if _CHANNEL.fullmatch(channel) and _PERSON.fullmatch(person):
                return SlackTarget("ephemeral", channel, person)
        case _:
            pass
    if _PERSON.fullmatch(text.upper()):
        return SlackTarget("user", text.upper())
    if _CHANNEL.fullmatch(text.upper()):
        return SlackTarget("channel", text.upper())
    raise SendFailed(
        f"{to!r} is no Slack recipient; use user:<U…> or channel:<C…> (the id is at the end of 'Copy link')",
        permanent=True,
    )
