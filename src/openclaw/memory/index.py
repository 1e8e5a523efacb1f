"""The search index over an agent's notes: SQLite FTS5, brought up to date when asked, thrown away when damaged."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from openclaw.memory.chunks import chunks_of, folded, telling_words, without_spaces
from openclaw.memory.files import MemoryFile
from openclaw.paths import make_private_dir

log = logging.getLogger("openclaw.memory")

VERSION = 1
MOST_WORDS = 32
BUSY_S = 30.0
CANDIDATES = 4
"""Pieces looked at for each one that is returned."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, name TEXT, mtime_ns INTEGER, size INTEGER);
CREATE TABLE IF NOT EXISTS chunks (id INTEGER PRIMARY KEY, path TEXT, first INTEGER, last INTEGER, text TEXT);
CREATE INDEX IF NOT EXISTS chunks_path ON chunks (path);
CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5(text, tokenize = "unicode61 remove_diacritics 2");
"""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    first: int
    last: int
    score: float
    """1 when every word that tells pieces apart is there."""
    text: str


class MemoryIndex:
    """Blocking: ask it from a worker thread. Calls wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()

    def search(self, query: str, files: Sequence[MemoryFile], limit: int, *, least: float = 0.0) -> list[Hit]:
        """The pieces of ``files`` that fit best, the best first. Files that changed are read again first."""
        wanted = telling_words(query)[:MOST_WORDS]
        with self._guard:
            try:
                return self._search(wanted, files, limit, least)
            except sqlite3.DatabaseError as error:
                if "locked" in str(error):
                    raise  # Someone else writes to it; that is no damage.
                log.warning("the memory index %s is damaged and is made anew: %s", self.path, error)
                self._throw_away()
                return self._search(wanted, files, limit, least)

    def update(self, files: Sequence[MemoryFile], *, anew: bool = False) -> tuple[int, int]:
        """Number of files and of pieces, once the index is up to date."""
        with self._guard:
            if anew:
                self._throw_away()
            with contextlib.closing(self._open()) as db:
                _bring_up_to_date(db, files)
                return len(files), db.execute("SELECT count(*) FROM chunks").fetchone()[0]

    def _search(self, wanted: list[str], files: Sequence[MemoryFile], limit: int, least: float) -> list[Hit]:
        with contextlib.closing(self._open()) as db:
            _bring_up_to_date(db, files)
            return _ranked(db, wanted, {str(file.path): file.name for file in files}, limit, least)

    def _open(self) -> sqlite3.Connection:
        make_private_dir(str(self.path.parent))
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            # It can be made again at any time: not worth a sync.
            db.execute("PRAGMA synchronous = OFF")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, VERSION):
                raise sqlite3.DatabaseError(f"version {found}")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _throw_away(self) -> None:
        for ending in ("", "-journal", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)


def _bring_up_to_date(db: sqlite3.Connection, files: Sequence[MemoryFile]) -> None:
    known = {row[0]: (row[1], row[2]) for row in db.execute("SELECT path, mtime_ns, size FROM files")}
    now = {str(file.path): file for file in files}
    with db:
        for path in known.keys() - now.keys():
            _drop(db, path)
        for path, file in now.items():
            if known.get(path) != (file.mtime_ns, file.size):
                _drop(db, path)
                _take(db, file)


def _drop(db: sqlite3.Connection, path: str) -> None:
    db.execute("DELETE FROM found WHERE rowid IN (SELECT id FROM chunks WHERE path = ?)", (path,))
    db.execute("DELETE FROM chunks WHERE path = ?", (path,))
    db.execute("DELETE FROM files WHERE path = ?", (path,))


def _take(db: sqlite3.Connection, file: MemoryFile) -> None:
    try:
        text = file.path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        log.warning("memory file %s cannot be read: %s", file.name, error)
        return
    for chunk in chunks_of(text):
        added = db.execute(
            "INSERT INTO chunks (path, first, last, text) VALUES (?, ?, ?, ?)",
            (str(file.path), chunk.first, chunk.last, chunk.text),
        )
        db.execute("INSERT INTO found (rowid, text) VALUES (?, ?)", (added.lastrowid, folded(chunk.text)))
    record = (str(file.path), file.name, file.mtime_ns, file.size)
    db.execute("INSERT INTO files (path, name, mtime_ns, size) VALUES (?, ?, ?, ?)", record)


def _ranked(db: sqlite3.Connection, wanted: list[str], names: dict[str, str], limit: int, least: float) -> list[Hit]:
    """Rare words count more than common ones; a word that occurs nowhere takes away half of what it could bring."""
    total = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
    holding = {word: _holding(db, word) for word in wanted}
    weights = {word: math.log(1 + total / len(ids)) for word, ids in holding.items() if ids}
    if not weights:
        return []
    scores: dict[int, float] = {}
    for word, weight in weights.items():
        for chunk_id in holding[word]:
            scores[chunk_id] = scores.get(chunk_id, 0.0) + weight
    best = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[: limit * CANDIDATES]
    missing = sum(1 for ids in holding.values() if not ids)
    whole = sum(weights.values()) + missing * math.log(1 + total) / 2
    hits: list[Hit] = []
    for chunk_id in best:
        path, first, last, text = db.execute(
            "SELECT path, first, last, text FROM chunks WHERE id = ?", (chunk_id,)
        ).fetchone()
        score = scores[chunk_id] / whole
        overlaps = any(hit.name == names[path] and hit.first <= last and first <= hit.last for hit in hits)
        if score >= least and not overlaps:
            hits.append(Hit(name=names[path], first=first, last=last, score=round(score, 4), text=text))
        if len(hits) >= limit:
            break
    return hits


def _holding(db: sqlite3.Connection, word: str) -> set[int]:
    """Pieces that hold the word, or a longer one that begins like it."""
    if without_spaces(word):
        rows = db.execute("SELECT rowid FROM found WHERE instr(text, ?) > 0", (word,))
    else:
        rows = db.execute(
            "SELECT rowid FROM found WHERE found MATCH ?", (f'"{word}" *' if len(word) > 2 else f'"{word}"',)
        )
    return {row[0] for row in rows}
