from __future__ import annotations

import asyncio
import json
import shutil
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.storage.files import store_file
from openclaw.storage.files.session_store import QUIET_SECONDS, FileSessionStore, RowIndex, store_path
from openclaw.storage.files.store_file import FOLD_RECORDS
from openclaw.storage.sessions import SessionRow
from tests.storage.still_clock import StillClock

MAIN = "agent:main:main"


def sessions(state: Path, agent: str = "main") -> Path:
    return state / "agents" / agent / "sessions" / "sessions.json"


def on_disk(state: Path) -> dict:
    return json.loads(sessions(state).read_text())


def write_store(state: Path, values: object, agent: str = "main") -> None:
    path = sessions(state, agent)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(values if isinstance(values, str) else json.dumps(values))


def setting(**fields: object):
    return lambda entry: {**(entry or {}), **fields}


@pytest.fixture
async def open_store(tmp_path):
    opened: list[FileSessionStore] = []

    async def open_it(state: Path = tmp_path, **options):
        clock = options.pop("clock", None) or StillClock()
        store = await FileSessionStore.open(str(state), clock=clock, **{"agent_ids": ["main"], **options})
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()


async def test_change_is_in_the_journal_when_update_returns_and_in_the_store_after_a_fold(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s1", updatedAt=5))
    journal = sessions(tmp_path).with_name("sessions.journal")
    assert json.loads(journal.read_text()) == [1, MAIN, {"sessionId": "s1", "updatedAt": 5}]
    assert not sessions(tmp_path).exists()
    await store.flush()
    assert sessions(tmp_path).read_text() == json.dumps({MAIN: {"sessionId": "s1", "updatedAt": 5}}, indent=2)
    for path in (sessions(tmp_path), journal):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.parent.stat().st_mode) == 0o700


async def test_changes_survive_a_restart_without_a_fold(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s1"))
    await store.update("main", "agent:main:gone", setting(sessionId="s2"))
    await store.update("main", "agent:main:gone", lambda entry: None)
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "agents", crashed / "agents")
    again = await open_store(crashed)
    assert await again.get("main", MAIN) == {"sessionId": "s1"}
    assert await again.get("main", "agent:main:gone") is None


async def test_fold_happens_within_a_second_of_a_change(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    await store.update("main", MAIN, setting(sessionId="s1"))
    await clock.pass_time(1)
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "s1"}}


async def test_many_changes_fold_without_waiting_for_the_second(tmp_path, open_store):
    store = await open_store()
    for number in range(FOLD_RECORDS):
        await store.update("main", f"agent:main:k{number}", setting(sessionId=str(number)), durable=False)
    await asyncio.gather(*store._folds)
    assert len(on_disk(tmp_path)) == FOLD_RECORDS


async def test_unknown_fields_and_values_that_are_no_entries_survive(tmp_path, open_store):
    write_store(tmp_path, {MAIN: {"sessionId": "s", "future": [1, {"a": None}]}, "note": "mine", "list": [1]})
    store = await open_store()
    assert [row.key for row in await store.rows()] == [MAIN]
    assert await store.get("main", "note") is None
    await store.update("main", MAIN, setting(updatedAt=1))
    await store.flush()
    assert on_disk(tmp_path) == {
        MAIN: {"sessionId": "s", "future": [1, {"a": None}], "updatedAt": 1},
        "note": "mine",
        "list": [1],
    }


async def test_store_with_comments_and_trailing_commas_is_read(tmp_path, open_store):
    write_store(tmp_path, '// mine\n{"agent:main:main": {sessionId: "s",},}')
    store = await open_store()
    assert await store.get("main", MAIN) == {"sessionId": "s"}


@pytest.mark.parametrize("content", ["", "[]", "{broken", "null", "\0\0\0\0"])
async def test_unreadable_store_is_kept_aside_and_the_gateway_starts(tmp_path, open_store, content):
    write_store(tmp_path, content)
    store = await open_store()
    assert list(await store.rows()) == []
    kept = list(sessions(tmp_path).parent.glob("sessions.json.corrupt-*"))
    assert [path.read_text() for path in kept] == [content]
    await store.update("main", MAIN, setting(sessionId="s"))
    await store.flush()
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "s"}}


async def test_store_broken_by_hand_is_rebuilt_from_what_came_before(tmp_path, open_store):
    store = await open_store()
    for number in range(3):
        await store.update("main", f"agent:main:{number}", setting(sessionId=str(number)))
        await store.flush()
    await store.close()
    sessions(tmp_path).write_text(sessions(tmp_path).read_text()[:-5])
    again = await open_store()
    assert sorted(row.key for row in await again.rows()) == ["agent:main:0", "agent:main:1", "agent:main:2"]


async def test_edits_made_while_stopped_win(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s"))
    await store.update("main", "agent:main:old", setting(sessionId="o"))
    await store.close()
    write_store(tmp_path, {MAIN: {"sessionId": "edited"}})
    again = await open_store()
    assert await again.get("main", MAIN) == {"sessionId": "edited"}
    assert await again.get("main", "agent:main:old") is None


async def test_edits_made_while_running_are_merged_key_by_key(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    for key in ("keep", "edit", "drop", "busy"):
        await store.update("main", key, setting(sessionId=key))
    await clock.pass_time(1)
    edited = on_disk(tmp_path)
    edited["edit"]["thinkingLevel"] = "high"
    edited["busy"] |= {"thinkingLevel": "high", "sessionId": "changed by hand as well"}
    edited["new"] = {"sessionId": "new", "updatedAt": 1}
    del edited["drop"]
    await store.update("main", "busy", setting(sessionId="changed by the gateway"))
    write_store(tmp_path, edited)
    await clock.pass_time(1)
    expected = {
        "keep": {"sessionId": "keep"},
        "edit": {"sessionId": "edit", "thinkingLevel": "high"},
        "busy": {"sessionId": "changed by the gateway", "thinkingLevel": "high"},
        "new": {"sessionId": "new", "updatedAt": 1},
    }
    assert {row.key: row.entry for row in await store.rows()} == expected
    assert on_disk(tmp_path) == expected
    row = await store.find_session_id("new")
    assert row is not None and row.key == "new"


async def test_half_saved_edit_is_left_alone_until_it_is_whole(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    await store.update("main", MAIN, setting(sessionId="s"))
    await clock.pass_time(1)
    write_store(tmp_path, '{"agent:main:main": {"sessionId": "ed')
    await store.update("main", "other", setting(sessionId="o"))
    await clock.pass_time(1)
    assert sessions(tmp_path).read_text().endswith('"ed')
    write_store(tmp_path, {MAIN: {"sessionId": "edited"}})
    await clock.pass_time(1)
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "edited"}, "other": {"sessionId": "o"}}


async def test_edit_that_stays_broken_is_kept_aside_and_the_store_written_anew(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    await store.update("main", MAIN, setting(sessionId="s"))
    await clock.pass_time(1)
    write_store(tmp_path, "oops")
    for _ in range(3):
        await clock.pass_time(1)
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "s"}}
    assert [p.read_text() for p in sessions(tmp_path).parent.glob("*.corrupt-*")] == ["oops"]


async def test_store_file_removed_while_running_is_written_again(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    await store.update("main", MAIN, setting(sessionId="s"))
    await clock.pass_time(1)
    sessions(tmp_path).unlink()
    for _ in range(3):
        await clock.pass_time(1)
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "s"}}


async def test_agents_on_disk_are_found_and_unknown_ones_opened_when_written(tmp_path, open_store):
    write_store(tmp_path, {"agent:found:main": {"sessionId": "f"}}, "found")
    store = await open_store()
    assert (await store.get("found", "agent:found:main")) == {"sessionId": "f"}
    await store.update("late", "agent:late:main", setting(sessionId="l"))
    assert sorted(store.agent_ids) == ["found", "late"]
    assert store.path("late") == str(sessions(tmp_path, "late"))


async def test_one_store_file_for_all_agents_when_configured(tmp_path, open_store):
    path = tmp_path / "all.json"
    store = await open_store(store_template=str(path), agent_ids=["main", "ops"])
    await store.update("main", "agent:main:main", setting(sessionId="m"))
    await store.update("ops", "agent:ops:main", setting(sessionId="o"))
    await store.flush()
    assert set(json.loads(path.read_text())) == {"agent:main:main", "agent:ops:main"}
    assert [row.agent_id for row in await store.rows("ops")] == ["ops"]


def test_store_path_fills_in_the_agent(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(store_path("/state", "Work", "~/x/{agentId}/s.json")) == "/home/me/x/work/s.json"
    assert str(store_path("/custom/state", "main")) == "/custom/state/agents/main/sessions/sessions.json"


async def test_text_that_utf8_cannot_hold_is_stored_with_a_replacement(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s", displayName="a\ud800b"))
    await store.close()
    again = await open_store()
    assert await again.get("main", MAIN) == {"sessionId": "s", "displayName": "a\ufffdb"}


async def test_unchanged_entry_writes_nothing(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s"))
    size = sessions(tmp_path).with_name("sessions.journal").stat().st_size
    await store.update("main", MAIN, setting(sessionId="s"))
    await store.update("main", "nothing", lambda entry: None)
    assert sessions(tmp_path).with_name("sessions.journal").stat().st_size == size


async def test_store_is_up_to_date_as_soon_as_changes_pause(tmp_path, open_store):
    clock = StillClock()
    store = await open_store(clock=clock)
    await store.update("main", MAIN, setting(sessionId="s1"))
    await clock.pass_time(QUIET_SECONDS, sleeps_again=False)
    await asyncio.gather(*store._settling.values())
    await asyncio.gather(*store._folds)
    assert on_disk(tmp_path) == {MAIN: {"sessionId": "s1"}}


async def test_edit_made_just_before_a_change_of_the_same_key_is_not_lost(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s"))
    await store.flush()
    write_store(tmp_path, {MAIN: {"sessionId": "s", "thinkingLevel": "high"}})
    assert await store.update("main", MAIN, setting(totalTokens=7)) == {
        "sessionId": "s",
        "thinkingLevel": "high",
        "totalTokens": 7,
    }


async def test_list_shows_an_edit_at_once(tmp_path, open_store):
    store = await open_store()
    await store.update("main", MAIN, setting(sessionId="s"))
    await store.flush()
    write_store(tmp_path, {"agent:main:other": {"sessionId": "o"}})
    assert [row.key for row in await store.rows()] == ["agent:main:other"]


async def test_entry_of_a_forum_topic_names_the_transcript_with_the_topic(tmp_path, open_store):
    key = "agent:main:telegram:group:-100:topic:42"
    write_store(tmp_path, {key: {"sessionId": "s"}, "agent:main:telegram:group:-100": {"sessionId": "g"}})
    store = await open_store()
    folder = sessions(tmp_path).parent
    assert await store.get("main", key) == {"sessionId": "s", "sessionFile": str(folder / "s-topic-42.jsonl")}
    assert await store.get("main", "agent:main:telegram:group:-100") == {"sessionId": "g"}
    changed = await store.update("main", key, lambda _: {"sessionId": "n"})
    assert changed == {"sessionId": "n", "sessionFile": str(folder / "n-topic-42.jsonl")}
    own = {"sessionId": "n", "sessionFile": str(folder / "own.jsonl")}
    assert await store.update("main", key, lambda _: own) == own


async def test_waiting_for_a_slow_disk_does_not_count_as_the_cost_of_a_fold(tmp_path, open_store, monkeypatch):
    store = await open_store()
    writing = store_file.write_temporary

    def slowly(path: Path, data: bytes) -> Path:
        time.sleep(0.2)
        return writing(path, data)

    monkeypatch.setattr(store_file, "write_temporary", slowly)
    await store.update("main", MAIN, setting(sessionId="s1", updatedAt=5))
    await store.flush()
    [file] = store._files.values()
    assert sessions(tmp_path).exists()
    assert 0 < file.fold_seconds < 0.2


agents, keys = st.sampled_from(["main", "work"]), st.integers(0, 30).map(str)
moments = st.one_of(st.none(), st.integers(-5, 5), st.just("soon"), st.just(float("inf")))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), agents, keys, moments),
        st.tuples(st.just("remove"), agents, keys, st.none()),
        st.tuples(st.just("list"), agents, keys, st.none()),
    ),
    max_size=120,
)


def newest_first(row: SessionRow) -> tuple[int, str, str]:
    at = row.entry.get("updatedAt")
    return -at if isinstance(at, int) else 0, row.key, row.agent_id


@given(steps)
def test_rows_are_listed_newest_first_whatever_changed_between_two_listings(plan):
    index, held = RowIndex(), {}
    for what, agent, key, moment in [*plan, ("list", "", "", None)]:
        match what:
            case "put":
                held[agent, key] = SessionRow(agent, key, {"sessionId": "s", "updatedAt": moment})
                index.put((agent, key), held[agent, key])
            case "remove":
                held.pop((agent, key), None)
                index.put((agent, key), None)
            case _:
                assert index.rows() == sorted(held.values(), key=newest_first)
        assert len(index) == len(held) and index.get((agent, key)) is held.get((agent, key))
