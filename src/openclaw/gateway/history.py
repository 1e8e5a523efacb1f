"""Transcript entries as clients read them: stored messages, wrappers taken off, within a byte budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.inbound.stamp import without_wrappers
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage, decode_message, to_public
from openclaw.storage.base import Entry

MAX_BYTES = 6 * 1024 * 1024


class _Line(msgspec.Struct):
    """The part of a line that a history view needs; the message itself stays undecoded."""

    message: msgspec.Raw = msgspec.Raw(b"")
    timestamp: Any = None
    content: Any = None


class _RoleOf(msgspec.Struct):
    role: str = ""


_line = msgspec.json.Decoder(_Line)
_role = msgspec.json.Decoder(_RoleOf)


def read_history(entries: Sequence[Entry], *, public: bool) -> list[Any]:
    """Oldest first. The newest are kept when everything together would be over the budget."""
    if public:
        return _within_budget([msgspec.Raw(msgspec.json.encode(item)) for item in _public(entries)])
    return _within_budget([raw for entry in entries if (raw := _stored(entry)) is not None])


def _stored(entry: Entry) -> msgspec.Raw | None:
    if entry.type == "compaction":
        return msgspec.Raw(msgspec.json.encode(_compaction_view(entry)))
    if entry.type == "custom":
        return msgspec.Raw(msgspec.json.encode(_marker_view(entry)))
    try:
        line = _line.decode(entry.raw)
    except msgspec.MsgspecError:
        return None
    if entry.type == "custom_message":
        content = [{"type": "text", "text": line.content}] if isinstance(line.content, str) else line.content
        view = {"role": "user", "content": content, "timestamp": line.timestamp}
        return msgspec.Raw(msgspec.json.encode(view))
    raw = bytes(line.message)
    if not raw:
        return None
    if b'"user"' in raw and _is_user(raw):
        return msgspec.Raw(_unwrapped(raw))
    return line.message


def _is_user(raw: bytes) -> bool:
    try:
        return _role.decode(raw).role == "user"
    except msgspec.MsgspecError:
        return False


def _unwrapped(raw: bytes) -> bytes:
    """Only what people typed is changed; fields and blocks we do not know stay as they are."""
    message = msgspec.json.decode(raw)
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = without_wrappers(content)
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                block["text"] = without_wrappers(block["text"])
    return msgspec.json.encode(message)


def _compaction_view(entry: Entry) -> dict[str, Any]:
    timestamp = msgspec.json.decode(entry.raw).get("timestamp")
    return {
        "role": "system",
        "content": [{"type": "text", "text": "Compaction"}],
        "timestamp": timestamp,
        "__openclaw": {"kind": "compaction", "id": entry.id},
    }


def _marker_view(entry: Entry) -> dict[str, Any]:
    """A line between sessions: people see it, the model does not."""
    line = msgspec.json.decode(entry.raw)
    data = line.get("data")
    fields: dict[str, Any] = data if isinstance(data, dict) else {}
    return {
        "role": "system",
        "content": [{"type": "text", "text": str(fields.get("text") or "")}],
        "timestamp": line.get("timestamp"),
        "__openclaw": {"kind": str(line.get("customType") or "custom"), "id": entry.id},
    }


def _public(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    messages: list[Message] = []
    for entry in entries:
        if entry.type != "message":
            continue
        try:
            message = decode_message(_line.decode(entry.raw).message)
        except msgspec.MsgspecError:
            continue
        if isinstance(message, UserMessage):
            message = _unwrapped_user(message)
        if message is not None:
            messages.append(message)
    return to_public(messages)


def _unwrapped_user(message: UserMessage) -> UserMessage:
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=without_wrappers(message.content))
    blocks = [
        TextBlock(text=without_wrappers(block.text)) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return msgspec.structs.replace(message, content=blocks)


def _within_budget(items: list[msgspec.Raw]) -> list[msgspec.Raw]:
    total = 0
    for place in range(len(items) - 1, -1, -1):
        total += len(bytes(items[place])) + 1
        if total > MAX_BYTES:
            return items[place + 1 :]
    return items


def injected_message(text: str, now_ms: int) -> AssistantMessage:
    """How messages that no model wrote are marked in transcripts."""
    return AssistantMessage(
        content=[TextBlock(text=text)],
        api="openai-responses",
        provider="openclaw",
        model="gateway-injected",
        timestamp=now_ms,
    )
