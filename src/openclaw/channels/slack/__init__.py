"""The Slack channel kind: configured accounts and address format."""

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
    prompted=False,
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
        "Create an app at api.slack.com/apps, enable Socket Mode and install it; it has a bot token and an app token."
    )
    library = "slack_sdk"

    def problem(self, account_id: str, where: str, settings: SlackAccount) -> str:
        needed = (BOT_TOKEN, SIGNING_SECRET if settings.mode == "http" else APP_TOKEN)
        for credential in needed:
            if not self.value(account_id, settings, credential):
                return f"set {where}.{credential.key} {credential.advice}"
        return ""

    def peer(self, to: str) -> Peer:
        target = target_of(to)
        return Peer(kind="direct" if target.kind == "user" else "channel", id=target.id)


class SlackTarget(msgspec.Struct, frozen=True):
    kind: TargetKind
    id: str
    """The user, or the channel."""
    only_for: str = ""
    """The only person who sees an ``ephemeral`` message."""


def target_of(to: str) -> SlackTarget:
    """Parse ``user:U…``, ``channel:C…``, ``<@U…>``, ``<#C…>`` or a bare id, with an optional ``slack:``.

    Raises a permanent ``SendFailed`` for any other address. Ids are converted to upper case.
    """
    text = bare_address(to, "slack:")
    if text.startswith(("<@", "<#")) and text.endswith(">"):
        text = text[2:-1].partition("|")[0]
    kind, _, rest = text.partition(":")
    target_id = rest.strip().upper()
    match kind.lower():
        case "user" | "dm" if _PERSON.fullmatch(target_id):
            return SlackTarget("user", target_id)
        case "channel" | "group" if _CHANNEL.fullmatch(target_id):
            return SlackTarget("channel", target_id)
        case "ephemeral":
            channel, _, person = target_id.partition(":")
            if _CHANNEL.fullmatch(channel) and _PERSON.fullmatch(person):
                return SlackTarget("ephemeral", channel, person)
        case _:
            pass
    if _PERSON.fullmatch(text.upper()):
        return SlackTarget("user", text.upper())
    if _CHANNEL.fullmatch(text.upper()):
        return SlackTarget("channel", text.upper())
    raise SendFailed(
        f"{to!r} is not a Slack recipient; use user:<U…> or channel:<C…> (the id is at the end of 'Copy link')",
        permanent=True,
    )
