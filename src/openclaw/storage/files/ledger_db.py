"""The database of the ledger: its tables, its migrations, and the one thread that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from openclaw.paths import make_private_dir
from openclaw.storage import faults
from openclaw.storage.base import DeliveryCode, Reason, ReasonCode
from openclaw.storage.files.disk import AppendFile, Batch

log = logging.getLogger(__name__)

SCHEMA_VERSION = 5
_CHECKED_UP_TO = 64 << 20
"""A larger database is not checked at the start."""
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


def open_ledger(path: Path, now_ms: int) -> sqlite3.Connection:
    """Opens a connection for the calling thread. A damaged database is renamed and a new one created."""
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
        # SQLite gives -wal and -shm the mode of this file.
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
    """Gives the log its full length at once, because a commit that lengthens it takes twice as long.

    SQLite finds the end of its log by the checksums of the pages, so zeros behind them do no harm.
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
    if version < SCHEMA_VERSION:
        connection.create_function("reason_code", 1, lambda text: reason_from_sentence(text).code)
        connection.create_function("reason_detail", 1, lambda text: reason_from_sentence(text).detail)
        connection.create_function("doubts_in", 1, lambda text: delivery_from_sentence(text)[0])
        connection.create_function("delivery_code", 1, lambda text: delivery_from_sentence(text)[1])
        connection.create_function("problem_in", 1, lambda text: delivery_from_sentence(text)[2])
        steps = [_SCHEMA, _SEEN_SCHEMA, _MESSAGE_ID, _HELD_SCHEMA, _CODES]
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


def _set_aside(path: Path, now_ms: int) -> str:
    aside = path.with_name(f"{path.name}.corrupt-{now_ms}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside.name


Result = TypeVar("Result")


class NotBatchable(Exception):
    """The operations cannot share a statement and must be done one by one."""


class BatchableOperation(msgspec.Struct):
    """An operation that can share one statement with others of its kind, and does not depend on their order.

    This saves time, because the interpreter lock changes hands around every statement.
    """

    def __call__(self, db: sqlite3.Connection) -> Any:
        raise NotImplementedError

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[Any]) -> list[Any]:
        """Does the operations and returns the result of each. Raises ``NotBatchable`` when one has another outcome."""
        raise NotImplementedError


Operation: TypeAlias = Callable[[sqlite3.Connection], Any]
_Job: TypeAlias = tuple[Operation, "asyncio.Future[Any]"]
_MOST_TOGETHER = 16
"""The most operations in one commit. Their callers go on together, and more would stall the event loop."""
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
}


class LedgerThread:
    """The one thread that uses the database. It commits together what is asked together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._asked: Batch[_Job] = Batch(self._jobs.put)
        self._thread: threading.Thread | None = None

    async def start(self, now_ms: int) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._work, args=(now_ms, opened), name="openclaw-ledger", daemon=True)
        self._thread.start()
        await opened

    async def run(
        self, operation: Callable[[sqlite3.Connection], Result], *, after: AppendFile | None = None
    ) -> Result:
        """Does the operation and returns its result when what it wrote is on disk.

        ``after`` is a file that must be on disk before. The disk's thread hands the operation to this one directly.
        """
        if self._thread is None:
            raise LedgerError(f"the ledger {self._path} is closed")
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if after is not None and not after.is_durable:
            return await after.sync_into(done, lambda: self._jobs.put([(operation, done)]))
        self._asked.add((operation, done))
        return await done

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.now()
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    # In the thread

    def _work(self, now_ms: int, opened: asyncio.Future[None]) -> None:
        try:
            connection = open_ledger(self._path, now_ms)
        except (OSError, sqlite3.Error) as error:
            _settle([(opened, None, error)])
            return
        _settle([(opened, None, None)])
        with contextlib.closing(connection):
            for jobs in self._batches():
                _settle(self._commit_together(connection, jobs))

    def _batches(self) -> Iterator[list[_Job]]:
        """Yields the operations to commit together, in the order they were asked for, until the ledger is closed."""
        waiting: list[_Job] = []
        while (asked := self._jobs.get()) is not None:
            waiting += asked
            while len(waiting) >= _MOST_TOGETHER or (waiting and self._jobs.empty()):
                yield waiting[:_MOST_TOGETHER]
                del waiting[:_MOST_TOGETHER]
        if waiting:
            yield waiting

    def _commit_together(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
        """Does all in one transaction. If that fails, each gets a transaction of its own."""
        try:
            try:
                return self._transact(connection, jobs, _jointly)
            except NotBatchable:
                return self._transact(connection, jobs, _one_by_one)
        except sqlite3.Error as error:
            if len(jobs) == 1:
                return [(jobs[0][1], None, self._explain(error))]
        except Exception as error:
            # The caller gets the error. The thread goes on.
            if len(jobs) == 1:
                return [(jobs[0][1], None, error)]
        return [outcome for job in jobs for outcome in self._commit_together(connection, [job])]

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job], perform: _Perform) -> list[_Outcome]:
        changes = connection.total_changes
        try:
            connection.execute("BEGIN")
            outcomes = perform(connection, jobs)
            self._commit(connection, written=connection.total_changes != changes)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise
        return outcomes

    def _commit(self, connection: sqlite3.Connection, *, written: bool) -> None:
        if written:
            faults.point("commit.before")
            faults.write(self._path)
        connection.execute("COMMIT")
        if written:
            faults.point("commit.after")

    def _explain(self, error: sqlite3.Error) -> LedgerError:
        explained = LedgerError(f"the ledger {self._path} could not be written or read: {error}")
        # With the number, the caller can recognise a full disk.
        explained.errno = _ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        return explained


_Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"
_Perform: TypeAlias = Callable[[sqlite3.Connection, list[_Job]], list[_Outcome]]


def _jointly(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for joint, neighbours in groupby(jobs, lambda job: isinstance(job[0], BatchableOperation)):
        run = list(neighbours)
        outcomes += _in_few_statements(connection, run) if joint and len(run) > 1 else _one_by_one(connection, run)
    return outcomes


def _in_few_statements(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    kinds: dict[type[Any], list[Any]] = {}
    for operation, _ in jobs:
        kinds.setdefault(type(operation), []).append(operation)
    results = {kind: iter(kind.together(connection, operations)) for kind, operations in kinds.items()}
    return [(done, next(results[type(operation)]), None) for operation, done in jobs]


def _one_by_one(connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for operation, done in jobs:
        before = connection.total_changes
        try:
            outcomes.append((done, operation(connection), None))
        except (ValueError, LookupError) as refusal:
            # An operation that wrote something before it refused makes the whole transaction fail.
            if connection.total_changes != before:
                raise
            outcomes.append((done, None, refusal))
    return outcomes


def _settle(outcomes: list[_Outcome]) -> None:
    def tell() -> None:
        for future, result, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    # After the loop has closed, nobody waits for the futures.
    with contextlib.suppress(RuntimeError):
        outcomes[0][0].get_loop().call_soon_threadsafe(tell)
