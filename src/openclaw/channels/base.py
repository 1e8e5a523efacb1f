"""What a channel is: the protocols ``Channel`` and ``ChannelKind``, what the Gateway gives a channel, and our kinds.

A channel is one account on one chat platform. It only translates and transports. Access, sessions, replies and retries
are decided elsewhere, in the same way for all channels. How a message is handed in stands in ``channels/submit.py``.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from openclaw.channels.bookmark import MAX_EVENT_ID, Bookmark, BookmarkDocument, BookmarkFile
from openclaw.clock import Backoff, Clock
from openclaw.config.agents import default_agent_id
from openclaw.config.channels import DEFAULT_ACCOUNT, normalize_account_id
from openclaw.config.schema import Config
from openclaw.config.schema.base import SecretRef
from openclaw.config.schema.channels import ChannelAccount
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.inbound.message import Inbound, Peer, Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.paths import normalize_agent_id
from openclaw.redact import know
from openclaw.storage.blobs import BlobStore
from openclaw.storage.documents import DocumentStore

Part = TypeVar("Part")
Receive: TypeAlias = Callable[[Inbound], Awaitable[bool | None]]
"""Takes in a message. It returns when the message is on disk, or False when it was refused. If it raises, try again."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    chat_types: tuple[str, ...] = ("direct",)
    media: bool = False
    reactions: bool = False
    typing: bool = False
    typing_outlasts_reply: bool = False
    """A reply does not end the typing sign, so the Gateway ends it when the reply has been delivered."""
    threads: bool = False
    mentions: bool = False
    """The platform says who is mentioned in a message."""
    reply: bool = False
    """A message can quote an earlier one."""
    edit: bool = False
    unsend: bool = False
    """A message that was sent can be deleted for everybody."""
    pin: bool = False
    buttons: bool = False
    """A message can have buttons; a press comes in as a message with the button's text."""
    drafts: bool = False
    """The reply can be shown while it is being written (``DraftChannel``)."""
    native_commands: bool = False
    """The platform has a menu of commands."""
    idempotent: bool = False
    """The platform drops a second message with the same key."""


class NotConfigured(Exception):
    """The account cannot work as configured. The message says which key to set. It is not tried again before that."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account as the configuration describes it."""

    id: str
    settings: Any
    """The record of the channel's settings. The account's keys override those that all accounts share."""
    name: str | None = None
    enabled: bool = True
    problem: str = ""
    """Why the account cannot be started, such as a missing key. Empty if it can."""


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody sent to the path of a channel on the Gateway's port."""

    method: str
    path: str
    """The part below the path of the channel, without a slash at its beginning."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


class WebhookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    text: str = ""
    content_type: str = "text/plain"


Webhook: TypeAlias = Callable[[WebhookRequest], Awaitable[WebhookAnswer]]


class NativeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command for the menu of a platform."""

    name: str
    description: str
    takes_text: bool = False


class ChannelContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the Gateway that a channel may use."""

    channel: str
    account: Account
    clock: Clock
    state_dir: Path
    """A folder of this machine for this account alone. The channel makes it before use."""
    documents: DocumentStore
    """What is small and must go along when another Gateway connects the account. See ``document``."""
    blobs: BlobStore
    receive: Receive
    """``Pipeline.receive`` in ``inbound/pipeline.py``. Returns when the message is on disk or refused."""
    admits: Receive
    """Whether the sender of a message may write here. Files of others are not fetched: see ``add_files``."""
    notice: Callable[[Inbound], Awaitable[None]]
    """Reports an event that needs no answer, such as a reaction. Its ``text`` describes it."""
    edited: Callable[[Inbound], Awaitable[None]]
    """Reports that a person changed the text of an earlier message. ``text`` is the new one, ``message_id`` that of the
    old, and ``revision`` tells this edit from others. Platforms also report changes that no person made, such as a
    preview of a link; those are not reported here."""
    deleted: Callable[[Inbound], Awaitable[None]]
    """Reports that a person took a message back. Only its ids count."""
    moved: Callable[[str, str], Awaitable[None]]
    """Reports that a group has a new id: the one before and the one now. Its session and settings go along."""
    serve: Callable[[str, Webhook], Callable[[], None]]
    """Serves a path on the Gateway's port until the returned function is called.

    Anyone may call the path: the handler checks a signature or secret before it looks at anything else. Raises
    ``NotConfigured`` if the path is taken.
    """
    commands: Callable[[], list[NativeCommand]]
    """The commands for the platform's menu. Empty if the configuration wants none."""
    environ: Mapping[str, str]
    connected: Callable[[], None]
    disconnected: Callable[[str], None]
    """Reports why the connection was lost. The channel reconnects by itself."""
    log: logging.Logger

    def key(self, name: str) -> str:
        """The path of a key of this account in the configuration."""
        account, channel = self.account.id, f"channels.{self.channel}"
        return f"{channel}.{name}" if account == DEFAULT_ACCOUNT else f"{channel}.accounts.{account}.{name}"

    @property
    def media_limit(self) -> int:
        """How many bytes a file of this account may have."""
        return int(self.account.settings.media_max_mb * 1024 * 1024)

    def document(self, name: str) -> str:
        """The name of a document of this account."""
        return f"channels/{self.channel}/{self.account.id}/{name}"

    def bookmark(
        self, name: str, most: int = MAX_EVENT_ID, is_id: Callable[[str], bool] = lambda text: True
    ) -> Bookmark:
        """How far this account has read. ``most`` is the length of an id at most, ``is_id`` recognises one."""
        documents = self.documents
        place = BookmarkDocument(documents, self.document(name)) if documents.shared else None
        return Bookmark(place or BookmarkFile(self.state_dir / name, documents.repairs), self.clock, most, is_id)


class Channel(Protocol):
    """A live account. ``run`` owns its connections. The other methods may be called while it runs."""

    async def run(self) -> None:
        """Connects and receives until cancelled. It reconnects by itself.

        It raises ``NotConfigured`` if trying again cannot help. Any other end is a crash, and the channel is restarted.
        """
        ...

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        """Sends one message, or does its ``act`` to an earlier one, where ``Capabilities`` say that the platform can.

        ``key`` is the same for every attempt. Raises ``SendFailed``.
        """
        ...

    async def typing(self, route: Route, on: bool) -> None:
        """Shows or ends the typing sign. Raises ``SendFailed``."""
        ...

    async def probe(self) -> dict[str, Any]:
        """Asks the platform whether the account works. Returns ``{ok, …}``. Raises ``SendFailed``."""
        ...


class DraftChannel(Channel, Protocol):
    """A channel whose ``Capabilities`` have ``drafts``."""

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        """Shows the unfinished reply in place of what ``draft_id`` showed before. An empty text takes it away.

        The finished reply is sent by ``send``. Raises ``SendFailed``.
        """
        ...


class ChannelKind(Protocol):
    """A platform. ``BUILT_IN`` in ``channels/base.py`` names ours. It must be cheap to import."""

    id: str
    label: str
    capabilities: Capabilities

    def accounts(self, config: Config) -> list[Account]:
        """Every configured account. Empty if the channel is not configured."""
        ...

    def default_account(self, config: Config) -> str: ...

    def peer(self, to: str) -> Peer:
        """The conversation that an address names. Raises ``SendFailed`` if it is no address of this platform."""
        ...

    def open(self, context: ChannelContext) -> Channel:
        """Makes a channel, which does nothing until ``run``. SDKs are imported here, not with the module."""
        ...


def default_account_id(config: Config, channel: str, ids: Iterable[str], wanted: str | None = None) -> str:
    """The account for requests that name none: the configured one, or else the one bound to the default agent.

    Failing both, it is ``default``, or the first by name if there is no ``default``.
    """
    known = sorted(ids)
    if wanted and normalize_account_id(wanted) in known:
        return normalize_account_id(wanted)
    agent = default_agent_id(config)
    for binding in config.bindings:
        bound = normalize_account_id(binding.match.account_id) if binding.match.account_id else None
        if binding.match.channel == channel and normalize_agent_id(binding.agent_id) == agent and bound in known:
            return bound
    return known[0] if known and DEFAULT_ACCOUNT not in known else DEFAULT_ACCOUNT


class Disconnect(msgspec.Struct, frozen=True):
    at: int
    error: str


class AccountStatus(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The present state of an account, as clients see it."""

    account_id: str
    name: str | None = None
    enabled: bool = msgspec.field(default=True)
    configured: bool = msgspec.field(default=True)
    running: bool = False
    connected: bool = False
    reconnect_attempts: int = 0
    """Attempts since the account was last connected."""
    restarts: int = 0
    """Crashes since the Gateway was started."""
    last_connected_at: int | None = None
    last_disconnect: Disconnect | None = None
    last_inbound_at: int | None = None
    last_outbound_at: int | None = None
    last_error: str | None = None
    last_start_at: int | None = None
    last_stop_at: int | None = None

    def view(self) -> dict[str, Any]:
        """The status as a mapping. Flags are always there; events that never happened are left out."""
        flags = {name: getattr(self, name) for name in ("enabled", "configured", "running", "connected")}
        return {**msgspec.to_builtins(self), **flags}


# What channels share


class Reconnect:
    """The attempts of an account to connect: it reports how they end, and waits between them."""

    def __init__(self, context: ChannelContext, pauses: Backoff, stable_s: float = 0.0) -> None:
        """After a connection of ``stable_s`` seconds, the next failure counts as the first one again."""
        self._context = context
        self._pauses = pauses
        self._stable_s = stable_s
        self._attempt = 0
        self._connected_at: float | None = None

    def connected(self) -> None:
        self._connected_at = self._context.clock.monotonic()
        self._context.connected()

    async def failed(self, reason: str, at_least_s: float = 0.0) -> None:
        """Reports why there is no connection, and waits until the next attempt."""
        began, self._connected_at = self._connected_at, None
        stable = began is not None and self._context.clock.monotonic() - began >= self._stable_s
        self._attempt = 1 if stable else self._attempt + 1
        delay_s = max(self._pauses.delay_s(self._attempt, random.random), at_least_s)
        self._context.disconnected(reason)
        self._context.log.warning("%s is not connected: %s; again in %.1f s", self._context.channel, reason, delay_s)
        await self._context.clock.sleep(delay_s)

    async def while_checked(self, check: Callable[[], Awaitable[None]], every_s: float) -> NoReturn:
        """Asks the platform from time to time, and is connected while it answers. For those that call us by themselves.

        ``check`` raises ``SendFailed``, or ``NotConfigured`` if trying again cannot help.
        """
        while True:
            try:
                await check()
            except SendFailed as failure:
                await self.failed(str(failure), failure.retry_after_s or 0.0)
                continue
            self.connected()
            await self._context.clock.sleep(every_s)


async def secret_of(
    context: ChannelContext, secret: str | SecretRef | None, key: str, variable: str = "", *, needed: bool = True
) -> str:
    """The secret under a key of the account. The redactor knows it from now on. Raises ``NotConfigured`` without it.

    ``variable`` is the environment variable that the default account falls back to. A secret that is not ``needed`` is
    empty if nobody has set it.
    """
    try:
        found = await asyncio.to_thread(resolve_secret, secret, context.environ, context.key(key))
    except SecretUnavailable as missing:
        raise NotConfigured(str(missing)) from None
    if not found and context.account.id == DEFAULT_ACCOUNT:
        found = context.environ.get(variable)
    token = (found or "").strip()
    if token:
        know([token])
    elif needed:
        raise NotConfigured(f"set {context.key(key)}")
    return token


def running(part: Part | None, platform: str) -> Part:
    """A part that a channel has only while it runs. Raises ``SendFailed`` otherwise."""
    if part is None:
        raise SendFailed(f"{platform} is not running", reached=False)
    return part


def need_action(context: ChannelContext, name: str, on: bool) -> None:
    """Raises a permanent ``SendFailed`` if the configuration forbids an action."""
    if not on:
        raise SendFailed(f"{context.key(f'actions.{name}')} is off", permanent=True)


def bare_address(to: str, *prefixes: str) -> str:
    """An address without the prefixes, such as ``signal:``, which may stand before it in this order."""
    text = to.strip()
    for prefix in prefixes:
        if text.lower().startswith(prefix):
            text = text[len(prefix) :].strip()
    return text


def is_number(text: str) -> bool:
    """Whether the text is a number in plain digits, such as many platforms have as ids."""
    return text.isascii() and text.isdigit()


# Kinds

BUILT_IN = {
    "telegram": "openclaw.channels.telegram:TelegramKind",
    "discord": "openclaw.channels.discord:DiscordKind",
    "irc": "openclaw.channels.irc:IrcKind",
    "matrix": "openclaw.channels.matrix:MatrixKind",
    "signal": "openclaw.channels.signal:SignalKind",
    "bluebubbles": "openclaw.channels.bluebubbles:BlueBubblesKind",
    "imessage": "openclaw.channels.bluebubbles:IMessageKind",
    "slack": "openclaw.channels.slack:SlackKind",
    "whatsapp": "openclaw.channels.whatsapp:WhatsAppKind",
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

    def knows(self, channel: str) -> bool:
        """Whether there is such a channel: one of ours, or one of another package that is configured."""
        return channel in BUILT_IN or channel in self._made

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
    return _imported(BUILT_IN[channel])


def _imported(place: str) -> Any:
    """The class that ``module:Name`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


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
    channel: str
    """The class of its accounts. It is imported with the first one, because its library may take a while."""
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

    def address(self, account_id: str, settings: Any) -> str:
        """The address of the platform's server."""
        return settings.api_root

    def missing_library(self) -> str:
        """What to do about a library that is not installed. Empty if nothing is missing."""
        if not self.library or find_spec(self.library) is not None:
            return ""
        return f"install the library of this channel: openclaw extras add {self.id}"

    @abc.abstractmethod
    def peer(self, to: str) -> Peer:
        """See ``ChannelKind``."""

    def open(self, context: ChannelContext) -> Channel:
        if missing := self.missing_library():
            raise NotConfigured(missing)
        return _imported(self.channel)(context)

    def accounts(self, config: Config) -> list[Account]:
        section = self._section(config)
        if section is None:
            return []
        if not section.accounts:
            return [self._account(DEFAULT_ACCOUNT, f"channels.{self.id}", section, section.enabled)]
        return [
            self._account(
                normalize_account_id(name),
                f"channels.{self.id}.accounts.{name}",
                settings,
                section.enabled and settings.enabled,
            )
            for name, settings in section.accounts.items()
        ]

    def default_account(self, config: Config) -> str:
        section = self._section(config)
        ids = [account.id for account in self.accounts(config)]
        return default_account_id(config, self.id, ids, section.default_account if section else None)

    def _section(self, config: Config) -> Any:
        """The channel's section: an account of its own, or what its accounts share. None: it is not configured."""
        channels = config.channels
        # Written out, so that a check can see which keys of the configuration are read.
        return {
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

    def _account(self, account_id: str, where: str, settings: ChannelAccount, enabled: bool) -> Account:
        problem = self.problem(account_id, where, settings)
        return Account(id=account_id, name=settings.name, settings=settings, enabled=enabled, problem=problem)
