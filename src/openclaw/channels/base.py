"""What a channel is: one account on one chat platform, and what the Gateway gives it.

A channel translates and transports. Who may write, which session a message belongs to, what is said and when it is
said again are decided elsewhere, for all channels alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, Peer, Route
from openclaw.outbound.part import Part, Sent
from openclaw.storage.base import BlobStore

Receive: TypeAlias = Callable[[Inbound], Awaitable[bool | None]]
"""Returns once the message is on disk, or was turned away (False). Raises when it could not be taken: try again."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    chat_types: tuple[str, ...] = ("direct",)
    media: bool = False
    reactions: bool = False
    typing: bool = False
    threads: bool = False
    mentions: bool = False
    """The platform says who was mentioned."""
    idempotent: bool = False
    """A second send with the same key is dropped by the platform."""


class NotConfigured(Exception):
    """The account cannot work as configured: says which key to set. It is not tried again until that changes."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account as the configuration describes it."""

    id: str
    settings: Any
    """The channel's own record, the account's keys over the shared ones."""
    name: str | None = None
    enabled: bool = True
    problem: str = ""
    """What keeps it from being started, e.g. a key that is missing."""


class ChannelContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a channel may use. It keeps nothing else of the Gateway."""

    channel: str
    account: Account
    clock: Clock
    state_dir: Path
    """A folder of this account's own; make it before use."""
    blobs: BlobStore
    receive: Receive
    notice: Callable[[Inbound], Awaitable[None]]
    """Something worth knowing that asks for no answer (a reaction): ``text`` says it in words."""
    connected: Callable[[], None]
    disconnected: Callable[[str], None]
    """The connection was lost, and why; the channel is trying to get it back."""
    log: logging.Logger


class MessageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A message on the platform; some name it by its id and its sender together."""

    id: str
    sender: str | None = None


class Channel(Protocol):
    """A live account. ``run`` owns its connections; the other methods may be called while it runs."""

    async def run(self) -> None:
        """Connects and receives until cancelled, getting lost connections back by itself.

        Raises ``NotConfigured`` when trying again cannot help. Any other end is a crash: it is started again.
        """
        ...

    async def send(self, route: Route, part: Part, key: str) -> Sent:
        """Delivers one message. ``key`` is the same for every try of it. Raises ``SendFailed``."""
        ...

    async def typing(self, route: Route, on: bool) -> None:
        """Shows or ends the typing sign; best effort, raises ``SendFailed``."""
        ...

    async def react(self, route: Route, to: MessageRef, emoji: str, *, remove: bool = False) -> None:
        """Puts a reaction to a message, or takes it back. Raises ``SendFailed``."""
        ...

    async def probe(self) -> dict[str, Any]:
        """Asks the platform whether all is well: ``{ok, …}``."""
        ...


class ChannelKind(Protocol):
    """A platform: what the registry knows of it, cheap to import."""

    id: str
    label: str
    capabilities: Capabilities

    def accounts(self, config: Config) -> list[Account]:
        """Every configured account; none when the channel is not configured at all."""
        ...

    def default_account(self, config: Config) -> str: ...

    def peer(self, to: str) -> Peer:
        """The conversation an address means. Raises ``SendFailed`` for what is no address here."""
        ...

    def open(self, context: ChannelContext) -> Channel:
        """A channel that does nothing until it is run. SDKs are imported here, not with the module."""
        ...
