"""``Ledger`` in SQLite: ``ledger.db``, with a write-ahead log and full synchronisation.

One thread uses the database. Operations that are submitted together are committed together.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.messages import Route
from openclaw.storage import faults
from openclaw.storage.disk_errors import Repairs, reads_wait, until_written
from openclaw.storage.errors import MessageEnded, UnknownMessage
from openclaw.storage.files.disk import AppendFile, Batch, Outcome, settle
from openclaw.storage.files.ledger_db import (
    BUSY_TIMEOUT_MS,
    LedgerError,
    is_damage,
    is_locked,
    ledger_error,
    open_ledger,
    reopen_rescued,
)
from openclaw.storage.files.transcript import FileTranscript
from openclaw.storage.message_ledger import (
    END_STATES,
    NO_REASON,
    Accept,
    FirstStep,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    Reason,
    RejectedMessage,
)
from openclaw.storage.sessions import Writing
from openclaw.storage.sql_ledger import (
    ACCEPT_COLUMNS,
    MOST_REJECTED,
    SELECT_MESSAGES,
    SqlLedger,
    absorbed_result,
    accept_values,
    accepted_row,
    add_pending,
    check_end,
    is_time_to_prune,
    message_of,
)
from openclaw.storage.transcripts import Transcript

Result = TypeVar("Result")
Operation: TypeAlias = Callable[[sqlite3.Connection], Any]
_Job: TypeAlias = tuple[Operation, "asyncio.Future[Any]"]
_MOST_TOGETHER = 16
"""The most operations in one commit. Their callers go on together, and more would stall the event loop."""
_ACCEPT = (
    f"INSERT INTO messages ({', '.join(ACCEPT_COLUMNS)}) VALUES ({', '.join('?' * len(ACCEPT_COLUMNS))})"
    " ON CONFLICT DO NOTHING"
)


class FileLedger(SqlLedger):
    """``Ledger`` in SQLite. This class has the operations of several statements, and those that wait for a file.

    Operations of one statement are in ``SqlLedger``: look-ups, held messages, jobs and the outbox.
    """

    _as_inserted = "rowid"
    _bytes_within = "instr"

    def __init__(self, state_dir: str, *, clock: Clock, repairs: Repairs | None = None) -> None:
        super().__init__(clock)
        self.path = Path(state_dir) / "ledger.db"
        self._thread = LedgerThread(self.path, repairs or Repairs(), clock.now_ms)

    @classmethod
    async def open(cls, state_dir: str, *, clock: Clock, repairs: Repairs | None = None) -> FileLedger:
        """Opens or creates the ledger. A part that was being sent becomes pending again, with one doubt more."""
        ledger = cls(state_dir, clock=clock, repairs=repairs)
        await ledger._thread.start()
        return ledger

    async def accept(
        self,
        message: Accept,
        *,
        step: FirstStep | None = None,
        reason: Reason = NO_REASON,
        after: Writing | None = None,
    ) -> tuple[LedgerRow, bool]:
        # Triggers write the first and the last lines of the message's story, which ``why`` tells (``_TELL_STORY`` in
        # ledger_db.py). ``advance`` writes those between.
        now = self._clock.now_ms()
        return await self._thread.run(lambda db: _accept(db, message, now, step, reason), after=await _file_of(after))

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        if state in END_STATES:
            raise ValueError(f"'{state}' ends a message: use finish")
        now, starting = self._clock.now_ms(), state == "running"

        def advance(db: sqlite3.Connection) -> None:
            if ended := _end_of(db, ledger_id):
                raise MessageEnded(f"message {ledger_id} has ended ({ended}) and cannot become '{state}'")
            db.execute(
                "UPDATE messages SET state = ?, code = ?, detail = ?, attempts = attempts + ?,"
                " session_id = coalesce(?, session_id),"
                " started_at = CASE WHEN ? THEN coalesce(started_at, ?) ELSE started_at END WHERE id = ?",
                (state, reason.code, reason.detail, starting, session_id, starting, now, ledger_id),
            )
            db.execute(
                "INSERT INTO story (ledger_id, step, at, state, code, detail)"
                " SELECT ?, coalesce(max(step), 0) + 1, ?, ?, ?, ? FROM story WHERE ledger_id = ?",
                (ledger_id, now, state, reason.code, reason.detail, ledger_id),
            )

        await self._thread.run(advance)

    async def finish(
        self,
        ledger_id: int,
        state: MessageState,
        *,
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
        outbox: Sequence[OutboxPart] = (),
        written: Transcript | None = None,
    ) -> bool:
        check_end(ledger_id, state, outbox)
        # The ledger's thread keeps its last operation until the next one comes. This one has no reference to the
        # transcript, which would stay in memory as long.
        now, follows = self._clock.now_ms(), written is not None

        def finish(db: sqlite3.Connection) -> bool:
            if follows:
                faults.point("sync.after")
            return _finish(db, ledger_id, state, reason, result, outbox, now)

        return await self._thread.run(finish, after=await _file_of(written))

    async def post(
        self,
        message: Accept,
        outbox: Sequence[OutboxPart],
        *,
        state: MessageState = "answered",
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        check_end(0, state, outbox)
        now = self._clock.now_ms()

        def accept_and_finish(db: sqlite3.Connection) -> tuple[LedgerRow, bool]:
            row, new = _accept(db, message, now)
            if new:
                _finish(db, row.id, state, reason, result, outbox, now)
                row = message_of(db.execute(f"{SELECT_MESSAGES} WHERE id = ?", (row.id,)).fetchone())
            return row, new

        return await self._thread.run(accept_and_finish)

    async def absorb(self, into: int, others: Mapping[int, Reason], *, body: MessageBody) -> None:
        now = self._clock.now_ms()

        def absorb(db: sqlite3.Connection) -> None:
            if ended := _end_of(db, into):
                raise MessageEnded(f"message {into} has ended ({ended}) and can take no other in")
            (run_id,) = db.execute("SELECT run_id FROM messages WHERE id = ?", (into,)).fetchone()
            db.execute("UPDATE messages SET body = ? WHERE id = ?", (encode(body), into))
            for other, reason in others.items():
                _finish(db, other, "superseded", reason, absorbed_result(reason, run_id), (), now)

        await self._thread.run(absorb)

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        if not key:
            return False
        prunes = remember or is_time_to_prune(key)
        now = self._clock.now_ms()

        def look(db: sqlite3.Connection) -> bool:
            row = db.execute("SELECT at FROM seen WHERE key = ?", (key,)).fetchone()
            is_known = row is not None and now - row[0] < ttl_ms
            if is_known or remember:
                _remember_seen(db, [key], now)
            if not is_known and prunes:
                db.execute("DELETE FROM seen WHERE at <= ?", (now - ttl_ms,))
                newest_to_go = "SELECT step FROM seen ORDER BY step DESC LIMIT 1 OFFSET ?"
                db.execute(f"DELETE FROM seen WHERE step <= ({newest_to_go})", (max(0, keep),))
            return is_known

        return await self._thread.run(look)

    async def note_rejected(self, note: RejectedMessage) -> None:
        now, identity = self._clock.now_ms(), (note.message_id, note.channel, note.chat, note.code)

        def note_rejected(db: sqlite3.Connection) -> None:
            where = "WHERE message_id = ? AND channel = ? AND chat = ? AND code = ?"
            again = f"UPDATE turned_away SET count = count + 1, last_at = ? {where}"
            if db.execute(again, (now, *identity)).rowcount:
                return
            db.execute(
                "INSERT INTO turned_away (message_id, channel, chat, code, sender, detail, count, first_at, last_at)"
                " VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)",
                (*identity, note.sender, note.detail, now, now),
            )
            newest_to_go = "SELECT step FROM turned_away ORDER BY step DESC LIMIT 1 OFFSET ?"
            db.execute(f"DELETE FROM turned_away WHERE step <= ({newest_to_go})", (MOST_REJECTED,))

        await self._thread.run(note_rejected)

    async def add_pending(self, position: str, message_id: str, message: bytes, *, keep: int) -> None:
        statements = add_pending(position, message_id, message, keep)

        def add(db: sqlite3.Connection) -> None:
            for statement, values in statements:
                db.execute(statement, values)

        await self._thread.run(add)

    async def tool_started(
        self, ledger_id: int, call_id: str, name: str, arguments: str, *, written: Transcript | None = None
    ) -> None:
        statement = (
            "INSERT INTO tool_calls (ledger_id, call_id, name, arguments, started_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING"
        )
        values = (ledger_id, call_id, name, arguments, self._clock.now_ms())
        await self._thread.run(lambda db: db.execute(statement, values).rowcount, after=await _file_of(written))

    async def tool_finished(self, ledger_id: int, call_id: str, ok: bool) -> None:
        statement = "UPDATE tool_calls SET finished_at = ?, ok = ? WHERE ledger_id = ? AND call_id = ?"
        await self._write(statement, self._clock.now_ms(), ok, ledger_id, call_id)

    async def outbox_reclaim(self, channel: str, mine: Callable[[Route], bool]) -> None:
        pass  # No other node exists, and ``open`` has reclaimed the parts that this one was sending.

    async def prune(self, before_ms: int, *, most: int = 200) -> int:
        undelivered = "SELECT 1 FROM outbox WHERE ledger_id = messages.id AND state IN ('pending', 'sending')"
        select = f"SELECT id FROM messages WHERE ended_at < ? AND NOT EXISTS ({undelivered}) LIMIT ?"

        def prune(db: sqlite3.Connection) -> int:
            rows = db.execute(select, (before_ms, most)).fetchall()
            for table in ("story", "tool_calls", "outbox"):
                db.executemany(f"DELETE FROM {table} WHERE ledger_id = ?", rows)
            db.executemany("DELETE FROM messages WHERE id = ?", rows)
            db.execute("DELETE FROM jobs WHERE ended_at < ?", (before_ms,))
            return len(rows)

        return await self._thread.run(prune)

    async def close(self) -> None:
        await self._thread.close()

    async def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        def read() -> Awaitable[list[tuple[Any, ...]]]:
            return self._thread.run(lambda db: db.execute(statement, values).fetchall())

        return await (until_written(read, self._clock.sleep) if reads_wait.get() else read())

    async def _write(self, statement: str, *values: Any) -> int:
        return await self._thread.run(lambda db: db.execute(statement, values).rowcount)

    async def _write_each(self, statement: str, rows: Sequence[Sequence[Any]]) -> list[int]:
        return await self._thread.run(lambda db: [db.execute(statement, row).rowcount for row in rows])


async def _file_of(written: Writing | None) -> AppendFile | None:
    """Returns the file that the ledger's thread must find synced. A write to anything else is synced here."""
    if isinstance(written, FileTranscript):
        return written.file
    if written is None or isinstance(written, AppendFile):
        return written
    await written.sync()
    return None


# Operations in the ledger's thread. They check before they write, because a refused operation that has written
# something rolls back the whole batch.


def _accept(
    db: sqlite3.Connection, message: Accept, now: int, step: FirstStep | None = None, reason: Reason = NO_REASON
) -> tuple[LedgerRow, bool]:
    inserted = db.execute(_ACCEPT, accept_values(message, step, reason, now))
    if message.dedupe_keys:
        _remember_seen(db, message.dedupe_keys, now)
        db.executemany("DELETE FROM held WHERE key = ?", [(key,) for key in message.dedupe_keys])
    if inserted.rowcount:
        ledger_id = inserted.lastrowid or 0
        db.executemany("DELETE FROM held WHERE step = ?", [(number,) for number in message.pending])
        return accepted_row(message, ledger_id, now), True
    # The index covers only keys that are not empty. The condition says so, and SQLite can use the index.
    by_key = f"{SELECT_MESSAGES} WHERE dedupe_key = ? AND dedupe_key <> ''"
    existing = db.execute(f"{SELECT_MESSAGES} WHERE run_id = ?", (message.run_id,)).fetchone()
    return message_of(existing or db.execute(by_key, (message.dedupe_key,)).fetchone()), False


def _finish(
    db: sqlite3.Connection,
    ledger_id: int,
    state: MessageState,
    reason: Reason,
    result: dict[str, Any] | None,
    parts: Sequence[OutboxPart],
    now: int,
) -> bool:
    """Ends a message and stores the parts to deliver. Returns False when it had ended before."""
    ended = db.execute(
        "UPDATE messages SET state = ?, code = ?, detail = ?, ended_at = ?, result = ?"
        " WHERE id = ? AND ended_at IS NULL",
        (state, reason.code, reason.detail, now, None if result is None else encode(result), ledger_id),
    )
    if not ended.rowcount:
        _end_of(db, ledger_id)  # Raises if the message does not exist.
        return False
    if parts:
        db.executemany(
            "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
            " SELECT id, run_id, ?, ?, route, ?, 'pending', ? FROM messages WHERE id = ?",
            [(part.part, part.channel, encode(part.payload), now, ledger_id) for part in parts],
        )
    return True


def _end_of(db: sqlite3.Connection, ledger_id: int) -> str | None:
    row = db.execute("SELECT state, ended_at FROM messages WHERE id = ?", (ledger_id,)).fetchone()
    if row is None:
        raise UnknownMessage(f"the ledger has no message {ledger_id}")
    return row[0] if row[1] is not None else None


def _remember_seen(db: sqlite3.Connection, keys: Iterable[str], now: int) -> None:
    db.executemany("INSERT OR REPLACE INTO seen (key, at) VALUES (?, ?)", [(key, now) for key in keys if key])


@contextlib.contextmanager
def _without_waiting(connection: sqlite3.Connection) -> Generator[None]:
    """Fails at once at a lock that the connection has just waited for, so that callers do not wait once for each."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


class LedgerThread:
    """The one thread that uses the database. It commits together what is asked together."""

    def __init__(self, path: Path, repairs: Repairs, now_ms: Callable[[], int]) -> None:
        self._path = path
        self._repairs = repairs
        self._now_ms = now_ms
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._asked: Batch[_Job] = Batch(self._jobs.put)
        self._thread: threading.Thread | None = None
        self._damage: sqlite3.Error | None = None
        """The error of a damaged database that could not be replaced yet."""

    async def start(self) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name="openclaw-ledger", daemon=True)
        self._thread.start()
        await opened

    async def run(
        self, operation: Callable[[sqlite3.Connection], Result], *, after: AppendFile | None = None
    ) -> Result:
        """Does the operation and returns its result when what it wrote is on disk.

        ``after`` is a file that is made durable first. The disk's thread then hands the operation to this one directly.
        """
        if self._thread is None:
            raise LedgerError(f"the ledger {self._path} is closed")
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if after is not None and not after.is_durable:
            return await after.sync_then(lambda: self._jobs.put([(operation, done)]), done)
        self._asked.add((operation, done))
        return await done

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.now()
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    # In the thread

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = open_ledger(self._path, self._now_ms(), self._repairs.note)
        except (OSError, sqlite3.Error) as error:
            settle((opened, None, error))
            return
        settle((opened, None, None))
        try:
            for jobs in self._batches():
                try:
                    if self._damage is not None:
                        raise self._damage
                    outcomes = self._commit_together(connection, jobs)
                except sqlite3.Error as damage:
                    connection, outcomes = self._after_damage(connection, damage, jobs)
                settle(*outcomes)
        finally:
            connection.close()

    def _after_damage(
        self, connection: sqlite3.Connection, damage: sqlite3.Error, jobs: list[_Job]
    ) -> tuple[sqlite3.Connection, list[Outcome]]:
        """Replaces the damaged database and does the operations on the new one. Nothing of them was committed.

        If it cannot be replaced now, e.g. because the disk is full, the next operations try it again.
        """
        connection.close()
        self._damage = damage
        try:
            connection = reopen_rescued(self._path, self._now_ms(), str(damage), self._repairs.note)
            outcomes = self._commit_together(connection, jobs)
            self._damage = None
            return connection, outcomes
        except (OSError, sqlite3.Error) as error:
            failure = ledger_error(f"the ledger {self._path} is damaged and could not be replaced", error)
            return connection, [(done, None, failure) for _, done in jobs]

    def _batches(self) -> Iterator[list[_Job]]:
        """Yields the operations to commit together, in the order they were asked for, until the ledger is closed."""
        waiting: list[_Job] = []
        while (jobs := self._jobs.get()) is not None:
            waiting += jobs
            while len(waiting) >= _MOST_TOGETHER or (waiting and self._jobs.empty()):
                yield waiting[:_MOST_TOGETHER]
                del waiting[:_MOST_TOGETHER]
        if waiting:
            yield waiting

    def _commit_together(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
        """Does all in one transaction. If that fails, each gets a transaction of its own.

        Raises ``sqlite3.Error`` when the database is damaged.
        """
        try:
            return self._transact(connection, jobs)
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            if len(jobs) == 1:
                explained = ledger_error(f"the ledger {self._path} could not be written or read", error)
                return [(jobs[0][1], None, explained)]
            waited = is_locked(error)
        except Exception as error:
            # The caller gets the error. The thread goes on.
            if len(jobs) == 1:
                return [(jobs[0][1], None, error)]
            waited = False
        with _without_waiting(connection) if waited else contextlib.nullcontext():
            return [outcome for job in jobs for outcome in self._commit_together(connection, [job])]

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
        changes = connection.total_changes
        outcomes: list[Outcome] = []
        try:
            connection.execute("BEGIN")
            for operation, done in jobs:
                before = connection.total_changes
                try:
                    outcomes.append((done, operation(connection), None))
                except (ValueError, LookupError) as refusal:
                    # An operation that wrote something before it refused makes the whole transaction fail.
                    if connection.total_changes != before:
                        raise
                    outcomes.append((done, None, refusal))
            written = connection.total_changes != changes
            if written:
                faults.point("commit.before")
                faults.write(self._path)
            connection.execute("COMMIT")
            if written:
                faults.point("commit.after")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise
        return outcomes
