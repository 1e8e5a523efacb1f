"""The title of a session and short previews of its messages, for lists."""

from __future__ import annotations

import re

import msgspec

from openclaw.clock import iso_utc
from openclaw.messages import AssistantMessage, ImageBlock, Message, ToolCall, UserMessage, decode_message, user_text
from openclaw.outbound.answer_filter import typed, visible_text
from openclaw.sessions.prompt_prefix import as_typed, is_internal
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Entry, TranscriptRef, TranscriptStore

TITLE_LENGTH = 60


async def last_messages(transcripts: TranscriptStore, row: SessionRow, limit: int) -> list[Message]:
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.entry["sessionId"], file=row.entry.get("sessionFile"))
    return [message for entry in await transcripts.tail(ref, limit) if (message := message_of(entry))]


async def first_messages(transcripts: TranscriptStore, row: SessionRow) -> list[Message]:
    """Return the first messages of a session, for its title.

    Returns none if its transcript is compressed or begins with something very long.
    """
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.entry["sessionId"], file=row.entry.get("sessionFile"))
    return [message for line in await transcripts.head(ref) if (message := _line_message(line)) is not None]


def _line_message(line: bytes) -> Message | None:
    try:
        raw = _message_only.decode(line).message
        return decode_message(raw) if bytes(raw) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


class _MessageOnly(msgspec.Struct):
    message: msgspec.Raw = msgspec.Raw(b"")


_message_only = msgspec.json.Decoder(_MessageOnly)


def message_of(entry: Entry) -> Message | None:
    return _line_message(entry.raw) if entry.type == "message" else None


def derived_title(row: SessionRow, messages: list[Message]) -> str:
    entry = row.entry
    for name in ("displayName", "subject"):
        if value := entry.get(name):
            return str(value)
    previews = (" ".join(preview_text(message).split()) for message in messages if isinstance(message, UserMessage))
    text = next(filter(None, previews), "")
    if not text:
        return f"{entry['sessionId'][:8]} ({iso_utc(entry.get('updatedAt', 0))[:10]})"
    if len(text) <= TITLE_LENGTH:
        return text
    cut = text[: TITLE_LENGTH - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > TITLE_LENGTH * 0.6 else cut) + "…"


def preview_role(message: Message) -> str:
    return {"user": "user", "assistant": "assistant", "toolResult": "tool"}[message.__struct_config__.tag]  # type: ignore[index]


def preview_text(message: Message) -> str:
    """Return a message as one short text without wrappers, with pictures and calls named. Internal ones are empty."""
    if isinstance(message, UserMessage) and is_internal(user_text(message)):
        return ""
    if isinstance(message, UserMessage) and isinstance(message.content, str):
        return as_typed(message, message.content)
    if isinstance(message, AssistantMessage):
        if text := visible_text(typed(message).text, complete=message.stop_reason not in ("error", "aborted")):
            return text
        names = [block.name for block in message.content if isinstance(block, ToolCall)]
        more = f" +{len(names) - 2}" if len(names) > 2 else ""
        return f"call {', '.join(names[:2])}{more}" if names else ""
    blocks = [block for block in message.content if not isinstance(block, str)]
    parts = ["[image]" if isinstance(block, ImageBlock) else block.text for block in blocks]
    text = "\n".join(parts)
    return as_typed(message, text) if isinstance(message, UserMessage) else text


def shortened(text: str, limit: int) -> str:
    plain = re.sub(r"[ \t]+", " ", text).strip()
    return plain if len(plain) <= limit else plain[: max(0, limit - 3)].rstrip() + "..."
