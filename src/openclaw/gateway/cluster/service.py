"""This Gateway as a node of a cluster that shares a database. ``SingleNode`` in ``single.py`` is the other case.

``ClusterService`` finds the node that answers a call, ``NodeServer`` answers the other nodes, and ``SharedState`` loads
what they change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from openclaw.cluster.claims import CHANNEL, SCHEDULER, SESSION, session_name
from openclaw.cluster.links import LINK_PATH, PATIENCE_S, RETRY_S, Link, LinkLost, Links, PartSender, RemoteFailure
from openclaw.gateway.channels import OUTBOX
from openclaw.gateway.cluster.remote import (
    MOST_HOPS,
    PATHS,
    AccountServer,
    ClusterRelay,
    MessageServer,
    RelayedEvents,
    RemoteChannels,
    RemoteMessages,
    answer_remote,
    forward_call,
    place_of,
    session_of,
)
from openclaw.gateway.cluster.single import SchedulerParts, SchedulerService
from openclaw.gateway.server.frames import decode_any, encode, encode_response
from openclaw.gateway.server.registry import Answer, MethodCall, MethodError
from openclaw.questions.desk import UnknownQuestion
from openclaw.scheduler import heartbeat, hooks
from openclaw.sessions import system_events
from openclaw.storage.disk_errors import until_written
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import END_STATES
from openclaw.tools.nodes import UnknownNode

if TYPE_CHECKING:
    from openclaw.clock import Clock
    from openclaw.cluster.claims import Claims
    from openclaw.cluster.membership import NodeLoad, NodeRow
    from openclaw.cluster.postgres_claims import PostgresClaims
    from openclaw.config.store import ConfigStore
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Sockets
    from openclaw.gateway.session_maintenance import Maintenance
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.runs.runs import Runs
    from openclaw.storage.documents import DocumentStore
    from openclaw.storage.postgres.ledger import PostgresLedger
    from openclaw.storage.postgres.session_store import PostgresSessionStore

TAKEN_AT_ONCE = 20
"""How many sessions without an owner a node claims together. The others take theirs meanwhile."""
MOST_TAKEN = 100
RELEASED_AT_ONCE = 500
DRAIN_PAUSE_S = 0.05
MOST_COUNTED = 1_000
ROW = "row"
"""The event that tells the owner of a session that another node has changed its row."""
JOBS_S = 30.0
"""How often it is looked for jobs that nobody carries on."""
_ONCE = """
    chat.inject sessions.import sessions.branch sessions.reset sessions.resume sessions.compaction system-event cron.add
    cron.run wake node.invoke
"""
NOT_REPEATED = frozenset(_ONCE.split())
"""Methods that would do a second time what they did before their answer was lost. Others have a key, or set a state."""

log = logging.getLogger("openclaw.cluster")


class ClusterService:
    """The cluster as this node sees it: which node answers, and requests to the others.

    ``serve`` lets this node answer the requests of the others.
    """

    def __init__(
        self,
        claims: PostgresClaims,
        sessions: PostgresSessionStore,
        ledger: PostgresLedger,
        documents: DocumentStore,
        config: ConfigStore,
        clock: Clock,
    ) -> None:
        self._sessions, self._ledger = sessions, ledger
        self._storage = sessions.path("")
        self._config = config
        self._clock = clock
        self.claims = claims
        self.membership = claims.membership
        self.links = Links(self.membership)
        self.relay = ClusterRelay(self.links)
        self.messages = RemoteMessages(self.links, claims, config, self.relay)
        self.channels = RemoteChannels(self.links, claims, ledger, documents, clock)

        self._changes: list[SharedState] = []

    @property
    def peers(self) -> Collection[str]:
        return self.membership.peers

    def serve(self, gateway: Gateway) -> None:
        changes = SharedState(gateway)
        NodeServer(gateway, self, self._sessions, self._ledger, changes).attach()
        self._changes.append(changes)

    def follow_changes(self) -> None:
        for changes in self._changes:
            changes.start()

    async def stop_following(self) -> None:
        for changes in self._changes:
            await changes.stop()

    def scheduler(self, parts: SchedulerParts) -> SchedulerService:
        return ClaimedScheduler(parts, self.claims)

    async def find_unfinished(self, runs: Runs, *, after_orderly_stop: bool) -> int:
        """Return 0, because a session's messages are resumed once this node owns the session."""
        return 0

    async def start(self, url: str, fingerprint: str = "") -> None:
        """Advertise this node, claim the sessions without an owner, and watch the other nodes."""
        configured = self._config.current.cluster.advertise_url
        await self.membership.advertise(configured or url, fingerprint)
        await self.links.follow()
        await self.claim_unowned()
        self.membership.start()

    async def recover(self, pipeline: Pipeline) -> None:
        """Do nothing, because the messages that an account held are recovered once this node owns the account."""

    async def maintain(self, maintenance: Maintenance) -> None:
        """Do nothing, because several Gateways on one database keep all sessions."""

    async def drain(self, gateway: Gateway) -> None:
        """Release everything that this node owns before it leaves.

        Waits for runs that end soon; other nodes resume the rest. Does nothing without another node.
        """
        try:
            await self._drain(gateway)
        except (OSError, Fenced) as error:
            log.warning("this node leaves without handing over what it owns: %s", error)

    async def _drain(self, gateway: Gateway) -> None:
        await self.membership.drain()
        # The watch may not have seen yet that another node came.
        others = [node for node in await self.membership.all_nodes() if node.id != self.claims.node]
        if not any(node.state == "alive" for node in others) or self.membership.fenced:
            return
        gateway.ready = False
        log.info("leaving the cluster: %d runs under way", gateway.runs.busy())
        await self.claims.unwant_all()
        until = time.monotonic() + self._config.current.cluster.drain_seconds
        while time.monotonic() < until and not self.membership.fenced:
            names = self.claims.owned(SESSION)
            await self.claims.release_all([name for name in names if not _in_use(gateway, name)])
            if not self.claims.owned(SESSION):
                break
            await asyncio.sleep(DRAIN_PAUSE_S)

    async def close(self) -> None:
        await self.links.close()

    async def status(self) -> dict[str, Any]:
        """The nodes of the cluster as people and programs see them.

        While the database cannot be asked, they are what this node saw last, and ``problem`` says why.
        """
        problem = ""
        try:
            nodes, holds = await self.membership.all_nodes(), await self.claims.held_by_all()
            unowned = len(await self._ledger.unowned(MOST_COUNTED))
        except OSError as error:
            problem, unowned = error.strerror or str(error), 0
            own = self.membership.own
            nodes = [*([own] if own is not None else []), *self.membership.peers.values()]
            holds = {name: self.claims.node for name in self.claims.owned() if not name.startswith(SESSION)}
        links = {link.node: link for link in self.links.all()}
        return {
            "clustered": True,
            "node": self.claims.node,
            "storage": self._storage,
            "ts": self._clock.now_ms(),
            "nodes": [_node_view(node, links.get(node.id)) for node in nodes],
            "holds": holds,
            "unowned": unowned,
            **({"problem": problem} if problem else {}),
        }

    # Which node answers

    async def answer_elsewhere(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer | None:
        place = place_of(call.method)
        if place == "here" or (place != "session" and call.hops):
            return None
        if place == "all":
            return await self._answer_of_all(call, raw)
        until, again = time.monotonic() + PATIENCE_S, False
        while True:
            node = await self._node_for(call, again)
            again = True
            if node is None or node == self.claims.node:
                return None
            if call.hops >= MOST_HOPS:
                raise MethodError("the session changes its node; try again", code="UNAVAILABLE", retryable=True)
            try:
                return await forward_call(self.links, node, call, raw)
            except LinkLost as lost:
                if call.method in NOT_REPEATED and lost.may_be_done:
                    raise MethodError(f"{lost}; it may or may not have been done", code="UNAVAILABLE") from None
                if time.monotonic() > until:
                    raise MethodError(f"{lost}; try again", code="UNAVAILABLE", retryable=True) from None
            await asyncio.sleep(RETRY_S)

    async def _node_for(self, call: MethodCall, again: bool) -> str | None:
        match place_of(call.method):
            case "session":
                session = await session_of(call)
                if session is None:
                    return None
                name = session_name(session.agent_id, session.key)
                if call.hops or again:
                    self.claims.forget_owner(name)  # Two nodes must not send each other what neither of them owns.
                return (await self.claims.claim(name)).node
            case "owner":
                session = await session_of(call)
                return None if session is None else await self.claims.owner(session_name(session.agent_id, session.key))
            case "scheduler":
                return await self.claims.owner(SCHEDULER)
            case _:
                return await self._holder(call)

    async def _holder(self, call: MethodCall) -> str | None:
        """Return the node that has the object of the call, or None if it is this one or nobody has it."""
        target = _held_id(call.params)
        if target is None or _holds(call.gateway, *target):
            return None
        question = encode(target)
        for node in list(self.membership.peers):
            try:
                if await self.links.ask(node, "holds", question) == b"1":
                    return node
            except (LinkLost, RemoteFailure):
                continue
        return None

    async def _answer_of_all(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer:
        """Join the lists in the answers of every node."""
        joined: dict[str, Any] = msgspec.to_builtins(
            await call.gateway.methods.find(call.client, call.method).answer(call)
        )
        for node in list(self.membership.peers):
            try:
                answer = await forward_call(self.links, node, _quiet(call), raw)
            except LinkLost:
                continue
            payload = decode_any(answer.frame).get("payload") if answer.ok else {}
            for name, value in (payload or {}).items():
                if isinstance(value, list) and isinstance(joined.get(name), list):
                    joined[name] += value
        return Answer(encode_response(call.id, joined), True)

    # Links

    async def open_link(self, request: web.BaseRequest, sockets: Sockets) -> web.StreamResponse | None:
        if request.path != LINK_PATH:
            return None
        return await self.links.accept(request, lambda: sockets.recognise(request.protocol))

    async def close_accepted(self, within_s: float) -> None:
        await self.links.close_accepted(within_s)

    async def redeem_ticket(self, ticket: str) -> str:
        for link in self.links.all():
            with contextlib.suppress(LinkLost, RemoteFailure):
                if secret := await link.ask("ticket", ticket.encode()):
                    return secret.decode()
        return ""

    async def claim_unowned(self) -> None:
        """Claim the sessions with unfinished messages that nobody owns. ``NodeServer`` resumes their messages."""
        for _ in range(MOST_TAKEN):
            names = [session_name(*session) for session in await self._ledger.unowned(TAKEN_AT_ONCE)]
            if not names or self.membership.state != "alive":
                return
            await self.claims.claim_free(names)


class NodeServer:
    """Answers the requests and receives the events of the other nodes, and follows the sessions that change owner."""

    def __init__(
        self,
        gateway: Gateway,
        cluster: ClusterService,
        sessions: PostgresSessionStore,
        ledger: PostgresLedger,
        changes: SharedState,
    ) -> None:
        self._gateway = gateway
        self._cluster = cluster
        self._sessions = sessions
        self._ledger = ledger
        self._claims = cluster.claims
        self._membership = cluster.membership
        self._links = cluster.links
        self._relay = cluster.relay
        self._events = RelayedEvents(cluster.relay, gateway.broadcaster, gateway.runs, gateway.runtime.clock)
        self._changes = changes
        self._resumed_at, self._resumed_with = -JOBS_S, set[str]()
        self._released_at = 0.0

    def attach(self) -> None:
        """Subscribe to the links, the membership and the claims."""
        gateway, service = self._gateway, self._links.service
        service.handle(MessageServer(gateway.runtime, gateway.runs, gateway.pipeline, gateway.spawn).handlers)
        service.handle(AccountServer(gateway.channel_services.channels).handlers)
        service.handle(
            {
                "call": lambda data, parts: answer_remote(gateway, self._links, data, parts),
                "holds": self._answer_holds,
                "read": self._answer_read,
                "release": self._answer_release,
                "ticket": self._answer_ticket,
            }
        )
        service.subscribe(self._receive)
        self._membership.load = self._load
        self._membership.on_fenced = self._fenced
        self._membership.subscribers += [
            self._links.follow,
            self._claims.try_wanted,
            self._claims.regain,
            self._cluster.claim_unowned,
            self.release_idle,
            self._settle_lost,
            self._resume_jobs,
            self._changes.peers_changed,
        ]
        self._claims.on_gained(SESSION, self._gained)
        self._claims.on_gained(CHANNEL, self._gained_account)
        self._claims.ask_to_release = self._ask_to_release
        self._claims.on_refused = self._refused
        self._sessions.on_foreign_write = self._announce_row

    # Requests and events

    def _receive(self, node: str, kind: str, data: bytes) -> None:
        if kind == ROW:
            self._sessions.forget_row(*decode_any(data))
        else:
            self._events.receive(node, kind, data)

    def _announce_row(self, agent_id: str, key: str) -> None:
        """Let the owner of a session read its row again."""
        self._links.broadcast(ROW, encode([agent_id, key]))

    async def _answer_holds(self, data: bytes, _parts: PartSender) -> bytes:
        return b"1" if _holds(self._gateway, *decode_any(data)) else b"0"

    async def _answer_read(self, data: bytes, _parts: PartSender) -> bytes:
        client = self._gateway.broadcaster.clients.get(data.decode())
        if client is not None:
            await client.sink.until_read()
        return b""

    async def _answer_ticket(self, data: bytes, _parts: PartSender) -> bytes:
        return (self._gateway.sign_in_tickets.redeem(data.decode()) or "").encode()

    async def _answer_release(self, data: bytes, _parts: PartSender) -> bytes:
        name = data.decode()
        if not _in_use(self._gateway, name):
            await self._claims.release(name)
        return b""

    async def _ask_to_release(self, node: str, name: str) -> None:
        try:
            await self._links.ask(node, "release", name.encode())
        except (LinkLost, RemoteFailure) as error:
            log.debug("node %s cannot be asked to release %s: %s", node, name, error)

    # Sessions that change their owner

    async def release_idle(self) -> None:
        """Release the sessions that nobody has used for a while, so that any node may answer their next message."""
        seconds, now = self._gateway.runtime.config.current.cluster.idle_seconds, time.monotonic()
        if now - self._released_at < seconds / 10:
            return
        self._released_at = now
        names = self._claims.idle(SESSION, seconds, RELEASED_AT_ONCE)
        await self._claims.release_all([name for name in names if not _in_use(self._gateway, name)])

    async def _gained(self, name: str) -> None:
        """Resume the messages that the session's last owner left, before anything new happens in it."""
        agent_id, _, key = name.removeprefix(SESSION).partition(":")
        runtime, runs = self._gateway.runtime, self._gateway.runs
        # The session is in memory from here on, so that messages which come together stay in their order.
        _, unfinished = await asyncio.gather(
            runtime.stores.sessions.get(agent_id, key), runtime.stores.ledger.unfinished((agent_id, key))
        )
        if unfinished:
            log.info("resuming the unfinished messages of %s", key)
            await self._gateway.notices.end_interrupted((agent_id, key))
            await runs.find_unfinished(session=(agent_id, key))
            runs.start_unfinished(key)

    def _refused(self, name: str) -> None:
        """Forget the runs of a session that another node owns by now. Nobody is notified."""
        if name.startswith(SESSION):
            self._gateway.runs.drop_session(_key_of(name))

    async def _gained_account(self, name: str) -> None:
        """Forward the messages that the account's last owner held."""
        channel, _, account = name.removeprefix(CHANNEL).partition(":")
        self._gateway.spawn(self._gateway.pipeline.recover((channel, account)))

    async def _resume_jobs(self) -> None:
        """Resume the jobs of nodes that are gone."""
        peers, now = set(self._membership.peers), time.monotonic()
        if not self._gateway.ready:
            return  # A node that goes meanwhile is noticed later.
        if self._resumed_with - peers or now - self._resumed_at > JOBS_S:
            await self._sessions.load_agents()
            await self._gateway.team.jobs.resume()
            self._resumed_at = now
        self._resumed_with = peers

    async def _settle_lost(self) -> None:
        """Publish the ends of runs whose nodes died before they could publish them."""
        lost = [run_id for run_id, node in self._relay.active.items() if node not in self._membership.peers]
        for run_id in lost:
            row = await self._ledger.by_run(run_id)
            if row is None or row.state in END_STATES:
                self._relay.active.pop(run_id, None)
                if row is not None:
                    self._events.publish_end(row)
                self._events.wake(run_id)
            elif self._claims.owns(session_name(row.agent_id, row.session_key)):
                self._relay.active.pop(run_id, None)  # Its new owner publishes it.

    # This node

    def _load(self) -> NodeLoad:
        from openclaw.cluster.membership import NodeLoad

        runs = self._gateway.runs
        return NodeLoad(
            sessions=self._claims.session_count,
            runs=runs.busy(),
            queued=runs.queued(),
            clients=len(self._gateway.broadcaster.clients),
            relay_lag_ms=round(max((link.lag_ms for link in self._links.all()), default=0.0), 2),
        )

    def _fenced(self) -> None:
        """Drop every run, because another node resumes them, and restart."""
        self._gateway.runs.drop()
        self._gateway.restart.requested.set()


def _in_use(gateway: Gateway, name: str) -> bool:
    """Return whether anything happens here in the session of this name, including commands that take long."""
    key = _key_of(name)
    return gateway.runs.in_use(key) or gateway.notices.in_use(key)


def _holds(gateway: Gateway, field: str, value: str) -> bool:
    """Return whether this node has the approval, the node or the channel of this id."""
    match field:
        case "id":
            try:
                return gateway.runtime.tools.questions.find_open(value) is not None
            except UnknownQuestion:
                return False
        case "node_id":
            try:
                return gateway.nodes.choose(value).connected  # The method takes a name as well as an id.
            except UnknownNode:
                return False
        case _:
            return any(True for _ in gateway.channel_services.channels.accounts(value))


def _key_of(name: str) -> str:
    return name.removeprefix(SESSION).partition(":")[2]


def _node_view(node: NodeRow, link: Link | None) -> dict[str, Any]:
    load = msgspec.to_builtins(node.load)
    return {
        "id": node.id,
        "url": node.url,
        "host": node.host,
        "pid": node.pid,
        "version": node.version,
        "state": node.state,
        "startedAt": node.started_at,
        **({"endedAt": node.ended_at} if node.ended_at is not None else {}),
        "leaseMs": max(0, round(node.lease_left * 1000)),
        **load,
        "connected": link is not None,
        "waitingBytes": link.waiting_bytes if link else 0,
        "droppedEvents": link.dropped if link else 0,
    }


def _held_id(params: Any) -> tuple[str, str] | None:
    for field in ("id", "node_id", "channel"):
        if isinstance(value := getattr(params, field, None), str):
            return field, value
    return None


def _quiet(call: MethodCall) -> MethodCall:
    """The same call for somebody who takes the answer and sends nothing."""
    from openclaw.gateway.http.rpc import NdjsonSink
    from openclaw.gateway.server.events import Client

    asker = call.client
    silent = Client(
        NdjsonSink(),
        conn_id=f"{asker.conn_id}-quiet",
        role=asker.role,
        scopes=asker.scopes,
        caps=asker.caps,
        client_info=asker.client_info,
        is_local=asker.is_local,
        ip=asker.ip,
    )
    return MethodCall(call.gateway, silent, call.id, call.method, call.params, call.hops)


START_S = 5.0
"""The start of the Gateway waits this long for scheduled work to begin."""


class ClaimedScheduler(SchedulerService):
    """Runs while this node owns the scheduled work of its cluster."""

    def __init__(self, parts: SchedulerParts, claims: Claims) -> None:
        super().__init__(parts)
        self._claims = claims
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._claims.on_gained(SCHEDULER, self._gained)
        self._claims.on_lost(SCHEDULER, self._lost)
        with contextlib.suppress(OSError):  # The claims retry from now on.
            await self._claims.want(SCHEDULER)
        if self._starting is not None:
            # A client that connects at once finds it running.
            await asyncio.wait([self._starting], timeout=START_S)

    async def stop(self) -> None:
        with contextlib.suppress(OSError, Fenced):
            await self._claims.unwant(SCHEDULER)
        await self._end()

    async def _gained(self, _name: str) -> None:
        # Others wait for this call, so the start continues in a task.
        self._starting = asyncio.create_task(self._begin_patiently(), name="scheduler")

    async def _lost(self, _name: str) -> None:
        await self._end()

    async def _begin_patiently(self) -> None:
        try:
            await until_written(self._begin, self._parts.runtime.clock.sleep)
            log.info("this node runs scheduled jobs, heartbeats and webhooks from now on")
        except Exception:
            log.exception("scheduled jobs do not run")

    async def _end(self) -> None:
        if self._starting is not None:
            self.running = False
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await super()._end()


class SharedState:
    """Loads what other nodes change. Documents that change meanwhile are loaded together."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._changed: set[str] = set()
        self._loading: asyncio.Task[None] | None = None
        self._unwatch = lambda: None
        self._peers: set[str] = set()

    def start(self) -> None:
        self._unwatch = self._gateway.runtime.stores.documents.watch(self._document_changed)
        self._peers = set(self._gateway.cluster.peers)

    async def stop(self) -> None:
        self._unwatch()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    def _document_changed(self, name: str) -> None:
        self._changed.add(name)
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load_changed(), name="changes of other nodes")

    async def _load_changed(self) -> None:
        while self._changed:
            names, self._changed = self._changed, set()
            try:
                await until_written(lambda names=names: self._load(names), self._gateway.runtime.clock.sleep)
            except Exception:
                log.exception("changes of another node were not loaded: %s", ", ".join(sorted(names)) or "anything")

    async def _load(self, names: set[str]) -> None:
        gateway, everything = self._gateway, "" in names
        if everything or OUTBOX in names:
            gateway.channel_services.delivery.wake()
        if everything or any(name.startswith("devices/") for name in names):
            await gateway.devices.load()
            self._end_unpaired()
        if everything or PATHS in names:
            await gateway.cluster.channels.load_paths()
        if everything or any(name.startswith("nodes/") for name in names):
            await gateway.nodes.pairing.load()
        if everything or system_events.FILE_NAME in names:
            await gateway.runtime.notes.refresh()
            if gateway.scheduler.running:
                gateway.heartbeats.wake_for_new()
        if everything or heartbeat.FILE_NAME in names:
            await gateway.heartbeats.load()
        if gateway.scheduler.running:
            gateway.cron.recheck()
            if everything or hooks.FILE_NAME in names:
                await gateway.hook_runs.follow_new()

    def _end_unpaired(self) -> None:
        """Close the connections of devices that another node has removed, or whose token it has revoked."""
        gateway = self._gateway
        clients = list(gateway.broadcaster.clients.values())
        for device_id, role in {(client.device_id, client.role) for client in clients if client.by_device_token}:
            if device_id is not None and not gateway.devices.has_token(device_id, role):
                gateway.end_device(device_id, role, "device removed or its token revoked")

    async def peers_changed(self) -> None:
        peers = set(self._gateway.cluster.peers)
        gone, self._peers = self._peers - peers, peers
        if gone and self._gateway.scheduler.running:
            await self._gateway.scheduler.close_left_questions()
