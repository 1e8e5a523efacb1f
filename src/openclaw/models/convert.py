"""History as any provider will accept it: pairs complete and in order, foreign reasoning turned to text, ids legal.

Every adapter runs this before its own mapping. Nothing here touches what is stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from openclaw.messages import (
    AssistantBlock,
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from openclaw.models.base import Model
from openclaw.models.message_builder import encode_body, strip_lone_surrogates

NO_RESULT = "No result provided"
"""What the model reads for a call whose result was never written."""
SEE_IMAGE = "(see attached image)"
NO_OUTPUT = "(no output)"
BOOTSTRAP = "(session bootstrap)"
"""Stands in for the user turn a provider insists on when history begins with the assistant."""
CONTINUE = "(continue)"
"""Ends a request whose history ends with the assistant: many models refuse to continue their own message."""
IMAGE_LEFT_OUT = "(image left out: this model does not see images)"
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_NAME = 64
FAILED = ("error", "aborted")
"""How a reply ended that was not finished."""

IdRule: TypeAlias = Callable[[str, bool], str]
"""From a stored call id (and whether the same model wrote it) to one the provider accepts."""

_bad_name_chars = re.compile(r"[^a-zA-Z0-9_-]")


def transform(messages: list[Message], model: Model, ids: UniqueIds) -> list[Message]:
    """The messages to send: failed replies gone, every call followed at once by exactly one result, ids unique.

    Nothing to change in most conversations: those are returned as they are.
    """
    if _is_plain_talk(messages, model):
        return messages
    paired = pair(without_failed(messages))
    out: list[Message] = []
    current: dict[int, str] = {}
    """The new id per position of the call in the last assistant message; its results follow in the same order."""
    position = 0
    for message in paired:
        match message:
            case AssistantMessage():
                same = is_same_model(message, model)
                position = 0
                if same and plain_text(message):
                    # Nothing to change in most replies; the whole history comes through here at every call.
                    current = {}
                    out.append(message)
                    continue
                blocks = [converted for block in message.content if (converted := _assistant_block(block, same))]
                current = {}
                renamed: list[AssistantBlock] = []
                for block in blocks:
                    if isinstance(block, ToolCall):
                        current[len(current)] = new_id = ids.take(block.id, same)
                        block = _renamed_call(block, new_id, same)
                    renamed.append(block)
                if renamed:
                    out.append(msgspec.structs.replace(message, content=renamed))
            case ToolResultMessage():
                name = legal_name(message.tool_name)
                out.append(msgspec.structs.replace(message, tool_call_id=current[position], tool_name=name))
                position += 1
            case UserMessage():
                out.append(message)
    return out


def is_same_model(message: AssistantMessage, model: Model) -> bool:
    """Signatures and encrypted reasoning are only good for the model that wrote them."""
    return (message.provider, message.api, message.model) == (model.provider, model.api, model.id)


def _is_plain_talk(messages: list[Message], model: Model) -> bool:
    for message in messages:
        if type(message) is UserMessage:
            continue
        if type(message) is not AssistantMessage or message.stop_reason in FAILED:
            return False
        if not plain_text(message) or not is_same_model(message, model):
            return False
    return True


def plain_text(message: Message) -> str:
    """The words of a message that is one block of text which says something, and nothing else; empty of any other."""
    content = message.content
    if len(content) != 1 or type(block := content[0]) is not TextBlock or is_blank(block.text):
        return ""
    return block.text


def legal_name(name: str) -> str:
    """A tool's name as every provider accepts it; models sometimes invent names with dots or spaces."""
    return _bad_name_chars.sub("_", name)[:MAX_NAME] or "unknown"


def is_blank(text: str) -> bool:
    """Nothing a model could read: white space, or halves of surrogate pairs, which are not sent."""
    if "!" <= text[:1] <= "~":
        return False
    text = text.strip()
    return not text or ("\ud800" <= text[0] <= "\udfff" and not strip_lone_surrogates(text).strip())


def sanitised(call_id: str) -> str:
    return _bad_name_chars.sub("_", call_id)


def user_blocks(message: UserMessage | ToolResultMessage, model: Model) -> list[UserBlock]:
    """What can be sent of the content: no blank text, no picture the model or its provider would refuse."""
    content = message.content
    if not isinstance(content, str) and plain_text(message):
        return list(content)
    blocks: list[UserBlock] = [TextBlock(text=content)] if isinstance(content, str) else list(content)
    kept: list[UserBlock] = []
    blind = False
    for block in blocks:
        if isinstance(block, TextBlock):
            if not is_blank(block.text):
                kept.append(block)
        elif "image" not in model.input:
            blind = True
        elif block.mime_type not in IMAGE_TYPES or not block.data:
            kept.append(TextBlock(text=f"(image of type {block.mime_type or 'unknown'} left out: not supported)"))
        else:
            kept.append(block)
    # A message that was only a picture must not vanish: the model would answer the one before it.
    return kept or ([TextBlock(text=IMAGE_LEFT_OUT)] if blind else [])


def result_text(blocks: list[UserBlock]) -> str:
    """The text of a tool result; never empty, which some servers refuse."""
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if not is_blank(text):
        return text
    return SEE_IMAGE if any(isinstance(block, ImageBlock) for block in blocks) else NO_OUTPUT


def used_tool_names(messages: list[Message]) -> list[str]:
    """Names of the calls that are sent, each once, in order of appearance."""
    answers = (message for message in without_failed(messages) if isinstance(message, AssistantMessage))
    return list(dict.fromkeys(legal_name(call.name) for answer in answers for call in answer.tool_calls))


def without_failed(messages: list[Message]) -> list[Message]:
    """Failed replies stay in the transcript and are never replayed; of a stopped one, what the person saw is."""
    kept: list[Message] = []
    for message in messages:
        if not isinstance(message, AssistantMessage) or message.stop_reason not in FAILED:
            kept.append(message)
        elif message.stop_reason == "aborted" and not is_blank(message.text):
            kept.append(msgspec.structs.replace(message, content=[TextBlock(text=message.text)], stop_reason="stop"))
    return kept


def pair(messages: list[Message]) -> list[Message]:
    """Each assistant message with calls is followed by one result per call, in call order; stray results go.

    Messages that arrived between a call and its result are kept, after the results.
    """
    out: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if isinstance(message, ToolResultMessage):
            continue
        out.append(message)
        if not isinstance(message, AssistantMessage) or not (calls := message.tool_calls):
            continue
        results: dict[str, list[ToolResultMessage]] = {}
        deferred: list[Message] = []
        while index < len(messages) and not isinstance(messages[index], AssistantMessage):
            following = messages[index]
            index += 1
            if isinstance(following, ToolResultMessage):
                results.setdefault(following.tool_call_id, []).append(following)
            else:
                deferred.append(following)
        for call in calls:
            queue = results.get(call.id)
            out.append(queue.pop(0) if queue else _missing_result(call, message.timestamp))
        out.extend(deferred)
    return out


def _missing_result(call: ToolCall, timestamp: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=[TextBlock(text=NO_RESULT)],
        is_error=True,
        timestamp=timestamp,
    )


def _assistant_block(block: AssistantBlock, same: bool) -> AssistantBlock | None:
    match block:
        case ThinkingBlock():
            if same and block.thinking_signature:
                return block
            if block.redacted or is_blank(block.thinking):
                return None
            return block if same else TextBlock(text=block.thinking)
        case TextBlock():
            if is_blank(block.text):
                return None
            return block if same or block.text_signature is None else TextBlock(text=block.text)
        case ToolCall():
            return block


def _renamed_call(call: ToolCall, new_id: str, same: bool) -> ToolCall:
    return ToolCall(
        id=new_id,
        name=legal_name(call.name),
        arguments=call.arguments,
        thought_signature=call.thought_signature if same else None,
    )


class UniqueIds:
    """Ids numbered anew in every reply, and ids that become equal when made legal, must not clash."""

    def __init__(self, rule: IdRule, max_length: int) -> None:
        self._rule = rule
        self._max = max_length
        self._taken: set[str] = set()

    def copy(self) -> UniqueIds:
        other = UniqueIds(self._rule, self._max)
        other._taken |= self._taken
        return other

    def take(self, original: str, same: bool) -> str:
        base = self._rule(strip_lone_surrogates(original), same)
        candidate = base
        attempt = 1
        # Of an id in two parts only the first is what results refer to.
        while not (key := candidate.partition("|")[0]) or key in self._taken:
            attempt += 1
            candidate = self._variant(base, original, attempt)
        self._taken.add(key)
        return candidate

    def _variant(self, base: str, original: str, attempt: int) -> str:
        digest = hashlib.sha1(f"{original}:{attempt}".encode("utf-8", "replace")).hexdigest()
        if self._max < 16:
            return digest[: self._max]
        head, separator, tail = base.partition("|")
        return f"{head[: self._max - 9]}_{digest[:8]}{separator}{tail}"


def json_text(arguments: dict[str, Any]) -> str:
    """A call's arguments as the JSON text OpenAI's APIs carry."""
    return encode_body(arguments).decode()
