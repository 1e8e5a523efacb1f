"""``Ledger`` in SQLite: ``ledger.db``, with a write-ahead log and full synchronisation."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
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
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    OutboxRow,
    Reason,
    ReasonCode,
    StateChange,
    ToolCallRow,
    Transcript,
    Writing,
)
from openclaw.storage.files.disk import AppendFile
from openclaw.storage.files.ledger_db import BatchableOperation, LedgerThread, NotBatchable
from openclaw.storage.files.transcript import FileTranscript

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

    async def complete(self, stored: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Loads the keys of the table once. Keys that come meanwhile are added by ``note``."""
        learning = self._keys
        if not self._complete:
            learning.update(await stored())
            self._complete = self._complete or learning is self._keys

    def rules_out(self, key: str) -> bool:
        return self._complete and key not in self._keys


def stored_keys(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT key FROM seen")]


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


MESSAGE = (
    "SELECT id, run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state, code, detail,"
    " attempts, accepted_at, started_at, ended_at, result FROM messages"
)


class AcceptOperation(BatchableOperation):
    """Stores a message, with its first step if that is known already."""

    message: Accept
    route: bytes
    body: bytes
    now: int
    step: FirstStep | None = None
    reason: Reason = NO_REASON

    def __call__(self, db: sqlite3.Connection) -> tuple[LedgerRow, bool]:
        message = self.message
        inserted = db.execute(_insert(1), self._values())
        if message.dedupe_keys:
            remember_seen(db, message.dedupe_keys, self.now)
        if not inserted.rowcount:
            return _known(db, message), False
        return self._row(inserted.lastrowid or 0), True

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[AcceptOperation]) -> list[tuple[LedgerRow, bool]]:
        values = [value for one in operations for value in one._values()]
        inserted = db.execute(_insert(len(operations)), values)
        if inserted.rowcount != len(operations):
            raise NotBatchable
        for one in operations:
            if one.message.dedupe_keys:
                remember_seen(db, one.message.dedupe_keys, one.now)
        first = (inserted.lastrowid or 0) - len(operations) + 1
        return [(one._row(ledger_id), True) for ledger_id, one in enumerate(operations, start=first)]

    def _values(self) -> tuple[Any, ...]:
        begun = self.step == "running"
        state = (self.step or "accepted", self.reason.code, self.reason.detail, begun, self.now if begun else None)
        return (*self._told(), self.now, *state)

    def _told(self) -> tuple[Any, ...]:
        told = self.message
        names = (told.run_id, told.dedupe_key, told.agent_id, told.session_key, told.session_id)
        return (*names, told.source, self.route, self.body)

    def _row(self, ledger_id: int) -> LedgerRow:
        return message_of((ledger_id, *self._told(), "accepted", "", "", 0, self.now, None, None, None))


@lru_cache(maxsize=64)
def _insert(count: int) -> str:
    rows = ", ".join([f"({', '.join('?' * 14)})"] * count)
    return (
        "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, accepted_at,"
        f" state, code, detail, attempts, started_at) VALUES {rows} ON CONFLICT DO NOTHING"
    )


def _known(db: sqlite3.Connection, message: Accept) -> LedgerRow:
    # The index covers only keys that are not empty. The condition says so, and SQLite can use the index.
    by_key = f"{MESSAGE} WHERE dedupe_key = ? AND dedupe_key <> ''"
    return message_of(
        db.execute(f"{MESSAGE} WHERE run_id = ?", (message.run_id,)).fetchone()
        or db.execute(by_key, (message.dedupe_key,)).fetchone()
    )


def message_of(row: tuple[Any, ...]) -> LedgerRow:
    return LedgerRow(
        id=row[0],
        run_id=row[1],
        dedupe_key=row[2],
        agent_id=row[3],
        session_key=row[4],
        session_id=row[5],
        source=row[6],
        route=_object(row[7]) or {},
        body=_body(row[8]),
        state=row[9],
        reason=_reason(row[10], row[11]),
        attempts=row[12],
        accepted_at=row[13],
        started_at=row[14],
        ended_at=row[15],
        result=None if row[16] is None else _object(row[16]),
    )


_decode_body = msgspec.json.Decoder(MessageBody).decode


def _body(raw: bytes) -> MessageBody:
    """Decodes a body. A damaged one is read as an empty body, so that the other messages can be read."""
    try:
        return _decode_body(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return MessageBody()


def _reason(code: str, detail: str) -> Reason:
    """A code written by a newer version is read as ``other``."""
    try:
        return Reason(ReasonCode(code), detail)
    except ValueError:
        return Reason(ReasonCode.OTHER, detail or code)


def _object(raw: bytes) -> dict[str, Any] | None:
    """Decodes an object. A damaged one is read as None, so that the other messages can be read."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return None


class FinishOperation(BatchableOperation):
    """Ends a message and stores the parts to deliver."""

    ledger_id: int
    state: MessageState
    reason: Reason
    result: bytes | None
    parts: list[tuple[int, str, bytes]]
    """The number, channel and payload of each part to deliver."""
    now: int
    follows: bool = False
    """The transcript was made durable before. It is not kept here, as the thread holds its last operation."""

    def __call__(self, db: sqlite3.Connection) -> bool:
        """Returns False when the message had ended before."""
        self._check()
        ended = db.execute(_update(1), [*self._values(), self.ledger_id])
        if not ended.rowcount:
            end_of(db, self.ledger_id)  # Raises when there is no such message.
            return False
        self._post(db)
        return True

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[FinishOperation]) -> list[bool]:
        try:
            for one in operations:
                one._check()
        except ValueError:
            raise NotBatchable from None
        values = [value for one in operations for value in one._values()]
        ended = db.execute(_update(len(operations)), [*values, *(one.ledger_id for one in operations)])
        if ended.rowcount != len(operations):
            raise NotBatchable
        for one in operations:
            one._post(db)
        return [True] * len(operations)

    def _check(self) -> None:
        if self.follows:
            faults.point("sync.after")
        if len({part for part, _, _ in self.parts}) < len(self.parts):
            raise ValueError(f"message {self.ledger_id}: two parts to deliver have the same number")

    def _values(self) -> tuple[Any, ...]:
        return self.ledger_id, self.state, self.reason.code, self.reason.detail, self.now, self.result

    def _post(self, db: sqlite3.Connection) -> None:
        if self.parts:
            db.executemany(
                "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
                " SELECT id, run_id, ?, ?, route, ?, 'pending', ? FROM messages WHERE id = ?",
                [(part, channel, payload, self.now, self.ledger_id) for part, channel, payload in self.parts],
            )


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


_STEPS = frozenset({"accepted", "queued", "running"})
_LOOKED_THROUGH = 20_000
"""How many of the latest messages a search by state may read."""
_OUTBOX = (
    "SELECT id, ledger_id, run_id, part, channel, route, payload, state, attempts, next_at, created_at, error,"
    " doubts, code, message_id FROM outbox"
)


class FileLedger:
    def __init__(self, state_dir: str, *, clock: Clock) -> None:
        self.path = Path(state_dir) / "ledger.db"
        self._clock = clock
        self._thread = LedgerThread(self.path)
        self._maybe_seen = MaybeSeen()

    @classmethod
    async def open(cls, state_dir: str, *, clock: Clock) -> FileLedger:
        """Opens or creates the ledger. A part that was being sent becomes pending again, with one doubt more."""
        ledger = cls(state_dir, clock=clock)
        await ledger._thread.start(clock.now_ms())
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
        now, route, body = self._clock.now_ms(), encode(message.route), encode(message.body)
        acceptance = AcceptOperation(message, route, body, now, step, reason)
        return await self._thread.run(acceptance, after=await _file_of(after))

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        if state not in _STEPS:
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
        now, encoded = self._clock.now_ms(), None if result is None else encode(result)
        parts = [(part.part, part.channel, encode(part.payload)) for part in outbox]
        ending = FinishOperation(ledger_id, state, reason, encoded, parts, now, follows=written is not None)
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
        now, route, body = self._clock.now_ms(), encode(message.route), encode(message.body)
        parts = [(part.part, part.channel, encode(part.payload)) for part in outbox]
        end = (state, reason, None if result is None else encode(result))
        return await self._thread.run(lambda db: _post(db, message, route, body, parts, end, now))

    async def absorb(self, into: int, others: Sequence[int], *, body: MessageBody, reason: Reason) -> None:
        now, encoded = self._clock.now_ms(), encode(body)
        await self._thread.run(lambda db: _absorb(db, into, others, encoded, reason, now))

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        if not key:
            return False
        if not remember and self._maybe_seen.rules_out(key) and not is_time_to_prune(key):
            return False
        if remember:
            self._maybe_seen.note([key])
        await self._maybe_seen.complete(lambda: self._thread.run(stored_keys))
        now = self._clock.now_ms()
        return await self._thread.run(lambda db: seen(db, key, ttl_ms, keep, now, remember=remember))

    async def hold(self, key: str, message: bytes) -> None:
        statement = "INSERT OR IGNORE INTO held (key, message) VALUES (?, ?)"
        await self._thread.run(lambda db: db.execute(statement, (key, message)).rowcount)

    async def held(self) -> list[tuple[str, bytes]]:
        statement = "SELECT key, message FROM held ORDER BY step"
        return await self._thread.run(lambda db: db.execute(statement).fetchall())

    async def let_go(self, keys: Sequence[str]) -> None:
        statement, values = "DELETE FROM held WHERE key = ?", [(key,) for key in keys]
        await self._thread.run(lambda db: db.executemany(statement, values).rowcount)

    async def tool_started(self, ledger_id: int, call_id: str, name: str, arguments: str) -> None:
        values = (ledger_id, call_id, name, arguments, self._clock.now_ms())
        statement = (
            "INSERT INTO tool_calls (ledger_id, call_id, name, arguments, started_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING"
        )
        await self._thread.run(lambda db: db.execute(statement, values).rowcount)

    async def tool_finished(self, ledger_id: int, call_id: str, ok: bool) -> None:
        values = (self._clock.now_ms(), ok, ledger_id, call_id)
        statement = "UPDATE tool_calls SET finished_at = ?, ok = ? WHERE ledger_id = ? AND call_id = ?"
        await self._thread.run(lambda db: db.execute(statement, values).rowcount)

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]:
        statement = (
            "SELECT ledger_id, call_id, name, arguments, started_at, finished_at, ok FROM tool_calls"
            " WHERE ledger_id = ? ORDER BY rowid"
        )
        rows = await self._thread.run(lambda db: db.execute(statement, (ledger_id,)).fetchall())
        return [
            ToolCallRow(
                ledger_id=row[0],
                call_id=row[1],
                name=row[2],
                arguments=row[3],
                started_at=row[4],
                finished_at=row[5],
                ok=None if row[6] is None else bool(row[6]),
            )
            for row in rows
        ]

    async def by_run(self, run_id: str) -> LedgerRow | None:
        return await self._one(f"{MESSAGE} WHERE run_id = ?", run_id)

    async def get(self, ledger_id: int) -> LedgerRow | None:
        return await self._one(f"{MESSAGE} WHERE id = ?", ledger_id)

    async def story(self, ledger_id: int) -> list[StateChange]:
        statement = "SELECT at, state, code, detail FROM story WHERE ledger_id = ? ORDER BY step"
        rows = await self._thread.run(lambda db: db.execute(statement, (ledger_id,)).fetchall())
        return [StateChange(at=at, state=state, reason=_reason(code, detail)) for at, state, code, detail in rows]

    async def unfinished(self) -> list[LedgerRow]:
        return await self._many(f"{MESSAGE} WHERE ended_at IS NULL ORDER BY id")

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
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return await self._many(f"{MESSAGE}{where} ORDER BY id DESC LIMIT ?", *values, max(0, limit))

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        # LIKE would neither use the index nor distinguish capitals.
        statement = f"{MESSAGE} WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT ?"
        return await self._many(statement, prefix, f"{prefix}\U0010ffff", max(0, limit))

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        statement = f"{_OUTBOX} WHERE state = 'pending' AND next_at <= ? ORDER BY next_at, id LIMIT ?"
        return await self._parts(statement, now_ms, max(0, limit))

    async def outbox_depth(self) -> int:
        statement = "SELECT count(*) FROM outbox WHERE state = 'pending'"
        return await self._thread.run(lambda db: db.execute(statement).fetchone()[0])

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]:
        return await self._parts(f"{_OUTBOX} WHERE ledger_id = ? ORDER BY part", ledger_id)

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
    ) -> None:
        values = (state, state == "sending", next_at, error, doubts, code, message_id, outbox_id)
        statement = (
            "UPDATE outbox SET state = ?, attempts = attempts + ?, next_at = ?, error = ?, doubts = ?, code = ?,"
            " message_id = ? WHERE id = ?"
        )
        changed = await self._thread.run(lambda db: db.execute(statement, values).rowcount)
        if not changed:
            raise KeyError(f"the outbox has no part {outbox_id}")
        faults.point(f"outbox.{state}")

    async def prune(self, before_ms: int) -> int:
        return await self._thread.run(lambda db: _prune(db, before_ms))

    async def close(self) -> None:
        await self._thread.close()

    async def _one(self, statement: str, *values: Any) -> LedgerRow | None:
        row = await self._thread.run(lambda db: db.execute(statement, values).fetchone())
        return message_of(row) if row else None

    async def _many(self, statement: str, *values: Any) -> list[LedgerRow]:
        return [message_of(row) for row in await self._thread.run(lambda db: db.execute(statement, values).fetchall())]

    async def _parts(self, statement: str, *values: Any) -> list[OutboxRow]:
        return [_part(row) for row in await self._thread.run(lambda db: db.execute(statement, values).fetchall())]


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


def _post(
    db: sqlite3.Connection,
    message: Accept,
    route: bytes,
    body: bytes,
    parts: list[tuple[int, str, bytes]],
    end: tuple[MessageState, Reason, bytes | None],
    now: int,
) -> tuple[LedgerRow, bool]:
    if len({part for part, _, _ in parts}) < len(parts):
        raise ValueError(f"message {message.run_id}: two parts to deliver have the same number")
    row, new = AcceptOperation(message, route, body, now)(db)
    if new:
        FinishOperation(row.id, *end, parts, now)(db)
        row = message_of(db.execute(f"{MESSAGE} WHERE id = ?", (row.id,)).fetchone())
    return row, new


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


def _absorb(db: sqlite3.Connection, into: int, others: Sequence[int], body: bytes, reason: Reason, now: int) -> None:
    if ended := end_of(db, into):
        raise ValueError(f"message {into} has ended ({ended}) and can take no other in")
    (run_id,) = db.execute("SELECT run_id FROM messages WHERE id = ?", (into,)).fetchone()
    db.execute("UPDATE messages SET body = ? WHERE id = ?", (body, into))
    for other in others:
        FinishOperation(other, "superseded", reason, encode({"answeredBy": run_id}), [], now)(db)


def _prune(db: sqlite3.Connection, before: int) -> int:
    waiting = "SELECT ledger_id FROM outbox WHERE state IN ('pending', 'sending')"
    rows = db.execute(
        f"SELECT id FROM messages WHERE ended_at IS NOT NULL AND ended_at < ? AND id NOT IN ({waiting})", (before,)
    ).fetchall()
    for table in ("story", "tool_calls", "outbox"):
        db.executemany(f"DELETE FROM {table} WHERE ledger_id = ?", rows)
    db.executemany("DELETE FROM messages WHERE id = ?", rows)
    return len(rows)


def _part(row: tuple[Any, ...]) -> OutboxRow:
    return OutboxRow(
        id=row[0],
        ledger_id=row[1],
        run_id=row[2],
        part=row[3],
        channel=row[4],
        route=msgspec.json.decode(row[5]),
        payload=msgspec.json.decode(row[6]),
        state=row[7],
        attempts=row[8],
        next_at=row[9],
        created_at=row[10],
        error=row[11],
        doubts=row[12],
        code=DeliveryCode(row[13]),
        message_id=row[14],
    )
