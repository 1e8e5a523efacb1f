"""Counts tokens: estimates for a prompt before it is sent, and what the provider reported after that.

An estimate takes four characters for a token. It is corrected by what the provider counted in the same session.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from openclaw.models.base import Model
from openclaw.models.errors import NamedCounts

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 4800
"""The size of a picture in characters. ``message_tokens`` does not count the pictures in a user's message."""
LEAST_SHORTENED = 100
"""A message that is shortened to fit the window takes at least this many tokens, unless it had less before."""
_SESSIONS_REMEMBERED = 1000
_LEAST_LEARNT = 200
_LEAST_FIXED, _MOST_FIXED = 0.5, 2.0
_LEAST_DENSITY, _MOST_DENSITY = 0.25, 16.0


def u16len(text: str) -> int:
    """The length in UTF-16 units. Every character budget in this format uses this unit."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def text_tokens(text: str) -> int:
    return -(-u16len(text) // CHARS_PER_TOKEN)


def message_chars(message: Message) -> int:
    match message:
        case UserMessage(content=str() as text):
            return u16len(text)
        case UserMessage():
            return sum(u16len(block.text) for block in message.content if isinstance(block, TextBlock))
        case AssistantMessage():
            return sum(_block_chars(block) for block in message.content)
        case ToolResultMessage():
            return sum(u16len(b.text) if isinstance(b, TextBlock) else IMAGE_CHARS for b in message.content)


def _block_chars(block: TextBlock | ThinkingBlock | ToolCall) -> int:
    match block:
        case TextBlock():
            return u16len(block.text)
        case ThinkingBlock():
            return u16len(block.thinking)
        case ToolCall():
            return u16len(block.name) + u16len(msgspec.json.encode(block.arguments).decode())


def message_tokens(message: Message) -> int:
    """The estimate that decides which recent messages are kept. A user's pictures count nothing here, so they stay."""
    return -(-message_chars(message) // CHARS_PER_TOKEN)


def prompt_tokens(messages: Iterable[Message]) -> int:
    """The estimated tokens of messages in a prompt. Every picture counts."""
    return sum(map(prompt_size, messages))


class GrowingSum:
    """``prompt_tokens`` of a list that mostly grows at its end. Only new messages are counted.

    It also remembers the places of the messages for which ``marks`` returns True.
    """

    def __init__(self, marks: Callable[[Message], bool] = lambda message: False) -> None:
        self._marks = marks
        self._counted: list[Message] = []
        self._sums: list[int] = []
        """The sum up to each message, without the message itself."""
        self._total = 0
        self._least_sums: list[int] = []
        """The same, with at most ``LEAST_SHORTENED`` for each message."""
        self._least_total = 0
        self.marked: list[int] = []

    def of(self, messages: list[Message]) -> int:
        total = self.further(messages)
        if total is None:
            self._counted, self._sums, self._total, self.marked = [], [], 0, []
            self._least_sums, self._least_total = [], 0
            total = self.further(messages) or 0
        return total

    def further(self, messages: list[Message]) -> int | None:
        """The sum if the list begins with the messages that were counted before, else None."""
        count = len(self._counted)
        # Comparing lists of the same objects is a thousand times cheaper than counting the tokens.
        if self._counted != messages[:count]:
            return None
        for index, message in enumerate(messages[count:], count):
            size = prompt_size(message)
            self._sums.append(self._total)
            self._least_sums.append(self._least_total)
            self._total += size
            self._least_total += min(size, LEAST_SHORTENED)
            self._counted.append(message)
            if self._marks(message):
                self.marked.append(index)
        return self._total

    def uncounted(self, messages: list[Message]) -> int:
        """The number of messages that ``of`` would count."""
        count = len(self._counted)
        return len(messages) - count if self._counted == messages[:count] else len(messages)

    def before(self, place: int) -> int:
        """The sum of the counted messages before ``place``."""
        return self._sums[place] if place < len(self._sums) else self._total

    def least_after(self, place: int) -> int:
        """The least that the counted messages from ``place`` on take, however much they are shortened."""
        return self._least_total - (self._least_sums[place] if place < len(self._least_sums) else self._least_total)

    def first_within(self, most: int, most_shortened: int) -> int:
        """The place from which on the counted messages take at most ``most``, and shortened ``most_shortened``."""
        return max(
            bisect.bisect_left(self._sums, self._total - most),
            bisect.bisect_left(self._least_sums, self._least_total - most_shortened),
        )


def prompt_size(message: Message) -> int:
    """The estimated tokens of one message in a prompt."""
    tokens = message_tokens(message)
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        tokens += sum(IMAGE_CHARS // CHARS_PER_TOKEN for block in message.content if isinstance(block, ImageBlock))
    return tokens


def overhead_tokens(system: str, suffix: str, tools: Sequence[ToolSpec]) -> int:
    """The estimated tokens of everything in a prompt except the messages."""
    schemas = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return -(-(u16len(system) + u16len(suffix) + schemas) // CHARS_PER_TOKEN)


def careful_tokens(text: str) -> int:
    """An estimate that is hardly ever too low: a token for each character outside ASCII, else for three characters."""
    plain = sum(character.isascii() for character in text)
    return -(-plain // 3) + u16len(text) - plain


def context_tokens(usage: Usage) -> int:
    """The tokens in the window after a call: the prompt and the answer."""
    return usage.total_tokens or usage.input + usage.output + usage.cache_read + usage.cache_write


def reported_prompt(usage: Usage, cap: int | None = None) -> int:
    """The prompt of a call as the provider counted it. A session's ``totalTokens`` shows it."""
    tokens = usage.input + usage.cache_read + usage.cache_write or usage.total_tokens
    return min(tokens, cap) if cap else tokens


def is_measured(message: Message) -> bool:
    """Whether the message is a finished answer with usage, so that it tells how full the window was."""
    return (
        isinstance(message, AssistantMessage)
        and message.stop_reason not in ("error", "aborted")
        and context_tokens(message.usage) > 0
    )


def context_estimate(messages: Sequence[Message], since_ms: int = -1) -> int:
    """The last report plus estimates for the messages after it. Without a report everything is estimated.

    ``since_ms`` is the time of the last compaction. The report of an older answer counts messages that have left the
    prompt, so it is ignored.
    """
    later = 0
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and is_measured(message) and message.timestamp > since_ms:
            return context_tokens(message.usage) + later
        later += message_tokens(message)
    return later


class TokenMeasure:
    """What the provider told about the prompts of one session with one model. Estimates are corrected by it.

    A prompt that the provider counted has exactly that size afterwards. Later messages are estimated in proportion.
    """

    def __init__(self) -> None:
        self.fixed = 1.0
        """The factor between our estimate and the tokens of the system prompt and the tools."""
        self.density = 1.0
        """The same for the messages. Chinese, code and base64 have several times the tokens of English prose."""
        self.window: int | None = None
        """The window that a refusal named."""
        self.learnt = False

    def learn(self, overhead: int, messages: int, counted: int) -> None:
        """Takes the provider's count of a prompt that it answered. The prompt's two parts were estimated."""
        if self.window is not None and counted > self.window:
            self.window = None  # The provider takes more than it said.
        self._believe(overhead, messages, counted)

    def _believe(self, overhead: int, messages: int, counted: int) -> None:
        if overhead + messages < _LEAST_LEARNT or counted <= 0:
            return  # The prompt is too short to tell anything.
        whole = counted / (overhead + messages)
        if messages * 8 <= overhead:
            self.fixed = self.density = min(max(whole, _LEAST_FIXED), _MOST_FIXED)
        else:
            self.density = _bounded((counted - self.fixed * overhead) / messages)
        self.learnt = True

    def refuse(self, overhead: int, messages: int, window: int, said: NamedCounts) -> None:
        """Learn from a rejected prompt: adopt the counts that the refusal names, else raise the estimate."""
        if said.limit is not None:
            self.window = window = min(window, said.limit)
        if said.prompt is not None:
            self._believe(overhead, messages, said.prompt)
            if said.prompt < window:
                return  # The prompt alone would fit. It was refused together with the room for its answer.
        if overhead * self.fixed + messages * self.density <= window:
            density = (window * 1.1 - overhead * self.fixed) / max(messages, 1)
            self.density = _bounded(max(self.density * 1.6, density))
        self.learnt = True

    def copy(self) -> TokenMeasure:
        """Return what is known now, for ``rewind``."""
        return copy.copy(self)

    def rewind(self, before: TokenMeasure) -> None:
        """Forget what was learnt since the copy was made."""
        vars(self).update(vars(before))

    def recall(self, overhead: int, messages: Sequence[Message], model: Model, since_ms: int, sums: GrowingSum) -> None:
        """Learns from the last answer in a conversation that an earlier process had, if this model gave it.

        ``sums`` has counted the messages.
        """
        self.learnt = True
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if not isinstance(message, AssistantMessage) or not is_measured(message):
                continue
            same = (message.provider, message.model) == (model.provider, model.id)
            if not same or message.timestamp <= since_ms:
                return
            estimated, counted = sums.before(index), reported_prompt(message.usage)
            # A count below the estimate and near the window may be that of a prompt that was shortened to fit.
            if counted >= overhead + estimated or counted * 4 < model.context_window * 3:
                self._believe(overhead, estimated, counted)
            return


def _bounded(density: float) -> float:
    return min(max(density, _LEAST_DENSITY), _MOST_DENSITY)


class TokenMeasures:
    """The ``TokenMeasure`` of each session and model. One session's text says nothing about another's."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], TokenMeasure] = OrderedDict()

    def of(self, session_id: str, model: Model) -> TokenMeasure:
        key = (session_id, model.ref)
        measure = self._known.get(key)
        if measure is None:
            measure = self._known[key] = TokenMeasure()
            if len(self._known) > _SESSIONS_REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return measure


class PromptBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The size that one prompt may have, in the model's tokens."""

    window: int
    output: int
    """The least room that the answer gets."""
    overhead: int
    """The size of everything in the prompt except the messages."""
    density: float = 1.0
    """The model's tokens for each estimated token of the messages."""

    @property
    def room(self) -> int:
        """The estimated tokens left for messages. It is not positive if the fixed part alone is too large."""
        return int((self.window - self.output - self.overhead) / self.density)

    def size(self, messages: Iterable[Message]) -> int:
        """The size of a prompt with these messages."""
        return self.size_of(prompt_tokens(messages))

    def size_of(self, estimated: int) -> int:
        """The same for messages whose ``prompt_tokens`` are known."""
        return self.overhead + math.ceil(estimated * self.density)

    def output_room(self, estimated: int) -> int:
        """The tokens that such a prompt leaves for its answer. A little is kept back, because sizes are estimates."""
        left = self.window - self.size_of(estimated)
        if left <= 0:
            return self.output  # The prompt was made to fit, so that it is smaller than the density says.
        return max(1, left - min(left // 8, self.window // 100))


def prompt_budget(model: Model, overhead: int, measure: TokenMeasure, wanted_output: int | None = None) -> PromptBudget:
    """``overhead`` is estimated."""
    window = model.context_window if measure.window is None else min(measure.window, model.context_window)
    return PromptBudget(
        window=window,
        output=min(wanted_output or model.max_tokens, model.max_tokens, max(window // 16, 1)),
        overhead=math.ceil(overhead * measure.fixed),
        density=measure.density,
    )
