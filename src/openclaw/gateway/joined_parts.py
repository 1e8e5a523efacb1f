"""An answer that the output limit cut is several messages in the transcript, and one in every view of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from openclaw.agent.continuation import join
from openclaw.storage.base import Entry

_CUT = b'"length"'
_OURS = "gateway-injected"


def joined_parts(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The same entries, each part taken into the one that goes on from it. Nothing is read when no answer was cut."""
    if not any(_CUT in entry.raw for entry in entries):
        return entries
    shown: list[Entry] = []
    before: dict[str, Any] | None = None
    for entry in entries:
        line = _line_of(entry)
        message = _answer_in(line)
        if before is not None and message is not None:
            message = _joined(before, message)
            shown[-1] = msgspec.structs.replace(entry, raw=msgspec.json.encode({**line, "message": message}))
        else:
            shown.append(entry)
        before = message if message is not None and _goes_on(message) else None
    return shown


def _line_of(entry: Entry) -> dict[str, Any]:
    if entry.type != "message":
        return {}
    try:
        line = msgspec.json.decode(entry.raw)
    except msgspec.MsgspecError:
        return {}
    return cast("dict[str, Any]", line) if isinstance(line, dict) else {}


def _answer_in(line: dict[str, Any]) -> dict[str, Any] | None:
    """The model's message of a line; what the Gateway itself said is none."""
    message: Any = line.get("message")
    if not isinstance(message, dict):
        return None
    fields = cast("dict[str, Any]", message)
    if fields.get("role") != "assistant" or fields.get("model") == _OURS or not isinstance(fields.get("content"), list):
        return None
    return fields


def _goes_on(message: dict[str, Any]) -> bool:
    return message.get("stopReason") == "length" and not any(_kind(block) == "toolCall" for block in message["content"])


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    text = join(_text(first), _text(second))
    blocks = [block for message in (first, second) for block in message["content"] if _kind(block) != "text"]
    calls = [block for block in blocks if _kind(block) == "toolCall"]
    others = [block for block in blocks if _kind(block) != "toolCall"]
    content = [*others, *([{"type": "text", "text": text}] if text else []), *calls]
    return {**second, "content": content, "usage": _sum(first.get("usage"), second.get("usage"))}


def _text(message: dict[str, Any]) -> str:
    return "".join(str(block.get("text") or "") for block in message["content"] if _kind(block) == "text")


def _kind(block: Any) -> str:
    return str(cast("dict[str, Any]", block).get("type")) if isinstance(block, dict) else ""


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        one, other = cast("dict[str, Any]", first), cast("dict[str, Any]", second)
        return {name: _sum(one.get(name), other.get(name)) for name in {**one, **other}}
    numbers = [value for value in (first, second) if isinstance(value, int | float)]
    return sum(numbers) if numbers else second
