"""This Gateway as a node of a cluster.

``ClusterService`` finds the node that answers a call, and takes sessions up and lets them go. ``SchedulerService`` does
the scheduled work, which one of the nodes does. ``SharedState`` takes in what other nodes change. With files there is
one node: it has no ``ClusterService``, does the scheduled work, and nobody else changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from aiohttp import web

from openclaw.channels.manager import PATHS
from openclaw.cluster.claims import CHANNEL, SCHEDULER, SESSION, session_name
from openclaw.cluster.links import PATIENCE_S, RETRY_S, Link, LinkLost, Links, PartSender, RemoteFailure
from openclaw.gateway.channels import OUTBOX
from openclaw.gateway.cluster.remote import (
    MOST_HOPS,
    ClusterRelay,
    RemoteChannels,
    RemoteMessages,
    answer_remote,
    hand_on,
    place_of,
    session_of,
)
from openclaw.gateway.methods.exec_approvals import report_lost
from openclaw.gateway.server.frames import decode_any, encode, encode_response
from openclaw.gateway.server.registry import Answer, MethodCall, MethodError
from openclaw.scheduler import heartbeat, hooks
from openclaw.sessions import system_events
from openclaw.storage.disk_errors import until_written
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import END_STATES
from openclaw.tools.exec.approvals import JOURNAL_FILE, JOURNALS, LostApproval, UnknownApproval
from openclaw.tools.nodes import UnknownNode

if TYPE_CHECKING:
    from openclaw.cluster.membership import NodeLoad, NodeRow
    from openclaw.cluster.postgres_claims import PostgresClaims
    from openclaw.gateway.gateway import Gateway
    from openclaw.storage.postgres.ledger import PostgresLedger
    from openclaw.storage.postgres.session_store import PostgresSessionStore

    ClusterStores: TypeAlias = tuple[PostgresSessionStore, PostgresLedger]

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
    """Wires the claims of this node to the rest of the Gateway. There is none with files."""

    def __init__(self, gateway: Gateway, claims: PostgresClaims, stores: ClusterStores) -> None:
        self._gateway = gateway
        self._sessions, self._ledger = stores
        self._storage = self._sessions.path("")
        self.claims = claims
        self.membership = claims.membership
        self.links = Links(self.membership, self._serve, self._hear)
        self.relay = ClusterRelay(gateway, self.links)
        self.messages = RemoteMessages(gateway, self.links)
        self.channels = RemoteChannels(gateway, self.links)
        self._served: dict[str, Callable[[bytes, PartSender], Awaitable[bytes]]] = {
            **self.messages.served,
            **self.channels.served,
            "call": lambda data, parts: answer_remote(gateway, self.links, data, parts),
            "holds": self._answer_holds,
            "read": self._answer_read,
            "release": self._answer_release,
            "ticket": self._answer_ticket,
        }
        self.membership.load = self._load
        self.membership.on_fenced = self._fenced
        self.membership.hearers += [
            self.links.follow,
            claims.try_wanted,
            claims.regain,
            self.take_unowned,
            self.release_idle,
            self._settle_lost,
            self._resume_jobs,
        ]
        self._resumed_at, self._resumed_with = -JOBS_S, set[str]()
        self._released_at = 0.0
        claims.on_gained(SESSION, self._gained)
        claims.on_gained(CHANNEL, self._gained_account)
        claims.ask_to_release = self._ask_to_release
        claims.on_refused = self._refused

    def attach(self) -> None:
        """Connects the events and the runs of this node with those of the others."""
        self._gateway.broadcaster.relay = self.relay
        runs = self._gateway.runs
        runs.index.on_ended = self.relay.ended
        runs.abort_elsewhere = self.messages.stop
        self._sessions.on_foreign_write = self._tell_row
        self._gateway.pipeline.others = self.messages
        self._gateway.channel_services.channels.others = self.channels

    def _tell_row(self, agent_id: str, key: str) -> None:
        """Lets the owner of a session read its row anew."""
        self.links.tell_all(ROW, encode([agent_id, key]))

    async def start(self, url: str, fingerprint: str = "") -> None:
        """Tells the others where this node is, takes up what nobody owns, and begins to watch."""
        configured = self._gateway.runtime.config.current.cluster.advertise_url
        await self.membership.advertise(configured or url, fingerprint)
        await self.links.follow()
        await self.take_unowned()
        self.membership.start()

    async def drain(self) -> None:
        """Hands over what this node owns, before it leaves: runs that end soon are waited for, others go on elsewhere.

        Without another node there is nobody to hand over to.
        """
        try:
            await self._drain()
        except (OSError, Fenced) as error:
            log.warning("this node leaves without handing over what it owns: %s", error)

    async def _drain(self) -> None:
        await self.membership.drain()
        # The watch may not have seen yet that another node came.
        others = [node for node in await self.membership.all_nodes() if node.id != self.claims.node]
        if not any(node.state == "alive" for node in others) or self.membership.fenced:
            return
        self._gateway.ready = False
        log.info("leaving the cluster: %d runs under way", self._gateway.runs.busy())
        await self.claims.unwant_all()
        until = time.monotonic() + self._gateway.runtime.config.current.cluster.drain_seconds
        while time.monotonic() < until and not self.membership.fenced:
            names = self.claims.owned(SESSION)
            await self.claims.release_all([one for one in names if not self._in_use(one)])
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
            "node": self.claims.node,
            "storage": self._storage,
            "ts": self._gateway.runtime.clock.now_ms(),
            "nodes": [_node_view(node, links.get(node.id)) for node in nodes],
            "holds": holds,
            "unowned": unowned,
            **({"problem": problem} if problem else {}),
        }

    # Which node answers

    async def answer_elsewhere(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer | None:
        """Answers a call that belongs to another node. None: this node answers it."""
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
                return await hand_on(self.links, node, call, raw)
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
        """The node that has what the call names by an id. None: nobody, or this one."""
        wanted = _held_id(call.params)
        if wanted is None or self._holds(*wanted):
            return None
        question = encode(wanted)
        for node in list(self.membership.peers):
            try:
                if await self.links.ask(node, "holds", question) == b"1":
                    return node
            except (LinkLost, RemoteFailure):
                continue
        return None

    def _holds(self, field: str, value: str) -> bool:
        gateway = self._gateway
        match field:
            case "id":
                try:
                    gateway.runtime.approvals.find(value)
                except LostApproval:
                    return True
                except UnknownApproval:
                    return False
                return True
            case "node_id":
                try:
                    return gateway.nodes.choose(value).connected  # The method takes a name as well as an id.
                except UnknownNode:
                    return False
            case _:
                return any(True for _ in gateway.channel_services.channels.accounts(value))

    async def _answer_holds(self, data: bytes, _parts: PartSender) -> bytes:
        return b"1" if self._holds(*decode_any(data)) else b"0"

    async def _answer_of_all(self, call: MethodCall, raw: msgspec.Raw | bytes) -> Answer:
        """Joins the lists in the answers of every node."""
        joined: dict[str, Any] = msgspec.to_builtins(
            await self._gateway.methods.find(call.client, call.method).answer(call)
        )
        for node in list(self.membership.peers):
            try:
                answer = await hand_on(self.links, node, _quiet(call), raw)
            except LinkLost:
                continue
            payload = decode_any(answer.frame).get("payload") if answer.ok else {}
            for name, value in (payload or {}).items():
                if isinstance(value, list) and isinstance(joined.get(name), list):
                    joined[name] += value
        return Answer(encode_response(call.id, joined), True)

    # Links

    async def open_link(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.links.accept(request, lambda: self._gateway.sockets.recognise(request.protocol))

    async def _serve(self, kind: str, data: bytes, parts: PartSender) -> bytes:
        return await self._served[kind](data, parts)

    def _hear(self, node: str, kind: str, data: bytes) -> None:
        if kind == ROW:
            self._sessions.forget_row(*decode_any(data))
        else:
            self.relay.hear(node, kind, data)

    async def _answer_read(self, data: bytes, _parts: PartSender) -> bytes:
        client = self._gateway.broadcaster.clients.get(data.decode())
        if client is not None:
            await client.sink.until_read()
        return b""

    async def redeem_ticket(self, ticket: str) -> str:
        """The secret behind a ticket of ``openclaw dashboard`` that another node gave, or nothing."""
        for link in self.links.all():
            with contextlib.suppress(LinkLost, RemoteFailure):
                if secret := await link.ask("ticket", ticket.encode()):
                    return secret.decode()
        return ""

    async def _answer_ticket(self, data: bytes, _parts: PartSender) -> bytes:
        return (self._gateway.sign_in_tickets.redeem(data.decode()) or "").encode()

    # Sessions that come and go

    async def take_unowned(self) -> None:
        """Claims sessions with unfinished messages that nobody owns. ``_gained`` goes on with their messages."""
        for _ in range(MOST_TAKEN):
            found = [session_name(*session) for session in await self._ledger.unowned(TAKEN_AT_ONCE)]
            if not found or self.membership.state != "alive":
                return
            await self.claims.claim_free(found)

    async def release_idle(self) -> None:
        """Lets sessions go that nobody has used for a while, so that any node may answer their next message."""
        seconds, now = self._gateway.runtime.config.current.cluster.idle_seconds, time.monotonic()
        if now - self._released_at < seconds / 10:
            return
        self._released_at = now
        names = self.claims.idle(SESSION, seconds, RELEASED_AT_ONCE)
        await self.claims.release_all([name for name in names if not self._in_use(name)])

    async def _gained(self, name: str) -> None:
        """Goes on with the messages that the session's last owner left, before anything new happens in it."""
        agent_id, _, key = name.removeprefix(SESSION).partition(":")
        runtime = self._gateway.runtime
        # The session is in memory from here on, so that messages which come together stay in their order.
        _, left = await asyncio.gather(
            runtime.stores.sessions.get(agent_id, key), runtime.stores.ledger.unfinished((agent_id, key))
        )
        if left:
            log.info("taking up the unfinished messages of %s", key)
            await self._gateway.notices.end_interrupted((agent_id, key))
            await self._gateway.runs.find_unfinished(session=(agent_id, key))
            self._gateway.runs.start_unfinished(key)

    def _refused(self, name: str) -> None:
        """Forgets the runs of a session that another node owns by now, without a word."""
        if name.startswith(SESSION):
            self._gateway.runs.drop_session(_key_of(name))

    def _in_use(self, name: str) -> bool:
        """Tells whether anything happens here in the session of this name, commands that take long included."""
        key = _key_of(name)
        return self._gateway.runs.in_use(key) or self._gateway.notices.in_use(key)

    async def _gained_account(self, name: str) -> None:
        """Hands on the messages that waited for more words where the account was before."""
        channel, _, account = name.removeprefix(CHANNEL).partition(":")
        self._gateway.spawn(self._gateway.pipeline.recover((channel, account)))

    async def _ask_to_release(self, node: str, name: str) -> None:
        try:
            await self.links.ask(node, "release", name.encode())
        except (LinkLost, RemoteFailure) as error:
            log.debug("node %s cannot be asked to let %s go: %s", node, name, error)

    async def _answer_release(self, data: bytes, _parts: PartSender) -> bytes:
        name = data.decode()
        if not self._in_use(name):
            await self.claims.release(name)
        return b""

    async def _resume_jobs(self) -> None:
        """Carries on the jobs of nodes that are gone."""
        peers, now = set(self.membership.peers), time.monotonic()
        if not self._gateway.ready:
            return  # A node that goes meanwhile is noticed later.
        if self._resumed_with - peers or now - self._resumed_at > JOBS_S:
            await self._sessions.load_agents()
            await self._gateway.team.jobs.resume()
            self._resumed_at = now
        self._resumed_with = peers

    async def _settle_lost(self) -> None:
        """Tells those who follow runs of nodes that are gone how they ended, if they ended just before."""
        lost = [run_id for run_id, node in self.relay.active.items() if node not in self.membership.peers]
        for run_id in lost:
            row = await self._ledger.by_run(run_id)
            if row is None or row.state in END_STATES:
                self.relay.active.pop(run_id, None)
                if row is not None:
                    self.relay.tell_end(row)
                self.relay.wake(run_id)
            elif self.claims.owns(session_name(row.agent_id, row.session_key)):
                self.relay.active.pop(run_id, None)  # Its new owner tells of it.

    def _load(self) -> NodeLoad:
        from openclaw.cluster.membership import NodeLoad

        runs = self._gateway.runs
        return NodeLoad(
            sessions=self.claims.session_count,
            runs=runs.busy(),
            queued=runs.queued(),
            clients=len(self._gateway.broadcaster.clients),
            relay_lag_ms=round(max((link.lag_ms for link in self.links.all()), default=0.0), 2),
        )

    def _fenced(self) -> None:
        """Forgets every run without a word, because another node goes on with them, and starts anew."""
        self._gateway.runs.drop()
        self._gateway.restart.requested.set()


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
"""So long the start of the Gateway waits for scheduled work to begin."""


class SchedulerService:
    """Starts heartbeats, scheduled jobs and webhooks when this node owns them, and stops them when it does not."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._starting: asyncio.Task[None] | None = None
        self.running = False

    async def start(self) -> None:
        """Goes on with what the last Gateway left, then waits for what is due."""
        claims = self._gateway.runtime.stores.claims
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
        claims = self._gateway.runtime.stores.claims
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
        living = {runtime.stores.claims.node, *(cluster.membership.peers if cluster is not None else ())}
        names = await runtime.stores.documents.list(JOURNALS)
        left = [name.removeprefix(JOURNALS).removesuffix(".json") for name in names]
        if runtime.stores.claims.node and await runtime.stores.documents.version(JOURNAL_FILE) is not None:
            left.append("")  # It was copied from files.
        for node in left:
            if node not in living:
                await journal.inherit(node)
        await report_lost(journal, self._gateway.pipeline)


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
        if gateway.runtime.stores.documents.shared:
            self._unwatch = gateway.runtime.stores.documents.watch(self._hear)
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
            gateway.cron.recheck()
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
