import asyncio
import contextlib
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
from openclaw.storage.base import (
    END_STATES,
    NO_REASON,
    Accept,
    MessageBody,
    OutboxPart,
    Reason,
    ReasonCode,
    StoredImage,
    TurnedAway,
)
from openclaw.storage.files import disk
from openclaw.storage.files.disk import AppendFile, Disk
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import LedgerError
from tests.storage.still_clock import StillClock


def message(number: object = 1, **changes: object) -> Accept:
    fields = {
        "run_id": f"run-{number}",
        "dedupe_key": f"telegram|default|peer|main|{number}",
        "agent_id": "main",
        "session_key": "agent:main:main",
        "session_id": "s",
        "source": "telegram",
        "route": {"channel": "telegram", "to": "1"},
        "body": MessageBody(text=f"hello {number}"),
    }
    return Accept(**{**fields, **changes})


def because(words: str) -> Reason:
    return Reason(ReasonCode.OTHER, words)


@pytest.fixture
async def clock():
    return StillClock()


@pytest.fixture
async def ledger(tmp_path, clock):
    opened = await FileLedger.open(str(tmp_path), clock=clock)
    yield opened
    await opened.close()


async def test_accepted_message_has_everything_needed_to_run_it(ledger, clock):
    row, new = await ledger.accept(message())
    assert new
    assert (row.state, row.attempts, row.accepted_at, row.ended_at) == ("accepted", 0, clock.now, None)
    assert row.body == MessageBody(text="hello 1") and row.route == {"channel": "telegram", "to": "1"}
    assert await ledger.by_run("run-1") == row == await ledger.get(row.id)
    assert await ledger.unfinished() == [row]


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


@pytest.mark.parametrize("again", [{"dedupe_key": "another"}, {"run_id": "another"}, {}])
async def test_known_run_id_or_dedupe_key_is_a_redelivery(ledger, again):
    row, _ = await ledger.accept(message())
    same, new = await ledger.accept(message(**again, body=MessageBody(text="changed")))
    assert not new and same == row


async def test_messages_without_a_dedupe_key_are_told_apart_by_run_id_alone(ledger):
    _, first = await ledger.accept(message(1, dedupe_key=""))
    _, second = await ledger.accept(message(2, dedupe_key=""))
    assert first and second


async def test_redeliveries_arriving_together_are_accepted_once(ledger):
    answers = await asyncio.gather(*(ledger.accept(message(run_id=f"r{n}")) for n in range(20)))
    assert sum(new for _, new in answers) == 1
    assert len({row.id for row, _ in answers}) == 1


async def test_life_of_a_message_is_told_in_order(ledger, clock):
    row, _ = await ledger.accept(message())
    for state in ("queued", "running"):
        clock.now += 10
        await ledger.advance(row.id, state, because(state))
    clock.now += 10
    assert await ledger.finish(row.id, "answered", result={"text": "hi"})
    story = await ledger.story(row.id)
    assert [(step.state, step.reason) for step in story] == [
        ("accepted", NO_REASON),
        ("queued", because("queued")),
        ("running", because("running")),
        ("answered", NO_REASON),
    ]
    ended = await ledger.get(row.id)
    assert (ended.started_at, ended.ended_at, ended.attempts) == (story[2].at, story[3].at, 1)
    assert ended.result == {"text": "hi"}
    assert await ledger.unfinished() == []


@pytest.mark.parametrize("end", sorted(END_STATES))
async def test_message_has_exactly_one_end(ledger, end):
    row, _ = await ledger.accept(message())
    with pytest.raises(ValueError, match="finish"):
        await ledger.advance(row.id, end)
    assert await ledger.finish(row.id, end, reason=because("first"))
    assert not await ledger.finish(
        row.id, "failed", reason=because("second"), outbox=[OutboxPart(part=0, channel="x", payload={})]
    )
    with pytest.raises(ValueError, match="ended"):
        await ledger.advance(row.id, "running")
    assert (await ledger.get(row.id)).reason == because("first")
    assert await ledger.outbox_of(row.id) == []
    with pytest.raises(ValueError, match="advance"):
        await ledger.finish(row.id, "running")


async def test_unknown_messages_are_refused(ledger):
    with pytest.raises(KeyError):
        await ledger.advance(99, "running")
    with pytest.raises(KeyError):
        await ledger.finish(99, "failed")
    with pytest.raises(KeyError):
        await ledger.outbox_mark(99, "sent")
    assert await ledger.get(99) is None and await ledger.by_run("x") is None


async def test_messages_that_come_and_end_together_keep_their_own_rows(ledger, clock):
    first = [row for row, _ in await asyncio.gather(*(ledger.accept(message(number)) for number in range(6)))]
    assert [row.run_id for row in first] == [f"run-{number}" for number in range(6)]
    assert [(await ledger.by_run(row.run_id)).id for row in first] == [row.id for row in first]
    clock.now += 5
    parts = [OutboxPart(part=0, channel="telegram", payload={"text": "hi"})]
    told = await asyncio.gather(
        ledger.finish(first[0].id, "answered", result={"n": 0}, outbox=parts),
        ledger.accept(message("new"), step="queued", reason=Reason(ReasonCode.SESSION_BUSY)),
        ledger.finish(first[1].id, "failed", reason=because("no")),
        ledger.accept(message("newer", dedupe_keys=("k",)), step="running"),
        ledger.finish(first[2].id, "answered"),
    )
    assert [told[0], told[2], told[4]] == [True] * 3 and told[1][1] and told[3][1]
    ends = [(row.state, row.reason.detail, row.result) for row in [await ledger.get(row.id) for row in first[:4]]]
    assert ends == [("answered", "", {"n": 0}), ("failed", "no", None), ("answered", "", None), ("accepted", "", None)]
    assert [part.payload for part in await ledger.outbox_of(first[0].id)] == [{"text": "hi"}]
    assert [(step.state, step.reason) for step in await ledger.story(first[1].id)] == [
        ("accepted", NO_REASON),
        ("failed", because("no")),
    ]
    assert [step.state for step in await ledger.story(told[1][0].id)] == ["accepted", "queued"]
    assert (await ledger.by_run("run-newer")).attempts == 1 and await ledger.seen("k", 1000, 10, remember=False)


async def test_one_of_many_that_has_ended_before_changes_nothing_for_the_others(ledger):
    rows = [row for row, _ in await asyncio.gather(*(ledger.accept(message(number)) for number in range(4)))]
    await ledger.finish(rows[1].id, "failed", reason=because("first"))
    same = OutboxPart(part=0, channel="telegram", payload={})
    told = await asyncio.gather(
        *(ledger.finish(row.id, "answered") for row in rows[:3]),
        ledger.finish(rows[2].id, "failed"),
        ledger.finish(rows[3].id, "answered", outbox=[same, same]),
        ledger.finish(999, "answered"),
        ledger.accept(message(0)),
        ledger.accept(message("new")),
        return_exceptions=True,
    )
    assert told[:4] == [True, False, True, False]
    assert isinstance(told[4], ValueError) and isinstance(told[5], KeyError)
    assert told[6][1] is False and told[6][0].id == rows[0].id and told[7][1]
    assert [(await ledger.get(row.id)).state for row in rows] == ["answered", "failed", "answered", "accepted"]


async def test_refusal_does_not_touch_operations_committed_with_it(ledger):
    row, _ = await ledger.accept(message())
    results = await asyncio.gather(
        ledger.advance(row.id, "running"),
        ledger.advance(99, "running"),
        ledger.accept(message(2)),
        ledger.finish(row.id, "silent"),
        return_exceptions=True,
    )
    assert isinstance(results[1], KeyError)
    assert results[3] is True
    assert [r.run_id for r in await ledger.unfinished()] == ["run-2"]


async def test_parts_to_deliver_are_stored_with_the_end_and_retried_until_sent(ledger, clock):
    row, _ = await ledger.accept(message())
    parts = [OutboxPart(part=n, channel="telegram", payload={"text": f"p{n}"}) for n in range(3)]
    await ledger.finish(row.id, "answered", outbox=parts)
    due = await ledger.outbox_due(clock.now)
    assert [(part.part, part.payload["text"], part.route) for part in due] == [
        (n, f"p{n}", row.route) for n in range(3)
    ]
    await ledger.outbox_mark(due[0].id, "sending")
    await ledger.outbox_mark(due[0].id, "sent")
    await ledger.outbox_mark(due[1].id, "sending")
    await ledger.outbox_mark(due[1].id, "pending", next_at=clock.now + 500, error="flood wait")
    assert [part.part for part in await ledger.outbox_due(clock.now)] == [2]
    assert [part.part for part in await ledger.outbox_due(clock.now + 500)] == [2, 1]
    states = [(part.state, part.attempts, part.error) for part in await ledger.outbox_of(row.id)]
    assert states == [("sent", 1, ""), ("pending", 1, "flood wait"), ("pending", 0, "")]


async def test_part_being_sent_at_a_crash_waits_again_and_says_so(tmp_path, ledger, clock):
    row, _ = await ledger.accept(message())
    await ledger.finish(row.id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    (part,) = await ledger.outbox_due(clock.now)
    await ledger.outbox_mark(part.id, "sending")
    await ledger.close()
    again = await FileLedger.open(str(tmp_path), clock=clock)
    (due,) = await again.outbox_due(clock.now)
    assert (due.state, due.attempts, due.doubts, due.error) == ("pending", 1, 1, "")
    await again.close()


async def test_two_parts_with_one_number_are_refused_as_a_whole(ledger):
    row, _ = await ledger.accept(message())
    same = [OutboxPart(part=0, channel="c", payload={}), OutboxPart(part=0, channel="c", payload={})]
    with pytest.raises(ValueError, match="same number"):
        await ledger.finish(row.id, "answered", outbox=same)
    assert (await ledger.get(row.id)).state == "accepted"


async def test_tool_call_without_a_result_is_seen_after_a_restart(tmp_path, ledger, clock):
    row, _ = await ledger.accept(message())
    await ledger.tool_started(row.id, "c2", "exec", '{"command":"ls"}')
    await ledger.tool_started(row.id, "c1", "read", "{}")
    await ledger.tool_started(row.id, "c1", "read", "{}")
    await ledger.tool_finished(row.id, "c2", ok=False)
    await ledger.close()
    again = await FileLedger.open(str(tmp_path), clock=clock)
    calls = await again.tool_calls(row.id)
    assert [(call.call_id, call.ok, call.finished_at is None) for call in calls] == [
        ("c2", False, False),
        ("c1", None, True),
    ]
    await again.close()


async def test_recent_messages_come_newest_first_and_per_session(ledger):
    for number in range(4):
        await ledger.accept(message(number, session_key=f"agent:main:{number % 2}"))
    assert [row.run_id for row in await ledger.recent(limit=3)] == ["run-3", "run-2", "run-1"]
    assert [row.run_id for row in await ledger.recent(session_key="agent:main:0")] == ["run-2", "run-0"]


async def test_pruning_keeps_what_is_unfinished_or_undelivered(ledger, clock):
    rows = [(await ledger.accept(message(n)))[0] for n in range(4)]
    await ledger.finish(rows[0].id, "answered")
    await ledger.finish(rows[1].id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    await ledger.finish(rows[2].id, "answered", outbox=[OutboxPart(part=0, channel="c", payload={})])
    (part,) = await ledger.outbox_of(rows[2].id)
    await ledger.outbox_mark(part.id, "dead")
    assert await ledger.prune(clock.now) == 0
    assert await ledger.prune(clock.now + 1) == 2
    assert [row.run_id for row in await ledger.recent()] == ["run-3", "run-1"]
    assert await ledger.story(rows[0].id) == []
    assert (await ledger.accept(message(9)))[0].id > rows[3].id


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
from openclaw.storage.base import Accept, MessageBody
from openclaw.storage.files.ledger import FileLedger

async def main():
    ledger = await FileLedger.open(sys.argv[1], clock=SystemClock())
    async def accept(n):
        await ledger.accept(Accept(run_id=f"r{n}", dedupe_key=f"d{n}", agent_id="main", session_key="k",
                                   session_id="s", source="t", route={}, body=MessageBody(text="x" * 200)))
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
    assert users <= {"ledger.py", "ledger_db.py", "generation.py", "check.py"} | {
        path.name for path in source.glob("cli/*.py")
    }


async def test_a_message_that_starts_at_once_is_accepted_and_begun_in_one_step(ledger: FileLedger) -> None:
    row, new = await ledger.accept(message(), step="running")
    assert new and (row.state, row.attempts) == ("accepted", 0), "what was before this attempt"
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("running", 1) and stored.started_at is not None
    assert [step.state for step in await ledger.story(row.id)] == ["accepted", "running"]
    assert [one.id for one in await ledger.unfinished()] == [row.id]
    await ledger.finish(row.id, "answered")
    assert [step.state for step in await ledger.story(row.id)] == ["accepted", "running", "answered"]


async def test_a_message_that_waits_is_accepted_with_the_reason_in_one_step(ledger: FileLedger) -> None:
    row, new = await ledger.accept(message(), step="queued", reason=Reason(ReasonCode.SESSION_BUSY))
    assert new and (row.state, row.attempts) == ("accepted", 0)
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("queued", 0)
    assert [(step.state, step.reason) for step in await ledger.story(row.id)] == [
        ("accepted", NO_REASON),
        ("queued", Reason(ReasonCode.SESSION_BUSY)),
    ]
    await ledger.advance(row.id, "running")
    stored = await ledger.get(row.id)
    assert stored is not None and (stored.state, stored.attempts) == ("running", 1)


async def test_a_new_key_is_known_to_be_new_without_asking_and_a_forgotten_list_is_learnt_again(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.storage.files.ledger.MOST_KEYS", 10)
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


async def test_a_message_is_found_by_its_channels_id_and_not_by_a_part_of_it(ledger: FileLedger) -> None:
    body = MessageBody(prompt="the words 1794766940494", message_ids=["17947", '"odd"'])
    row, _ = await ledger.accept(message(body=body))
    for name in ("17947", '"odd"'):
        found = await ledger.by_message_id(name)
        assert found is not None and found.id == row.id
    assert await ledger.by_message_id("1794766940494") is None
    assert await ledger.by_message_id("1794") is None


async def test_messages_that_were_turned_away_are_counted_and_bounded(
    ledger: FileLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.storage.files.ledger.MOST_TURNED_AWAY", 3)
    denied = TurnedAway(message_id="7", channel="signal", chat="+1", code=ReasonCode.ACCESS_DENIED, detail="a rule")
    for _ in range(3):
        await ledger.turn_away(denied)
    await ledger.turn_away(TurnedAway(message_id="7", channel="signal", chat="+2", code=ReasonCode.REDELIVERED))
    found = await ledger.turned_away(["7", "8"])
    assert [(note.chat, note.code, note.count, note.detail) for note in found] == [
        ("+1", ReasonCode.ACCESS_DENIED, 3, "a rule"),
        ("+2", ReasonCode.REDELIVERED, 1, ""),
    ]
    for number in range(10, 13):
        await ledger.turn_away(TurnedAway(message_id=str(number), channel="signal", code=ReasonCode.NOT_ADDRESSED))
    assert await ledger.turned_away(["7"]) == []
    assert len(await ledger.turned_away(["10", "11", "12"])) == 3
