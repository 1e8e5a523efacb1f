"""The ledger's memory of channel messages: sliding, bounded, there after a restart."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.storage.files import ledger_db
from openclaw.storage.files.ledger import FileLedger
from tests.storage.still_clock import StillClock


@pytest.fixture
async def clock() -> StillClock:
    return StillClock(0)


@pytest.fixture
async def ledger(tmp_path: Path, clock: StillClock) -> AsyncIterator[FileLedger]:
    opened = await FileLedger.open(str(tmp_path), clock=clock)
    yield opened
    await opened.close()


async def test_a_ledger_from_before_gets_the_memory_and_keeps_its_messages(tmp_path: Path, clock: StillClock) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.executescript(f"{vars(ledger_db)['_SCHEMA']} PRAGMA user_version = 1;")
        db.execute(
            "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state,"
            " accepted_at) VALUES ('r', 'k', 'a', 's', 's', 'x', '{}', '{}', 'accepted', 0)"
        )
        db.commit()
    ledger = await FileLedger.open(str(tmp_path), clock=clock)
    assert await ledger.by_run("r") is not None
    assert [await ledger.seen("a", 1000, 10) for _ in range(2)] == [False, True]
    await ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (ledger_db.SCHEMA_VERSION,)
