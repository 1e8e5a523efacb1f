"""The ``read`` tool: a page of a text file, or a picture."""

from __future__ import annotations

import asyncio
import shlex
import threading
from typing import Any, BinaryIO

import msgspec

from openclaw.messages import TextBlock, ToolSpec, UserBlock
from openclaw.tools.arguments import required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.images import MAX_SOURCE_BYTES, ImageProblem, fit_image, sniff_image
from openclaw.tools.opener import PathOpener

MAX_LINES = 2000
MAX_BYTES = 50 * 1024
_CHUNK = 1024 * 1024
_HEAD = 8192


class Page(msgspec.Struct, kw_only=True):
    """Some whole lines of a file, and how much there is besides."""

    lines: list[bytes]
    first: int
    """1-based number of the first line."""
    total_lines: int
    total_bytes: int
    cut_by: str | None = None
    """``lines`` or ``bytes`` when one of our own limits ended the page."""
    oversized: int = 0
    """Size of the first line when it alone is too large to show."""

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


class ReadTool:
    summary = "Read file contents"
    spec = ToolSpec(
        name="read",
        description=(
            "Read a file. Text comes in pages of at most 2000 lines or 50KB; continue with offset until the end. "
            "Pictures (jpg, png, gif, webp) are shown as images."
        ),
        parameters={
            "type": "object",
            "required": ["path"],
            "properties": {
                "path": {"type": "string", "description": "File to read, relative to the workspace or absolute"},
                "offset": {"type": "integer", "description": "Line to start at, from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "Most lines to return"},
            },
        },
    )

    def __init__(self, opener: PathOpener) -> None:
        self.opener = opener

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path = required_text(arguments, "path")
        offset, limit = arguments.get("offset") or 1, arguments.get("limit")
        if offset < 1:
            raise ToolError(f"offset must be 1 or more, not {offset}")
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._read, path, offset, limit, context.model_sees_images, stop)
        finally:
            stop.set()

    def _read(self, path: str, offset: int, limit: int | None, sees: bool, stop: threading.Event) -> ToolResult:
        with self.opener.open_read(path) as file:
            head = file.read(_HEAD)
            file.seek(0)
            if mime_type := sniff_image(head):
                return _picture(file.read(MAX_SOURCE_BYTES + 1), mime_type, sees)
            if b"\0" in head:
                raise ToolError(f"{path} is a binary file; look at it with exec, e.g. file or xxd | head")
            page = read_page(file, offset, limit, stop)
        return _text(page, path, limit)


def read_page(file: BinaryIO, offset: int, limit: int | None, stop: threading.Event | None = None) -> Page:
    """Streams the file once: only the page is kept, whatever the size of the file or of a line."""
    wanted = MAX_LINES if limit is None else min(limit, MAX_LINES)
    page = Page(lines=[], first=offset, total_lines=1, total_bytes=0)
    collecting, line, line_size, used = True, b"", 0, 0

    def end_line() -> None:
        nonlocal collecting, line, line_size, used
        if collecting and page.total_lines >= offset:
            if len(page.lines) == wanted:
                collecting = False
                page.cut_by = "lines" if limit is None or limit > wanted else None
            elif used + line_size + bool(page.lines) > MAX_BYTES:
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
            if line_size <= MAX_BYTES:
                line += chunk[start:newline]
            end_line()
            page.total_lines += 1
            start = newline + 1
        line_size += len(chunk) - start
        if collecting and line_size <= MAX_BYTES:
            line += chunk[start:]
    end_line()
    if offset > page.total_lines:
        raise ToolError(f"Offset {offset} is beyond end of file ({page.total_lines} lines total)")
    return page


def _text(page: Page, path: str, limit: int | None) -> ToolResult:
    text = b"\n".join(page.lines).decode("utf-8", "replace")
    following = page.last + 1
    if page.oversized:
        hint = f"Use exec: sed -n '{page.first}p' {shlex.quote(path)} | head -c {MAX_BYTES}"
        text = f"[Line {page.first} is {_size(page.oversized)}, exceeds {_size(MAX_BYTES)} limit. {hint}]"
    elif page.cut_by:
        size = f" ({_size(MAX_BYTES)} limit)" if page.cut_by == "bytes" else ""
        shown = f"Showing lines {page.first}-{page.last} of {page.total_lines}{size}"
        text += f"\n\n[{shown}. Use offset={following} to continue.]"
    elif page.last < page.total_lines:
        more = page.total_lines - page.last
        return text_result(f"{text}\n\n[{more} more lines in file. Use offset={following} to continue.]")
    else:
        return text_result(text)
    return text_result(text, {"truncation": _counters(page)})


def _counters(page: Page) -> dict[str, Any]:
    return {
        "truncated": True,
        "truncatedBy": page.cut_by,
        "totalLines": page.total_lines,
        "totalBytes": page.total_bytes,
        "outputLines": len(page.lines),
        "outputBytes": sum(map(len, page.lines)) + max(0, len(page.lines) - 1),
        "firstLineExceedsLimit": bool(page.oversized),
        "maxLines": MAX_LINES,
        "maxBytes": MAX_BYTES,
    }


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
