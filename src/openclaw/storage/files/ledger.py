"""``Ledger`` in SQLite: ``ledger.db``, with a write-ahead log and full synchronisation."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.storage import faults
from openclaw.storage.base import (
    END_STATES,
    NO_REASON,
    Accept,
    DeliveryCode,
    FirstStep,
    HeldMessage,
    JobRow,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    OutboxRow,
    PartState,
    Reason,
    ReasonCode,
    SessionName,
    StateChange,
    ToolCallRow,
    Transcript,
    TurnedAway,
    Writing,
)
from openclaw.storage.files.disk import AppendFile, Batch, Outcome, settle
from openclaw.storage.files.ledger_db import LedgerError, is_damage, ledger_error, open_ledger, reopen_rescued
from openclaw.storage.files.transcript import FileTranscript
from openclaw.storage.ledger_rows import (
    ACCEPT_COLUMNS,
    SELECT_MESSAGES,
    SELECT_PARTS,
    SELECT_TOOL_CALLS,
    accept_fields,
    accept_values,
    message_of,
    part_of,
    reason_of,
    tool_call_of,
)
from openclaw.storage.repairs import Repairs

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


class LedgerThread:
    """The one thread that uses the database. It commits together what is asked together."""

    def __init__(self, path: Path, repairs: Repairs, now_ms: Callable[[], int]) -> None:
        self._path = path
        self._repairs = repairs
        self._now_ms = now_ms
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._asked: Batch[_Job] = Batch(self._jobs.put)
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name="openclaw-ledger", daemon=True)
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
                    outcomes = self._commit_together(connection, jobs)
                except sqlite3.Error as damage:
                    connection, outcomes = self._after_damage(connection, damage, jobs)
                settle(*outcomes)
        finally:
            connection.close()

    def _after_damage(
        self, connection: sqlite3.Connection, damage: sqlite3.Error, jobs: list[_Job]
    ) -> tuple[sqlite3.Connection, list[Outcome]]:
        """Replaces the damaged database and does the operations on the new one. Nothing of them was committed."""
        connection.close()
        try:
            connection = reopen_rescued(self._path, self._now_ms(), str(damage), self._repairs.note)
            return connection, self._commit_together(connection, jobs)
        except (OSError, sqlite3.Error) as error:
            failure = ledger_error(f"the ledger {self._path} is damaged and could not be replaced", error)
            return connection, [(done, None, failure) for _, done in jobs]

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

    def _commit_together(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
        """Does all in one transaction. If that fails, each gets a transaction of its own.

        Raises ``sqlite3.Error`` when the database is damaged.
        """
        try:
            try:
                return self._transact(connection, jobs, _jointly)
            except NotBatchable:
                return self._transact(connection, jobs, _one_by_one)
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            if len(jobs) == 1:
                explained = ledger_error(f"the ledger {self._path} could not be written or read", error)
                return [(jobs[0][1], None, explained)]
        except Exception as error:
            # The caller gets the error. The thread goes on.
            if len(jobs) == 1:
                return [(jobs[0][1], None, error)]
        return [outcome for job in jobs for outcome in self._commit_together(connection, [job])]

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job], perform: _Perform) -> list[Outcome]:
        changes = connection.total_changes
        try:
            connection.execute("BEGIN")
            outcomes = perform(connection, jobs)
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


_Perform: TypeAlias = Callable[[sqlite3.Connection, list[_Job]], list[Outcome]]


def _jointly(connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for joint, neighbours in groupby(jobs, lambda job: isinstance(job[0], BatchableOperation)):
        run = list(neighbours)
        outcomes += _in_few_statements(connection, run) if joint and len(run) > 1 else _one_by_one(connection, run)
    return outcomes


def _in_few_statements(connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
    kinds: dict[type[Any], list[Any]] = {}
    for operation, _ in jobs:
        kinds.setdefault(type(operation), []).append(operation)
    results = {kind: iter(kind.together(connection, operations)) for kind, operations in kinds.items()}
    return [(done, next(results[type(operation)]), None) for operation, done in jobs]


def _one_by_one(connection: sqlite3.Connection, jobs: list[_Job]) -> list[Outcome]:
    outcomes: list[Outcome] = []
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


PRUNE_EVERY = 64
"""One in so many look-ups of an unknown key removes keys that are too old. The others write nothing."""

MOST_KEYS = 50_000
"""``MaybeSeen`` forgets its keys when there are more."""


def is_time_to_prune(key: str) -> bool:
    return crc32(key.encode()) % PRUNE_EVERY == 0


class MaybeSeen:
    """The keys that the ``seen`` table may hold. For most messages it tells without a query that they are new."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._complete = False

    def note(self, keys: Iterable[str]) -> None:
        """Adds keys before they are written. A key too many only costs a query."""
        self._keys.update(keys)
        if len(self._keys) > MOST_KEYS:
            self._keys, self._complete = set(), False

    async def complete(self, stored: Callable[[], Awaitable[Iterable[tuple[str]]]]) -> None:
        """Loads the keys of the table once. Keys that come meanwhile are added by ``note``."""
        learning = self._keys
        if not self._complete:
            learning.update(key for (key,) in await stored())
            self._complete = self._complete or learning is self._keys

    def rules_out(self, key: str) -> bool:
        return self._complete and key not in self._keys


def seen(db: sqlite3.Connection, key: str, ttl_ms: int, keep: int, now: int, *, remember: bool) -> bool:
    """Tells whether the key was seen within ``ttl_ms``. A known key counts as seen again."""
    row = db.execute("SELECT at FROM seen WHERE key = ?", (key,)).fetchone()
    known = row is not None and now - row[0] < ttl_ms
    if known or remember:
        remember_seen(db, [key], now)
    if not known and (remember or is_time_to_prune(key)):
        db.execute("DELETE FROM seen WHERE at <= ?", (now - ttl_ms,))
        newest_to_go = "SELECT step FROM seen ORDER BY step DESC LIMIT 1 OFFSET ?"
        db.execute(f"DELETE FROM seen WHERE step <= ({newest_to_go})", (max(0, keep),))
    return known


def remember_seen(db: sqlite3.Connection, keys: Iterable[str], now: int) -> None:
    db.executemany("INSERT OR REPLACE INTO seen (key, at) VALUES (?, ?)", [(key, now) for key in keys if key])


class AcceptOperation(BatchableOperation):
    """Stores a message, with its first step if that is known already."""

    message: Accept
    now: int
    step: FirstStep | None = None
    reason: Reason = NO_REASON

    def __call__(self, db: sqlite3.Connection) -> tuple[LedgerRow, bool]:
        message = self.message
        try:
            return self.together(db, [self])[0]
        except NotBatchable:
            remember_seen(db, message.dedupe_keys, self.now)
        # The index covers only keys that are not empty. The condition says so, and SQLite can use the index.
        by_key = f"{SELECT_MESSAGES} WHERE dedupe_key = ? AND dedupe_key <> ''"
        known = db.execute(f"{SELECT_MESSAGES} WHERE run_id = ?", (message.run_id,)).fetchone()
        return message_of(known or db.execute(by_key, (message.dedupe_key,)).fetchone()), False

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[AcceptOperation]) -> list[tuple[LedgerRow, bool]]:
        values: list[Any] = []
        for one in operations:
            begun, reason = one.step == "running", one.reason
            values += (*accept_values(one.message), one.now, one.step or "accepted", reason.code, reason.detail)
            values += (begun, one.now if begun else None)
        inserted = db.execute(_insert(len(operations)), values)
        if inserted.rowcount != len(operations):
            raise NotBatchable
        rows: list[tuple[LedgerRow, bool]] = []
        for ledger_id, one in enumerate(operations, start=(inserted.lastrowid or 0) - len(operations) + 1):
            if one.message.dedupe_keys:
                remember_seen(db, one.message.dedupe_keys, one.now)
            fields = dict(zip(ACCEPT_COLUMNS, accept_fields(one.message), strict=True))
            rows.append((LedgerRow(id=ledger_id, accepted_at=one.now, **fields), True))
        return rows


@lru_cache(maxsize=64)
def _insert(count: int) -> str:
    columns = (*ACCEPT_COLUMNS, "accepted_at", "state", "code", "detail", "attempts", "started_at")
    rows = ", ".join([f"({', '.join('?' * len(columns))})"] * count)
    return f"INSERT INTO messages ({', '.join(columns)}) VALUES {rows} ON CONFLICT DO NOTHING"


class FinishOperation(BatchableOperation):
    """Ends a message and stores the parts to deliver."""

    ledger_id: int
    state: MessageState
    reason: Reason
    result: dict[str, Any] | None
    parts: Sequence[OutboxPart]
    now: int
    follows: bool = False
    """The transcript was made durable before. It is not kept here, as the thread holds its last operation."""

    def __call__(self, db: sqlite3.Connection) -> bool:
        """Returns False when the message had ended before."""
        try:
            return self.together(db, [self])[0]
        except NotBatchable:
            end_of(db, self.ledger_id)  # Raises when there is no such message.
            return False

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[FinishOperation]) -> list[bool]:
        values: list[Any] = []
        for one in operations:
            if one.follows:
                faults.point("sync.after")
            if len({part.part for part in one.parts}) < len(one.parts):
                raise ValueError(f"message {one.ledger_id}: two parts to deliver have the same number")
            result = None if one.result is None else encode(one.result)
            values += (one.ledger_id, one.state, one.reason.code, one.reason.detail, one.now, result)
        ended = db.execute(_update(len(operations)), [*values, *(one.ledger_id for one in operations)])
        if ended.rowcount != len(operations):
            raise NotBatchable
        for one in operations:
            if one.parts:
                db.executemany(
                    "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
                    " SELECT id, run_id, ?, ?, route, ?, 'pending', ? FROM messages WHERE id = ?",
                    [(part.part, part.channel, encode(part.payload), one.now, one.ledger_id) for part in one.parts],
                )
        return [True] * len(operations)


@lru_cache(maxsize=64)
def _update(count: int) -> str:
    ends = ", ".join(["(?, ?, ?, ?, ?, ?)"] * count)
    return (
        "UPDATE messages SET (state, code, detail, ended_at, result) ="
        f" (SELECT column2, column3, column4, column5, column6 FROM (VALUES {ends}) WHERE column1 = messages.id)"
        f" WHERE id IN ({', '.join('?' * count)}) AND ended_at IS NULL"
    )


def end_of(db: sqlite3.Connection, ledger_id: int) -> str | None:
    row = db.execute("SELECT state, ended_at FROM messages WHERE id = ?", (ledger_id,)).fetchone()
    if row is None:
        raise KeyError(f"the ledger has no message {ledger_id}")
    return row[0] if row[1] is not None else None


_LOOKED_THROUGH = 20_000
"""How many of the latest messages a search by state or by the channel's id may read."""
MOST_TURNED_AWAY = 5_000
"""How many messages that were not taken in are remembered."""


class FileLedger:
    def __init__(self, state_dir: str, *, clock: Clock, repairs: Repairs | None = None) -> None:
        self.path = Path(state_dir) / "ledger.db"
        self._clock = clock
        self._thread = LedgerThread(self.path, repairs or Repairs(), clock.now_ms)
        self._maybe_seen = MaybeSeen()

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
        self._maybe_seen.note(message.dedupe_keys)
        acceptance = AcceptOperation(message, self._clock.now_ms(), step, reason)
        return await self._thread.run(acceptance, after=await _file_of(after))

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        if state in END_STATES:
            raise ValueError(f"'{state}' ends a message: use finish")
        now = self._clock.now_ms()
        await self._thread.run(lambda db: _advance(db, ledger_id, state, reason, session_id, now))

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
        if state not in END_STATES:
            raise ValueError(f"'{state}' does not end a message: use advance")
        now, follows = self._clock.now_ms(), written is not None
        ending = FinishOperation(ledger_id, state, reason, result, outbox, now, follows=follows)
        return await self._thread.run(ending, after=await _file_of(written))

    async def post(
        self,
        message: Accept,
        outbox: Sequence[OutboxPart],
        *,
        state: MessageState = "answered",
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        self._maybe_seen.note(message.dedupe_keys)
        now = self._clock.now_ms()

        def accept_and_finish(db: sqlite3.Connection) -> tuple[LedgerRow, bool]:
            row, new = AcceptOperation(message, now)(db)
            if new:
                FinishOperation(row.id, state, reason, result, outbox, now)(db)
                row = message_of(db.execute(f"{SELECT_MESSAGES} WHERE id = ?", (row.id,)).fetchone())
            return row, new

        return await self._thread.run(accept_and_finish)

    async def absorb(self, into: int, others: Mapping[int, Reason], *, body: MessageBody) -> None:
        now = self._clock.now_ms()
        await self._thread.run(lambda db: _absorb(db, into, others, body, now))

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        if not key:
            return False
        if not remember and self._maybe_seen.rules_out(key) and not is_time_to_prune(key):
            return False
        if remember:
            self._maybe_seen.note([key])
        await self._maybe_seen.complete(lambda: self._rows("SELECT key FROM seen"))
        now = self._clock.now_ms()
        return await self._thread.run(lambda db: seen(db, key, ttl_ms, keep, now, remember=remember))

    async def hold(self, key: str, message: bytes) -> None:
        await self._write("INSERT OR IGNORE INTO held (key, message) VALUES (?, ?)", key, message)

    async def held(self) -> list[HeldMessage]:
        rows = await self._rows("SELECT key, message, attempts FROM held ORDER BY step")
        return [HeldMessage(key=key, message=message, attempts=attempts) for key, message, attempts in rows]

    async def held_tried(self, key: str) -> None:
        await self._write("UPDATE held SET attempts = attempts + 1 WHERE key = ?", key)

    async def let_go(self, keys: Sequence[str]) -> None:
        statement, values = "DELETE FROM held WHERE key = ?", [(key,) for key in keys]
        await self._thread.run(lambda db: db.executemany(statement, values).rowcount)

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

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]:
        rows = await self._rows(f"{SELECT_TOOL_CALLS} WHERE ledger_id = ? ORDER BY rowid", ledger_id)
        return [tool_call_of(row) for row in rows]

    async def by_run(self, run_id: str) -> LedgerRow | None:
        return next(iter(await self._messages("WHERE run_id = ?", run_id)), None)

    async def get(self, ledger_id: int) -> LedgerRow | None:
        return next(iter(await self._messages("WHERE id = ?", ledger_id)), None)

    async def story(self, ledger_id: int) -> list[StateChange]:
        rows = await self._rows(
            "SELECT at, state, code, detail FROM story WHERE ledger_id = ? ORDER BY step", ledger_id
        )
        return [StateChange(at=at, state=state, reason=reason_of(code, detail)) for at, state, code, detail in rows]

    async def unfinished(self, session: SessionName | None = None) -> list[LedgerRow]:
        if session is None:
            return await self._messages("WHERE ended_at IS NULL ORDER BY id")
        of_session = "WHERE ended_at IS NULL AND agent_id = ? AND session_key = ? ORDER BY id"
        return await self._messages(of_session, *session)

    async def recent(
        self, *, session_key: str | None = None, state: MessageState | None = None, limit: int = 50
    ) -> list[LedgerRow]:
        conditions: list[str] = []
        values: list[Any] = []
        if session_key is not None:
            conditions.append("session_key = ?")
            values.append(session_key)
        if state is not None:
            # Without a bound, the search for a rare state would read every message.
            conditions += ["state = ?", "id > (SELECT coalesce(max(id), 0) FROM messages) - ?"]
            values += [state, _LOOKED_THROUGH]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return await self._messages(f"{where} ORDER BY id DESC LIMIT ?", *values, max(0, limit))

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        # LIKE would neither use the index nor distinguish capitals.
        condition = "WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT ?"
        return await self._messages(condition, prefix, f"{prefix}\U0010ffff", max(0, limit))

    async def by_message_id(self, message_id: str) -> LedgerRow | None:
        # The id is looked for as bytes first, so that only few bodies are decoded.
        latest = "id > (SELECT coalesce(max(id), 0) FROM messages) - ?"
        condition = f"WHERE {latest} AND instr(body, ?) > 0 ORDER BY id DESC LIMIT 50"
        rows = await self._messages(condition, _LOOKED_THROUGH, encode(message_id))
        return next((row for row in rows if message_id in row.body.message_ids), None)

    async def turn_away(self, note: TurnedAway) -> None:
        now = self._clock.now_ms()
        await self._thread.run(lambda db: _turn_away(db, note, now))

    async def turned_away(self, message_ids: Sequence[str]) -> list[TurnedAway]:
        names = TurnedAway.__struct_fields__
        marks = ", ".join("?" * len(message_ids))
        statement = f"SELECT {', '.join(names)} FROM turned_away WHERE message_id IN ({marks}) ORDER BY first_at, step"
        rows = await self._rows(statement, *message_ids)
        return [msgspec.convert(dict(zip(names, row, strict=True)), TurnedAway) for row in rows]

    async def job_put(self, job: JobRow) -> None:
        names, state = JobRow.__struct_fields__, encode(job.state)
        values = [state if name == "state" else getattr(job, name) for name in names]
        marks = ", ".join("?" * len(names))
        await self._write(f"INSERT OR REPLACE INTO jobs ({', '.join(names)}) VALUES ({marks})", *values)

    async def job(self, job_id: str) -> JobRow | None:
        return next(iter(await self._jobs("WHERE id = ?", job_id)), None)

    async def jobs(
        self,
        *,
        kind: str | None = None,
        owner_key: str | None = None,
        run_id: str | None = None,
        trace: str | None = None,
        ended: bool | None = None,
        limit: int = 1000,
    ) -> list[JobRow]:
        asked = {"kind": kind, "owner_key": owner_key, "run_id": run_id, "trace": trace}
        given = {name: value for name, value in asked.items() if value is not None}
        tests = [f"{name} = ?" for name in given]
        if ended is not None:
            tests.append(f"ended_at IS {'NOT ' if ended else ''}NULL")
        where = f"WHERE {' AND '.join(tests)} " if tests else ""
        return await self._jobs(f"{where}ORDER BY created_at, rowid LIMIT ?", *given.values(), max(0, limit))

    async def _jobs(self, condition: str, *values: Any) -> list[JobRow]:
        names = JobRow.__struct_fields__
        rows = await self._rows(f"SELECT {', '.join(names)} FROM jobs {condition}", *values)
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [JobRow(**{**fields, "state": msgspec.json.decode(fields["state"])}) for fields in found]

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        due = "WHERE state = 'pending' AND next_at <= ? ORDER BY next_at, id LIMIT ?"
        return [part_of(row) for row in await self._rows(f"{SELECT_PARTS} {due}", now_ms, max(0, limit))]

    async def outbox_depth(self) -> int:
        ((depth,),) = await self._rows("SELECT count(*) FROM outbox WHERE state = 'pending'")
        return depth

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]:
        return [
            part_of(row) for row in await self._rows(f"{SELECT_PARTS} WHERE ledger_id = ? ORDER BY part", ledger_id)
        ]

    async def outbox_parts(
        self, states: Sequence[PartState], *, channel: str | None = None, limit: int = 100
    ) -> list[OutboxRow]:
        wanted = f"WHERE state IN ({', '.join('?' * len(states))}) AND (? IS NULL OR channel = ?)"
        rows = await self._rows(
            f"{SELECT_PARTS} {wanted} ORDER BY id DESC LIMIT ?", *states, channel, channel, max(0, limit)
        )
        return [part_of(row) for row in rows]

    async def outbox_again(self, outbox_ids: Sequence[int]) -> int:
        statement = (
            "UPDATE outbox SET state = 'pending', attempts = 0, next_at = 0, error = '', doubts = min(doubts, 1),"
            f" code = '', created_at = ? WHERE state = 'dead' AND id IN ({', '.join('?' * len(outbox_ids))})"
        )
        return await self._write(statement, self._clock.now_ms(), *outbox_ids)

    async def outbox_add(self, ledger_id: int, parts: Sequence[OutboxPart]) -> bool:
        now = self._clock.now_ms()
        statement = (
            "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
            " SELECT id, run_id, (SELECT coalesce(max(part) + 1, 0) FROM outbox WHERE ledger_id = messages.id),"
            " ?, route, ?, 'pending', ? FROM messages WHERE id = ? AND ended_at IS NULL"
        )

        def add(db: sqlite3.Connection) -> bool:
            added = [
                db.execute(statement, (part.channel, encode(part.payload), now, ledger_id)).rowcount for part in parts
            ]
            return all(added)

        stored = await self._thread.run(add)
        faults.point("outbox.added")
        return stored

    async def outbox_take_back(self, channel: str, mine: Callable[[dict[str, Any]], bool]) -> None:
        pass  # There is no other node, and ``open`` took back what this one was sending.

    async def outbox_mark(
        self,
        outbox_id: int,
        state: Literal["pending", "sending", "sent", "dead"],
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
        message_id: str = "",
    ) -> bool:
        statement = (
            "UPDATE outbox SET state = ?, attempts = attempts + ?, next_at = ?, error = ?, doubts = ?, code = ?,"
            " message_id = ? WHERE id = ?"
        )
        if state == "sending":
            statement += " AND state NOT IN ('sent', 'dead')"
        values = (state, state == "sending", next_at, error, doubts, code, message_id, outbox_id)
        if not await self._write(statement, *values):
            if state == "sending" and await self._rows("SELECT 1 FROM outbox WHERE id = ?", outbox_id):
                return False
            raise KeyError(f"the outbox has no part {outbox_id}")
        faults.point(f"outbox.{state}")
        return True

    async def prune(self, before_ms: int, *, most: int = 200) -> int:
        return await self._thread.run(lambda db: _prune(db, before_ms, most))

    async def close(self) -> None:
        await self._thread.close()

    async def _messages(self, condition: str, *values: Any) -> list[LedgerRow]:
        return [message_of(row) for row in await self._rows(f"{SELECT_MESSAGES} {condition}", *values)]

    async def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._thread.run(lambda db: db.execute(statement, values).fetchall())

    async def _write(self, statement: str, *values: Any) -> int:
        """Returns how many rows the statement changed."""
        return await self._thread.run(lambda db: db.execute(statement, values).rowcount)


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


def _advance(
    db: sqlite3.Connection, ledger_id: int, state: str, reason: Reason, session_id: str | None, now: int
) -> None:
    if ended := end_of(db, ledger_id):
        raise ValueError(f"message {ledger_id} has ended ({ended}) and cannot become '{state}'")
    starting = state == "running"
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


def _absorb(db: sqlite3.Connection, into: int, others: Mapping[int, Reason], body: MessageBody, now: int) -> None:
    if ended := end_of(db, into):
        raise ValueError(f"message {into} has ended ({ended}) and can take no other in")
    (run_id,) = db.execute("SELECT run_id FROM messages WHERE id = ?", (into,)).fetchone()
    db.execute("UPDATE messages SET body = ? WHERE id = ?", (encode(body), into))
    for other, reason in others.items():
        answered = reason.code is ReasonCode.COLLECTED
        FinishOperation(other, "superseded", reason, {"answeredBy": run_id} if answered else None, (), now)(db)


def _turn_away(db: sqlite3.Connection, note: TurnedAway, now: int) -> None:
    known = (note.message_id, note.channel, note.chat, note.code)
    where = "WHERE message_id = ? AND channel = ? AND chat = ? AND code = ?"
    again = db.execute(f"UPDATE turned_away SET count = count + 1, last_at = ? {where}", (now, *known))
    if again.rowcount:
        return
    db.execute(
        "INSERT INTO turned_away (message_id, channel, chat, code, sender, detail, count, first_at, last_at)"
        " VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)",
        (*known, note.sender, note.detail, now, now),
    )
    newest_to_go = "SELECT step FROM turned_away ORDER BY step DESC LIMIT 1 OFFSET ?"
    db.execute(f"DELETE FROM turned_away WHERE step <= ({newest_to_go})", (MOST_TURNED_AWAY,))


def _prune(db: sqlite3.Connection, before: int, most: int) -> int:
    undelivered = "SELECT 1 FROM outbox WHERE ledger_id = messages.id AND state IN ('pending', 'sending')"
    rows = db.execute(
        f"SELECT id FROM messages WHERE ended_at IS NOT NULL AND ended_at < ? AND NOT EXISTS ({undelivered}) LIMIT ?",
        (before, most),
    ).fetchall()
    for table in ("story", "tool_calls", "outbox"):
        db.executemany(f"DELETE FROM {table} WHERE ledger_id = ?", rows)
    db.executemany("DELETE FROM messages WHERE id = ?", rows)
    db.execute("DELETE FROM jobs WHERE ended_at IS NOT NULL AND ended_at < ?", (before,))
    return len(rows)
