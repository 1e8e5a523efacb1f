import asyncio
import gc
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from openclaw.messages import AssistantMessage, TextBlock, UserMessage
from openclaw.storage.files import disk
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.files.transcript_index import scan
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.still_clock import StillClock

GOLDEN = [
    {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"},
    {"type": "model_change", "id": "m1", "parentId": None, "timestamp": "t", "provider": "mock", "modelId": "mock-1"},
    {"type": "thinking_level_change", "id": "t1", "parentId": "m1", "timestamp": "t", "thinkingLevel": "low"},
    {"type": "custom", "customType": "model-snapshot", "data": {}, "id": "c1", "parentId": "t1", "timestamp": "t"},
]
REF = TranscriptRef(agent_id="main", session_id="s")


def user(text: str) -> dict:
    return {"type": "message", "message": UserMessage(content=[TextBlock(text=text)], timestamp=1)}


def assistant(text: str, model: str = "m") -> dict:
    message = AssistantMessage(content=[TextBlock(text=text)], provider="p", model=model, timestamp=2)
    return {"type": "message", "message": message}


def texts(transcript) -> list[str]:
    return [message.content[0].text for message in transcript.context().messages]


def file_of(state: Path, name: str = "s.jsonl", agent: str = "main") -> Path:
    path = state / "agents" / agent / "sessions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def entry(own: str, parent: str | None, text: str = "", role: str = "user") -> dict:
    message = {"role": role, "content": [{"type": "text", "text": text or own}], "timestamp": 1}
    return {"type": "message", "id": own, "parentId": parent, "timestamp": "t", "message": message}


@pytest.fixture
async def store(tmp_path):
    made = FileTranscriptStore(str(tmp_path), clock=StillClock())
    yield made
    await made.close()


async def reopened(tmp_path, ref=REF):
    return await FileTranscriptStore(str(tmp_path), clock=StillClock()).open(ref)


async def test_header_and_first_message_are_written_together_at_once(tmp_path, store):
    transcript = await store.open(REF, cwd="/work")
    path = file_of(tmp_path)
    assert not path.exists()
    first = await transcript.append(user("hello"))
    header, line = (json.loads(text) for text in path.read_text().splitlines())
    assert header == {
        "type": "session",
        "version": 3,
        "id": "s",
        "timestamp": "2023-11-14T22:13:20.000Z",
        "cwd": "/work",
    }
    assert line == {
        "type": "message",
        "id": first,
        "parentId": None,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "message": {"role": "user", "content": [{"type": "text", "text": "hello"}], "timestamp": 1},
    }
    assert len(first) == 8 and int(first, 16) >= 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_several_entries_are_one_write_and_known_ones_are_left_out(tmp_path, store, monkeypatch):
    transcript = await store.open(REF)
    await transcript.append(user("one"), entry_id="a")
    writes, real = [], os.write
    monkeypatch.setattr(disk.os, "write", lambda fd, data: writes.append(bytes(data)) or real(fd, data))
    await transcript.append_all({"a": user("one"), "b": user("two"), "c": user("three")})
    monkeypatch.undo()
    lines = [json.loads(line) for line in file_of(tmp_path).read_text().splitlines()]
    assert len(writes) == 1 and [(line["id"], line["parentId"]) for line in lines[2:]] == [("b", "a"), ("c", "b")]
    assert transcript.leaf_id == "c" and texts(transcript) == texts(await reopened(tmp_path)) == ["one", "two", "three"]
    assert [json.loads((await transcript.entry(own)).raw)["id"] for own in "abc"] == ["a", "b", "c"]


async def test_file_emptied_in_use_is_begun_anew(tmp_path, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    file_of(tmp_path).write_bytes(b"")
    await transcript.append(user("two"))
    again = await reopened(tmp_path)
    assert again._index.header is not None and texts(again) == ["two"] == texts(transcript)


async def test_cut_at_every_byte_keeps_every_whole_entry_and_all_bytes(tmp_path, store):
    transcript = await store.open(REF)
    path = file_of(tmp_path)
    ends: list[int] = []
    for number in range(40):
        if number == 20:
            await transcript.branch(transcript.tree()[10][0])
        await transcript.append(user(f"é {number} " + "x" * (number % 7)))
        ends.append(path.stat().st_size)
    whole, ids = path.read_bytes(), [ident for ident, _, _ in transcript.tree()]
    shrinking, cut_state = tmp_path / "shrinking.jsonl", tmp_path / "cut"
    shrinking.write_bytes(whole)
    for cut in range(len(whole), -1, -1):
        os.truncate(shrinking, cut)
        # A line that is whole but for its newline counts.
        complete = sum(end - 1 <= cut for end in ends)
        assert scan(shrinking).ids == ids[:complete]
        if cut % 97 == 0 or cut in ends:
            file_of(cut_state).write_bytes(whole[:cut])
            opened = await reopened(cut_state)
            added = await opened.append(user("next"))
            assert file_of(cut_state).read_bytes().startswith(whole[:cut])
            again = await reopened(cut_state)
            assert [ident for ident, _, _ in again.tree()] == [*ids[:complete], added]
            assert again.tree()[-1][1] == (ids[complete - 1] if complete else None)
            assert again._index.header is not None
            assert texts(again) == texts(opened)


DAMAGES = {
    "a damaged line": lambda lines: [*lines[:2], lines[2][:20] + b"\xff\x00" + lines[2][25:], *lines[3:]],
    "a NUL tail": lambda lines: [*lines, b"\0" * 5000],
    "NULs before a line": lambda lines: [*lines[:3], b"\0" * 100 + lines[3], *lines[4:]],
    "no header": lambda lines: lines[1:],
    "a damaged header": lambda lines: [b'{"type":"ses', *lines[1:]],
    "a line that is no object": lambda lines: [*lines[:2], b"17", b'"x"', *lines[2:]],
    "empty lines": lambda lines: [lines[0], b"", b"\r", *lines[1:]],
    "Windows line ends": lambda lines: [line + b"\r" for line in lines],
    "two headers": lambda lines: [lines[0], *lines],
    "a byte order mark": lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]],
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_costs_only_the_line_it_hit_and_nothing_is_rewritten(tmp_path, damage):
    lines = [json.dumps(line).encode() for line in [GOLDEN[0], entry("a", None), entry("b", "a"), entry("c", "b")]]
    path = file_of(tmp_path)
    path.write_bytes(b"\n".join(DAMAGES[damage](lines)) + b"\n")
    before = path.read_bytes()
    transcript = await reopened(tmp_path)
    assert transcript.leaf_id == "c"
    assert texts(transcript) == (["a", "c"] if damage == "a damaged line" else ["a", "b", "c"])
    await transcript.append(user("d"))
    assert path.read_bytes().startswith(before)
    assert texts(await reopened(tmp_path))[-1] == "d"
    if damage in ("a damaged line", "no header", "a damaged header", "a NUL tail"):
        assert (await reopened(tmp_path)).warnings


async def test_a_flipped_bit_costs_its_line_and_nothing_before_it(tmp_path):
    """Wherever the bit is, the model and people see every other line, and people see that something is wrong there."""
    ids = [f"entry{str(number) * 4}" for number in range(6)]
    chain = [entry(own, above, f"t{own}") for own, above in zip(ids, [None, *ids], strict=False)]
    clean = b"\n".join(json.dumps(line).encode() for line in [GOLDEN[0], *chain]) + b"\n"
    path, every = file_of(tmp_path), int(os.environ.get("OPENCLAW_FLIPS_EVERY", "5"))
    for number, place in enumerate(range(0, len(clean), every)):
        damaged = bytearray(clean)
        damaged[place] ^= 1 << number % 8
        path.write_bytes(damaged)
        transcript, hit = await reopened(tmp_path), clean.count(b"\n", 0, place)
        spared = [f"t{own}" for at, own in enumerate(ids, start=1) if at != hit or clean[place] == 10]
        read = [block.text for one in transcript.context().messages for block in one.content if hasattr(block, "text")]
        assert [text for text in read if text in spared] == spared, bytes(damaged)
        shown = await FileTranscriptStore(str(tmp_path), clock=StillClock()).tail(REF, 100)
        assert [one.id for one in shown] == [one.id for one in await transcript.shown_entries(100)]
        for one in shown:
            one.raw.decode()
        entries = [one.id for one in shown if one.type == "message"]
        assert len(entries) >= len(spared) - 1
        named = clean[place] != 10 and b'"type": "message", "id": "entry' in damaged.split(b"\n")[hit]
        if len(entries) < len(ids) and 1 < hit < len(ids) and named:
            assert any(one.id.startswith("damage-") for one in shown), bytes(damaged)


async def test_what_a_compaction_kept_is_kept_though_its_first_line_is_damaged(tmp_path):
    lines = [
        GOLDEN[0],
        *(entry(own, above) for own, above in (("a", None), ("b", "a"), ("c", "b"), ("d", "c"))),
        {"type": "compaction", "id": "k", "parentId": "d", "summary": "s", "firstKeptEntryId": "b"},
        entry("e", "k"),
    ]
    raw = [json.dumps(line).encode() for line in lines]
    raw[2] = raw[2].replace(b'"message"', b'"mess\x00ge"', 1)
    file_of(tmp_path).parent.mkdir(parents=True, exist_ok=True)
    file_of(tmp_path).write_bytes(b"\n".join(raw) + b"\n")
    assert (await reopened(tmp_path)).context().entry_ids == ["k", "c", "d", "e"]


async def test_lone_surrogates_and_broken_utf8_are_read_as_replacements(tmp_path):
    path = file_of(tmp_path)
    raw = json.dumps(entry("a", None, "HALF")).encode()
    path.write_bytes(
        json.dumps(GOLDEN[0]).encode()
        + b"\n"
        + raw.replace(b"HALF", b"half \\ud83d here")
        + b"\n"
        + raw.replace(b"HALF", b"broken \xff here").replace(b'"a"', b'"b"')
        + b"\n"
    )
    transcript = await reopened(tmp_path)
    assert [ident for ident, _, _ in transcript.tree()] == ["a", "b"]
    assert transcript.context().messages[0].content[0].text == "broken \ufffd here"
    await transcript.branch("a")
    assert texts(transcript) == ["half \ufffd here"]
    await transcript.append(user("own half \ud83d"))
    assert texts(await reopened(tmp_path))[-1] == "own half \ufffd"


async def test_first_format_is_read_without_being_rewritten(tmp_path):
    old = [
        {"type": "session", "id": "s", "timestamp": "t", "cwd": "/"},
        {"type": "message", "timestamp": "t", "message": {"role": "user", "content": "one", "timestamp": 1}},
        {"type": "message", "timestamp": "t", "message": {"role": "user", "content": "two", "timestamp": 1}},
        {"type": "compaction", "timestamp": "t", "summary": "so far", "firstKeptEntryIndex": 2, "tokensBefore": 1},
        {"type": "message", "timestamp": "t", "message": {"role": "hookMessage", "content": "three", "timestamp": 1}},
    ]
    path = write_lines(file_of(tmp_path), old)
    before = path.read_bytes()
    transcript = await reopened(tmp_path)
    contents = [message.content for message in transcript.context().messages]
    assert contents[1] == "two" and contents[2][0].text == "three"
    assert path.read_bytes() == before
    await transcript.append(user("four"))
    again = await reopened(tmp_path)
    assert again.context() == transcript.context()
    assert len(again.context().messages) == 4


async def test_an_entry_with_a_missing_parent_follows_the_line_before_it(tmp_path):
    lines = [GOLDEN[0], entry("first", "gone"), entry("a", None), entry("orphan", "never written")]
    write_lines(file_of(tmp_path), lines)
    transcript = await reopened(tmp_path)
    assert texts(transcript) == ["a", "orphan"]
    assert [parent for _, parent, _ in transcript.tree()] == ["gone", None, "a"]


async def test_duplicate_ids_and_entries_that_are_their_own_parent_do_not_go_round_in_circles(tmp_path):
    lines = [GOLDEN[0], entry("a", "a", "1"), entry("b", "a", "2"), entry("a", "b", "3"), entry("c", "a", "4")]
    write_lines(file_of(tmp_path), lines)
    transcript = await reopened(tmp_path)
    assert texts(transcript) == ["1", "2", "3", "4"]
    found = await transcript.entry("a")
    assert b'"3"' in found.raw


async def test_full_disk_is_reported_and_costs_nothing_else(tmp_path, store, monkeypatch):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    real = os.write

    def full(fd, data):
        if full.calls:
            raise OSError(28, "No space left on device")
        full.calls = True
        return real(fd, bytes(data)[: len(data) // 2])

    full.calls = False
    monkeypatch.setattr(disk.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        await transcript.append(user("two"))
    monkeypatch.undo()
    assert texts(transcript) == ["one"]
    await transcript.append(user("three"))
    again = await reopened(tmp_path)
    assert texts(again) == ["one", "three"]
    assert again.warnings == []


@pytest.mark.parametrize("use", ["tail", "entries", "append"])
async def test_file_removed_in_use_is_written_again(tmp_path, store, use):
    transcript = await store.open(REF)
    for word in ("one", "two"):
        await transcript.append(user(word))
    before = file_of(tmp_path).read_bytes()
    file_of(tmp_path).unlink()
    if use == "tail":
        assert len(await store.tail(REF, 10)) == 2
    elif use == "entries":
        assert len(await transcript.path_entries()) == 2
    else:
        await transcript.append(user("three"))
    assert file_of(tmp_path).read_bytes().startswith(before)
    assert texts(await reopened(tmp_path)) == texts(transcript)
    assert "written again" in transcript.warnings[0]


async def test_file_removed_while_it_is_closed_is_begun_anew(tmp_path, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    transcript.rest()
    file_of(tmp_path).unlink()
    await transcript.append(user("two"))
    again = await reopened(tmp_path)
    assert again._index.header is not None and texts(again) == ["two"] == texts(transcript)


async def test_another_programs_torn_line_does_not_swallow_ours(tmp_path, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    with file_of(tmp_path).open("ab") as other:
        other.write(b'{"type":"custom","id":"oth')
    await transcript.append(user("two"))
    assert texts(await reopened(tmp_path)) == ["one", "two"]
    assert (await transcript.entry(transcript.leaf_id)).raw.endswith(b"}")


@pytest.mark.parametrize("ended_by", ["reading", "writing", "resting", "condensing"])
async def test_another_programs_line_in_the_moment_of_ours_does_not_hide_ours(tmp_path, store, monkeypatch, ended_by):
    transcript = await store.open(REF)
    await transcript.append(user("one"), entry_id="a")
    real = os.write

    def late(fd, data):
        monkeypatch.undo()
        with file_of(tmp_path).open("ab") as other:
            other.write(b'{"type":"custom","id":"other","parentId":"a"}\n')
        return real(fd, data)

    monkeypatch.setattr(disk.os, "write", late)
    await transcript.append_all({"b": user("two"), "c": user("three")})
    if ended_by == "writing":
        await transcript.append(user("four"), entry_id="d")
    elif ended_by == "resting":
        transcript.rest()
    elif ended_by == "condensing":
        monkeypatch.setattr(disk.os, "write", late)
        kept = {"type": "compaction", "summary": "s", "firstKeptEntryId": "b"}
        await transcript.append_all({"d": kept, "e": user("four")})
        assert texts(transcript)[1:] == ["two", "three", "four"]
    for own in [own for own in "abcde" if own in transcript]:
        assert json.loads((await transcript.entry(own)).raw)["id"] == own


async def test_same_transcript_is_one_object_however_often_it_is_opened(tmp_path, store):
    write_lines(file_of(tmp_path), [GOLDEN[0], entry("a", None)])
    opened = await asyncio.gather(*(store.open(REF) for _ in range(5)))
    assert len({id(transcript) for transcript in opened}) == 1
    (tmp_path / "link").symlink_to(tmp_path / "agents" / "main" / "sessions")
    other_spelling = TranscriptRef(agent_id="main", session_id="s", file=str(tmp_path / "link" / "s.jsonl"))
    assert await store.open(other_spelling) is opened[0]
    assert await store.open(TranscriptRef(agent_id="main", session_id="none"), create=False) is None


async def test_transcript_of_a_new_session_is_not_looked_for(tmp_path, store, monkeypatch):
    monkeypatch.setattr(store._locations, "find_either", lambda ref: pytest.fail("looked for"))
    store.begin(REF, cwd="/home/me/work")
    transcript = await store.open(REF)
    await transcript.append(user("one"), durable=True)
    again = await reopened(tmp_path)
    assert again._index.header["cwd"] == "/home/me/work" and texts(again) == ["one"]
    store.begin(REF)
    assert await store.open(REF) is transcript


async def test_held_transcript_stays_itself_when_the_cache_is_full(tmp_path):
    store = FileTranscriptStore(str(tmp_path), clock=StillClock(), most_live=2)
    held = await store.open(REF)
    await held.append(user("one"))
    for number in range(5):
        other = await store.open(TranscriptRef(agent_id="main", session_id=f"o{number}"))
        await other.append(user("x"))
    del other
    gc.collect()
    assert await store.open(REF) is held
    await held.append(user("two"), durable=True)
    assert texts(await reopened(tmp_path)) == ["one", "two"]
    assert len(store._live) <= 3
    await store.close()


async def test_archived_file_keeps_late_entries_and_a_new_one_starts_clean(tmp_path, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    (archived,) = await store.archive(REF, "deleted")
    assert Path(archived).name == "s.jsonl.deleted.2023-11-14T22-13-20.000Z"
    await transcript.append(user("late"))
    assert len(Path(archived).read_text().splitlines()) == 3
    assert await store.locate(REF) is None
    fresh = await store.open(REF)
    assert fresh is not transcript and len(fresh) == 0


@pytest.mark.parametrize(
    "place",
    [
        "agents/main/sessions/s.jsonl",
        "sessions/main/s.jsonl",
        "sessions/s.jsonl",
        "custom/s.jsonl",
    ],
)
async def test_transcripts_are_found_in_current_and_older_places(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    write_lines(path, [GOLDEN[0], entry("a", None)])
    store = FileTranscriptStore(
        str(tmp_path), clock=StillClock(), store_path=lambda agent: str(tmp_path / "custom" / "sessions.json")
    )
    assert await store.locate(REF) == str(path)
    assert [e.id for e in await store.tail(REF, 5)] == ["a"]
    await store.close()


def test_topic_transcripts_have_their_own_file():
    store = FileTranscriptStore("/custom/state", clock=StillClock())
    ref = TranscriptRef(agent_id="main", session_id="sess-1", thread_id=123)
    assert store.default_path(ref) == "/custom/state/agents/main/sessions/sess-1-topic-123.jsonl"
    assert store.default_path(TranscriptRef(agent_id="Codex", session_id="sess-2")).endswith(
        "/custom/state/agents/codex/sessions/sess-2.jsonl"
    )


async def test_session_file_may_point_inside_the_state_directory_only(tmp_path):
    state, outside = tmp_path / "state", tmp_path / "outside.jsonl"
    write_lines(file_of(state, "other.jsonl"), [GOLDEN[0], entry("inside", None)])
    write_lines(outside, [GOLDEN[0], entry("outside", None)])
    (file_of(state).parent / "trap.jsonl").symlink_to(outside)
    store = FileTranscriptStore(str(state), clock=StillClock())

    def at(file: str) -> TranscriptRef:
        return TranscriptRef(agent_id="main", session_id="s", file=file)

    home = file_of(state).parent
    assert store.default_path(at(str(home / "other.jsonl"))) == str(home / "other.jsonl")
    assert await store.locate(at("other.jsonl")) == str(home / "other.jsonl")
    for escape in (str(outside), "../../../../outside.jsonl", "trap.jsonl", "/etc/passwd"):
        assert store.default_path(at(escape)) == str(home / "s.jsonl")
        assert await store.locate(at(escape)) is None
    # A state directory copied from another machine: the old absolute path is gone, the file came along.
    assert await store.locate(at("/home/old/.openclaw/agents/main/sessions/other.jsonl")) == str(home / "other.jsonl")


async def test_copy_of_a_running_transcript_opens_as_it_was(tmp_path, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    shutil.copytree(tmp_path / "agents", tmp_path / "copy" / "agents")
    await transcript.append(user("two"))
    assert texts(await reopened(tmp_path / "copy")) == ["one"]
