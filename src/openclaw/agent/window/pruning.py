"""Pruning of old tool results: they are trimmed, then removed, when the provider's prompt cache has expired anyway.

This happens in memory, for one run. The transcript is never changed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import msgspec

from openclaw.agent.window.tokens import CHARS_PER_TOKEN, is_measured, u16len
from openclaw.clock import duration_ms
from openclaw.config.schema.agents import ContextPruning, PruningTools
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from openclaw.models.base import Model

DEFAULT_TTL_MS = 300_000
IMAGE_CHARS = 8000
CLEARED = "[Old tool result content cleared]"


def is_pruned(settings: ContextPruning, model: Model) -> bool:
    """Whether old tool results are pruned. Without a setting they are, if the model's cache expires by time."""
    return settings.mode != "off" if settings.mode is not None else has_cache(model)


def effective(settings: ContextPruning, model: Model) -> ContextPruning:
    """The settings with mode and age filled in. If nobody asked for pruning, the age is an hour."""
    if settings.mode is not None:
        return settings if settings.ttl is not None else msgspec.structs.replace(settings, ttl="5m")
    mode = "cache-ttl" if is_pruned(settings, model) else "off"
    return msgspec.structs.replace(settings, mode=mode, ttl="1h" if settings.ttl is None else settings.ttl)


def ttl_ms(value: str | int) -> int:
    """The age in milliseconds. A number without a unit is minutes. An unreadable value counts as five minutes."""
    try:
        return duration_ms(value, "m")
    except ValueError:
        return DEFAULT_TTL_MS


def has_cache(model: Model) -> bool:
    """Whether the model's prompt cache expires by time."""
    return model.provider == "anthropic" or (model.provider == "openrouter" and model.id.startswith("anthropic/"))


def cache_filled_at(messages: Sequence[Message], model: Model) -> int | None:
    """The time of the model's last answer, which filled its prompt cache. None: another model answered last."""
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and is_measured(message):
            return message.timestamp if (message.provider, message.model) == (model.provider, model.id) else None
    return None


class Pruner:
    """Prunes old tool results from the prompts of one run.

    It decides once whether the cache has expired, and then removes the same results from every prompt. If a result
    came back in the second prompt, the cache would be missed twice. For the same reason ``replaced`` has what earlier
    runs of the branch pruned: each result by its call id, before and after.
    """

    def __init__(
        self,
        settings: ContextPruning,
        model: Model,
        filled_at: int | None,
        replaced: dict[str, tuple[Message, ToolResultMessage]] | None = None,
    ) -> None:
        self._settings = settings
        self._window = model.context_window
        self._due_from = _due_from(settings, model, filled_at)
        self._replaced = {} if replaced is None else replaced
        self._decided = False

    @property
    def count(self) -> int:
        """The number of results that were removed or shortened."""
        return len(self._replaced)

    def apply(self, messages: list[Message], now_ms: int) -> list[Message]:
        due = self._due_from is not None and now_ms >= self._due_from
        if due and (self._settings.mode == "always" or not self._decided):
            pruned = prune(messages, self._settings, self._window)
            for before, after in zip(messages, pruned, strict=True):
                if after is not before and isinstance(after, ToolResultMessage):
                    self._replaced[after.tool_call_id] = (before, after)
        self._decided = True
        if not self._replaced:
            return messages
        return [self._shown(message) if isinstance(message, ToolResultMessage) else message for message in messages]

    def _shown(self, message: ToolResultMessage) -> ToolResultMessage:
        # Some models number their calls anew in every answer, so the id alone does not tell.
        before, after = self._replaced.get(message.tool_call_id, (None, message))
        return after if before == message else message


def _due_from(settings: ContextPruning, model: Model, filled_at: int | None) -> int | None:
    """The time from which pruning is due. None: never in this run."""
    if settings.mode == "always":
        return 0
    ttl = ttl_ms(settings.ttl if settings.ttl is not None else DEFAULT_TTL_MS // 60_000)
    if settings.mode == "off" or filled_at is None or ttl <= 0 or not has_cache(model):
        return None
    return filled_at + ttl


def prune(messages: list[Message], settings: ContextPruning, window: int) -> list[Message]:
    """Trims old results, and then clears them, as far as the window is too full.

    Returns the same list if nothing is pruned.
    """
    char_window = window * CHARS_PER_TOKEN
    cutoff = _cutoff(messages, settings.keep_last_assistants)
    start = next((place for place, message in enumerate(messages) if isinstance(message, UserMessage)), None)
    if cutoff is None or start is None or char_window <= 0:
        return messages
    total = sum(_chars(message) for message in messages)
    if total / char_window < settings.soft_trim_ratio:
        return messages
    result = list(messages)
    prunable: list[int] = []
    for place in range(start, cutoff):
        message = messages[place]
        if not isinstance(message, ToolResultMessage) or not may_prune(message, settings.tools):
            continue
        prunable.append(place)
        trimmed = soft_trim(message, settings)
        if trimmed is not message:
            total += _chars(trimmed) - _chars(message)
            result[place] = trimmed
    if settings.hard_clear.enabled and total / char_window >= settings.hard_clear_ratio:
        _clear(result, prunable, total, char_window, settings)
    return result if any(new is not old for new, old in zip(result, messages, strict=True)) else messages


def _clear(result: list[Message], places: list[int], total: int, char_window: int, settings: ContextPruning) -> None:
    if sum(_chars(result[place]) for place in places) < settings.min_prunable_tool_chars:
        return
    placeholder = settings.hard_clear.placeholder.strip() or CLEARED
    for place in places:
        if total / char_window < settings.hard_clear_ratio:
            return
        message = result[place]
        assert isinstance(message, ToolResultMessage)
        cleared = msgspec.structs.replace(message, content=[TextBlock(text=placeholder)])
        total += _chars(cleared) - _chars(message)
        result[place] = cleared


def _cutoff(messages: Sequence[Message], keep_last: int) -> int | None:
    """The place from which results are kept. None: there are too few answers to prune anything."""
    if keep_last <= 0:
        return len(messages)
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], AssistantMessage):
            keep_last -= 1
            if keep_last == 0:
                return place
    return None


def soft_trim(message: ToolResultMessage, settings: ContextPruning) -> ToolResultMessage:
    """Keeps the beginning and the end of a long result."""
    head, tail = settings.soft_trim.head_chars, settings.soft_trim.tail_chars
    text = message.text
    length = u16len(text)
    if length <= settings.soft_trim.max_chars or head + tail >= length:
        return message
    note = f"[Tool result trimmed: kept first {head} chars and last {tail} chars of {length} chars.]"
    trimmed = f"{text[:head]}\n...\n{text[len(text) - tail :]}\n\n{note}"
    return msgspec.structs.replace(message, content=[TextBlock(text=trimmed)])


def may_prune(message: ToolResultMessage, tools: PruningTools) -> bool:
    if any(isinstance(block, ImageBlock) for block in message.content):
        return False
    name = message.tool_name.lower()
    if any(_matches(name, pattern) for pattern in tools.deny):
        return False
    return not tools.allow or any(_matches(name, pattern) for pattern in tools.allow)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.strip().lower().replace("[", "[[]").replace("?", "[?]"))


def _chars(message: Message) -> int:
    match message:
        case UserMessage(content=str() as text):
            return u16len(text)
        case AssistantMessage():
            return sum(_assistant_chars(block) for block in message.content)
        case _:
            blocks = [block for block in message.content if not isinstance(block, str)]
            return sum(u16len(block.text) if isinstance(block, TextBlock) else IMAGE_CHARS for block in blocks)


def _assistant_chars(block: object) -> int:
    match block:
        case TextBlock(text=text):
            return u16len(text)
        case ToolCall():
            return u16len(msgspec.json.encode(block.arguments).decode())
        case _:
            return u16len(getattr(block, "thinking", ""))
