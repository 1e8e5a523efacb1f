import json
import shutil
from pathlib import Path

import pytest

from openclaw.storage.files import import_sessions
from openclaw.storage.files.import_sessions import legacy_store_key, migrate_sessions
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.still_clock import StillClock

LINES = '{"type":"session","version":3,"id":"x"}\n{"type":"message","id":"a","parentId":null}\n'


def put(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def home(state: Path, agent: str = "main") -> Path:
    return state / "agents" / agent / "sessions"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("main", "agent:ops:main"),
        ("Global", "global"),
        ("unknown", "unknown"),
        ("agent:Other:X", "agent:other:x"),
        ("subagent:U", "agent:ops:subagent:u"),
        ("group:123@g.us", "agent:ops:whatsapp:group:123@g.us"),
        ("group:abc", "agent:ops:unknown:group:abc"),
        ("123@g.us", "agent:ops:whatsapp:group:123@g.us"),
        ("whatsapp:123@g.us", "agent:ops:whatsapp:group:123@g.us"),
        ("+1555", "agent:ops:+1555"),
    ],
)
def test_old_keys_get_their_current_form(key, expected):
    assert legacy_store_key("ops", key) == expected


async def test_nothing_to_migrate_is_nothing_done(tmp_path):
    assert await migrate_sessions(str(tmp_path), clock=StillClock()) is None


async def test_both_older_layouts_are_brought_over_and_the_originals_kept(tmp_path):
    put(tmp_path / "sessions" / "flat.jsonl", LINES)
    put(tmp_path / "sessions" / "sessions.json", {"main": {"sessionId": "flat", "updatedAt": 5, "provider": "slack"}})
    put(tmp_path / "sessions" / "ops" / "deep.jsonl", LINES + "more\n")
    report = await migrate_sessions(str(tmp_path), clock=StillClock(7))
    assert report is not None and report.problems == []
    assert (report.copied, report.sessions) == (2, 2)
    assert report.moved_to == str(tmp_path / "sessions.legacy-7")
    assert (home(tmp_path) / "flat.jsonl").read_text() == LINES
    assert (home(tmp_path, "ops") / "deep.jsonl").read_text() == LINES + "more\n"
    assert (tmp_path / "sessions.legacy-7" / "ops" / "deep.jsonl").exists()
    assert not (tmp_path / "sessions").exists()

    store = await FileSessionStore.open(str(tmp_path), clock=StillClock(), agent_ids=["main"])
    main = await store.get("main", "agent:main:main")
    assert main is not None and main["sessionId"] == "flat" and main["channel"] == "slack"
    ops = await store.get("ops", "agent:ops:main")
    assert ops is not None and ops["sessionId"] == "deep"
    await store.close()
    transcripts = FileTranscriptStore(str(tmp_path), clock=StillClock())
    ref = TranscriptRef(agent_id="ops", session_id="deep", file=ops["sessionFile"])
    assert [entry.id for entry in await transcripts.tail(ref, 5)] == ["a"]
    assert await migrate_sessions(str(tmp_path), clock=StillClock()) is None


async def test_newer_entry_wins_and_a_tie_keeps_the_current_one(tmp_path):
    old = {
        "a": {"sessionId": "old-a", "updatedAt": 9},
        "b": {"sessionId": "old-b", "updatedAt": 5},
        "c": {"sessionId": "old-c", "updatedAt": 5},
        "d": {"updatedAt": 5},
    }
    put(tmp_path / "sessions" / "sessions.json", old)
    current = {f"agent:main:{key}": {"sessionId": f"new-{key}", "updatedAt": 5} for key in "ab"}
    put(home(tmp_path) / "sessions.json", {**current, "agent:main:main": {"sessionId": "m", "updatedAt": 1}})
    await migrate_sessions(str(tmp_path), clock=StillClock())
    merged = json.loads((home(tmp_path) / "sessions.json").read_text())
    assert {key: entry["sessionId"] for key, entry in merged.items()} == {
        "agent:main:a": "old-a",
        "agent:main:b": "new-b",
        "agent:main:main": "m",
        "agent:main:c": "old-c",
    }


async def test_latest_direct_conversation_becomes_main_when_there_is_none(tmp_path):
    old = {
        "+1555": {"sessionId": "older", "updatedAt": 1},
        "+1666": {"sessionId": "latest", "updatedAt": 8},
        "group:1": {"sessionId": "group", "updatedAt": 9},
        "subagent:x": {"sessionId": "child", "updatedAt": 10},
    }
    put(tmp_path / "sessions" / "sessions.json", old)
    await migrate_sessions(str(tmp_path), clock=StillClock())
    merged = json.loads((home(tmp_path) / "sessions.json").read_text())
    assert merged["agent:main:main"]["sessionId"] == "latest"


async def test_a_listed_main_session_stays_main_beside_a_newer_file_nobody_listed(tmp_path):
    put(tmp_path / "sessions" / "flat.jsonl", LINES)
    put(tmp_path / "sessions" / "main" / "talk.jsonl", LINES)
    listed = {"main": {"sessionId": "talk", "updatedAt": 5, "mine": 7}}
    put(tmp_path / "sessions" / "main" / "sessions.json", listed)
    report = await migrate_sessions(str(tmp_path), clock=StillClock(7))
    assert report is not None and report.problems == []
    store = json.loads((home(tmp_path) / "sessions.json").read_text())
    assert (store["agent:main:main"]["sessionId"], store["agent:main:main"]["mine"]) == ("talk", 7)
    assert store["agent:main:imported:flat"]["sessionId"] == "flat"


async def test_interrupted_migration_is_taken_up_again(tmp_path, monkeypatch):
    for number in range(4):
        put(tmp_path / "sessions" / "main" / f"s{number}.jsonl", LINES + str(number))
    real = import_sessions.write_temporary
    calls = []

    def dies(path, data):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(path, data)

    monkeypatch.setattr(import_sessions, "write_temporary", dies)
    with pytest.raises(KeyboardInterrupt):
        import_sessions._migrate(tmp_path, tmp_path / "sessions", "main", {}, StillClock())
    monkeypatch.undo()
    assert (tmp_path / "sessions" / "main" / "s3.jsonl").exists()
    report = await migrate_sessions(str(tmp_path), clock=StillClock())
    assert report is not None and (report.copied, report.present, report.problems) == (2, 2, [])
    assert sorted(path.name for path in home(tmp_path).glob("*.jsonl")) == [f"s{n}.jsonl" for n in range(4)]
    assert not list(home(tmp_path).glob("*.tmp"))


async def test_conflicts_leave_the_old_folder_in_place_and_are_reported(tmp_path):
    put(tmp_path / "sessions" / "s.jsonl", LINES)
    put(home(tmp_path) / "s.jsonl", "something else\n")
    report = await migrate_sessions(str(tmp_path), clock=StillClock())
    assert report is not None and report.moved_to is None
    assert "holds something else" in report.problems[0]
    assert (home(tmp_path) / "s.jsonl").read_text() == "something else\n"
    assert (tmp_path / "sessions" / "s.jsonl").read_text() == LINES


async def test_unreadable_old_store_is_reported_and_nothing_lost(tmp_path):
    put(tmp_path / "sessions" / "sessions.json", "{broken")
    put(tmp_path / "sessions" / "s.jsonl", LINES)
    before = shutil.copytree(tmp_path / "sessions", tmp_path / "before")
    report = await migrate_sessions(str(tmp_path), clock=StillClock())
    assert report is not None and report.problems and report.moved_to is None
    assert {p.name: p.read_bytes() for p in (tmp_path / "sessions").iterdir()} == {
        p.name: p.read_bytes() for p in before.iterdir()
    }
