"""Session rows kept in the order they are listed, so that listing never sorts."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, TypeAlias

from openclaw.storage.base import SessionRow

Place: TypeAlias = tuple[int, str, str]


def updated_at(entry: Any) -> int:
    """``updatedAt`` as a number whatever a person wrote there."""
    value = entry.get("updatedAt") if isinstance(entry, dict) else None
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0


def _place(row: SessionRow) -> Place:
    return -updated_at(row.entry), row.key, row.agent_id


class RowIndex:
    """Rows, newest first. Their places are kept beside them, so that finding one compares and computes nothing."""

    def __init__(self) -> None:
        self._rows: list[SessionRow] = []
        self._places: list[Place] = []

    def __len__(self) -> int:
        return len(self._rows)

    def fill(self, rows: list[SessionRow]) -> None:
        """Many rows at once (when a store is opened)."""
        self._rows = sorted([*self._rows, *rows], key=_place)
        self._places = [_place(row) for row in self._rows]

    def add(self, row: SessionRow) -> None:
        own = _place(row)
        place = bisect_left(self._places, own)
        self._places.insert(place, own)
        self._rows.insert(place, row)

    def remove(self, row: SessionRow) -> None:
        place = bisect_left(self._places, _place(row))
        if place < len(self._rows) and self._rows[place] is row:
            del self._rows[place], self._places[place]

    def rows(self) -> list[SessionRow]:
        return self._rows.copy()
