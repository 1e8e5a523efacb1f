"""The ledger's tables, and opening them: the one place that touches ``ledger.db`` other than through its connection."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from pathlib import Path

from openclaw.paths import make_private_dir
from openclaw.storage.doubt import doubts, in_doubt
from openclaw.storage.files.ledger_seen import HELD_SCHEMA, SEEN_SCHEMA

log = logging.getLogger(__name__)

SCHEMA_VERSION = 4
_CHECKED_UP_TO = 64 << 20
"""Larger databases are not checked page by page at start."""
_LOG_BYTES = 1_008 * (4_096 + 24)
"""How long SQLite's log gets before it is begun anew: a thousand pages, each with a head, and what the last adds."""
_SPARE_BYTES = 256 << 20
"""On a disk with less left, nothing is taken that is not needed yet."""

_SCHEMA = """
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL UNIQUE,
  dedupe_key TEXT NOT NULL,
  agent_id TEXT NOT NULL,
  session_key TEXT NOT NULL,
  session_id TEXT NOT NULL,
  source TEXT NOT NULL,
  route BLOB NOT NULL,
  body BLOB NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  attempts INTEGER NOT NULL DEFAULT 0,
  accepted_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  result BLOB
);
CREATE UNIQUE INDEX messages_dedupe ON messages (dedupe_key) WHERE dedupe_key <> '';
CREATE INDEX messages_unfinished ON messages (id) WHERE ended_at IS NULL;
CREATE INDEX messages_session ON messages (session_key, id);
CREATE INDEX messages_ended ON messages (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE story (
  ledger_id INTEGER NOT NULL,
  step INTEGER NOT NULL,
  at INTEGER NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (ledger_id, step)
) WITHOUT ROWID;
CREATE TABLE tool_calls (
  ledger_id INTEGER NOT NULL,
  call_id TEXT NOT NULL,
  name TEXT NOT NULL,
  arguments TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  finished_at INTEGER,
  ok INTEGER,
  PRIMARY KEY (ledger_id, call_id)
);
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  ledger_id INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  part INTEGER NOT NULL,
  channel TEXT NOT NULL,
  route BLOB NOT NULL,
  payload BLOB NOT NULL,
  state TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  next_at INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  error TEXT NOT NULL DEFAULT '',
  UNIQUE (ledger_id, part)
);
CREATE INDEX outbox_pending ON outbox (next_at, id) WHERE state = 'pending';
"""
_TELL_STORY = """
CREATE TEMP TRIGGER accepted AFTER INSERT ON main.messages BEGIN
  INSERT INTO story VALUES (NEW.id, 1, NEW.accepted_at, 'accepted', '');
  INSERT INTO story SELECT NEW.id, 2, NEW.accepted_at, NEW.state, NEW.reason WHERE NEW.state <> 'accepted';
END;
CREATE TEMP TRIGGER ended AFTER UPDATE OF ended_at ON main.messages
WHEN OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL BEGIN
  INSERT INTO story SELECT NEW.id, coalesce(max(step), 0) + 1, NEW.ended_at, NEW.state, NEW.reason
  FROM story WHERE ledger_id = NEW.id;
END;
"""
"""The first and the last lines of a story, in the statement that makes them true: each one more would be a wait."""
_MESSAGE_ID = "ALTER TABLE outbox ADD COLUMN message_id TEXT NOT NULL DEFAULT '';"


class LedgerError(OSError):
    """The ledger could not do what was asked; says which file and why."""


def open_ledger(path: Path, now_ms: int) -> sqlite3.Connection:
    """A connection for the calling thread only. A damaged database is kept aside and a new one begun."""
    make_private_dir(str(path.parent))
    try:
        return _connect(path)
    except sqlite3.OperationalError as error:
        raise LedgerError(f"the ledger {path} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        aside = _set_aside(path, now_ms)
        log.error("the ledger %s is damaged (%s); it was kept as %s and a new one was begun", path, error, aside)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        # SQLite takes the mode of -wal and -shm from here.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    try:
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _check(connection, path)
        _migrate(connection, path)
        connection.executescript(_TELL_STORY)
        _lengthen_log(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _lengthen_log(path: Path) -> None:
    """Gives the log its full length at once: a commit that need not lengthen it is on disk in half the time.

    SQLite knows where its log ends by the sums over its pages, whatever stands behind them.
    """
    with contextlib.suppress(OSError), path.with_name(f"{path.name}-wal").open("r+b") as log:
        missing = _LOG_BYTES - log.seek(0, os.SEEK_END)
        if missing > 0 and shutil.disk_usage(path.parent).free > _SPARE_BYTES:
            log.write(bytes(missing))
            log.flush()
            os.fsync(log.fileno())


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size <= _CHECKED_UP_TO:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger {path} was written by a newer version (schema {version}, known {SCHEMA_VERSION}); "
            "upgrade this program or use another state directory"
        )
    steps = {
        0: _SCHEMA + SEEN_SCHEMA + _MESSAGE_ID + HELD_SCHEMA,
        1: SEEN_SCHEMA + _MESSAGE_ID + HELD_SCHEMA,
        2: _MESSAGE_ID + HELD_SCHEMA,
        3: HELD_SCHEMA,
    }
    if version in steps:
        connection.executescript(f"BEGIN; {steps[version]} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    _return_half_sent(connection)


def _return_half_sent(connection: sqlite3.Connection) -> None:
    """What was being sent when the process died may or may not have arrived: its sender decides, knowing the error."""
    half_sent = connection.execute("SELECT id, error FROM outbox WHERE state = 'sending'").fetchall()
    connection.executemany(
        "UPDATE outbox SET state = 'pending', error = ? WHERE id = ?",
        [(in_doubt(doubts(error) + 1), part) for part, error in half_sent],
    )


def _set_aside(path: Path, now_ms: int) -> str:
    aside = path.with_name(f"{path.name}.corrupt-{now_ms}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside.name
