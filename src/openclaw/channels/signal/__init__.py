"""The Signal channel kind: configured accounts and address format."""

from __future__ import annotations

import re

from openclaw.channels.base import AccountKey, Capabilities, ConfiguredKind, bare_address
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed


class SignalKind(ConfiguredKind):
    id = "signal"
    label = "Signal"
    channel = "openclaw.channels.signal.channel:SignalChannel"
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        media=True,
        reactions=True,
        typing=True,
        mentions=True,
        reply=True,
        edit=True,
        unsend=True,
    )

    credentials = (
        AccountKey("account", "Phone number, such as +4915112345678"),
        AccountKey("httpUrl", "Address of a running daemon (empty: signal-cli is started)", optional=True),
    )
    hint = "Link signal-cli to your number first (docs/channels.md)."

    def problem(self, account_id: str, where: str, settings: SignalAccount) -> str:
        if settings.account is not None and normalize_number(settings.account) is None:
            return f"{where}.account must be a phone number in international form, e.g. +4915112345678"
        if settings.account is None and not settings.http_url and settings.auto_start is not False:
            return (
                f"set {where}.account to the phone number of this Signal account,"
                f" or {where}.httpUrl to a daemon's address"
            )
        return ""

    def address(self, account_id: str, settings: SignalAccount) -> str:
        return settings.http_url or ""

    def peer(self, to: str) -> Peer:
        match recipient_params(to):
            case {"groupId": str(group)}:
                return Peer(kind="group", id=group)
            case {"recipient": [str(person)]}:
                return Peer(kind="direct", id=person if person.startswith("+") else f"uuid:{person}")
            case other:
                return Peer(kind="direct", id=f"username:{other['username'][0]}")


_NUMBER = re.compile(r"\+[1-9]\d{2,14}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def normalize_number(text: str) -> str | None:
    """Return a number in E.164 form, or None if it is not an international number."""
    compact = re.sub(r"[\s().-]", "", text)
    if compact.startswith("00"):
        compact = f"+{compact[2:]}"
    return compact if _NUMBER.fullmatch(compact) else None


def recipient_params(to: str) -> dict[str, str | list[str]]:
    """Return the daemon's parameters for ``signal:+1555…``, ``uuid:…``, ``group:…`` or ``username:…``.

    Raises a permanent ``SendFailed`` for any other address.
    """
    text = bare_address(to, "signal:")
    kind, _, rest = text.partition(":")
    match kind.lower():
        case "group" if rest.strip():
            # A group id is base64, so its case matters.
            return {"groupId": rest.strip()}
        case "username" | "u" if rest.strip():
            return {"username": [rest.strip()]}
        case "uuid" if _UUID.fullmatch(rest.strip()):
            return {"recipient": [rest.strip().lower()]}
        case _:
            pass
    if _UUID.fullmatch(text):
        return {"recipient": [text.lower()]}
    if (number := normalize_number(text)) is not None:
        return {"recipient": [number]}
    raise SendFailed(
        f"{to!r} is not a Signal recipient; use +<country><number>, uuid:<id>, group:<id> or username:<name>",
        permanent=True,
    )
