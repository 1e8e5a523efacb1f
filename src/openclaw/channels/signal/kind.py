"""Signal as the registry knows it: which accounts are configured and whether they can work."""

from __future__ import annotations

from openclaw.channels.accounts import DEFAULT, default_account_id
from openclaw.channels.base import Account, Capabilities, Channel, ChannelContext
from openclaw.channels.signal.target import normalize_number, recipient_params
from openclaw.config.schema import Config
from openclaw.config.schema.channels import SignalAccount
from openclaw.inbound.message import Peer
from openclaw.sessions.keys import normalize_account_id


class SignalKind:
    id = "signal"
    label = "Signal"
    capabilities = Capabilities(
        chat_types=("direct", "group"), media=True, reactions=True, typing=True, mentions=True, idempotent=False
    )

    def accounts(self, config: Config) -> list[Account]:
        signal = config.channels.signal
        if signal is None:
            return []
        if not signal.accounts:
            return [_account(DEFAULT, signal, signal.enabled)]
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
    where = "channels.signal" if account_id == DEFAULT else f"channels.signal.accounts.{account_id}"
    if settings.account is not None and normalize_number(settings.account) is None:
        return f"{where}.account must be a phone number in international form, e.g. +4915112345678"
    if settings.account is None and not settings.http_url and settings.auto_start is not False:
        return (
            f"set {where}.account to the phone number of this Signal account, or {where}.httpUrl to a daemon's address"
        )
    return ""


SIGNAL = SignalKind()
