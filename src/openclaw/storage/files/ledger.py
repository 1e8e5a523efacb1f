"""``Ledger`` in SQLite (``ledger.db``, WAL, fully synchronous): the life of every accepted message."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from openclaw.clock import Clock
from openclaw.json_text import encode
from openclaw.storage import faults
from openclaw.storage.base import (
    END_STATES,
    Accept,
    FirstStep,
    LedgerRow,
    MessageBody,
    MessageState,
    OutboxPart,
    OutboxRow,
    StateChange,
    ToolCallRow,
    Transcript,
    Writing,
)
from openclaw.storage.files.disk import AppendFile
from openclaw.storage.files.ledger_accept import MESSAGE, Acceptance, message_of
from openclaw.storage.files.ledger_finish import Ending, end_of
from openclaw.storage.files.ledger_seen import MaybeSeen, hold, is_time_to_prune, let_go, seen, stored_keys
from openclaw.storage.files.ledger_thread import LedgerThread
from openclaw.storage.files.transcript import FileTranscript

_STEPS = frozenset({"accepted", "queued", "running"})
_LOOKED_THROUGH = 20_000
"""How many of the latest messages a question about a state may read."""
_OUTBOX = (
    "SELECT id, ledger_id, run_id, part, channel, route, payload, state, attempts, next_at, created_at, error,"
    " message_id FROM outbox"
)


class FileLedger:
    def __init__(self, state_dir: str, *, clock: Clock) -> None:
        self.path = Path(state_dir) / "ledger.db"
        self._clock = clock
        self._thread = LedgerThread(self.path)
        self._maybe_seen = MaybeSeen()

    @classmethod
    async def open(cls, state_dir: str, *, clock: Clock) -> FileLedger:
        """Opens or creates the ledger. Parts found half sent wait again, with ``error`` saying ``interrupted``."""
        ledger = cls(state_dir, clock=clock)
        await ledger._thread.start(clock.now_ms())
        return ledger

    async def accept(
        self, message: Accept, *, step: FirstStep | None = None, reason: str = "", after: Writing | None = None
    ) -> tuple[LedgerRow, bool]:
        self._maybe_seen.note(message.dedupe_keys)
        now, route, body = self._clock.now_ms(), encode(message.route), encode(message.body)
        acceptance = Acceptance(message, route, body, now, step, reason)
        return await self._thread.run(acceptance, after=await _file_of(after))

    async def advance(
        self, ledger_id: int, state: MessageState, reason: str = "", *, session_id: str | None = None
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
        reason: str = "",
        result: dict[str, Any] | None = None,
        outbox: Sequence[OutboxPart] = (),
        written: Transcript | None = None,
    ) -> bool:
        if state not in END_STATES:
            raise ValueError(f"'{state}' does not end a message: use advance")
        now, encoded = self._clock.now_ms(), None if result is None else encode(result)
        parts = [(part.part, part.channel, encode(part.payload)) for part in outbox]
        ending = Ending(ledger_id, state, reason, encoded, parts, now, follows=written is not None)
        return await self._thread.run(ending, after=await _file_of(written))

    async def post(
        self,
        message: Accept,
        outbox: Sequence[OutboxPart],
        *,
        state: MessageState = "answered",
        reason: str = "",
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        self._maybe_seen.note(message.dedupe_keys)
        now, route, body = self._clock.now_ms(), encode(message.route), encode(message.body)
        parts = [(part.part, part.channel, encode(part.payload)) for part in outbox]
        end = (state, reason, None if result is None else encode(result))
        return await self._thread.run(lambda db: _post(db, message, route, body, parts, end, now))

    async def absorb(
        self,
        into: int,
        others: Sequence[int],
        *,
        body: MessageBody,
        reason: str,
    ) -> None:
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
        await self._thread.run(lambda db: hold(db, key, message))

    async def held(self) -> list[tuple[str, bytes]]:
        statement = "SELECT key, message FROM held ORDER BY step"
        return await self._thread.run(lambda db: db.execute(statement).fetchall())

    async def let_go(self, keys: Sequence[str]) -> None:
        await self._thread.run(lambda db: let_go(db, keys))

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
        statement = "SELECT at, state, reason FROM story WHERE ledger_id = ? ORDER BY step"
        rows = await self._thread.run(lambda db: db.execute(statement, (ledger_id,)).fetchall())
        return [StateChange(at=at, state=state, reason=reason) for at, state, reason in rows]

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
            # A rare state must not make the thread read every message there ever was.
            conditions += ["state = ?", "id > (SELECT coalesce(max(id), 0) FROM messages) - ?"]
            values += [state, _LOOKED_THROUGH]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return await self._many(f"{MESSAGE}{where} ORDER BY id DESC LIMIT ?", *values, max(0, limit))

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        # A range and not LIKE, which would neither use the index nor tell capitals apart.
        statement = f"{MESSAGE} WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT ?"
        return await self._many(statement, prefix, f"{prefix}\U0010ffff", max(0, limit))

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        """Pending parts whose time has come, in the order they were due and written."""
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
        message_id: str = "",
    ) -> None:
        """``sending`` counts as one more attempt."""
        values = (state, state == "sending", next_at, error, message_id, outbox_id)
        statement = (
            "UPDATE outbox SET state = ?, attempts = attempts + ?, next_at = ?, error = ?, message_id = ? WHERE id = ?"
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
    """The file to be synced on the way to the ledger; what is not a file of ours is synced here."""
    if isinstance(written, FileTranscript):
        return written.file
    if written is None or isinstance(written, AppendFile):
        return written
    await written.sync()
    return None


# The operations, run in the ledger's thread. Those that refuse before they write cost their neighbours nothing.


def _post(
    db: sqlite3.Connection,
    message: Accept,
    route: bytes,
    body: bytes,
    parts: list[tuple[int, str, bytes]],
    end: tuple[MessageState, str, bytes | None],
    now: int,
) -> tuple[LedgerRow, bool]:
    if len({part for part, _, _ in parts}) < len(parts):
        raise ValueError(f"message {message.run_id}: two parts to deliver have the same number")
    row, new = Acceptance(message, route, body, now)(db)
    if new:
        Ending(row.id, *end, parts, now)(db)
        row = message_of(db.execute(f"{MESSAGE} WHERE id = ?", (row.id,)).fetchone())
    return row, new


def _advance(db: sqlite3.Connection, ledger_id: int, state: str, reason: str, session_id: str | None, now: int) -> None:
    if ended := end_of(db, ledger_id):
        raise ValueError(f"message {ledger_id} has ended ({ended}) and cannot become '{state}'")
    starting = state == "running"
    db.execute(
        "UPDATE messages SET state = ?, reason = ?, attempts = attempts + ?, session_id = coalesce(?, session_id),"
        " started_at = CASE WHEN ? THEN coalesce(started_at, ?) ELSE started_at END WHERE id = ?",
        (state, reason, starting, session_id, starting, now, ledger_id),
    )
    db.execute(
        "INSERT INTO story (ledger_id, step, at, state, reason)"
        " SELECT ?, coalesce(max(step), 0) + 1, ?, ?, ? FROM story WHERE ledger_id = ?",
        (ledger_id, now, state, reason, ledger_id),
    )


def _absorb(db: sqlite3.Connection, into: int, others: Sequence[int], body: bytes, reason: str, now: int) -> None:
    if ended := end_of(db, into):
        raise ValueError(f"message {into} has ended ({ended}) and can take no other in")
    (run_id,) = db.execute("SELECT run_id FROM messages WHERE id = ?", (into,)).fetchone()
    db.execute("UPDATE messages SET body = ? WHERE id = ?", (body, into))
    for other in others:
        Ending(other, "superseded", reason, encode({"answeredBy": run_id}), [], now)(db)


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
        message_id=row[12],
    )
