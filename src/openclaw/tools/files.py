"""The file tools ``read``, which shows part of a file or a picture, and ``write``, which writes a whole file."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import shlex
import threading
from collections.abc import Generator, Sequence
from io import BytesIO
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from openclaw.messages import TextBlock, UserBlock
from openclaw.path_opener import FileMissing, IsFolder, PathOpener, PathRefused
from openclaw.pictures import MAX_SOURCE_BYTES, ImageProblem, fit_image, sniff_image
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.documents import MAX_DOCUMENT_BYTES, DocumentText, Kind, document_kind, page_range, read_document

MAX_PAGE_LINES = 2000
MAX_PAGE_BYTES = 50 * 1024
MAX_ENTRIES = 1000
MAX_COMPARED = 3000
"""So many names are compared with that of a missing file."""
SKIPPED_FOLDERS = ("node_modules", "__pycache__")
_CHUNK = 1024 * 1024
_HEAD = 8192


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

    final_newline: bool = False
    """Whether the file ends with a line end. No line follows it."""

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1

    @property
    def text(self) -> str:
        whole = self.final_newline and self.lines and self.last == self.total_lines
        return b"\n".join(self.lines).decode("utf-8", "replace") + ("\n" if whole else "")


class ReadArguments(ToolArguments):
    path: Annotated[str, Meta(description="File or directory to read, relative to the workspace or absolute")]
    offset: Annotated[int, Meta(description="Line to start at, from 1")] = 1
    limit: Annotated[int, Meta(ge=1, description="Most lines to return")] | None = None
    pages: Annotated[str, Meta(description="Pages of a PDF: 3, 2-5 or 8-")] | None = None


class ReadTool(RecordTool[ReadArguments]):
    name = "read"
    parallel = True
    summary = "Read files, directories, pictures and documents"
    description = (
        "Read a file. Text comes in pages of at most 2000 lines or 50KB; continue with offset until the end. "
        "Pictures (jpg, png, gif, webp) are shown as images; PDF, docx, xlsx and ipynb come as text. "
        "A directory lists its entries."
    )

    def __init__(self, opener: PathOpener) -> None:
        self.opener = opener

    async def execute(self, arguments: ReadArguments, context: ToolContext) -> ToolResult:
        path = required_text(arguments.path, "path")
        if arguments.offset < 0:
            raise ToolError(f"offset must be 1 or more, not {arguments.offset}")
        first, last = page_range(arguments.pages) if arguments.pages else (1, 0)
        lines = LineRange(arguments.offset or 1, arguments.limit)
        stop = threading.Event()
        try:
            opener = context.guarded(self.opener)
            shown = await asyncio.to_thread(_read, opener, path, lines, context.model_sees_images, stop)
            if isinstance(shown, ToolResult):
                if arguments.pages:
                    raise ToolError(f"pages is for PDF documents, and {path} is not one; use offset and limit")
                return shown
            document = await read_document(path, shown.kind, shown.data, first, last)
            if shown.kind == "pdf":
                return _pdf(document, path, lines, last)
            return await asyncio.to_thread(_document, document, path, lines)
        finally:
            stop.set()


class LineRange(msgspec.Struct, frozen=True):
    """The lines that a call asks for."""

    offset: int
    limit: int | None


class _Document(msgspec.Struct, frozen=True):
    kind: Kind
    data: bytes


def _read(opener: PathOpener, path: str, lines: LineRange, sees: bool, stop: threading.Event) -> ToolResult | _Document:
    try:
        with explain_missing(opener, path), opener.open_read(path) as file:
            head = file.read(_HEAD)
            file.seek(0)
            if mime_type := sniff_image(head):
                return _picture(file.read(MAX_SOURCE_BYTES + 1), mime_type, sees)
            if kind := document_kind(path, head):
                return _Document(kind, file.read(MAX_DOCUMENT_BYTES + 1))
            if b"\0" in head:
                raise ToolError(f"{path} is a binary file; look at it with exec, e.g. file or xxd | head")
            page = read_page(file, lines.offset, lines.limit, stop)
    except IsFolder:
        return _entries(opener.scan(path), path, lines)
    return _text(page, path)


def _entries(entries: Sequence[tuple[str, str]], path: str, lines: LineRange) -> ToolResult:
    """A folder's entries, one per line. A folder ends with a slash."""
    total, first = len(entries), lines.offset
    if not total:
        return text_result(f"[{path} is an empty directory.]")
    if first > total:
        raise ToolError(f"Offset {first} is beyond the end of {path} ({_count(total, 'entry', 'entries')})")
    shown = entries[first - 1 : first - 1 + min(lines.limit or MAX_ENTRIES, MAX_ENTRIES)]
    names = [name + {"folder": "/", "link": " (link)"}.get(kind, "") for name, kind in shown]
    last = first - 1 + len(names)
    text = f"[Directory {path}, {_count(total, 'entry', 'entries')}]\n" + "\n".join(names)
    if last < total or first > 1:
        more = f" Use offset={last + 1} to continue." if last < total else ""
        text += f"\n\n[Showing entries {first}-{last} of {total}.{more}]"
    return text_result(text)


def _pdf(document: DocumentText, path: str, lines: LineRange, last: int) -> ToolResult:
    """Pages of a PDF. One that alone is too long comes in parts, by lines."""
    pages = document.pages
    text = "\n\n".join(f"--- Page {page.number} ---\n{page.text or '[No text on this page.]'}" for page in pages)
    part = read_page(BytesIO(text.encode()), lines.offset, lines.limit)
    end = pages[-1].number
    which = f"page {end}" if len(pages) == 1 else f"pages {pages[0].number}-{end}"
    notice = f"PDF, {which} of {document.total}."
    if part.oversized:
        return _text(part, path)
    if part.last < part.total_lines:
        notice += f" Showing lines {part.first}-{part.last} of {part.total_lines} of them."
        chosen = f"{end}" if len(pages) == 1 else f"{pages[0].number}-{end}"
        notice += f' Use pages="{chosen}" and offset={part.last + 1} to continue.'
    elif end < min(last or document.total, document.total):
        notice += f' Use pages="{end + 1}-{last or ""}" to continue.'
    elif end < document.total:
        rest = f"Page {document.total} was" if end + 1 == document.total else f"Pages {end + 1}-{document.total} were"
        notice += f" {rest} not asked for."
    if not any(page.text for page in pages):
        notice += " These pages have no text; they may be scanned pictures."
    return text_result(f"{part.text}\n\n[{notice}]")


def _document(document: DocumentText, path: str, lines: LineRange) -> ToolResult:
    if not document.text.strip():
        return text_result(f"[{path} has no text.]")
    result = _text(read_page(BytesIO(document.text.encode("utf-8", "replace")), lines.offset, lines.limit), path)
    if document.cut:
        notice = f"[The document is longer: only its first {len(document.text)} characters can be read.]"
        result.content.append(TextBlock(text=notice))
    return result


@contextlib.contextmanager
def explain_missing(opener: PathOpener, path: str, problem: str = "") -> Generator[None]:
    """Add the files that may have been meant to the error about a missing one. ``problem`` replaces its text."""
    try:
        yield
    except FileMissing as error:
        text = f"{problem}: {path}" if problem else str(error)
        similar = similar_paths(opener, path)
        raise FileMissing(f"{text}. Did you mean {' or '.join(similar)}?" if similar else text) from None


def similar_paths(opener: PathOpener, path: str) -> list[str]:
    """Return up to three paths that resemble one that does not exist: in its folder, or of the same name elsewhere."""
    folder, _, name = path.strip().rstrip("/").rpartition("/")
    prefix = f"{folder}/" if folder or path.startswith("/") else ""
    with contextlib.suppress(PathRefused):
        names = {entry.casefold(): entry for entry, _ in opener.scan(prefix or ".")[:MAX_COMPARED]}
        stem = name.casefold().rpartition(".")[0] or name.casefold()
        close = difflib.get_close_matches(name.casefold(), names, n=3, cutoff=0.7)
        close += [entry for entry in names if entry.rpartition(".")[0] == stem or entry == stem]
        if close:
            return [f"{prefix}{names[entry]}" for entry in dict.fromkeys(close)][:3]
    found: list[str] = []
    folders, seen = [""], 0
    while folders and seen < MAX_COMPARED and len(found) < 3:
        below = folders.pop(0)
        with contextlib.suppress(PathRefused):
            for entry, kind in opener.scan(below or "."):
                seen += 1
                if kind == "folder" and not entry.startswith(".") and entry not in SKIPPED_FOLDERS:
                    folders.append(f"{below}{entry}/")
                elif kind == "file" and entry.casefold() == name.casefold():
                    found.append(f"{below}{entry}")
    return found[:3]


def read_page(file: BinaryIO, offset: int, limit: int | None, stop: threading.Event | None = None) -> FilePage:
    """Reads the file once as a stream and keeps only the page, however large the file or a line is."""
    most_lines = MAX_PAGE_LINES if limit is None else min(limit, MAX_PAGE_LINES)
    page = FilePage(lines=[], first=offset, total_lines=1, total_bytes=0)
    collecting, line, line_size, used, end = True, b"", 0, 0, b""

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
        end = chunk[-1:]
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
    if end in (b"", b"\n"):
        page.total_lines -= 1
        page.final_newline = end == b"\n"
    else:
        end_line()
    if offset > max(1, page.total_lines):
        raise ToolError(f"Offset {offset} is beyond end of file ({_count(page.total_lines, 'line', 'lines')} total)")
    return page


def _text(page: FilePage, path: str) -> ToolResult:
    text, following = page.text, page.last + 1
    if not page.total_lines:
        return text_result(f"[{path} is empty.]")
    if page.oversized:
        hint = f"Use exec: sed -n '{page.first}p' {shlex.quote(path)} | head -c {MAX_PAGE_BYTES}"
        text = f"[Line {page.first} is {_size(page.oversized)}, exceeds {_size(MAX_PAGE_BYTES)} limit. {hint}]"
        if page.first < page.total_lines:
            text += f"\n\n[{_more_lines(page.total_lines - page.first)}. Use offset={page.first + 1} to continue.]"
    elif page.cut_by:
        size = f" ({_size(MAX_PAGE_BYTES)} limit)" if page.cut_by == "bytes" else ""
        shown = f"Showing lines {page.first}-{page.last} of {page.total_lines}{size}"
        text += f"\n\n[{shown}. Use offset={following} to continue.]"
    elif page.last < page.total_lines:
        more = page.total_lines - page.last
        return text_result(f"{text}\n\n[{_more_lines(more)}. Use offset={following} to continue.]")
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


def _more_lines(count: int) -> str:
    return f"{_count(count, 'more line', 'more lines')} in file"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


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
