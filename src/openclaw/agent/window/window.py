"""Fits the conversation to the model's window: prunes old tool results and shortens what does not fit.

All of this happens in memory, for one run. The transcript is never changed.
"""

from __future__ import annotations

import fnmatch
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

import msgspec

from openclaw.agent.window.images import ImageCache, has_images, newest_images, replace_images
from openclaw.agent.window.tokens import (
    CHARS_PER_TOKEN,
    GrowingSum,
    PromptBudget,
    Scale,
    is_measured,
    prompt_budget,
    prompt_tokens,
    reported_prompt,
    u16len,
)
from openclaw.clock import Clock, duration_ms
from openclaw.config.schema.agents import ContextPruning, PruningTools
from openclaw.config.schema.channels import Channels
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from openclaw.models.base import Model
from openclaw.models.convert import FAILED, is_blank, json_text, pair, without_failed
from openclaw.models.http import strip_lone_surrogates
from openclaw.tools.images import MAX_SIDE

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


SMALLEST_ROOM = 128
"""With less room than this (in estimated tokens) no sensible conversation is possible."""
RECENT = 4
"""The tool output in this many last messages is shortened only if shortening older output was not enough."""
MOST_SHORTENED = 4
"""If the messages take more than this many times the room, whole turns are left out first."""
TEXT_CHARS = (8000, 2000, 500)
OUTPUT_CHARS = (3000, 400)
LEFT_OUT = "[… {count} characters left out here: the conversation is larger than the model's window …]"
FORGOTTEN = "[Earlier messages of this conversation were left out: together they are larger than the model's window.]"


class DoesNotFit(Exception):
    """The fixed part of the prompt leaves no room. The text is for the person."""


def check_room(budget: PromptBudget) -> None:
    """Raises ``DoesNotFit`` if no conversation of any length could be sent."""
    if budget.room >= SMALLEST_ROOM:
        return
    fixed = round(budget.overhead * budget.scale)
    raise DoesNotFit(
        f"The prompt does not fit: instructions, workspace files and tools alone take about {fixed} tokens of the "
        f"model's window of {budget.window}. Shorten the workspace files, allow fewer tools (tools.allow), or choose "
        "a model with a larger window (/model)."
    )


class Fitted(msgspec.Struct, frozen=True):
    """Messages that fit."""

    messages: list[Message]
    shortened: int
    """The number of messages that were shortened or left out."""


def fit(messages: list[Message], budget: PromptBudget, estimated: int | None = None) -> Fitted:
    """Shortens messages until they fit. Returns the same list if they do already.

    ``estimated`` is the messages' ``prompt_tokens``, if they are known. ``check_room`` must be called before the run.
    """
    room = max(budget.room, SMALLEST_ROOM)
    if (prompt_tokens(messages) if estimated is None else estimated) <= room:
        return Fitted(messages, 0)
    result = list(messages)
    if prompt_tokens(result) > room * MOST_SHORTENED:
        result = _newest_turns(result, room * MOST_SHORTENED)
    for shorten in _steps(result):
        if prompt_tokens(result) <= room:
            break
        shorten(room)
    if prompt_tokens(result) > room:
        result = _newest_turns(result, room)
    kept = {id(message) for message in result}
    return Fitted(result, sum(1 for message in messages if id(message) not in kept))


def _steps(result: list[Message]) -> Iterator[Callable[[int], None]]:
    """The steps that shorten ``result`` in place, the mildest first. Each stops as soon as the messages fit."""
    last_user = max((n for n, m in enumerate(result) if isinstance(m, UserMessage)), default=-1)
    old = range(len(result) - RECENT)
    everything = range(len(result))
    for places in (old, everything):
        for chars in OUTPUT_CHARS:
            yield lambda room, places=places, chars=chars: _shorten(result, places, chars, room, outputs_only=True)
    for chars in TEXT_CHARS:
        others = [place for place in everything if place != last_user]
        yield lambda room, others=others, chars=chars: _shorten(result, others, chars, room)
    if last_user >= 0:
        yield lambda room: _shorten_to_room(result, last_user, room)


def _shorten(
    result: list[Message], places: Sequence[int], chars: int, room: int, *, outputs_only: bool = False
) -> None:
    over = prompt_tokens(result) - room
    for place in places:
        if over <= 0:
            return
        message = result[place]
        if outputs_only and not isinstance(message, ToolResultMessage):
            continue
        if (shorter := shortened(message, chars)) is not message:
            over -= prompt_tokens([message]) - prompt_tokens([shorter])
            result[place] = shorter


def _shorten_to_room(result: list[Message], place: int, room: int) -> None:
    """Shortens one message to the room that the others leave, or to half of the room if that is more."""
    others = prompt_tokens(result) - prompt_tokens([result[place]])
    share = max(room - others, room // 2)
    result[place] = shortened(result[place], max(200, share * CHARS_PER_TOKEN - 200), drop_images=True)


def _newest_turns(result: list[Message], room: int) -> list[Message]:
    """Leaves out whole turns from the beginning. A summary at the very beginning stays if it fits."""
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
    """Cuts a single turn that is too long to its question and as many of its last steps as fit."""
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
    """The message with about ``chars`` of text from the beginning and the end. The same object if it is short."""
    match message:
        case UserMessage(content=str() as text):
            return message if len(text) <= chars else msgspec.structs.replace(message, content=cut_text(text, chars))
        case AssistantMessage():
            if all(len(block.text) <= chars for block in message.content if isinstance(block, TextBlock)):
                return message
            # The text's signature goes, because it is valid only for the whole text.
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
    """Keeps ``chars`` characters from the beginning and the end, with a note between them."""
    if len(text) <= chars:
        return text
    head = chars * 2 // 3
    tail = chars - head
    return f"{text[:head]}\n{LEFT_OUT.format(count=len(text) - chars)}\n{text[-tail:]}"


class PromptWindow:
    """Prunes and shortens the messages of each request of one run. Nothing here changes the transcript."""

    def __init__(
        self,
        model: Model,
        overhead: int,
        scale: Scale,
        clock: Clock,
        *,
        pruning: ContextPruning,
        wanted_output: int | None = None,
    ) -> None:
        self._model = model
        self._overhead = overhead
        self._scale = scale
        self._clock = clock
        self._wanted_output = wanted_output
        self._estimated = 0
        """The estimated tokens of the last prompt."""
        self._budget: PromptBudget | None = None
        self._pruning = pruning
        self.pruner: Pruner | None = None
        self._pruned: dict[str, tuple[Message, ToolResultMessage]] = {}
        """What was pruned on this branch so far. See ``Pruner``."""
        self._all, self._shown = GrowingSum(), GrowingSum()
        """The sums of all messages, and of the messages that are left after pruning."""
        self.shortened = 0
        """The number of messages that were shortened or left out in the last request."""

    @property
    def budget(self) -> PromptBudget:
        """The budget. It is computed again when the scale of the estimate has changed."""
        scale = self._scale.value
        if self._budget is None or self._budget.scale != scale:
            self._budget = prompt_budget(self._model, self._overhead, scale, self._wanted_output)
        return self._budget

    def check_room(self) -> None:
        """Raises ``DoesNotFit`` if no conversation of any length could be sent."""
        check_room(self.budget)

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Goes on with the sums of an earlier run of the same branch."""
        self._all, self._shown = branch_cache.setdefault("tokens", (self._all, self._shown))
        self._pruned = branch_cache.setdefault(("pruned", self._model.ref, self._model.context_window), self._pruned)

    def begin(self, messages: list[Message]) -> None:
        """Decides from the messages before the run whether the provider's cache can expire, and so what is pruned."""
        if is_pruned(self._pruning, self._model):
            settings = effective(self._pruning, self._model)
            self.pruner = Pruner(settings, self._model, cache_filled_at(messages, self._model), self._pruned)

    def fits(self, messages: list[Message]) -> bool:
        """Whether these messages can be sent as they are."""
        return self._all.of(messages) <= self.budget.room >= SMALLEST_ROOM

    def of(self, messages: list[Message]) -> list[Message]:
        """The messages for the next request."""
        if self.pruner is not None:
            messages = self.pruner.apply(messages, self._clock.now_ms())
        # Mostly nothing is pruned, and the messages have been counted already.
        estimated = self._all.further(messages)
        if estimated is None:
            estimated = self._shown.of(messages)
        self.shortened, budget = 0, self.budget
        if estimated > budget.room:
            fitted = fit(messages, budget, estimated)
            messages, self.shortened, estimated = fitted.messages, fitted.shortened, prompt_tokens(fitted.messages)
        self._estimated = self._overhead + estimated
        return messages

    def learn(self, answer: AssistantMessage) -> None:
        """Corrects the estimate by what the provider counted."""
        if answer.stop_reason not in ("error", "aborted"):
            self._scale.learn(self._estimated, reported_prompt(answer.usage))

    def was_too_large(self) -> None:
        """Corrects the estimate after the provider refused a prompt that should have fitted."""
        self._scale.too_large(self._estimated, self._model.context_window)


INTER_SESSION = "[Inter-session message]"
LONGEST_SOURCE = 200
LONGEST_RESULT = 400_000
RESULT_SHARE = 0.3
"""One tool result takes at most this part of the window, with four characters for a token."""
REFUSALS_KEPT = 1000
PLAIN_FOR_MS = 3_600_000
"""For this long a refused conversation is sent in its plain form. Then the usual form is tried again."""
_FORGED = re.compile(r"\[(\s*inter-session\s+message[^\]\n]{0,400})\]?", re.IGNORECASE)


class Hygiene:
    """What the Gateway keeps between runs: fitted pictures, and which conversations a provider refused."""

    def __init__(self) -> None:
        self.images = ImageCache()
        self._refused: OrderedDict[tuple[str, str], int] = OrderedDict()

    def plain_until(self, session_id: str, model: Model, now_ms: int) -> int:
        """Messages up to this time are sent in their plain form. -1: none."""
        moment = self._refused.get((session_id, model.ref), -1) if self._refused else -1
        return moment if now_ms - moment < PLAIN_FOR_MS else -1

    def note_refusal(self, session_id: str, model: Model, now_ms: int) -> None:
        self._refused[session_id, model.ref] = now_ms
        while len(self._refused) > REFUSALS_KEPT:
            self._refused.popitem(last=False)

    def forget_refusal(self, session_id: str, model: Model) -> None:
        self._refused.pop((session_id, model.ref), None)


class HistoryCleaner:
    """Cleans the messages of one run. ``prepare`` must see each message before it is in a request."""

    def __init__(
        self,
        hygiene: Hygiene,
        model: Model,
        session_id: str,
        now_ms: int,
        *,
        history_limit: int = 0,
        max_image_side: int | None = None,
    ) -> None:
        self._hygiene = hygiene
        self._model = model
        self._session_id = session_id
        self._history_limit = history_limit
        self._max_side = min(max_image_side or MAX_SIDE, MAX_SIDE)
        self._plain_until = hygiene.plain_until(session_id, model, now_ms)
        self._shown: list[Message] = []
        """The messages of the last request."""
        self._cleaned = _Cleaned()

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Uses what an earlier run of the same branch cleaned for the same model."""
        model = self._model
        key = ("cleaned", model.ref, model.context_window, "image" in model.input, self._max_side)
        self._cleaned = branch_cache.setdefault(key, self._cleaned)

    async def prepare(self, messages: list[Message]) -> None:
        """Fits the pictures in messages that have not been cleaned yet."""
        if "image" in self._model.input:
            await self._hygiene.images.prepare(self._cleaned.new(messages), self._max_side)

    def clean(self, messages: list[Message]) -> list[Message]:
        """The messages as they may be sent."""
        if self._history_limit > 0:
            messages = limit_turns(messages, self._history_limit)
        if self._plain_until >= 0:
            messages = plain_upto(without_failed(messages), self._plain_until)
            self._shown = clean_history(messages, self._model, self._hygiene.images, self._max_side)
        else:
            self._shown = self._cleaned.clean(messages, self._model, self._hygiene.images, self._max_side)
        return self._shown

    def refused(self, now_ms: int) -> bool:
        """Notes that the provider refused the last request. True: the next request will be in the plain form.

        False: the request was in the plain form already, so the conversation is not the cause. From then on it is sent
        in its usual form again.
        """
        if is_plain(self._shown):
            self._plain_until = -1
            self._hygiene.forget_refusal(self._session_id, self._model)
            return False
        self._plain_until = now_ms
        self._hygiene.note_refusal(self._session_id, self._model, now_ms)
        return True


class _Cleaned:
    """The cleaned messages of a branch. Each message is cleaned once."""

    def __init__(self) -> None:
        self._source: list[Message] = []
        self._out: list[Message] = []
        self._pictures: list[int] = []
        """The places of messages with pictures. Pictures are put in for each request, so no second copy is kept."""

    def new(self, messages: list[Message]) -> list[Message]:
        """The messages that are not cleaned yet: all of them if the list begins differently."""
        known = len(self._source)
        return messages[known:] if self._source == messages[:known] else messages

    def clean(self, messages: list[Message], model: Model, images: ImageCache, max_side: int) -> list[Message]:
        known = len(self._source)
        if self._source != messages[:known]:
            known, self._source, self._out, self._pictures = 0, [], [], []
        for message in messages[known:]:
            self._source.append(message)
            if isinstance(message, AssistantMessage):
                self._out += without_failed([message]) if message.stop_reason in FAILED else (message,)
                continue
            message = _mended(message, model)
            if has_images(message):
                self._pictures.append(len(self._out))
            self._out.append(message)
        if not self._pictures or "image" not in model.input:
            return self._out.copy()
        return _with_pictures(self._out.copy(), self._pictures, images, max_side)


def clean_history(messages: list[Message], model: Model, images: ImageCache, max_side: int = MAX_SIDE) -> list[Message]:
    """The messages as they may be sent. A message that needs no change stays the same object."""
    out = [_mended(message, model) for message in messages]
    if "image" not in model.input:
        return out
    return _with_pictures(out, [place for place, message in enumerate(out) if has_images(message)], images, max_side)


def _with_pictures(messages: list[Message], places: list[int], images: ImageCache, max_side: int) -> list[Message]:
    for place in places:
        messages[place] = replace_images(messages[place], lambda block: images.shown(block, max_side))
    shown = newest_images([messages[place] for place in places])
    for place, message in zip(places, shown, strict=True):
        messages[place] = message
    return messages


def _mended(message: Message, model: Model) -> Message:
    """The message after the changes that need no other message. Pictures are not changed here."""
    if isinstance(message, UserMessage):
        return attributed(message)
    if isinstance(message, ToolResultMessage):
        return capped(message, max_result_chars(model.context_window))
    return message


def limit_turns(messages: list[Message], limit: int) -> list[Message]:
    """The messages from the ``limit``-th last one of the user on. 0 or less means all messages."""
    if limit <= 0:
        return messages
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], UserMessage):
            limit -= 1
            if limit == 0:
                return messages[place:]
    return messages


def max_result_chars(window: int) -> int:
    return min(int(window * 4 * RESULT_SHARE), LONGEST_RESULT)


def capped(message: ToolResultMessage, most: int) -> ToolResultMessage:
    """Cuts each text of an outsized result in proportion to its length."""
    total = sum(len(block.text) for block in message.content if isinstance(block, TextBlock))
    if total <= most:
        return message
    content = [
        TextBlock(text=cut_text(block.text, len(block.text) * most // total)) if isinstance(block, TextBlock) else block
        for block in message.content
    ]
    return msgspec.structs.replace(message, content=content)


# Who is speaking


def attributed(message: UserMessage) -> UserMessage:
    """Marks a message that another session sent. A marker inside a text is forged and loses its brackets."""
    source, content = message.provenance, message.content
    blocks: list[UserBlock] = [TextBlock(text=content)] if isinstance(content, str) else content
    if source is not None and source.get("kind") == "inter_session":
        return msgspec.structs.replace(message, content=[TextBlock(text=_marker(source)), *map(_unforged, blocks)])
    for block in blocks:
        if _unforged(block) is not block:
            return msgspec.structs.replace(message, content=[*map(_unforged, blocks)])
    return message


def _unforged(block: UserBlock) -> UserBlock:
    if isinstance(block, ImageBlock) or "[" not in block.text or _FORGED.search(block.text) is None:
        return block
    return TextBlock(text=_FORGED.sub(r"(\1)", block.text))


def _marker(source: dict[str, Any]) -> str:
    named = {"sourceSession": "sourceSessionKey", "sourceChannel": "sourceChannel", "sourceTool": "sourceTool"}
    told = [f"{name}={_word(source[key])}" for name, key in named.items() if source.get(key)]
    return " ".join([INTER_SESSION, *told, "isUser=false"])


def _word(value: Any) -> str:
    return re.sub(r"[\s\[\]]+", "_", str(value))[:LONGEST_SOURCE]


# How far back direct chats go


def dm_history_limit(channels: Channels, session_key: str) -> int:
    """``channels.<id>.dms.<person>.historyLimit``, else ``dmHistoryLimit``. 0 is no limit, as in all other chats."""
    lowered = session_key.lower()
    if ":direct:" not in lowered and ":dm:" not in lowered:
        return 0
    segments = lowered.split(":")
    if segments[0] == "agent":
        segments = segments[2:]
    # <channel>:direct:<person> or <channel>:<account>:direct:<person>
    place = next((place for place in (1, 2) if segments[place : place + 1] in (["direct"], ["dm"])), None)
    if place is None or place + 1 >= len(segments):
        return 0
    channel = segments[0]
    section = _given(msgspec.to_builtins(channels.signal) if channel == "signal" else channels.others.get(channel))
    if place == 2:
        section |= _given(_given(section.get("accounts")).get(segments[1]))
    person = re.split(r":(?:thread|topic):", ":".join(segments[place + 1 :]))[0]
    people = {name.lower(): value for name, value in _given(section.get("dms")).items()}
    limit: Any = _given(people.get(person)).get("historyLimit", section.get("dmHistoryLimit"))
    return limit if type(limit) is int and limit > 0 else 0


def _given(value: Any) -> dict[str, Any]:
    """The value as a dict without its unset keys. Anything but a dict counts as empty."""
    items = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {name: item for name, item in items.items() if item is not None}


LONGEST_OUTPUT = 20_000
LONGEST_ARGUMENTS = 1000
IMAGE = "(an image was here)"
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def plain(messages: list[Message]) -> list[Message]:
    """The conversation as text only. Tool calls and their results become sentences."""
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
    """Whether the messages are in their plain form already."""
    return [_words(message) for message in messages] == [_words(message) for message in plain(messages)]


def _words(message: Message) -> tuple[type[Message], object]:
    content = message.content
    return type(message), [TextBlock(text=content)] if isinstance(content, str) else content


def plain_upto(messages: list[Message], moment_ms: int) -> list[Message]:
    """The messages until that time in their plain form, and the rest as they are."""
    count = max((place + 1 for place, message in enumerate(messages) if message.timestamp <= moment_ms), default=0)
    while count < len(messages) and isinstance(messages[count], ToolResultMessage):
        count += 1
    return [*plain(messages[:count]), *messages[count:]]


def _say(out: list[Message], message: UserMessage | AssistantMessage, text: str) -> None:
    """Adds the text as a message, or to the last message if that has the same role."""
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
