"""Messages coming into the ledger. Run in the ledger's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from openclaw.storage.base import Accept, FirstStep, LedgerRow, MessageBody
from openclaw.storage.files.ledger_seen import remember_seen
from openclaw.storage.files.ledger_thread import Apart, Joint

MESSAGE = (
    "SELECT id, run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, state, reason, attempts,"
    " accepted_at, started_at, ended_at, result FROM messages"
)


class Acceptance(Joint):
    """A message to be written down, with its first step if that is known already."""

    message: Accept
    route: bytes
    body: bytes
    now: int
    step: FirstStep | None = None
    reason: str = ""

    def __call__(self, db: sqlite3.Connection) -> tuple[LedgerRow, bool]:
        message = self.message
        inserted = db.execute(_insert(1), self._values())
        if message.dedupe_keys:
            remember_seen(db, message.dedupe_keys, self.now)
        if not inserted.rowcount:
            return _known(db, message), False
        return self._row(inserted.lastrowid or 0), True

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[Acceptance]) -> list[tuple[LedgerRow, bool]]:
        values = [value for one in operations for value in one._values()]
        inserted = db.execute(_insert(len(operations)), values)
        if inserted.rowcount != len(operations):
            raise Apart
        for one in operations:
            if one.message.dedupe_keys:
                remember_seen(db, one.message.dedupe_keys, one.now)
        first = (inserted.lastrowid or 0) - len(operations) + 1
        return [(one._row(ledger_id), True) for ledger_id, one in enumerate(operations, start=first)]

    def _values(self) -> tuple[Any, ...]:
        begun = self.step == "running"
        state = (self.step or "accepted", self.reason, begun, self.now if begun else None)
        return (*self._told(), self.now, *state)

    def _told(self) -> tuple[Any, ...]:
        told = self.message
        names = (told.run_id, told.dedupe_key, told.agent_id, told.session_key, told.session_id)
        return (*names, told.source, self.route, self.body)

    def _row(self, ledger_id: int) -> LedgerRow:
        return message_of((ledger_id, *self._told(), "accepted", "", 0, self.now, None, None, None))


@lru_cache(maxsize=64)
def _insert(count: int) -> str:
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)
    return (
        "INSERT INTO messages (run_id, dedupe_key, agent_id, session_key, session_id, source, route, body, accepted_at,"
        f" state, reason, attempts, started_at) VALUES {rows} ON CONFLICT DO NOTHING"
    )


def _known(db: sqlite3.Connection, message: Accept) -> LedgerRow:
    # The index covers only real keys; saying so lets SQLite use it.
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
        reason=row[10],
        attempts=row[11],
        accepted_at=row[12],
        started_at=row[13],
        ended_at=row[14],
        result=None if row[15] is None else _object(row[15]),
    )


_decode_body = msgspec.json.Decoder(MessageBody).decode


def _body(raw: bytes) -> MessageBody:
    """An empty body when it cannot be read: one damaged message must not keep the others from being read."""
    try:
        return _decode_body(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return MessageBody()


def _object(raw: bytes) -> dict[str, Any] | None:
    """None when a damaged page left nothing readable: one such message must not keep the others from being read."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return None
