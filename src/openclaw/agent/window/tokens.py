"""Counts tokens: estimates for a prompt before it is sent, and what the provider reported after that.

An estimate takes four characters for a token. It is corrected by what the same model reported for earlier estimates.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence

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

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 4800
"""The size of a picture in characters. ``message_tokens`` does not count the pictures in a user's message."""
_MODELS_REMEMBERED = 200
_LEAST_SCALE, _MOST_SCALE = 0.5, 4.0


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
    return sum(map(_prompt_tokens, messages))


class GrowingSum:
    """``prompt_tokens`` of a list that mostly grows at its end. Only new messages are counted."""

    def __init__(self) -> None:
        self._counted: list[Message] = []
        self._total = 0

    def of(self, messages: list[Message]) -> int:
        total = self.further(messages)
        if total is None:
            self._counted, self._total = messages.copy(), prompt_tokens(messages)
        return self._total

    def further(self, messages: list[Message]) -> int | None:
        """The sum if the list begins with the messages that were counted before, else None."""
        known = len(self._counted)
        # Comparing lists of the same objects is a thousand times cheaper than counting the tokens.
        if self._counted != messages[:known]:
            return None
        for message in messages[known:]:
            self._total += _prompt_tokens(message)
            self._counted.append(message)
        return self._total


def _prompt_tokens(message: Message) -> int:
    content = message.content
    if len(content) == 1 and type(block := content[0]) is TextBlock and block.text.isascii():
        # Most messages are like this. The short way takes a sixth of the time.
        return -(-len(block.text) // CHARS_PER_TOKEN)
    tokens = message_tokens(message)
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        tokens += sum(IMAGE_CHARS // CHARS_PER_TOKEN for block in message.content if isinstance(block, ImageBlock))
    return tokens


def overhead_tokens(system: str, suffix: str, tools: Sequence[ToolSpec]) -> int:
    """The estimated tokens of everything in a prompt except the messages."""
    schemas = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return -(-(u16len(system) + u16len(suffix) + schemas) // CHARS_PER_TOKEN)


# Reported by the provider


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


class Scale:
    """The factor by which the estimate is off for one model. It is learnt from what the provider reports."""

    def __init__(self) -> None:
        self.value = 1.0
        self._learnt = False

    def learn(self, estimated: int, reported: int) -> None:
        """Compares the estimate of a prompt that was sent with what the provider counted."""
        if estimated < 200 or reported <= 0:
            return  # The prompt is too short to tell anything.
        seen = min(max(reported / estimated, _LEAST_SCALE), _MOST_SCALE)
        # A larger factor counts at once and a smaller one only slowly, because only a prompt that is too large fails.
        slowly = self._learnt and seen < self.value
        self.value = self.value + (seen - self.value) / 4 if slowly else seen
        self._learnt = True

    def too_large(self, estimated: int, window: int) -> None:
        """Raises the factor after a provider refused a prompt that should have fitted."""
        self.value = min(max(self.value * 1.25, window / max(estimated, 1) * 1.1), _MOST_SCALE)
        self._learnt = True


class Scales:
    """The ``Scale`` of each model."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Scale] = OrderedDict()

    def of(self, model: Model) -> Scale:
        ref = model.ref
        if ref not in self._known:
            self._known[ref] = Scale()
            if len(self._known) > _MODELS_REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(ref)
        return self._known[ref]


class PromptBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The size that one prompt may have. ``overhead`` is an estimate; ``window`` and ``output`` are real tokens."""

    window: int
    output: int
    overhead: int
    scale: float = 1.0

    @property
    def room(self) -> int:
        """The estimated tokens left for messages. It is not positive if the fixed part alone is too large."""
        return int((self.window - self.output) / self.scale) - self.overhead

    def size(self, messages: Iterable[Message]) -> int:
        """The size of a prompt with these messages in the model's tokens."""
        return self.size_of(prompt_tokens(messages))

    def size_of(self, estimated: int) -> int:
        """The same for messages whose ``prompt_tokens`` are known."""
        return math.ceil((self.overhead + estimated) * self.scale)


def prompt_budget(model: Model, overhead: int, scale: float = 1.0, wanted_output: int | None = None) -> PromptBudget:
    output = min(wanted_output or model.max_tokens, model.max_tokens, max(model.context_window // 16, 1))
    return PromptBudget(window=model.context_window, output=output, overhead=overhead, scale=scale)
