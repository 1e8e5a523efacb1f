"""Several Gateways on one PostgreSQL: turns a second, how soon a message is acknowledged, how soon another takes over.

The server keeps its data on disk and waits for it, as it would for a user. Every figure is taken with few and with
many sessions in the database; a turn must cost the same. Messages are sent to all nodes, each session's to one of them.
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
from collections.abc import AsyncIterator, Sequence
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
"""How many people write at the same time, each to a random session, and wait for the answer."""
WARM_S, RUN_S = 1.0, 5.0
SCHEMA = "bench"
TAKEOVERS = 3


class Load(msgspec.Struct):
    """What came of one load."""

    sessions: int
    nodes: int
    turns: int = 0
    seconds: float = 0
    acks: list[float] = msgspec.field(default_factory=list)
    deltas: list[float] = msgspec.field(default_factory=list)
    cpu_ms: float = 0
    """CPU of all nodes for one turn."""
    server_cpu_ms: float = 0

    @property
    def per_second(self) -> float:
        return self.turns / self.seconds

    def row(self) -> Row:
        note = (
            f"acknowledged p50 {median(self.acks):.1f}, p99 {_p99(self.acks):.0f} ms;"
            f" delta p50 {median(self.deltas):.1f}, p99 {_p99(self.deltas):.0f} ms;"
            f" CPU {self.cpu_ms:.1f} + {self.server_cpu_ms:.1f} ms"
        )
        what = (
            f"{self.nodes} nodes, {self.sessions:,} sessions"
            if self.nodes > 1
            else f"1 node, {self.sessions:,} sessions"
        )
        return Row(
            figure="scale",
            what=what,
            unit="turns/s",
            measured=self.per_second,
            bar=200 if self.nodes == 3 else 0,
            at_least=True,
            kind="wall",
            note=note,
        )


async def measure(
    sessions: Sequence[int] = SESSIONS, nodes: Sequence[int] = NODES, seconds: float = RUN_S
) -> list[Row]:
    loads: list[Load] = []
    takeovers: list[float] = []
    async with database() as server, mock_model() as model:
        for count in sessions:
            await seed(server.url, count)
            async with cluster(server, model) as started:
                for number in nodes:
                    await started.grow(number)
                    loads.append(await under_load(started, server, count, seconds))
                if count == max(sessions) and max(nodes) > 1:
                    takeovers = [await takeover_ms(started, number) for number in range(TAKEOVERS)]
    return [*(load.row() for load in loads), *_verdicts(loads, takeovers)]


def _verdicts(loads: Sequence[Load], takeovers: Sequence[float]) -> list[Row]:
    most = max(load.nodes for load in loads)
    last = [load for load in loads if load.nodes == most]
    few, many = last[0], last[-1]
    rows = [
        Row(
            figure="scale",
            what=f"acknowledged, p50, {most} nodes, {many.sessions:,} sessions",
            unit="ms",
            bar=10,
            measured=median(many.acks),
            low=min(many.acks),
            kind="wall",
        ),
        Row(
            figure="scale",
            what=f"CPU of a turn with the server's, {many.sessions:,} sessions",
            unit="ms",
            bar=1.25 * (few.cpu_ms + few.server_cpu_ms),
            reference=f"with {few.sessions:,}",
            reference_value=few.cpu_ms + few.server_cpu_ms,
            measured=many.cpu_ms + many.server_cpu_ms,
            kind="size",
        ),
    ]
    if takeovers:
        rows.append(
            Row(
                figure="scale",
                what="kill -9 of a node until another answers its message",
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


async def seed(url: str, count: int) -> None:
    """Fills the database up to that many sessions. Each has had one turn."""
    from openclaw.storage.postgres.database import PostgresDatabase

    made = await PostgresDatabase.open(url, schema=SCHEMA)
    await made.close()
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    entry = json.dumps(session_entry(0, "@id")).replace('"@id"', "\"' || id || '\"")
    turn = [
        json.dumps(user(WORDS * 3)),
        json.dumps(assistant(WORDS * 3)),
    ]
    line = (
        """'{"type":"message","id":"' || substr(id, 1, 7) || n || '","parentId":' ||"""
        """ CASE n WHEN 0 THEN 'null' ELSE '"' || substr(id, 1, 7) || '0"' END ||"""
        """ ',"timestamp":"2026-01-01T12:00:00.000Z","message":' || body || '}'"""
    )
    head = """'{"type":"session","version":3,"id":"' || id || '","timestamp":"2026-01-01T12:00:00.000Z","cwd":"/"}'"""
    numbered = (
        "SELECT 'agent:main:old-' || number AS key, md5(number::text) || '-old' AS id FROM generate_series("
        "(SELECT count(*) FROM sessions), $1 - 1) AS number"
    )
    now = int(time.time() * 1000)
    await connection.execute("CREATE TEMPORARY TABLE fresh (key text, id text)")
    await connection.execute(f"INSERT INTO fresh {numbered}", count)
    await connection.execute(
        "INSERT INTO sessions (agent_id, key, entry, updated_at, session_id, session_ids, words, is_alias)"
        f" SELECT 'main', key, convert_to('{entry}', 'UTF8'), {now}, id, ARRAY[id], key, false FROM fresh"
    )
    await connection.execute(
        "INSERT INTO transcripts (agent_id, name, session_id, last_seq, created_at, updated_at)"
        f" SELECT 'main', id || '.jsonl', id, 3, {now}, {now} FROM fresh"
    )
    of_fresh = (
        "FROM fresh JOIN transcripts ON transcripts.agent_id = 'main' AND transcripts.name = fresh.id || '.jsonl'"
    )
    insert = "INSERT INTO entries (transcript_id, seq, id, parent_id, type, body)"
    await connection.execute(
        f"{insert} SELECT own, 1, NULL, NULL, 'session', convert_to({head}, 'UTF8')"
        f" FROM (SELECT transcripts.id AS own, fresh.id AS id {of_fresh}) AS each"
    )
    await connection.execute(
        f"{insert} SELECT own, n + 2, substr(id, 1, 7) || n, CASE n WHEN 1 THEN substr(id, 1, 7) || '0' END,"
        f" 'message', convert_to({line}, 'UTF8')"
        f" FROM (SELECT transcripts.id AS own, fresh.id AS id {of_fresh}) AS each,"
        " (VALUES (0, $1::text), (1, $2::text)) AS lines (n, body)",
        *turn,
    )
    await connection.execute(
        "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state,"
        " accepted_at, started_at, ended_at, result)"
        f" SELECT id, '', 'main', key, id, 'chat', '{{}}', '{{}}', 'answered', {now}, {now}, {now}, '{{}}' FROM fresh"
    )
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
            home = self._folder / str(next(self._numbers))
            gateway = GatewayProcess(home, self._model, self._storage)
            await gateway.start()
            wire = await self._clients.enter_async_context(gateway.client())
            self.running.append((gateway, wire))

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


async def under_load(nodes: Nodes, server: PostgresServer, sessions: int, seconds: float) -> Load:
    """People write to random sessions for a while."""
    load = Load(sessions, len(nodes.running))
    chance = random.Random(sessions)
    free = set(range(sessions))
    until = time.monotonic() + WARM_S
    counts = False

    async def user() -> None:
        while time.monotonic() < until:
            number = chance.randrange(sessions)
            if number not in free:
                continue  # Somebody writes to it already.
            free.discard(number)
            wire = nodes.running[number % len(nodes.running)][1]
            began = time.monotonic()
            run_id = await wire.send("[[bench stamp]]", f"agent:main:old-{number}")
            if counts:
                load.acks.append((time.monotonic() - began) * 1000)
            await wire.end(run_id)
            if counts:
                load.turns += 1
            free.add(number)

    await asyncio.gather(*(user() for _ in range(USERS)))
    counts = True
    for _, wire in nodes.running:
        wire.stamped_ms = load.deltas
    before, began = [cpu_s(gateway.pid) for gateway, _ in nodes.running], time.monotonic()
    server_before = tree_cpu_s(server.pid)
    until = began + seconds
    await asyncio.gather(*(user() for _ in range(USERS)))
    load.seconds = time.monotonic() - began
    spent = sum(cpu_s(gateway.pid) - was for (gateway, _), was in zip(nodes.running, before, strict=True))
    load.cpu_ms = spent / load.turns * 1000
    load.server_cpu_ms = (tree_cpu_s(server.pid) - server_before) / load.turns * 1000
    for _, wire in nodes.running:
        wire.stamped_ms = None
    return load


async def takeover_ms(nodes: Nodes, number: int) -> float:
    """Kills a node while it waits for its model, and waits at another one for the answer to that message."""
    (victim, sender), (_, watcher) = nodes.running[-1], nodes.running[0]
    run_id = await sender.send(f"[[bench hold={number + 1}]]", f"agent:main:takeover-{number}")
    ended = asyncio.create_task(watcher.end(run_id))
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
