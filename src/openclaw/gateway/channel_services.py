"""The channels of a Gateway, the worker that delivers to them, and their state for status and health answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from openclaw.channels.base import NativeCommand, Receive
from openclaw.channels.kind import ChannelKinds
from openclaw.channels.manager import ChannelManager, Report, RunningAccount
from openclaw.config.schema import Config
from openclaw.inbound.message import MovedChat
from openclaw.outbound.deliver import Delivery
from openclaw.storage.base import Fenced

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime


OUTBOX = "outbox"
"""What the nodes tell each other when there are parts to send. It names no document."""


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
            claims=runtime.claims,
        )
        alone, documents = runtime.claims.alone, runtime.documents
        self.delivery = Delivery(
            runtime.ledger,
            self.channels,
            runtime.clock,
            is_ours=None if alone else self.channels.is_ours,
            tell_others=lambda: self._spawn(documents.tell(OUTBOX)),
        )
        if not alone:
            self.channels.took, self.channels.leave = self._took, self._leave
        self._tasks: set[asyncio.Task[None]] = set()
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

    async def _took(self, running: RunningAccount) -> None:
        """Takes back what the node was sending that had the account before."""
        await self.ledger.outbox_take_back(running.kind.id, lambda route: self._goes_through(running, route))
        self.delivery.wake()

    async def _leave(self, running: RunningAccount) -> None:
        def serves(channel: str, account_id: str) -> bool:
            return channel == running.kind.id and self._goes_through(running, {"accountId": account_id})

        await self.delivery.leave(serves)

    def _goes_through(self, running: RunningAccount, route: dict[str, Any]) -> bool:
        return self.channels.find(running.kind.id, route.get("accountId")) is running

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(OSError, Fenced):  # The others look for themselves after a while.
                await work

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _config_changed(self, old: Config, new: Config, changed: list[str]) -> None:
        if new.gateway.reload.mode != "restart":
            await self.channels.config_changed(old, new, changed)


def by_channel(channels: ChannelManager) -> dict[str, list[RunningAccount]]:
    """Groups the accounts by the id of their channel."""
    grouped: dict[str, list[RunningAccount]] = {}
    for running in channels.accounts():
        grouped.setdefault(running.kind.id, []).append(running)
    return grouped


def summary_of(views: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The flags of one channel, from the views of its accounts. It is as well as the best of them."""
    best = max(views, key=lambda view: (view["connected"], view["running"], view["configured"], view["enabled"]))
    flags = {name: best[name] for name in ("enabled", "configured", "running", "connected")}
    return {**flags, "lastError": best["lastError"]} if best.get("lastError") else flags


def summary_lines(channels: ChannelManager) -> list[str]:
    """One line for each channel, such as ``Signal: connected``."""
    lines: list[str] = []
    for accounts in by_channel(channels).values():
        summary = summary_of([running.status.view() for running in accounts])
        if not summary["enabled"]:
            state = "disabled"
        elif not summary["configured"]:
            state = "not configured"
        elif summary["connected"]:
            state = "connected"
        else:
            state = "connecting" if summary["running"] else "not running"
            state += f" ({summary['lastError']})" if summary.get("lastError") else ""
        lines.append(f"{accounts[0].kind.label}: {state}")
    return lines
