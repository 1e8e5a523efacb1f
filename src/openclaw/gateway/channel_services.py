"""The channels of a Gateway and the worker that delivers to them. They start and stop together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from openclaw.channels.base import ChannelKind, Receive
from openclaw.channels.manager import ChannelManager
from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.events import Event
from openclaw.inbound.message import Inbound
from openclaw.outbound.deliver import Delivery
from openclaw.outbound.typing import Typing
from openclaw.runs.queue import Observer, RunRecord
from openclaw.storage.base import BlobStore, Ledger


class ChannelServices:
    """Owns the channel manager and the delivery worker."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, ChannelKind],
        config: ConfigStore,
        clock: Clock,
        state_dir: str,
        ledger: Ledger,
        blobs: BlobStore,
        receive: Receive,
        notice: Callable[[Inbound], Awaitable[None]] | None = None,
    ) -> None:
        self._config = config
        self.clock = clock
        self.channels = ChannelManager(
            kinds=kinds,
            config=lambda: config.current,
            clock=clock,
            state_dir=state_dir,
            blobs=blobs,
            receive=receive,
            notice=notice,
            on_connected=lambda: self.delivery.wake(),
        )
        self.delivery = Delivery(ledger, self.channels, clock)
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


class ChannelRun:
    """Observes a run whose reply goes to a channel: shows there that the agent is typing, and wakes the delivery.

    It passes everything on to ``inner``, the observer that shows the run to clients.
    """

    def __init__(self, record: RunRecord, inner: Observer, services: ChannelServices, config: Config) -> None:
        self._record = record
        self._inner = inner
        self._services = services
        row, session, defaults = record.row, config.session, config.agents.defaults
        direct = not any(f":{kind}:" in row.session_key for kind in ("group", "channel", "room"))

        async def show(on: bool) -> None:
            await services.channels.typing(str(row.route["channel"]), row.route, on)

        self._typing = Typing(
            services.clock,
            show,
            mode=session.typing_mode or defaults.typing_mode or ("instant" if direct else "message"),
            interval_s=session.typing_interval_seconds or defaults.typing_interval_seconds,
        )

    def started(self) -> None:
        self._inner.started()
        self._typing.started()

    def event(self, event: Event) -> None:
        self._inner.event(event)
        self._typing.event(event)

    def aborted(self, reason: str) -> None:
        self._inner.aborted(reason)
        self._typing.ended(reply_follows=False)

    def absorbed(self, by: str) -> None:
        self._inner.absorbed(by)
        self._typing.ended(reply_follows=True)

    def finished(self) -> None:
        self._inner.finished()
        result = self._record.result
        said = result is not None and bool(result.texts or result.notice)
        self._typing.ended(reply_follows=said or self._record.state == "error")
        self._services.delivery.wake()
