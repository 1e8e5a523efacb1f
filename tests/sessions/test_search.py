"""Everything that was said is found again, in plain and in compressed transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.sessions.search import Reading, SearchIndex, searchable, whole_lines
from openclaw.storage.files import transcript_index


def line(own: str, role: str, text: str, **more: Any) -> str:
    message = {"role": role, "content": [{"type": "text", "text": text}], **more}
    return (
        json.dumps({"type": "message", "id": own, "parentId": None, "timestamp": f"t-{own}", "message": message}) + "\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "sessions"
    place.mkdir()
    header = json.dumps({"type": "session", "version": 3, "id": "the-id"}) + "\n"
    text = header + line("a", "user", "the green shed") + line("b", "toolResult", "turnips", toolName="read")
    (place / "one.jsonl").write_text(text)
    return place


def found(folder: Path, query: str, **more: Any) -> list[str]:
    index = SearchIndex(str(folder.parent))
    return [f"{hit.session_id}/{hit.entry_id}" for hit in index.search(query, {"main": [folder]}, **more).results]


@pytest.mark.parametrize(
    ("query", "more", "expected"),
    [
        ("green", {}, ["the-id/a"]),
        ("shed green", {}, ["the-id/a"]),
        ('"shed green"', {}, []),
        ('"green shed"', {}, ["the-id/a"]),
        ("gre", {}, ["the-id/a"]),
        ("turnips", {"roles": ["toolResult"]}, ["the-id/b"]),
        ("turnips", {"roles": ["user", "assistant"]}, []),
        ("turnips", {"session_ids": ["another"]}, []),
        ('") OR (', {}, []),
        ("NEAR(green* - :", {}, []),
    ],
)
def test_words_phrases_and_who_said_it(folder: Path, query: str, more: dict[str, Any], expected: list[str]) -> None:
    assert found(folder, query, **more) == expected


def test_only_what_is_new_is_read_and_a_line_being_written_waits(folder: Path) -> None:
    assert found(folder, "marrow") == []
    with (folder / "one.jsonl").open("a") as file:
        file.write(line("c", "user", "a marrow")[:-10])
    assert found(folder, "marrow") == []
    with (folder / "one.jsonl").open("a") as file:
        file.write(line("c", "user", "a marrow")[-10:])
    assert found(folder, "marrow") == ["the-id/c"]
    assert found(folder, "green") == ["the-id/a"], "and nothing twice"


def test_compressing_changes_nothing_and_a_compressed_file_can_be_read_anew(folder: Path) -> None:
    assert found(folder, "green") == ["the-id/a"]
    transcript_index.compress_file(folder / "one.jsonl")
    assert found(folder, "green") == ["the-id/a"]
    (folder.parent / "search.db").unlink()
    assert found(folder, "green") == ["the-id/a"]


def test_a_shortened_or_removed_transcript_and_a_damaged_index(folder: Path) -> None:
    assert found(folder, "green")
    (folder / "one.jsonl").write_text(line("z", "user", "purple"))
    assert (found(folder, "green"), found(folder, "purple")) == ([], ["one/z"])
    (folder.parent / "search.db").write_bytes(b"rubbish" * 1000)
    assert found(folder, "purple") == ["one/z"]
    (folder / "one.jsonl").unlink()
    assert found(folder, "purple") == []


def test_reading_stops_at_its_bound_and_goes_on_later(folder: Path) -> None:
    (folder / "two.jsonl").write_text("".join(line(str(n), "user", f"number {n}") for n in range(50)))
    index = SearchIndex(str(folder.parent))
    passes = [index.update({"main": [folder]}, most_bytes=1000)]
    while not passes[-1].complete and len(passes) < 50:
        passes.append(index.update({"main": [folder]}, most_bytes=1000))
    counts = [reading.read for reading in passes]
    assert 3 < len(passes) < 50 and counts == sorted(counts) and counts[0] < 2
    assert passes[-1] == Reading(complete=True, read=2, transcripts=2)
    assert len(index.search("number", {"main": [folder]}, limit=100).results) == 50


def test_summaries_and_calls_are_searched_thoughts_are_not() -> None:
    assert searchable({"type": "compaction", "summary": "so far"}) == ("summary", "", "so far")
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "toolCall", "name": "read", "arguments": {"path": "x"}}]
    role, _, text = searchable({"type": "message", "message": {"role": "assistant", "content": blocks}})
    assert (role, text) == ("assistant", 'read {"path":"x"}')
    assert searchable({"type": "custom", "data": {}})[2] == ""


def test_lines_are_split_at_newlines_only(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"a\rb\nc\n" + b"x" * (1 << 20) + b"\nhalf")
    assert [len(one) for one in whole_lines(file)] == [4, 2, (1 << 20) + 1]
    assert next(whole_lines(file, 4)) == b"c\n"
