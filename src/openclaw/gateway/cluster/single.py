"""The cluster as the Gateway uses it, and its trivial implementation: one node that owns everything."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from openclaw.channels.manager import NoRemoteAccounts, RemoteAccounts
from openclaw.gateway.server.events import EventRelay, NoRelay
from openclaw.inbound.pipeline import NoOtherNodes, OtherNodes
from openclaw.runs.runs import NoRunsElsewhere, RunsElsewhere

if TYPE_CHECKING:
    from aiohttp import web

    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.registry import Answer, MethodCall
    from openclaw.gateway.server.server import Sockets
    from openclaw.gateway.session_maintenance import Maintenance
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.runs.runs import Runs
    from openclaw.scheduler.cron import Cron
    from openclaw.scheduler.heartbeat import Heartbeats
    from openclaw.scheduler.hooks import HookRuns


class FollowingRelay(EventRelay, Protocol):
    """An event relay that can also be asked for the text of a run of another node."""

    def follow(self, run_id: str, on_words: Callable[[str, bool], None]) -> None:
        """Call ``on_words`` with the text of a run of another node, and whether a new message begins with it."""
        ...

    def unfollow(self, run_id: str, on_words: Callable[[str, bool], None]) -> None: ...


class NoFollowingRelay(NoRelay):
    def follow(self, run_id: str, on_words: Callable[[str, bool], None]) -> None:
        pass

    def unfollow(self, run_id: str, on_words: Callable[[str, bool], None]) -> None:
        pass


class SessionOwners(OtherNodes, RunsElsewhere, Protocol):
    """Requests to the node that owns a session."""


class NoSessionOwners(NoOtherNodes, NoRunsElsewhere):
    """The owners of sessions where there is one node."""


class Cluster(Protocol):
    """The Gateways that share one storage, as each of them sees it."""

    @property
    def messages(self) -> SessionOwners: ...

    @property
    def channels(self) -> RemoteAccounts: ...

    @property
    def relay(self) -> FollowingRelay: ...

    @property
    def peers(self) -> Collection[str]:
        """The ids of the other nodes that live."""
        ...

    def serve(self, gateway: Gateway) -> None:
        """Answer the requests of other nodes with the parts of this Gateway. Call it once."""
        ...

    def scheduler(self, parts: SchedulerParts) -> SchedulerService:
        """Make the service that runs the scheduled work while this node owns it."""
        ...

    async def find_unfinished(self, runs: Runs, *, after_orderly_stop: bool) -> int:
        """Find the messages that an earlier process of this node left, and return their number."""
        ...

    async def start(self, url: str, fingerprint: str = "") -> None:
        """Join the other nodes, which reach this one at ``url``."""
        ...

    async def recover(self, pipeline: Pipeline) -> None:
        """Resume the messages that an earlier process of this node held."""
        ...

    def follow_changes(self) -> None:
        """Load what other nodes change, from now on."""
        ...

    async def stop_following(self) -> None: ...

    async def maintain(self, maintenance: Maintenance) -> None:
        """Keep the sessions within ``session.maintenance``."""
        ...

    async def drain(self, gateway: Gateway) -> None:
        """Release everything that this node owns, before it stops."""
        ...

    async def close_accepted(self, within_s: float) -> None:
        """Close the links that other nodes opened."""
        ...

    async def close(self) -> None: ...

    async def status(self) -> dict[str, Any]:
        """Return the nodes as people and programs see them."""
        ...

    async def answer_elsewhere(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer | None:
        """Answer a call that belongs to another node. Returns None if this node answers it."""
        ...

    async def open_link(self, request: web.BaseRequest, sockets: Sockets) -> web.StreamResponse | None:
        """Serve the connection of another node. Returns None for any other request."""
        ...

    async def redeem_ticket(self, ticket: str) -> str:
        """Return the secret behind a ticket of ``openclaw dashboard`` that another node issued, or an empty text."""
        ...


class SingleNode:
    """The only Gateway of its storage."""

    def __init__(self) -> None:
        self.messages = NoSessionOwners()
        self.channels = NoRemoteAccounts()
        self.relay = NoFollowingRelay()
        self.peers: Collection[str] = ()

    def serve(self, gateway: Gateway) -> None:
        pass

    def scheduler(self, parts: SchedulerParts) -> SchedulerService:
        return SchedulerService(parts)

    async def find_unfinished(self, runs: Runs, *, after_orderly_stop: bool) -> int:
        return await runs.find_unfinished(after_orderly_stop=after_orderly_stop)

    async def start(self, url: str, fingerprint: str = "") -> None:
        pass

    async def recover(self, pipeline: Pipeline) -> None:
        await pipeline.recover()

    def follow_changes(self) -> None:
        pass

    async def stop_following(self) -> None:
        pass

    async def maintain(self, maintenance: Maintenance) -> None:
        await maintenance.run_once()

    async def drain(self, gateway: Gateway) -> None:
        pass

    async def close_accepted(self, within_s: float) -> None:
        pass

    async def close(self) -> None:
        pass

    async def status(self) -> dict[str, Any]:
        return {"clustered": False, "nodes": []}

    async def answer_elsewhere(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer | None:
        return None

    async def open_link(self, request: web.BaseRequest, sockets: Sockets) -> web.StreamResponse | None:
        return None

    async def redeem_ticket(self, ticket: str) -> str:
        return ""


class SchedulerParts(msgspec.Struct, kw_only=True, frozen=True):
    """What runs without a message, and the parts that its start needs."""

    runtime: Runtime
    pipeline: Pipeline
    heartbeats: Heartbeats
    hook_runs: HookRuns
    cron: Cron
    cluster: Cluster


class SchedulerService:
    """Starts and stops heartbeats, scheduled jobs and webhooks."""

    def __init__(self, parts: SchedulerParts) -> None:
        self._parts = parts
        self.running = False

    async def start(self) -> None:
        """Resume what the last Gateway left, then wait for what is due."""
        await self._begin()

    async def stop(self) -> None:
        await self._end()

    async def _begin(self) -> None:
        parts = self._parts
        try:
            await parts.runtime.notes.refresh()
            for part in (parts.heartbeats, parts.hook_runs, parts.cron):
                await part.start()
        except BaseException:
            await self._stop_parts()
            raise
        self.running = True
        # A resumed job wakes its agent itself. A second heartbeat would have nothing to report.
        parts.heartbeats.wake_for_left(parts.cron.resumed)
        await self.close_left_questions()

    async def _end(self) -> None:
        self.running = False
        await self._stop_parts()

    async def _stop_parts(self) -> None:
        for part in (self._parts.cron, self._parts.hook_runs, self._parts.heartbeats):
            await part.stop()

    async def close_left_questions(self) -> None:
        """Close the questions that nodes left which are gone."""
        runtime = self._parts.runtime
        living = {runtime.stores.claims.node, *self._parts.cluster.peers}
        await runtime.tools.questions.withdraw_left(living)
