"""Messages that need no run, and what the platform called the parts that were sent."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from openclaw.messages import Route
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.message_ledger import Accept, MessageBody, OutboxPart
from tests.storage.still_clock import StillClock

PARTS = [OutboxPart(part=number, channel="signal", payload={"text": text}) for number, text in enumerate("ab")]


def accept(run_id: str = "r1") -> Accept:
    return Accept(
        run_id=run_id,
        dedupe_key=f"send|{run_id}",
        agent_id="main",
        session_key="agent:main:main",
        session_id="",
        source="send",
        route=Route(channel="signal", to="ann"),
        body=MessageBody(text="ab"),
    )


@pytest.mark.parametrize("version", [1, 2])
async def test_an_older_ledger_learns_the_platforms_ids(tmp_path: Path, version: int) -> None:
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    row, _ = await ledger.post(accept(), PARTS)
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as older:
        older.execute("ALTER TABLE outbox DROP COLUMN message_id")
        for table in ("messages", "story"):
            older.execute(f"ALTER TABLE {table} DROP COLUMN code")
            older.execute(f"ALTER TABLE {table} RENAME COLUMN detail TO reason")
        older.execute("ALTER TABLE outbox DROP COLUMN code")
        older.execute("ALTER TABLE outbox DROP COLUMN doubts")
        older.execute("ALTER TABLE outbox DROP COLUMN answered_errors")
        older.execute("DROP INDEX outbox_pending")
        older.execute("ALTER TABLE outbox DROP COLUMN destination")
        older.execute("CREATE INDEX outbox_pending ON outbox (next_at, id) WHERE state = 'pending'")
        for table in ("held", "turned_away"):
            older.execute(f"DROP TABLE {table}")
        if version == 1:
            older.execute("DROP TABLE seen")
        older.execute(f"PRAGMA user_version = {version}")
    older.close()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    first, second = await ledger.outbox_of(row.id)
    await ledger.outbox_mark(first.id, "sent", message_id="1700")
    first, second = await ledger.outbox_of(row.id)
    assert (first.message_id, second.message_id) == ("1700", "")
    assert await ledger.outbox_waiting(first.id) == [second], "the migration names the destination of each part"
    await ledger.close()
