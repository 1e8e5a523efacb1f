"""The kinds of channels: the table of the built-in ones, and what they have in common."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from openclaw.channels.base import (
    Account,
    Capabilities,
    Channel,
    ChannelContext,
    ChannelKind,
    NotConfigured,
    default_account_id,
)
from openclaw.config.channels import DEFAULT_ACCOUNT, normalize_account_id
from openclaw.config.schema import Config
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.channels import ChannelAccount
from openclaw.inbound.message import Peer
from openclaw.outbound.reply import SendFailed

BUILT_IN = {
    "telegram": "openclaw.channels.telegram.kind:TelegramKind",
    "discord": "openclaw.channels.discord.kind:DiscordKind",
    "irc": "openclaw.channels.irc.kind:IrcKind",
    "matrix": "openclaw.channels.matrix.kind:MatrixKind",
    "signal": "openclaw.channels.signal.kind:SignalKind",
    "bluebubbles": "openclaw.channels.bluebubbles.kind:BlueBubblesKind",
    "imessage": "openclaw.channels.bluebubbles.kind:IMessageKind",
    "slack": "openclaw.channels.slack.kind:SlackKind",
    "whatsapp": "openclaw.channels.whatsapp.kind:WhatsAppKind",
}
"""Channel → its kind. A kind is imported when the configuration first names its channel."""
ENTRY_POINTS = "openclaw.channels"
"""The group of entry points by which other packages bring channels: name of the section → class of the kind.

The class is made with the environment as its only argument.
"""


class ChannelKinds:
    """The kinds of channels, each made when the configuration first names it."""

    def __init__(self, environ: Mapping[str, str], made: Mapping[str, ChannelKind] | None = None) -> None:
        """``made`` are kinds that exist already, by their ids."""
        self._environ = environ
        self._made = dict(made or {})

    def get(self, channel: str) -> ChannelKind | None:
        """The kind of a channel that the configuration has named before."""
        return self._made.get(channel)

    def add(self, kind: ChannelKind) -> None:
        """Makes a channel of an extension known."""
        self._made[kind.id] = kind

    def configured(self, config: Config) -> list[ChannelKind]:
        """The kinds of all channels that the configuration has a section for."""
        built_in = [name for name in BUILT_IN if getattr(config.channels, name, None) is not None]
        others = [name for name, section in config.channels.others.items() if section.get("enabled") is not False]
        for name in (*built_in, *others):
            if name not in self._made:
                self._made[name] = self._make(name)
        return list(self._made.values())

    def _make(self, name: str) -> ChannelKind:
        if name in BUILT_IN:
            return built_in_kind(name)(self._environ)
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS, name=name):
            try:
                return entry.load()(self._environ)
            except Exception as error:
                return MissingKind(name, f"the package of this channel cannot be loaded: {error!r}")
        return MissingKind(name, f"no installed package brings a channel called {name}")


def built_in_kind(channel: str) -> type[ConfiguredKind]:
    module, _, kind = BUILT_IN[channel].partition(":")
    return getattr(import_module(module), kind)


class MissingKind:
    """Stands for a channel that is configured and cannot be had."""

    capabilities = Capabilities()

    def __init__(self, channel: str, problem: str) -> None:
        self.id = self.label = channel
        self._problem = problem

    def accounts(self, config: Config) -> list[Account]:
        known = config.channels.others.get(self.id) is not None
        return [Account(id=DEFAULT_ACCOUNT, settings=None, problem=self._problem)] if known else []

    def default_account(self, config: Config) -> str:
        return DEFAULT_ACCOUNT

    def peer(self, to: str) -> Peer:
        raise SendFailed(self._problem, permanent=True)

    def open(self, context: ChannelContext) -> Channel:
        raise SendFailed(self._problem, permanent=True)


class Section(NamedTuple):
    """The section of a channel: an account of its own, or what its accounts share."""

    shared: ChannelAccount
    accounts: Mapping[str, ChannelAccount]
    default_account: str | None


class AccountKey(NamedTuple):
    """One key that an account needs to connect."""

    key: str
    question: str
    """What a person is asked for."""
    advice: str = ""
    """Follows "set <key>" where the key is missing."""
    secret: bool = False
    """It is typed without being shown, and removed by ``channels logout``."""
    variable: str = ""
    """The environment variable that the default account falls back to."""
    optional: bool = False
    asked: bool = True
    """Whether ``channels add`` asks for it. Otherwise it is only another way to log in."""
    instead: tuple[str, ...] = ()
    """Other keys that make this one needless."""
    shape: str = ""
    """A regular expression for values that the platform can have given out."""

    @property
    def field(self) -> str:
        return _field_of(self.key)


def _field_of(key: str) -> str:
    """The name of a key in its record."""
    return re.sub("([A-Z])", r"_\1", key).lower()


class ConfiguredKind(abc.ABC):
    """What the kinds of built-in channels have in common: a section with accounts, named credentials, a library."""

    id: str
    label: str
    capabilities: Capabilities
    credentials: tuple[AccountKey, ...] = ()
    hint: str = ""
    """Where a person gets the credentials."""
    library: str = ""
    """The module that the channel cannot do without. The extra of the same name as the channel installs it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def problem(self, account_id: str, where: str, settings: Any) -> str:
        """Why the account cannot be started, in words that name the key to set. Empty if it can.

        ``where`` is the key path of the account. Environment variables count for the default account only.
        """
        for one in self.credentials:
            others = (getattr(settings, _field_of(key)) for key in one.instead)
            if not one.optional and not self.value(account_id, settings, one) and not any(others):
                return f"set {where}.{one.key} {one.advice}".rstrip()
        return self.other_problem(where, settings)

    def other_problem(self, where: str, settings: Any) -> str:
        """What else is missing or wrong, when all credentials are given."""
        return ""

    def value(self, account_id: str, settings: Any, credential: AccountKey) -> str | SecretRef:
        """A credential as it is configured, or else from the environment. A reference to a secret is not followed."""
        given = getattr(settings, credential.field)
        if isinstance(given, str):
            given = given.strip()
        if not given and account_id == DEFAULT_ACCOUNT and credential.variable:
            given = self.environ.get(credential.variable, "").strip()
        return given or ""

    def odd_credentials(self, account: Account) -> list[str]:
        """The keys whose values the platform cannot have given out. What is stored elsewhere is not looked at."""
        values = [(one, self.value(account.id, account.settings, one)) for one in self.credentials if one.shape]
        return [
            one.key for one, value in values if isinstance(value, str) and value and not re.fullmatch(one.shape, value)
        ]

    def server(self, account: Account) -> tuple[str, int] | None:
        """Host and port of the server that the account talks to. None: it is started by the Gateway itself."""
        url = urlsplit(self.address(account.id, account.settings))
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError:
            return None
        return (url.hostname, port) if url.hostname else None

    @abc.abstractmethod
    def address(self, account_id: str, settings: Any) -> str:
        """The address of the platform's server."""

    def missing_library(self) -> str:
        """What to do about a library that is not installed. Empty if nothing is missing."""
        if not self.library or find_spec(self.library) is not None:
            return ""
        return f"install the library of this channel: openclaw extras add {self.id}"

    def need_library(self) -> None:
        """Raises ``NotConfigured`` if the library of the channel is not installed."""
        if missing := self.missing_library():
            raise NotConfigured(missing)

    @abc.abstractmethod
    def peer(self, to: str) -> Peer:
        """See ``ChannelKind``."""

    @abc.abstractmethod
    def open(self, context: ChannelContext) -> Channel:
        """See ``ChannelKind``."""

    def section(self, config: Config) -> Section | None:
        """The channel's section. None: the channel is not configured."""
        channels = config.channels
        # Written out, so that a check can see which keys of the configuration are read.
        section = {
            "telegram": channels.telegram,
            "discord": channels.discord,
            "slack": channels.slack,
            "whatsapp": channels.whatsapp,
            "signal": channels.signal,
            "bluebubbles": channels.bluebubbles,
            "imessage": channels.imessage,
            "matrix": channels.matrix,
            "irc": channels.irc,
        }[self.id]
        return Section(section, section.accounts, section.default_account) if section else None

    def accounts(self, config: Config) -> list[Account]:
        section = self.section(config)
        if section is None:
            return []
        if not section.accounts:
            return [self._account(DEFAULT_ACCOUNT, f"channels.{self.id}", section.shared, section.shared.enabled)]
        return [
            self._account(
                normalize_account_id(name),
                f"channels.{self.id}.accounts.{name}",
                settings,
                section.shared.enabled and settings.enabled,
            )
            for name, settings in section.accounts.items()
        ]

    def default_account(self, config: Config) -> str:
        section = self.section(config)
        ids = [account.id for account in self.accounts(config)]
        return default_account_id(config, self.id, ids, section.default_account if section else None)

    def _account(self, account_id: str, where: str, settings: ChannelAccount, enabled: bool) -> Account:
        problem = self.problem(account_id, where, settings)
        return Account(id=account_id, name=settings.name, settings=settings, enabled=enabled, problem=problem)
