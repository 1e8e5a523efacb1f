"""The channels of a Gateway and the worker that delivers to them: made, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from openclaw.channels.base import ChannelKind, Receive
from openclaw.channels.manager import ChannelManager, RunningAccount
from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.store import ConfigStore
from openclaw.events import Event
from openclaw.inbound.message import Inbound
from openclaw.outbound.deliver import Delivery
from openclaw.outbound.typing import Typing, TypingMode
from openclaw.runs.run_index import Observer, RunRecord
from openclaw.storage.base import BlobStore, Ledger

log = logging.getLogger("openclaw.gateway.channels")


class ChannelServices:
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
        """Once runs can be accepted: messages may come in before this returns."""
        self._unsubscribe = self._config.subscribe(self._config_changed)
        self._worker = asyncio.create_task(self.delivery.run(), name="outbox")
        await self.channels.start()

    async def stop(self) -> None:
        """After the last run has ended: no more parts are started, those on the wire may finish."""
        self._unsubscribe()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.delivery.stop()
        await self.channels.stop()

    async def _config_changed(self, old: Config, new: Config, changed: list[str]) -> None:
        if new.gateway.reload.mode != "restart":
            await self.channels.config_changed(old, new, changed)


def summary_of(accounts: list[RunningAccount]) -> dict[str, Any]:
    """One channel in a few words: well as soon as one of its accounts is."""
    views = [running.status.view() for running in accounts]
    best = max(views, key=lambda view: (view["connected"], view["running"], view["configured"], view["enabled"]))
    flags = {name: best[name] for name in ("enabled", "configured", "running", "connected")}
    errors = {"lastError": best["lastError"]} if best.get("lastError") else {}
    return {**flags, **errors}


def summary_lines(channels: ChannelManager | None) -> list[str]:
    """``Signal: connected``, a line for every channel."""
    return [
        f"{accounts[0].kind.label}: {_in_a_word(summary_of(accounts))}" for accounts in by_channel(channels).values()
    ]


def _in_a_word(summary: dict[str, Any]) -> str:
    if not summary["enabled"]:
        return "disabled"
    if not summary["configured"]:
        return "not configured"
    state = "connected" if summary["connected"] else "connecting" if summary["running"] else "not running"
    return f"{state} ({summary['lastError']})" if not summary["connected"] and summary.get("lastError") else state


def by_channel(channels: ChannelManager | None) -> dict[str, list[RunningAccount]]:
    grouped: dict[str, list[RunningAccount]] = {}
    for running in channels.accounts() if channels else ():
        grouped.setdefault(running.kind.id, []).append(running)
    return grouped


def typing_mode(config: Config, *, direct: bool) -> TypingMode:
    configured = config.session.typing_mode or config.agents.defaults.typing_mode
    return configured or ("instant" if direct else "message")


class ChannelRun:
    """Watches a run whose route is delivered, on its way to whoever shows it."""

    def __init__(self, record: RunRecord, inner: Observer, services: ChannelServices, config: Config) -> None:
        self._record = record
        self._inner = inner
        self._services = services
        self._typing = self._sign(config)

    def _sign(self, config: Config) -> Typing:
        row = self._record.row
        direct = not any(f":{kind}:" in row.session_key for kind in ("group", "channel", "room"))
        interval = config.session.typing_interval_seconds or config.agents.defaults.typing_interval_seconds

        async def show(on: bool) -> None:
            await self._services.channels.typing(str(row.route["channel"]), row.route, on)

        return Typing(
            self._services.clock,
            show,
            mode=typing_mode(config, direct=direct),
            interval_s=interval,
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
