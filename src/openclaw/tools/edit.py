"""The ``edit`` tool replaces passages of a file, all of them or none. Every other byte of the file stays as it is."""

from __future__ import annotations

import asyncio
import difflib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import Annotated

import msgspec
from msgspec import Meta

from openclaw.path_opener import PathOpener
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.files import encode_text, explain_missing

MAX_EDIT_BYTES = 20 * 1024 * 1024
MAX_EDITS = 100
MAX_MATCHES = 100_000
"""A passage that occurs more often is not replaced."""
CONTEXT_LINES = 4
MAX_DIFF_LINES = 400
SHOWN_CONTEXT = 2
"""Unchanged lines around a change that the model sees. Clients get ``CONTEXT_LINES``."""
SHOWN_DIFF_LINES = 60
SHOWN_LINE_CHARS = 200
NAMED_LINES = 10
"""How many places of an ambiguous passage are named."""
COMPARED_LINES = 20_000
"""A nearest passage is looked for in so many lines of a file, and in no others."""
COMPARED_CHARS = 200
SAME_LINES = 500
"""So many places of a line that occurs often, such as a brace, are compared."""
SHOWN_NEAREST = 20
_CANDIDATES = 8
BOM = "\ufeff"
_FUZZY = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)
"""Each character is replaced by one character, so that offsets stay the same."""
_TRAILING_SPACE = re.compile(r"(?<![^\S\n])[^\S\n]+(?=\n|\Z)")
"""It begins only where blanks begin, because a long run of blanks would otherwise be read from each of them."""
_BLANKS_TO_END = re.compile(r"[^\S\n]+(?=\n|\Z)")
_INDENT = re.compile(r"[ \t]*")


class Replacement(ToolArguments):
    old_text: Annotated[str, Meta(description="The passage as it is now")]
    new_text: Annotated[str, Meta(description="What to put in its place")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence")] = False


class EditArguments(ToolArguments):
    path: Annotated[str, Meta(description="File to edit, relative to the workspace or absolute")]
    old_text: Annotated[str, Meta(description="The passage as it is now")] | None = None
    new_text: Annotated[str, Meta(description="What to put in its place")] | None = None
    replace_all: Annotated[bool, Meta(description="Replace every occurrence of oldText")] = False
    edits: (
        Annotated[list[Replacement], Meta(description="Several replacements instead; applied all or none")] | None
    ) = None


class EditTool(RecordTool[EditArguments]):
    name = "edit"
    summary = "Make precise edits to files"
    description = (
        "Replace passages of a file. Each oldText must occur exactly once in the file as it is now, unless replaceAll "
        "is true; add surrounding lines to make it unique. Put several changes of one file into edits; they must not "
        "overlap. An empty newText deletes the passage."
    )

    examples = ({"path": "notes.md", "edits": [{"oldText": "draft", "newText": "final"}]},)

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def execute(self, arguments: EditArguments, context: ToolContext) -> ToolResult:
        path, replacements = required_text(arguments.path, "path"), _replacements(arguments)
        change = await asyncio.to_thread(self._edit, context.guarded(self._opener), path, replacements)
        details = {"diff": change.diff(CONTEXT_LINES, MAX_DIFF_LINES), "firstChangedLine": change.first_changed_line}
        return text_result(f"Edited {path} ({change.summary}).\n{change.shown()}", details)

    def _edit(self, opener: PathOpener, path: str, replacements: Sequence[Replacement]) -> EditedText:
        with opener.editing(path):
            bom, text = read_text(opener, path)
            change = edit_text(text, replacements, path)
            with opener.open_write_atomic(path) as file:
                file.write(encode_text(bom + change.after))
        return change


def _replacements(arguments: EditArguments) -> list[Replacement]:
    """Return the replacements of a call in either form. Raises ``ToolError`` if it has none."""
    single = arguments.old_text is not None or arguments.new_text is not None
    if arguments.edits:
        if single:
            raise ToolError("Give either oldText and newText or edits, not both; nothing was changed")
        if len(arguments.edits) > MAX_EDITS:
            raise ToolError(f"edits has {len(arguments.edits)} replacements, and {MAX_EDITS} is the most; split them")
        replacements = arguments.edits
    elif arguments.old_text is None or arguments.new_text is None:
        name = (
            "newText (newText or new_string)" if arguments.old_text is not None else "oldText (oldText or old_string)"
        )
        raise ToolError(
            f"Missing required parameter: {name}. Give oldText and newText, or edits, for example "
            '{"path": "notes.md", "edits": [{"oldText": "draft", "newText": "final"}]}'
        )
    else:
        replacements = [Replacement(arguments.old_text, arguments.new_text, arguments.replace_all)]
    for number, replacement in enumerate(replacements):
        if not replacement.old_text:
            name = _name(number, replacements)
            raise ToolError(f"{name} is empty; give the passage to replace, or use write for a whole file")
    return replacements


def _name(number: int, replacements: Sequence[Replacement]) -> str:
    return f"edits[{number}].oldText" if len(replacements) > 1 else "oldText"


def read_text(opener: PathOpener, path: str) -> tuple[str, str]:
    """Return the byte order mark of a text file, if it has one, and its text. Raises ``ToolError``."""
    with explain_missing(opener, path, "File not found"), opener.open_read(path) as file:
        data = file.read(MAX_EDIT_BYTES + 1)
    if len(data) > MAX_EDIT_BYTES:
        raise ToolError(f"{path} has more than {MAX_EDIT_BYTES} bytes, too large to edit; use exec (sed, a script)")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{path} is not UTF-8 text (byte {error.start}); an edit would damage it, use exec instead"
        ) from None
    return (BOM, text[1:]) if text.startswith(BOM) else ("", text)


def edit_text(text: str, replacements: Sequence[Replacement], path: str) -> EditedText:
    """Apply all replacements to the text as it is. Raises ``ToolError`` for the model if one is not possible."""
    problems: list[str] = []
    pieces: list[tuple[TextSpan, str, int]] = []
    for number, replacement in enumerate(replacements):
        name, old = _name(number, replacements), replacement.old_text.removeprefix(BOM)
        match = locate(text, old, every=replacement.replace_all)
        if not match.spans:
            problems.append(f"Could not find {name} in {path}. {nearest_passage(text, old)}")
        elif len(match.spans) > MAX_MATCHES:
            problems.append(f"{name} occurs more than {MAX_MATCHES} times in {path}; use exec (sed, a script)")
        elif len(match.spans) > 1 and not replacement.replace_all:
            problems.append(
                f"Found {len(match.spans)} occurrences of {name} in {path}, at lines {_lines_of(text, match.spans)}. "
                "Add surrounding lines so that it is unique, or set replaceAll."
            )
        else:
            new = replacement.new_text
            pieces += ((span, match.text_for(index, new), number) for index, span in enumerate(match.spans))
    pieces.sort(key=lambda piece: (piece[0].start, piece[0].end))
    for (first, _, one), (second, _, other) in pairwise(pieces):
        if not problems and second.start < first.end:
            raise ToolError(
                f"edits[{one}] and edits[{other}] overlap at line {_line_at(text, second.start)} of {path}. Join them "
                "into one; nothing was changed."
            )
    if problems:
        nothing = "\nNone of the edits was applied." if len(replacements) > 1 else ""
        raise ToolError("\n".join(problems) + nothing)
    change = EditedText.of(text, [(span, _with_line_ends(text, new)) for span, new, _ in pieces])
    if change.after == text:
        raise ToolError(f"No changes made to {path}: newText is what the file already has there.")
    return change


def _with_line_ends(text: str, new: str) -> str:
    """Return the new text with the line ends of the file."""
    new = new.replace("\r\n", "\n")
    first_line, newline, _ = text.partition("\n")
    return new.replace("\n", "\r\n") if newline and first_line.endswith("\r") else new


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _lines_of(text: str, spans: Sequence[TextSpan]) -> str:
    lines = list(map(str, dict.fromkeys(_line_at(text, span.start) for span in spans[:NAMED_LINES])))
    if len(spans) > NAMED_LINES:
        return f"{', '.join(lines)} and {len(spans) - NAMED_LINES} more"
    return " and ".join(filter(None, (", ".join(lines[:-1]), lines[-1])))


# Finding the passage of an edit


class TextSpan(msgspec.Struct, frozen=True):
    start: int
    end: int


class Match(msgspec.Struct, frozen=True):
    """Where a passage occurs in a text, and how what replaces it is adapted there."""

    spans: Sequence[TextSpan] = ()
    indents: Sequence[Sequence[tuple[str, str]]] = ()
    """For each span, the indentation of each line as the request has it and as the file has it."""
    drop_newline: bool = False
    """The passage was asked for with a line end, and the file ends without one."""

    def text_for(self, index: int, new: str) -> str:
        """Return what replaces the span with this index."""
        if self.indents:
            return reindented(new, self.indents[index])
        return new.removesuffix("\n").removesuffix("\r") if self.drop_newline else new


class _View(msgspec.Struct, frozen=True):
    """A text with some characters left out, and the place of each run of kept characters in the original."""

    text: str
    starts: list[int]
    """Offsets in ``text`` at which a run begins."""
    shifts: list[int]
    """What to add to offsets of that run to get the offset in the original."""

    def original_span(self, span: TextSpan) -> TextSpan:
        # The end is taken from the last character inside, so that characters left out after it are not included.
        return TextSpan(self._original(span.start), self._original(span.end - 1) + 1)

    def _original(self, offset: int) -> int:
        return offset + self.shifts[bisect_right(self.starts, offset) - 1]


def locate(text: str, old: str, *, every: bool = False) -> Match:
    """Find ``old`` in the text, with any line ends.

    If need be, typographic characters, trailing blanks, a missing line end of the file and at last the indentation of
    whole lines may differ. With ``every`` the spans do not overlap.
    """
    lines = _without(text, [match.span() for match in re.finditer(r"\r(?=\n)", text)])
    old = old.replace("\r\n", "\n")
    spans = [lines.original_span(span) for span in _find(lines.text, old, every)]
    spans = spans or [lines.original_span(span) for span in _locate_fuzzily(lines.text, old, every)]
    if spans:
        return Match([_with_line_end(text, span) for span in spans])
    if (body := old.removesuffix("\n")) != old and body and lines.text.endswith(body):
        last = TextSpan(len(lines.text) - len(body), len(lines.text))
        if "\n" in body or last.start == 0 or lines.text[last.start - 1] == "\n":
            return Match([lines.original_span(last)], drop_newline=True)
    spans, indents = _locate_indented(lines.text, old, every)
    return Match([lines.original_span(span) for span in spans], indents)


def _with_line_end(text: str, span: TextSpan) -> TextSpan:
    # If the passage begins with the end of a line, it includes the whole line end.
    begins_inside = text.startswith("\r\n", max(0, span.start - 1)) and text[span.start : span.start + 1] == "\n"
    return TextSpan(span.start - 1, span.end) if begins_inside else span


def _locate_fuzzily(text: str, old: str, every: bool) -> list[TextSpan]:
    straight = text.translate(_FUZZY)
    trimmed = _without(straight, [match.span() for match in _TRAILING_SPACE.finditer(straight)])
    old = old.translate(_FUZZY)
    body, newline, last = old.rpartition("\n")
    # A blank at the very end of ``old`` may be inside a line of the file, where blanks count.
    spans = _find(trimmed.text, _TRAILING_SPACE.sub("", body + newline) + last, every)
    if not spans and (needle := _TRAILING_SPACE.sub("", old)):
        spans = _find(trimmed.text, needle, every)
    ends_blank = old != old.rstrip(" \t")
    located: list[TextSpan] = []
    for span in map(trimmed.original_span, spans):
        blanks = _BLANKS_TO_END.match(straight, span.end) if ends_blank else None
        located.append(TextSpan(span.start, blanks.end()) if blanks else span)
    return located


def _locate_indented(text: str, old: str, every: bool) -> tuple[list[TextSpan], list[list[tuple[str, str]]]]:
    """Find whole lines that differ from ``old`` in their indentation only."""
    body = old.removesuffix("\n")
    wanted = body.split("\n")
    stripped = [line.translate(_FUZZY).strip() for line in wanted]
    if not any(stripped):
        return [], []
    lines = text.split("\n")
    bare = [line.translate(_FUZZY).strip() for line in lines]
    anchor = max(range(len(stripped)), key=lambda index: len(stripped[index]))
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    spans: list[TextSpan] = []
    indents: list[list[tuple[str, str]]] = []
    free = 0
    for place in (index - anchor for index, line in enumerate(bare) if line == stripped[anchor]):
        end = place + len(wanted)
        if place < free or bare[place:end] != stripped or len(spans) > MAX_MATCHES:
            continue
        last_end = offsets[end] - 1 if body == old else offsets[end]
        if last_end > len(text):
            continue
        spans.append(TextSpan(offsets[place], last_end))
        indents.append(
            [(_indent(one), _indent(other)) for one, other in zip(wanted, lines[place:end], strict=True) if one.strip()]
        )
        free = end if every else 0
    return spans, indents


def _indent(line: str) -> str:
    match = _INDENT.match(line)
    return match.group() if match else ""


def reindented(new: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the text with the indentation of the file. ``pairs`` has both forms of the lines that were replaced."""
    known = dict(reversed(pairs))
    lines = new.replace("\r\n", "\n").split("\n")
    theirs = _unit([old for old, _ in pairs] + [_indent(line) for line in lines if line.strip()])
    ours = _unit([in_file for _, in_file in pairs]) or theirs
    by_length = sorted(known.items(), key=lambda pair: len(pair[0]))

    def in_file(indent: str) -> str:
        if indent in known:
            return known[indent]
        base, base_in_file = next(
            ((old, own) for old, own in reversed(by_length) if indent.startswith(old)), by_length[0]
        )
        if indent.startswith(base):
            rest = indent[len(base) :]
            return base_in_file + (
                ours * (len(rest) // len(theirs)) if theirs and not len(rest) % len(theirs) else rest
            )
        levels = (len(base) - len(indent)) // len(theirs or " ")
        return base_in_file[: max(0, len(base_in_file) - levels * len(ours or " "))]

    return "\n".join(in_file(_indent(line)) + line[len(_indent(line)) :] if line.strip() else line for line in lines)


def _unit(indents: Sequence[str]) -> str:
    """Return what one level of indentation is made of, or an empty text if no line is indented."""
    if any("\t" in indent for indent in indents):
        return "\t"
    steps = [abs(len(one) - len(other)) for one, other in pairwise(indents)]
    return " " * (gcd(*steps) or gcd(*map(len, indents)))


def _find(text: str, needle: str, every: bool) -> list[TextSpan]:
    spans: list[TextSpan] = []
    start = text.find(needle) if needle else -1
    while start >= 0 and len(spans) <= MAX_MATCHES:
        spans.append(TextSpan(start, start + len(needle)))
        start = text.find(needle, start + (len(needle) if every else 1))
    return spans


def _without(text: str, gaps: list[tuple[int, int]]) -> _View:
    parts: list[str] = []
    starts, shifts = [0], [0]
    position = removed = 0
    for start, end in gaps:
        parts.append(text[position:start])
        removed += end - start
        starts.append(end - removed)
        shifts.append(removed)
        position = end
    parts.append(text[position:])
    return _View("".join(parts), starts, shifts)


# What is shown of a passage that was not found


def nearest_passage(text: str, old: str) -> str:
    """Describe the lines of the text that resemble ``old`` most, and where the first difference is."""
    wanted = _split(old.removesuffix("\n"))
    lines = _split(text)[:COMPARED_LINES]
    place = _nearest(lines, wanted)
    if place is None:
        return "No passage resembles it. oldText must match the file, blanks and line breaks included."
    found = lines[place : place + len(wanted)]
    last = place + len(found)
    shown = [f"{place + index + 1}| {_clipped(line)}" for index, line in enumerate(found[:SHOWN_NEAREST])]
    if len(found) > SHOWN_NEAREST:
        shown.append(f"... {len(found) - SHOWN_NEAREST} more lines")
    where = f"line {last}" if len(found) == 1 else f"lines {place + 1}-{last}"
    head = f"The nearest passage is {where}:\n" + "\n".join(shown)
    for index, line in enumerate(wanted):
        other = found[index] if index < len(found) else None
        if other is None:
            return f"{head}\nFirst difference: the file ends before {_quoted(line, 0)}."
        if line != other:
            column = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), -1)
            column = min(len(line), len(other)) if column < 0 else column
            return (
                f"{head}\nFirst difference: line {place + index + 1}, column {column + 1}: "
                f"oldText has {_quoted(line, column)}, the file has {_quoted(other, column)}."
            )
    return head


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return the index of the first line of the passage that resembles ``wanted`` most, or None."""
    bare = [line[:COMPARED_CHARS].strip() for line in lines]
    target = [line[:COMPARED_CHARS].strip() for line in wanted[:COMPARED_CHARS]]
    votes: Counter[int] = Counter()
    places: dict[str, list[int]] = {}
    for index, line in enumerate(bare):
        if line:
            places.setdefault(line, []).append(index)
    for offset, line in enumerate(target):
        for index in places.get(line, ())[:SAME_LINES]:
            if index >= offset:
                votes[index - offset] += len(line)
    if not votes:
        # No line is the same: the line that resembles the longest one most decides.
        offset = max(range(len(target)), key=lambda index: len(target[index]))
        close = difflib.get_close_matches(target[offset], places, n=_CANDIDATES, cutoff=0.6) if target[offset] else []
        votes.update({max(0, index - offset): 1 for line in close for index in places[line][:1]})
    best = [place for place, _ in votes.most_common(_CANDIDATES)]
    joined = "\n".join(target[:SHOWN_NEAREST])

    def likeness(place: int) -> float:
        passage = "\n".join(bare[place : place + min(len(target), SHOWN_NEAREST)])
        return difflib.SequenceMatcher(None, joined, passage, autojunk=True).ratio()

    return max(best, key=likeness, default=None)


def _quoted(line: str, column: int) -> str:
    start = max(0, column - 30)
    end = column + 50
    return f"{'…' if start else ''}{line[start:end]!r}{'…' if end < len(line) else ''}"


def _clipped(line: str) -> str:
    if len(line) <= SHOWN_LINE_CHARS:
        return line
    return f"{line[:SHOWN_LINE_CHARS]}… ({len(line) - SHOWN_LINE_CHARS} more characters)"


# What changed


class EditedText(msgspec.Struct, frozen=True):
    """A text before and after its passages were replaced."""

    before: str
    after: str
    spans: Sequence[tuple[TextSpan, TextSpan]]
    """Each replaced passage, before and after, in their order."""

    @classmethod
    def of(cls, text: str, pieces: Sequence[tuple[TextSpan, str]]) -> EditedText:
        """Replace the passages, which are in order and do not overlap."""
        parts: list[str] = []
        spans: list[tuple[TextSpan, TextSpan]] = []
        position = shift = 0
        for span, new in pieces:
            parts += (text[position : span.start], new)
            start = span.start + shift
            spans.append((span, TextSpan(start, start + len(new))))
            shift += len(new) - (span.end - span.start)
            position = span.end
        parts.append(text[position:])
        return cls(text, "".join(parts), spans)

    @property
    def summary(self) -> str:
        return "1 replacement" if len(self.spans) == 1 else f"{len(self.spans)} replacements"

    @property
    def first_changed_line(self) -> int:
        hunk = next(iter(self._hunks(0)))
        same = (n for n, (a, b) in enumerate(zip(hunk.before, hunk.after, strict=False)) if a != b)
        return hunk.new_first + next(same, min(len(hunk.before), len(hunk.after))) + 1

    def shown(self) -> str:
        """A short diff for the model."""
        return "\n".join(map(_clipped, self.diff(SHOWN_CONTEXT, SHOWN_DIFF_LINES).split("\n")))

    def diff(self, context: int, most_lines: int) -> str:
        """A numbered diff of the changed lines. Only the lines around the replaced passages are compared."""
        old_lines = _split(self.before)
        width = len(str(max(len(old_lines), self.after.count("\n") + 1)))
        rows: list[str] = []
        for number, hunk in enumerate(self._hunks(context)):
            if number:
                rows.append(f" {'':>{width}} ...")
            rows += hunk.rows(old_lines, context, width)
        if len(rows) > most_lines:
            rows = [*rows[:most_lines], f" {'':>{width}} ... {len(rows) - most_lines} more lines of this diff"]
        return "\n".join(rows)

    def _hunks(self, context: int) -> Iterator[_Hunk]:
        """The changed lines. Passages with fewer than twice ``context`` lines between them are one hunk."""
        old_lines, new_lines = _split(self.before), _split(self.after)
        old_starts, new_starts = _line_starts(self.before), _line_starts(self.after)
        ranges: list[list[int]] = []
        for old, new in self.spans:
            first, last = _lines_at(old_starts, old)
            new_first, new_last = _lines_at(new_starts, new)
            if ranges and first <= ranges[-1][1] + 2 * context:
                ranges[-1][1], ranges[-1][3] = last, new_last
            else:
                ranges.append([first, last, new_first, new_last])
        for first, last, new_first, new_last in ranges:
            yield _Hunk(first, old_lines[first : last + 1], new_first, new_lines[new_first : new_last + 1])


class _Hunk(msgspec.Struct, frozen=True):
    first: int
    before: list[str]
    new_first: int
    after: list[str]

    def rows(self, old_lines: Sequence[str], context: int, width: int) -> list[str]:
        first, before, after = self.first, self.before, self.after
        total = len(old_lines) - (old_lines[-1] == "")  # No line follows the last line end.
        start, end = max(0, first - context), min(total, first + len(before) + context)
        rows = [f" {number + 1:>{width}} {old_lines[number]}" for number in range(start, first)]
        operations: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(before), 0, len(after))]
        if len(before) + len(after) <= MAX_DIFF_LINES:
            operations = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        for tag, a, b, c, d in operations:
            if tag == "equal":
                rows += [f" {first + number + 1:>{width}} {before[number]}" for number in range(a, b)]
                continue
            rows += [f"-{first + number + 1:>{width}} {before[number]}" for number in range(a, b)]
            rows += [f"+{self.new_first + number + 1:>{width}} {after[number]}" for number in range(c, d)]
        rows += [f" {number + 1:>{width}} {old_lines[number]}" for number in range(first + len(before), end)]
        return rows


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _lines_at(starts: Sequence[int], span: TextSpan) -> tuple[int, int]:
    """Return the indexes of the first and the last line that a span touches."""
    return bisect_right(starts, span.start) - 1, bisect_right(starts, span.end) - 1


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")
