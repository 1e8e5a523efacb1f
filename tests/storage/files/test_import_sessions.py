"""A state folder of the newer generation is read, not written; nothing is lost on the way and nothing comes twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.storage.files.import_sessions import ImportedSession, import_sessions
from openclaw.storage.files.newer_state import (
    ARCHIVE,
    StateWatch,
    Unreadable,
    check_generation,
    hidden_sessions,
    missing_stores,
)
from openclaw.storage.files.session_store import FileSessionStore, sessions_folders
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import TranscriptRef

from .newer_state import add_ended, add_session, conversation, database, make_cold

MAIN = "agent:main:main"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    (tmp_path / "ours").mkdir(mode=0o700)
    return tmp_path / "ours"


def hashes(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


async def imported(theirs: Path, ours: Path, *, dry_run: bool = False) -> list[ImportedSession]:
    before = hashes(theirs)
    store = await FileSessionStore.open(str(ours), clock=SystemClock(), agent_ids=["main"])
    try:
        return [session async for session in import_sessions(theirs, ours, store, dry_run=dry_run)]
    finally:
        await store.close()
        assert hashes(theirs) == before, "the other folder was written to"


async def said(ours: Path, session_id: str, agent: str = "main") -> list[str]:
    """What the model would see of the session."""
    transcripts = FileTranscriptStore(str(ours), clock=SystemClock())
    transcript = await transcripts.open(TranscriptRef(agent_id=agent, session_id=session_id), create=False)
    assert transcript is not None
    messages = transcript.context().messages
    await transcripts.close()
    return [message if isinstance(message, str) else _text(message) for message in messages]


def _text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(getattr(block, "text", "") for block in content)


def entries(ours: Path, agent: str = "main") -> dict[str, Any]:
    return json.loads((ours / "agents" / agent / "sessions" / "sessions.json").read_text())


@pytest.mark.parametrize(
    ("schema", "compressed"), [(8, False), (14, False), (21, False), (23, True), (25, True), (99, True)]
)
async def test_every_known_layout_is_read_line_by_line(theirs: Path, ours: Path, schema: int, compressed: bool) -> None:
    events = conversation("s1", "Hallo Jörg 🦞", "Guten Tag", "x" * 5000, "ok")
    base = database(theirs, schema=schema)
    add_session(
        base, MAIN, "s1", events, compressed=compressed, entry={"label": "Home", "pinnedAt": 3, "thinkingLevel": "low"}
    )
    (report,) = await imported(theirs, ours)
    lines = [json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n" for event in events]
    assert (report.outcome, report.key, report.events) == ("imported", MAIN, 5)
    assert report.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    written = (ours / "agents/main/sessions/s1.jsonl").read_text("utf-8")
    header = lines[0].replace('"version":4', '"version":3')
    assert written.startswith("".join([header, *lines[1:]])) and written.count("\n") == 6
    entry = entries(ours)[MAIN]
    assert (entry["sessionId"], entry["label"], entry["thinkingLevel"]) == ("s1", "Home", "low")
    assert "sessionFile" not in entry and "pinnedAt" not in entry
    assert await said(ours, "s1") == ["Hallo Jörg 🦞", "Guten Tag", "x" * 5000, "ok"]


async def test_a_header_of_format_4_says_3_so_that_the_other_version_takes_the_transcript_back(
    theirs: Path, ours: Path
) -> None:
    add_session(database(theirs), MAIN, "s1", conversation("s1", "Hello", "Good day", version=4))
    assert [report.outcome for report in await imported(theirs, ours)] == ["imported"]
    file = ours / "agents/main/sessions/s1.jsonl"
    header, *rest = file.read_text().splitlines(keepends=True)
    assert json.loads(header)["version"] == 3 and await said(ours, "s1") == ["Hello", "Good day"]
    assert [report.outcome for report in await imported(theirs, ours)] == ["present"]
    file.write_text("".join([json.dumps({**json.loads(header), "version": 4}, separators=(",", ":")) + "\n", *rest]))
    assert [report.outcome for report in await imported(theirs, ours)] == ["present"], "as earlier versions copied it"


async def test_importing_twice_adds_nothing_and_an_interrupted_one_goes_on(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    for number in range(4):
        add_session(base, f"agent:main:c{number}", f"s{number}", conversation(f"s{number}", "q", "a"))
    store = await FileSessionStore.open(str(ours), clock=SystemClock(), agent_ids=["main"])
    source = import_sessions(theirs, ours, store)
    await anext(source)  # The transcript of the first is written, its entry is not.
    await source.aclose()
    await store.close()
    assert [report.outcome for report in await imported(theirs, ours)] == ["imported"] * 4
    before = hashes(ours)
    assert [report.outcome for report in await imported(theirs, ours)] == ["present"] * 4
    assert {path: digest for path, digest in hashes(ours).items() if "journal" not in path} == {
        path: digest for path, digest in before.items() if "journal" not in path
    }


async def test_a_session_that_went_on_here_is_left_alone(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    add_session(base, MAIN, "s1", conversation("s1", "q", "a"))
    await imported(theirs, ours)
    file = ours / "agents/main/sessions/s1.jsonl"
    file.write_text(file.read_text() + '{"type":"message","id":"new","parentId":"import"}\n')
    before = file.read_bytes()
    (report,) = await imported(theirs, ours)
    assert report.outcome == "present" and file.read_bytes() == before


async def test_one_that_went_on_there_is_a_conflict_that_is_told(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    add_session(base, MAIN, "s1", conversation("s1", "q", "a"))
    await imported(theirs, ours)
    with sqlite3.connect(base) as open_base:
        open_base.execute(
            "INSERT INTO transcript_events (session_id, seq, event_json, created_at) VALUES ('s1', 9, '{}', 1)"
        )
    open_base.close()
    before = (ours / "agents/main/sessions/s1.jsonl").read_bytes()
    (report,) = await imported(theirs, ours)
    assert report.outcome == "conflict" and "went on there" in report.detail
    assert (ours / "agents/main/sessions/s1.jsonl").read_bytes() == before


async def test_a_key_that_is_taken_keeps_its_session_and_gets_the_other_as_an_earlier_one(
    theirs: Path, ours: Path
) -> None:
    base = database(theirs)
    add_session(base, MAIN, "s1", conversation("s1", "q", "a"))
    folder = ours / "agents/main/sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text(json.dumps({MAIN: {"sessionId": "mine", "updatedAt": 5}}))
    (report,) = await imported(theirs, ours)
    assert report.outcome == "conflict" and f"sessions resume {MAIN} --session s1" in report.detail
    entry = entries(ours)[MAIN]
    assert entry["sessionId"] == "mine" and entry["previousSessions"][0]["sessionId"] == "s1"
    (again,) = await imported(theirs, ours)
    assert again.outcome == "present" and len(entries(ours)[MAIN]["previousSessions"]) == 1


async def test_sessions_that_a_reset_ended_come_as_earlier_ones(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    add_session(base, MAIN, "old", conversation("old", "1", "2"), current=False, updated=100)
    add_session(base, MAIN, "older", conversation("older", "1", "2"), current=False, updated=50)
    add_session(base, MAIN, "now", conversation("now", "3", "4"), updated=200)
    assert len(await imported(theirs, ours)) == 3
    entry = entries(ours)[MAIN]
    assert entry["sessionId"] == "now"
    assert [previous["sessionId"] for previous in entry["previousSessions"]] == ["old", "older"]


@pytest.mark.parametrize("compressed", [True, False])
async def test_an_ended_session_comes_from_its_archive_and_a_deleted_one_stays_deleted(
    theirs: Path, ours: Path, compressed: bool
) -> None:
    base = database(theirs)
    add_session(base, MAIN, "now", conversation("now", "3", "4"))
    add_ended(base, MAIN, "before", conversation("before", "1", "2"), reason="reset", compressed=compressed)
    add_ended(base, MAIN, "gone", conversation("gone", "1", "2"), reason="deleted", compressed=compressed)
    assert {report.session_id for report in await imported(theirs, ours)} == {"now", "before"}
    assert [previous["sessionId"] for previous in entries(ours)[MAIN]["previousSessions"]] == ["before"]
    assert await said(ours, "before") == ["1", "2"]


@pytest.mark.parametrize("in_file", [True, False])
async def test_cold_transcripts_are_read_and_checked(theirs: Path, ours: Path, in_file: bool) -> None:
    base = database(theirs, schema=21)
    add_session(base, MAIN, "s1", conversation("s1", "long ago", "yes"))
    make_cold(base, "s1", in_file=in_file)
    (report,) = await imported(theirs, ours)
    assert (report.outcome, report.events) == ("imported", 3)
    assert await said(ours, "s1") == ["long ago", "yes"]


async def test_a_missing_or_damaged_part_fails_by_name_and_the_rest_comes(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    add_session(base, "agent:main:a", "cold", conversation("cold", "x", "y"))
    make_cold(base, "cold", in_file=True)
    next((theirs / "agents/main/sessions/cold").iterdir()).write_bytes(b"damaged")
    add_session(base, "agent:main:b", "packed", conversation("packed", "x", "y"), compressed=True)
    add_session(base, "agent:main:c", "whole", conversation("whole", "x", "y"))
    with sqlite3.connect(base) as open_base:
        open_base.execute("UPDATE transcript_events SET event_zstd = x'0102' WHERE session_id = 'packed' AND seq = 1")
    open_base.close()
    reports = {report.session_id: report for report in await imported(theirs, ours)}
    assert {name: report.outcome for name, report in reports.items()} == {
        "cold": "failed", "packed": "failed", "whole": "imported",
    }  # fmt: skip
    assert "cold" in reports["cold"].detail and "damaged" in reports["packed"].detail
    assert list(entries(ours)) == ["agent:main:c"]


async def test_the_branch_that_was_active_there_is_active_here(theirs: Path, ours: Path) -> None:
    events = conversation("s1", "keep", "left")
    events.append({"type": "leaf", "id": "l1", "parentId": "e1", "targetId": "e0"})
    message = {"role": "assistant", "content": [{"type": "text", "text": "beside"}], "stopReason": "stop"}
    events.append({"type": "message", "id": "side", "parentId": "e1", "appendMode": "side", "message": message})
    add_session(database(theirs), MAIN, "s1", events)
    await imported(theirs, ours)
    assert await said(ours, "s1") == ["keep"]


async def test_what_a_reset_ended_inside_a_transcript_is_no_part_of_the_conversation(theirs: Path, ours: Path) -> None:
    events = conversation("s1", "before", "the reset")
    message = {"role": "user", "content": "after", "timestamp": 5}
    events.append({"type": "reset", "id": "r", "parentId": "e1", "reason": "daily"})
    events.append({"type": "message", "id": "n", "parentId": "r", "message": message})
    add_session(database(theirs), MAIN, "s1", events)
    await imported(theirs, ours)
    summary, *rest = await said(ours, "s1")
    assert "was reset" in summary and rest == ["after"]


async def test_lines_of_the_old_flat_format_are_linked(theirs: Path, ours: Path) -> None:
    events = conversation("s1", "one", "two", "three", version=2)
    for event in events[1:]:
        del event["parentId"]
    add_session(database(theirs), MAIN, "s1", events)
    assert [report.outcome for report in await imported(theirs, ours)] == ["imported"]
    assert await said(ours, "s1") == ["one", "two", "three"]
    assert [report.outcome for report in await imported(theirs, ours)] == ["present"]


async def test_what_is_only_in_the_log_of_the_database_is_not_missed(theirs: Path, ours: Path) -> None:
    base = database(theirs)
    writer = sqlite3.connect(base)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("SELECT * FROM schema_meta").fetchall()  # The log stays while somebody has it open.
    add_session(base, MAIN, "s1", conversation("s1", "q", "a"))
    assert Path(f"{base}-wal").stat().st_size
    store = await FileSessionStore.open(str(ours), clock=SystemClock(), agent_ids=["main"])
    reports = [report async for report in import_sessions(theirs, ours, store)]
    await store.close()
    writer.close()
    assert [(report.outcome, report.events) for report in reports] == [("imported", 3)]


async def test_archived_and_plain_transcripts_are_found_without_a_database(theirs: Path, ours: Path) -> None:
    home = theirs / "agents" / "main"
    (home / "sessions").mkdir(parents=True)
    (home / ARCHIVE).mkdir()
    listed = {MAIN: {"sessionId": "moved", "updatedAt": 9}, "agent:main:x": {"sessionId": "stays", "updatedAt": 8}}
    (home / "sessions" / "sessions.json").write_text(json.dumps(listed))
    for file, session in (
        (home / ARCHIVE / "agent_main_main.moved.jsonl.imported-1790000000000", "moved"),
        (home / ARCHIVE / "x.unlisted.jsonl.imported-1790000000000.1", "unlisted"),
        (home / "sessions" / "stays.jsonl", "stays"),
    ):
        file.write_text("".join(json.dumps(event) + "\n" for event in conversation(session, "q", "a")))
    reports = await imported(theirs, ours)
    assert {(report.key, report.session_id, report.outcome) for report in reports} == {
        (MAIN, "moved", "imported"),
        ("agent:main:x", "stays", "imported"),
        ("agent:main:imported:unlisted", "unlisted", "imported"),
    }


async def test_two_keys_may_share_a_transcript(theirs: Path, ours: Path) -> None:
    folder = theirs / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    keys = {"agent:main:cron:brief": 9, "agent:main:cron:brief:run:s1": 8}
    listed = {key: {"sessionId": "s1", "updatedAt": at} for key, at in keys.items()}
    (folder / "sessions.json").write_text(json.dumps(listed))
    events = conversation("s1", "q", "a")
    (folder / "s1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for outcome in ("imported", "present"):
        reports = await imported(theirs, ours)
        assert {report.key: report.outcome for report in reports} == dict.fromkeys(keys, outcome)


async def test_a_dry_run_writes_nothing(theirs: Path, ours: Path) -> None:
    add_session(database(theirs), MAIN, "s1", conversation("s1", "q", "a"))
    (report,) = await imported(theirs, ours, dry_run=True)
    assert (report.outcome, report.events) == ("imported", 3)
    assert not (ours / "agents/main/sessions/s1.jsonl").exists()


async def test_the_folder_in_use_a_foreign_folder_and_an_unknown_layout_are_refused(theirs: Path, ours: Path) -> None:
    with pytest.raises(Unreadable, match="state folder in use"):
        await imported(ours, ours)
    theirs.mkdir()
    with pytest.raises(Unreadable, match="is not a state folder"):
        await imported(theirs, ours)
    base = database(theirs, schema=40, version="2027.1.0")
    with sqlite3.connect(base) as open_base:
        open_base.execute("ALTER TABLE session_nodes RENAME COLUMN entry_json TO entry_cbor")
    open_base.close()
    with pytest.raises(Unreadable, match=r"2027\.1\.0.*session_nodes\.entry_json"):
        await imported(theirs, ours)


# What a folder of somebody else must not bring


def plain_folder(theirs: Path, entries: dict[str, dict[str, Any]], agent: str = "main") -> Path:
    """A folder of sessions in files, each with a short transcript."""
    folder = theirs / "agents" / agent / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text(json.dumps(entries))
    for entry in entries.values():
        lines = (json.dumps(event) + "\n" for event in conversation(entry["sessionId"], "q", "a"))
        (folder / f"{entry['sessionId']}.jsonl").write_text("".join(lines))
    return folder


RIGHTS: dict[str, Any] = {
    "execSecurity": "full",
    "execAsk": "off",
    "execHost": "gateway",
    "execNode": "n1",
    "elevatedLevel": "full",
    "sendPolicy": "allow",
    "groupActivation": "always",
    "chatType": "direct",
    "ownerChat": True,
    "spawnedBy": "agent:main:main",
    "authProfileOverride": "work",
    "budgetOverrideUntil": 1 << 50,
    "channel": "telegram",
    "provider": "telegram",
    "lastChannel": "telegram",
    "lastTo": "666",
    "lastAccountId": "a",
    "deliveryContext": {"channel": "telegram", "to": "666"},
    "origin": {"provider": "telegram", "from": "666"},
    "systemPromptReport": {"x": 1},
    "previousSessions": [{"sessionId": "s9"}],
    "sessionFile": "/etc/passwd",
    "someRightOfTomorrow": "full",
}


@pytest.mark.parametrize("generation", ["files", "database"])
async def test_no_right_is_imported(theirs: Path, ours: Path, generation: str) -> None:
    entry = {"sessionId": "s1", "updatedAt": 9, "label": "Home", "thinkingLevel": "low", **RIGHTS}
    if generation == "files":
        plain_folder(theirs, {MAIN: entry})
    else:
        add_session(database(theirs), MAIN, "s1", conversation("s1", "q", "a"), entry=entry)
    (report,) = await imported(theirs, ours)
    assert report.outcome == "imported" and "execAsk, execHost" in report.detail
    taken = entries(ours)[MAIN]
    assert taken.keys() == {"sessionId", "updatedAt", "label", "thinkingLevel"}


async def test_what_takes_rights_away_is_imported(theirs: Path, ours: Path) -> None:
    entry = {"sessionId": "s1", "updatedAt": 9, "sendPolicy": "deny", "groupActivation": "mention", "chatType": "group"}
    plain_folder(theirs, {"agent:main:x": entry})
    (report,) = await imported(theirs, ours)
    assert (report.outcome, report.detail) == ("imported", "")
    assert entries(ours)["agent:main:x"] == entry


SECRET = "the owner of the machine wrote this"


@pytest.mark.parametrize("linked", ["transcript", "store", "sessions", "agent", "database", "log", "database folder"])
async def test_links_out_of_the_folder_are_not_followed_and_the_rest_comes(
    theirs: Path, ours: Path, tmp_path: Path, linked: str
) -> None:
    """The secret is in a folder elsewhere, which is laid out so that every link would lead to a session."""
    elsewhere = tmp_path / "elsewhere"
    secrets = plain_folder(elsewhere, {"agent:main:secret": {"sessionId": "secret", "updatedAt": 9}})
    events = (json.dumps(event) + "\n" for event in conversation("secret", SECRET, "a"))
    (secrets / "secret.jsonl").write_text("".join(events))
    base = database(elsewhere, agent="other")
    add_session(base, "agent:other:secret", "secret", conversation("secret", SECRET, "a"))
    plain_folder(theirs, {MAIN: {"sessionId": "s1", "updatedAt": 9}}, agent="zoe")
    home = theirs / "agents" / "main"
    if linked == "transcript":
        folder = plain_folder(theirs, {MAIN: {"sessionId": "s2", "updatedAt": 9}})
        (folder / "s2.jsonl").unlink()
        (folder / "s2.jsonl").symlink_to(secrets / "secret.jsonl")
    elif linked == "store":
        (home / "sessions").mkdir(parents=True)
        (home / "sessions" / "secret.jsonl").write_text((secrets / "secret.jsonl").read_text())
        (home / "sessions" / "sessions.json").symlink_to(secrets / "sessions.json")
    elif linked == "sessions":
        home.mkdir(parents=True)
        (home / "sessions").symlink_to(secrets)
    elif linked == "agent":
        home.symlink_to(elsewhere / "agents" / "main")
    elif linked == "database":
        (home / "agent").mkdir(parents=True)
        (home / "agent" / base.name).symlink_to(base)
    elif linked == "log":
        inside = database(theirs)
        (tmp_path / "log").write_text("x")
        Path(f"{inside}-wal").symlink_to(tmp_path / "log")
    else:
        home.mkdir(parents=True)
        (home / "agent").symlink_to(base.parent)
    outcomes = {report.agent_id: (report.outcome, report.detail) for report in await imported(theirs, ours)}
    assert outcomes["zoe"] == ("imported", "")
    assert outcomes["main"][0] == "failed" and "leads out of the folder" in outcomes["main"][1]
    assert SECRET not in "".join(file.read_text() for file in ours.rglob("*.json*"))


async def test_a_cold_transcript_is_not_read_through_a_link(theirs: Path, ours: Path, tmp_path: Path) -> None:
    base = database(theirs)
    add_session(base, MAIN, "s1", conversation("s1", SECRET, "a"))
    make_cold(base, "s1", in_file=True)
    (file,) = (theirs / "agents/main/sessions/cold").iterdir()
    file.symlink_to(file.rename(tmp_path / "elsewhere"))
    (report,) = await imported(theirs, ours)
    assert report.outcome == "failed" and "leads out of the folder" in report.detail


async def test_links_within_the_folder_are_followed(theirs: Path, ours: Path) -> None:
    folder = plain_folder(theirs, {MAIN: {"sessionId": "s1", "updatedAt": 9}})
    (folder / "s1.jsonl").rename(theirs / "elsewhere.jsonl")
    (folder / "s1.jsonl").symlink_to("../../../elsewhere.jsonl")
    (report,) = await imported(theirs, ours)
    assert (report.outcome, report.events) == ("imported", 3)


# The start


def folders(state: Path) -> Any:
    return sessions_folders(str(state), None)


def test_a_folder_with_sessions_of_a_newer_generation_is_refused_with_version_and_way_out(theirs: Path) -> None:
    base = database(theirs, version="2026.9.5", schema=21)
    check_generation(theirs, folders(theirs))  # A database without sessions hides nothing.
    add_session(base, MAIN, "s1", conversation("s1", "q", "a"))
    with pytest.raises(Unreadable) as refused:
        check_generation(theirs, folders(theirs))
    for words in ("1 session ", "OpenClaw 2026.9.5", "schema 21", f"openclaw sessions import --from {theirs}"):
        assert words in str(refused.value)


def test_a_database_of_the_first_generation_holds_no_sessions_and_stops_nothing(theirs: Path) -> None:
    database(theirs, schema=1, version="2026.7.1")
    check_generation(theirs, folders(theirs))


@pytest.mark.parametrize("change", ["DROP TABLE transcript_events", "ALTER TABLE transcript_events RENAME TO lines"])
def test_a_layout_that_is_not_known_stops_the_start(theirs: Path, change: str) -> None:
    base = database(theirs, schema=30, version="2027.2.0")
    with sqlite3.connect(base) as open_base:
        open_base.execute(change)
    open_base.close()
    with pytest.raises(Unreadable, match=r"2027\.2\.0.*transcript_events"):
        check_generation(theirs, folders(theirs))


def test_sessions_that_stand_here_as_well_are_not_hidden_until_they_go_on_there(theirs: Path) -> None:
    base = database(theirs)
    events = conversation("s1", "q", "a")
    add_session(base, MAIN, "s1", events)
    home = theirs / "agents/main/sessions"
    home.mkdir()
    (home / "s1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    check_generation(theirs, folders(theirs))
    with sqlite3.connect(base) as open_base:
        open_base.execute(
            "INSERT INTO transcript_events (session_id, seq, event_json, created_at) VALUES ('s1', 9, '{}', 1)"
        )
    open_base.close()
    assert len(list(hidden_sessions(theirs, folders(theirs)))) == 1


def test_transcripts_that_were_moved_away_are_noticed_also_while_it_runs(ours: Path) -> None:
    home = ours / "agents" / "main"
    (home / "sessions").mkdir(parents=True)
    (home / "sessions" / "sessions.json").write_text(json.dumps({MAIN: {"sessionId": "s1"}}))
    file = home / "sessions" / "s1.jsonl"
    file.write_text("{}\n")
    watch = StateWatch(ours, folders(ours))
    assert watch.look() == []
    (home / ARCHIVE).mkdir()
    file.rename(home / ARCHIVE / "agent_main_main.s1.jsonl.imported-1790000000000")
    (news,) = watch.look()
    assert ARCHIVE in news.text and "1 session " in news.text
    assert watch.look() == [] and watch.problems == [news]
    with pytest.raises(Unreadable, match="moved out of this store"):
        check_generation(ours, folders(ours))


def test_a_store_that_is_gone_while_others_know_its_sessions_is_noticed(ours: Path) -> None:
    assert list(missing_stores(ours, folders(ours))) == []
    with sqlite3.connect(ours / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE messages (session_key)")
        ledger.execute("INSERT INTO messages VALUES ('agent:main:main'), ('agent:main:main'), ('agent:main:x')")
    ledger.close()
    (gone,) = missing_stores(ours, folders(ours))
    assert "2 conversations" in gone.text
    home = ours / "agents" / "main" / "sessions"
    home.mkdir(parents=True)
    (home / "sessions.json").write_text("{}")
    assert list(missing_stores(ours, folders(ours))) == []
    (home / "sessions.json").unlink()
    (ours / "ledger.db").unlink()
    (home / "s1.jsonl").write_text("{}\n")
    (gone,) = missing_stores(ours, folders(ours))
    assert "sessions.json is gone" in gone.text and "1 session " in gone.text


def test_a_running_store_says_that_its_file_was_moved_away(ours: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = await FileSessionStore.open(str(ours), clock=SystemClock(), agent_ids=["main"])
        await store.update("main", MAIN, lambda _: {"sessionId": "s1"})
        await store.flush()
        file = ours / "agents/main/sessions/sessions.json"
        file.unlink()
        async with asyncio.timeout(60):
            while not file.exists():
                await asyncio.sleep(0.05)
        await store.close()

    asyncio.run(run())
    assert "was moved away or deleted while the Gateway runs" in caplog.text
