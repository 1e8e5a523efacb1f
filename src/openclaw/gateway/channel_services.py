"""The channels of a Gateway and the worker that delivers to them. They start and stop together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from openclaw.channels.base import NativeCommand, Receive
from openclaw.channels.kind import ChannelKinds
from openclaw.channels.manager import ChannelManager, Report
from openclaw.config.schema import Config
from openclaw.inbound.message import MovedChat
from openclaw.outbound.deliver import Delivery

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime


class ChannelServices:
    """Owns the channel manager and the delivery worker."""

    def __init__(
        self,
        runtime: Runtime,
        kinds: ChannelKinds,
        *,
        receive: Receive,
        admits: Receive,
        notice: Report | None = None,
        edited: Report | None = None,
        deleted: Report | None = None,
        moved: Callable[[MovedChat], Awaitable[None]] | None = None,
        commands: Callable[[], list[NativeCommand]] = list,
        environ: Mapping[str, str] = MappingProxyType({}),
        taken_names: Callable[[], set[str]] = set,
    ) -> None:
        self._config = runtime.config
        self.clock = runtime.clock
        self.ledger = runtime.ledger
        self.channels = ChannelManager(
            kinds=kinds,
            config=lambda: runtime.config.current,
            clock=runtime.clock,
            state_dir=str(runtime.state_dir),
            blobs=runtime.blobs,
            documents=runtime.documents,
            receive=receive,
            admits=admits,
            notice=notice,
            edited=edited,
            deleted=deleted,
            moved=moved,
            commands=commands,
            environ=environ,
            on_connected=lambda: self.delivery.wake(),
            taken_names=taken_names,
        )
        self.delivery = Delivery(runtime.ledger, self.channels, runtime.clock)
        self._worker: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Starts both. Call it once runs can be accepted: messages may come in before it returns."""
        self._unsubscribe = self._config.subscribe(self._config_changed)
        self._worker = asyncio.create_task(self.delivery.run(), name="outbox")
        await self.channels.start()

    async def stop(self) -> None:
        """Stops both. Call it after the last run has ended. Parts that are on the wire may finish."""
        self._unsubscribe()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.delivery.stop()
        await self.channels.stop()

    async def _config_changed(self, old: Config, new: Config, changed: list[str]) -> None:
        if new.gateway.reload.mode != "restart":
            await self.channels.config_changed(old, new, changed)
