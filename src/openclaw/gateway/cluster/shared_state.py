"""What several nodes share and one of them does: scheduled work, and what a node does when another changes something.

With files there is one node. It does the scheduled work, and nobody else changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from openclaw.channels.manager import PATHS
from openclaw.cluster.claims import SCHEDULER
from openclaw.gateway.channel_services import OUTBOX
from openclaw.gateway.methods.exec_approvals import tell_lost
from openclaw.scheduler import heartbeat, hooks
from openclaw.sessions import system_events
from openclaw.storage.base import Fenced
from openclaw.storage.disk_errors import until_written
from openclaw.tools.exec.approvals import JOURNAL_FILE, JOURNALS

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

log = logging.getLogger("openclaw.cluster")
START_S = 5.0
"""So long the start of the Gateway waits for scheduled work to begin."""


class SchedulerService:
    """Starts heartbeats, scheduled jobs and webhooks when this node owns them, and stops them when it does not."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._starting: asyncio.Task[None] | None = None
        self.running = False

    async def start(self) -> None:
        """Goes on with what the last Gateway left, then waits for what is due."""
        claims = self._gateway.runtime.claims
        if claims.alone:
            await self._begin()
            return
        claims.on_gained(SCHEDULER, self._gained)
        claims.on_lost(SCHEDULER, self._lost)
        with contextlib.suppress(OSError):  # It is wanted from now on, and tried for again and again.
            await claims.want(SCHEDULER)
        if self._starting is not None:
            # A client that connects at once finds it running.
            await asyncio.wait([self._starting], timeout=START_S)

    async def stop(self) -> None:
        claims = self._gateway.runtime.claims
        if not claims.alone:
            with contextlib.suppress(OSError, Fenced):
                await claims.unwant(SCHEDULER)
        await self._end()

    async def _gained(self, _name: str) -> None:
        # Others wait for this call, so the start goes on beside it.
        self._starting = asyncio.create_task(self._begin_at_last(), name="scheduler")

    async def _lost(self, _name: str) -> None:
        await self._end()

    async def _begin_at_last(self) -> None:
        try:
            await until_written(self._begin, self._gateway.runtime.clock.sleep)
            log.info("this node runs scheduled jobs, heartbeats and webhooks from now on")
        except Exception:
            log.exception("scheduled jobs do not run")

    async def _begin(self) -> None:
        gateway = self._gateway
        try:
            await gateway.runtime.notes.refresh()
            for part in (gateway.heartbeats, gateway.hook_runs, gateway.cron):
                await part.start()
        except BaseException:
            await self._stop_parts()
            raise
        self.running = True
        # A job that goes on wakes its agent itself. A second heartbeat would have nothing to tell.
        gateway.heartbeats.wake_for_left(gateway.cron.resumed)
        await self.take_left_questions()

    async def _end(self) -> None:
        self.running = False
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._stop_parts()

    async def _stop_parts(self) -> None:
        for part in (self._gateway.cron, self._gateway.hook_runs, self._gateway.heartbeats):
            await part.stop()

    async def take_left_questions(self) -> None:
        """Closes the questions of nodes that are gone, and tells the sessions so."""
        runtime, cluster = self._gateway.runtime, self._gateway.cluster
        if (journal := runtime.approvals.journal) is None:
            return
        living = {runtime.claims.node, *(cluster.membership.peers if cluster is not None else ())}
        names = await runtime.documents.list(JOURNALS)
        left = [name.removeprefix(JOURNALS).removesuffix(".json") for name in names]
        if runtime.claims.node and await runtime.documents.version(JOURNAL_FILE) is not None:
            left.append("")  # It was copied from files.
        for node in left:
            if node not in living:
                await journal.inherit(node)
        await tell_lost(self._gateway)


class SharedState:
    """Takes in what other nodes change. Names of documents that came meanwhile are taken in together."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._heard: set[str] = set()
        self._taking: asyncio.Task[None] | None = None
        self._unwatch = lambda: None
        self._nodes: set[str] = set()

    def start(self) -> None:
        gateway = self._gateway
        if gateway.runtime.documents.shared:
            self._unwatch = gateway.runtime.documents.watch(self._hear)
        if gateway.cluster is not None:
            self._nodes = set(gateway.cluster.membership.peers)
            gateway.cluster.membership.hearers.append(self._nodes_changed)

    async def stop(self) -> None:
        self._unwatch()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)

    def _hear(self, name: str) -> None:
        self._heard.add(name)
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take_in(), name="changes of other nodes")

    async def _take_in(self) -> None:
        while self._heard:
            names, self._heard = self._heard, set()
            try:
                await until_written(lambda names=names: self._take(names), self._gateway.runtime.clock.sleep)
            except Exception:
                log.exception("what another node changed was not taken in: %s", ", ".join(sorted(names)) or "anything")

    async def _take(self, names: set[str]) -> None:
        gateway, everything = self._gateway, "" in names
        if everything or OUTBOX in names:
            gateway.channel_services.delivery.wake()
        if everything or any(name.startswith("devices/") for name in names):
            await gateway.devices.load()
            self._end_unpaired()
        if everything or PATHS in names:
            await gateway.channel_services.channels.load_paths()
        if everything or any(name.startswith("nodes/") for name in names):
            await gateway.nodes.pairing.load()
        if everything or system_events.FILE_NAME in names:
            await gateway.runtime.notes.refresh()
            if gateway.scheduler.running:
                gateway.heartbeats.wake_for_new()
        if everything or heartbeat.FILE_NAME in names:
            await gateway.heartbeats.load()
        if gateway.scheduler.running:
            gateway.cron.look_again()
            if everything or hooks.FILE_NAME in names:
                await gateway.hook_runs.follow_new()

    def _end_unpaired(self) -> None:
        """Closes the connections of devices that another node has removed, or whose token it has revoked."""
        gateway = self._gateway
        clients = list(gateway.broadcaster.clients.values())
        for device_id, role in {(client.device_id, client.role) for client in clients if client.by_device_token}:
            if device_id is not None and not gateway.devices.has_token(device_id, role):
                gateway.end_device(device_id, role, "device removed or its token revoked")

    async def _nodes_changed(self) -> None:
        nodes = set(self._gateway.cluster.membership.peers) if self._gateway.cluster is not None else set()
        gone, self._nodes = self._nodes - nodes, nodes
        if gone and self._gateway.scheduler.running:
            await self._gateway.scheduler.take_left_questions()
