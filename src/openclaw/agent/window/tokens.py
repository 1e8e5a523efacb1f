"""Three numbers that are never mixed: the size of the next prompt, the model's window, and what was spent in all.

The size of a prompt that was sent is what the provider reported. A prompt that was not sent yet is estimated at four
characters per token and corrected by what the same model reported for earlier estimates.
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
"""What a picture counts as; in a user's message it counts nothing towards what is kept, see ``message_tokens``."""
_MODELS_REMEMBERED = 200
_LEAST_SCALE, _MOST_SCALE = 0.5, 4.0


def u16len(text: str) -> int:
    """Length in UTF-16 units: the unit of every character budget in this format."""
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
    """The estimate by which recent messages are kept. Pictures of a user weigh nothing here, so that they stay."""
    return -(-message_chars(message) // CHARS_PER_TOKEN)


def prompt_tokens(messages: Iterable[Message]) -> int:
    """Estimate of what messages add to a prompt, every picture included."""
    return sum(map(_prompt_tokens, messages))


class GrowingSum:
    """``prompt_tokens`` of a list that from one time to the next mostly grows at its end."""

    def __init__(self) -> None:
        self._counted: list[Message] = []
        self._total = 0

    def of(self, messages: list[Message]) -> int:
        total = self.further(messages)
        if total is None:
            self._counted, self._total = messages.copy(), prompt_tokens(messages)
            total = self._total
        return total

    def further(self, messages: list[Message]) -> int | None:
        """Counts on where these begin with what was counted before; None where they do not."""
        known = len(self._counted)
        # Comparing lists of the same objects is a thousand times cheaper than counting them.
        if self._counted != messages[:known]:
            return None
        for message in messages[known:]:
            self._total += _prompt_tokens(message)
            self._counted.append(message)
        return self._total


def _prompt_tokens(message: Message) -> int:
    content = message.content
    if len(content) == 1 and type(block := content[0]) is TextBlock and block.text.isascii():
        # Most messages of most conversations, counted several times in every turn: a sixth of the time.
        return -(-len(block.text) // CHARS_PER_TOKEN)
    return message_tokens(message) + _user_images(message)


def _user_images(message: Message) -> int:
    if not isinstance(message, UserMessage) or isinstance(message.content, str):
        return 0
    return sum(IMAGE_CHARS // CHARS_PER_TOKEN for block in message.content if isinstance(block, ImageBlock))


def overhead_tokens(system: str, suffix: str, tools: Sequence[ToolSpec]) -> int:
    """Estimate of what every prompt holds besides the messages."""
    schemas = sum(len(msgspec.json.encode(tool)) for tool in tools)
    return -(-(u16len(system) + u16len(suffix) + schemas) // CHARS_PER_TOKEN)


# Reported by the provider


def context_tokens(usage: Usage) -> int:
    """How full the window was after a call: the prompt and the answer."""
    return usage.total_tokens or usage.input + usage.output + usage.cache_read + usage.cache_write


def reported_prompt(usage: Usage, cap: int | None = None) -> int:
    """The prompt of a call as the provider counted it; what a session's ``totalTokens`` shows."""
    tokens = usage.input + usage.cache_read + usage.cache_write or usage.total_tokens
    return min(tokens, cap) if cap else tokens


def is_measured(message: Message) -> bool:
    """Whether the message tells how full the window was: a finished answer with usage."""
    return (
        isinstance(message, AssistantMessage)
        and message.stop_reason not in ("error", "aborted")
        and context_tokens(message.usage) > 0
    )


def context_estimate(messages: Sequence[Message], since_ms: int = -1) -> int:
    """The last report plus estimates of what came after it; only estimates when there is no report.

    ``since_ms``: the last compaction. An answer that is older was measured with what has left the prompt since.
    """
    later = 0
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and is_measured(message) and message.timestamp > since_ms:
            return context_tokens(message.usage) + later
        later += message_tokens(message)
    return later


class Scale:
    """How far the estimate is off for one model."""

    def __init__(self) -> None:
        self.value = 1.0
        self._learnt = False

    def learn(self, estimated: int, reported: int) -> None:
        """From a prompt that was sent, and what the provider counted."""
        if estimated < 200 or reported <= 0:
            return  # Too short to tell anything.
        seen = min(max(reported / estimated, _LEAST_SCALE), _MOST_SCALE)
        # A prompt that turns out larger counts at once; a smaller one only slowly: too large is what fails.
        slowly = self._learnt and seen < self.value
        self.value = self.value + (seen - self.value) / 4 if slowly else seen
        self._learnt = True

    def too_large(self, estimated: int, window: int) -> None:
        """A prompt was refused although it was thought to fit: the estimate is short by at least that much."""
        self.value = min(max(self.value * 1.25, window / max(estimated, 1) * 1.1), _MOST_SCALE)
        self._learnt = True


class Scales:
    """One for each model, learnt from what providers report."""

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
    """What one prompt may hold. ``overhead`` is an estimate, ``window`` and ``output`` are the model's tokens."""

    window: int
    output: int
    overhead: int
    scale: float = 1.0

    @property
    def room(self) -> int:
        """Estimated tokens left for messages; not positive when the fixed part alone is too large."""
        return int((self.window - self.output) / self.scale) - self.overhead

    def size(self, messages: Iterable[Message]) -> int:
        """The next prompt in the model's tokens."""
        return self.size_of(prompt_tokens(messages))

    def size_of(self, estimated: int) -> int:
        """The same, for messages whose ``prompt_tokens`` are known."""
        return math.ceil((self.overhead + estimated) * self.scale)


def prompt_budget(model: Model, overhead: int, scale: float = 1.0, wanted_output: int | None = None) -> PromptBudget:
    output = min(wanted_output or model.max_tokens, model.max_tokens, max(model.context_window // 16, 1))
    return PromptBudget(window=model.context_window, output=output, overhead=overhead, scale=scale)
