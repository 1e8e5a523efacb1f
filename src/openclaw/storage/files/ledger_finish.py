"""The ends of messages, with what is to be delivered. Run in the ledger's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from openclaw.storage import faults
from openclaw.storage.base import MessageState
from openclaw.storage.files.ledger_thread import Apart, Joint


class Ending(Joint):
    ledger_id: int
    state: MessageState
    reason: str
    result: bytes | None
    parts: list[tuple[int, str, bytes]]
    """Number, channel and payload of what is to be delivered."""
    now: int
    follows: bool = False
    """The transcript was made durable for it. (Not named: the thread holds its last operation until the next.)"""

    def __call__(self, db: sqlite3.Connection) -> bool:
        """False when it had ended before."""
        self._check()
        ended = db.execute(_update(1), [*self._values(), self.ledger_id])
        if not ended.rowcount:
            end_of(db, self.ledger_id)  # Raises when there is no such message.
            return False
        self._post(db)
        return True

    @staticmethod
    def together(db: sqlite3.Connection, operations: Sequence[Ending]) -> list[bool]:
        try:
            for one in operations:
                one._check()
        except ValueError:
            raise Apart from None
        values = [value for one in operations for value in one._values()]
        ended = db.execute(_update(len(operations)), [*values, *(one.ledger_id for one in operations)])
        if ended.rowcount != len(operations):
            raise Apart
        for one in operations:
            one._post(db)
        return [True] * len(operations)

    def _check(self) -> None:
        if self.follows:
            faults.point("sync.after")
        if len({part for part, _, _ in self.parts}) < len(self.parts):
            raise ValueError(f"message {self.ledger_id}: two parts to deliver have the same number")

    def _values(self) -> tuple[Any, ...]:
        return self.ledger_id, self.state, self.reason, self.now, self.result

    def _post(self, db: sqlite3.Connection) -> None:
        if self.parts:
            db.executemany(
                "INSERT INTO outbox (ledger_id, run_id, part, channel, route, payload, state, created_at)"
                " SELECT id, run_id, ?, ?, route, ?, 'pending', ? FROM messages WHERE id = ?",
                [(part, channel, payload, self.now, self.ledger_id) for part, channel, payload in self.parts],
            )


@lru_cache(maxsize=64)
def _update(count: int) -> str:
    ends = ", ".join(["(?, ?, ?, ?, ?)"] * count)
    return (
        "UPDATE messages SET (state, reason, ended_at, result) ="
        f" (SELECT column2, column3, column4, column5 FROM (VALUES {ends}) WHERE column1 = messages.id)"
        f" WHERE id IN ({', '.join('?' * count)}) AND ended_at IS NULL"
    )


def end_of(db: sqlite3.Connection, ledger_id: int) -> str | None:
    row = db.execute("SELECT state, ended_at FROM messages WHERE id = ?", (ledger_id,)).fetchone()
    if row is None:
        raise KeyError(f"the ledger has no message {ledger_id}")
    return row[0] if row[1] is not None else None
