"""Very long tool output is kept whole in a blob; transcript and model get its beginning, its end and where it is."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openclaw.messages import TextBlock, ToolResultMessage, UserBlock
from openclaw.storage.base import BlobStore

INLINE_LIMIT = 100_000
HEAD = 20_000
TAIL = 60_000


async def stored_result(message: ToolResultMessage, blobs: BlobStore, state_dir: Path) -> ToolResultMessage:
    if all(len(block.text) <= INLINE_LIMIT for block in message.content if isinstance(block, TextBlock)):
        return message
    content: list[UserBlock] = []
    digests: list[str] = []
    for block in message.content:
        if isinstance(block, TextBlock) and len(block.text) > INLINE_LIMIT:
            digest = await blobs.put(block.text.encode("utf-8", "surrogatepass"))
            digests.append(digest)
            content.append(TextBlock(text=_preview(block.text, state_dir / "blobs" / digest)))
        else:
            content.append(block)
    details = message.details if isinstance(message.details, dict) else {}
    return msgspec.structs.replace(message, content=content, details={**details, "blobs": digests})


def _preview(text: str, where: Path) -> str:
    left_out = len(text) - HEAD - TAIL
    note = f"[… {left_out} characters left out here; the whole output ({len(text)} characters) is in {where} …]"
    return f"{text[:HEAD]}\n{note}\n{text[-TAIL:]}"
