"""The file tools: ``read`` shows part of a file or a picture, ``write`` writes a file, ``edit`` replaces a passage."""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from openclaw.messages import TextBlock, UserBlock
from openclaw.path_opener import FileMissing, PathOpener
from openclaw.pictures import MAX_SOURCE_BYTES, ImageProblem, fit_image, sniff_image
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result

MAX_PAGE_LINES = 2000
MAX_PAGE_BYTES = 50 * 1024
MAX_EDIT_BYTES = 20 * 1024 * 1024
CONTEXT_LINES = 4
MAX_DIFF_LINES = 400
_CHUNK = 1024 * 1024
_HEAD = 8192
_BOM = "\ufeff"
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


class FilePage(msgspec.Struct, kw_only=True):
    """Some whole lines of a file, and the size of the file."""

    lines: list[bytes]
    first: int
    """1-based number of the first line."""
    total_lines: int
    total_bytes: int
    cut_by: str | None = None
    """``lines`` or ``bytes`` if one of our limits ended the page."""
    oversized: int = 0
    """Size of the first line if it alone is too large to show."""

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


class ReadArguments(ToolArguments):
    path: Annotated[str, Meta(description="File to read, relative to the workspace or absolute")]
    offset: Annotated[int, Meta(description="Line to start at, from 1")] = 1
    limit: Annotated[int, Meta(ge=1, description="Most lines to return")] | None = None


class ReadTool(RecordTool[ReadArguments]):
    name = "read"
    parallel = True
    summary = "Read file contents"
    description = (
        "Read a file. Text comes in pages of at most 2000 lines or 50KB; continue with offset until the end. "
        "Pictures (jpg, png, gif, webp) are shown as images."
    )

    def __init__(self, opener: PathOpener) -> None:
        self.opener = opener

    async def execute(self, arguments: ReadArguments, context: ToolContext) -> ToolResult:
        path = required_text(arguments.path, "path")
        offset, limit = arguments.offset or 1, arguments.limit
        if offset < 1:
            raise ToolError(f"offset must be 1 or more, not {offset}")
        stop = threading.Event()
        try:
            opener = context.guarded(self.opener)
            return await asyncio.to_thread(self._read, opener, path, offset, limit, context.model_sees_images, stop)
        finally:
            stop.set()

    def _read(
        self, opener: PathOpener, path: str, offset: int, limit: int | None, sees: bool, stop: threading.Event
    ) -> ToolResult:
        with opener.open_read(path) as file:
            head = file.read(_HEAD)
            file.seek(0)
            if mime_type := sniff_image(head):
                return _picture(file.read(MAX_SOURCE_BYTES + 1), mime_type, sees)
            if b"\0" in head:
                raise ToolError(f"{path} is a binary file; look at it with exec, e.g. file or xxd | head")
            page = read_page(file, offset, limit, stop)
        return _text(page, path)


def read_page(file: BinaryIO, offset: int, limit: int | None, stop: threading.Event | None = None) -> FilePage:
    """Reads the file once as a stream and keeps only the page, however large the file or a line is."""
    most_lines = MAX_PAGE_LINES if limit is None else min(limit, MAX_PAGE_LINES)
    page = FilePage(lines=[], first=offset, total_lines=1, total_bytes=0)
    collecting, line, line_size, used = True, b"", 0, 0

    def end_line() -> None:
        nonlocal collecting, line, line_size, used
        if collecting and page.total_lines >= offset:
            if len(page.lines) == most_lines:
                collecting = False
                page.cut_by = "lines" if limit is None or limit > most_lines else None
            elif used + line_size + bool(page.lines) > MAX_PAGE_BYTES:
                collecting = False
                page.cut_by = "bytes"
                page.oversized = 0 if page.lines else line_size
            else:
                used += line_size + bool(page.lines)
                page.lines.append(line)
        line, line_size = b"", 0

    while chunk := file.read(_CHUNK):
        if stop is not None and stop.is_set():
            raise ToolError("Reading was stopped")
        page.total_bytes += len(chunk)
        if page.total_lines + (newlines := chunk.count(b"\n")) < offset:
            page.total_lines += newlines
            line, line_size = b"", 0
            continue
        start = 0
        while (newline := chunk.find(b"\n", start)) >= 0:
            if not collecting:
                page.total_lines += chunk.count(b"\n", start)
                start = chunk.rfind(b"\n") + 1
                break
            line_size += newline - start
            if line_size <= MAX_PAGE_BYTES:
                line += chunk[start:newline]
            end_line()
            page.total_lines += 1
            start = newline + 1
        line_size += len(chunk) - start
        if collecting and line_size <= MAX_PAGE_BYTES:
            line += chunk[start:]
    end_line()
    if offset > page.total_lines:
        raise ToolError(f"Offset {offset} is beyond end of file ({page.total_lines} lines total)")
    return page


def _text(page: FilePage, path: str) -> ToolResult:
    text = b"\n".join(page.lines).decode("utf-8", "replace")
    following = page.last + 1
    if page.oversized:
        hint = f"Use exec: sed -n '{page.first}p' {shlex.quote(path)} | head -c {MAX_PAGE_BYTES}"
        text = f"[Line {page.first} is {_size(page.oversized)}, exceeds {_size(MAX_PAGE_BYTES)} limit. {hint}]"
    elif page.cut_by:
        size = f" ({_size(MAX_PAGE_BYTES)} limit)" if page.cut_by == "bytes" else ""
        shown = f"Showing lines {page.first}-{page.last} of {page.total_lines}{size}"
        text += f"\n\n[{shown}. Use offset={following} to continue.]"
    elif page.last < page.total_lines:
        more = page.total_lines - page.last
        return text_result(f"{text}\n\n[{more} more lines in file. Use offset={following} to continue.]")
    else:
        return text_result(text)
    truncation = {
        "truncated": True,
        "truncatedBy": page.cut_by,
        "totalLines": page.total_lines,
        "totalBytes": page.total_bytes,
        "outputLines": len(page.lines),
        "outputBytes": sum(map(len, page.lines)) + max(0, len(page.lines) - 1),
        "firstLineExceedsLimit": bool(page.oversized),
        "maxLines": MAX_PAGE_LINES,
        "maxBytes": MAX_PAGE_BYTES,
    }
    return text_result(text, {"truncation": truncation})


def _picture(data: bytes, mime_type: str, model_sees_images: bool) -> ToolResult:
    text = f"Read image file [{mime_type}]"
    if not model_sees_images:
        return text_result(f"{text}\n[The current model cannot see images, so the picture was left out.]")
    try:
        fitted = fit_image(data, mime_type)
    except ImageProblem as problem:
        return text_result(f"{text}\n[The picture was left out: {problem}.]")
    if fitted.note:
        text = f"Read image file [{fitted.block.mime_type}]\n{fitted.note}"
    content: list[UserBlock] = [TextBlock(text=text), fitted.block]
    return ToolResult(content=content)


def _size(count: int) -> str:
    if count < 1024:
        return f"{count}B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f}KB"
    return f"{count / (1024 * 1024):.1f}MB"


class WriteArguments(ToolArguments):
    path: Annotated[str, Meta(description="File to write, relative to the workspace or absolute")]
    content: Annotated[str, Meta(description="The complete new content")]


class WriteTool(RecordTool[WriteArguments]):
    name = "write"
    summary = "Create or overwrite files"
    description = "Write a whole file, replacing what is there. Missing parent directories are made."

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def execute(self, arguments: WriteArguments, context: ToolContext) -> ToolResult:
        path, data = required_text(arguments.path, "path"), encode_text(arguments.content)
        await asyncio.to_thread(self._write, context.guarded(self._opener), path, data)
        return text_result(f"Successfully wrote {len(data)} bytes to {path}")

    async def append(self, arguments: WriteArguments) -> ToolResult:
        """Like ``execute``, but append the content to the file, on a new line."""
        path, data = required_text(arguments.path, "path"), encode_text(arguments.content)
        added = await asyncio.to_thread(self._append, path, data)
        return text_result(f"Successfully wrote {added} bytes to {path}; what was there before is still there")

    def _append(self, path: str, data: bytes) -> int:
        with self._opener.editing(path):
            try:
                with self._opener.open_read(path) as file:
                    before = file.read()
            except FileMissing:
                before = b""
            if before and data.startswith(before):
                data = data[len(before) :]
            elif before and not before.endswith(b"\n"):
                before += b"\n"
            with self._opener.open_write_atomic(path) as file:
                file.write(before + data)
        return len(data)

    def _write(self, opener: PathOpener, path: str, data: bytes) -> None:
        with opener.editing(path), opener.open_write_atomic(path) as file:
            file.write(data)


def encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(f"The text holds half of a character (position {error.start}) and cannot be written") from None


class EditArguments(ToolArguments):
    path: Annotated[str, Meta(description="File to edit, relative to the workspace or absolute")]
    old_text: Annotated[str, Meta(description="The passage as it is now")]
    new_text: Annotated[str, Meta(description="What to put in its place")]


class EditTool(RecordTool[EditArguments]):
    name = "edit"
    summary = "Make precise edits to files"
    description = (
        "Replace one passage of a file. oldText must occur exactly once, blanks and line breaks included; "
        "add surrounding lines to make it unique. An empty newText deletes the passage."
    )

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def execute(self, arguments: EditArguments, context: ToolContext) -> ToolResult:
        path, old, new = required_text(arguments.path, "path"), arguments.old_text, arguments.new_text
        if not old:
            raise ToolError("oldText is empty; give the passage to replace, or use write for a whole file")
        diff = await asyncio.to_thread(self._edit, context.guarded(self._opener), path, old, new)
        details = {"diff": diff.text, "firstChangedLine": diff.first_changed_line}
        return text_result(f"Successfully replaced text in {path}.", details)

    def _edit(self, opener: PathOpener, path: str, old: str, new: str) -> Diff:
        with opener.editing(path):
            bom, text = self._read(opener, path)
            changed, diff = edit_text(text, old, new, path)
            with opener.open_write_atomic(path) as file:
                file.write(encode_text(bom + changed))
        return diff

    def _read(self, opener: PathOpener, path: str) -> tuple[str, str]:
        try:
            with opener.open_read(path) as file:
                data = file.read(MAX_EDIT_BYTES + 1)
        except FileMissing:
            raise FileMissing(f"File not found: {path}") from None
        if len(data) > MAX_EDIT_BYTES:
            raise ToolError(f"{path} has more than {MAX_EDIT_BYTES} bytes, too large to edit; use exec (sed, a script)")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(
                f"{path} is not UTF-8 text (byte {error.start}); an edit would damage it, use exec instead"
            ) from None
        return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def edit_text(text: str, old: str, new: str, path: str) -> tuple[str, Diff]:
    """The text with the passage replaced. Raises ``ToolError`` for the model if that is not possible."""
    span = locate(text, old.removeprefix(_BOM))
    if isinstance(span, NotFound):
        raise ToolError(f"Could not find the text in {path}. oldText must match it, blanks and line breaks included.")
    if isinstance(span, Ambiguous):
        raise ToolError(
            f"Found {span.count} occurrences of the text in {path}. Add surrounding lines so that it is unique."
        )
    changed = replace(text, span, new)
    if changed == text:
        raise ToolError(f"No changes made to {path}: newText is what already stands there.")
    return changed, describe_change(text, changed, span)


# Finding and replacing the passage of an edit. Every other byte of the file stays as it is.


class TextSpan(msgspec.Struct, frozen=True):
    start: int
    end: int


class NotFound(msgspec.Struct, frozen=True):
    pass


class Ambiguous(msgspec.Struct, frozen=True):
    count: int


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


def locate(text: str, old: str) -> TextSpan | NotFound | Ambiguous:
    """Finds ``old`` in the text. Line ends may differ; if need be, typographic characters and trailing blanks too."""
    lines = _without(text, [match.span() for match in re.finditer(r"\r(?=\n)", text)])
    old = old.replace("\r\n", "\n")
    spans = _find(lines.text, old)
    if isinstance(spans, NotFound):
        spans = _locate_fuzzily(lines, old)
    elif isinstance(spans, TextSpan):
        spans = lines.original_span(spans)
    if isinstance(spans, TextSpan) and text.startswith("\r\n", max(0, spans.start - 1)):
        # The passage begins with the end of a line, so it includes the whole line end.
        return TextSpan(spans.start - 1, spans.end)
    return spans


def replace(text: str, span: TextSpan, new: str) -> str:
    """Puts ``new`` in place of the span, with the line ends of the file."""
    new = new.replace("\r\n", "\n")
    first_line, newline, _ = text.partition("\n")
    if newline and first_line.endswith("\r"):
        new = new.replace("\n", "\r\n")
    return text[: span.start] + new + text[span.end :]


def _locate_fuzzily(lines: _View, old: str) -> TextSpan | NotFound | Ambiguous:
    straight = lines.text.translate(_FUZZY)
    trimmed = _without(straight, [match.span() for match in _TRAILING_SPACE.finditer(straight)])
    old = old.translate(_FUZZY)
    body, newline, last = old.rpartition("\n")
    # A blank at the very end of ``old`` may be inside a line of the file, where blanks count.
    spans = _find(trimmed.text, _TRAILING_SPACE.sub("", body + newline) + last)
    if isinstance(spans, NotFound) and (needle := _TRAILING_SPACE.sub("", old)):
        spans = _find(trimmed.text, needle)
    if not isinstance(spans, TextSpan):
        return spans
    span = trimmed.original_span(spans)
    if old != old.rstrip(" \t") and (blanks := _BLANKS_TO_END.match(straight, span.end)):
        span = TextSpan(span.start, blanks.end())
    return lines.original_span(span)


def _find(text: str, needle: str) -> TextSpan | NotFound | Ambiguous:
    start = text.find(needle) if needle else -1
    if start < 0:
        return NotFound()
    if text.find(needle, start + 1) >= 0:
        return Ambiguous(max(2, text.count(needle)))
    return TextSpan(start, start + len(needle))


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


class Diff(msgspec.Struct, frozen=True):
    text: str
    first_changed_line: int


def describe_change(old: str, new: str, span: TextSpan) -> Diff:
    """A numbered diff of the changed lines with some context. Only the lines around ``span`` are compared."""
    first = old.count("\n", 0, span.start)
    old_lines, new_lines = _split(old), _split(new)
    tail = len(old_lines) - 1 - old.count("\n", 0, span.end)
    before, after = old_lines[first : len(old_lines) - tail], new_lines[first : len(new_lines) - tail]
    width = len(str(max(len(old_lines), len(new_lines))))
    rows = [f" {number + 1:>{width}} {old_lines[number]}" for number in range(max(0, first - CONTEXT_LINES), first)]
    first_changed = 0
    operations: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(before), 0, len(after))]
    if len(before) + len(after) <= MAX_DIFF_LINES:
        operations = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for tag, a, b, c, d in operations:
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


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")
