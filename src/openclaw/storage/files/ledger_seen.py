"""Keys of channel messages seen lately, in the ledger. Run in the ledger's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from zlib import crc32

PRUNE_EVERY = 64
"""A look-up that finds nothing writes nothing, except one in so many, which clears away what is too old."""

MOST_KEYS = 50_000

SEEN_SCHEMA = """
CREATE TABLE seen (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  at INTEGER NOT NULL
);
CREATE INDEX seen_at ON seen (at);
"""
"""``step`` is the order of the last sightings: several fall into one millisecond."""
HELD_SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  message BLOB NOT NULL
);
"""
"""Messages that wait for more words of their sender before they become a turn."""


def is_time_to_prune(key: str) -> bool:
    return crc32(key.encode()) % PRUNE_EVERY == 0


class MaybeSeen:
    """Every key the table may hold, so that a new message, as most are, is known to be new without asking the disk."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._complete = False

    def note(self, keys: Iterable[str]) -> None:
        """Before they are written. One too many only costs a look-up."""
        self._keys.update(keys)
        if len(self._keys) > MOST_KEYS:
            self._keys, self._complete = set(), False

    async def complete(self, stored: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Learns what the table holds; what comes meanwhile is noted. All for nothing if they are forgotten again."""
        learning = self._keys
        if not self._complete:
            learning.update(await stored())
            self._complete = self._complete or learning is self._keys

    def rules_out(self, key: str) -> bool:
        return self._complete and key not in self._keys


def stored_keys(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT key FROM seen")]


def seen(db: sqlite3.Connection, key: str, ttl_ms: int, keep: int, now: int, *, remember: bool) -> bool:
    """Whether the key was seen within ``ttl_ms``; being asked for counts as being seen again."""
    row = db.execute("SELECT at FROM seen WHERE key = ?", (key,)).fetchone()
    known = row is not None and now - row[0] < ttl_ms
    if known or remember:
        remember_seen(db, [key], now)
    if not known and (remember or is_time_to_prune(key)):
        db.execute("DELETE FROM seen WHERE at <= ?", (now - ttl_ms,))
        newest_to_go = "SELECT step FROM seen ORDER BY step DESC LIMIT 1 OFFSET ?"
        db.execute(f"DELETE FROM seen WHERE step <= ({newest_to_go})", (max(0, keep),))
    return known


def hold(db: sqlite3.Connection, key: str, message: bytes) -> None:
    db.execute("INSERT OR IGNORE INTO held (key, message) VALUES (?, ?)", (key, message))


def let_go(db: sqlite3.Connection, keys: Iterable[str]) -> None:
    db.executemany("DELETE FROM held WHERE key = ?", [(key,) for key in keys])


def remember_seen(db: sqlite3.Connection, keys: Iterable[str], now: int) -> None:
    db.executemany("INSERT OR REPLACE INTO seen (key, at) VALUES (?, ?)", [(key, now) for key in keys if key])
