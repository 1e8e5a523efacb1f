"""Signal's entry in the list of channels: its configured accounts, and the form of its addresses."""

from __future__ import annotations

import re
from typing import Any

from openclaw.channels.base import Account, Capabilities, Channel, ChannelContext, default_account_id
from openclaw.config.schema import Config
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed
from openclaw.sessions.keys import DEFAULT_ACCOUNT, normalize_account_id


class SignalKind:
    id = "signal"
    label = "Signal"
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        media=True,
        reactions=True,
        typing=True,
        mentions=True,
        reply=True,
        edit=True,
        unsend=True,
        idempotent=False,
    )

    def accounts(self, config: Config) -> list[Account]:
        signal = config.channels.signal
        if signal is None:
            return []
        if not signal.accounts:
            return [_account(DEFAULT_ACCOUNT, signal, signal.enabled)]
        return [
            _account(normalize_account_id(name), settings, signal.enabled and settings.enabled)
            for name, settings in signal.accounts.items()
        ]

    def default_account(self, config: Config) -> str:
        signal = config.channels.signal
        ids = [account.id for account in self.accounts(config)]
        return default_account_id(config, self.id, ids, signal.default_account if signal else None)

    def peer(self, to: str) -> Peer:
        match recipient_params(to):
            case {"groupId": str(group)}:
                return Peer(kind="group", id=group)
            case {"recipient": [str(person)]}:
                return Peer(kind="direct", id=person if person.startswith("+") else f"uuid:{person}")
            case other:
                return Peer(kind="direct", id=f"username:{other['username'][0]}")

    def open(self, context: ChannelContext) -> Channel:
        from openclaw.channels.signal.channel import SignalChannel

        return SignalChannel(context)


def _account(account_id: str, settings: SignalAccount, enabled: bool) -> Account:
    return Account(
        id=account_id, name=settings.name, settings=settings, enabled=enabled, problem=_problem(account_id, settings)
    )


def _problem(account_id: str, settings: SignalAccount) -> str:
    where = "channels.signal" if account_id == DEFAULT_ACCOUNT else f"channels.signal.accounts.{account_id}"
    if settings.account is not None and normalize_number(settings.account) is None:
        return f"{where}.account must be a phone number in international form, e.g. +4915112345678"
    if settings.account is None and not settings.http_url and settings.auto_start is not False:
        return (
            f"set {where}.account to the phone number of this Signal account, or {where}.httpUrl to a daemon's address"
        )
    return ""


_NUMBER = re.compile(r"\+[1-9]\d{5,14}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def normalize_number(text: str) -> str | None:
    """The number as ``+`` and digits, or None if it is no number in international form."""
    compact = re.sub(r"[\s().-]", "", text)
    if compact.startswith("00"):
        compact = f"+{compact[2:]}"
    return compact if _NUMBER.fullmatch(compact) else None


def recipient_params(to: str) -> dict[str, Any]:
    """The daemon's parameters for ``signal:+1555…``, ``uuid:…``, ``group:…`` or ``username:…``.

    Raises a permanent ``SendFailed`` if it is none of these.
    """
    text = to.strip()
    if text.lower().startswith("signal:"):
        text = text[len("signal:") :].strip()
    kind, _, rest = text.partition(":")
    match kind.lower():
        case "group" if rest.strip():
            # A group id is base64, so its case is kept.
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
        f"{to!r} is no Signal recipient; use +<country><number>, uuid:<id>, group:<id> or username:<name>",
        permanent=True,
    )
