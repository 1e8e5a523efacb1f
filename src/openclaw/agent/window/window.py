"""Fits the conversation to the model's window: what does not fit is pruned, shortened or left out.

``PromptWindow`` does it for the requests of one run. Old tool results are pruned, first trimmed and then removed, when
the provider's prompt cache has expired anyway. All of this happens in memory. The transcript is never changed.

Pins are texts that a person wants to keep word for word: they are never shortened, and a compaction copies them into
its own entry. A pin is an entry of the transcript that the model sees. Another entry removes it.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from openclaw.agent.continuation import is_request
from openclaw.agent.window.tokens import (
    CHARS_PER_TOKEN,
    GrowingSum,
    PromptBudget,
    TokenMeasure,
    careful_tokens,
    is_measured,
    prompt_budget,
    prompt_size,
    prompt_tokens,
    reported_prompt,
    u16len,
)
from openclaw.clock import Clock, duration_ms
from openclaw.config.schema.agents import ContextPruning, PruningTools
from openclaw.messages import (
    FAILED_STOPS,
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
    user_text,
)
from openclaw.models.base import Model
from openclaw.models.errors import NamedCounts, is_overflow, named_counts
from openclaw.sessions.tree import fields_of
from openclaw.storage.transcripts import Transcript
from openclaw.worker_thread import with_many

SMALLEST_ROOM = 128
"""With less room than this (in estimated tokens) no sensible conversation is possible."""
RECENT = 4
"""The tool output in this many last messages is shortened only if shortening older output was not enough."""
MOST_SHORTENED = 4
"""If the messages take more than this many times the room, whole turns are left out first."""
LARGE_SHARE, LARGE_TOKENS = 4, 32_000
"""A prompt is large if it takes this share of the window or this many tokens, whichever is less."""
TEXT_CHARS = (8000, 2000, 500)
OUTPUT_CHARS = (3000, 400)
GLIMPSE_CHARS = 60
LEFT_OUT = "[… {count} characters left out here: the conversation is larger than the model's window …]"
FORGOTTEN = "[Earlier messages of this conversation were left out: together they are larger than the model's window.]"
FORGOTTEN_NOTE = UserMessage(content=[TextBlock(text=FORGOTTEN)])


class DoesNotFit(Exception):
    """The fixed part of the prompt leaves no room. The text is for the person."""


def check_room(budget: PromptBudget) -> None:
    """Raises ``DoesNotFit`` if no conversation of any length could be sent."""
    if budget.room >= SMALLEST_ROOM:
        return
    raise DoesNotFit(
        f"The prompt does not fit: instructions, workspace files and tools alone take about {budget.overhead} tokens "
        f"of the model's window of {budget.window}. Shorten the workspace files, allow fewer tools (tools.allow), or "
        "choose a model with a larger window (/model)."
    )


class PromptWindow:
    """Prunes and shortens the messages of each request of one run. Nothing here changes the transcript."""

    def __init__(
        self,
        model: Model,
        overhead: int,
        measure: TokenMeasure,
        clock: Clock,
        *,
        pruning: ContextPruning,
        wanted_output: int | None = None,
    ) -> None:
        self._model = model
        self._overhead = overhead
        self._measure = measure
        self._clock = clock
        self._wanted_output = wanted_output
        self._sent = 0
        """The estimated tokens of the messages in the last prompt."""
        self._pruning = pruning
        self.pruner: Pruner | None = None
        self._pruned: dict[str, tuple[Message, ToolResultMessage]] = {}
        """The results pruned on this branch so far. See ``Pruner``."""
        self._all, self._shown = GrowingSum(_is_pin_note), GrowingSum()
        """The sums of all messages, and of the messages that are left after pruning."""
        self._recent = RecentTurns()
        self.first = 0
        """The place in the conversation from which on ``recent`` returned its messages."""
        self._left_out = 0
        """The number of messages of the conversation that ``recent`` left out."""
        self.shortened = 0
        """The number of messages that were shortened or left out in the last request."""
        self.answers = 0
        """The number of prompts that the model has answered."""

    @property
    def budget(self) -> PromptBudget:
        return prompt_budget(self._model, self._overhead, self._measure, self._wanted_output)

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Goes on with the sums of an earlier run of the same branch."""
        model = (self._model.ref, self._model.context_window)
        self._all, self._shown = branch_cache.setdefault("tokens", (self._all, self._shown))
        self._pruned = branch_cache.setdefault(("pruned", *model), self._pruned)
        self._recent = branch_cache.setdefault(("recent", *model), self._recent)

    async def count(self, messages: list[Message]) -> None:
        """Counts the tokens of a conversation. Of a long one that takes too long for the event loop."""
        await with_many(self._all.uncounted(messages), lambda: self._all.of(messages))

    def recall(self, messages: list[Message], since_ms: int) -> None:
        """Learns from the provider's last count after ``since_ms`` in messages that an earlier process had sent."""
        if not self._measure.learnt:
            self._all.of(messages)
            self._measure.recall(self._overhead, messages, self._model, since_ms, self._all)

    def begin(self, messages: list[Message]) -> None:
        """Decides from the messages before the run whether the provider's cache can expire, and so what is pruned."""
        if is_pruned(self._pruning, self._model):
            settings = effective(self._pruning, self._model)
            self.pruner = Pruner(settings, self._model, cache_filled_at(messages, self._model), self._pruned)

    def fits(self, messages: list[Message]) -> bool:
        """Whether these messages can be sent as they are."""
        room = self.budget.room
        return room >= SMALLEST_ROOM and self._all.of(messages) <= room

    def recent(self, messages: list[Message]) -> list[Message]:
        """The end of the conversation from which the next request is made, with the first message and the pins.

        All further work is on this list, so that a request costs no more the longer a conversation is. It is the
        conversation itself unless that takes more than ``MOST_SHORTENED`` times the room, or more than the room even
        if all of it is shortened. The list begins at the same turn in successive requests, until it has grown too
        large.
        """
        sums, room = self._all, max(self.budget.room, SMALLEST_ROOM)
        most, most_shortened = room * MOST_SHORTENED, room * 3 // 2
        self.first = self._left_out = 0
        total = sums.of(messages)
        if total <= most and sums.least_after(0) <= most_shortened:
            return messages
        start = self._recent.start
        large = total - sums.before(start) > most or sums.least_after(start) > most_shortened
        if large or not 0 < start < len(messages):
            place = sums.first_within(most * 3 // 4, room * 5 // 4)
            self._recent.start = start = self._turn_from(messages, place)
        pins = [messages[place] for place in self._all.marked if 0 < place < start]
        head = [*messages[:1], *pins, FORGOTTEN_NOTE] if start else []
        self.first, self._left_out = start, max(0, start - 1 - len(pins))
        return [*head, *messages[start:]]

    def _turn_from(self, messages: list[Message], place: int) -> int:
        """The place of the first turn that begins there or later. The question without an answer stays in any case."""
        question = next(iter(_asked(messages)), len(messages) - 1)
        starts = (at for at in range(place, question) if isinstance(messages[at], UserMessage))
        return next(starts, question)

    def of(self, messages: list[Message]) -> list[Message]:
        """The messages for the next request. They are those of ``recent``, cleaned."""
        if self.pruner is not None:
            messages = self.pruner.apply(messages, self._clock.now_ms())
        # Mostly nothing is pruned, and the messages have been counted already.
        estimated = self._all.further(messages)
        if estimated is None:
            estimated = self._shown.of(messages)
        self.shortened, budget = self._left_out, self.budget
        if estimated > budget.room:
            fitted = fit(messages, budget, estimated)
            messages, estimated = fitted.messages, prompt_tokens(fitted.messages)
            self.shortened += fitted.shortened
        self._sent = estimated
        return messages

    @property
    def output_room(self) -> int | None:
        """The tokens that the last prompt leaves for its answer. None: more than the model can say."""
        room = self.budget.output_room(self._sent)
        return room if room < self._model.max_tokens else None

    def learn(self, answer: AssistantMessage) -> None:
        """Corrects the estimate by what the provider counted."""
        if answer.stop_reason not in FAILED_STOPS:
            self.answers += 1
            self._measure.learn(self._overhead, self._sent, reported_prompt(answer.usage))

    @property
    def is_large(self) -> bool:
        """Whether the last prompt may have been too large, and a good part of it is conversation that can shrink."""
        budget = self.budget
        size = budget.size_of(self._sent)
        return size >= min(budget.window // LARGE_SHARE, LARGE_TOKENS) and (size - budget.overhead) * 4 >= size

    def suspect(self) -> TokenMeasure:
        """Raise the estimate after a refusal that may mean a prompt too large. Returns the measure before."""
        before = self._measure.copy()
        self._measure.refuse(self._overhead, self._sent, self.budget.window, NamedCounts())
        return before

    def clear(self, before: TokenMeasure) -> None:
        """Take ``suspect`` back: the size of the prompt was not the problem."""
        self._measure.rewind(before)

    def was_too_large(self, refusal: str) -> NamedCounts:
        """Corrects the estimate after the provider refused the last prompt. Returns the numbers that it named.

        Numbers in words that nobody knows may mean anything, so they are not read.
        """
        counts = named_counts(refusal) if is_overflow(refusal) else NamedCounts()
        self._measure.refuse(self._overhead, self._sent, self.budget.window, counts)
        return counts


class RecentTurns(msgspec.Struct):
    """Where the recent turns of a branch begin that is much larger than the window. 0: not known yet."""

    start: int = 0


# Fitting


class Fitted(msgspec.Struct, frozen=True):
    """Messages that fit."""

    messages: list[Message]
    shortened: int
    """The number of messages that were shortened or left out."""


def fit(messages: list[Message], budget: PromptBudget, estimated: int | None = None) -> Fitted:
    """Shortens messages until they fit. Returns the same list if they do already.

    Pinned texts stay whole, and the question that waits for its answer is the last thing to be shortened.
    ``estimated`` is the messages' ``prompt_tokens``, if they are known. ``check_room`` must be called before the run.
    """
    room = max(budget.room, SMALLEST_ROOM)
    if (prompt_tokens(messages) if estimated is None else estimated) <= room:
        return Fitted(messages, 0)
    pinned, rest = take_pins(messages)
    if pinned is None:
        result = _fit(rest, room)
    else:
        # The pins may be far less dense than the messages, so they are measured by themselves.
        if careful_tokens(user_text(pinned)) > room * budget.density / 2:
            # A pin is refused if it does not fit, but the session may have got a model with a smaller window since.
            pinned = shortened(pinned, room * CHARS_PER_TOKEN // 2)
        result = [pinned, *_fit(rest, room - min(prompt_tokens([pinned]), room // 2))]
    kept_ids = {id(message) for message in result}
    return Fitted(result, sum(1 for message in messages if id(message) not in kept_ids))


def _fit(messages: Sequence[Message], room: int) -> list[Message]:
    sized = _Sized(messages)
    if sized.total > room * MOST_SHORTENED:
        turns = _newest_turns(sized, room * MOST_SHORTENED)
        sized = _Sized(turns or sized.messages[next(iter(_asked(sized.messages)), len(messages)) :])
    # The mildest step comes first. Each stops as soon as the messages fit.
    count, questions = len(sized.messages), _asked(sized.messages)
    for end in (count - RECENT, count):
        for chars in OUTPUT_CHARS:
            sized.shorten(range(end), chars, room, outputs_only=True)
    for chars in TEXT_CHARS:
        sized.shorten(range(count), chars, room, but=frozenset(questions))
    for index in sorted(questions, key=lambda index: sized.sizes[index], reverse=True):
        if sized.total > room:
            sized.shorten_to_room(index, room)
    if sized.total <= room:
        return sized.messages
    return _newest_turns(sized, room) or _newest_steps(sized.messages, room)


class _Sized:
    """Messages and their sizes in estimated tokens. Each message is counted once, and again when it was shortened."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = list(messages)
        self.sizes = list(map(prompt_size, self.messages))
        self.total = sum(self.sizes)

    def shorten(
        self, places: range, chars: int, room: int, *, outputs_only: bool = False, but: frozenset[int] = frozenset()
    ) -> None:
        """Shortens the messages at these places, the oldest first, until all of them fit."""
        messages, sizes = self.messages, self.sizes
        for index in places:
            if self.total <= room:
                return
            if sizes[index] * CHARS_PER_TOKEN <= chars or index in but:
                continue
            if not outputs_only or isinstance(messages[index], ToolResultMessage):
                self._put(index, shortened(messages[index], chars))

    def shorten_to_room(self, place: int, room: int) -> None:
        """Shortens one message to the room that the others leave, or to half of the room if that is more."""
        share = max(room - (self.total - self.sizes[place]), room // 2)
        chars = max(200, share * CHARS_PER_TOKEN - 200)
        self._put(place, shortened(self.messages[place], chars, drop_images=True))

    def _put(self, place: int, message: Message) -> None:
        if message is not self.messages[place]:
            size = prompt_size(message)
            self.total += size - self.sizes[place]
            self.messages[place], self.sizes[place] = message, size


def _asked(messages: Sequence[Message]) -> list[int]:
    """The places of what people said in the turn that has no answer yet, else of the last thing they said."""
    turn = open_turn(messages)
    if questions := [index for index in range(turn, len(messages)) if isinstance(messages[index], UserMessage)]:
        return questions
    before = (index for index in range(turn - 1, -1, -1) if isinstance(messages[index], UserMessage))
    return [*islice(before, 1)]


def _newest_turns(sized: _Sized, room: int) -> list[Message]:
    """Leaves out whole turns from the beginning. A summary at the very beginning stays if it fits.

    Returns nothing if the last turn alone is too large.
    """
    messages, sizes = sized.messages, sized.sizes
    first = messages[:1] if messages and isinstance(messages[0], UserMessage) else []
    question = next(iter(_asked(messages)), len(messages))
    for head in ([*first, FORGOTTEN_NOTE], [FORGOTTEN_NOTE]):
        left, start = room - prompt_tokens(head), None
        for index in range(len(messages) - 1, 0, -1):
            left -= sizes[index]
            if left < 0:
                break
            if index <= question and isinstance(messages[index], UserMessage):
                start = index
        if start is not None:
            # The note may be there already, if the conversation was cut before.
            return [*head, *messages[start + 1 if messages[start] == FORGOTTEN_NOTE else start :]]
    return []


def _newest_steps(result: list[Message], room: int) -> list[Message]:
    """Cuts a single turn that is too long to what people said in it and as many of its last steps as fit."""
    questions, note = _asked(result), FORGOTTEN_NOTE
    chars = max(200, room * CHARS_PER_TOKEN // (4 * max(1, len(questions))))
    shortened_questions = {index: shortened(result[index], chars, drop_images=True) for index in questions}
    while len(shortened_questions) > 1 and prompt_tokens(shortened_questions.values()) > room // 2:
        del shortened_questions[next(iter(shortened_questions))]
    left, start = room - prompt_tokens([note, *shortened_questions.values()]), len(result)
    step = next((n for n in reversed(range(len(result))) if isinstance(result[n], AssistantMessage)), len(result))
    if prompt_tokens(result[step:]) > left:
        # The last step is what the model waits for. A glimpse of its results is better than none.
        result = [*result[:step], *(shortened(message, GLIMPSE_CHARS) for message in result[step:])]
    for index in range(len(result) - 1, min(shortened_questions, default=0) - 1, -1):
        if index in shortened_questions:
            continue
        left -= prompt_tokens([result[index]])
        if left < 0:
            break
        if isinstance(result[index], AssistantMessage):
            start = index
    before = [message for index, message in shortened_questions.items() if index < start]
    steps = [shortened_questions.get(index, result[index]) for index in range(start, len(result))]
    return [note, *before, *steps]


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


def open_turn(messages: Sequence[Message], start: int = 0) -> int:
    """The place at which the turn begins that has no answer yet; the number of messages if there is none.

    A turn ends with an answer that calls no tool. A failed answer ends it if a message of the user follows: otherwise
    it was one of several attempts. Messages before ``start`` are ignored.
    """
    for index in range(len(messages) - 1, start - 1, -1):
        message = messages[index]
        if not isinstance(message, AssistantMessage) or message.tool_calls:
            continue
        after = messages[index + 1] if index + 1 < len(messages) else None
        if message.stop_reason in FAILED_STOPS:
            ends = isinstance(after, UserMessage)
        else:
            ends = message.stop_reason != "length" or after is None or not is_request(after)
        if ends:
            return index + 1
    return start


# Pruning

DEFAULT_TTL = "5m"
IMAGE_CHARS = 8000
CLEARED = "[Old tool result content cleared]"


def is_pruned(settings: ContextPruning, model: Model) -> bool:
    """Whether old tool results are pruned. Without a setting they are, if the model's cache expires by time."""
    return settings.mode != "off" if settings.mode is not None else has_cache(model)


def effective(settings: ContextPruning, model: Model) -> ContextPruning:
    """The settings with mode and age filled in. If nobody asked for pruning, the age is an hour."""
    if settings.mode is not None:
        return settings if settings.ttl is not None else msgspec.structs.replace(settings, ttl=DEFAULT_TTL)
    mode = "cache-ttl" if is_pruned(settings, model) else "off"
    return msgspec.structs.replace(settings, mode=mode, ttl="1h" if settings.ttl is None else settings.ttl)


def ttl_ms(value: str | int) -> int:
    """The age in milliseconds. A number without a unit is minutes. An unreadable value counts as ``DEFAULT_TTL``."""
    try:
        return duration_ms(value, "m")
    except ValueError:
        return duration_ms(DEFAULT_TTL, "m")


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
        # Some models restart their call numbers in every answer, so the id alone is ambiguous.
        before, after = self._replaced.get(message.tool_call_id, (None, message))
        return after if before == message else message


def _due_from(settings: ContextPruning, model: Model, filled_at: int | None) -> int | None:
    """The time from which pruning is due. None: never in this run."""
    if settings.mode == "always":
        return 0
    ttl = ttl_ms(settings.ttl if settings.ttl is not None else DEFAULT_TTL)
    if settings.mode == "off" or filled_at is None or ttl <= 0 or not has_cache(model):
        return None
    return filled_at + ttl


def prune(messages: list[Message], settings: ContextPruning, window: int) -> list[Message]:
    """Trims old results, and then clears them, as far as the window is too full.

    Returns the same list if nothing is pruned.
    """
    char_window = window * CHARS_PER_TOKEN
    # Results after the last few answers are kept.
    answers = [index for index, message in enumerate(messages) if isinstance(message, AssistantMessage)]
    keep = settings.keep_last_assistants
    if keep > len(answers):
        return messages
    cutoff = answers[-keep] if keep > 0 else len(messages)
    start = next((index for index, message in enumerate(messages) if isinstance(message, UserMessage)), None)
    if start is None or char_window <= 0:
        return messages
    total = sum(_chars(message) for message in messages)
    if total / char_window < settings.soft_trim_ratio:
        return messages
    result = list(messages)
    prunable: list[int] = []
    for index in range(start, cutoff):
        message = messages[index]
        if not isinstance(message, ToolResultMessage) or not may_prune(message, settings.tools):
            continue
        prunable.append(index)
        trimmed = soft_trim(message, settings)
        if trimmed is not message:
            total += _chars(trimmed) - _chars(message)
            result[index] = trimmed
    if settings.hard_clear.enabled and total / char_window >= settings.hard_clear_ratio:
        _clear(result, prunable, total, char_window, settings)
    return result if any(new is not old for new, old in zip(result, messages, strict=True)) else messages


def _clear(result: list[Message], places: list[int], total: int, char_window: int, settings: ContextPruning) -> None:
    if sum(_chars(result[index]) for index in places) < settings.min_prunable_tool_chars:
        return
    placeholder = settings.hard_clear.placeholder.strip() or CLEARED
    for index in places:
        if total / char_window < settings.hard_clear_ratio:
            return
        message = result[index]
        assert isinstance(message, ToolResultMessage)
        cleared = msgspec.structs.replace(message, content=[TextBlock(text=placeholder)])
        total += _chars(cleared) - _chars(message)
        result[index] = cleared


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
            texts = (block for block in message.content if not isinstance(block, ToolCall))
            calls = (msgspec.json.encode(call.arguments).decode() for call in message.tool_calls)
            said = (block.text if isinstance(block, TextBlock) else block.thinking for block in texts)
            return sum(map(u16len, (*said, *calls)))
        case _:
            blocks = [block for block in message.content if not isinstance(block, str)]
            return sum(u16len(block.text) if isinstance(block, TextBlock) else IMAGE_CHARS for block in blocks)


# Pins

PIN = "openclaw.pin"
UNPIN = "openclaw.unpin"
_PINNED = "[Pinned by the user, keep in mind]"
_UNPINNED = "[No longer pinned]"
_OPEN, _CLOSE = "\n\n<pinned>\n", "\n</pinned>"
MOST_PINS = 50
PINNED_SHARE = 4
"""Pinned texts take at most this part (a fourth) of the room that the window has for messages."""


class PinRefused(Exception):
    """A pin cannot be added or removed. The text is for the person who asked."""


class Pin(msgspec.Struct, frozen=True):
    """A pinned text. ``id`` is the id of its entry."""

    id: str
    text: str


async def pins_of(transcript: Transcript) -> list[Pin]:
    """The pins of the active branch, oldest first: those of the last compaction's entry, then those added since."""
    context = transcript.context()
    last = await transcript.entry(context.compaction_id) if context.compaction_id is not None else None
    details = fields_of(last.raw).get("details") if last is not None else None
    pins: dict[str, Pin] = {}
    with contextlib.suppress(msgspec.ValidationError):
        carried = details.get("pins") if isinstance(details, dict) else None
        pins = {pin.id: pin for pin in msgspec.convert(carried or [], list[Pin])}
    messages, ids = context.messages, context.entry_ids
    noted = await with_many(
        len(messages), lambda: [own for message, own in zip(messages, ids, strict=True) if _is_pin_note(message)]
    )
    for own in noted:
        entry = await transcript.entry(own)
        fields = fields_of(entry.raw) if entry is not None else {}
        details = fields.get("details")
        about: dict[str, Any] = details if isinstance(details, dict) else {}
        if fields.get("customType") == PIN and isinstance(about.get("text"), str):
            pins[own] = Pin(own, about["text"])
        elif fields.get("customType") == UNPIN:
            pins.pop(str(about.get("pin")), None)
    return list(pins.values())


def pin_room(budget: PromptBudget) -> int:
    """The tokens that the pinned texts of a session may take together, so that none of them is ever cut."""
    return max(0, budget.window - budget.output - budget.overhead) // PINNED_SHARE


async def add_pin(transcript: Transcript, text: str, room: int) -> Pin:
    """Pins a text, unless it is pinned already. Raises ``PinRefused``. The caller must hold the session's lock.

    ``room`` is the result of ``pin_room`` for the session's model.
    """
    stripped = text.strip()
    if not stripped:
        raise PinRefused("Nothing to pin: write the text after /pin.")
    pins = await pins_of(transcript)
    if (existing := next((pin for pin in pins if pin.text == stripped), None)) is not None:
        return existing
    if len(pins) >= MOST_PINS:
        raise PinRefused(f"{len(pins)} texts are pinned already, which is the most; take one off with /unpin N.")
    taken, size = sum(careful_tokens(pin.text) for pin in pins), careful_tokens(stripped)
    if taken + size > room:
        left = max(0, room - taken)
        others = f" and {len(pins)} pinned texts take {taken} of it; take one off with /unpin N" if pins else ""
        raise PinRefused(
            f"That is too long to pin: it has about {size} tokens ({len(stripped)} characters). The model's window has "
            f"room for about {left} more (some {left * 3} characters), because pinned texts are sent whole with every "
            f"message: {room} tokens in all{others}."
        )
    fields = {
        "type": "custom_message",
        "customType": PIN,
        "content": f"{_PINNED} {stripped}",
        "display": True,
        "details": {"text": stripped},
    }
    return Pin(await transcript.append(fields, durable=True), stripped)


async def remove_pin(transcript: Transcript, number: int) -> Pin:
    """Removes a pin by its place in the list, counted from 1. Raises ``PinRefused``."""
    pins = await pins_of(transcript)
    if not 1 <= number <= len(pins):
        fault = "Nothing is pinned." if not pins else f"There are {len(pins)} pinned texts; /pins lists them."
        raise PinRefused(fault)
    pin = pins[number - 1]
    fields = {
        "type": "custom_message",
        "customType": UNPIN,
        "content": f"{_UNPINNED} {pin.text}",
        "display": True,
        "details": {"pin": pin.id},
    }
    await transcript.append(fields, durable=True)
    return pin


def _is_pin_note(message: Message) -> bool:
    """Whether the message adds or removes a pin."""
    return isinstance(message, UserMessage) and user_text(message).startswith((_PINNED, _UNPINNED))


def pinned_block(texts: Sequence[str]) -> str:
    """The block that a compaction appends to its summary; empty without pinned texts."""
    return _OPEN + "\n".join(texts) + _CLOSE if texts else ""


def unpinned(summary: str) -> str:
    """The summary without the block of ``pinned_block``. Each compaction makes it again."""
    before, opening, rest = summary.partition(_OPEN)
    if not opening:
        return summary
    _, closing, after = rest.partition(_CLOSE)
    return before + after if closing else summary


def take_pins(messages: Sequence[Message]) -> tuple[UserMessage | None, list[Message]]:
    """The pinned texts of a conversation as one message, and the conversation without them. None: nothing is pinned."""
    pins: list[str] = []
    rest: list[Message] = []
    for index, message in enumerate(messages):
        text = user_text(message) if isinstance(message, UserMessage) else ""
        if index == 0 and (bare := unpinned(text)) != text:
            pins.append(text[text.index(_OPEN) + len(_OPEN) : text.index(_CLOSE)])
            rest.append(msgspec.structs.replace(message, content=[TextBlock(text=bare)]))
        elif text.startswith(_PINNED):
            pins.append(text[len(_PINNED) :].strip())
        else:
            rest.append(message)
            if text.startswith(_UNPINNED):
                gone = text[len(_UNPINNED) :].strip()
                pins = [kept for pin in pins if (kept := pin.replace(gone, "").strip())]
    if not pins:
        return None, list(messages)
    return UserMessage(content=[TextBlock(text=pinned_block(pins).strip())]), rest
