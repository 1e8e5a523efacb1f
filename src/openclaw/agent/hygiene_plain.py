"""A conversation in its plainest form, for a provider that refused the usual one: nothing but words, taking turns.

Reasoning, pictures, call ids, signatures and the pairing of calls are what requests get refused for. What was called
and what came back stays as text; it stands on the user's side, so that the model does not learn to write calls as text.
"""

from __future__ import annotations

import re

import msgspec

from openclaw.agent.fit import cut_text
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolResultMessage, UserMessage
from openclaw.models.convert import is_blank, json_text, pair, without_failed
from openclaw.models.message_builder import strip_lone_surrogates

LONGEST_OUTPUT = 20_000
LONGEST_ARGUMENTS = 1000
IMAGE = "(an image was here)"
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def plain(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    calls: list[ToolCall] = []
    for message in pair(without_failed(messages)):
        match message:
            case AssistantMessage():
                calls = message.tool_calls
                _say(out, message, _cleaned(message.text))
            case ToolResultMessage():
                note = _note(calls.pop(0), message)
                _say(out, UserMessage(content=[], timestamp=message.timestamp), note)
            case UserMessage():
                _say(out, message, _text_of(message))
    return out


def is_plain(messages: list[Message]) -> bool:
    """Whether the plain form would be the same again."""
    return [_words(message) for message in messages] == [_words(message) for message in plain(messages)]


def _words(message: Message) -> tuple[type[Message], object]:
    content = message.content
    return type(message), [TextBlock(text=content)] if isinstance(content, str) else content


def plain_upto(messages: list[Message], moment_ms: int) -> list[Message]:
    """What was said until then in its plainest form, the rest as it is."""
    count = max((place + 1 for place, message in enumerate(messages) if message.timestamp <= moment_ms), default=0)
    while count < len(messages) and isinstance(messages[count], ToolResultMessage):
        count += 1
    return [*plain(messages[:count]), *messages[count:]]


def _say(out: list[Message], message: UserMessage | AssistantMessage, text: str) -> None:
    """As a message of its own, or with the last one when that has the same role."""
    if is_blank(text):
        return
    if out and type(out[-1]) is type(message) and isinstance(before := out[-1].content[0], TextBlock):
        out.pop()
        text = f"{before.text}\n\n{text}"
    out.append(msgspec.structs.replace(message, content=[TextBlock(text=text)]))


def _note(call: ToolCall, result: ToolResultMessage) -> str:
    arguments = cut_text(json_text(call.arguments), LONGEST_ARGUMENTS)
    text = cut_text(_text_of(result), LONGEST_OUTPUT)
    outcome = "failed" if result.is_error else "returned"
    return f"(The tool {_cleaned(call.name)} was called with {arguments} and {outcome}: {text or 'nothing'})"


def _text_of(message: UserMessage | ToolResultMessage) -> str:
    if isinstance(message.content, str):
        return _cleaned(message.content)
    parts = [_cleaned(block.text) if isinstance(block, TextBlock) else IMAGE for block in message.content]
    return "\n".join(part for part in parts if not is_blank(part))


def _cleaned(text: str) -> str:
    return _CONTROLS.sub("", strip_lone_surrogates(text))
