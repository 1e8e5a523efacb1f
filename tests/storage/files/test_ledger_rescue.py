"""A ledger whose pages are damaged, or whose file is gone: what can be read goes on, and it says what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import sqlite3
from pathlib import Path

import pytest

from openclaw.messages import Route
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files import ledger_db
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import LedgerError
from openclaw.storage.message_ledger import Accept, MessageBody, OutboxPart
from tests.storage.still_clock import StillClock

PAGE = 4096


def message(number: int) -> Accept:
    body = MessageBody(prompt=f"message {number} " + "x" * 900)
    return Accept(
        run_id=f"run-{number}", dedupe_key="", agent_id="main", session_key="agent:main:main", session_id="s",
        source="webchat", route=Route(channel="signal", to="+1"), body=body,
    )  # fmt: skip


async def filled(state: Path, messages: int = 300) -> None:
    ledger = await FileLedger.open(str(state), clock=StillClock())
    rows = await asyncio.gather(*(ledger.accept(message(number)) for number in range(messages)))
    for row, _ in rows[: messages - 5]:
        parts = [OutboxPart(part=0, channel="signal", payload={"text": "hi"})]
        await ledger.finish(row.id, "answered", result={"text": "hi"}, outbox=parts)
    await ledger.hold("held", b"{}")
    await ledger.close()


def damage(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(os.urandom(PAGE))


def damage_messages(path: Path) -> None:
    """No message can be read then, but their stories can."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").fetchone()
    damage(path, root - 1)


@pytest.mark.parametrize("checked_up_to", [1 << 30, 0], ids=["checked at the start", "met in use"])
async def test_one_bad_page_costs_what_is_on_it_and_the_ledger_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_up_to: int
) -> None:
    monkeypatch.setattr(ledger_db, "_CHECKED_UP_TO", checked_up_to)
    chance, path = random.Random(7), tmp_path / "ledger.db"
    await filled(tmp_path)
    sound = path.read_bytes()
    for _ in range(int(os.environ.get("OPENCLAW_BAD_PAGES", "12"))):
        for left in tmp_path.glob("ledger.db*"):
            left.unlink()
        path.write_bytes(sound)
        damage(path, chance.randrange(1, len(sound) // PAGE))
        repairs = Repairs()
        ledger = await FileLedger.open(str(tmp_path), clock=StillClock(), repairs=repairs)
        await ledger.recent(limit=1000)
        row, new = await ledger.accept(message(1000))
        assert new and row.id > 300
        await ledger.outbox_due(1 << 60, 1000)
        await ledger.held()
        await ledger.unfinished()
        known = [row for number in range(300) if (row := await ledger.by_run(f"run-{number}")) is not None]
        histories = [await ledger.history(row.id) for row in known]
        told = repairs.take()
        await ledger.close()
        if not told:
            continue  # A page that nobody reads.
        (said,) = told
        (aside,) = [one for one in tmp_path.glob("ledger.db.damaged-*") if not one.name.endswith(("-wal", "-shm"))]
        assert aside.name in said and "could be read and were taken over" in said
        assert len(known) >= 150, said
        assert len(known) == 300 or f"lost: {300 - len(known)} messages" in said, said
        assert all(histories) or len(known) == 300


async def test_the_number_of_a_lost_message_is_given_to_no_other(tmp_path: Path) -> None:
    await filled(tmp_path)
    damage_messages(tmp_path / "ledger.db")
    repairs = Repairs()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock(), repairs=repairs)
    assert "0 messages could be read" in repairs.take()[0]
    row, new = await ledger.accept(message(1000))
    assert new and [change.state for change in await ledger.history(row.id)] == ["accepted"]
    assert await ledger.outbox_of(row.id) == []
    await ledger.close()


async def test_a_rescue_that_a_full_disk_prevented_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_db, "_CHECKED_UP_TO", 0)
    await filled(tmp_path)
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    damage_messages(tmp_path / "ledger.db")
    with monkeypatch.context() as full:

        def no_space(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(ledger_db, "_take_over", no_space)
        with pytest.raises(LedgerError) as refused:
            await ledger.recent(limit=1000)
        assert refused.value.errno == errno.ENOSPC
    await ledger.accept(message(1000))
    assert [found.run_id for found in await ledger.recent(limit=1)] == ["run-1000"]
    await ledger.close()


async def test_a_bad_first_page_costs_no_message(tmp_path: Path) -> None:
    await filled(tmp_path, 50)
    damage(tmp_path / "ledger.db", 0)
    repairs = Repairs()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock(), repairs=repairs)
    assert len(await ledger.recent(limit=100)) == 50
    assert "50 messages could be read" in repairs.take()[0]
    assert (await ledger.accept(message(100)))[0].id == 51
    await ledger.close()


async def test_a_deleted_ledger_comes_back_with_everything_its_log_still_held(tmp_path: Path) -> None:
    await filled(tmp_path, 20)
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    await ledger.accept(message(100))
    (tmp_path / "ledger.db").unlink()
    (tmp_path / "ledger.db-shm").unlink()  # As after a kill: the log was not taken over into the file.
    repairs = Repairs()
    again = await FileLedger.open(str(tmp_path), clock=StillClock(), repairs=repairs)
    assert [row.run_id for row in await again.recent(limit=2)] == ["run-100", "run-19"]
    assert "was gone. It was restored from ledger.db.bak" in repairs.take()[0]
    await again.close()
    await ledger.close()


async def test_a_log_without_its_ledger_is_kept_and_told(tmp_path: Path) -> None:
    (tmp_path / "ledger.db-wal").write_bytes(b"something")
    repairs = Repairs()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock(), repairs=repairs)
    assert await ledger.recent() == []
    await ledger.close()
    (kept,) = tmp_path.glob("ledger.db-wal.damaged-*")
    assert kept.read_bytes() == b"something" and kept.name in repairs.take()[0]


async def test_a_flipped_bit_in_one_row_costs_no_other_row(tmp_path: Path) -> None:
    await filled(tmp_path, 10)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.execute("UPDATE messages SET session_key = CAST(X'FF61' AS TEXT), body = X'FF' WHERE id = 10")
        db.execute("UPDATE outbox SET payload = X'FF7B', code = 'g\u00fcnther' WHERE id = 1")
        db.commit()
    ledger = await FileLedger.open(str(tmp_path), clock=StillClock())
    assert len(await ledger.unfinished()) == 5
    (due,) = await ledger.outbox_due(1 << 60)
    first, *others = await ledger.outbox_waiting(due.id)
    assert first.payload == {"text": None} and [part.payload for part in others] == [{"text": "hi"}] * 4
    await ledger.close()
