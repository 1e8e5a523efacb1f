"""Session rows in the order they are listed, put in order when someone asks, and then only those that moved."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, TypeAlias

from openclaw.storage.base import SessionRow

Name: TypeAlias = tuple[str, str]
"""Agent and key."""
Place: TypeAlias = tuple[int, str, str]


def updated_at(entry: Any) -> int:
    """``updatedAt`` as a number whatever a person wrote there."""
    value = entry.get("updatedAt") if isinstance(entry, dict) else None
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0


def _place(row: SessionRow) -> Place:
    return -updated_at(row.entry), row.key, row.agent_id


class RowIndex:
    """Rows, newest first. A change costs a note; far more are made than listings are asked for."""

    def __init__(self) -> None:
        self._rows: dict[Name, SessionRow] = {}
        self._moved: set[Name] = set()
        self._placed: dict[Name, Place] = {}
        self._order: list[Place] = []
        self._listed: list[SessionRow] = []
        """In that order."""

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, name: Name) -> SessionRow | None:
        return self._rows.get(name)

    def put(self, name: Name, row: SessionRow) -> None:
        self._rows[name] = row
        self._moved.add(name)

    def remove(self, name: Name) -> None:
        self._rows.pop(name, None)
        if name in self._placed:
            self._moved.add(name)
        else:
            self._moved.discard(name)

    def rows(self) -> list[SessionRow]:
        if self._moved:
            self._put_in_order()
        return self._listed.copy()

    def _put_in_order(self) -> None:
        if len(self._moved) * 8 > len(self._rows):
            self._listed = sorted(self._rows.values(), key=_place)
            self._order = [_place(row) for row in self._listed]
            self._placed = {(place[2], place[1]): place for place in self._order}
        else:
            for name in self._moved:
                self._move(name)
        self._moved.clear()

    def _move(self, name: Name) -> None:
        if (before := self._placed.pop(name, None)) is not None:
            at = bisect_left(self._order, before)
            del self._order[at], self._listed[at]
        if (row := self._rows.get(name)) is not None:
            place = self._placed[name] = _place(row)
            at = bisect_left(self._order, place)
            self._order.insert(at, place)
            self._listed.insert(at, row)
