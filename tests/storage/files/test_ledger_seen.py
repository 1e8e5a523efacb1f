"""The ledger's memory of channel messages: sliding, bounded, there after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.storage.base import Accept, MessageBody
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


async def test_a_hit_counts_from_the_last_time_it_was_seen(ledger: FileLedger, clock: StillClock) -> None:
    answers: list[bool] = []
    for clock.now in (0, 999, 1998, 2999):
        answers.append(await ledger.seen("a", 1000, 10))
    assert answers == [False, True, True, False]


async def test_the_oldest_gives_way_when_there_are_too_many(ledger: FileLedger) -> None:
    answers = [await ledger.seen(key, 1000, 2) for key in ("a", "b", "c", "c", "b", "a")]
    assert answers == [False, False, False, True, True, False]


async def test_an_empty_key_is_never_seen(ledger: FileLedger) -> None:
    assert [await ledger.seen("", 1000, 10) for _ in range(2)] == [False, False]


async def test_asking_only_does_not_remember_but_a_hit_still_slides(ledger: FileLedger, clock: StillClock) -> None:
    assert [await ledger.seen("a", 1000, 10, remember=False) for _ in range(2)] == [False, False]
    await ledger.seen("a", 1000, 10)
    clock.now = 900
    assert await ledger.seen("a", 1000, 10, remember=False)
    clock.now = 1800
    assert await ledger.seen("a", 1000, 10, remember=False)


async def test_of_redeliveries_arriving_together_one_is_new(ledger: FileLedger) -> None:
    answers = await asyncio.gather(*(ledger.seen("a", 1000, 10) for _ in range(20)))
    assert answers.count(False) == 1


async def test_what_was_seen_is_still_known_after_a_restart(tmp_path: Path, clock: StillClock) -> None:
    for expected in (False, True):
        ledger = await FileLedger.open(str(tmp_path), clock=clock)
        assert await ledger.seen("a", 1000, 10) is expected
        await ledger.close()


async def test_a_message_and_the_keys_of_its_parts_are_written_together(ledger: FileLedger) -> None:
    parts = ("signal|1", "signal|2")
    await ledger.accept(
        Accept(
            run_id="r",
            dedupe_key="signal|2",
            agent_id="main",
            session_key="agent:main:main",
            session_id="s",
            source="signal",
            route={},
            body=MessageBody(),
            dedupe_keys=parts,
        )
    )
    assert [await ledger.seen(key, 1000, 10) for key in (*parts, "signal|3")] == [True, True, False]


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
