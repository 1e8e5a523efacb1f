"""What a Gateway keeps, read and laid out by tests wherever it is kept: in files of its state folder or in PostgreSQL.

A test that is about the files themselves has the marker ``files_only``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
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
    """All that the ledger says of messages, also of those that were not taken in."""
    tables = ("messages", "story", "outbox", "held", "seen", "turned_away", "tool_calls", "jobs")
    return str([ledger(gateway, f"SELECT * FROM {table}") for table in tables])


def put_sessions(gateway: GatewayUnderTest, entries: dict[str, Any], agent: str = "main") -> None:
    """Lays out sessions for a Gateway that does not run."""
    folder = gateway.sessions_dir(agent)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sessions.json").write_text(json.dumps(entries))
    _move_to_database(gateway)


def put_transcript(gateway: GatewayUnderTest, name: str, data: bytes) -> None:
    """Lays out a transcript, in the place of the one that has its name, for a Gateway that does not run."""
    folder = gateway.sessions_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    if (storage := gateway.storage) is not None:
        select = "SELECT id FROM transcripts WHERE agent_id = 'main' AND name = $1"
        stored_rows(storage, f"DELETE FROM entries WHERE transcript_id IN ({select})", name)
        stored_rows(storage, "DELETE FROM transcripts WHERE agent_id = 'main' AND name = $1", name)
    _move_to_database(gateway)


def _move_to_database(gateway: GatewayUnderTest) -> None:
    """Copies the files into the database as ``openclaw storage migrate`` does, and removes them."""
    storage = gateway.storage
    if storage is None:
        return

    async def move() -> None:
        from openclaw.storage.postgres.database import PostgresDatabase
        from openclaw.storage.postgres.move import copy_to_postgres

        database = await PostgresDatabase.open(storage["url"], schema=storage["schema"], pool_size=2)
        try:
            done = await copy_to_postgres(
                gateway.state_dir, database, ["main"], None, SystemClock(), lambda _what, _count: None
            )
            assert not done.conflicts, done.conflicts
        finally:
            await database.close()

    # The caller's event loop is running, and it does not wait.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, move()).result(60)
    shutil.rmtree(gateway.state_dir / "agents")
    for file in gateway.state_dir.glob("ledger.db*"):
        file.unlink()
