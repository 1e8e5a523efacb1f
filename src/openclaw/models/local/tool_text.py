"""How models of the Qwen3 family read tools and write calls: the text of a prompt, and the parts of an answer.

The prompt is ChatML. Tools stand in the system turn as JSON in ``<tools>``; a call is JSON in ``<tool_call>``; a result
is a user's turn in ``<tool_response>``; reasoning is in ``<think>``. Other models that were trained on the same form
work too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.messages import AssistantMessage, Message, ToolResultMessage, ToolSpec, UserMessage

if TYPE_CHECKING:
    from openclaw.models.http import BlockBuilder, MessageBuilder

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
MARKERS = (THINK, THINK_END, CALL, CALL_END, RESULT, RESULT_END, "<tools>", "</tools>")
TOOL_FORMAT = "qwen3"
"""``compat.toolFormat`` of a configured model file that was trained on this form."""
NO_THOUGHTS = f"{THINK}\n\n{THINK_END}\n\n"
"""Begins the answer of a model that must not reason."""
LONGEST_CALL = 200_000

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    "XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""The words that these models were trained on. A model of this size knows the task by them alone."""


class ChatTurn(msgspec.Struct, frozen=True):
    role: str
    content: str

    @property
    def size(self) -> int:
        return len(self.content) + TURN_OVERHEAD


TURN_OVERHEAD = 16
"""Characters that are counted for the markers of a turn."""


def system_text(system: str, tools: Sequence[ToolSpec]) -> str:
    """The system turn with the tools that the model may call."""
    if not tools:
        return system
    listed = "\n".join(
        json.dumps({"type": "function", "function": msgspec.to_builtins(tool)}, ensure_ascii=False) for tool in tools
    )
    return "\n\n".join(part for part in (system, _TOOLS.format(tools=listed)) if part)


def tool_turn(message: Message, text: str) -> ChatTurn:
    """One message as a turn. ``text`` is what it says, without its calls."""
    match message:
        case AssistantMessage():
            parts = [harmless(text)] if text else []
            for call in message.tool_calls:
                written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
                parts.append(f"{CALL}\n{harmless(written)}\n{CALL_END}")
            return ChatTurn("assistant", "\n".join(parts))
        case ToolResultMessage():
            return ChatTurn("user", f"{RESULT}\n{harmless(text)}\n{RESULT_END}")
        case UserMessage():
            return ChatTurn("user", harmless(text))


def harmless(text: str) -> str:
    """Breaks markers in a text, which the model would read as real turns, calls and results."""
    text = text.replace("<|", "< |")
    for marker in MARKERS:
        if marker in text:
            text = text.replace(marker, f"< {marker[1:]}")
    return text.encode("utf-8", "replace").decode()


def prompt_text(messages: Sequence[dict[str, str]], *, reasons: bool) -> str:
    """The whole prompt, up to where the answer begins."""
    turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
    return f"{turns}<|im_start|>assistant\n{'' if reasons else NO_THOUGHTS}"


class OutputParser:
    """Separates words, reasoning and calls in the text of one answer, wherever its pieces are cut.

    ``names`` are the tools that were offered. Without any, ``<tool_call>`` is text like any other.
    """

    def __init__(self, builder: MessageBuilder, names: Sequence[str]) -> None:
        self._builder = builder
        self._opens = (THINK, CALL) if names else (THINK,)
        self._mode = ""
        """The marker whose end is awaited. Empty: words."""
        self._rest = ""
        """Text that may be the beginning of a marker, or the text of an unfinished call."""
        self._space = ""
        """White space that is said only when words follow it."""
        self._block: BlockBuilder | None = None
        self._calls = 0

    def feed(self, delta: str) -> None:
        self._rest += delta
        while self._step():
            pass

    def finish(self, *, cut: bool) -> None:
        """Takes what is left at the end of the answer. ``cut``: the limit ended it."""
        rest, self._rest = self._rest, ""
        if self._mode == CALL:
            self._call(rest)
        elif rest:
            self._say(rest)
        if not cut:
            self._mode = ""

    def _step(self) -> bool:
        """Takes the text up to the next marker. False: more text is needed."""
        if self._mode == CALL:
            end = self._rest.find(CALL_END)
            if end < 0:
                return False
            written, self._rest, self._mode = self._rest[:end], self._rest[end + len(CALL_END) :], ""
            self._call(written)
            return True
        awaited = (THINK_END,) if self._mode == THINK else self._opens
        places = [(start, marker) for marker in awaited if (start := self._rest.find(marker)) >= 0]
        if not places:
            held = held_back(self._rest, awaited)
            shown, self._rest = self._rest[: len(self._rest) - held], self._rest[len(self._rest) - held :]
            self._say(shown)
            return False
        start, marker = min(places)
        self._say(self._rest[:start])
        self._rest = self._rest[start + len(marker) :]
        self._mode = "" if marker == THINK_END else marker
        self._block, self._space = None, ""
        return True

    def _say(self, text: str) -> None:
        words = text if self._block is not None else text.lstrip()
        if not words:
            return
        spoken = self._space + words
        trimmed = spoken.rstrip()
        self._space = spoken[len(trimmed) :]
        if not trimmed:
            return
        if self._block is None:
            self._block = self._builder.open("thinking" if self._mode == THINK else "text")
        self._builder.extend(self._block, trimmed)

    def _call(self, written: str) -> None:
        """Adds a call. One whose JSON cannot be read is kept too: the agent tells the model what is wrong with it."""
        self._calls += 1
        self._block, self._space = None, ""
        name, arguments = read_call(written[:LONGEST_CALL])
        block = self._builder.open_call(f"call_{self._builder.timestamp}_{self._calls}", name)
        self._builder.extend(block, arguments)


def held_back(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a marker."""
    longest = max(map(len, markers)) - 1
    return next(
        (
            size
            for size in range(min(longest, len(text)), 0, -1)
            if any(marker.startswith(text[-size:]) for marker in markers)
        ),
        0,
    )


def read_call(written: str) -> tuple[str, str]:
    """Return the name and the JSON text of the arguments. Any other text is returned as the arguments."""
    text = written.strip()
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return _named_in(text), text or "{"
    if not isinstance(value, dict):
        return "unknown", text
    arguments = value.get("arguments", value.get("parameters", {}))
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(value.get("name") or "unknown"), shown


def _named_in(text: str) -> str:
    """The name of the function in JSON that was cut or is wrong."""
    _, separator, rest = text.partition('"name"')
    quoted = rest.split('"', 2)
    return quoted[1] if separator and len(quoted) == 3 else "unknown"
