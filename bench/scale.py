"""Several Gateways on one PostgreSQL: turns a second, how soon a message is acknowledged, how soon another takes over.

The server keeps its data on disk and waits for it, as it would for a user. People write to random sessions and wait for
the answers: first as many as the machine can take, which gives the turns a second, then ``RATE`` turns a second, which
gives the times. A person stays at one node, as behind a load balancer. With few sessions all are in memory; with many,
nearly every turn reads its session from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import asyncpg
import msgspec
from tests.support.postgres import PostgresServer, needs_postgres

from bench.harness import GatewayProcess, mock_model
from bench.process import cpu_s, tree_cpu_s
from bench.row import Row
from bench.seed import WORDS, assistant, session_entry, user
from bench.wire import Wire

SESSIONS = (100, 10_000, 100_000)
NODES = (1, 2, 3)
USERS = 24
"""How many people write at the same time while the machine is to be busy."""
RATE = 100
"""Turns a second while times are taken."""
WARM_S, BUSY_S, PACED_S = 1.0, 4.0, 4.0
SCHEMA = "bench"
TAKEOVERS = 3


class Load(msgspec.Struct):
    """What came of one load."""

    sessions: int
    nodes: int
    turns: int = 0
    seconds: float = 0
    acks: list[float] = []
    deltas: list[float] = []
    cpu_ms: float = 0
    """CPU of all nodes for one turn."""
    server_cpu_ms: float = 0

    @property
    def all_cpu_ms(self) -> float:
        return self.cpu_ms + self.server_cpu_ms

    def row(self) -> Row:
        note = (
            f"at {RATE}/s: acknowledged p50 {median(self.acks):.1f}, p99 {_p99(self.acks):.0f};"
            f" delta p50 {median(self.deltas):.1f}, p99 {_p99(self.deltas):.0f} ms;"
            f" CPU of a turn {self.cpu_ms:.1f} + {self.server_cpu_ms:.1f} ms"
        )
        return Row(
            figure="scale",
            what=f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.sessions:,} sessions",
            unit="turns/s",
            measured=self.turns / self.seconds,
            bar=200 if (self.nodes, self.sessions) == (max(NODES), max(SESSIONS)) else 0,
            at_least=True,
            kind="wall",
            note=note,
        )


async def measure(sessions: Sequence[int] = SESSIONS, nodes: Sequence[int] = NODES) -> list[Row]:
    loads: list[Load] = []
    takeovers: list[float] = []
    async with database() as server, mock_model() as model:
        for count in sessions:
            await seed(server.url, count)
            async with cluster(server, model) as started:
                for number in nodes:
                    await started.grow(number)
                    loads.append(await under_load(started, server, count))
                if count == max(sessions) and len(started.running) > 1:
                    takeovers = [await takeover_ms(started, number) for number in range(TAKEOVERS)]
    return [*(load.row() for load in loads), *_verdicts(loads, takeovers)]


def _verdicts(loads: Sequence[Load], takeovers: Sequence[float]) -> list[Row]:
    most = max(load.nodes for load in loads)
    of_most = [load for load in loads if load.nodes == most]
    few, many = of_most[-2:] if len(of_most) > 1 else (of_most[0], of_most[0])
    rows = [
        Row(
            figure="scale",
            what=f"acknowledged at {RATE} turns/s, p50, {most} nodes, {many.sessions:,} sessions",
            unit="ms",
            bar=10,
            measured=median(many.acks),
            low=min(many.acks),
            kind="wall",
        ),
        Row(
            figure="scale",
            what=f"CPU of a turn with the server's, {most} nodes, {many.sessions:,} sessions",
            unit="ms",
            bar=1.25 * few.all_cpu_ms,
            reference=f"with {few.sessions:,}",
            reference_value=few.all_cpu_ms,
            measured=many.all_cpu_ms,
            kind="size",
        ),
    ]
    if takeovers:
        rows.append(
            Row(
                figure="scale",
                what="kill -9 of a node until another one has answered its message",
                unit="ms",
                bar=1000,
                measured=median(takeovers),
                low=min(takeovers),
                kind="wall",
            )
        )
    return rows


# The database


@contextlib.asynccontextmanager
async def database() -> AsyncIterator[PostgresServer]:
    server = await asyncio.to_thread(lambda: PostgresServer(needs_postgres(), durable=True))
    try:
        yield server
    finally:
        await asyncio.to_thread(server.remove)


_KEYS = (
    "CREATE TEMPORARY TABLE fresh AS SELECT 'agent:main:old-' || number AS key, md5(number::text) AS id"
    " FROM generate_series((SELECT count(*) FROM sessions), {count} - 1) AS number"
)
_SESSIONS = (
    "INSERT INTO sessions (agent_id, key, entry, updated_at, session_id, session_ids, words, is_alias)"
    " SELECT 'main', key, convert_to(replace($1, '@id', id), 'UTF8'), $2, id, ARRAY[id], key, false FROM fresh"
)
_TRANSCRIPTS = (
    "INSERT INTO transcripts (agent_id, name, session_id, last_seq, created_at, updated_at)"
    " SELECT 'main', id || '.jsonl', id, 3, $1, $1 FROM fresh"
)
_ENTRIES = (
    "INSERT INTO entries (transcript_id, seq, id, parent_id, type, body)"
    " SELECT transcripts.id, seq, replace(own, '@id', left(fresh.id, 7)), replace(parent, '@id', left(fresh.id, 7)),"
    " type, convert_to(replace(replace(body, '@short', left(fresh.id, 7)), '@id', fresh.id), 'UTF8') FROM fresh"
    " JOIN transcripts ON agent_id = 'main' AND name = fresh.id || '.jsonl',"
    " unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS line (seq, own, parent, type, body)"
)
_MESSAGES = (
    "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state,"
    " accepted_at, started_at, ended_at, result)"
    " SELECT id, '', 'main', key, id, 'webchat', '{}', '{}', 'answered', $1, $1, $1, '{}' FROM fresh"
)


async def seed(url: str, count: int) -> None:
    """Fills the database up to that many sessions. Each has had one turn."""
    from openclaw.storage.postgres.database import PostgresDatabase

    await (await PostgresDatabase.open(url, schema=SCHEMA)).close()
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    now, stamp = int(time.time() * 1000), "2026-01-01T12:00:00.000Z"
    head = {"type": "session", "version": 3, "id": "@id", "timestamp": stamp, "cwd": "/"}
    asked = {"type": "message", "id": "@shorta", "parentId": None, "timestamp": stamp, "message": user(WORDS * 3)}
    said = {**asked, "id": "@shortb", "parentId": "@shorta", "message": assistant(WORDS * 3)}
    lines = ([1, 2, 3], [None, "@ida", "@idb"], [None, None, "@ida"], ["session", "message", "message"])
    await connection.execute(_KEYS.format(count=count))
    await connection.execute(_SESSIONS, json.dumps(session_entry(0, "@id")), now)
    await connection.execute(_TRANSCRIPTS, now)
    await connection.execute(_ENTRIES, *lines, [json.dumps(line) for line in (head, asked, said)])
    await connection.execute(_MESSAGES, now)
    for statement in ("VACUUM ANALYZE", "CHECKPOINT"):
        await connection.execute(statement)
    await connection.close()


# The nodes


class Nodes:
    """The Gateways of one cluster, each with a home of its own, and a client of each."""

    def __init__(self, server: PostgresServer, model: int) -> None:
        self._storage = {"storage": {"url": server.url, "schema": SCHEMA}}
        self._model = model
        self._numbers = itertools.count()
        self._folder = Path(tempfile.mkdtemp(prefix="openclaw-scale-"))
        self._clients = contextlib.AsyncExitStack()
        self.running: list[tuple[GatewayProcess, Wire]] = []

    async def grow(self, count: int) -> None:
        while len(self.running) < count:
            gateway = GatewayProcess(self._folder / str(next(self._numbers)), self._model, self._storage)
            await gateway.start()
            self.running.append((gateway, await self._clients.enter_async_context(gateway.client())))

    async def close(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._clients.aclose()
        await asyncio.gather(*(gateway.stop() for gateway, _ in self.running))
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def cluster(server: PostgresServer, model: int) -> AsyncIterator[Nodes]:
    nodes = Nodes(server, model)
    try:
        yield nodes
    finally:
        await nodes.close()


async def under_load(nodes: Nodes, server: PostgresServer, sessions: int) -> Load:
    load = Load(sessions, len(nodes.running))
    chance = random.Random(sessions)
    in_use: set[int] = set()
    room = asyncio.Semaphore(sessions // 2)

    async def turn(acks: list[float]) -> None:
        """Somebody writes to a session that nobody else writes to, and reads the answer."""
        async with room:  # On a slow machine most sessions may wait for an answer.
            await _turn(acks)

    async def _turn(acks: list[float]) -> None:
        number = chance.randrange(sessions)
        while number in in_use:
            number = chance.randrange(sessions)
        in_use.add(number)
        wire = nodes.running[number % len(nodes.running)][1]
        began = time.monotonic()
        run_id = await wire.send("[[bench stamp]]", f"agent:main:old-{number}")
        acks.append((time.monotonic() - began) * 1000)
        await wire.end(run_id)
        in_use.discard(number)

    await _as_fast_as_it_goes(turn, WARM_S)
    own, servers, began = _own_cpu(nodes), tree_cpu_s(server.pid), time.monotonic()
    load.turns = await _as_fast_as_it_goes(turn, BUSY_S)
    load.seconds = time.monotonic() - began
    load.cpu_ms = (_own_cpu(nodes) - own) / load.turns * 1000
    load.server_cpu_ms = (tree_cpu_s(server.pid) - servers) / load.turns * 1000
    for _, wire in nodes.running:
        wire.stamped_ms = load.deltas
    await _at_a_pace(lambda: turn(load.acks), PACED_S)
    for _, wire in nodes.running:
        wire.stamped_ms = None
    return load


async def _as_fast_as_it_goes(turn: Callable[[list[float]], Awaitable[None]], seconds: float) -> int:
    """``USERS`` people write one message after the other. Returns how many turns there were."""
    until, acks = time.monotonic() + seconds, list[float]()

    async def person() -> None:
        while time.monotonic() < until:
            await turn(acks)

    await asyncio.gather(*(person() for _ in range(USERS)))
    return len(acks)


async def _at_a_pace(turn: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Messages come at ``RATE``, however long the answers take."""
    began, tasks = time.monotonic(), list[asyncio.Future[None]]()
    for number in range(round(RATE * seconds)):
        await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        tasks.append(asyncio.ensure_future(turn()))
    await asyncio.gather(*tasks)


def _own_cpu(nodes: Nodes) -> float:
    return sum(cpu_s(gateway.pid) for gateway, _ in nodes.running)


async def takeover_ms(nodes: Nodes, number: int) -> float:
    """Kills a node while it waits for its model, and waits at another one for the answer to that message."""
    (victim, sender), (_, watcher) = nodes.running[-1], nodes.running[0]
    run_id = await sender.send(f"[[bench hold={number + 1}]]", f"agent:main:takeover-{number}")
    ended = asyncio.ensure_future(watcher.end(run_id))
    await asyncio.sleep(0.5)
    victim.kill()
    began = time.monotonic()
    await ended
    taken = (time.monotonic() - began) * 1000
    nodes.running.pop()
    await nodes.grow(len(nodes.running) + 1)
    return taken


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
