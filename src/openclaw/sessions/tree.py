"""The messages in the entries of a transcript: what the model sees of the active branch, exports and imports.

Transcripts are exported and imported as their own lines, or as messages in the public format. No function here reads a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from openclaw import json_text
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage, decode_message, from_public, to_public
from openclaw.storage.transcripts import Context, Entry

COMPACTION_INTRO = "The earlier part of this conversation was condensed. This is what it said:"
BRANCH_INTRO = "This is what happened on another branch of this conversation, before returning to this point:"
DEFAULT_THINKING = "off"


class _MessageLine(msgspec.Struct):
    message: Message


class _RawMessageLine(msgspec.Struct):
    message: msgspec.Raw


_typed_line = msgspec.json.Decoder(_MessageLine)
raw_line = msgspec.json.Decoder(_RawMessageLine)


class Window(msgspec.Struct, frozen=True):
    """The entries of a branch that the model sees, as places in the file."""

    compaction: int | None
    places: list[int]


Step: TypeAlias = tuple[int, str, str]
"""Place, type and id of an entry."""


def select_window(walk: Iterator[Step], first_kept: Callable[[int], str | None]) -> Window:
    """Selects all entries, or the last compaction with the entries it kept and those after it.

    ``walk`` goes from the leaf towards the root and is read no further than needed. ``first_kept`` returns the id of
    the first entry that the compaction at a place kept. If that id is not on the path, the compaction kept nothing.
    """
    after: list[int] = []
    for index, kind, _ in walk:
        if kind == "compaction":
            return Window(index, [*_kept(walk, first_kept(index)), *reversed(after)])
        after.append(index)
    after.reverse()
    return Window(None, after)


def _kept(walk: Iterator[Step], wanted: str | None) -> list[int]:
    indices: list[int] = []
    for index, _, own in walk:
        indices.append(index)
        if own == wanted:
            return indices[::-1]
    return []


class BranchContext:
    """The context of one branch. It grows entry by entry."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._entry_ids: list[str] = []
        self.model: tuple[str, str] | None = None
        self.thinking_level: str | None = None
        self._compaction_id: str | None = None
        self._branch_cache: dict[Any, Any] = {}
        self._made: Context | None = None

    def summarize(self, entry_id: str, raw: bytes) -> None:
        """Begins the context with the summary of a compaction."""
        fields = fields_of(raw)
        self._compaction_id = entry_id
        summary = f"{COMPACTION_INTRO}\n\n<summary>\n{fields.get('summary') or ''}\n</summary>"
        self._take(entry_id, UserMessage(content=[TextBlock(text=summary)], timestamp=_moment(fields)))

    def add(self, entry_id: str, entry_type: str, raw: bytes, known: Message | None = None) -> None:
        """Adds the next entry of the path. ``known`` is its message, if it was decoded before."""
        match entry_type:
            case "message" | "custom_message" | "branch_summary":
                message = known or message_of(entry_type, raw)
                if message is not None and not is_notice(entry_id, message):
                    self._take(entry_id, message)
            case "model_change" | "thinking_level_change":
                self._made = None
                self.note_setting(entry_type, raw)
            case _:
                pass

    def note_setting(self, entry_type: str, raw: bytes) -> None:
        fields = fields_of(raw)
        if entry_type == "thinking_level_change":
            self.thinking_level = str(fields.get("thinkingLevel") or DEFAULT_THINKING)
        elif isinstance(fields.get("provider"), str) and isinstance(fields.get("modelId"), str):
            self.model = (fields["provider"], fields["modelId"])

    def last_messages(self, count: int) -> dict[str, Message]:
        start = max(0, len(self._messages) - count)
        return dict(zip(self._entry_ids[start:], self._messages[start:], strict=True))

    def context(self) -> Context:
        """The context so far. Entries that are added later do not change it."""
        if self._made is None:
            self._made = Context(
                messages=self._messages.copy(),
                entry_ids=self._entry_ids.copy(),
                model=self.model,
                thinking_level=self.thinking_level or DEFAULT_THINKING,
                compaction_id=self._compaction_id,
                branch_cache=self._branch_cache,
            )
        return self._made

    def _take(self, entry_id: str, message: Message) -> None:
        self._made = None
        self._messages.append(message)
        self._entry_ids.append(entry_id)
        self.model = _model_of(message) or self.model


_CARDS = ("🦞 OpenClaw ", "🧠 Context breakdown", "⚙️ Compact")
"""How the answers to ``/status``, ``/context`` and ``/compact`` begin."""


def is_notice(entry_id: str, message: Message) -> bool:
    """Whether the Gateway said this to people. It is part of the chat, but the model does not see it.

    What a client has put into the chat looks the same in older transcripts, and the model sees that. So without the
    mark only what certainly answers a command counts.
    """
    if not isinstance(message, AssistantMessage) or message.model != "gateway-injected":
        return False
    return message.notice is True or entry_id.startswith("say-") or message.text.startswith(_CARDS)


def _model_of(message: Message | None) -> tuple[str, str] | None:
    """The model that wrote the message, if one did."""
    if not isinstance(message, AssistantMessage) or not message.model or message.provider == "openclaw":
        return None
    return message.provider, message.model


def message_of(entry_type: str, raw: bytes) -> Message | None:
    """The message that an entry holds for the model, or None. See also ``is_notice``."""
    if entry_type == "message":
        try:
            return _typed_line.decode(raw).message
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return _unusual_message(raw)
    fields = fields_of(raw)
    if entry_type == "custom_message":
        return _user_message(fields.get("content"), _moment(fields))
    summary = fields.get("summary")
    if entry_type == "branch_summary" and isinstance(summary, str) and summary.strip():
        text = f"{BRANCH_INTRO}\n\n<summary>\n{summary}</summary>"
        return UserMessage(content=[TextBlock(text=text)], timestamp=_moment(fields))
    return None


def assistant_model(raw: bytes) -> tuple[str, str] | None:
    return _model_of(message_of("message", raw))


def fields_of(raw: bytes) -> dict[str, Any]:
    try:
        data = json_text.decode_loosely(raw)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def is_displayed(raw: bytes) -> bool:
    """Whether a ``custom_message`` or ``custom`` entry is shown to people."""
    return fields_of(raw).get("display") is True


def _unusual_message(raw: bytes) -> Message | None:
    """Decodes messages that other programs wrote, with unknown blocks, older roles or broken text."""
    try:
        message = decode_message(raw_line.decode(raw).message)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        message = None
    if message is not None:
        return message
    data = fields_of(raw).get("message")
    if not isinstance(data, dict):
        return None
    moment = data.get("timestamp")
    at = moment if isinstance(moment, int) else 0
    match data.get("role"):
        case "custom" | "hookMessage":
            return _user_message(data.get("content"), at)
        case "bashExecution":
            return None if data.get("excludeFromContext") else _user_message(_shell_text(data), at)
        case _:
            return decode_message(json_text.encode(data))


def _user_message(content: Any, at: int) -> UserMessage | None:
    if isinstance(content, str):
        return UserMessage(content=[TextBlock(text=content)], timestamp=at)
    if not isinstance(content, list):
        return None
    message = decode_message(json_text.encode({"role": "user", "content": content, "timestamp": at}))
    return message if isinstance(message, UserMessage) else None


def _shell_text(data: dict[str, Any]) -> str:
    output = str(data.get("output") or "")
    parts = [f"The user ran `{data.get('command') or ''}`", f"```\n{output}\n```" if output else "(it printed nothing)"]
    if data.get("cancelled"):
        parts.append("(it was cancelled)")
    elif data.get("exitCode") not in (None, 0):
        parts.append(f"(it ended with exit code {data['exitCode']})")
    if data.get("truncated"):
        parts.append(f"(output cut; all of it: {data.get('fullOutputPath') or 'not kept'})")
    return "\n".join(parts)


def _moment(fields: dict[str, Any]) -> int:
    try:
        return int(datetime.fromisoformat(str(fields.get("timestamp"))).timestamp() * 1000)
    except ValueError:
        return 0


# Exports and imports

PAGE_BYTES = 2 << 20
Shown: TypeAlias = Callable[[Message], Message | None]
"""Returns a message as people see it, or None if they see nothing of it."""


def public_page(
    entries: Sequence[Entry], start: int, shown: Shown = lambda message: message
) -> tuple[list[Any], int | None]:
    """Messages from number ``start`` on, and the number of the first message of the next page."""
    messages = public_messages(entries, shown)
    size = 0
    for index in range(start, len(messages)):
        size += len(msgspec.json.encode(messages[index]))
        if size > PAGE_BYTES and index > start:
            return messages[start:index], index
    return messages[start:], None


def public_messages(entries: Sequence[Entry], shown: Shown = lambda message: message) -> list[dict[str, Any]]:
    """All messages of the branch, without compaction. Unreadable and empty entries are left out."""
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
    ids: set[str] = set()
    for number, entry in enumerate(entries, 1):
        own, parent = entry.get("id"), entry.get("parentId")
        if not isinstance(own, str) or not isinstance(entry.get("type"), str) or own in ids:
            raise CannotImport(f"entry {number} has no type or no id of its own: this is not a transcript")
        if parent is not None and parent not in ids:
            raise CannotImport(f"entry {number} follows an entry that is not in the file")
        ids.add(own)
    if not entries:
        raise CannotImport("there is nothing in it")
    header |= {"id": session_id, "timestamp": timestamp}
    return b"".join(json_text.encode(item) + b"\n" for item in (header, *entries))


def imported_messages(lines: Sequence[str], now_ms: int) -> list[Message]:
    """The messages of a file of public messages. Raises ``CannotImport``."""
    objects = [_object(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    for number, message in enumerate(objects, 1):
        if message.get("role") not in ("user", "assistant") or not isinstance(message.get("content"), list | str):
            raise CannotImport(f"message {number} needs a role (user or assistant) and content")
    if not objects:
        raise CannotImport("there is nothing in it")
    return from_public(objects, now_ms=now_ms)


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
