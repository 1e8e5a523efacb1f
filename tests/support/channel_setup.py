"""One channel with a manager and a receiver, without a Gateway around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw.channels.base import ChannelKinds, WebhookAnswer, WebhookRequest
from openclaw.channels.manager import ChannelManager
from openclaw.clock import SystemClock
from openclaw.config.load import parse_config
from openclaw.inbound.message import Inbound
from openclaw.outbound.reply import OutgoingMessage
from openclaw.storage.files.disk import FileBlobStore, FileDocuments
from tests.support.loopback_channel import everybody


class ShortWaits(SystemClock):
    """Waiting takes no time, but others get their turn."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class ChannelSetup:
    """What a channel handed in, and ways to use it as the Gateway does."""

    def __init__(self, state: Path, channel: str, sections: dict[str, Any]) -> None:
        loaded = parse_config("openclaw.json", json.dumps({"channels": sections}), {})
        assert loaded.valid, loaded.issues
        self.channel = channel
        self.messages: list[Inbound] = []
        self.notices: list[str] = []
        self.edits: list[Inbound] = []
        self.deletions: list[Inbound] = []
        self.failures: list[Exception] = []
        self.blobs = FileBlobStore(str(state))
        self.manager = ChannelManager(
            kinds=ChannelKinds({}),
            config=lambda: loaded.config,
            clock=ShortWaits(),
            state_dir=str(state),
            documents=FileDocuments(state),
            blobs=self.blobs,
            receive=self._receive,
            admits=everybody,
            notice=self._notice,
            edited=self._edited,
            deleted=self._deleted,
        )
        self._changed = asyncio.Event()

    async def _receive(self, inbound: Inbound) -> bool | None:
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(inbound)
        self._changed.set()
        return None

    async def _notice(self, inbound: Inbound) -> None:
        self.notices.append(inbound.text)
        self._changed.set()

    async def _edited(self, inbound: Inbound) -> None:
        self.edits.append(inbound)
        self._changed.set()

    async def _deleted(self, inbound: Inbound) -> None:
        self.deletions.append(inbound)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def connected(self) -> None:
        async with asyncio.timeout(60):
            while not self.manager.ready(self.channel, {}):
                await asyncio.sleep(0.005)

    async def ended(self) -> str:
        """Waits until the account is off, and returns why."""
        async with asyncio.timeout(60):
            while True:
                (account,) = self.manager.accounts(self.channel)
                if not account.status.running and account.status.last_error:
                    return account.status.last_error
                await asyncio.sleep(0.005)

    async def send(self, message: OutgoingMessage | str, to: str, key: str = "run:0", **route: Any) -> str:
        part = OutgoingMessage(text=message) if isinstance(message, str) else message
        where = {"channel": self.channel, "to": to, **route}
        return (await self.manager.send(self.channel, where, part, key)).message_id

    async def post(self, path: str, body: bytes, method: str = "POST", **more: Any) -> WebhookAnswer:
        """Calls the channel's webhook as the Gateway's port does."""
        found = self.manager.webhook(path)
        assert found is not None, f"nobody serves {path}"
        webhook, below = found
        asked = {"query": {}, "headers": {}, **more}
        return await webhook(WebhookRequest(method=method, path=below, body=body, **asked))


@asynccontextmanager
async def running_channel(state: Path, channel: str, section: dict[str, Any]) -> AsyncGenerator[ChannelSetup]:
    setup = ChannelSetup(state, channel, {channel: section})
    await setup.manager.start()
    try:
        yield setup
    finally:
        await setup.manager.stop()
