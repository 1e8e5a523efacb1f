"""The nodes of a cluster: how one joins, shows that it lives, notices that another one has died, and leaves.

A node holds an advisory lock on a connection of its own, which the server frees when the process dies, and renews its
lease. Who finds the lock free twice in a row, or the lease over, takes the node over: in one transaction its row says
that it is dead and its claims are gone. From then on the fence in the database refuses what it writes. All times are
those of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import asyncpg
import msgspec

from openclaw.storage.errors import Fenced, StorageRefused
from openclaw.storage.postgres.database import PostgresDatabase, StorageUnreachable, storage_errors, use_schema

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection

NodeState: TypeAlias = Literal["alive", "draining", "dead", "left"]
POLL_S = 0.2
RENEWALS = 5
"""How often a lease is renewed while it lasts."""
FREE_POLLS = 2
"""So many polls in a row must find the lock of a node free."""
KEPT_S = 3600
"""How long the rows of nodes that are gone stay."""
TELL_S = 1.0
MOST_GONE = 50
RECONNECT_S = 0.1
LONGEST_RECONNECT_S = 0.5
RESTART_S = 3.0
"""How long nodes have to take their locks again after the server was started, or this node has found it again."""

log = logging.getLogger("openclaw.cluster")

_LIVING = "state IN ('alive', 'draining')"
_NODE_LOCK = "hashtextextended('openclaw-node/' || id, 0)"
_WRITE_LOCK = "hashtextextended('openclaw-write/' || $1, 0)"
_COLUMNS = """id, url, fingerprint, host, pid, version, state, load,
  (extract(epoch FROM started_at) * 1000)::bigint AS started_at,
  (extract(epoch FROM ended_at) * 1000)::bigint AS ended_at,
  extract(epoch FROM lease_until - now())::float8 AS lease_left"""
_ALL = f"SELECT {_COLUMNS} FROM nodes ORDER BY {_LIVING} DESC, nodes.started_at DESC LIMIT $1"
_POLL = f"""
SELECT {_COLUMNS},
  now() > greatest(lease_until, pg_postmaster_start_time() + $2 + $3) AS is_over,
  CASE WHEN id <> $1 AND {_LIVING} AND now() > pg_postmaster_start_time() + $3
    THEN pg_try_advisory_xact_lock_shared({_NODE_LOCK}) ELSE false END AS is_free
FROM nodes WHERE {_LIVING} OR id = $1"""
_RENEW = f"UPDATE nodes SET lease_until = now() + $2, load = $3 WHERE id = $1 AND {_LIVING}"


class NodeLoad(msgspec.Struct, rename="camel"):
    """How busy a node is. It writes this itself whenever it renews its lease."""

    sessions: int = 0
    """Sessions that it owns."""
    runs: int = 0
    """Runs under way."""
    queued: int = 0
    clients: int = 0
    relay_lag_ms: float = 0.0
    """How long events wait before they leave for the slowest other node."""
    database_ms: float = 0.0
    """How long the database took to answer the last poll."""


class NodeRow(msgspec.Struct):
    """A node as the database knows it."""

    id: str
    url: str
    fingerprint: str
    host: str
    pid: int
    version: str
    state: NodeState
    started_at: int
    ended_at: int | None
    """When it left or was given up."""
    lease_left: float
    load: NodeLoad


class Membership:
    """This node among the others. ``join`` first; ``start`` when it can take part; ``leave`` ends it."""

    def __init__(self, database: PostgresDatabase, *, lease_s: float, version: str = "") -> None:
        self._database = database
        self._lease_s = lease_s
        self._version = version
        self._connection: asyncpg.Connection | None = None
        self._cut = asyncio.Event()
        """Set when the connection has ended."""
        self._free: dict[str, int] = {}
        """How many polls in a row found the lock of a node free."""
        self._renewed_at = 0.0
        self._reconnected_at = -RESTART_S
        """When the connection was last opened again, by the clock of ``time.monotonic``."""
        self._watching: asyncio.Task[None] | None = None
        self._fenced = False
        self._started = False
        self.node = database.node
        self.url = ""
        self.fingerprint = ""
        self.secret: str = ""
        """What the nodes of this cluster know, and nobody else."""
        self.state: NodeState = "alive"
        self.peers: dict[str, NodeRow] = {}
        """The other nodes that live, by id."""
        self.own: NodeRow | None = None
        self.load: Callable[[], NodeLoad] = NodeLoad
        self.subscribers: list[Callable[[], Awaitable[None]]] = []
        """Called when a node has come or gone, and every second, once this node has started."""
        self._telling: asyncio.Task[None] | None = None
        self._told_at = 0.0
        self._database_ms = 0.0
        self.on_fenced: Callable[[], None] = lambda: None
        database.on_fenced = self._note_fenced

    @staticmethod
    def new_id() -> str:
        return str(uuid.uuid4())

    @property
    def fenced(self) -> bool:
        """Whether the others have given this node up."""
        return self._fenced

    async def join(self) -> None:
        """Make this process a node and begin to watch. Raises ``StorageRefused`` when a tool uses the schema alone.

        The lease is renewed from here on, because the rest of a start may take longer than it lasts.
        """
        with storage_errors():
            await self._join()
        self._watching = asyncio.create_task(self._watch(), name="cluster")

    async def _join(self) -> None:
        await self._take_locks()
        connection = self._live_connection()
        self.secret = await connection.fetchval("SELECT value FROM secrets WHERE name = 'links'") or ""
        await connection.execute("DELETE FROM nodes WHERE ended_at < now() - make_interval(secs => $1)", float(KEPT_S))
        await connection.execute(
            "INSERT INTO nodes (id, url, host, pid, version, state, lease_until)"
            " VALUES ($1, '', $2, $3, $4, 'alive', now() + make_interval(secs => $5))",
            *(self.node, socket.gethostname(), os.getpid(), self._version, self._lease_s),
        )
        await self._poll()

    async def advertise(self, url: str, fingerprint: str = "") -> None:
        """Tell the others where this node listens."""
        self.url, self.fingerprint = url, fingerprint
        await self._database.write(
            "UPDATE nodes SET url = $2, fingerprint = $3 WHERE id = $1", self.node, url, fingerprint
        )

    def start(self) -> None:
        """Call the subscribers from now on."""
        if self._fenced:
            raise Fenced(f"the node {self.node} no longer counts")
        self._started = True

    async def drain(self) -> None:
        """Tell the others that this node leaves soon. It may still write, and claims nothing more."""
        self.state = "draining"
        with contextlib.suppress(OSError, Fenced):
            await self._database.write(
                "UPDATE nodes SET state = 'draining' WHERE id = $1 AND state = 'alive'", self.node
            )

    async def leave(self) -> None:
        """Give up every claim and the place among the nodes. Nothing can be written after it."""
        tasks = [task for task in (self._watching, self._telling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        async def work(connection: Connection) -> None:
            await connection.execute("DELETE FROM claims WHERE node = $1", self.node)
            leave = f"UPDATE nodes SET state = 'left', ended_at = now() WHERE id = $1 AND {_LIVING}"
            await connection.execute(leave, self.node)

        if not self._fenced:
            with contextlib.suppress(OSError, Fenced):
                await self._database.transact(work)
        self.state = "left"
        if self._connection is not None:
            self._connection.terminate()

    async def all_nodes(self) -> list[NodeRow]:
        """Return the nodes that live, and those that went in the last hour, the newest first."""
        rows = await self._database.rows(_ALL, MOST_GONE)
        return [_node_of(row) for row in rows]

    # Watching

    async def _watch(self) -> None:
        pause = RECONNECT_S
        while not self._fenced:
            try:
                with storage_errors():
                    if self._connection is None or self._connection.is_closed():
                        await self._take_locks()
                        self._reconnected_at = time.monotonic()
                    await self._poll()
                pause = RECONNECT_S
                with contextlib.suppress(TimeoutError):
                    # A connection that was cut is opened again before the others miss its lock.
                    async with asyncio.timeout(POLL_S):
                        await self._cut.wait()
            except Fenced:
                self._note_fenced()
            except (OSError, StorageRefused) as error:
                log.debug("the nodes of the cluster cannot be looked at: %s", error)
                if isinstance(error, StorageUnreachable) and self._connection is not None:
                    # It may lead to a server that has become a standby. A lock that somebody holds passes, and without
                    # the connection the others would take this node for dead.
                    self._connection.terminate()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RECONNECT_S)
            except Exception:
                log.exception("the nodes of the cluster cannot be looked at")
                await asyncio.sleep(LONGEST_RECONNECT_S)

    async def _poll(self) -> None:
        """Renew the lease if it is time, and look at every node."""
        began = time.monotonic()
        if began - self._renewed_at >= self._lease_s / RENEWALS:
            await self._renew()
        rows = await self._live_connection().fetch(
            _POLL, self.node, timedelta(seconds=self._lease_s), timedelta(seconds=RESTART_S)
        )
        self._database_ms = (time.monotonic() - began) * 1000
        # The others may have lost their connections too, for example to a server that a standby has replaced.
        settled = began - self._reconnected_at >= RESTART_S
        known, peers = set(self.peers), dict[str, NodeRow]()
        for row in rows:
            node = _node_of(row)
            if node.id == self.node:
                self.own = node
                if node.state in ("dead", "left"):
                    raise Fenced(f"the node {self.node} no longer counts")
            elif settled and (row["is_over"] or self._seems_dead(node.id, row["is_free"])):
                if not await self._take_over(node):
                    peers[node.id] = node
            else:
                peers[node.id] = node
        self.peers = peers
        self._free = {name: count for name, count in self._free.items() if name in self.peers}
        self._tell(at_once=set(self.peers) != known)

    async def _renew(self) -> None:
        now = time.monotonic()
        load = self.load()
        load.database_ms = round(self._database_ms, 2)
        renewed = await self._live_connection().execute(
            _RENEW, self.node, timedelta(seconds=self._lease_s), msgspec.json.encode(load)
        )
        if renewed != "UPDATE 1" and self.own is not None:
            raise Fenced(f"the node {self.node} no longer counts")
        self._renewed_at = now

    def _tell(self, *, at_once: bool) -> None:
        """Call the subscribers beside the watch, because a lease must be renewed however long they take."""
        if self._telling is not None and not self._telling.done():
            self._told_at = 0.0 if at_once else self._told_at
            return
        now = time.monotonic()
        if self._started and (at_once or now - self._told_at >= TELL_S):
            self._told_at = now
            self._telling = asyncio.create_task(self._tell_all(), name="cluster subscribers")

    async def _tell_all(self) -> None:
        for subscriber in self.subscribers:
            try:
                await subscriber()
            except (OSError, Fenced) as error:
                log.debug("what a change of the nodes leads to waits: %s", error)
            except Exception:
                log.exception("what a change of the nodes leads to has failed and will be tried again")

    def _seems_dead(self, node: str, is_free: bool) -> bool:
        self._free[node] = self._free.get(node, 0) + 1 if is_free else 0
        return self._free[node] >= FREE_POLLS

    async def _take_over(self, node: NodeRow) -> bool:
        """End a node that gives no sign of life. False when it does, or when somebody else is about to do this."""
        connection = self._live_connection()
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '500ms'")
            first = "SELECT pg_try_advisory_xact_lock(hashtextextended('openclaw-takeover/' || $1, 0))"
            if not await connection.fetchval(first, self._database.schema):
                return False
            if not await connection.fetchval(f"SELECT pg_try_advisory_xact_lock({_WRITE_LOCK})", node.id):
                # A transaction of the node is open. If the node stands still, it would stay open for seconds.
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
                    f"openclaw {node.id}",
                )
                return False
            dead = await connection.fetchval(
                f"UPDATE nodes SET state = 'dead', ended_at = now() WHERE id = $1 AND {_LIVING} AND (now() >"
                f" lease_until OR pg_try_advisory_xact_lock_shared({_NODE_LOCK})) RETURNING id",
                node.id,
            )
            if dead is None:
                return False
            freed = await connection.execute("DELETE FROM claims WHERE node = $1", node.id)
        log.warning("node %s on %s is gone; %s claims are free", node.id, node.host, freed.rsplit(" ", 1)[-1])
        return True

    def _note_fenced(self) -> None:
        if not self._fenced and self.state != "left":
            self._fenced = True
            log.error(
                "the cluster has given this node up, because it gave no sign of life; it starts again as a new one"
            )
            self.on_fenced()

    async def _take_locks(self) -> None:
        connection = await self._database.connect()
        try:
            if not await use_schema(connection, self._database.schema):
                raise StorageRefused(f"`openclaw storage migrate` uses {self._database.shown}. Wait for it")
            # Others hold the lock for the moment of a poll.
            await connection.execute(
                f"SELECT pg_advisory_lock({_NODE_LOCK}) FROM (SELECT $1::text AS id) AS own", self.node
            )
        except BaseException:
            connection.terminate()
            raise
        if self._connection is not None:
            self._connection.terminate()
        self._connection = connection
        self._cut.clear()
        connection.add_termination_listener(lambda _: self._cut.set())

    def _live_connection(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            raise StorageUnreachable(ConnectionError("the connection was closed"))
        return self._connection


def _node_of(row: asyncpg.Record) -> NodeRow:
    fields = {name: row[name] for name in NodeRow.__struct_fields__ if name != "load"}
    return NodeRow(**fields, load=msgspec.json.decode(row["load"], type=NodeLoad))
