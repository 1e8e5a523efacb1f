"""Separates the reasoning that a model writes into its answer from the answer, while the text arrives.

Some models put reasoning between tags (``<think>…</think>``), and some put the answer between ``<final>`` tags. Tags
inside code are ordinary text.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from openclaw.messages import AssistantBlock, AssistantMessage, TextBlock, ThinkingBlock

NAMES = ("think", "thinking", "thought", "antthinking", "final")
LONGEST_CODE_SPAN = 1_000
"""The end of inline code is searched within this length. Beyond it, a tag counts as a tag."""

_NAME = "think(?:ing)?|thought|antthinking|final"
_TAG = re.compile(rf"<\s{{0,8}}(/?)\s{{0,8}}({_NAME})\b[^<>]{{0,200}}>", re.IGNORECASE)
_BEGUN_TAG = re.compile(
    rf"<\s{{0,8}}/?\s{{0,8}}(?:([a-z]{{1,11}})|(?:{_NAME})\b[^<>]{{0,200}})?\Z",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"[<`~\n]")
_RUN_OR_END = re.compile(r"`+|\n")


class AnswerText(msgspec.Struct, frozen=True):
    text: str
    reply_to: str = ""
    """The message that the answer quotes, as far as it has said so."""
    media: tuple[str, ...] = ()
    """Files that the answer names behind this text, which may be empty."""
    voice: bool = False
    """The answer wants its sound files as voice messages, as far as it has said so."""


class ReasoningText(msgspec.Struct, frozen=True):
    text: str


Piece: TypeAlias = AnswerText | ReasoningText
Framing: TypeAlias = bool | Literal["if_begun"]
"""Whether only text in ``<final>`` is the answer. ``if_begun`` means only if the model begins its answer with a tag."""


class Tag(msgspec.Struct, frozen=True):
    closes: bool
    final: bool
    end: int


def tag_at(text: str, at: int, *, last: bool) -> Tag | Literal["undecided"] | None:
    """The tag that begins at this ``<``. ``last`` says that no more text comes."""
    if (found := _TAG.match(text, at)) is not None:
        return Tag(found[1] == "/", found[2].lower() == "final", found.end())
    begun = None if last else _BEGUN_TAG.match(text, at)
    if begun is None:
        return None
    word = (begun[1] or "").lower()
    return "undecided" if not word or any(name.startswith(word) for name in NAMES) else None


class _Pieces:
    """Collects pieces. Adjacent text of one kind becomes one piece."""

    def __init__(self) -> None:
        self.made: list[Piece] = []

    def add(self, kind: type[AnswerText] | type[ReasoningText], text: str) -> None:
        if not text:
            return
        if self.made and type(self.made[-1]) is kind:
            self.made[-1] = kind(self.made[-1].text + text)
        else:
            self.made.append(kind(text))


class _Code:
    """Tracks whether the present place is inside code: a fence, or backticks that may be closed on their line."""

    def __init__(self) -> None:
        self._indent: int | None = 0
        """The spaces at the beginning of the line. None once the line has other text."""
        self._fence: tuple[str, int] | None = None
        self._closing = False
        self.open_runs: list[int] = []

    @property
    def fenced(self) -> bool:
        return self._fence is not None

    def plain(self, text: str) -> None:
        if text and self._indent is not None:
            self._indent = self._indent + len(text) if not text.strip(" ") else None

    def newline(self) -> None:
        self._indent = 0
        self.open_runs.clear()
        if self._closing:
            self._fence, self._closing = None, False

    def run(self, char: str, length: int) -> None:
        """Handles a run of backticks or tildes."""
        leads = self._indent is not None and self._indent <= 3 and length >= 3
        self._indent = None
        if self._fence is not None:
            marker, least = self._fence
            self._closing = self._closing or (leads and char == marker and length >= least)
        elif leads:
            self._fence = (char, length)
        elif char == "`":
            if length in self.open_runs:
                del self.open_runs[self.open_runs.index(length) :]
            else:
                self.open_runs.append(length)

    def closes_after(self, text: str, at: int, *, last: bool) -> bool | None:
        """Whether the backticks that are open here are closed later in the line. None if that is not known yet."""
        if not self.open_runs:
            return False
        ahead = text[at : at + LONGEST_CODE_SPAN]
        whole = last or len(ahead) == LONGEST_CODE_SPAN
        for found in _RUN_OR_END.finditer(ahead):
            if found[0] == "\n":
                return False
            if found.end() == len(ahead) and not whole:
                return None
            if len(found[0]) in self.open_runs:
                return True
        return False if whole else None


class TagStream:
    """Sorts text into answer and reasoning. Text that cannot be sorted yet is held back.

    With ``only_final``, text outside ``<final>`` is not part of the answer, unless the model never uses the tag.
    """

    def __init__(self, *, only_final: Framing = False) -> None:
        self._held = ""
        self._thinking = False
        self._code = _Code()
        self._framed: bool | None = False if only_final else None
        self._waits = only_final is True
        self._unframed: list[str] = []
        self.spoke = False
        """True once there is answer text that is not outside ``<final>``."""

    @property
    def framed(self) -> bool:
        """Whether ``<final>`` decides what the answer is."""
        return self._framed is not None

    @property
    def unframed(self) -> str:
        """The text outside ``<final>``."""
        return "".join(self._unframed)

    @property
    def thinking(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known."""
        return self._thinking

    def feed(self, delta: str) -> list[Piece]:
        if not delta or self._held or self._thinking or _SPECIAL.search(delta) is not None:
            self._held += delta
            return self._sort(last=False)
        # This is the usual case: words without special characters.
        out = _Pieces()
        self._code.plain(delta)
        self._say(delta, out)
        return out.made

    def close(self, *, complete: bool = True) -> list[Piece]:
        """Returns the rest. If the text was cut off, held text is dropped, since it may be half a tag."""
        pieces = self._sort(last=True) if complete else []
        self._held = ""
        if self._framed is not None and not self.spoke and complete:
            pieces.append(AnswerText(self.unframed))
        return pieces

    def _sort(self, *, last: bool) -> list[Piece]:
        if not self._held:
            return []
        out, text, at = _Pieces(), self._held, 0
        while at < len(text):
            step = self._thought if self._thinking else self._said
            reached = step(text, at, last, out)
            if reached == at:
                break
            at = reached
        self._held = text[at:]
        return out.made

    def _thought(self, text: str, at: int, last: bool, out: _Pieces) -> int:
        """The first closing tag ends the reasoning, even inside code, because models are careless with code there."""
        place = text.find("<", at)
        if place != at:
            place = len(text) if place < 0 else place
            out.add(ReasoningText, text[at:place])
            return place
        tag = tag_at(text, at, last=last)
        if tag == "undecided":
            return at
        if tag is None or tag.final:
            out.add(ReasoningText, "<")
            return at + 1
        self._thinking = not tag.closes
        return tag.end

    def _said(self, text: str, at: int, last: bool, out: _Pieces) -> int:
        found = _SPECIAL.search(text, at)
        place = found.start() if found else len(text)
        if place > at:
            self._code.plain(text[at:place])
            self._say(text[at:place], out)
            return place
        char = text[at]
        if char == "<":
            return self._tag(text, at, last, out)
        if char == "\n":
            self._code.newline()
            self._say(char, out)
            return at + 1
        end = at
        while end < len(text) and text[end] == char:
            end += 1
        if end == len(text) and not last:
            return at  # More of the run may come.
        self._code.run(char, end - at)
        self._say(text[at:end], out)
        return end

    def _tag(self, text: str, at: int, last: bool, out: _Pieces) -> int:
        tag = None if self._code.fenced else tag_at(text, at, last=last)
        in_code = self._code.closes_after(text, at, last=last) if isinstance(tag, Tag) else True
        if tag == "undecided" or in_code is None:
            return at
        if tag is None or in_code:
            self._code.plain("<")
            self._say("<", out)
            return at + 1
        if not tag.final:
            self._thinking = not tag.closes
        elif self._framed is not None:
            self._framed, self._waits = not tag.closes, True
        return tag.end

    def _say(self, text: str, out: _Pieces) -> None:
        if self._framed is False and not self._waits and not text.isspace():
            self._framed = None
            text = self.unframed + text
        if self._framed is False:
            self._unframed.append(text)
            return
        self.spoke = self.spoke or not text.isspace()
        out.add(AnswerText, text)


def typed(message: AssistantMessage, *, thinking: bool = False) -> AssistantMessage:
    """The message as it is stored: reasoning in tags at its beginning becomes a ``ThinkingBlock``.

    ``thinking`` says that the message continues the reasoning of an earlier part of the answer.
    """
    first = message.content[0] if message.content else None
    if not isinstance(first, TextBlock) or (not thinking and "<" not in first.text):
        return message
    if any(isinstance(block, ThinkingBlock) for block in message.content):
        return message
    thoughts, rest = _leading_thoughts(first.text, thinking, cut=message.stop_reason == "length")
    if not thoughts:
        return message
    content: list[AssistantBlock] = [ThinkingBlock(thinking="\n\n".join(filter(None, thoughts)))]
    if rest:
        content.append(TextBlock(text=rest))
    return msgspec.structs.replace(message, content=[*content, *message.content[1:]])


def framed(message: AssistantMessage, before: str, *, thinking: bool, only_final: Framing = True) -> AssistantMessage:
    """The message as it is stored for a model that uses ``<final>``: text outside it becomes reasoning.

    ``before`` is the text of the earlier parts of the answer.
    """
    stream = TagStream(only_final=only_final)
    stream.feed(before)
    outside = len(stream.unframed)
    pieces = [*stream.feed(message.text), *stream.close()]
    if not stream.spoke or not stream.framed:
        return typed(message, thinking=thinking)
    said = "".join(piece.text for piece in pieces if isinstance(piece, AnswerText))
    if not before and message.stop_reason != "length":
        said = said.strip()
    thoughts = [*(piece.text for piece in pieces if isinstance(piece, ReasoningText)), stream.unframed[outside:]]
    text = "\n\n".join(thought.strip() for thought in thoughts if thought.strip())
    others = [block for block in message.content if not isinstance(block, TextBlock)]
    place = next((n for n, block in enumerate(others) if not isinstance(block, ThinkingBlock)), len(others))
    made: list[AssistantBlock] = [
        *([ThinkingBlock(thinking=text)] if text else []),
        *([TextBlock(text=said)] if said else []),
    ]
    return msgspec.structs.replace(message, content=[*others[:place], *made, *others[place:]])


def _leading_thoughts(text: str, thinking: bool, *, cut: bool) -> tuple[list[str], str]:
    """The reasoning at the beginning, and the rest. Reasoning without an end tag is text, unless the output was cut."""
    thoughts: list[str] = []
    rest = text if thinking else text.lstrip()
    while True:
        opening = None if thinking else _TAG.match(rest)
        if not thinking and (opening is None or opening[1] or opening[2].lower() == "final"):
            return thoughts, rest
        begin = opening.end() if opening else 0
        tags = _TAG.finditer(rest, begin)
        closing = next((tag for tag in tags if tag[1] == "/" and tag[2].lower() != "final"), None)
        if closing is None:
            return ([*thoughts, rest[begin:].strip()], "") if thinking or cut else (thoughts, rest)
        thoughts.append(rest[begin : closing.start()].strip())
        rest = rest[closing.end() :].lstrip()
        thinking = False


def reasoning_message(reasoning: str) -> str:
    """The reasoning as a message for people who asked to see it. Empty if there is none."""
    lines = [line.strip() for line in reasoning.strip().splitlines()]
    return "\n".join(["Reasoning:", *(f"_{line}_" if line else "" for line in lines)]) if any(lines) else ""
