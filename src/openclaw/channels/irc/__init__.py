"""The IRC channel kind: configured accounts and address format."""

from __future__ import annotations

from typing import NamedTuple

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.channels.irc.connection import is_channel, is_nick
from openclaw.config.schema.channels import IrcAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed


class IrcKind(ConfiguredKind):
    id = "irc"
    label = "IRC"
    channel = "openclaw.channels.irc.channel:IrcChannel"
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        typing=True,
        mentions=True,
        reply=True,
    )

    credentials = (
        AccountKey("host", "Server, such as irc.libera.chat", shape=r"[^\s/]+"),
        AccountKey("nick", "Nickname of the agent"),
        AccountKey("password", "Password of the server", secret=True, optional=True, prompted=False),
    )
    hint = "Choose a nickname. A password is needed only on networks that require one."

    def problem(self, account_id: str, where: str, settings: IrcAccount) -> str:
        if not (settings.host or "").strip():
            return f"set {where}.host to the name of an IRC server"
        if not is_nick((settings.nick or "").strip()):
            return f"set {where}.nick to a nickname without spaces that does not begin with a digit"
        invalid = next((name for name in settings.channels if not is_channel(name.strip())), None)
        if invalid is not None:
            return f"{where}.channels: {invalid!r} is not a channel; write it as #name"
        if settings.sasl and settings.sasl.mechanism == "PLAIN" and not settings.sasl.password:
            return f"set {where}.sasl.password"
        if settings.sasl and settings.sasl.mechanism == "EXTERNAL" and not (settings.tls and settings.tls_cert):
            return f"set {where}.tlsCert to the certificate for SASL EXTERNAL, and {where}.tls to true"
        return ""

    def address(self, account_id: str, settings: IrcAccount) -> str:
        return f"irc://{settings.host}:{settings.port or (6697 if settings.tls else 6667)}"

    def peer(self, to: str) -> Peer:
        address = parse_address(to)
        if address.channel:
            return Peer(kind="group", id=address.channel.lower())
        return Peer(kind="direct", id=(address.mask or address.nick).lower())


class IrcAddress(NamedTuple):
    channel: str = ""
    nick: str = ""
    mask: str = ""
    """The full ``nick!user@host``, or empty."""

    @property
    def target(self) -> str:
        return self.channel or self.nick


def parse_address(to: str) -> IrcAddress:
    """Parse ``#channel``, ``nick`` or ``nick!user@host``, with an optional ``irc:``, ``channel:`` or ``user:``.

    Raises a permanent ``SendFailed`` for any other address.
    """
    text = bare_address(to, "irc:", "channel:", "user:")
    nick, mark, rest = text.partition("!")
    if is_channel(text):
        return IrcAddress(channel=text)
    if is_nick(text):
        return IrcAddress(nick=text)
    user, at, host = rest.partition("@")
    if mark and is_nick(nick) and at and user and host and " " not in text and text.isprintable():
        return IrcAddress(nick=nick, mask=text)
    raise SendFailed(f"{to!r} is not an IRC recipient; use #channel, nick or nick!user@host", permanent=True)
