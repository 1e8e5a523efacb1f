"""The database of the ledger in SQLite: its tables, its migrations, and its rescue when the file is damaged or gone.

The readable rows of a damaged ledger go to a new one, and the old file is kept.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from openclaw.paths import make_private_dir
from openclaw.storage.disk_errors import StorageError
from openclaw.storage.message_ledger import DeliveryCode, Reason, ReasonCode
from openclaw.storage.sql_ledger import SEND_AGAIN

log = logging.getLogger(__name__)
_CHECKED_UP_TO = 256 << 20
"""A larger database is not checked at the start, which takes a second. Its damage is noticed when it is met."""
_LOG_BYTES = 1_008 * (4_096 + 24)
"""The size that SQLite's log reaches before it is reused: about a thousand pages with their headers."""
_SPARE_BYTES = 256 << 20
"""The log is not lengthened in advance on a disk with less space than this."""
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
_OF_MESSAGES = ("story", "tool_calls", "outbox")
"""The tables whose rows belong to a message by its ``ledger_id``."""
_AT_ONCE = 1_000
_MOST_FAILURES = 20_000
"""A table is given up after this many failed reads. A page above many others may be the damaged one."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SUFFIXES = ("", "-wal", "-shm")
_PAGE = 4096
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
_MESSAGE_ID = "ALTER TABLE outbox ADD COLUMN message_id TEXT NOT NULL DEFAULT '';"
_HELD_SCHEMA = """
CREATE TABLE IF NOT EXISTS held (
  step INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  message BLOB NOT NULL
);
"""
"""The messages that wait for more words of their sender before they are accepted."""
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
_DESTINATION = """channel || CASE WHEN json_valid(CAST(route AS TEXT)) THEN
  char(10) || coalesce(json_extract(CAST(route AS TEXT), '$.accountId'), '') ||
  char(10) || coalesce(json_extract(CAST(route AS TEXT), '$.to'), '') ||
  char(10) || coalesce(json_extract(CAST(route AS TEXT), '$.threadId'), '') ELSE '' END"""
"""The conversation of a part, as ``destination_key`` in ``outbound/deliver.py`` names it."""
_DESTINATIONS = f"""
ALTER TABLE outbox ADD COLUMN answered_errors INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN destination TEXT NOT NULL DEFAULT '';
UPDATE outbox SET destination = {_DESTINATION};
DROP INDEX outbox_pending;
CREATE INDEX outbox_pending ON outbox (destination, id) WHERE state = 'pending';
"""
"""A generated column would be shorter here, but the tables must fit on the first page: see ``_with_first_page``."""
_STEPS = (
    *(_SCHEMA, _SEEN_SCHEMA, _MESSAGE_ID, _HELD_SCHEMA, _CODES, _HELD_ATTEMPTS, _TURNED_AWAY_SCHEMA, _JOBS_SCHEMA),
    _DESTINATIONS,
)
"""What each version adds to the one before."""
SCHEMA_VERSION = len(_STEPS)
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
_ADDRESS_PARTS = f"""
CREATE TEMP TRIGGER addressed AFTER INSERT ON main.outbox BEGIN
  UPDATE outbox SET destination = {_DESTINATION} WHERE id = NEW.id;
END;
"""
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
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT})
_ERRNO = {
    **dict.fromkeys(_LOCKED, errno.EBUSY),
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_AUTH: errno.EACCES,
    sqlite3.SQLITE_NOLFS: errno.EFBIG,
}
"""The passing problems. Nothing was written, and the same operation may succeed later."""
BUSY_TIMEOUT_MS = 5_000
"""How long an operation waits for a lock that another program holds on the file."""


class LedgerError(StorageError):
    """The ledger could not be opened, read or written. The message names the file and the problem."""


class FoundDamaged(sqlite3.DatabaseError):
    """A check of the whole file found a fault."""


def ledger_error(what: str, error: Exception, path: Path | None = None) -> LedgerError:
    """Makes the error that callers see. With its number they recognise a full disk."""
    explained = LedgerError(f"{what}: {error}")
    explained.errno = getattr(error, "errno", None) or _ERRNO.get(_code_of(error))
    if explained.errno == errno.EIO and path is not None and not shutil.disk_usage(path.parent).free:
        explained.errno = errno.ENOSPC  # SQLite says so only for some of its files.
    return explained


def is_damage(error: sqlite3.Error) -> bool:
    """Tells whether the error says that the file itself is damaged."""
    return type(error) is FoundDamaged or _code_of(error) in _DAMAGE


def is_locked(error: Exception) -> bool:
    """Tells whether another program holds a lock on the file."""
    return _code_of(error) in _LOCKED


def _code_of(error: Exception) -> int:
    """Returns SQLite's primary result code. The higher bits only refine it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def open_ledger(path: Path, now_ms: int, note: Callable[[str], None] = log.error) -> sqlite3.Connection:
    """Open a connection for the calling thread. Rescue a damaged or missing ledger and report that to ``note``."""
    make_private_dir(str(path.parent))
    restore(path, now_ms, note)
    try:
        connection = _connect(path)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise ledger_error(f"the ledger {path} cannot be opened", error, path) from error
        return reopen_rescued(path, now_ms, str(error), note)
    keep_second_name(path)
    return connection


def reopen_rescued(path: Path, now_ms: int, problem: str, note: Callable[[str], None]) -> sqlite3.Connection:
    """Rescues a ledger whose damage was met while it was in use. Close its connection before."""
    rescue(path, now_ms, problem, note)
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
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if path.stat().st_size <= _CHECKED_UP_TO:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise FoundDamaged(verdict)
        _migrate(connection, path)
        # Parts that an earlier process was sending may have arrived. They are marked so and sent again.
        connection.execute(SEND_AGAIN)
        connection.executescript(_TELL_STORY + _ADDRESS_PARTS)
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
        for name, function in {
            "reason_code": lambda text: reason_from_sentence(text).code,
            "reason_detail": lambda text: reason_from_sentence(text).detail,
            "doubts_in": lambda text: delivery_from_sentence(text)[0],
            "delivery_code": lambda text: delivery_from_sentence(text)[1],
            "problem_in": lambda text: delivery_from_sentence(text)[2],
        }.items():
            connection.create_function(name, 1, function)
        missing = "".join(_STEPS[version:])
        connection.executescript(f"BEGIN; {missing} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def reason_from_sentence(sentence: str) -> Reason:
    """Returns the reason that a sentence of an older ledger stands for."""
    for pattern, code in _REASON_SENTENCES.items():
        if match := re.fullmatch(pattern, sentence, re.DOTALL):
            return Reason(code, match[1] if match.groups() else "")
    return Reason(ReasonCode.OTHER if sentence else ReasonCode.NONE, sentence)


def delivery_from_sentence(sentence: str) -> tuple[int, DeliveryCode, str]:
    """Returns the doubts, the code and the channel's problem that an outbox error of an older ledger stands for."""
    if sentence == _REPEATED:
        return 1, DeliveryCode.REPEATED, ""
    if match := _GIVEN_UP.match(sentence):
        return int(match[1]), DeliveryCode.GIVEN_UP, sentence[match.end() :]
    if match := _DOUBT.match(sentence):
        return int(match[1] or 1), DeliveryCode.NONE, sentence[match.end() :]
    return 0, DeliveryCode.NONE, sentence


# Rescue


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


def rescue(path: Path, now_ms: int, problem: str, note: Callable[[str], None]) -> None:
    """Replaces a damaged ledger by a new one with its readable rows.

    The damaged files are renamed only when the new one is complete, so that a full disk loses nothing.
    """
    fresh, aside = path.with_name(f"{path.name}.rescued"), path.with_name(f"{path.name}.damaged-{now_ms}")
    _remove(fresh)
    try:
        with contextlib.closing(_connect(fresh)) as new:
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


class Rescued(msgspec.Struct):
    """How many rows of each table were taken over, and how many could not be read."""

    taken: dict[str, int] = {}
    lost: dict[str, int] = {}
    lost_messages: list[int] = []

    def words(self) -> str:
        names = {"messages": "messages", "outbox": "parts of replies", "held": "held messages"}
        rescued = self.taken.get("messages", 0)
        gone = [f"{count} {names[name]}" for name, count in self.lost.items() if count and name in names]
        if not rescued and not gone:
            return "No message could be read in it. Answered messages are in the transcripts; waiting ones are lost."
        which = f" (number {', '.join(map(str, self.lost_messages[:20]))})" if self.lost_messages else ""
        lost = f"lost: {', '.join(gone)}{which}" if gone else "no message is lost"
        return f"{rescued} messages could be read and were taken over; {lost}."


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
        # The number of a lost message is given to no other one, because its story and its parts are still there.
        numbers = " UNION ALL ".join(f"SELECT max(ledger_id) AS number FROM {name}" for name in _OF_MESSAGES)
        (highest,) = new.execute(
            f"SELECT max(number) FROM (SELECT max(id) AS number FROM messages UNION ALL {numbers})"
        ).fetchone()
        new.execute("DELETE FROM sqlite_sequence WHERE name = 'messages'")
        new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('messages', ?)", (highest or 0,))
        orphans = "SELECT DISTINCT ledger_id FROM story WHERE ledger_id NOT IN (SELECT id FROM messages)"
        rescued.lost_messages = [number for (number,) in new.execute(orphans)]
        rescued.lost["messages"] = len(rescued.lost_messages)
    return rescued


def _insert(new: sqlite3.Connection, table: str, columns: set[str], row: dict[str, Any]) -> int:
    values = {name: value for name, value in row.items() if name in columns}
    marks = ", ".join("?" * len(values))
    statement = f"INSERT OR IGNORE INTO {table} ({', '.join(values)}) VALUES ({marks})"
    return new.execute(statement, [*values.values()]).rowcount


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
            cursor = self._db.execute(f"SELECT * FROM {self._table} WHERE {self._key} BETWEEN ? AND ?", (first, last))
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
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
                if (newest := self._db.execute(question).fetchone()[0]) is not None or question == questions[0]:
                    return int(newest or 0)
        return 0
