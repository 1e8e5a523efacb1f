"""The beginning of a conversation, turned into a vendor's form and encoded once.

A conversation grows by whole turns, and what a turn became on the wire does not depend on what is said later. So the
turns that are over are kept as they were sent, and only the current one is made anew for each request: the cost of a
request does not grow with the length of what came before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage
from openclaw.models.base import Model, ModelRequest
from openclaw.models.convert import FAILED, UniqueIds, is_blank, plain_text
from openclaw.models.message_builder import encode_body

FEWEST = 8
"""A shorter beginning is not worth keeping."""


class State:
    """What one part of a conversation must know of the parts before it."""

    def __init__(self, ids: UniqueIds, sent: set[str] | None = None, *, first: bool = True, over: bool = False) -> None:
        self.ids = ids
        self.sent = sent or set()
        """Ids of items the vendor has been given; it refuses one twice."""
        self.first = first
        """Nothing comes before it."""
        self.over = over
        """Another turn follows."""

    def next(self, *, first: bool = False, over: bool) -> State:
        return State(self.ids.copy(), self.sent.copy(), first=first, over=over)


Build: TypeAlias = Callable[[list[Message], State], list[dict[str, Any]]]
"""One part of a conversation on the wire: some turns that are over, or the current one, or everything."""


class _Settled:
    def __init__(self, model: Model, state: State) -> None:
        self.model = model
        self.source: list[Message] = []
        self.wire: list[msgspec.Raw] = []
        self.state = state

    def begins(self, request: ModelRequest, place: int) -> bool:
        """Same objects: comparing them is a comparison of pointers."""
        size, messages = len(self.source), request.messages
        if size > place or self.model != request.model or self.source != messages[:size]:
            return False
        return size == 0 or _begins_turn(messages, size)


def in_parts(request: ModelRequest, ids: UniqueIds, build: Build) -> tuple[list[msgspec.Raw], list[dict[str, Any]]]:
    """The turns that are over, encoded, and the current one."""
    messages, memo, state = request.messages, request.memo, State(ids)
    place = _current_turn(messages) if memo is not None and len(messages) > FEWEST else 0
    if memo is None or place < FEWEST:
        return [], build(messages, state)
    # Another model, or another thinking level, may want the same words in another form.
    key = ("wire", request.model.ref, request.thinking)
    known = memo.get(key)
    if not isinstance(known, _Settled) or not known.begins(request, place):
        known = memo[key] = _Settled(request.model, state)
    new = messages[len(known.source) : place]
    if new:
        state = known.state.next(first=not known.source, over=True)
        known.wire += [msgspec.Raw(encode_body(item)) for item in build(new, state)]
        known.source += new
        known.state = state
    return known.wire, build(messages[place:], known.state.next(over=False))


def _current_turn(messages: list[Message]) -> int:
    """Where the last words of the user stand that follow a finished answer; 0 where there are none.

    Both say something and neither calls a tool: so each is there in every vendor's form, and nothing joins them.
    """
    return next((place for place in range(len(messages) - 1, 0, -1) if _begins_turn(messages, place)), 0)


def _begins_turn(messages: list[Message], place: int) -> bool:
    words, before = messages[place], messages[place - 1]
    if not isinstance(words, UserMessage) or not isinstance(before, AssistantMessage):
        return False
    finished = before.stop_reason not in FAILED and not before.tool_calls
    return finished and _says_something(words) and _says_something(before)


def _says_something(message: UserMessage | AssistantMessage) -> bool:
    content = message.content
    if isinstance(content, str):
        return not is_blank(content)
    return bool(plain_text(message)) or any(
        isinstance(block, TextBlock) and not is_blank(block.text) for block in content
    )
