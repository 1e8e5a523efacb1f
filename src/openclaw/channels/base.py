"""The ``Channel`` and ``ChannelKind`` protocols, what channels share, and how a message is handed in.

A channel is one account on one chat platform. It only translates and transports. Access, sessions, replies and retries
are decided elsewhere, in the same way for all channels. Tokens and passwords of an account are found in the
configuration, or in the environment.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from openclaw.channels.bookmark import MAX_EVENT_ID, Bookmark, BookmarkDocument, BookmarkFile
from openclaw.clock import Clock
from openclaw.config.agents import default_agent_id
from openclaw.config.channels import DEFAULT_ACCOUNT, normalize_account_id
from openclaw.config.schema import Config
from openclaw.config.schema.base import SecretRef
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.inbound.message import Inbound, Peer, Route
from openclaw.outbound.backoff import Backoff
from openclaw.outbound.reply import OutgoingMessage, SendReceipt
from openclaw.paths import normalize_agent_id
from openclaw.redact import know
from openclaw.storage.base import BlobStore
from openclaw.storage.documents import DocumentStore

Receive: TypeAlias = Callable[[Inbound], Awaitable[bool | None]]
"""Takes in a message. It returns when the message is on disk, or False when it was refused. If it raises, try again."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    chat_types: tuple[str, ...] = ("direct",)
    media: bool = False
    reactions: bool = False
    typing: bool = False
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
    """Whether the sender of a message may write here. Files of others are not fetched: see ``of_admitted``."""
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

    def document(self, name: str) -> str:
        """The name of a document of this account."""
        return f"channels/{self.channel}/{self.account.id}/{name}"

    def bookmark(self, name: str, most: int = MAX_EVENT_ID) -> Bookmark:
        """How far this account has read. ``most`` is the length of an id at most."""
        documents = self.documents
        place = BookmarkDocument(documents, self.document(name)) if documents.shared else None
        return Bookmark(place or BookmarkFile(self.state_dir / name), self.clock, most)


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
        """Asks the platform whether the account works. Returns ``{ok, …}``."""
        ...


class DraftChannel(Channel, Protocol):
    """A channel whose ``Capabilities`` have ``drafts``."""

    async def draft(self, route: Route, draft_id: int, text: str) -> None:
        """Shows the unfinished reply in place of what ``draft_id`` showed before. An empty text takes it away.

        The finished reply is sent by ``send``. Raises ``SendFailed``.
        """
        ...


class ChannelKind(Protocol):
    """A platform. ``BUILT_IN`` in ``channels/kind.py`` names ours. It must be cheap to import."""

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


OFFER_AGAIN = Backoff(initial_s=0.5, max_s=8.0, jitter=0.0)
OFFERS = 5
"""A message that fails for another reason than the disk is given up after this many attempts."""


async def offer(
    context: ChannelContext, inbound: Inbound, hand_in: Callable[[Inbound], Awaitable[bool | None]] | None = None
) -> bool:
    """Returns when the message is on disk, refused or given up. True means that somebody who may write wrote it.

    While the disk fails it tries for ever, so that no message is lost. After any other failure it gives the message up
    after some attempts, because it would keep back all later ones. The platform is told only after this returns.
    ``hand_in`` is ``receive`` of the context (``Pipeline.receive``) unless another of its functions is given.
    """
    log, attempt, hand_in = context.log, 0, hand_in or context.receive
    while True:
        attempt += 1
        try:
            return await hand_in(inbound) is not False
        except OSError as error:
            log.warning("message %s cannot be kept for now (try %d): %s", inbound.message_id, attempt, error)
        except Exception as error:
            if attempt >= OFFERS:
                log.exception("message %s cannot be taken in and is given up", inbound.message_id)
                return False
            log.warning("message %s could not be taken in (try %d): %r", inbound.message_id, attempt, error)
        await context.clock.sleep(OFFER_AGAIN.delay_s(attempt, random.random))


async def secret_of(context: ChannelContext, secret: str | SecretRef | None, where: str, variable: str = "") -> str:
    """The secret itself. The redactor knows it from now on. Raises ``NotConfigured`` if it cannot be had.

    ``where`` is its key path, ``variable`` the environment variable that the default account falls back to.
    """
    try:
        found = await asyncio.to_thread(resolve_secret, secret, context.environ, where)
    except SecretUnavailable as missing:
        raise NotConfigured(str(missing)) from None
    if not found and context.account.id == DEFAULT_ACCOUNT:
        found = context.environ.get(variable, "")
    if not (found or "").strip():
        raise NotConfigured(f"set {where}")
    token = (found or "").strip()
    know([token])
    return token
