"""The finished turns of a conversation in a provider's form, encoded once and reused by later requests.

A conversation grows by whole turns, and the form of a turn does not depend on later turns. So finished turns are kept
as they were sent and only the current turn is built for each request. The cost of a request does not grow with the
length of the conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage
from openclaw.models.base import Model, ModelRequest
from openclaw.models.convert import FAILED, UniqueIds, is_blank
from openclaw.models.message_builder import encode_body

MIN_FINISHED = 8
"""Fewer finished messages are not worth keeping."""


class PartState:
    """What the builder of one part of a conversation must know of the parts before and after it."""

    def __init__(
        self, ids: UniqueIds, sent: set[str] | None = None, *, first: bool = True, finished: bool = False
    ) -> None:
        self.ids = ids
        self.sent = sent or set()
        """Ids of items that were sent. The OpenAI Responses API refuses an id that comes twice."""
        self.first = first
        """No part comes before this one."""
        self.finished = finished
        """Another turn follows this part."""

    def next(self, *, first: bool = False, finished: bool) -> PartState:
        return PartState(self.ids.copy(), self.sent.copy(), first=first, finished=finished)


BuildPart: TypeAlias = Callable[[list[Message], PartState], list[dict[str, Any]]]
"""Builds the provider's form of finished turns, of the current turn, or of the whole conversation."""


class _FinishedTurns:
    def __init__(self, model: Model, state: PartState) -> None:
        self.model = model
        self.source: list[Message] = []
        self.wire: list[msgspec.Raw] = []
        self.state = state

    def are_start_of(self, request: ModelRequest, current: int) -> bool:
        """Whether the kept turns begin this request. The messages are the same objects, so this compares pointers."""
        size, messages = len(self.source), request.messages
        if size > current or self.model != request.model or self.source != messages[:size]:
            return False
        return size == 0 or _begins_turn(messages, size)


def build_history(
    request: ModelRequest, ids: UniqueIds, build: BuildPart
) -> tuple[list[msgspec.Raw], list[dict[str, Any]]]:
    """The finished turns, encoded, and the current turn. The finished turns are kept in ``branch_cache``."""
    messages, branch_cache, state = request.messages, request.branch_cache, PartState(ids)
    current = _current_turn(messages) if branch_cache is not None and len(messages) > MIN_FINISHED else 0
    if branch_cache is None or current < MIN_FINISHED:
        return [], build(messages, state)
    # Another model or thinking level may need the same messages in another form.
    key = ("wire", request.model.ref, request.thinking)
    kept = branch_cache.get(key)
    if not isinstance(kept, _FinishedTurns) or not kept.are_start_of(request, current):
        kept = branch_cache[key] = _FinishedTurns(request.model, state)
    new = messages[len(kept.source) : current]
    if new:
        state = kept.state.next(first=not kept.source, finished=True)
        kept.wire += [msgspec.Raw(encode_body(item)) for item in build(new, state)]
        kept.source += new
        kept.state = state
    return kept.wire, build(messages[current:], kept.state.next(finished=False))


def _current_turn(messages: list[Message]) -> int:
    """The index of the last user message that follows a finished answer, or 0.

    Both messages have text and the answer calls no tool. So both are present in every provider's form and no provider
    joins them.
    """
    return next((index for index in range(len(messages) - 1, 0, -1) if _begins_turn(messages, index)), 0)


def _begins_turn(messages: list[Message], index: int) -> bool:
    words, before = messages[index], messages[index - 1]
    if not isinstance(words, UserMessage) or not isinstance(before, AssistantMessage):
        return False
    finished = before.stop_reason not in FAILED and not before.tool_calls
    return finished and _has_text(words) and _has_text(before)


def _has_text(message: UserMessage | AssistantMessage) -> bool:
    content = message.content
    if isinstance(content, str):
        return not is_blank(content)
    return any(isinstance(block, TextBlock) and not is_blank(block.text) for block in content)
