"""Notes are found by their words, with the lines they stand on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.memory.index import CHUNK_CHARS, MemoryIndex, MemoryQuery, chunks_of, memory_files, rename_indexes


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "memory").mkdir(parents=True)
    (folder / "MEMORY.md").write_text("# About Ada\n\nShe likes green tea.\n")
    (folder / "memory/2026-01-30.md").write_text("- the database is PostgreSQL\n- the shed is green\n")
    (folder / "memory/2026-01-31.md").write_text(
        "- we decided to move the database to SQLite\n- Müller called\n- 東京の会議\n"
    )
    return folder


def found(workspace: Path, query: str, least: float = 0.35) -> list[str]:
    index = MemoryIndex(workspace.parent / "memory.sqlite")
    question = MemoryQuery(text=query, limit=6, least=least)
    return [f"{hit.name}:{hit.first}" for hit in index.search(question, memory_files(workspace))]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What did we decide about the database?", ["memory/2026-01-31.md:1"]),
        ("muller", ["memory/2026-01-31.md:1"]),
        ("会議", ["memory/2026-01-31.md:1"]),
        ("green tea", ["MEMORY.md:1"]),
        ("nothing of the kind: zebra", []),
        ("zebra", []),
        ('"quotes" AND (brackets* OR -dash', []),
        ("", []),
    ],
)
def test_the_passage_that_fits_comes_first(workspace: Path, query: str, expected: list[str]) -> None:
    assert found(workspace, query, least=0.6)[:1] == expected


def test_our_index_gives_way_to_the_one_of_2026_9_and_that_one_stays(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    MemoryIndex(folder / "main.sqlite").update(memory_files(workspace))
    with contextlib.closing(sqlite3.connect(folder / "work.sqlite")) as theirs:
        theirs.execute("CREATE TABLE chunks (id TEXT, path TEXT)")
    (folder / "torn.sqlite").write_bytes(b"no database")
    assert rename_indexes(tmp_path) == [folder / "main.notes.db"]
    assert rename_indexes(tmp_path) == []
    assert sorted(path.name for path in folder.iterdir()) == ["main.notes.db", "torn.sqlite", "work.sqlite"]
    assert MemoryIndex(folder / "main.notes.db").update(()).files == 0


def test_a_changed_a_new_and_a_removed_file_are_noticed(workspace: Path) -> None:
    assert found(workspace, "sqlite") == ["memory/2026-01-31.md:1"]
    (workspace / "memory/2026-01-31.md").write_text("- no longer\n")
    (workspace / "memory/new.md").write_text("- sqlite again\n")
    assert found(workspace, "sqlite") == ["memory/new.md:1"]
    (workspace / "memory/new.md").unlink()
    assert found(workspace, "sqlite") == []


def test_a_damaged_index_is_made_anew(workspace: Path) -> None:
    assert found(workspace, "tea")
    path = workspace.parent / "memory.sqlite"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"no database at all" * 500)
    assert found(workspace, "tea") == ["MEMORY.md:1"]


def test_links_are_no_memory(workspace: Path) -> None:
    secret = workspace.parent / "secret.md"
    secret.write_text("password\n")
    (workspace / "memory/link.md").symlink_to(secret)
    os.symlink(workspace.parent, workspace / "memory/folder")
    assert found(workspace, "password") == []


def test_more_places_can_be_searched(workspace: Path) -> None:
    (workspace / "notes").mkdir()
    (workspace / "notes/a.md").write_text("zebra")
    assert [file.name for file in memory_files(workspace, ["notes"])][-1] == "notes/a.md"


@given(
    st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=400
        ),
        max_size=60,
    )
)
def test_every_line_is_in_a_piece_and_pieces_name_their_lines(lines: list[str]) -> None:
    text = "\n".join(lines)
    covered: set[int] = set()
    for chunk in chunks_of(text):
        assert chunk.text == "\n".join(lines[chunk.first - 1 : chunk.last])
        assert len(chunk.text) <= CHUNK_CHARS or chunk.first == chunk.last
        covered |= set(range(chunk.first, chunk.last + 1))
    assert {number for number, line in enumerate(lines, 1) if line.strip()} <= covered
