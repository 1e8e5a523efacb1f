"""Tool calls and results as clients show them: short, readable, without megabytes of picture data."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.messages import ImageBlock, UserBlock

TEXT_LIMIT = 8_000
META_LIMIT = 200
_META_FIELDS = ("path", "file_path", "command", "url", "query", "action", "sessionKey", "message", "task")


def tool_meta(name: str, arguments: dict[str, Any]) -> str:
    """The one argument that says what a call is about."""
    for field in _META_FIELDS:
        value = arguments.get(field)
        if isinstance(value, str) and value.strip():
            line = " ".join(value.split())
            return line if len(line) <= META_LIMIT else line[: META_LIMIT - 1] + "…"
    return name


def result_view(content: list[UserBlock], details: Any) -> dict[str, Any]:
    view: dict[str, Any] = {"content": [_block(block) for block in content]}
    if details is not msgspec.UNSET and details is not None:
        view["details"] = details
    return view


def _block(block: UserBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "image", "mimeType": block.mime_type, "bytes": len(block.data) * 3 // 4, "omitted": True}
    if len(block.text) <= TEXT_LIMIT:
        return {"type": "text", "text": block.text}
    return {"type": "text", "text": block.text[:TEXT_LIMIT] + "\n…(truncated)…"}
