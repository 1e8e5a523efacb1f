"""Backups of a state folder that changes meanwhile, at every moment of the backup."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.storage import faults
from openclaw.storage.files.backup import BackupFolder
from openclaw.storage.files.transcript_index import compress_file, compressed_name, decompress_file, plain_blocks

SESSIONS = Path("agents/main/sessions")
STAMP = "2026-11-18T11-10-46.359Z"


class State:
    """A state folder with conversations, and what a Gateway does to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions = folder / SESSIONS
        self.sessions.mkdir(parents=True)
        self.entries: dict[str, Any] = {}
        for name in ("ann", "ben", "old"):
            self.begin(name)
        compress_file(self.transcript("old"))
        (folder / "openclaw.json").write_text("{}")
        (folder / "blobs").mkdir()
        (folder / "blobs" / "b").write_text("b")
        self.messages = 0
        with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
            ledger.execute("CREATE TABLE messages (number INTEGER)")

    def transcript(self, name: str) -> Path:
        return self.sessions / f"{name}.jsonl"

    def begin(self, name: str) -> None:
        self.put(name, {"sessionId": name, "systemSent": True})
        self.transcript(name).write_text(f"the words of {name}\n")

    def put(self, name: str, entry: dict[str, Any] | None) -> None:
        self.entries = {key: kept for key, kept in {**self.entries, name: entry}.items() if kept is not None}
        prepared = self.sessions / "sessions.json.1.ab.tmp"
        prepared.write_text(json.dumps(self.entries))
        prepared.replace(self.sessions / "sessions.json")

    def compress(self) -> None:
        compress_file(self.transcript("ann"))

    def compress_more(self) -> None:
        """More was said after the copy, and before the compression."""
        self.say("ann")
        self.compress()

    def resume(self) -> None:
        decompress_file(compressed_name(self.transcript("old")))
        self.say("old")

    def compress_and_resume(self) -> None:
        self.compress()
        decompress_file(compressed_name(self.transcript("ann")))
        self.say("ann")

    def say(self, name: str) -> None:
        with self.transcript(name).open("a") as file:
            file.write(f"more words of {name}\n")

    def delete(self) -> None:
        self.transcript("ann").rename(self.sessions / f"ann.jsonl.deleted.{STAMP}")
        self.put("ann", None)

    def delete_compressed(self) -> None:
        compressed_name(self.transcript("old")).rename(self.sessions / f"old.jsonl.deleted.{STAMP}.zst")
        self.put("old", None)

    def reset(self) -> None:
        self.put("ann", {"sessionId": "ann-2", "systemSent": True})
        self.transcript("ann-2").write_text("the words of ann-2\n")

    def begin_another(self) -> None:
        self.begin("new")

    def receive(self) -> None:
        """A message is in the ledger before the bookmark of its channel moves."""
        self.messages += 1
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger, ledger:
            ledger.execute("INSERT INTO messages VALUES (?)", (self.messages,))
        bookmark = self.folder / "channels" / "signal" / "default" / "last-event"
        bookmark.parent.mkdir(parents=True, exist_ok=True)
        prepared = bookmark.with_name("last-event.new")
        prepared.write_text(str(self.messages))
        prepared.replace(bookmark)


Change = Callable[[State], None]


def back_up(root: Path, monkeypatch: pytest.MonkeyPatch, change: Change, moments: range) -> tuple[State, Path] | None:
    """Back up a state that changes at these moments, and extract the backup. None if the backup has no such moments."""
    state, folder = State(root / "state"), BackupFolder(root / "backups", create=True)
    passed = count()
    reached = False

    def moment(*_: object) -> None:
        nonlocal reached
        if next(passed) in moments:
            reached = True
            change(state)

    with monkeypatch.context() as patched:
        patched.setattr(faults, "point", moment)
        backup, _ = folder.create(state.folder, "1", moment)
    if not reached:
        return None
    assert backup.skipped == []
    assert folder.verify(backup) == []
    (root / "restored").mkdir()
    folder.extract(backup, root / "restored")
    return state, root / "restored"


def words(file: Path) -> str:
    return b"".join(plain_blocks(file)).decode()


CHANGES: list[Change] = [
    *(State.compress, State.compress_more, State.resume, State.compress_and_resume),
    *(State.delete, State.delete_compressed, State.reset, State.begin_another),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_conversation_is_missing_whenever_its_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    for number in count():
        made = back_up(tmp_path / str(number), monkeypatch, change, range(number, number + 1))
        if made is None:
            break
        _, restored = made
        folder = restored / SESSIONS
        entries = json.loads((folder / "sessions.json").read_text())
        assert {"ben"} <= entries.keys() <= {"ann", "ben", "old", "new"}
        for entry in entries.values():
            plain = folder / f"{entry['sessionId']}.jsonl"
            spellings = [file for file in (plain, compressed_name(plain)) if file.exists()]
            assert spellings, f"{plain.name} is missing after a change at moment {number}"
            # A Gateway reads the plain file. No other has more in it.
            assert len({words(file) for file in spellings}) == 1
        for name in ("ann", "ben", "old"):
            copies = [file for file in folder.glob(f"{name}.jsonl*") if f"the words of {name}" in words(file)]
            assert len({file.name.removesuffix(".zst") for file in copies}) == 1, [file.name for file in copies]
    assert number > 10


@pytest.mark.parametrize("known", [0, 3])
def test_a_bookmark_is_never_ahead_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    """``known`` messages came before the backup. With none the bookmark is made during the backup."""
    for number in count():
        moments = range(number, number + 2)
        began = False

        def receive(state: State) -> None:
            nonlocal began
            for _ in range(1 if began else known + 1):
                state.receive()
            began = True

        made = back_up(tmp_path / str(number), monkeypatch, receive, moments)
        if made is None:
            break
        _, restored = made
        bookmark = restored / "channels" / "signal" / "default" / "last-event"
        with closing(sqlite3.connect(restored / "ledger.db")) as ledger:
            rows = [row for (row,) in ledger.execute("SELECT number FROM messages ORDER BY number")]
        assert int(bookmark.read_text() if bookmark.exists() else 0) <= len(rows), f"at moment {number}"
    assert number > 10


def test_a_session_without_a_transcript_is_reported_by_the_backup_and_by_verify(tmp_path: Path) -> None:
    state, folder = State(tmp_path / "state"), BackupFolder(tmp_path / "backups", create=True)
    state.transcript("ann").unlink()
    state.put("never used", {"sessionId": "fresh"})
    backup, _ = folder.create(state.folder, "1")
    assert backup.skipped == ["session ann: its transcript ann.jsonl is missing"]
    assert folder.verify(backup) == [f"{backup.skipped[0]} (when the backup was made)"]


def test_verify_notices_a_hole_in_a_backup_that_was_made_without_a_word(tmp_path: Path) -> None:
    state, folder = State(tmp_path / "state"), BackupFolder(tmp_path / "backups", create=True)
    backup, _ = folder.create(state.folder, "1")
    assert folder.verify(backup) == []
    fewer = [file for file in backup.files if file.name != "old.jsonl.zst"]
    holed = msgspec.structs.replace(backup, files=fewer)
    assert folder.verify(holed) == ["session old: its transcript old.jsonl is missing"]
