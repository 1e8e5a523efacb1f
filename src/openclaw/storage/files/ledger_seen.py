"""Keys of channel messages seen lately, in the ledger. Run in the ledger's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from zlib import crc32

PRUNE_EVERY = 64
"""A look-up that finds nothing writes nothing, except one in so many, which clears away what is too old."""

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


def seen(db: sqlite3.Connection, key: str, ttl_ms: int, keep: int, now: int, *, remember: bool) -> bool:
    """Whether the key was seen within ``ttl_ms``; being asked for counts as being seen again."""
    row = db.execute("SELECT at FROM seen WHERE key = ?", (key,)).fetchone()
    known = row is not None and now - row[0] < ttl_ms
    if known or remember:
        remember_seen(db, [key], now)
    if not known and (remember or crc32(key.encode()) % PRUNE_EVERY == 0):
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
