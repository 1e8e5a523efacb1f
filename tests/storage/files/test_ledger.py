import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw.messages import ToolSpec
from openclaw.storage.disk_errors import is_storage_failure, refusal_text
from openclaw.storage.files import disk
from openclaw.storage.files.disk import AppendFile, Disk
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import LedgerError, ledger_error
from openclaw.storage.message_ledger import MessageBody, Reason, ReasonCode, RejectedMessage, StoredImage
from tests.storage.conformance.messages import message
from tests.storage.still_clock import StillClock


@pytest.fixture
async def clock():
    return StillClock()


@pytest.fixture
async def ledger(tmp_path, clock):
    opened = await FileLedger.open(str(tmp_path), clock=clock)
    yield opened
    await opened.close()


OLD_BODIES = [
    (
        '{"prompt":"look","images":[{"blob":"ab12","mimeType":"image/png"}],"thinking":"high","elevatedAllowed":true,'
        '"exec":{"host":"node"},"authProfile":"openai:work","messageIds":["1","2"],"timeoutSeconds":30,"maxTokens":77,'
        '"clientTools":[{"name":"f","description":"d","parameters":{"type":"object"}}],"toolChoice":{"name":"f"}}',
        MessageBody(
            prompt="look",
            images=[StoredImage("ab12", "image/png")],
            thinking="high",
            elevated_allowed=True,
            exec={"host": "node"},
            auth_profile="openai:work",
            message_ids=["1", "2"],
            timeout_seconds=30,
            max_tokens=77,
            client_tools=[ToolSpec(name="f", description="d", parameters={"type": "object"})],
            tool_choice={"name": "f"},
        ),
    ),
    ('{"prompt":"","toolOutputs":[]}', MessageBody(prompt="")),
    ('{"prompt":"x","fromANewerVersion":{"a":1}}', MessageBody(prompt="x")),
    ('{"text":"delivered"}', MessageBody(text="delivered")),
    ('{"prompt":7}', MessageBody()),
    ("not JSON", MessageBody()),
]


@pytest.mark.parametrize(("stored", "body"), OLD_BODIES)
async def test_body_written_by_an_earlier_version_is_read_and_a_damaged_one_is_empty(ledger, stored, body):
    row, _ = await ledger.accept(message())
    statement = "UPDATE messages SET body = ?"
    await ledger._thread.run(lambda db: db.execute(statement, (stored.encode(),)).rowcount)
    assert (await ledger.get(row.id)).body == body


async def test_body_is_written_as_camel_case_json_without_defaults(ledger):
    stored, body = OLD_BODIES[0]
    await ledger.accept(message(body=body))
    raw = await ledger._thread.run(lambda db: db.execute("SELECT body FROM messages").fetchone()[0])
    assert json.loads(raw) == json.loads(stored)


async def test_damaged_ledger_is_kept_aside(tmp_path, ledger, clock):
    await ledger.accept(message())
    await ledger.close()
    (tmp_path / "ledger.db").write_bytes(b"this is not a database" * 500)
    again = await FileLedger.open(str(tmp_path), clock=clock)
    assert await again.unfinished() == []
    (kept,) = tmp_path.glob("ledger.db.damaged-*")
    assert kept.read_bytes().startswith(b"this is not a database")
    await again.close()


async def test_ledger_of_a_newer_version_is_refused_and_left_alone(tmp_path, ledger, clock):
    await ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="newer version"):
        await FileLedger.open(str(tmp_path), clock=clock)
    assert not list(tmp_path.glob("*.damaged-*"))


async def test_full_disk_is_reported_and_the_ledger_recovers(ledger):
    await ledger.accept(message(1))
    await ledger._thread.run(lambda db: db.execute("PRAGMA max_page_count = 1").fetchone())
    big = MessageBody(text="x" * 1_000_000)
    results = await asyncio.gather(
        ledger.accept(message(2, body=big)), ledger.accept(message(3, body=big)), return_exceptions=True
    )
    assert all(isinstance(result, LedgerError) and "full" in str(result) for result in results)
    await ledger._thread.run(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    row, new = await ledger.accept(message(2, body=big))
    assert new and row.body == big
    assert [row.run_id for row in await ledger.unfinished()] == ["run-1", "run-2"]


async def test_operation_refused_halfway_leaves_nothing_behind(ledger):
    row, _ = await ledger.accept(message())

    def halfway(db):
        db.execute("UPDATE messages SET detail = 'half done'")
        raise ValueError("changed my mind")

    results = await asyncio.gather(
        ledger.accept(message(2)), ledger._thread.run(halfway), ledger.accept(message(3)), return_exceptions=True
    )
    assert isinstance(results[1], ValueError)
    assert [(kept.run_id, kept.reason.detail) for kept in await ledger.unfinished()] == [
        ("run-1", ""),
        ("run-2", ""),
        ("run-3", ""),
    ]
    with pytest.raises(KeyError):
        await ledger.absorb(row.id, {99: Reason(ReasonCode.COLLECTED)}, body=MessageBody(prompt="all"))
    assert (await ledger.get(row.id)).body.prompt is None


async def test_broken_operation_does_not_stop_the_thread(ledger):
    with pytest.raises(TypeError):
        await ledger._thread.run(lambda db: len(5))
    assert (await ledger.accept(message()))[1]


async def test_ledger_is_the_owners_only_fully_synchronous_and_says_when_it_is_closed(tmp_path, ledger):
    await ledger.accept(message())
    for path in tmp_path.glob("ledger.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    settings = await ledger._thread.run(
        lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    )
    assert settings == ["wal", 2]
    await ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        await ledger.unfinished()


CHILD = """
import asyncio, sys
from openclaw.clock import SystemClock
from openclaw.messages import Route
from openclaw.storage.message_ledger import Accept, MessageBody
from openclaw.storage.files.ledger import FileLedger

async def main():
    ledger = await FileLedger.open(sys.argv[1], clock=SystemClock())
    async def accept(n):
        await ledger.accept(Accept(run_id=f"r{n}", dedupe_key=f"d{n}", agent_id="main", session_key="k",
                                   session_id="s", source="t", route=Route(), body=MessageBody(text="x" * 200)))
        sys.stdout.write(f"r{n}\\n")
        sys.stdout.flush()
    n = 0
    while True:
        await asyncio.gather(*(accept(n + i) for i in range(8)))
        n += 8

asyncio.run(main())
"""


async def test_every_acknowledged_message_survives_kill_9(tmp_path, clock):
    acknowledged: set[str] = set()
    for _ in range(3):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(tmp_path), stdout=subprocess.PIPE, env={**os.environ}
        )
        assert child.stdout is not None
        for _ in range(60):
            acknowledged.add((await child.stdout.readline()).decode().strip())
        child.send_signal(signal.SIGKILL)
        rest = await child.stdout.read()
        acknowledged |= set(rest.decode().split("\n")[:-1])
        await child.wait()
    ledger = await FileLedger.open(str(tmp_path), clock=clock)
    kept = {row.run_id for row in await ledger.unfinished()}
    assert acknowledged - {""} <= kept
    assert await ledger._thread.run(lambda db: db.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
    await ledger.close()


def test_nothing_but_sqlite_opens_the_database():
    """A plain open and close of the file would drop SQLite's locks on it."""
    source = Path(__file__).parents[3] / "src" / "openclaw"
    users = {path.name for path in source.rglob("*.py") if "ledger.db" in path.read_text()}
    assert users <= {"ledger.py", "ledger_db.py", "newer_state.py", "check.py", "move.py", "restore.py"} | {
        path.name for path in source.glob("cli/*.py")
    }


async def test_a_key_is_new_until_a_message_with_it_is_accepted(ledger: FileLedger) -> None:
    for number in range(200):
        key = f"signal|ann|{number}"
        assert not await ledger.seen(key, 60_000, 5000, remember=False)
        await ledger.accept(message(number, dedupe_keys=(key,)))
        assert await ledger.seen(key, 60_000, 5000, remember=False)
        assert await ledger.seen(f"signal|ann|{number // 2}", 60_000, 5000, remember=False)


async def test_what_a_message_follows_is_on_disk_before_it_is_accepted(tmp_path, ledger, monkeypatch):
    rows = []

    def synced(fd):
        with sqlite3.connect(tmp_path / "ledger.db") as other:
            rows.extend(other.execute("SELECT run_id FROM messages").fetchall())
        os.fsync(fd)

    monkeypatch.setattr(disk, "_sync_data", synced)
    shared = Disk()
    journal = AppendFile(tmp_path / "sessions.journal", shared)
    journal.append(b"a new session\n")
    _, new = await ledger.accept(message(), after=journal)
    assert new
    assert journal.is_durable
    assert rows == [], "the message is not there before what it follows"
    await shared.close()


async def test_a_message_whose_session_cannot_be_kept_is_not_accepted(tmp_path, ledger, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    shared = Disk()
    journal = AppendFile(tmp_path / "sessions.journal", shared)
    journal.append(b"a new session\n")
    monkeypatch.setattr(disk, "_sync_data", full)
    with pytest.raises(OSError, match="No space left"):
        await ledger.accept(message(), after=journal)
    monkeypatch.undo()
    assert await ledger.by_run("run-1") is None
    _, new = await ledger.accept(message(), after=journal)
    assert new
    await shared.close()


@pytest.mark.parametrize("plenty", [True, False], ids=["plenty-of-space", "little-space"])
async def test_the_log_has_its_full_length_from_the_start_where_there_is_space(tmp_path, clock, monkeypatch, plenty):
    monkeypatch.setattr("openclaw.storage.files.ledger_db._SPARE_BYTES", 0 if plenty else 1 << 60)
    log = tmp_path / "ledger.db-wal"
    for life in range(3):
        ledger = await FileLedger.open(str(tmp_path), clock=clock)
        before = log.stat().st_size
        for number in range(5):
            await ledger.accept(message(f"{life}-{number}"))
        assert (log.stat().st_size == before) is plenty, "no commit has to lengthen it"
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
            assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        await ledger.close()
    ledger = await FileLedger.open(str(tmp_path), clock=clock)
    assert len(await ledger.recent()) == 15
    await ledger.close()


async def test_what_was_left_in_a_long_log_by_a_crash_is_found(tmp_path, ledger, clock):
    await ledger.accept(message())
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in tmp_path.glob("ledger.db*"):
        shutil.copy(file, crashed)
    assert (crashed / "ledger.db-wal").stat().st_size > 4_000_000
    again = await FileLedger.open(str(crashed), clock=clock)
    assert (await again.by_run("run-1")) is not None
    await again.close()


async def test_messages_that_were_turned_away_are_counted_and_bounded(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.storage.files.ledger.MOST_REJECTED", 3)
    denied = RejectedMessage(
        message_id="7", channel="signal", chat="+1", code=ReasonCode.ACCESS_DENIED, detail="a rule"
    )
    for _ in range(3):
        await ledger.note_rejected(denied)
    await ledger.note_rejected(
        RejectedMessage(message_id="7", channel="signal", chat="+2", code=ReasonCode.REDELIVERED)
    )
    found = await ledger.rejected(["7", "8"])
    assert [(note.chat, note.code, note.count, note.detail) for note in found] == [
        ("+1", ReasonCode.ACCESS_DENIED, 3, "a rule"),
        ("+2", ReasonCode.REDELIVERED, 1, ""),
    ]
    for number in range(10, 13):
        await ledger.note_rejected(
            RejectedMessage(message_id=str(number), channel="signal", code=ReasonCode.NOT_ADDRESSED)
        )
    assert await ledger.rejected(["7"]) == []
    assert len(await ledger.rejected(["10", "11", "12"])) == 3


PASSING = {
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_BUSY_SNAPSHOT: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_PROTOCOL: errno.EBUSY,
    sqlite3.SQLITE_INTERRUPT: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR_WRITE: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_AUTH: errno.EACCES,
    sqlite3.SQLITE_NOLFS: errno.EFBIG,
}


@pytest.mark.parametrize(("code", "number"), PASSING.items())
def test_a_passing_error_of_sqlite_is_told_by_its_code(code: int, number: int) -> None:
    problem = sqlite3.OperationalError("no")
    problem.sqlite_errorcode = code
    error = ledger_error("not written", problem)
    assert error.errno == number and is_storage_failure(error)


def test_any_other_error_of_sqlite_has_its_reason_and_is_not_known_to_pass() -> None:
    problem = sqlite3.OperationalError("not like this")
    problem.sqlite_errorcode = sqlite3.SQLITE_ERROR
    error = ledger_error("not written", problem)
    text = refusal_text(error)
    assert not is_storage_failure(error) and text is not None and "not like this" in text
