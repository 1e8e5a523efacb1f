"""The last guarantee before a request goes out: it fits the model's window, or a person is told why it cannot.

Works on the prompt in memory only. First old tool output is shortened, then recent tool output, then long texts, then
whole turns give way, the oldest first; the newest words of the user are the last to be touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec

from openclaw.agent.tokens import CHARS_PER_TOKEN, PromptBudget, prompt_tokens
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)

SMALLEST_ROOM = 128
"""Estimated tokens for messages below which no sensible conversation is possible."""
RECENT = 4
"""Messages at the end whose tool output is shortened only when the older output was not enough."""
MOST_SHORTENED = 4
"""Beyond this many times the room whole turns are left out at once: a word of each would help nobody."""
TEXT_CHARS = (8000, 2000, 500)
OUTPUT_CHARS = (3000, 400)
LEFT_OUT = "[… {count} characters left out here: the conversation is larger than the model's window …]"
FORGOTTEN = "[Earlier messages of this conversation were left out: together they are larger than the model's window.]"


class DoesNotFit(Exception):
    """The fixed part of the prompt leaves no room; the text is for the person."""


def check_room(budget: PromptBudget) -> None:
    if budget.room >= SMALLEST_ROOM:
        return
    fixed = round(budget.overhead * budget.scale)
    raise DoesNotFit(
        f"The prompt does not fit: instructions, workspace files and tools alone take about {fixed} tokens of the "
        f"model's window of {budget.window}. Shorten the workspace files, allow fewer tools (tools.allow), or choose "
        "a model with a larger window (/model)."
    )


class Fitted(msgspec.Struct, frozen=True):
    messages: list[Message]
    shortened: int
    """Messages that were shortened or left out."""


def fit(messages: list[Message], budget: PromptBudget, estimated: int | None = None) -> Fitted:
    """The same list when it fits. Pure; raises nothing: ``check_room`` is asked before the run.

    ``estimated``: the messages' ``prompt_tokens``, where they are known.
    """
    room = max(budget.room, SMALLEST_ROOM)
    if (prompt_tokens(messages) if estimated is None else estimated) <= room:
        return Fitted(messages, 0)
    result = list(messages)
    if prompt_tokens(result) > room * MOST_SHORTENED:
        result = _newest_turns(result, room * MOST_SHORTENED)
    for shorten in _rungs(result):
        if prompt_tokens(result) <= room:
            break
        shorten(room)
    if prompt_tokens(result) > room:
        result = _newest_turns(result, room)
    kept = {id(message) for message in result}
    return Fitted(result, sum(1 for message in messages if id(message) not in kept))


def _rungs(result: list[Message]) -> Iterator[Callable[[int], None]]:
    """One step after the other, each only as far as it is needed."""
    last_user = max((n for n, m in enumerate(result) if isinstance(m, UserMessage)), default=-1)
    old = range(len(result) - RECENT)
    everything = range(len(result))
    for places in (old, everything):
        for chars in OUTPUT_CHARS:
            yield lambda room, places=places, chars=chars: _shorten(result, places, chars, room, _is_output)
    for chars in TEXT_CHARS:
        others = [place for place in everything if place != last_user]
        yield lambda room, others=others, chars=chars: _shorten(result, others, chars, room, _is_any)
    if last_user >= 0:
        yield lambda room: _shorten_to_room(result, last_user, room)


def _is_output(message: Message) -> bool:
    return isinstance(message, ToolResultMessage)


def _is_any(message: Message) -> bool:
    return True


def _shorten(
    result: list[Message], places: Sequence[int], chars: int, room: int, applies: Callable[[Message], bool]
) -> None:
    over = prompt_tokens(result) - room
    for place in places:
        if over <= 0:
            return
        message = result[place]
        if applies(message) and (shorter := shortened(message, chars)) is not message:
            over -= prompt_tokens([message]) - prompt_tokens([shorter])
            result[place] = shorter


def _shorten_to_room(result: list[Message], place: int, room: int) -> None:
    """One message larger than everything else: it gets half of the room, however little that is."""
    others = prompt_tokens(result) - prompt_tokens([result[place]])
    share = max(room - others, room // 2)
    result[place] = shortened(result[place], max(200, share * CHARS_PER_TOKEN - 200), drop_images=True)


def _newest_turns(result: list[Message], room: int) -> list[Message]:
    """Leaves out whole turns from the beginning; a summary at the very beginning stays if it can."""
    note = UserMessage(content=[TextBlock(text=FORGOTTEN)])
    starts = [place for place, message in enumerate(result) if isinstance(message, UserMessage)]
    first = result[:1] if starts[:1] == [0] else []
    from_here = list(accumulate((prompt_tokens([message]) for message in reversed(result)), initial=0))[::-1]
    for head in ([*first, note], [note]):
        left = room - prompt_tokens(head)
        start = next((place for place in starts[1:] if from_here[place] <= left), None)
        if start is not None:
            return [*head, *result[start:]]
    return _newest_messages(result, room, note)


def _newest_messages(result: list[Message], room: int, note: UserMessage) -> list[Message]:
    """A single turn that is too long: its question, and as many of its last steps as there is room for."""
    last_user = max((n for n, m in enumerate(result) if isinstance(m, UserMessage)), default=0)
    question = shortened(result[last_user], max(200, room), drop_images=True) if result else note
    left, start = room - prompt_tokens([question]), len(result)
    for place in range(len(result) - 1, last_user, -1):
        left -= prompt_tokens([result[place]])
        if left < 0:
            break
        if isinstance(result[place], AssistantMessage):
            start = place
    return [question, *result[start:]]


def shortened(message: Message, chars: int, *, drop_images: bool = False) -> Message:
    """At most about ``chars`` of text, from the beginning and the end; the message itself when it is short enough."""
    match message:
        case UserMessage(content=str() as text):
            return message if len(text) <= chars else msgspec.structs.replace(message, content=cut_text(text, chars))
        case AssistantMessage():
            if all(len(block.text) <= chars for block in message.content if isinstance(block, TextBlock)):
                return message
            # Signed blocks belong to the exact text: they go when it changes.
            blocks = [
                TextBlock(text=cut_text(block.text, chars)) if isinstance(block, TextBlock) else block
                for block in message.content
            ]
            return msgspec.structs.replace(message, content=blocks)
        case _:
            blocks = [block for block in message.content if not isinstance(block, str)]
            cut = [_cut_block(block, chars, drop_images) for block in blocks]
            same = all(new is old for new, old in zip(cut, blocks, strict=True))
            return message if same else msgspec.structs.replace(message, content=cut)


def _cut_block(block: UserBlock, chars: int, drop_images: bool) -> UserBlock:
    if isinstance(block, ImageBlock):
        return TextBlock(text="[an image, left out for want of room]") if drop_images else block
    return block if len(block.text) <= chars else TextBlock(text=cut_text(block.text, chars))


def cut_text(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    head = chars * 2 // 3
    tail = chars - head
    return f"{text[:head]}\n{LEFT_OUT.format(count=len(text) - chars)}\n{text[-tail:]}"
