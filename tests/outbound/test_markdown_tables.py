"""Tables become code or lists of about their own length, however they are made."""

from __future__ import annotations

import pytest

from openclaw.outbound.markdown import FREE_GROWTH, GROWTH, TableMode, convert_tables, may_have_tables

HEAD = "| name | value |\n| --- | --- |\n"


@pytest.mark.parametrize("mode", ["code", "bullets"])
@pytest.mark.parametrize(
    "table",
    [
        HEAD + "| " + "w" * 3000 + " | b |\n" + "| a | b |\n" * 1000,
        f"| {'n' * 3000} | {'m' * 3000} |\n| - | - |\n" + "| a | b |\n" * 1000,
        "|" + "a|" * 200 + "\n|" + "-|" * 200 + "\n" + "| a\n" * 1000,
    ],
    ids=["wide cell", "long names", "missing cells"],
)
def test_a_table_does_not_grow_without_bounds(table: str, mode: TableMode) -> None:
    shown = convert_tables(table, mode)
    assert shown != table
    # The bars of a row and the names of columns without one are written beside what may grow.
    assert len(shown) <= 3 * (FREE_GROWTH + GROWTH * len(table))


@pytest.mark.parametrize("mode", ["code", "bullets"])
def test_a_table_of_many_rows_is_converted_whole(mode: TableMode) -> None:
    table = HEAD + "".join(f"| row {number} | {number} |\n" for number in range(20_000))
    shown = convert_tables(f"before\n\n{table}\nafter", mode)
    assert shown.count("\n") >= 20_000
    assert "row 19999" in shown and shown.endswith("\nafter")
    assert not may_have_tables(shown)


@pytest.mark.parametrize("cell", ["- x", "# 1", "> 5", "1. a", "-", "+", "==="])
def test_a_cell_is_a_line_of_text_whatever_it_begins_with(cell: str) -> None:
    assert f"| {cell:4} | b     |" in convert_tables(f"{HEAD}| {cell} | b |\n", "code")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HEAD, True),
        (f"```\n{HEAD}```\n", False),
        (f"~~~ text\n{HEAD}```\n", False),
        (f"```\ncode\n```\n{HEAD}", True),
        (f"- a\n\n  ```\n  code\n\n{HEAD}", True),
        ("a | b\n\nc - d", False),
    ],
)
def test_tables_are_looked_for_outside_of_code(text: str, found: bool) -> None:
    assert may_have_tables(text) == found
