"""What a Gateway keeps, read and laid out by tests wherever it is kept: in files of its state folder or in PostgreSQL.

A test that is about the files themselves has the marker ``files_only``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from openclaw.clock import SystemClock
from tests.support.gateway import GatewayUnderTest
from tests.support.postgres import stored_rows


def sessions(gateway: GatewayUnderTest, agent: str = "main") -> dict[str, Any]:
    """The rows of an agent's sessions by their key. They may be a second behind while the Gateway runs."""
    if (storage := gateway.storage) is None:
        return json.loads((gateway.sessions_dir(agent) / "sessions.json").read_text())
    rows = stored_rows(storage, "SELECT key, entry FROM sessions WHERE agent_id = $1", agent)
    return {row["key"]: json.loads(row["entry"]) for row in rows}


def transcripts(gateway: GatewayUnderTest, agent: str = "main") -> dict[str, bytes]:
    """Every transcript of an agent by its name, those that were put away included."""
    if (storage := gateway.storage) is None:
        files = sorted(gateway.sessions_dir(agent).glob("*.jsonl*"))
        return {file.name: file.read_bytes() for file in files}
    rows = stored_rows(
        storage,
        "SELECT name, string_agg(body || '\\x0a', '' ORDER BY seq) AS data FROM transcripts"
        " JOIN entries ON transcript_id = transcripts.id WHERE agent_id = $1 GROUP BY name ORDER BY name",
        agent,
    )
    return {row["name"]: row["data"] for row in rows}


def live_transcripts(gateway: GatewayUnderTest, agent: str = "main") -> dict[str, bytes]:
    """The transcripts that were not put away."""
    return {name: data for name, data in transcripts(gateway, agent).items() if name.endswith(".jsonl")}


def ledger(gateway: GatewayUnderTest, statement: str) -> list[dict[str, Any]]:
    """What a SELECT or an UPDATE finds in the ledger. The tables have the same names in both."""
    if (storage := gateway.storage) is not None:
        return stored_rows(storage, statement)
    with closing(sqlite3.connect(gateway.state_dir / "ledger.db")) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute(statement).fetchall()]
        database.commit()
        return rows


def everything_in_ledger(gateway: GatewayUnderTest) -> str:
    """All that the ledger says of messages, also of those that were not accepted."""
    tables = ("messages", "story", "outbox", "held", "seen", "turned_away", "tool_calls", "jobs")
    return str([ledger(gateway, f"SELECT * FROM {table}") for table in tables])


def put_sessions(gateway: GatewayUnderTest, entries: dict[str, Any], agent: str = "main") -> None:
    """Lays out sessions for a Gateway that has not run yet."""
    folder = gateway.sessions_dir(agent)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sessions.json").write_text(json.dumps(entries))
    if gateway.storage is None:
        return

    async def move(database: Any) -> None:
        from openclaw.storage.postgres.move import copy_to_postgres

        settings = (["main"], None, SystemClock(), lambda _what, _count: None)
        done = await copy_to_postgres(gateway.state_dir, database, *settings)
        assert not done.conflicts, done.conflicts

    _in_database(gateway.storage, move)
    shutil.rmtree(gateway.state_dir / "agents")
    for file in gateway.state_dir.glob("ledger.db*"):
        file.unlink()


def damage_sessions(gateway: GatewayUnderTest, entries: dict[str, Any], agent: str = "main") -> None:
    """Replaces what is stored of sessions, which must exist in PostgreSQL, as somebody does who edits it by hand."""
    if (storage := gateway.storage) is None:
        path = gateway.sessions_dir(agent) / "sessions.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
        return
    for key, entry in entries.items():
        change = (
            "UPDATE sessions SET entry = convert_to($1, 'UTF8'), session_id = NULL WHERE agent_id = $2 AND key = $3"
        )
        stored_rows(storage, change, json.dumps(entry), agent, key)


def put_transcript(gateway: GatewayUnderTest, name: str, data: bytes) -> None:
    """Lays out a transcript, in the place of the one that has its name, for a Gateway that does not run."""
    if gateway.storage is None:
        gateway.sessions_dir().mkdir(parents=True, exist_ok=True)
        (gateway.sessions_dir() / name).write_bytes(data)
        return

    async def put(database: Any) -> None:
        from openclaw.storage.postgres.transcript import TranscriptRow, insert_lines, make_row, parsed_lines

        lines = parsed_lines(data)
        row = TranscriptRow("main", name, json.loads(lines[0].body)["id"])

        async def work(connection: Any) -> None:
            old = await connection.fetchval(
                "DELETE FROM transcripts WHERE agent_id = 'main' AND name = $1 RETURNING id", name
            )
            await connection.execute("DELETE FROM entries WHERE transcript_id = $1", old)
            made = await make_row(connection, row, lines[-1].seq, 0)
            assert made is not None
            await insert_lines(connection, made, lines)

        await database.transact(work)

    _in_database(gateway.storage, put)


def _in_database(storage: dict[str, str], work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def done() -> None:
        from openclaw.storage.postgres.database import PostgresDatabase

        database = await PostgresDatabase.open(storage["url"], schema=storage["schema"], pool_size=2)
        try:
            await work(database)
        finally:
            await database.close()

    # The caller's event loop is running, and it does not wait.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, done()).result(60)
