"""The protocols ``Channel`` and ``ChannelKind``, the context of a running channel, and the built-in kinds.

A channel is one account on one chat platform. It only translates and transports. Access, sessions, replies and retries
are decided elsewhere, in the same way for all channels. ``channels/submit.py`` submits the events of a platform.
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
from openclaw.inbound.message import Inbound, Peer
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt
from openclaw.paths import normalize_agent_id
from openclaw.redact import register
from openclaw.storage.blobs import BlobStore
from openclaw.storage.documents import DocumentStore

Part = TypeVar("Part")
Receive: TypeAlias = Callable[[Inbound], Awaitable[bool | None]]
"""Accepts a message. Returns once it is on disk, or False if it was rejected. Retry if it raises."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    chat_types: tuple[str, ...] = ("direct",)
    media: bool = False
    reactions: bool = False
    typing: bool = False
    typing_outlasts_reply: bool = False
    """The platform keeps the typing indicator after a reply, so the Gateway clears it after delivery."""
    threads: bool = False
    mentions: bool = False
    """The platform marks mentions in a message."""
    reply: bool = False
    """A message can quote an earlier one."""
    edit: bool = False
    unsend: bool = False
    """A sent message can be deleted for everyone."""
    pin: bool = False
    buttons: bool = False
    """A message can have buttons. A press arrives as a message with the button's text."""
    drafts: bool = False
    """An unfinished reply can be shown (``DraftChannel``)."""
    native_commands: bool = False
    """The platform has a command menu."""
    idempotent: bool = False
    """The platform deduplicates messages by key."""


class NotConfigured(Exception):
    """The account cannot work as configured. The message names the key to set. Not retried until it changes."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One configured account."""

    id: str
    settings: Any
    """The channel's settings record. The account's keys override the shared ones."""
    name: str | None = None
    enabled: bool = True
    problem: str = ""
    """Why the account cannot start, such as a missing key. Empty if it can."""


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a channel's path on the Gateway's port. Anyone can send one."""

    method: str
    path: str
    """The part below the channel's path, without a leading slash."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Keyed by lower-case name."""
    body: bytes


class WebhookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    text: str = ""
    content_type: str = "text/plain"


Webhook: TypeAlias = Callable[[WebhookRequest], Awaitable[WebhookAnswer]]


class NativeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a platform's command menu."""

    name: str
    description: str
    takes_text: bool = False


class ChannelContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the Gateway that a channel may use."""

    channel: str
    account: Account
    clock: Clock
    state_dir: Path
    """This account's folder on this machine. The channel creates it before use."""
    documents: DocumentStore
    """Small files that must follow the account to another Gateway. See ``document``."""
    blobs: BlobStore
    receive: Receive
    """``Pipeline.receive`` in ``inbound/pipeline.py``. Returns once the message is on disk or rejected."""
    admits: Receive
    """Whether the sender may write here. Files of anyone else are not fetched (see ``add_files``)."""
    notice: Callable[[Inbound], Awaitable[None]]
    """Reports an event that needs no reply, such as a reaction. ``text`` describes it."""
    edited: Callable[[Inbound], Awaitable[None]]
    """Reports that a person edited a message. ``text`` is the new text, ``message_id`` the id of the message, and
    ``revision`` identifies the edit. Do not report changes that no person made, such as an added link preview."""
    deleted: Callable[[Inbound], Awaitable[None]]
    """Reports that a person deleted a message. Only its ids are used."""
    moved: Callable[[str, str], Awaitable[None]]
    """Reports the old and the new id of a group. Its session and settings move with it."""
    serve: Callable[[str, Webhook], Callable[[], None]]
    """Serves a path on the Gateway's port until the returned function is called.

    Anyone can call the path, so the handler must verify a signature or secret first. Raises ``NotConfigured`` if the
    path is in use.
    """
    commands: Callable[[], list[NativeCommand]]
    """The entries of the platform's command menu. Empty if the configuration disables it."""
    environ: Mapping[str, str]
    connected: Callable[[], None]
    disconnected: Callable[[str], None]
    """Reports why the connection was lost. The channel reconnects by itself."""
    log: logging.Logger

    def key(self, name: str) -> str:
        """Return the configuration path of a key of this account."""
        account, channel = self.account.id, f"channels.{self.channel}"
        return f"{channel}.{name}" if account == DEFAULT_ACCOUNT else f"{channel}.accounts.{account}.{name}"

    @property
    def media_limit(self) -> int:
        """The largest file of this account, in bytes."""
        return int(self.account.settings.media_max_mb * 1024 * 1024)

    def document(self, name: str) -> str:
        """Return the name of a document of this account."""
        return f"channels/{self.channel}/{self.account.id}/{name}"

    def bookmark(
        self, name: str, max_length: int = MAX_EVENT_ID, is_id: Callable[[str], bool] = lambda text: True
    ) -> Bookmark:
        """Return this account's read position. ``is_id`` validates a stored id."""
        documents = self.documents
        store = BookmarkDocument(documents, self.document(name)) if documents.shared else None
        return Bookmark(store or BookmarkFile(self.state_dir / name, documents.repairs), self.clock, max_length, is_id)


class Channel(Protocol):
    """A running account. ``run`` owns its connections; the other methods are called while it runs."""

    async def run(self) -> None:
        """Connect and receive until cancelled, reconnecting as needed.

        Raises ``NotConfigured`` if a retry cannot help. After any other exit the channel is restarted.
        """
        ...

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        """Send one message, or apply its ``act`` to an earlier one if ``Capabilities`` allow it.

        ``key`` is the same for every attempt. Raises ``SendFailed``.
        """
        ...

    async def typing(self, route: Route, on: bool) -> None:
        """Show or clear the typing indicator. Raises ``SendFailed``."""
        ...

    async def probe(self) -> Mapping[str, object]:
        """Check the account with the platform. Returns ``{ok, …}`` for ``channels.status``. Raises ``SendFailed``."""
        ...


class DraftChannel(Channel, Protocol):
    """A channel whose ``Capabilities`` have ``drafts``."""

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        """Replace the text of the draft ``draft_id``. An empty text removes the draft.

        The finished reply goes through ``send``. Raises ``SendFailed``.
        """
        ...


class ChannelKind(Protocol):
    """A platform. Must be cheap to import. ``BUILT_IN`` lists the built-in ones."""

    id: str
    label: str
    capabilities: Capabilities

    def accounts(self, config: Config) -> list[Account]:
        """Return every configured account. Empty if the channel is not configured."""
        ...

    def default_account(self, config: Config) -> str: ...

    def peer(self, to: str) -> Peer:
        """Return the conversation at an address. Raises ``SendFailed`` if the address is invalid."""
        ...

    def open(self, context: ChannelContext) -> Channel:
        """Return a channel that does nothing until ``run``. Import SDKs here, not with the module."""
        ...


def default_account_id(config: Config, channel: str, ids: Iterable[str], configured: str | None = None) -> str:
    """Return the account for requests that name none.

    The configured default wins, then the account bound to the default agent, then ``default``, then the first by name.
    """
    account_ids = sorted(ids)
    if configured and normalize_account_id(configured) in account_ids:
        return normalize_account_id(configured)
    agent = default_agent_id(config)
    for binding in config.bindings:
        bound = normalize_account_id(binding.match.account_id) if binding.match.account_id else None
        if binding.match.channel == channel and normalize_agent_id(binding.agent_id) == agent and bound in account_ids:
            return bound
    return account_ids[0] if account_ids and DEFAULT_ACCOUNT not in account_ids else DEFAULT_ACCOUNT


class Disconnect(msgspec.Struct, frozen=True):
    at: int
    error: str


class AccountStatus(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The state of an account as shown to clients."""

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
        """Return the status for clients. Flags are always present; events that never happened are omitted."""
        flags = {name: getattr(self, name) for name in ("enabled", "configured", "running", "connected")}
        return {**msgspec.to_builtins(self), **flags}


# Shared by the adapters


class Reconnect:
    """Reports an account's connection state and backs off between attempts."""

    def __init__(self, context: ChannelContext, backoff: Backoff, stable_s: float = 0.0) -> None:
        """A connection that lasts ``stable_s`` seconds resets the backoff."""
        self._context = context
        self._backoff = backoff
        self._stable_s = stable_s
        self._attempt = 0
        self._connected_at: float | None = None

    def connected(self) -> None:
        self._connected_at = self._context.clock.monotonic()
        self._context.connected()

    async def failed(self, reason: str, at_least_s: float = 0.0) -> None:
        """Report a lost or failed connection and sleep until the next attempt."""
        began, self._connected_at = self._connected_at, None
        stable = began is not None and self._context.clock.monotonic() - began >= self._stable_s
        self._attempt = 1 if stable else self._attempt + 1
        delay_s = max(self._backoff.delay_s(self._attempt, random.random), at_least_s)
        self._context.disconnected(reason)
        self._context.log.warning("%s is not connected: %s; retrying in %.1f s", self._context.channel, reason, delay_s)
        await self._context.clock.sleep(delay_s)

    async def poll(self, check: Callable[[], Awaitable[None]], interval_s: float) -> NoReturn:
        """Report connected while ``check`` succeeds. For platforms that deliver through webhooks.

        ``check`` raises ``SendFailed``, or ``NotConfigured`` if a retry cannot help.
        """
        while True:
            try:
                await check()
            except SendFailed as failure:
                await self.failed(str(failure), failure.retry_after_s or 0.0)
                continue
            self.connected()
            await self._context.clock.sleep(interval_s)


async def secret_of(
    context: ChannelContext, secret: str | SecretRef | None, key: str, variable: str = "", *, needed: bool = True
) -> str:
    """Resolve a secret of the account and register it with the redactor.

    ``variable`` is the environment variable that the default account falls back to. Raises ``NotConfigured`` if a
    ``needed`` secret is missing; otherwise a missing secret is empty.
    """
    try:
        value = await asyncio.to_thread(resolve_secret, secret, context.environ, context.key(key))
    except SecretUnavailable as missing:
        raise NotConfigured(str(missing)) from None
    if not value and context.account.id == DEFAULT_ACCOUNT:
        value = context.environ.get(variable)
    token = (value or "").strip()
    if token:
        register([token])
    elif needed:
        raise NotConfigured(f"set {context.key(key)}")
    return token


def require_running(part: Part | None, platform: str) -> Part:
    """Return a part that exists only while the channel runs. Raises ``SendFailed`` if it does not."""
    if part is None:
        raise SendFailed(f"{platform} is not running", reached=False)
    return part


def require_action(context: ChannelContext, name: str, on: bool) -> None:
    """Raise a permanent ``SendFailed`` if the configuration disables an action."""
    if not on:
        raise SendFailed(f"{context.key(f'actions.{name}')} is off", permanent=True)


def bare_address(to: str, *prefixes: str) -> str:
    """Strip optional prefixes such as ``signal:``, in this order, from an address."""
    text = to.strip()
    for prefix in prefixes:
        if text.lower().startswith(prefix):
            text = text[len(prefix) :].strip()
    return text


def is_number(text: str) -> bool:
    """Return whether the text is ASCII digits only, as the ids of many platforms are."""
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
"""Channel → its kind, which is imported when the configuration first names the channel."""
ENTRY_POINTS = "openclaw.channels"
"""The entry-point group for channels of other packages: section name → kind class.

The class is called with the environment as its only argument.
"""


class ChannelKinds:
    """The channel kinds, each created when the configuration first names it."""

    def __init__(self, environ: Mapping[str, str], kinds: Mapping[str, ChannelKind] | None = None) -> None:
        """``kinds`` are already created kinds by id."""
        self._environ = environ
        self._kinds = dict(kinds or {})

    def get(self, channel: str) -> ChannelKind | None:
        """Return the kind of a channel that the configuration has named before."""
        return self._kinds.get(channel)

    def knows(self, channel: str) -> bool:
        """Return whether the channel is built in or a configured one of another package."""
        return channel in BUILT_IN or channel in self._kinds

    def add(self, kind: ChannelKind) -> None:
        """Register a channel kind of an extension."""
        self._kinds[kind.id] = kind

    def configured(self, config: Config) -> list[ChannelKind]:
        """Return the kinds of all configured channels."""
        built_in = [name for name in BUILT_IN if getattr(config.channels, name, None) is not None]
        others = [name for name, section in config.channels.others.items() if section.get("enabled") is not False]
        for name in (*built_in, *others):
            if name not in self._kinds:
                self._kinds[name] = self._create(name)
        return list(self._kinds.values())

    def _create(self, name: str) -> ChannelKind:
        if name in BUILT_IN:
            return built_in_kind(name)(self._environ)
        # Imported late: scanning the installed packages is slow and rarely needed.
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS, name=name):
            try:
                return entry.load()(self._environ)
            except Exception as error:
                return MissingKind(name, f"the package of this channel cannot be loaded: {error!r}")
        return MissingKind(name, f"no installed package brings a channel called {name}")


def built_in_kind(channel: str) -> type[ConfiguredKind]:
    return _import_class(BUILT_IN[channel])


def _import_class(path: str) -> Any:
    """Import ``module:Name``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


class MissingKind:
    """Placeholder for a configured channel whose package is missing or broken."""

    capabilities = Capabilities()

    def __init__(self, channel: str, problem: str) -> None:
        self.id = self.label = channel
        self._problem = problem

    def accounts(self, config: Config) -> list[Account]:
        configured = config.channels.others.get(self.id) is not None
        return [Account(id=DEFAULT_ACCOUNT, settings=None, problem=self._problem)] if configured else []

    def default_account(self, config: Config) -> str:
        return DEFAULT_ACCOUNT

    def peer(self, to: str) -> Peer:
        raise SendFailed(self._problem, permanent=True)

    def open(self, context: ChannelContext) -> Channel:
        raise SendFailed(self._problem, permanent=True)


class AccountKey(NamedTuple):
    """A configuration key that an account needs to connect."""

    key: str
    prompt: str
    """The question of ``channels add``."""
    advice: str = ""
    """Follows "set <key>" in the error for a missing key."""
    secret: bool = False
    """Typed without echo, and removed by ``channels logout``."""
    variable: str = ""
    """The environment variable that the default account falls back to."""
    optional: bool = False
    prompted: bool = True
    """Whether ``channels add`` asks for it. If not, it is only an alternative way to log in."""
    alternatives: tuple[str, ...] = ()
    """Keys that replace this one."""
    shape: str = ""
    """A regular expression that every value issued by the platform matches."""

    @property
    def field(self) -> str:
        return _field_of(self.key)


def _field_of(key: str) -> str:
    """Convert a camelCase key to its attribute name."""
    return re.sub("([A-Z])", r"_\1", key).lower()


class ConfiguredKind(abc.ABC):
    """Base of the built-in kinds: a config section with accounts, credentials and an optional library."""

    id: str
    label: str
    capabilities: Capabilities
    credentials: tuple[AccountKey, ...] = ()
    channel: str
    """``module:Name`` of the channel class. Imported with the first account, since its library may load slowly."""
    hint: str = ""
    """How to obtain the credentials."""
    library: str = ""
    """The module that the channel requires. The extra named like the channel installs it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def problem(self, account_id: str, where: str, settings: Any) -> str:
        """Return why the account cannot start, naming the key to set. Empty if it can.

        ``where`` is the key path of the account. Environment variables apply to the default account only.
        """
        for credential in self.credentials:
            alternatives = (getattr(settings, _field_of(key)) for key in credential.alternatives)
            if not (credential.optional or self.value(account_id, settings, credential) or any(alternatives)):
                return f"set {where}.{credential.key} {credential.advice}".rstrip()
        return self.other_problem(where, settings)

    def other_problem(self, where: str, settings: Any) -> str:
        """Return a problem other than a missing credential, or an empty string."""
        return ""

    def value(self, account_id: str, settings: Any, credential: AccountKey) -> str | SecretRef:
        """Return a credential from the configuration, else the environment. Secret references stay unresolved."""
        value = getattr(settings, credential.field)
        if isinstance(value, str):
            value = value.strip()
        if not value and account_id == DEFAULT_ACCOUNT and credential.variable:
            value = self.environ.get(credential.variable, "").strip()
        return value or ""

    def malformed_credentials(self, account: Account) -> list[str]:
        """Return the keys whose values the platform cannot have issued. Secret references are not resolved."""

        def is_malformed(credential: AccountKey) -> bool:
            value = self.value(account.id, account.settings, credential)
            return isinstance(value, str) and bool(value) and not re.fullmatch(credential.shape, value)

        return [credential.key for credential in self.credentials if credential.shape and is_malformed(credential)]

    def server(self, account: Account) -> tuple[str, int] | None:
        """Return host and port of the account's server, or None if the Gateway starts the server itself."""
        url = urlsplit(self.address(account.id, account.settings))
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError:
            return None
        return (url.hostname, port) if url.hostname else None

    def address(self, account_id: str, settings: Any) -> str:
        """Return the URL of the platform's server."""
        return settings.api_root

    def missing_library(self) -> str:
        """Return how to install a missing library, or an empty string if none is missing."""
        if not self.library or find_spec(self.library) is not None:
            return ""
        return f"install the library of this channel: openclaw extras add {self.id}"

    @abc.abstractmethod
    def peer(self, to: str) -> Peer:
        """See ``ChannelKind``."""

    def open(self, context: ChannelContext) -> Channel:
        if missing := self.missing_library():
            raise NotConfigured(missing)
        return _import_class(self.channel)(context)

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
        """Return the channel's section: a single account, or the defaults of its accounts. None if missing."""
        channels = config.channels
        # Spelled out so that static checks see which configuration keys are read.
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
