"""Transcripts: an append-only tree of entries whose lines are kept byte for byte."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from openclaw.messages import AssistantMessage, TextBlock, ToolCall, ToolResultMessage, UserMessage
from openclaw.sessions.tree import BranchContext
from openclaw.storage.files.transcript_index import TranscriptIndex
from openclaw.storage.transcripts import Transcript, TranscriptRef, TranscriptStore
from tests.storage.conformance.stores import Stores

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


def texts(transcript: Transcript) -> list[str]:
    return [message.content[0].text for message in transcript.context().messages]


def entry(own: str, parent: str | None, text: str = "", role: str = "user") -> dict:
    message = {"role": role, "content": [{"type": "text", "text": text or own}], "timestamp": 1}
    return {"type": "message", "id": own, "parentId": parent, "timestamp": "t", "message": message}


@pytest.fixture
def store(transcripts: TranscriptStore) -> TranscriptStore:
    return transcripts


async def reopened(stores: Stores, ref: TranscriptRef = REF) -> Transcript:
    """The transcript as somebody finds it who has nothing of it in memory."""
    if (here := await stores.transcripts.open(ref, create=False)) is not None:
        await here.sync()
    again = await stores.another_reader().open(ref)
    assert again is not None
    return again


async def lines_of(stores: Stores, ref: TranscriptRef = REF, most_bytes: int = 1 << 20) -> list[bytes]:
    lines: list[bytes] = []
    cursor: int | None = 0
    while cursor is not None:
        more, cursor = await stores.transcripts.page(ref, cursor, most_bytes)
        lines += more
    return lines


async def test_entries_are_chained_and_reopening_goes_on_where_it_ended(stores, store):
    transcript = await store.open(REF)
    await transcript.append({"type": "model_change", "provider": "p", "modelId": "m"})
    await transcript.append({"type": "thinking_level_change", "thinkingLevel": "high"})
    await transcript.append(user("one"))
    last = await transcript.append(assistant("two"), durable=True)
    again = await reopened(stores)
    assert again.leaf_id == last
    await again.append(user("three"), durable=True)
    lines = [json.loads(line) for line in await lines_of(stores)]
    assert [line["type"] for line in lines] == ["session", "model_change", "thinking_level_change", *["message"] * 3]
    assert [line["parentId"] for line in lines[1:]] == [None, *(line["id"] for line in lines[1:-1])]
    assert texts(again) == ["one", "two", "three"]
    assert again.context().thinking_level == "high"
    assert again.context().model == ("p", "m")


async def test_no_block_is_lost_in_a_round_trip(stores, store):
    transcript = await store.open(REF)
    call = ToolCall(id="c", name="read", arguments={"path": "x", "deep": [1, None]})
    stored = [
        UserMessage(content=[TextBlock(text="é😀\u2028")], timestamp=1),
        AssistantMessage(content=[call], stop_reason="toolUse", timestamp=2, provider="p", model="m"),
        ToolResultMessage(tool_call_id="c", tool_name="read", content=[TextBlock(text="x\n")], timestamp=3),
    ]
    for message in stored:
        await transcript.append({"type": "message", "message": message})
    assert transcript.context().messages == stored
    assert (await reopened(stores)).context().messages == stored


async def test_repeated_entry_id_is_not_appended_again(store):
    transcript = await store.open(REF)
    assert await transcript.append(user("a"), entry_id="run1-0") == "run1-0"
    assert await transcript.append(user("a"), entry_id="run1-0", durable=True) == "run1-0"
    assert len(transcript) == 1
    assert "run1-0" in transcript


@pytest.mark.parametrize("fields", [{}, {"type": ""}, {"type": "session"}, {"type": 5}])
async def test_entry_without_a_usable_type_is_refused(store, fields):
    transcript = await store.open(REF)
    with pytest.raises(ValueError, match="type"):
        await transcript.append(fields)
    assert len(transcript) == 0


async def test_bare_branch_is_lost_on_reopening_and_sticks_once_something_is_appended(stores, store):
    transcript = await store.open(REF)
    await transcript.append(user("u1"))
    a1 = await transcript.append(assistant("a1"))
    u2 = await transcript.append(user("u2"))
    await transcript.branch(a1)
    assert texts(transcript) == ["u1", "a1"]
    assert texts(await reopened(stores)) == ["u1", "a1", "u2"]
    await transcript.append({"type": "branch_summary", "fromId": u2, "summary": "tried u2"})
    await transcript.append(user("u3"))
    assert texts(transcript)[0:2] == ["u1", "a1"]
    assert "tried u2" in texts(transcript)[2] and "<summary>" in texts(transcript)[2]
    assert texts(await reopened(stores)) == texts(transcript)
    with pytest.raises(KeyError):
        await transcript.branch("unknown")
    await transcript.branch(None)
    assert transcript.leaf_id is None and transcript.context().messages == []
    await transcript.append(user("new root"))
    assert texts(transcript) == ["new root"]
    assert transcript.tree()[-1][1] is None


async def test_labels_are_entries_and_can_be_cleared(stores, store):
    transcript = await store.open(REF)
    one = await transcript.append(user("one"))
    await transcript.label(one, " start ")
    assert transcript.labels() == {one: "start"}
    assert (await reopened(stores)).labels() == {one: "start"}
    await transcript.label(one, None)
    assert (await reopened(stores)).labels() == {}
    assert "label" not in json.loads((await lines_of(stores))[-1])
    with pytest.raises(KeyError):
        await transcript.label("unknown", "x")


async def test_compaction_shrinks_the_live_context_as_it_does_after_reopening(stores, store):
    transcript = await store.open(REF)
    await transcript.append({"type": "model_change", "provider": "p", "modelId": "m"})
    await transcript.append({"type": "thinking_level_change", "thinkingLevel": "high"})
    ids = [await transcript.append(user(f"m{number}")) for number in range(6)]
    compaction = await transcript.append(
        {"type": "compaction", "summary": "old things", "firstKeptEntryId": ids[4], "tokensBefore": 9}
    )
    await transcript.append(user("after"))
    context = transcript.context()
    assert "<summary>\nold things\n</summary>" in texts(transcript)[0]
    assert texts(transcript)[1:] == ["m4", "m5", "after"]
    assert context.compaction_id == compaction
    assert (context.model, context.thinking_level) == (("p", "m"), "high")
    assert context.entry_ids[:3] == [compaction, ids[4], ids[5]]
    assert (await reopened(stores)).context() == context


async def test_context_handed_out_does_not_change_when_entries_are_added(store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    before = transcript.context()
    assert transcript.context() is before
    await transcript.append(user("two"))
    assert len(before.messages) == 1
    assert len(transcript.context().messages) == 2


async def test_a_context_does_not_depend_on_how_much_was_compacted_away(stores, store, monkeypatch):
    """A conversation without any model or level in it, as an import makes it: nothing of it is read again."""
    transcript = await store.open(REF)
    entries = {f"e{number}": user(f"message {number}") for number in range(1500)}
    await transcript.append_all(entries)
    await transcript.append({"type": "compaction", "summary": "all of it", "firstKeptEntryId": "e1499"})
    await transcript.sync()
    steps = 0
    walk = TranscriptIndex.walk

    def counted(self: TranscriptIndex, leaf: int) -> Iterator[tuple[int, str, str]]:
        nonlocal steps
        for step in walk(self, leaf):
            steps += 1
            yield step

    monkeypatch.setattr(TranscriptIndex, "walk", counted)
    again = await reopened(stores)
    assert len(again.context().messages) == 2
    assert steps < 300


async def test_a_long_branch_is_made_in_a_thread(stores, store, monkeypatch):
    """Moving back in a conversation, and undoing a compaction, decode all of it again."""
    transcript = await store.open(REF)
    await transcript.append_all({f"e{number}": user(f"message {number}") for number in range(1500)})
    await transcript.append({"type": "compaction", "summary": "all of it", "firstKeptEntryId": "e1499"})
    threads: list[threading.Thread] = []
    add = BranchContext.add

    def noted(self: BranchContext, *rest: Any) -> None:
        threads.append(threading.current_thread())
        add(self, *rest)

    monkeypatch.setattr(BranchContext, "add", noted)
    await transcript.branch("e1490")
    assert len(transcript.context().messages) == 1491
    await transcript.append({"type": "compaction", "summary": "undone", "firstKeptEntryId": "e0"})
    assert len(transcript.context().messages) == 1492
    assert threading.main_thread() not in threads


async def test_settings_made_before_the_compaction_still_hold(stores, store):
    lines = [
        *GOLDEN,
        entry("u1", "c1"),
        {"type": "compaction", "id": "k", "parentId": "u1", "summary": "s", "firstKeptEntryId": "gone"},
        entry("u2", "k"),
    ]
    await store.create(REF, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    context = (await reopened(stores)).context()
    assert context.model == ("mock", "mock-1")
    assert context.thinking_level == "low"
    assert context.entry_ids == ["k", "u2"]


async def test_entries_are_read_back_exactly_as_stored(stores, store):
    transcript = await store.open(REF)
    ids = [await transcript.append(user(f"m{n}" * (n * 5000))) for n in range(8)]
    lines = (await lines_of(stores))[1:]
    assert [e.raw for e in await transcript.path_entries()] == lines
    assert [e.id for e in await transcript.path_entries(limit=3)] == ids[-3:]
    assert (await transcript.entry(ids[2])).raw == lines[2]
    assert await transcript.entry("unknown") is None


async def test_lines_longer_than_any_buffer_are_read(stores, store):
    transcript = await store.open(REF)
    await transcript.append(user("small"))
    await transcript.append(user("x" * 3_000_000))
    await transcript.append(user("last"))
    again = await reopened(stores)
    assert [len(text) for text in texts(again)] == [5, 3_000_000, 4]
    tail = await stores.another_reader().tail(REF, 2)
    assert [len(e.raw) > 1_000_000 for e in tail] == [True, False]


async def test_forgotten_transcript_is_read_again(stores, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    await store.forget("s")
    again = await store.open(REF)
    assert again is not transcript and texts(again) == ["one"]


async def test_fork_begins_with_the_branch_and_names_its_origin(stores, store):
    parent = await store.open(REF)
    one = await parent.append(user("one"))
    two = await parent.append(user("two"))
    await parent.label(two, "here")
    await parent.branch(two)
    await parent.append(user("three"))
    ref = TranscriptRef(agent_id="main", session_id="child")
    child = await store.fork(parent, ref, cwd="/c")
    await child.append(user("own"))
    again = await reopened(stores, ref)
    assert texts(again) == ["one", "two", "three", "own"] == texts(child)
    assert again.context().entry_ids[:2] == [one, two]
    assert again.labels() == {two: "here"}
    header = json.loads((await lines_of(stores, ref))[0])
    assert (header["parentSession"], header["cwd"], header["id"]) == (parent.path, "/c", "child")
    with pytest.raises(FileExistsError):
        await store.fork(parent, ref)


async def test_new_session_that_nobody_wrote_to_is_empty_after_a_restart(stores, store):
    store.begin(REF)
    await stores.reopen()
    again = await reopened(stores)
    assert len(again) == 0
    await again.append(user("one"), durable=True)
    assert json.loads((await lines_of(stores))[0])["type"] == "session"


async def test_several_entries_are_added_together_and_known_ones_are_left_out(stores, store):
    transcript = await store.open(REF)
    await transcript.append(user("one"), entry_id="a")
    await transcript.append_all({"a": user("one"), "b": user("two"), "c": user("three")})
    await transcript.sync()
    assert [(line["id"], line["parentId"]) for line in map(json.loads, (await lines_of(stores))[2:])] == [
        ("b", "a"),
        ("c", "b"),
    ]
    assert transcript.leaf_id == "c" and texts(await reopened(stores)) == ["one", "two", "three"]


async def test_same_transcript_is_one_object_and_a_missing_one_is_not_made(store):
    opened = await asyncio.gather(*(store.open(REF) for _ in range(5)))
    assert len({id(transcript) for transcript in opened}) == 1
    assert await store.open(TranscriptRef(agent_id="main", session_id="none"), create=False) is None
    assert await store.locate(REF) is None, "nothing was said yet"
    await opened[0].append(user("one"), durable=True)
    assert await store.locate(REF) == opened[0].path == store.default_path(REF)


async def test_tail_shows_what_people_see_of_the_active_branch(stores, store):
    transcript = await store.open(REF)
    ids = [await transcript.append(user(f"m{number}")) for number in range(30)]
    await transcript.append({"type": "model_change", "provider": "p", "modelId": "m"})
    await transcript.branch(ids[20])
    last = await transcript.append(assistant("here"))
    await transcript.sync()
    for reader in (store, stores.another_reader()):
        assert [entry.id for entry in await reader.tail(REF, 3)] == [ids[19], ids[20], last]
        assert [entry.id for entry in await reader.tail(REF, 2, before=ids[5])] == ids[3:5]
        assert await reader.tail(REF, 2, before="unknown") == []
        assert await reader.tail(TranscriptRef(agent_id="main", session_id="none"), 2) == []


async def test_archived_transcript_keeps_late_entries_and_a_new_one_starts_clean(store):
    transcript = await store.open(REF)
    await transcript.append(user("one"))
    (archived,) = await store.archive(REF, "deleted")
    assert archived.endswith("s.jsonl.deleted.2023-11-14T22-13-20.000Z")
    await transcript.append(user("late"), durable=True)
    assert len(transcript) == 2
    assert await store.locate(REF) is None
    fresh = await store.open(REF)
    assert fresh is not transcript and len(fresh) == 0


async def test_shortening_keeps_the_header_and_the_last_lines(stores, store):
    transcript = await store.open(REF, cwd="/c")
    ids = [await transcript.append(user(f"m{number}")) for number in range(6)]
    shortened = await store.shorten(REF, 2)
    assert shortened.kept == 2 and shortened.archived is not None
    lines = [json.loads(line) for line in await lines_of(stores)]
    assert lines[0]["cwd"] == "/c" and [line.get("parentId") for line in lines[1:]] == [None, ids[4]]
    assert texts(await store.open(REF)) == ["m4", "m5"]
    assert (await store.shorten(REF, 2)).archived is None


async def test_lines_are_given_in_pages_byte_for_byte_and_taken_back(stores, store):
    given = [*(json.dumps(line).encode() for line in GOLDEN), b'{"type":"message",  "id":"x","parentId":"c1"}']
    await store.create(REF, b"\n".join(given) + b"\n")
    assert await lines_of(stores, most_bytes=100) == given == await lines_of(stores)
    assert (await store.head(REF))[: len(given)] == given
    transcript = await store.open(REF)
    assert transcript.leaf_id == "x" and transcript.context().model == ("mock", "mock-1")
    none = TranscriptRef(agent_id="main", session_id="none")
    assert await store.page(none, 0, 100) == ([], None) and await store.head(none) == []


async def test_a_topic_has_a_transcript_of_its_own(store):
    topic = TranscriptRef(agent_id="main", session_id="s", thread_id=5)
    transcript, whole = await store.open(topic), await store.open(REF)
    await transcript.append(user("topic"))
    assert transcript is not whole and len(whole) == 0
    named = TranscriptRef(agent_id="main", session_id="s", file=transcript.path)
    assert await store.open(named) is transcript
