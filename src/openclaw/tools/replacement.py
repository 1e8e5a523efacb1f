"""Finding the text an edit means, and replacing exactly that: every other byte of the file stays as it was."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

CONTEXT_LINES = 4
MAX_DIFF_LINES = 400
_FUZZY = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)
"""One character for one, so that offsets stay equal."""
_TRAILING_SPACE = re.compile(r"[^\S\n]+(?=\n|\Z)")


class Span(msgspec.Struct, frozen=True):
    start: int
    end: int


class NotFound(msgspec.Struct, frozen=True):
    pass


class Ambiguous(msgspec.Struct, frozen=True):
    count: int


class _View(msgspec.Struct, frozen=True):
    """A text with some characters left out, and where each run of kept characters began in the original."""

    text: str
    starts: list[int]
    """Offsets in ``text`` at which a run begins."""
    shifts: list[int]
    """What to add, from that offset on, to get the offset in the original."""

    def original(self, offset: int) -> int:
        return offset + self.shifts[bisect_right(self.starts, offset) - 1]


def locate(text: str, old: str) -> Span | NotFound | Ambiguous:
    """Where ``old`` stands: exactly, else forgiving line ends, typographic characters and trailing blanks."""
    lines = _without(text, [match.span() for match in re.finditer(r"\r(?=\n)", text)])
    old = old.replace("\r\n", "\n")
    found = _find(lines.text, old)
    located = _locate_fuzzily(lines, old) if isinstance(found, NotFound) else found
    if isinstance(found, Span):
        located = _span(lines, found)
    return _with_whole_line_end(text, located) if isinstance(located, Span) else located


def _with_whole_line_end(text: str, span: Span) -> Span:
    """A passage that begins with a line end begins with all of it."""
    cut = text.startswith("\n", span.start) and span.start > 0 and text[span.start - 1] == "\r"
    return Span(span.start - 1, span.end) if cut else span


def replace(text: str, span: Span, new: str) -> str:
    """``new`` takes the line ends of the file."""
    new = new.replace("\r\n", "\n")
    if uses_crlf(text):
        new = new.replace("\n", "\r\n")
    return text[: span.start] + new + text[span.end :]


def uses_crlf(text: str) -> bool:
    """The first line end decides."""
    newline = text.find("\n")
    return newline > 0 and text[newline - 1] == "\r"


def _locate_fuzzily(lines: _View, old: str) -> Span | NotFound | Ambiguous:
    straight = lines.text.translate(_FUZZY)
    trimmed = _without(straight, [match.span() for match in _TRAILING_SPACE.finditer(straight)])
    old = old.translate(_FUZZY)
    body, newline, last = old.rpartition("\n")
    # A blank at the very end may stand in the middle of a line of the file, where it counts.
    found = _find(trimmed.text, _TRAILING_SPACE.sub("", body + newline) + last)
    if isinstance(found, NotFound) and (needle := _TRAILING_SPACE.sub("", old)):
        found = _find(trimmed.text, needle)
    if not isinstance(found, Span):
        return found
    start, end = _inner(trimmed, found)
    if old != old.rstrip(" \t") and (blanks := _TRAILING_SPACE.match(straight, end)):
        end = blanks.end()
    return _span(lines, Span(start, end))


def _find(text: str, needle: str) -> Span | NotFound | Ambiguous:
    start = text.find(needle) if needle else -1
    if start < 0:
        return NotFound()
    if text.find(needle, start + 1) >= 0:
        return Ambiguous(max(2, text.count(needle)))
    return Span(start, start + len(needle))


def _span(view: _View, span: Span) -> Span:
    return Span(*_inner(view, span))


def _inner(view: _View, span: Span) -> tuple[int, int]:
    # The end is measured at the last character inside, so that nothing left out after it is swallowed.
    return view.original(span.start), view.original(span.end - 1) + 1


def _without(text: str, gaps: list[tuple[int, int]]) -> _View:
    kept: list[str] = []
    starts, shifts = [0], [0]
    position = removed = 0
    for start, end in gaps:
        kept.append(text[position:start])
        removed += end - start
        starts.append(end - removed)
        shifts.append(removed)
        position = end
    kept.append(text[position:])
    return _View("".join(kept), starts, shifts)


class Diff(msgspec.Struct, frozen=True):
    text: str
    first_changed_line: int


def describe(old: str, new: str, span: Span) -> Diff:
    """A numbered diff of the changed lines with some context; only the neighbourhood of ``span`` is compared."""
    first = old.count("\n", 0, span.start)
    old_lines, new_lines = _split(old), _split(new)
    tail = len(old_lines) - 1 - old.count("\n", 0, span.end)
    before, after = old_lines[first : len(old_lines) - tail], new_lines[first : len(new_lines) - tail]
    width = len(str(max(len(old_lines), len(new_lines))))
    rows = [f" {number + 1:>{width}} {old_lines[number]}" for number in range(max(0, first - CONTEXT_LINES), first)]
    first_changed = 0
    for tag, a, b, c, d in _operations(before, after):
        if tag == "equal":
            rows += [f" {first + number + 1:>{width}} {before[number]}" for number in range(a, b)]
            continue
        first_changed = first_changed or first + c + 1
        rows += [f"-{first + number + 1:>{width}} {before[number]}" for number in range(a, b)]
        rows += [f"+{first + number + 1:>{width}} {after[number]}" for number in range(c, d)]
    end = first + len(before)
    rows += [
        f" {number + 1:>{width}} {old_lines[number]}" for number in range(end, min(len(old_lines), end + CONTEXT_LINES))
    ]
    if len(rows) > MAX_DIFF_LINES:
        rows = [*rows[:MAX_DIFF_LINES], f" {'':>{width}} ... {len(rows) - MAX_DIFF_LINES} more lines"]
    return Diff("\n".join(rows), first_changed or first + 1)


def _operations(before: list[str], after: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    if len(before) + len(after) > MAX_DIFF_LINES:
        return [("replace", 0, len(before), 0, len(after))]
    return difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")
