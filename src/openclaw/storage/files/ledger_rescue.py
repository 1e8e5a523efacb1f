"""What is done about a ledger that is damaged or gone: its readable rows go to a new one, and the old file is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

KEYS = {
    "messages": "id",
    "story": "ledger_id",
    "tool_calls": "rowid",
    "outbox": "id",
    "seen": "step",
    "held": "step",
    "turned_away": "step",
    "jobs": "rowid",
}
"""The tables with the number by which their rows are read. No index is needed for it, as one may be damaged too."""
_AT_ONCE = 1_000
_MOST_FAILURES = 20_000
"""A table is given up after this many failed reads. A page above many others may be the damaged one."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SUFFIXES = ("", "-wal", "-shm")
_PAGE = 4096


class FoundDamaged(sqlite3.DatabaseError):
    """A check of the whole file found a fault."""


def is_damage(error: sqlite3.Error) -> bool:
    """Tells whether the error says that the file itself is damaged."""
    return type(error) is FoundDamaged or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def second_name(path: Path) -> Path:
    """A second name of the same file. If the first is deleted, nothing is lost."""
    return path.with_name(f"{path.name}.bak")


def keep_second_name(path: Path) -> None:
    """Gives the file its second name, at every start. Some file systems have no second names."""
    other = second_name(path)
    with contextlib.suppress(OSError):
        if not (other.exists() and other.samefile(path)):
            beside = other.with_name(f"{other.name}.new")
            beside.unlink(missing_ok=True)
            os.link(path, beside)
            beside.replace(other)


def restore(path: Path, now_ms: int, note: Callable[[str], None]) -> None:
    """Brings a deleted ledger back under its name. Its log alone is kept aside, because SQLite would delete it."""
    if path.exists() and (path.stat().st_size or not second_name(path).exists()):
        return
    if path.exists():
        note(f"{path} was emptied. A new ledger was begun, and what the old one held is lost.")
        return
    wal = path.with_name(f"{path.name}-wal")
    if second_name(path).exists():
        os.link(second_name(path), path)
        note(f"{path} was gone. It was restored from {second_name(path).name}, and nothing of it is lost.")
    elif wal.exists() and wal.stat().st_size:
        aside = wal.rename(wal.with_name(f"{wal.name}.damaged-{now_ms}"))
        note(f"{path} is gone, and only its log was left. That was kept as {aside.name}, and a new ledger was begun.")


class Rescued(msgspec.Struct):
    """How many rows of each table were taken over, and how many could not be read."""

    taken: dict[str, int] = {}
    lost: dict[str, int] = {}
    lost_messages: list[int] = []

    def words(self) -> str:
        names = {"messages": "messages", "outbox": "parts of replies", "held": "held messages"}
        kept = self.taken.get("messages", 0)
        gone = [f"{count} {names[name]}" for name, count in self.lost.items() if count and name in names]
        if not kept and not gone:
            return "No message could be read in it. What was answered is in the transcripts; what still waited is lost."
        which = f" (number {', '.join(map(str, self.lost_messages[:20]))})" if self.lost_messages else ""
        lost = f"lost: {', '.join(gone)}{which}" if gone else "no message is lost"
        return f"{kept} messages could be read and were taken over; {lost}."


def rescue(
    path: Path, now_ms: int, problem: str, note: Callable[[str], None], make: Callable[[Path], sqlite3.Connection]
) -> None:
    """Replaces a damaged ledger by a new one with its readable rows. ``make`` creates an empty ledger.

    The damaged files are renamed only when the new one is complete, so that a full disk loses nothing.
    """
    fresh, aside = path.with_name(f"{path.name}.rescued"), path.with_name(f"{path.name}.damaged-{now_ms}")
    _remove(fresh)
    try:
        with contextlib.closing(make(fresh)) as new:
            new.executescript("DROP TRIGGER temp.accepted; DROP TRIGGER temp.ended")  # The story is taken over too.
            rescued = _take_over(path, new, fresh)
            new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except BaseException:
        _remove(fresh)
        raise
    finally:
        _remove(fresh.with_name(f"{fresh.name}.copy"))
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        with contextlib.suppress(FileNotFoundError):
            fresh.with_name(fresh.name + suffix).rename(path.with_name(path.name + suffix))
    second_name(path).unlink(missing_ok=True)
    note(f"{path} was damaged ({problem}) and was kept as {aside.name}. {rescued.words()}")


def _remove(path: Path) -> None:
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _with_first_page(damaged: Path, fresh: Path) -> Path:
    """Returns the damaged file, or a copy with the first page of the new one if its own first page cannot be read.

    Every ledger has the same tables in the same places.
    """
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(damaged)) as old:
        old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return damaged
    mended = fresh.with_name(f"{fresh.name}.copy")
    _remove(mended)
    for suffix in _SUFFIXES[:2]:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(damaged.with_name(damaged.name + suffix), mended.with_name(mended.name + suffix))
    with fresh.open("rb") as first, mended.open("r+b") as file:
        pages = file.seek(0, os.SEEK_END) // _PAGE
        file.seek(0)
        page = bytearray(first.read(_PAGE))
        page[28:40] = pages.to_bytes(4, "big") + bytes(8)  # The number of pages, and no list of free ones.
        file.write(page)
    return mended


def _take_over(damaged: Path, new: sqlite3.Connection, fresh: Path) -> Rescued:
    rescued = Rescued()
    new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    source = _with_first_page(damaged, fresh)
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as old:
        for table, key in KEYS.items():
            new.execute("BEGIN")
            try:
                reader = _Reader(old, table, key)
                columns = {row[1] for row in new.execute(f"PRAGMA table_info({table})")}
                rescued.taken[table] = sum(_insert(new, table, columns, row) for row in reader.rows())
                rescued.lost[table] = reader.lost
            finally:
                new.execute("COMMIT")
        known = "SELECT DISTINCT ledger_id FROM story WHERE ledger_id NOT IN (SELECT id FROM messages)"
        rescued.lost_messages = [number for (number,) in new.execute(known)]
        rescued.lost["messages"] = len(rescued.lost_messages)
    return rescued


def _insert(new: sqlite3.Connection, table: str, columns: set[str], row: dict[str, Any]) -> int:
    kept = {name: value for name, value in row.items() if name in columns}
    marks = ", ".join("?" * len(kept))
    statement = f"INSERT OR IGNORE INTO {table} ({', '.join(kept)}) VALUES ({marks})"
    return new.execute(statement, [*kept.values()]).rowcount


class _Reader:
    """Reads a table by ranges of its key. A range that cannot be read is halved, down to the single row."""

    def __init__(self, db: sqlite3.Connection, table: str, key: str) -> None:
        self._db = db
        self._table = table
        self._key = key
        self._failures = 0
        self.lost = 0

    def rows(self) -> Iterator[dict[str, Any]]:
        last = self._last()
        for first in range(1, last + 1, _AT_ONCE):
            yield from self._between(first, min(first + _AT_ONCE - 1, last))

    def _between(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        if self._failures >= _MOST_FAILURES:
            return
        try:
            found = self._db.execute(f"SELECT * FROM {self._table} WHERE {self._key} BETWEEN ? AND ?", (first, last))
            names = [column[0] for column in found.description]
            rows = found.fetchall()
        except sqlite3.Error:
            self._failures += 1
            if first == last:
                self.lost += 1
            else:
                middle = (first + last) // 2
                yield from self._between(first, middle)
                yield from self._between(middle + 1, last)
            return
        yield from (dict(zip(names, row, strict=True)) for row in rows)

    def _last(self) -> int:
        """Returns the highest key, or the best guess if the page that holds it is damaged."""
        questions = [f"SELECT max({self._key}) FROM {self._table}", "SELECT max(seq) FROM sqlite_sequence"]
        for question in (*questions, "SELECT max(id) FROM messages"):
            with contextlib.suppress(sqlite3.Error):
                if (found := self._db.execute(question).fetchone()[0]) is not None or question == questions[0]:
                    return int(found or 0)
        return 0
