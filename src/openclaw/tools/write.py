"""The ``write`` tool: a whole file, written at once or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.messages import ToolSpec
from openclaw.tools.arguments import required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.opener import FileMissing, PathOpener


class WriteTool:
    summary = "Create or overwrite files"
    spec = ToolSpec(
        name="write",
        description="Write a whole file, replacing what is there. Missing parent directories are made.",
        parameters={
            "type": "object",
            "required": ["path", "content"],
            "properties": {
                "path": {"type": "string", "description": "File to write, relative to the workspace or absolute"},
                "content": {"type": "string", "description": "The complete new content"},
            },
        },
    )

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path = required_text(arguments, "path")
        data = encode_text(required_text(arguments, "content", allow_blank=True))
        await asyncio.to_thread(self._write, path, data)
        return text_result(f"Successfully wrote {len(data)} bytes to {path}")

    async def add(self, arguments: dict[str, Any]) -> ToolResult:
        """As ``run``, but what the file holds stays: the content comes after it, on a line of its own."""
        path = required_text(arguments, "path")
        data = encode_text(required_text(arguments, "content", allow_blank=True))
        added = await asyncio.to_thread(self._add, path, data)
        return text_result(f"Successfully wrote {added} bytes to {path}; what was there before is still there")

    def _add(self, path: str, data: bytes) -> int:
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

    def _write(self, path: str, data: bytes) -> None:
        with self._opener.editing(path), self._opener.open_write_atomic(path) as file:
            file.write(data)


def encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(f"The text holds half of a character (position {error.start}) and cannot be written") from None
