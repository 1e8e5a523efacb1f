"""What all providers do to a request before they write it in their own form.

``build_history`` makes a history that every provider accepts: calls paired with results, foreign reasoning as text,
legal ids. It keeps the finished turns encoded from one request to the next. The stored messages are not changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from openclaw.messages import (
    FAILED_STOPS,
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
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.http import encode_body, strip_lone_surrogates

NO_RESULT = "No result provided"
"""The result that the model reads when none was stored for a call."""
SEE_IMAGE = "(see attached image)"
RESULT_IMAGES = "Images from the tool results above:"
"""Begins the user message with pictures of tool results, where a result itself cannot hold them."""
NO_OUTPUT = "(no output)"
BOOTSTRAP = "(session bootstrap)"
"""The first user message when history begins with the assistant, which providers refuse."""
CONTINUE = "(continue)"
"""The last user message when history ends with the assistant. Many models refuse to continue their own message."""
IMAGE_LEFT_OUT = "(image left out: this model does not see images)"
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_NAME = 64

IdRule: TypeAlias = Callable[[str, bool], str]
"""Makes an id that the provider accepts from a stored call id and from whether the same model wrote it."""

_bad_name_chars = re.compile(r"[^a-zA-Z0-9_-]")


def transform(messages: list[Message], model: Model, ids: UniqueIds) -> list[Message]:
    """The messages to send: failed replies gone, every call followed at once by exactly one result, ids unique."""
    out: list[Message] = []
    calls: list[ToolCall] = []
    """The last assistant message's calls as they are sent. The results follow in the same order, under their names."""
    for message in pair(without_failed(messages)):
        match message:
            case AssistantMessage():
                same = is_same_model(message, model)
                blocks: list[AssistantBlock] = []
                calls = []
                for block in message.content:
                    converted = _assistant_block(block, same)
                    if isinstance(converted, ToolCall):
                        converted = ToolCall(
                            id=ids.take(converted.id, same),
                            name=legal_name(converted.name),
                            arguments=converted.arguments,
                            thought_signature=converted.thought_signature if same else None,
                        )
                        calls.append(converted)
                    if converted is not None:
                        blocks.append(converted)
                if blocks:
                    out.append(msgspec.structs.replace(message, content=blocks))
            case ToolResultMessage():
                call = calls.pop(0)
                out.append(msgspec.structs.replace(message, tool_call_id=call.id, tool_name=call.name))
            case UserMessage():
                out.append(message)
    return out


def is_same_model(message: AssistantMessage, model: Model) -> bool:
    """Whether the model wrote the message. Signatures and encrypted reasoning are valid only for their own model."""
    return (message.provider, message.api, message.model) == (model.provider, model.api, model.id)


def legal_name(name: str) -> str:
    """A tool name that every provider accepts. Models sometimes invent names with dots or spaces."""
    return _bad_name_chars.sub("_", name)[:MAX_NAME] or "unknown"


def is_blank(text: str) -> bool:
    """Whether the text holds only white space and halves of surrogate pairs, which are not sent."""
    if "!" <= text[:1] <= "~":
        return False
    text = text.strip()
    return not text or ("\ud800" <= text[0] <= "\udfff" and not strip_lone_surrogates(text).strip())


def sanitised(call_id: str) -> str:
    return _bad_name_chars.sub("_", call_id)


def tool_choice(request: ModelRequest) -> Any:
    """The choice among the tools: None (the model's own), ``"none"``, ``"required"`` or the name in a dict."""
    match request.tool_choice:
        case None | "auto":
            return None
        case "none" | "required" | {"name": str()}:
            return request.tool_choice
        case "any":
            return "required"
        case other:
            raise ModelError(
                f'Unknown tool choice {other!r}; use "auto", "none", "required" or {{"name": ...}}.', kind="format"
            )


def user_blocks(message: UserMessage | ToolResultMessage, model: Model) -> list[UserBlock]:
    """The blocks that can be sent: no blank text, no picture that the model or its provider would refuse."""
    blocks: list[UserBlock] = []
    unseen = False
    for block in _blocks(message):
        if isinstance(block, TextBlock):
            if not is_blank(block.text):
                blocks.append(block)
        elif "image" not in model.input:
            unseen = True
        elif block.mime_type not in IMAGE_TYPES or not block.data:
            blocks.append(TextBlock(text=f"(image of type {block.mime_type or 'unknown'} left out: not supported)"))
        else:
            blocks.append(block)
    # A message that was only a picture stays. Without it the model would answer the message before it.
    return blocks or ([TextBlock(text=IMAGE_LEFT_OUT)] if unseen else [])


def result_text(blocks: list[UserBlock]) -> str:
    """The text of a tool result. It is never empty, because some servers refuse empty results."""
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    if not is_blank(text):
        return text
    return SEE_IMAGE if any(isinstance(block, ImageBlock) for block in blocks) else NO_OUTPUT


def used_tool_names(messages: list[Message]) -> list[str]:
    """The names of the tools that history calls, each once, in order of appearance."""
    answers = (message for message in without_failed(messages) if isinstance(message, AssistantMessage))
    return list(dict.fromkeys(legal_name(call.name) for answer in answers for call in answer.tool_calls))


def without_failed(messages: list[Message]) -> list[Message]:
    """History without failed replies. Of a reply that was stopped, the text that the person saw stays."""
    remaining: list[Message] = []
    for message in messages:
        if not isinstance(message, AssistantMessage) or message.stop_reason not in FAILED_STOPS:
            remaining.append(message)
        elif message.stop_reason == "aborted" and not is_blank(message.text):
            remaining.append(
                msgspec.structs.replace(message, content=[TextBlock(text=message.text)], stop_reason="stop")
            )
    return remaining


def pair(messages: list[Message]) -> list[Message]:
    """Puts one result per call, in call order, behind each assistant message. Results without a call are left out.

    Messages that arrived between a call and its result come after the results.
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
            if queue := results.get(call.id):
                out.append(queue.pop(0))
                continue
            content: list[UserBlock] = [TextBlock(text=NO_RESULT)]
            out.append(
                ToolResultMessage(
                    tool_call_id=call.id,
                    tool_name=call.name,
                    content=content,
                    is_error=True,
                    timestamp=message.timestamp,
                )
            )
        out.extend(deferred)
    return out


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


class UniqueIds:
    """Hands out call ids that are legal and unique in one request.

    Stored ids can clash: some models restart the numbering of calls in every reply, and two ids can become equal when
    made legal.
    """

    def __init__(self, max_length: int, rule: IdRule | None = None) -> None:
        """Without a ``rule`` an id is legal when it has letters, digits, ``_`` and ``-`` only."""
        self._max = max_length
        self._rule = rule or (lambda call_id, same: sanitised(call_id)[:max_length])
        self._taken: set[str] = set()

    def copy(self) -> UniqueIds:
        other = UniqueIds(self._max, self._rule)
        other._taken |= self._taken
        return other

    def take(self, original: str, same: bool) -> str:
        base = self._rule(strip_lone_surrogates(original), same)
        candidate = base
        attempt = 1
        # Results refer only to the first part of an id with two parts.
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
    """A call's arguments as JSON text, which is the form of OpenAI's APIs."""
    return encode_body(arguments).decode()


MIN_FINISHED = 8
"""Fewer finished messages are not worth keeping."""


class PartState(msgspec.Struct):
    """What the builder of one part of a conversation must know of the parts before and after it."""

    ids: UniqueIds
    sent: set[str] = set()
    """Ids of items that were sent. The OpenAI Responses API refuses an id that comes twice."""
    first: bool = True
    """No part comes before this one."""
    finished: bool = False
    """Another turn follows this part."""

    def next(self, *, first: bool = False, finished: bool) -> PartState:
        return PartState(self.ids.copy(), self.sent.copy(), first, finished)


BuildPart: TypeAlias = Callable[[list[Message], PartState], list[dict[str, Any]]]
"""Writes finished turns, the current turn, or the whole conversation in the provider's form. See ``transform``."""


class _FinishedTurns(msgspec.Struct):
    model: Model
    state: PartState
    source: list[Message] = []
    wire: list[msgspec.Raw] = []

    def are_start_of(self, request: ModelRequest, current: int) -> bool:
        """Whether the kept turns begin this request. The messages are the same objects, so this compares pointers."""
        size, messages = len(self.source), request.messages
        if size > current or self.model != request.model or self.source != messages[:size]:
            return False
        return size == 0 or _begins_turn(messages, size)


def facts_place(messages: Sequence[Message], *, stay: bool = False) -> int | None:
    """The place of the message that ends with the turn facts. None: the request has none.

    It is the newest message, if a person wrote it. The history never holds the facts, so the next request has the same
    bytes up to them, and a provider's cache of everything before them stays valid. A request that ends with tool
    results has no facts. They would be missing there in the next request, which would then differ from what the
    provider has cached. With ``stay`` the facts stay behind the user's message in every request of the turn.
    """
    index = len(messages) - 1
    while stay and index > 0 and not isinstance(messages[index], UserMessage):
        index -= 1
    newest = messages[index] if messages else None
    if not isinstance(newest, UserMessage):
        return None
    blank = all(isinstance(block, TextBlock) and is_blank(block.text) for block in _blocks(newest))
    return None if blank else index


def with_turn_facts(messages: list[Message], facts: str, *, stay: bool = False) -> list[Message]:
    """The messages with the facts of this turn as a block of text of their own. See ``facts_place``."""
    index = facts_place(messages, stay=stay) if facts else None
    if index is None:
        return messages
    newest = messages[index]
    assert isinstance(newest, UserMessage)
    with_facts = msgspec.structs.replace(newest, content=[*_blocks(newest), TextBlock(text=facts)])
    return [*messages[:index], with_facts, *messages[index + 1 :]]


def _blocks(message: UserMessage | ToolResultMessage) -> list[UserBlock]:
    content = message.content
    return [TextBlock(text=content)] if isinstance(content, str) else content


def build_history(
    request: ModelRequest, ids: UniqueIds, build: BuildPart, *, facts_stay: bool = False, in_parts: bool = True
) -> tuple[list[msgspec.Raw], list[dict[str, Any]]]:
    """The finished turns, encoded, and the current turn. The finished turns are kept in ``branch_cache``.

    The current turn has the turn facts. ``facts_stay`` is explained at ``facts_place``. Without ``in_parts`` the whole
    conversation is built as the current turn. Raises ``ModelError`` if nothing can be sent.
    """
    messages, model = request.messages, request.model

    def built(part: list[Message], state: PartState) -> list[dict[str, Any]]:
        return build(transform(part, model, state.ids), state)

    def built_now(part: list[Message], state: PartState) -> list[dict[str, Any]]:
        now = built(with_turn_facts(part, request.turn_facts, stay=facts_stay), state)
        if not now:
            raise ModelError("The conversation holds no message that could be sent to the model.", kind="format")
        return now

    branch_cache = request.branch_cache if in_parts and len(messages) > MIN_FINISHED else None
    current = _current_turn(messages) if branch_cache is not None else 0
    if branch_cache is None or current < MIN_FINISHED:
        return [], built_now(messages, PartState(ids))
    # Another model may need the same messages in another form.
    key = ("wire", model.ref)
    cached = branch_cache.get(key)
    if not isinstance(cached, _FinishedTurns) or not cached.are_start_of(request, current):
        cached = branch_cache[key] = _FinishedTurns(model, PartState(ids))
    new = messages[len(cached.source) : current]
    if new:
        cached.state = cached.state.next(first=not cached.source, finished=True)
        cached.wire += [msgspec.Raw(encode_body(item)) for item in built(new, cached.state)]
        cached.source += new
    return cached.wire, built_now(messages[current:], cached.state.next(finished=False))


def _current_turn(messages: list[Message]) -> int:
    return next((index for index in range(len(messages) - 1, 0, -1) if _begins_turn(messages, index)), 0)


def _begins_turn(messages: list[Message], index: int) -> bool:
    """Whether a user message follows a finished answer here.

    Both messages have text and the answer calls no tool. So both are present in every provider's form and no provider
    joins them.
    """
    words, before = messages[index], messages[index - 1]
    if not isinstance(words, UserMessage) or not isinstance(before, AssistantMessage):
        return False
    finished = before.stop_reason not in FAILED_STOPS and not before.tool_calls
    return finished and _has_text(words) and _has_text(before)


def _has_text(message: UserMessage | AssistantMessage) -> bool:
    content = message.content
    if isinstance(content, str):
        return not is_blank(content)
    return any(isinstance(block, TextBlock) and not is_blank(block.text) for block in content)


def encoded_once(request: ModelRequest, name: str, make: Callable[[], Any]) -> Any:
    """``make()``, encoded and kept with the prompt. It may depend only on the prompt, its tools and the model."""
    cache = request.prompt_cache
    if cache is None:
        return make()
    cached = cache.get(name)
    if cached is None or (cached[0] is not request.model and cached[0] != request.model):
        cached = cache[name] = (request.model, msgspec.Raw(encode_body(make())))
    return cached[1]
