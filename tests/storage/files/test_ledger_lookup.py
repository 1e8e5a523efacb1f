"""Finding messages again: by state, and by the beginning of a run id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.messages import Route
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.message_ledger import Accept, MessageBody
from tests.storage.still_clock import StillClock


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[FileLedger]:
    opened = await FileLedger.open(str(tmp_path), clock=StillClock())
    yield opened
    await opened.close()


async def accept(ledger: FileLedger, run_id: str, key: str = "agent:main:main") -> int:
    row, _ = await ledger.accept(
        Accept(
            run_id=run_id,
            dedupe_key="",
            agent_id="main",
            session_key=key,
            session_id="s",
            source="webchat",
            route=Route(),
            body=MessageBody(),
        )
    )
    return row.id


async def test_the_beginning_of_a_run_id_is_looked_up_and_not_searched_for(ledger: FileLedger) -> None:
    await accept(ledger, "abc")
    plan = "EXPLAIN QUERY PLAN SELECT * FROM messages WHERE run_id >= 'a' AND run_id < 'b' ORDER BY run_id"
    steps = await ledger._thread.run(lambda db: db.execute(plan).fetchall())  # pyright: ignore[reportPrivateUsage]
    assert [step[3].split(" USING")[0] for step in steps] == ["SEARCH messages"]
