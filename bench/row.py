"""One figure of the table: what was measured, what it is held against, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

BARE_PYTHON_CPU_MS = 14.0
BARE_PYTHON_WALL_MS = 16.0
"""``python -c pass`` on the machine the bars were set on, when it was quiet."""


class Speed(msgspec.Struct, frozen=True):
    """What ``python -c pass`` takes at this moment."""

    cpu_ms: float
    wall_ms: float

    def slowness(self, kind: str) -> float:
        """How many times slower than the bars' machine; never less than 1."""
        measured, quiet = (self.cpu_ms, BARE_PYTHON_CPU_MS) if kind == "cpu" else (self.wall_ms, BARE_PYTHON_WALL_MS)
        return max(1.0, measured / quiet)


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    figure: str
    """The name of the file that measures it."""
    what: str
    unit: str
    measured: float
    """The median where there are several runs."""
    low: float | None = None
    """The smallest of the runs."""
    bar: float
    """In the same unit; ``measured`` may be at most this, or must be at least this with ``at_least``."""
    at_least: bool = False
    reference: str = ""
    reference_value: float | None = None
    """The floor, measured in the same run, in the same unit."""
    kind: Literal["cpu", "wall", "size"] = "cpu"
    """Time grows on a slow or busy machine; sizes, counts and ratios do not."""
    note: str = ""
    slowness: float = 1.0
    """How much slower than the bars' machine this one was while the row was measured."""

    @property
    def ratio(self) -> float | None:
        return self.measured / self.reference_value if self.reference_value else None

    @property
    def verdict(self) -> str:
        """``ok*``: over the bar in absolute terms, within it for the speed this machine had in the same minute."""
        measured, bar = (self.bar, self.measured) if self.at_least else (self.measured, self.bar)
        if measured <= bar:
            return "ok"
        if self.kind != "size" and measured <= bar * self.slowness:
            return "ok*"
        return "short"


def summary(values: Sequence[float]) -> dict[str, float]:
    """``measured`` and ``low`` of several runs."""
    return {"measured": median(values), "low": min(values)}


HEAD = ("what", "measured", "(min)", "reference", "ratio", "bar", "")


def table(rows: Sequence[Row]) -> str:
    lines = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    written = [_line(line, widths) for line in lines]
    return "\n".join([written[0], "-" * len(written[0]), *written[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if place in (0, 3, 6) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    reference = f"{row.reference} {_number(row.reference_value)}" if row.reference_value is not None else ""
    return (
        row.what,
        f"{_number(row.measured)} {row.unit}",
        f"({_number(row.low)})" if row.low is not None else "",
        reference,
        f"{_number(row.ratio)}x" if row.ratio is not None else "",
        f"{'≥' if row.at_least else '≤'} {_number(row.bar)} {row.unit}" if row.bar or not row.at_least else "",
        f"{row.verdict}{'  ' + row.note if row.note else ''}",
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
