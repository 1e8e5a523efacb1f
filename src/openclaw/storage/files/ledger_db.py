"""The database of the ledger: its tables, its migrations, and how rows become records."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from openclaw.paths import make_private_dir
from openclaw.storage.base import (
    DeliveryCode,
    Reason,
    ReasonCode,
)
from openclaw.storage.files.ledger_rescue import FoundDamaged, is_damage, keep_second_name, rescue, restore

log = logging.getLogger(__name__)

SCHEMA_VERSION = 8
_CHECKED_UP_TO = 256 << 20
"""A larger database is not checked at the start, which takes a second. Its damage is noticed when it is met."""
_LOG_BYTES = 1_008 * (4_096 + 24)
"""The size that SQLite's log reaches before it is reused: about a thousand pages with their headers."""
_SPARE_BYTES = 256 << 20
"""The log is not lengthened in advance on a disk with less space than this."""

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
_SEEN_SCHEMA = """
CREATE TABLE seen (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  at INTEGER NOT NULL
);
CREATE INDEX seen_at ON seen (at);
"""
"""``step`` is the order in which keys were last seen, because several fall into one millisecond."""
_HELD_SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  message BLOB NOT NULL
);
"""
"""The messages that wait for more words of their sender before they are accepted."""
_TURNED_AWAY_SCHEMA = """
CREATE TABLE IF NOT EXISTS turned_away (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id TEXT NOT NULL,
  channel TEXT NOT NULL,
  chat TEXT NOT NULL,
  sender TEXT NOT NULL,
  code TEXT NOT NULL,
  detail TEXT NOT NULL,
  count INTEGER NOT NULL,
  first_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  UNIQUE (message_id, channel, chat, code)
);
"""
_JOBS_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  owner_key TEXT NOT NULL,
  run_id TEXT NOT NULL,
  trace TEXT NOT NULL,
  state BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  ended_at INTEGER
);
CREATE INDEX IF NOT EXISTS jobs_owner ON jobs (owner_key);
CREATE INDEX IF NOT EXISTS jobs_run ON jobs (run_id);
CREATE INDEX IF NOT EXISTS jobs_trace ON jobs (trace);
CREATE INDEX IF NOT EXISTS jobs_open ON jobs (created_at) WHERE ended_at IS NULL;
"""
_TELL_STORY = """
CREATE TEMP TRIGGER accepted AFTER INSERT ON main.messages BEGIN
  INSERT INTO story (ledger_id, step, at, state, detail) VALUES (NEW.id, 1, NEW.accepted_at, 'accepted', '');
  INSERT INTO story (ledger_id, step, at, state, code, detail)
  SELECT NEW.id, 2, NEW.accepted_at, NEW.state, NEW.code, NEW.detail WHERE NEW.state <> 'accepted';
END;
CREATE TEMP TRIGGER ended AFTER UPDATE OF ended_at ON main.messages
WHEN OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL BEGIN
  INSERT INTO story (ledger_id, step, at, state, code, detail)
  SELECT NEW.id, coalesce(max(step), 0) + 1, NEW.ended_at, NEW.state, NEW.code, NEW.detail
  FROM story WHERE ledger_id = NEW.id;
END;
"""
"""Triggers that write the first and the last lines of a story. Separate statements would cost time."""
_MESSAGE_ID = "ALTER TABLE outbox ADD COLUMN message_id TEXT NOT NULL DEFAULT '';"
_CODES = """
ALTER TABLE messages RENAME COLUMN reason TO detail;
ALTER TABLE messages ADD COLUMN code TEXT NOT NULL DEFAULT '';
ALTER TABLE story RENAME COLUMN reason TO detail;
ALTER TABLE story ADD COLUMN code TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN doubts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN code TEXT NOT NULL DEFAULT '';
UPDATE messages SET code = reason_code(detail), detail = reason_detail(detail) WHERE detail <> '';
UPDATE story SET code = reason_code(detail), detail = reason_detail(detail) WHERE detail <> '';
UPDATE outbox SET doubts = doubts_in(error), code = delivery_code(error), error = problem_in(error) WHERE error <> '';
"""
"""Up to version 4, reasons and doubts were stored as English sentences."""
_HELD_ATTEMPTS = "ALTER TABLE held ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;"
_REASON_SENTENCES: dict[str, ReasonCode] = {
    r"another message of this session is running": ReasonCode.SESSION_BUSY,
    r"another message of this session is running; what comes meanwhile is collected": ReasonCode.COLLECTING,
    r"to be taken into run (.+)": ReasonCode.STEERING,
    r"the Gateway stopped before it began": ReasonCode.RESTARTED,
    r"the Gateway was told to stop": ReasonCode.SHUTDOWN,
    r"collected into run (.+)": ReasonCode.COLLECTED,
    r"taken into run (.+)": ReasonCode.STEERED,
    r"its words were taken into the run before it": ReasonCode.ANSWERED_BEFORE,
    r"its reply was NO_REPLY": ReasonCode.NO_REPLY,
    r"the model ended its turn without a word": ReasonCode.NO_WORDS,
    r"the run took longer than its time limit": ReasonCode.TIME_LIMIT,
    r"stopped \((.+)\)": ReasonCode.STOPPED,
    r"Dropped: more messages were waiting than the queue holds \((\d+)\)\.": ReasonCode.QUEUE_OVERFLOW,
    r"Dropped: .+ holds \((\d+)\); its beginning was put before the next one\.": ReasonCode.QUEUE_OVERFLOW_SUMMARIZED,
    r"dropped from the queue by hand": ReasonCode.REMOVED_FROM_QUEUE,
}
_DOUBT = re.compile(r"interrupted(?: (\d+) times)?(?:: |$)")
_GIVEN_UP = re.compile(r"in doubt (\d+) times, so not sent again: (?:the Gateway stopped while sending it$)?")
_REPEATED = "possibly delivered twice: it was in doubt whether the first try arrived"


class LedgerError(OSError):
    """The ledger could not be opened, read or written. The message names the file and the problem."""


_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
}


def ledger_error(what: str, error: Exception, path: Path | None = None) -> LedgerError:
    """Makes the error that callers see. With its number they recognise a full disk."""
    explained = LedgerError(f"{what}: {error}")
    explained.errno = getattr(error, "errno", None) or _ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if explained.errno == errno.EIO and path is not None and not shutil.disk_usage(path.parent).free:
        explained.errno = errno.ENOSPC  # SQLite says so only for some of its files.
    return explained


def open_ledger(path: Path, now_ms: int, note: Callable[[str], None] = log.error) -> sqlite3.Connection:
    """Opens a connection for the calling thread. A ledger that is damaged or gone is rescued, and ``note`` is told."""
    make_private_dir(str(path.parent))
    restore(path, now_ms, note)
    try:
        connection = _connect(path)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise ledger_error(f"the ledger {path} cannot be opened", error, path) from error
        rescue(path, now_ms, str(error), note, _connect)
        connection = _connect(path)
    keep_second_name(path)
    return connection


def reopen_rescued(path: Path, now_ms: int, problem: str, note: Callable[[str], None]) -> sqlite3.Connection:
    """Rescues a ledger whose damage was met while it was in use. Close its connection before."""
    rescue(path, now_ms, problem, note, _connect)
    connection = _connect(path)
    keep_second_name(path)
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        # SQLite gives -wal and -shm the mode of this file.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    # A flipped bit in one row must not make every query that meets it fail.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    try:
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if path.stat().st_size <= _CHECKED_UP_TO:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise FoundDamaged(verdict)
        _migrate(connection, path)
        connection.executescript(_TELL_STORY)
        _lengthen_log(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _lengthen_log(path: Path) -> None:
    """Gives the log its full length at once, because a commit that lengthens it takes twice as long.

    SQLite finds the end of its log by the checksums of the pages, so zeros behind them do no harm.
    """
    with contextlib.suppress(OSError), path.with_name(f"{path.name}-wal").open("r+b") as log:
        missing = _LOG_BYTES - log.seek(0, os.SEEK_END)
        if missing > 0 and shutil.disk_usage(path.parent).free > _SPARE_BYTES:
            log.write(bytes(missing))
            log.flush()
            os.fsync(log.fileno())


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger {path} was written by a newer version (schema {version}, known {SCHEMA_VERSION}); "
            "upgrade this program or use another state directory"
        )
    if version < SCHEMA_VERSION:
        connection.create_function("reason_code", 1, lambda text: reason_from_sentence(text).code)
        connection.create_function("reason_detail", 1, lambda text: reason_from_sentence(text).detail)
        connection.create_function("doubts_in", 1, lambda text: delivery_from_sentence(text)[0])
        connection.create_function("delivery_code", 1, lambda text: delivery_from_sentence(text)[1])
        connection.create_function("problem_in", 1, lambda text: delivery_from_sentence(text)[2])
        steps = [
            *(_SCHEMA, _SEEN_SCHEMA, _MESSAGE_ID, _HELD_SCHEMA, _CODES, _HELD_ATTEMPTS, _TURNED_AWAY_SCHEMA),
            _JOBS_SCHEMA,
        ]
        missing = "".join(steps[version:])
        connection.executescript(f"BEGIN; {missing} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    # A part that was being sent when the process died may have arrived. The delivery decides, given its doubts.
    connection.execute("UPDATE outbox SET state = 'pending', doubts = doubts + 1, error = '' WHERE state = 'sending'")


def reason_from_sentence(sentence: str) -> Reason:
    """Returns the reason that a sentence of an older ledger stands for."""
    for pattern, code in _REASON_SENTENCES.items():
        if found := re.fullmatch(pattern, sentence, re.DOTALL):
            return Reason(code, found[1] if found.groups() else "")
    return Reason(ReasonCode.OTHER if sentence else ReasonCode.NONE, sentence)


def delivery_from_sentence(sentence: str) -> tuple[int, DeliveryCode, str]:
    """Returns the doubts, the code and the channel's problem that an outbox error of an older ledger stands for."""
    if sentence == _REPEATED:
        return 1, DeliveryCode.REPEATED, ""
    if found := _GIVEN_UP.match(sentence):
        return int(found[1]), DeliveryCode.GIVEN_UP, sentence[found.end() :]
    if found := _DOUBT.match(sentence):
        return int(found[1] or 1), DeliveryCode.NONE, sentence[found.end() :]
    return 0, DeliveryCode.NONE, sentence
