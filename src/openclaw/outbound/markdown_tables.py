"""Tables of Markdown, which no channel shows: they become blocks of code or lists.

The result is at most a few times as long as the table, whoever wrote it: where aligned columns or repeated names would
take more room than that, they are left out.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from openclaw.outbound.markdown import FENCE_LINE, block_parser, fence_after, inline_text, too_many_lines

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore

TableMode: TypeAlias = Literal["off", "bullets", "code"]

TABLE_CELLS = 20_000
"""Tables of more cells do not become HTML."""
GROWTH, FREE_GROWTH = 4, 4000
"""A table may become so many times as long, and so many characters longer."""


def convert_tables(markdown: str, mode: TableMode) -> str:
    """The same text with its tables as blocks of code or as lists. A text without tables is returned unchanged."""
    if mode == "off" or not may_have_tables(markdown):
        return markdown
    tables = [token for token in _table_parser().parse(markdown) if token.type == "table_open" and token.level == 0]
    if not tables:
        return markdown
    lines, done = markdown.split("\n"), 0
    pieces: list[str] = []
    for token in tables:
        first, last = token.map or (0, 0)
        header, *rows = token.meta["rows"]
        room = FREE_GROWTH + GROWTH * sum(map(len, lines[first:last]))
        pieces += lines[done:first]
        if first and lines[first - 1].strip():
            pieces.append("")
        pieces.append(_code(header, rows, room) if mode == "code" else _bullets(header, rows, room))
        done = last
        if done < len(lines) and lines[done].strip():
            pieces.append("")
    return "\n".join([*pieces, *lines[done:]])


def may_have_tables(markdown: str) -> bool:
    """Whether there may be a table. The code of fenced blocks, which converted tables are, has none."""
    return _widest_rule(markdown) > 0


def may_be_html_table(markdown: str) -> bool:
    """Whether there may be a table, and none with more cells than can be written as HTML quickly."""
    # The library fills up each row to the width of the header, so a few short lines can become a very large table.
    cells = _widest_rule(markdown) * (markdown.count("\n") + 1)
    return 0 < cells <= 500 + 2 * len(markdown) and markdown.count("|") <= TABLE_CELLS


def _widest_rule(markdown: str) -> int:
    """The most bars in a line that may be the one below a header."""
    if "|" not in markdown:
        return 0
    fence, widest = "", 0
    for line in markdown.split("\n"):
        found = FENCE_LINE.match(line) if "```" in line or "~~~" in line else None
        if found is not None and (fence or not found.start(1)):
            fence = fence_after(found, fence)
        elif found is not None:  # It may open a block or close one, which depends on what it stands in.
            return max((one.count("|") for one in markdown.split("\n") if _is_rule(one)), default=0)
        elif not fence and "-" in line and _is_rule(line):
            widest = max(widest, line.count("|"))
    return widest


def _is_rule(line: str) -> bool:
    return "-" in line and "|" in line and not line.strip("|:- \t")


# Reading


@functools.cache
def _table_parser() -> MarkdownIt:
    from openclaw.outbound.markdown_parser import table_rows

    parser = block_parser().enable("table")
    parser.block.ruler.at("table", table_rows, {"alt": ["paragraph", "reference"]})
    parser.core.ruler.at("block", _read_tables)
    return parser


def _read_tables(state: StateCore) -> None:
    """The rows of tables do not count as lines, because they are read quickly."""
    if not too_many_lines(re.sub(r"(?m)^\|.*\n", "", state.src), len(state.src)):
        state.md.block.parse(state.src, state.md, state.env, state.tokens)


# Writing


def _code(header: list[str], rows: list[list[str]], room: int) -> str:
    table = [[inline_text(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *(_width(row[column]) for row in table if column < len(row))) for column in range(len(header))]
    if (sum(widths) + 3 * len(widths)) * len(table) > room:
        widths = [3] * len(header)

    def line(cells: list[str], fill: Callable[[str, int], str]) -> str:
        return "| " + " | ".join(fill(cell, width) for cell, width in zip(cells, widths, strict=False)) + " |"

    def padded(cell: str, width: int) -> str:
        return cell + " " * (width - _width(cell))

    lines = [line(table[0], padded), line(["-" * width for width in widths], padded)]
    lines += [line(row, padded) for row in table[1:]]
    text = "\n".join(lines)
    longest = max(map(len, re.findall("`+", text)), default=0) if "`" in text else 0
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _bullets(header: list[str], rows: list[list[str]], room: int) -> str:
    names = [f"• {name or f'Column {number}'}: " for number, name in enumerate(header, 1)]
    if sum(map(len, names)) * len(rows) > room:
        names = ["• "] * len(header)
    if len(header) < 2 or not rows:
        cells = [names[0] + row[0] for row in rows if row and row[0]]
        return "\n\n".join(cells) if cells else " ".join(header)
    entries: list[str] = []
    for row in rows:
        first = row[0] if row else ""
        lines = [first if not first or first.startswith(("**", "`")) else f"**{first}**"]
        lines += [names[column] + cell for column, cell in enumerate(row) if column and cell]
        entries.append("\n".join(line for line in lines if line))
    return "\n\n".join(entry for entry in entries if entry)


def _width(text: str) -> int:
    """Columns of a terminal or of a font with fixed width."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
