"""Session rows kept in the order they are listed, so that listing never sorts."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from openclaw.storage.base import SessionRow


def updated_at(entry: Any) -> int:
    """``updatedAt`` as a number whatever a person wrote there."""
    value = entry.get("updatedAt") if isinstance(entry, dict) else None
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0


def _place(row: SessionRow) -> tuple[int, str, str]:
    return -updated_at(row.entry), row.key, row.agent_id


class RowIndex:
    """Rows, newest first."""

    def __init__(self) -> None:
        self._rows: list[SessionRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def fill(self, rows: list[SessionRow]) -> None:
        """Many rows at once (when a store is opened)."""
        self._rows = sorted([*self._rows, *rows], key=_place)

    def add(self, row: SessionRow) -> None:
        insort(self._rows, row, key=_place)

    def remove(self, row: SessionRow) -> None:
        place = bisect_left(self._rows, _place(row), key=_place)
        if place < len(self._rows) and self._rows[place] is row:
            del self._rows[place]

    def rows(self) -> list[SessionRow]:
        return self._rows.copy()
