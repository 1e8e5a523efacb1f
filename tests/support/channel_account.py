"""One account of a channel under the real manager, with a receiver in place of the Gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw.channels.base import ChannelKinds, WebhookAnswer, WebhookRequest
from openclaw.channels.manager import ChannelManager, RunningAccount
from openclaw.clock import Clock, SystemClock
from openclaw.config.load import parse_config
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, MovedChat
from openclaw.messages import Route
from openclaw.outbound.reply import OutgoingMessage
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from tests.support.loopback_channel import everybody

PATIENCE_S = 60


class QuickClock(SystemClock):
    """A sleep takes 10 ms at most, and always yields to other tasks."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class Receiver:
    """Records the events that a channel submits. ``failures`` are raised first, one for each attempt."""

    def __init__(self) -> None:
        self.messages: list[Inbound] = []
        self.notices: list[Inbound] = []
        self.edits: list[Inbound] = []
        self.deletions: list[Inbound] = []
        self.moves: list[MovedChat] = []
        self.failures: list[Exception] = []
        self.answer: bool | None = None
        self._changed = asyncio.Event()

    async def receive(self, inbound: Inbound) -> bool | None:
        if self.failures:
            raise self.failures.pop(0)
        return self._note(self.messages, inbound)

    async def notice(self, inbound: Inbound) -> None:
        self._note(self.notices, inbound)

    async def edited(self, inbound: Inbound) -> None:
        self._note(self.edits, inbound)

    async def deleted(self, inbound: Inbound) -> None:
        self._note(self.deletions, inbound)

    async def moved(self, move: MovedChat) -> None:
        self.moves.append(move)

    @property
    def notice_texts(self) -> list[str]:
        return [notice.text for notice in self.notices]

    def _note(self, where: list[Inbound], inbound: Inbound) -> bool | None:
        where.append(inbound)
        self._changed.set()
        return self.answer

    async def got(self, count: int = 1, what: str = "messages") -> list[Inbound]:
        """Wait for ``count`` events of a kind, and return all of them."""
        events: list[Inbound] = getattr(self, what)
        await self.until(lambda: len(events) >= count)
        return events

    async def got_texts(self, count: int) -> list[str]:
        return [inbound.text for inbound in await self.got(count)]

    async def heard(self, text: str) -> Inbound:
        """Wait for a message that contains the text."""
        await self.until(lambda: any(text in inbound.text for inbound in self.messages))
        return next(inbound for inbound in self.messages if text in inbound.text)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition on the received events holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


class ChannelUnderTest:
    def __init__(self, channel: str, manager: ChannelManager, receiver: Receiver, blobs: FileBlobStore) -> None:
        self.channel, self.manager, self.receiver, self.blobs = channel, manager, receiver, blobs

    @property
    def account(self) -> RunningAccount:
        return self.manager.accounts(self.channel)[0]

    async def send(self, part: OutgoingMessage | str, to: str, key: str = "run:0", **route: Any) -> str:
        """Send one message, and return the platform's id of it."""
        message = OutgoingMessage(text=part) if isinstance(part, str) else part
        where = Route(channel=self.channel, to=to, account_id=self.account.account.id, **route)
        return (await self.manager.send(self.channel, where, message, key)).message_id

    async def connected(self) -> None:
        await until(lambda: self.account.status.connected)

    async def stopped(self) -> str:
        """Wait until the account stays off, and return why."""
        await until(lambda: not self.account.status.configured)
        return self.account.status.last_error or ""

    async def ended(self) -> str:
        """Wait until the account is not running, and return why."""
        await until(lambda: not self.account.status.running and bool(self.account.status.last_error))
        return self.account.status.last_error or ""

    async def post(self, path: str, body: bytes, method: str = "POST", **more: Any) -> WebhookAnswer:
        """Call the channel's webhook as the Gateway's port does."""
        route = self.manager.webhook(path)
        assert route is not None, f"no webhook is served at {path}"
        webhook, below = route
        return await webhook(
            WebhookRequest(method=method, path=below, body=body, **{"query": {}, "headers": {}, **more})
        )

    async def failing(self) -> str:
        """Wait until the account reports an error, and return it."""
        await until(lambda: bool(self.account.status.last_error))
        return self.account.status.last_error or ""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def channel_config(channel: str, settings: dict[str, Any], others: dict[str, dict[str, Any]] | None = None) -> Config:
    loaded = parse_config("openclaw.json", json.dumps({"channels": {**(others or {}), channel: settings}}), {})
    assert loaded.valid, loaded.issues
    return loaded.config


@asynccontextmanager
async def running_channel(
    state: Path,
    channel: str,
    settings: dict[str, Any],
    *,
    receiver: Receiver | None = None,
    clock: Clock | None = None,
    environ: dict[str, str] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
) -> AsyncGenerator[ChannelUnderTest]:
    """Run the configured account, and those of ``others``, without waiting for their connections."""
    receiver, blobs = receiver or Receiver(), FileBlobStore(str(state))
    config = channel_config(channel, settings, others)
    manager = ChannelManager(
        kinds=ChannelKinds(environ or {}),
        config=lambda: config,
        clock=clock or QuickClock(),
        state_dir=str(state),
        documents=FileDocuments(state),
        blobs=blobs,
        receive=receiver.receive,
        admits=everybody,
        notice=receiver.notice,
        edited=receiver.edited,
        deleted=receiver.deleted,
        moved=receiver.moved,
        environ=environ or {},
    )
    await manager.start()
    try:
        yield ChannelUnderTest(channel, manager, receiver, blobs)
    finally:
        await manager.stop()
