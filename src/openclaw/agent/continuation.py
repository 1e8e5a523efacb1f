"""An answer that the output limit cut: the model is asked to go on, and the parts become one answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from openclaw.events import Speech
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage
from openclaw.outbound.reasoning import Piece
from openclaw.outbound.visible import SpeechStream

CONTINUE = "[Cut off by the output limit]"
"""How the request to go on begins; after a restart a part of an answer is known by it."""
LONGEST_OVERLAP = 600
LEAST_OVERLAP = 16
"""Shorter repetitions happen by themselves; cutting those would lose words."""
LEAST_LINE = 6
"""The same for the unfinished last line, begun again as a whole."""
_SHOWN_TAIL = 160
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_FENCE_AGAIN = re.compile(r"\s{0,8}(`{3,}|~{3,})[ \t]*([^\s`~][^\n`~]{0,40})\n")
_MAYBE_FENCE_AGAIN = re.compile(r"\s{0,8}(?:`{0,12}|~{0,12})(?:[ \t]*[^\s`~][^\n`~]{0,40})?\Z")


class Seam:
    """Finds where a continuation goes on, past what it repeats of the text before. Nothing else is left out."""

    def __init__(self, before: str) -> None:
        self._done = not before
        self._tail = before[-LONGEST_OVERLAP:]
        self._line = before[before.rfind("\n") + 1 :]
        self._fence = open_fence(before)
        self._held = ""

    def feed(self, delta: str) -> str:
        if self._done:
            return delta
        self._held += delta
        return self._decide(last=False)

    def close(self) -> str:
        return "" if self._done else self._decide(last=True)

    def _decide(self, *, last: bool) -> str:
        after = self._held
        if self._fence is not None and not last and len(after) < 80 and _MAYBE_FENCE_AGAIN.match(after):
            return ""
        again = _FENCE_AGAIN.match(after) if self._fence is not None else None
        if again is not None and self._fence == (again[1][0], again[2].strip()):
            after = after[again.end() :]
        if not last and (not after or (len(after) < LONGEST_OVERLAP and after in self._tail)):
            return ""
        self._done, self._held = True, ""
        return after[self._repeated(after) :]

    def _repeated(self, after: str) -> int:
        """How many characters the continuation begins with that stand at the end of the text already."""
        for size in range(min(len(after), len(self._tail)), LEAST_LINE - 1, -1):
            again = after[:size]
            if not self._tail.endswith(again):
                continue
            if size >= LEAST_OVERLAP or again == self._line:
                # A pattern that was repeating before the cut is going on, not being said again.
                return 0 if _repeats(again) or self._tail.endswith(again + again) else size
        return 0


def _repeats(text: str) -> bool:
    """Whether a text is a shorter one over and over (a row of zeros, a rule of dashes)."""
    return 0 < (text + text).find(text, 1) <= len(text) // 2


def join(before: str, after: str) -> str:
    seam = Seam(before)
    return before + seam.feed(after) + seam.close()


def open_fence(text: str) -> tuple[str, str] | None:
    """Marker and language of the code block the text ends in."""
    opened: tuple[str, int, str] | None = None
    for line in text.split("\n"):
        if (found := _FENCE.match(line)) is None:
            continue
        marker, length = found[1][0], len(found[1])
        if opened is None:
            opened = (marker, length, found[2].strip())
        elif opened[0] == marker and length >= opened[1]:
            opened = None
    return (opened[0], opened[2]) if opened else None


class AnswerPart:
    """The part of an answer that is arriving: what it adds, and what a person gets of it."""

    def __init__(self, before: str, speech: SpeechStream) -> None:
        self.before = before
        self.speech = speech
        self.said_before = ""
        self.thinking = False
        """It begins in the middle of the model's reasoning."""
        self._seam: Seam | None = None
        self._added: list[str] = []
        self.received = False
        if before:
            speech.feed(before)
            self.said_before, self.thinking, self._seam = speech.said, speech.thinking, Seam(before)

    def feed(self, delta: str) -> list[Piece]:
        self.received = True
        return self._add(self._seam.feed(delta) if self._seam else delta)

    def pause(self) -> list[Piece]:
        """The part is over, the answer is not."""
        return self._add(self._seam.close()) if self._seam else []

    def close(self, *, complete: bool) -> list[Piece]:
        return [*self.pause(), *self.speech.close(complete=complete)]

    @property
    def added(self) -> str:
        return "".join(self._added)

    def _add(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._added.append(text)
        return self.speech.feed(text)


class GrowingAnswer:
    """One answer, in as many parts as it took."""

    def __init__(self, speech: Callable[[], SpeechStream], limit: int) -> None:
        self._speech = speech
        self._limit = limit
        self._text = ""
        self.parts = 0

    @classmethod
    def resumed(cls, messages: Sequence[Message], speech: Callable[[], SpeechStream], limit: int) -> GrowingAnswer:
        """The answer as far as it had come when the Gateway was stopped in the middle of it."""
        reply = cls(speech, limit)
        if messages and (is_request(messages[-1]) or unfinished(messages, limit)):
            chain = parts_at_end(messages)
            reply._text, reply.parts = joined(chain), len(chain)
        return reply

    def begin(self) -> AnswerPart:
        """The next part, or another attempt at it."""
        return AnswerPart(self._text, self._speech())

    def goes_on(self, message: AssistantMessage, part: AnswerPart) -> bool:
        """Whether the model should be asked for the rest. Calls go before: their results ask for it anyway."""
        return _has_more(message) and self.parts < self._limit and not part.speech.silent

    def keep(self, part: AnswerPart) -> None:
        self._text += part.added
        self.parts += 1

    def heard(self) -> Speech:
        """What the finished parts say."""
        part = self.begin()
        part.close(complete=True)
        return part.speech.outcome

    def request(self, message: AssistantMessage, now_ms: int) -> UserMessage:
        return UserMessage(content=[TextBlock(text=_request(self._text, cut_call(message)))], timestamp=now_ms)


def told_of_cut_call(message: AssistantMessage, now_ms: int) -> UserMessage | None:
    """For an answer whose other calls were run: the model must know that one was not."""
    note = cut_call(message)
    return None if note is None else UserMessage(content=[TextBlock(text=_request("", note))], timestamp=now_ms)


def _request(said: str, call_note: str | None) -> str:
    if call_note is not None:
        return (
            f"{CONTINUE} {call_note} It was not run. If it is still needed make it again, with shorter arguments: "
            "write long content in several steps."
        )
    tail = json.dumps(said[-_SHOWN_TAIL:], ensure_ascii=False)
    return (
        f"{CONTINUE} Your answer broke off after {tail}. Write only what comes next, starting with the very next "
        "character. Repeat nothing, do not comment on the break, and open no code block that is still open."
    )


def unfinished(messages: Sequence[Message], limit: int) -> bool:
    """Whether the last answer was cut and the model may still be asked for the rest."""
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and _has_more(last) and len(parts_at_end(messages)) <= limit


def _has_more(message: AssistantMessage) -> bool:
    """A limit that was spent on reasoning alone would be spent again."""
    return (
        message.stop_reason == "length" and not message.tool_calls and bool(message.text.strip() or cut_call(message))
    )


def is_cut(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason == "length"


def cut_call(message: AssistantMessage) -> str | None:
    """The note on a call that the limit cut; such a call is not part of the message."""
    note = message.error_message
    return note if message.stop_reason == "length" and isinstance(note, str) and note else None


def is_request(message: Message) -> bool:
    if not isinstance(message, UserMessage):
        return False
    text = message.content
    if not isinstance(text, str):
        first = text[0] if text else None
        text = first.text if isinstance(first, TextBlock) else ""
    return text.startswith(CONTINUE)


def parts_at_end(messages: Sequence[Message]) -> list[AssistantMessage]:
    """The messages that make up the last answer, a request to go on at the very end left aside."""
    place = len(messages) - 1
    if place >= 0 and is_request(messages[place]):
        place -= 1
    parts: list[AssistantMessage] = []
    while place >= 0 and isinstance(message := messages[place], AssistantMessage):
        if parts and not (is_cut(message) and not message.tool_calls):
            break
        parts.insert(0, message)
        if place < 1 or not is_request(messages[place - 1]):
            break
        place -= 2
    return parts


def replies(answers: Sequence[AssistantMessage]) -> list[str]:
    """The texts of a run's messages, parts of one answer put together."""
    texts: list[str] = []
    goes_on = False
    for answer in answers:
        if goes_on:
            texts[-1] = join(texts[-1], answer.text)
        else:
            texts.append(answer.text)
        goes_on = is_cut(answer) and not answer.tool_calls
    return texts


def joined(parts: Sequence[AssistantMessage]) -> str:
    text = ""
    for part in parts:
        text = join(text, part.text) if text else part.text
    return text
