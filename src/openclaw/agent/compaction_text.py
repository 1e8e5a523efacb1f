"""A conversation as plain text for a summariser: who said what, long output shortened, in pieces that fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from openclaw.agent.fit import cut_text
from openclaw.agent.tokens import text_tokens
from openclaw.messages import (
    AssistantMessage,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    user_text,
)

OUTPUT_CHARS = 2000
"""A tool result is quoted no longer than this, whatever the room."""
_LEVELS = ((OUTPUT_CHARS, 20_000), (600, 6000), (200, 2000), (80, 800), (0, 300))
"""Characters of a tool result and of any other text, from generous to sparing."""


class FileOps(msgspec.Struct):
    """Files the conversation read and changed, so that a summary need not list them."""

    read: set[str] = msgspec.field(default_factory=set[str])
    modified: set[str] = msgspec.field(default_factory=set[str])

    def take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            for call in message.tool_calls if isinstance(message, AssistantMessage) else ():
                path = call.arguments.get("path") or call.arguments.get("file_path")
                if isinstance(path, str) and path:
                    if call.name == "read":
                        self.read.add(path)
                    elif call.name in ("write", "edit"):
                        self.modified.add(path)

    def lists(self) -> tuple[list[str], list[str]]:
        """Read only, then modified; both sorted."""
        return sorted(self.read - self.modified), sorted(self.modified)

    def block(self, most_chars: int = 4000) -> str:
        text = ""
        for name, files in zip(("read-files", "modified-files"), self.lists(), strict=True):
            if files:
                listed = cut_text("\n".join(files), most_chars)
                text += f"\n\n<{name}>\n{listed}\n</{name}>"
        return text


def without_file_lists(summary: str) -> str:
    """A summary without the lists above: they are made anew each time."""
    for name in ("read-files", "modified-files"):
        before, opening, rest = summary.partition(f"\n\n<{name}>\n")
        _, closing, after = rest.partition(f"\n</{name}>")
        if opening and closing:
            summary = before + after
    return summary


FAILURES_HEADING = "## Tool Failures"
MOST_FAILURES = 8
FAILURE_CHARS = 240


def tool_failures(messages: Iterable[Message]) -> str:
    """The section of a summary that tells which tools failed and how, each call once."""
    failed = {m.tool_call_id: m for m in messages if isinstance(m, ToolResultMessage) and m.is_error}
    if not failed:
        return ""
    lines = [_failure(message) for message in list(failed.values())[:MOST_FAILURES]]
    if len(failed) > MOST_FAILURES:
        lines.append(f"- …and {len(failed) - MOST_FAILURES} more")
    return "\n\n".join(("", FAILURES_HEADING + "\n" + "\n".join(lines)))


def _failure(message: ToolResultMessage) -> str:
    details = message.details if isinstance(message.details, dict) else {}
    facts = [f"{name}={details[name]}" for name in ("status", "exitCode") if details.get(name) is not None]
    text = " ".join(message.text.split())
    said = text if len(text) <= FAILURE_CHARS else text[: FAILURE_CHARS - 1].rstrip() + "…"
    about = f" ({' '.join(facts)})" if facts else ""
    return f"- {message.tool_name}{about}: {said or 'failed'}"


def spoken(message: Message, output_chars: int = OUTPUT_CHARS, text_chars: int = 1 << 30) -> str:
    """One message with its label; empty when there is nothing to tell. Pictures are left out."""
    match message:
        case UserMessage():
            text = user_text(message).strip()
            return f"[User]: {cut_text(text, text_chars)}" if text else ""
        case ToolResultMessage():
            text = message.text.strip()
            return f"[Tool result]: {cut_text(text, output_chars)}" if text else ""
        case AssistantMessage():
            return _assistant(message, text_chars)


def _assistant(message: AssistantMessage, text_chars: int) -> str:
    if message.stop_reason in ("error", "aborted") and not message.content:
        return ""
    thinking = "\n".join(b.thinking for b in message.content if isinstance(b, ThinkingBlock) and b.thinking.strip())
    text = "\n".join(b.text for b in message.content if isinstance(b, TextBlock) and b.text.strip())
    calls = "; ".join(_call(block, text_chars) for block in message.content if isinstance(block, ToolCall))
    parts = [
        f"[Assistant thinking]: {cut_text(thinking, text_chars)}" if thinking else "",
        f"[Assistant]: {cut_text(text, text_chars)}" if text else "",
        f"[Assistant tool calls]: {calls}" if calls else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _call(call: ToolCall, text_chars: int) -> str:
    given = (f"{key}={msgspec.json.encode(value).decode()}" for key, value in call.arguments.items())
    return f"{call.name}({', '.join(cut_text(value, text_chars) for value in given)})"


def conversation(messages: Sequence[Message]) -> str:
    return "\n\n".join(part for message in messages if (part := spoken(message)))


def pieces(messages: Sequence[Message], most_tokens: int, most_pieces: int) -> list[str]:
    """The conversation in at most ``most_pieces`` texts of at most ``most_tokens`` each.

    The more there is, the shorter each message is quoted; if even that is not enough, the middle is left out.
    """
    packed: list[list[str]] = []
    for output_chars, text_chars in _LEVELS:
        parts = [part for message in messages if (part := spoken(message, output_chars, text_chars))]
        packed = _packed(parts, most_tokens)
        if len(packed) <= most_pieces:
            return ["\n\n".join(piece) for piece in packed]
    left_out = packed[1 : len(packed) - most_pieces + 1]
    count = sum(len(piece) for piece in left_out)
    kept = [packed[0], *packed[len(packed) - most_pieces + 1 :]]
    texts = ["\n\n".join(piece) for piece in kept]
    texts[0] += f"\n\n[… {count} messages left out here …]"
    return texts


def _packed(parts: Sequence[str], most_tokens: int) -> list[list[str]]:
    packed: list[list[str]] = [[]]
    size = 0
    for part in parts:
        tokens = text_tokens(part) + 1
        if tokens > most_tokens:
            part = cut_text(part, max(80, most_tokens * 4 - 120))
            tokens = text_tokens(part) + 1
        if size + tokens > most_tokens and packed[-1]:
            packed.append([])
            size = 0
        packed[-1].append(part)
        size += tokens
    return packed if packed[0] else []


def digest(messages: Sequence[Message], most_chars: int) -> str:
    """Without a model: the beginning of each thing that was said, as many of the newest as there is room for."""
    lines: list[str] = []
    left = most_chars
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            continue
        who = "User" if isinstance(message, UserMessage) else "Assistant"
        said = user_text(message) if isinstance(message, UserMessage) else message.text
        words = " ".join(said.split())
        if not words:
            continue
        line = f"- {who}: {words if len(words) <= 200 else words[:199].rstrip() + '…'}"
        left -= len(line) + 1
        if left < 0:
            lines.append("- (what was said before that is only in the transcript)")
            break
        lines.append(line)
    return "\n".join(reversed(lines))
