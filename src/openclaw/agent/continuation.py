"""An answer in several parts: detecting that the output limit cut it, asking for the rest, joining the parts.

A continuation often repeats text from before the break. That overlap is removed, and a code fence stays open across the
cut. A tool call that was cut is requested again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce

from openclaw.events import Speech
from openclaw.messages import FAILED_STOPS, AssistantMessage, Message, TextBlock, UserMessage
from openclaw.outbound.answer_filter import AnswerText, Piece, SpeechRules, SpeechStream

CONTINUE = "[Cut off by the output limit]"
"""Every request to go on begins with this. After a restart the parts of an answer are recognised by it."""
LONGEST_OVERLAP = 4000
LEAST_OVERLAP = 16
"""A shorter repetition may be a coincidence. Removing it would lose words."""
LEAST_LINE = 6
"""The same limit for a continuation that begins its unfinished last line again."""
_SHOWN_TAIL = 160
_SENTENCE_END = re.compile(r"[.!?…。！？]['\"’”»)\]*_]{0,3}\s*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_FENCE_AGAIN = re.compile(r"\s{0,8}(`{3,}|~{3,})[ \t]*([^\s`~][^\n`~]{0,40})\n")
_MAYBE_FENCE_AGAIN = re.compile(r"\s{0,8}(?:`{0,12}|~{0,12})(?:[ \t]*[^\s`~][^\n`~]{0,40})?\Z")


class AnswerPart:
    """The part of an answer that is arriving. ``feed`` and ``close`` return what is shown to people."""

    def __init__(self, before: str, speech: SpeechStream) -> None:
        self.before = before
        self.speech = speech
        self.shown_before: list[Piece] = []
        """What people saw of the parts before."""
        self.thinking = False
        """The part begins in the middle of the model's reasoning."""
        self.received = False
        """Some text of the part has arrived."""
        self._overlap: OverlapRemover | None = None
        self._added: list[str] = []
        if before:
            self.shown_before = [piece for piece in speech.feed(before) if isinstance(piece, AnswerText)]
            self.thinking, self._overlap = speech.thinking, OverlapRemover(before)

    def feed(self, delta: str) -> list[Piece]:
        self.received = True
        return self._add(self._overlap.feed(delta) if self._overlap else delta)

    def pause(self) -> list[Piece]:
        """Ends the part. Another part of the answer follows."""
        return self._add(self._overlap.close()) if self._overlap else []

    def close(self, *, complete: bool) -> list[Piece]:
        """Ends the part and the answer."""
        return [*self.pause(), *self.speech.close(complete=complete)]

    @property
    def added(self) -> str:
        """The text that the part adds to the answer."""
        return "".join(self._added)

    def _add(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._added.append(text)
        return self.speech.feed(text)


class GrowingAnswer:
    """One answer, in one part or several. ``limit``: how often the model may be asked to go on."""

    def __init__(self, speech: SpeechRules, limit: int) -> None:
        self._speech = speech
        self._limit = limit
        self._text = ""
        self.parts = 0
        """The number of finished parts that were cut."""

    @classmethod
    def resumed(cls, messages: Sequence[Message], speech: SpeechRules, limit: int) -> GrowingAnswer:
        """The answer at the end of ``messages`` if it was cut, else a new one. A restart may have interrupted it."""
        answer = cls(speech, limit)
        if messages and (is_request(messages[-1]) or unfinished(messages, limit)):
            chain = parts_at_end(messages)
            answer._text, answer.parts = joined(chain), len(chain)
        return answer

    def begin(self) -> AnswerPart:
        """The next part. A second call makes another attempt at the same part."""
        return AnswerPart(self._text, self._speech.stream())

    def goes_on(self, message: AssistantMessage, part: AnswerPart) -> bool:
        """Whether the model should be asked for the rest. After tool calls it is asked again anyway."""
        return _has_more(message) and self.parts < self._limit and not part.speech.silent

    def add(self, part: AnswerPart) -> None:
        """Adds a part that was cut to the answer."""
        self._text += part.added
        self.parts += 1

    def speech_so_far(self) -> Speech:
        """What the finished parts say to people."""
        part = self.begin()
        part.close(complete=True)
        return part.speech.outcome

    def request(self, message: AssistantMessage, now_ms: int) -> UserMessage:
        """Asks the model to go on after ``message``, which was cut."""
        if (notice := cut_call_notice(message, now_ms)) is not None:
            return notice
        tail = json.dumps(self._text[-_SHOWN_TAIL:], ensure_ascii=False)
        text = (
            f"{CONTINUE} Your answer broke off after {tail}. Write only what comes next, starting with the very next "
            "character. Repeat nothing, do not comment on the break, and open no code block that is still open."
        )
        return UserMessage(content=[TextBlock(text=text)], timestamp=now_ms)


def cut_call_notice(message: AssistantMessage, now_ms: int) -> UserMessage | None:
    """Tells the model that the limit cut one of its calls, which was not run. None: no call was cut."""
    note = cut_call(message)
    if note is None:
        return None
    text = (
        f"{CONTINUE} {note} It was not run. If it is still needed make it again, with shorter arguments: "
        "write long content in several steps."
    )
    return UserMessage(content=[TextBlock(text=text)], timestamp=now_ms)


def unfinished(messages: Sequence[Message], limit: int) -> bool:
    """Whether the last answer was cut and the model may still be asked for the rest."""
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and _has_more(last) and len(parts_at_end(messages)) <= limit


def _has_more(message: AssistantMessage) -> bool:
    """Whether the message was cut and has text or a cut call. A message of reasoning alone would be cut again."""
    return (
        message.stop_reason == "length" and not message.tool_calls and bool(message.text.strip() or cut_call(message))
    )


def is_failed(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in FAILED_STOPS


def is_cut(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason == "length"


def cut_call(message: AssistantMessage) -> str | None:
    """The provider adapter's note about a call that the limit cut. The call is not part of the message."""
    note = message.error_message
    return note if message.stop_reason == "length" and isinstance(note, str) and note else None


def is_request(message: Message) -> bool:
    """Whether the message asks the model to go on."""
    if not isinstance(message, UserMessage):
        return False
    text = message.content
    if not isinstance(text, str):
        first = text[0] if text else None
        text = first.text if isinstance(first, TextBlock) else ""
    return text.startswith(CONTINUE)


def parts_at_end(messages: Sequence[Message]) -> list[AssistantMessage]:
    """The messages that make up the last answer. Failed attempts and a request to go on at the very end are ignored."""
    earlier = (message for message in reversed(messages) if not is_failed(message))
    message = next(earlier, None)
    if message is not None and is_request(message):
        message = next(earlier, None)
    parts: list[AssistantMessage] = []
    while isinstance(message, AssistantMessage) and (not parts or (is_cut(message) and not message.tool_calls)):
        parts.insert(0, message)
        request = next(earlier, None)
        message = next(earlier, None) if request is not None and is_request(request) else None
    return parts


def replies(answers: Sequence[AssistantMessage]) -> list[str]:
    """The texts of a run's messages. The parts of one answer are joined."""
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
    """The text of an answer in several parts."""
    return reduce(join, (part.text for part in parts), "")


class OverlapRemover:
    """Removes what a continuation repeats of the text before the break.

    Whole lines and whole sentences that come again are kept, because an answer may repeat them on purpose. So is a
    pattern that goes on, such as a row of zeros. ``feed`` holds text back until it is clear how much is repeated.
    """

    def __init__(self, before: str) -> None:
        self._done = not before
        self._before = before[-2 * LONGEST_OVERLAP - 2 :]
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
        if not last and after in self._tail:
            return ""
        again = _FENCE_AGAIN.match(after) if self._fence is not None else None
        if again is not None and self._fence == (again[1][0], again[2].strip()):
            # The code block is open already, so its first line can only be a repetition.
            if size := self._overlap(after, again.end()):
                return self._decided(after[size:])
            after = after[again.end() :]
            if not last and after in self._tail:
                return ""
        size = self._overlap(after)
        repeated, rest = after[:size], after[size:]
        if not last and self._needs_more(repeated, rest):
            return ""
        return self._decided(after if self._may_go_on_with(repeated, rest) else rest)

    def _decided(self, text: str) -> str:
        self._done, self._held = True, ""
        return text

    def _overlap(self, after: str, least: int = LEAST_OVERLAP) -> int:
        """The number of characters at the beginning of ``after`` that are also the end of the text before."""
        for size in range(min(len(after), len(self._tail)), LEAST_LINE - 1, -1):
            again = after[:size]
            if self._tail.endswith(again) and (size >= least or again in (self._line, self._line.lstrip())):
                return size
        return 0

    def _needs_more(self, again: str, rest: str) -> bool:
        """Whether only the text that follows ``rest`` tells whether ``again`` is meant."""
        first = again.split("\n", 1)[0]
        return bool(self._line) and "\n" in again and len(rest) < len(first) and first.startswith(rest)

    def _may_go_on_with(self, again: str, rest: str) -> bool:
        """Whether the answer may repeat ``again`` on purpose, so that it is not an overlap of the break."""
        head = self._before[: len(self._before) - len(again)]
        periodic = 0 < (again + again).find(again, 1) <= len(again) // 2
        return (
            periodic or head.endswith(again) or self._are_lines(head, again, rest) or self._are_sentences(head, again)
        )

    def _are_lines(self, head: str, again: str, rest: str) -> bool:
        """Whether ``again`` is whole lines that follow equal lines."""
        if again.startswith("\n") and self._line:
            return not rest or rest.startswith("\n")
        # At a break inside a line, equal lines go on if the first of them began like the unfinished one. Other lines
        # may begin like it too (indentation, list markers, keys), so the same line has to come once more.
        start, first = head.removesuffix(self._line), again.split("\n", 1)[0]
        if "\n" not in again or not head.endswith(self._line) or (start and not start.endswith("\n")):
            return False
        return not self._line or rest.startswith(first) or first.startswith(rest)

    def _are_sentences(self, head: str, again: str) -> bool:
        """Whether ``again`` is whole sentences that follow equal sentences. Code has no sentences."""
        if self._fence is not None or not _SENTENCE_END.search(again):
            return False
        if head and not head.endswith("\n") and not _SENTENCE_END.search(head):
            return False
        # Full-width punctuation is not followed by a space.
        return again[-1].isspace() or again[0].isspace() or not again[-1].isascii()


def join(before: str, after: str) -> str:
    """Both texts as one, without what ``after`` repeats."""
    remover = OverlapRemover(before)
    return before + remover.feed(after) + remover.close()


def open_fence(text: str) -> tuple[str, str] | None:
    """The marker and the language of the code block in which the text ends. None: it does not end in one."""
    opened: tuple[str, int, str] | None = None
    for line in text.split("\n"):
        if (fence := _FENCE.match(line)) is None:
            continue
        marker, length = fence[1][0], len(fence[1])
        if opened is None:
            opened = (marker, length, fence[2].strip())
        elif opened[0] == marker and length >= opened[1]:
            opened = None
    return (opened[0], opened[2]) if opened else None
