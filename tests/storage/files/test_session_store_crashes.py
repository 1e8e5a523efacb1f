"""The store's promise under crashes: what was acknowledged is there, at whatever moment the process ends."""

import asyncio
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.storage.files import disk, store_file
from openclaw.storage.files.session_store import FileSessionStore
from tests.storage.still_clock import StillClock

FOLDER = Path("agents/main/sessions")
KEYS = ["a", "b", "c", "d"]


async def open_at(state: Path) -> FileSessionStore:
    return await FileSessionStore.open(str(state), clock=StillClock(), agent_ids=["main"])


async def held(state: Path) -> dict:
    store = await open_at(state)
    rows = {row.key: dict(row.entry) for row in await store.rows()}
    await store.close()
    return rows


async def test_journal_cut_at_every_byte_loses_at_most_the_change_being_written(tmp_path):
    store = await open_at(tmp_path)
    states: list[dict] = [{}]
    sizes = [0]
    path = tmp_path / FOLDER / "sessions.journal"
    for number in range(12):
        key = KEYS[number % 4]
        change = (lambda e: None) if number == 7 else (lambda e, n=number: {"sessionId": f"é{n}"})
        await store.update("main", key, change, durable=False)
        expected = dict(states[-1])
        expected.pop(key, None)
        if number != 7:
            expected[key] = {"sessionId": f"é{number}"}
        states.append(expected)
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        case = tmp_path / f"cut{cut}"
        (case / FOLDER).mkdir(parents=True)
        (case / FOLDER / "sessions.journal").write_bytes(whole[:cut])
        recovered = store_file.Journal(case / FOLDER / "sessions.json", disk.Disk()).recover(StillClock())
        # A line that is whole but for its newline counts.
        complete = sum(size - 1 <= cut for size in sizes[1:])
        assert recovered.values == states[complete]
        assert (case / FOLDER / "sessions.journal").read_bytes() == whole[:cut]
    await store.close()


async def test_writing_goes_on_after_a_torn_journal_line(tmp_path):
    path = tmp_path / FOLDER / "sessions.journal"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'[1,"a",{"sessionId":"1"}]\n[2,"b",{"sess')
    store = await open_at(tmp_path)
    await store.update("main", "c", lambda e: {"sessionId": "3"})
    assert path.read_bytes() == b'[1,"a",{"sessionId":"1"}]\n[2,"b",{"sess\n[2,"c",{"sessionId":"3"}]\n'
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "agents", copy / "agents")
    assert set(await held(copy)) == {"a", "c"}
    await store.close()


POINTS = ["prepare", "note", "noted", "rename", "renamed"]


@pytest.mark.parametrize("point", POINTS)
async def test_crash_at_any_step_of_a_fold_loses_nothing_and_hand_edits_made_afterwards_count(
    tmp_path, monkeypatch, point
):
    store = await open_at(tmp_path)
    await store.update("main", "a", lambda e: {"sessionId": "1"})
    await store.flush()
    await store.update("main", "a", lambda e: {"sessionId": "2"})
    await store.update("main", "b", lambda e: {"sessionId": "3"})
    frozen = tmp_path / "frozen"

    def freeze(*_):
        if not frozen.exists():
            shutil.copytree(tmp_path / "agents", frozen / "agents")

    def around(owner, name, before):
        real = getattr(owner, name)
        if asyncio.iscoroutinefunction(real):

            async def wrapped_async(*args):
                if before:
                    freeze()
                result = await real(*args)
                freeze()
                return result

            monkeypatch.setattr(owner, name, wrapped_async)
            return

        def wrapped(*args):
            if before:
                freeze()
            result = real(*args)
            freeze()
            return result

        monkeypatch.setattr(owner, name, wrapped)

    match point:
        case "prepare":
            around(store_file, "write_temporary", before=True)
        case "note":
            around(store_file, "write_temporary", before=False)
        case "noted":
            around(store_file.Journal, "note_fold", before=False)
        case "rename":
            around(store_file, "put_in_place", before=True)
        case _:
            around(store_file, "put_in_place", before=False)
    await store.flush()
    monkeypatch.undo()
    await store.close()

    twice = tmp_path / "twice"
    shutil.copytree(frozen, twice)
    assert await held(frozen) == {"a": {"sessionId": "2"}, "b": {"sessionId": "3"}}
    assert await held(frozen) == {"a": {"sessionId": "2"}, "b": {"sessionId": "3"}}
    assert not list((frozen / FOLDER).glob("*.tmp"))

    # The same crash, then a person edits the file before the next start.
    path = twice / FOLDER / "sessions.json"
    edited = json.loads(path.read_text())
    edited["a"] = {"sessionId": "edited"}
    path.write_text(json.dumps(edited))
    after = await held(twice)
    assert after["a"] == {"sessionId": "edited" if point == "renamed" else "2"}
    assert after["b"] == {"sessionId": "3"}


async def test_changes_of_one_step_are_one_write_and_keep_their_order(tmp_path, monkeypatch):
    store = await open_at(tmp_path)
    writes, ended, real = [], [], disk.os.write
    monkeypatch.setattr(disk.os, "write", lambda fd, data: writes.append(bytes(data)) or real(fd, data))

    async def change(number, value):
        await store.update("main", "a", lambda _: {"sessionId": "s", "n": value}, durable=False)
        ended.append(number)

    # The third changes nothing, and still does not overtake the second.
    await asyncio.gather(change(1, 1), change(2, 2), change(3, 2))
    monkeypatch.undo()
    assert ended == [1, 2, 3]
    assert len(writes) == 1 and [json.loads(line)[2]["n"] for line in writes[0].splitlines()] == [1, 2]
    await store.close()


async def test_full_disk_refuses_every_change_of_the_step(tmp_path, monkeypatch):
    store = await open_at(tmp_path)
    await store.update("main", "a", lambda _: {"sessionId": "s", "n": 0, "updatedAt": 1})

    def full(fd, data):
        raise OSError(28, "No space left on device")

    def one_more(entry):
        return {**entry, "n": entry["n"] + 1, "updatedAt": 2}

    monkeypatch.setattr(disk.os, "write", full)
    waiting = [store.update("main", "a", one_more, durable=False) for _ in range(2)]
    made = store.update("main", "b", lambda _: {"sessionId": "t"})
    assert [type(told) for told in await asyncio.gather(*waiting, made, return_exceptions=True)] == [OSError] * 3
    monkeypatch.undo()
    assert (await store.get("main", "a"))["n"] == 0
    assert [(row.key, row.entry["updatedAt"]) for row in await store.rows()] == [("a", 1)]
    assert (await store.update("main", "a", one_more))["n"] == 1
    await store.close()
    again = await open_at(tmp_path)
    assert [(row.key, row.entry["n"]) for row in await again.rows()] == [("a", 1)]
    await again.close()


async def test_full_disk_refuses_the_change_and_loses_nothing(tmp_path, monkeypatch):
    store = await open_at(tmp_path)
    await store.update("main", "a", lambda e: {"sessionId": "1"})
    real = os.write

    def full(fd, data):
        real(fd, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        await store.update("main", "a", lambda e: {"sessionId": "2"})
    with pytest.raises(OSError, match="No space left"):
        await store.flush()
    monkeypatch.undo()
    assert await store.get("main", "a") == {"sessionId": "1"}
    await store.update("main", "b", lambda e: {"sessionId": "3"})
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "agents", copy / "agents")
    assert await held(copy) == {"a": {"sessionId": "1"}, "b": {"sessionId": "3"}}
    await store.flush()
    await store.close()
    assert await held(tmp_path) == {"a": {"sessionId": "1"}, "b": {"sessionId": "3"}}


@pytest.mark.parametrize("step", ["note_fold", "put_in_place"])
async def test_fold_that_fails_halfway_is_taken_back(tmp_path, monkeypatch, step):
    store = await open_at(tmp_path)
    await store.update("main", "a", lambda e: {"sessionId": "1"})

    def fail(*_):
        raise OSError(5, "Input/output error")

    async def fail_async(*_):
        fail()

    if step == "note_fold":
        monkeypatch.setattr(store_file.Journal, step, fail_async)
    else:
        monkeypatch.setattr(store_file, step, fail)
    with pytest.raises(OSError, match="Input/output"):
        await store.flush()
    monkeypatch.undo()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "agents", copy / "agents")
    assert await held(copy) == {"a": {"sessionId": "1"}}
    await store.update("main", "a", lambda e: {"sessionId": "2"})
    await store.flush()
    await store.close()
    assert await held(tmp_path) == {"a": {"sessionId": "2"}}


async def test_change_made_during_a_fold_is_in_the_next_one(tmp_path, monkeypatch):
    store = await open_at(tmp_path)
    await store.update("main", "a", lambda e: {"sessionId": "1"})
    writing, go_on = threading.Event(), threading.Event()
    real = store_file.write_temporary

    def slowly(path, data):
        writing.set()
        go_on.wait()
        return real(path, data)

    monkeypatch.setattr(store_file, "write_temporary", slowly)
    fold = asyncio.create_task(store.flush())
    await asyncio.to_thread(writing.wait)
    await store.update("main", "a", lambda e: {"sessionId": "2"})
    await store.update("main", "b", lambda e: {"sessionId": "3"})
    go_on.set()
    await fold
    path = tmp_path / FOLDER / "sessions.json"
    assert json.loads(path.read_text()) == {"a": {"sessionId": "1"}}
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "agents", copy / "agents")
    assert await held(copy) == {"a": {"sessionId": "2"}, "b": {"sessionId": "3"}}
    await store.flush()
    assert json.loads(path.read_text()) == {"a": {"sessionId": "2"}, "b": {"sessionId": "3"}}
    await store.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 99)),
        st.tuples(st.just("remove"), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.just("fold"), st.just(""), st.just(0)),
        st.tuples(st.just("crash"), st.just(""), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
        st.tuples(st.just("edit"), st.sampled_from(KEYS), st.integers(100, 199)),
        st.tuples(st.just("cut out"), st.sampled_from(KEYS), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_mix_of_updates_folds_crashes_and_hand_edits_ends_as_the_model_says(plan):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(follow(Path(folder), plan))


def entry(number: int) -> dict[str, Any]:
    return {"sessionId": "s", "n": number}


async def follow(root: Path, plan: list[tuple[str, str, int]]) -> None:
    life = 0
    state = root / "0"
    state.mkdir()
    store = await open_at(state)
    model: dict[str, dict] = {}
    dirty: set[str] = set()
    for what, key, number in plan:
        path = state / FOLDER / "sessions.json"
        if what in ("set", "remove") and not dirty:
            # Before the first change of its own the store looks for edits; so it knows now what it would know then.
            await store.rows()
        match what:
            case "set":
                # Setting what the Gateway already holds is no change of its own.
                if await store.get("main", key) != entry(number):
                    dirty.add(key)
                    model[key] = entry(number)
                await store.update("main", key, lambda e, n=number: entry(n))
            case "remove":
                if await store.get("main", key) is not None:
                    dirty.add(key)
                    model.pop(key, None)
                await store.update("main", key, lambda e: None)
            case "fold":
                await store.flush()
                dirty.clear()
            case "edit" | "cut out" if path.exists():
                values = json.loads(path.read_text())
                values.pop(key, None)
                if what == "edit":
                    values[key] = entry(number)
                path.with_name("edited").write_text(json.dumps(values))
                path.with_name("edited").replace(path)
                if key not in dirty:
                    model.pop(key, None)
                    if what == "edit":
                        model[key] = entry(number)
            case "crash":
                life += 1
                shutil.copytree(state, root / str(life))
                await store.close()
                state = root / str(life)
                store = await open_at(state)
            case "restart":
                await store.close()
                dirty.clear()
                store = await open_at(state)
            case _:
                pass
    await store.flush()
    assert {row.key: dict(row.entry) for row in await store.rows()} == model
    await store.close()
    assert await held(state) == model
