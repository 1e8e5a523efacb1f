"""Exports and imports transcripts, as their own lines or as messages in the public format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from openclaw import json_text
from openclaw.messages import Message, decode_message, from_public, to_public
from openclaw.sessions.tree import raw_line
from openclaw.storage.base import Entry

PAGE_BYTES = 2 << 20
Shown: TypeAlias = Callable[[Message], Message | None]
"""Returns a message as people see it, or None if they see nothing of it."""


def public_page(
    entries: Sequence[Entry], start: int, shown: Shown = lambda message: message, most_bytes: int = PAGE_BYTES
) -> tuple[list[Any], int | None]:
    """Messages from number ``start`` on, and the number of the first message of the next page."""
    messages = public_messages(entries, shown)
    size = 0
    for place in range(start, len(messages)):
        size += len(msgspec.json.encode(messages[place]))
        if size > most_bytes and place > start:
            return messages[start:place], place
    return messages[start:], None


def public_messages(entries: Sequence[Entry], shown: Shown = lambda message: message) -> list[dict[str, Any]]:
    """All messages of the branch, without compaction. What cannot be read or says nothing is left out."""
    messages: list[Message] = []
    for entry in entries:
        if entry.type != "message":
            continue
        try:
            message = decode_message(raw_line.decode(entry.raw).message)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if message is not None and (message := shown(message)) is not None:
            messages.append(message)
    return [message for message in to_public(messages) if message["content"]]


def with_their_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The end of a conversation, in the public shape, without tool results whose calls are not in it."""
    kept: list[dict[str, Any]] = []
    called: set[str] = set()
    for message in messages:
        blocks = message["content"]
        if isinstance(blocks, list):
            called |= {block["id"] for block in blocks if block["type"] == "tool_use"}
            blocks = [one for one in blocks if one["type"] != "tool_result" or one["tool_use_id"] in called]
        if blocks:
            kept.append({**message, "content": blocks})
    return kept


class CannotImport(Exception):
    """The file cannot be imported. The message tells the person who chose it why."""


def imported_lines(lines: Sequence[str], session_id: str, timestamp: str) -> bytes:
    """A new transcript with the lines of another; it keeps entry ids and branches. Raises ``CannotImport``."""
    entries = [_object(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    header: dict[str, Any] = {"type": "session", "version": 3, "cwd": ""}
    if entries and entries[0].get("type") == "session":
        header |= entries.pop(0)
    if int(header.get("version") or 1) < 3:
        raise CannotImport("the file is of an older format; open it once with this Gateway, then export it again")
    known: set[str] = set()
    for number, entry in enumerate(entries, 1):
        own, parent = entry.get("id"), entry.get("parentId")
        if not isinstance(own, str) or not isinstance(entry.get("type"), str) or own in known:
            raise CannotImport(f"entry {number} has no type or no id of its own: this is not a transcript")
        if parent is not None and parent not in known:
            raise CannotImport(f"entry {number} follows an entry that is not in the file")
        known.add(own)
    if not entries:
        raise CannotImport("there is nothing in it")
    header |= {"id": session_id, "timestamp": timestamp}
    return b"".join(json_text.encode(item) + b"\n" for item in (header, *entries))


def imported_messages(lines: Sequence[str], now_ms: int) -> list[Message]:
    """The messages of a file of public messages. Raises ``CannotImport``."""
    found = [_object(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    for number, message in enumerate(found, 1):
        if message.get("role") not in ("user", "assistant") or not isinstance(message.get("content"), list | str):
            raise CannotImport(f"message {number} needs a role (user or assistant) and content")
    if not found:
        raise CannotImport("there is nothing in it")
    return from_public(found, now_ms=now_ms)


def is_transcript(lines: Sequence[str]) -> bool:
    """Whether the lines are transcript entries, which have a type. Public messages have a role instead."""
    first = next((line for line in lines if line.strip()), "{}")
    return "role" not in _object(first, 1)


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise CannotImport(f"line {number} is not a JSON object")
    return decoded
