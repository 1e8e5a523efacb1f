"""A channel without a platform: a test speaks for the people on it, and can make it misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.channels.base import Account, Capabilities, ChannelContext, default_account_id
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, Media, Peer, Sender
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage, SendFailed, SendReceipt


class Delivered:
    """What a person on the channel got."""

    def __init__(self, to: str, account: str, part: OutgoingMessage, key: str) -> None:
        self.to = to
        self.account = account
        self.text = part.text
        self.media = part.media
        self.possibly_duplicate = part.possibly_duplicate
        self.key = key


async def everybody(_: Inbound) -> bool:
    """Lets everybody write."""
    return True


class Loopback:
    """A ``ChannelKind`` and the world behind it. A test passes it to the ``ChannelManager``."""

    label = "Loopback"

    def __init__(self, channel: str = "loopback", *, idempotent: bool = False) -> None:
        self.id = channel
        self.capabilities = Capabilities(
            chat_types=("direct", "group"),
            media=True,
            typing=True,
            reactions=True,
            mentions=True,
            idempotent=idempotent,
        )
        self.delivered: list[Delivered] = []
        self.typing: list[tuple[str, bool]] = []
        self.reactions: list[tuple[str, str]] = []
        """Where, and with which emoji."""
        self.said: list[tuple[str, Inbound]] = []
        """Everything people said, with the account that heard it."""
        self.opened = 0
        self.lives: dict[str, LoopbackChannel] = {}
        self.failures: list[Exception] = []
        """Raised by the next sends, one each, before anything is delivered."""
        self.failures_after: list[Exception] = []
        """The same, after it was delivered: the answer is lost, not the message."""
        self.crashes: list[Exception] = []
        """Raised by the next starts."""
        self.gate = asyncio.Event()
        self.gate.set()
        """Cleared: sends hang until it is set."""
        self._changed = asyncio.Event()
        self._numbers = 0

    # ChannelKind

    def accounts(self, config: Config) -> list[Account]:
        section = config.channels.others.get(self.id)
        if section is None:
            return []
        base = {key: value for key, value in section.items() if key != "accounts"}
        listed = section.get("accounts") or {DEFAULT_ACCOUNT: {}}
        return [
            Account(
                id=name,
                settings={**base, **own},
                enabled=bool(base.get("enabled", True) and own.get("enabled", True)),
                problem="set a password" if {**base, **own}.get("password") == "" else "",
            )
            for name, own in listed.items()
        ]

    def default_account(self, config: Config) -> str:
        return default_account_id(config, self.id, [account.id for account in self.accounts(config)])

    def peer(self, to: str) -> Peer:
        kind, _, rest = to.partition(":")
        if kind == "group" and rest:
            return Peer(kind="group", id=rest)
        if not to.strip() or " " in to:
            raise SendFailed(f"{to!r} is nobody here", permanent=True)
        return Peer(kind="direct", id=rest or kind)

    def open(self, context: ChannelContext) -> LoopbackChannel:
        self.opened += 1
        return LoopbackChannel(self, context)

    # What people on it do

    async def say(self, text: str, *, account: str = DEFAULT_ACCOUNT, **more: Any) -> Inbound:
        """Returns once the Gateway has taken the message."""
        inbound = self.inbound(text, account=account, **more)
        self.said.append((account, inbound))
        await self.lives[account].context.receive(inbound)
        return inbound

    def inbound(
        self,
        text: str,
        *,
        sender: str | Sender = "ann",
        group: str | None = None,
        account: str = DEFAULT_ACCOUNT,
        message_id: str | None = None,
        media: tuple[Media, ...] = (),
        **more: Any,
    ) -> Inbound:
        self._numbers += 1
        who = sender if isinstance(sender, Sender) else Sender(id=sender, name=sender.title())
        return Inbound(
            channel=self.id,
            account_id=account,
            message_id=message_id or f"m{self._numbers}",
            peer=Peer(kind="group", id=group) if group else Peer(kind="direct", id=who.id),
            sender=who,
            to=f"group:{group}" if group else f"{self.id}:{who.id}",
            text=text,
            media=media,
            timestamp_ms=1_794_766_939_494 + self._numbers,
            **more,
        )

    async def redeliver(self, *, newest_first: bool = False) -> None:
        """Everything once more, as after a lost connection."""
        for account, inbound in reversed(self.said) if newest_first else list(self.said):
            await self.lives[account].context.receive(inbound)

    def disconnect(self, account: str = DEFAULT_ACCOUNT, error: str = "the line is cut") -> None:
        self.lives[account].context.disconnected(error)
        self.changed()

    def reconnect(self, account: str = DEFAULT_ACCOUNT) -> None:
        self.lives[account].context.connected()
        self.changed()

    async def until(self, holds: Any, timeout_s: float = 60) -> None:
        async with asyncio.timeout(timeout_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def got(self, count: int) -> list[Delivered]:
        await self.until(lambda: len(self.delivered) >= count)
        return self.delivered

    def changed(self) -> None:
        self._changed.set()


class LoopbackChannel:
    def __init__(self, world: Loopback, context: ChannelContext) -> None:
        self.world = world
        self.context = context

    async def run(self) -> None:
        if self.world.crashes:
            raise self.world.crashes.pop(0)
        self.world.lives[self.context.account.id] = self
        self.context.connected()
        self.world.changed()
        try:
            await asyncio.Event().wait()
        finally:
            del self.world.lives[self.context.account.id]
            self.world.changed()

    async def send(self, route: Route, message: OutgoingMessage, key: str) -> SendReceipt:
        world = self.world
        if message.act == "react":
            world.reactions.append((route.to or "", message.emoji))
            return SendReceipt(message_id=message.target_id)
        await world.gate.wait()
        if world.failures:
            raise world.failures.pop(0)
        if not route.to:
            raise SendFailed("no recipient", permanent=True)
        if not (world.capabilities.idempotent and any(earlier.key == key for earlier in world.delivered)):
            world.delivered.append(Delivered(route.to, self.context.account.id, message, key))
        world.changed()
        if world.failures_after:
            raise world.failures_after.pop(0)
        return SendReceipt(message_id=f"out-{len(world.delivered)}")

    async def typing(self, route: Route, on: bool) -> None:
        self.world.typing.append((route.to or "", on))
        self.world.changed()

    async def probe(self) -> dict[str, Any]:
        return {"ok": True}
