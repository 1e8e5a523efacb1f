"""The ``edit`` tool: replaces one passage that must be unmistakable."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.messages import ToolSpec
from openclaw.tools.arguments import required_text
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.tools.opener import FileMissing, PathOpener
from openclaw.tools.replacement import Ambiguous, Diff, NotFound, describe, locate, replace
from openclaw.tools.write import encode_text

MAX_BYTES = 20 * 1024 * 1024
_BOM = "\ufeff"


class EditTool:
    summary = "Make precise edits to files"
    spec = ToolSpec(
        name="edit",
        description=(
            "Replace one passage of a file. oldText must occur exactly once, blanks and line breaks included; "
            "add surrounding lines to make it unique. An empty newText deletes the passage."
        ),
        parameters={
            "type": "object",
            "required": ["path", "oldText", "newText"],
            "properties": {
                "path": {"type": "string", "description": "File to edit, relative to the workspace or absolute"},
                "oldText": {"type": "string", "description": "The passage as it is now"},
                "newText": {"type": "string", "description": "What to put in its place"},
            },
        },
    )

    def __init__(self, opener: PathOpener) -> None:
        self._opener = opener

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path = required_text(arguments, "path")
        old = required_text(arguments, "oldText", allow_blank=True)
        new = required_text(arguments, "newText", allow_blank=True)
        if not old:
            raise ToolError("oldText is empty; give the passage to replace, or use write for a whole file")
        diff = await asyncio.to_thread(self._edit, path, old, new)
        details = {"diff": diff.text, "firstChangedLine": diff.first_changed_line}
        return text_result(f"Successfully replaced text in {path}.", details)

    def _edit(self, path: str, old: str, new: str) -> Diff:
        with self._opener.editing(path):
            bom, text = self._read(path)
            changed, diff = edit_text(text, old, new, path)
            with self._opener.open_write_atomic(path) as file:
                file.write(encode_text(bom + changed))
        return diff

    def _read(self, path: str) -> tuple[str, str]:
        try:
            with self._opener.open_read(path) as file:
                data = file.read(MAX_BYTES + 1)
        except FileMissing:
            raise FileMissing(f"File not found: {path}") from None
        if len(data) > MAX_BYTES:
            raise ToolError(f"{path} has more than {MAX_BYTES} bytes, too large to edit; use exec (sed, a script)")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(
                f"{path} is not UTF-8 text (byte {error.start}); an edit would damage it, use exec instead"
            ) from None
        return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def edit_text(text: str, old: str, new: str, path: str) -> tuple[str, Diff]:
    """The text with the one passage replaced; raises what the model should read."""
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
    return changed, describe(text, changed, span)
