"""Reasoning that a model writes into its answer: told apart from the answer while both arrive.

Some models put their thoughts between tags (``<think>…</think>``) and the answer between ``<final>`` tags, or neither.
Tags inside code are text like any other.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from openclaw.messages import AssistantBlock, AssistantMessage, TextBlock, ThinkingBlock

NAMES = ("think", "thinking", "thought", "antthinking", "final")
LONGEST_CODE_SPAN = 1_000
"""How far the end of inline code is looked for before a tag in it counts as a tag."""

_NAME = "think(?:ing)?|thought|antthinking|final"
_TAG = re.compile(rf"<\s{{0,8}}(/?)\s{{0,8}}({_NAME})\b[^<>]{{0,200}}>", re.IGNORECASE)
_BEGUN_TAG = re.compile(
    rf"<\s{{0,8}}/?\s{{0,8}}(?:([a-z]{{1,11}})|(?:{_NAME})\b[^<>]{{0,200}})?\Z",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"[<`~\n]")
_RUN_OR_END = re.compile(r"`+|\n")


class Said(msgspec.Struct, frozen=True):
    text: str


class Thought(msgspec.Struct, frozen=True):
    text: str


Piece: TypeAlias = Said | Thought
Framing: TypeAlias = bool | Literal["if_begun"]
"""Whether a model is held to ``<final>``; ``if_begun``: only if it begins its answer with a tag."""


class Tag(msgspec.Struct, frozen=True):
    closes: bool
    final: bool
    end: int


def tag_at(text: str, at: int, *, last: bool) -> Tag | Literal["undecided"] | None:
    """The tag that begins at this ``<``. ``last``: no more text will come."""
    if (found := _TAG.match(text, at)) is not None:
        return Tag(found[1] == "/", found[2].lower() == "final", found.end())
    begun = None if last else _BEGUN_TAG.match(text, at)
    if begun is None:
        return None
    word = (begun[1] or "").lower()
    return "undecided" if not word or any(name.startswith(word) for name in NAMES) else None


class _Pieces:
    """Adjacent text of one kind becomes one piece."""

    def __init__(self) -> None:
        self.made: list[Piece] = []

    def add(self, kind: type[Said] | type[Thought], text: str) -> None:
        if not text:
            return
        if self.made and type(self.made[-1]) is kind:
            self.made[-1] = kind(self.made[-1].text + text)
        else:
            self.made.append(kind(text))


class _Code:
    """Whether the place reached is inside code: a fence, or backticks that may still be closed on their line."""

    def __init__(self) -> None:
        self._indent: int | None = 0
        """Spaces the line began with; None once it holds anything else."""
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
        """A run of backticks or tildes."""
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
        """Whether backticks that are open here are closed further on in the line; None: not known yet."""
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
    """Sorts text into what is said and what is thought. What cannot be told yet is held back.

    ``only_final``: nothing outside ``<final>`` is said, unless the model never used the tag.
    """

    def __init__(self, *, only_final: Framing = False) -> None:
        self._held = ""
        self._thinking = False
        self._code = _Code()
        self._framed: bool | None = False if only_final else None
        self._waits = only_final is True
        self._unframed: list[str] = []
        self.spoke = False
        """Something was said, and not only outside the frame."""

    @property
    def framed(self) -> bool:
        """Whether ``<final>`` decides what is said."""
        return self._framed is not None

    @property
    def unframed(self) -> str:
        """What stood outside ``<final>``."""
        return "".join(self._unframed)

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._thinking

    def feed(self, delta: str) -> list[Piece]:
        if not delta or self._held or self._thinking or _SPECIAL.search(delta) is not None:
            self._held += delta
            return self._sort(last=False)
        # Words, as most of what arrives.
        out = _Pieces()
        self._code.plain(delta)
        self._say(delta, out)
        return out.made

    def close(self, *, complete: bool = True) -> list[Piece]:
        """The end. Of a text that was cut off, what is held back may be half a tag: it goes."""
        pieces = self._sort(last=True) if complete else []
        self._held = ""
        if self._framed is not None and not self.spoke and complete:
            pieces.append(Said(self.unframed))
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
        """The first closing tag ends the thought, whatever it stands in: models are careless with code in there."""
        place = text.find("<", at)
        if place != at:
            place = len(text) if place < 0 else place
            out.add(Thought, text[at:place])
            return place
        tag = tag_at(text, at, last=last)
        if tag == "undecided":
            return at
        if tag is None or tag.final:
            out.add(Thought, "<")
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
            return at  # The run may be longer than what is here.
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
        out.add(Said, text)


def typed(message: AssistantMessage, *, thinking: bool = False) -> AssistantMessage:
    """The message as it is stored: reasoning in tags at its beginning becomes a block of its own.

    ``thinking``: the message goes on with the reasoning that an earlier part of the answer had begun.
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
    """The message as it is stored of a model that is held to ``<final>``: what stood outside it is reasoning.

    ``before``: the parts of the answer that came earlier.
    """
    stream = TagStream(only_final=only_final)
    stream.feed(before)
    outside = len(stream.unframed)
    pieces = [*stream.feed(message.text), *stream.close()]
    if not stream.spoke or not stream.framed:
        return typed(message, thinking=thinking)
    said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
    if not before and message.stop_reason != "length":
        said = said.strip()
    thoughts = [*(piece.text for piece in pieces if isinstance(piece, Thought)), stream.unframed[outside:]]
    text = "\n\n".join(thought.strip() for thought in thoughts if thought.strip())
    others = [block for block in message.content if not isinstance(block, TextBlock)]
    place = next((n for n, block in enumerate(others) if not isinstance(block, ThinkingBlock)), len(others))
    made: list[AssistantBlock] = [
        *([ThinkingBlock(thinking=text)] if text else []),
        *([TextBlock(text=said)] if said else []),
    ]
    return msgspec.structs.replace(message, content=[*others[:place], *made, *others[place:]])


def _leading_thoughts(text: str, thinking: bool, *, cut: bool) -> tuple[list[str], str]:
    """Reasoning that was never closed stays where it is, unless the output limit cut it: the rest may follow."""
    thoughts: list[str] = []
    rest = text if thinking else text.lstrip()
    while True:
        opening = None if thinking else _TAG.match(rest)
        if not thinking and (opening is None or opening[1] or opening[2].lower() == "final"):
            return thoughts, rest
        begin = opening.end() if opening else 0
        closing = next((tag for tag in _TAG.finditer(rest, begin) if _ends_thought(tag)), None)
        if closing is None:
            return ([*thoughts, rest[begin:].strip()], "") if thinking or cut else (thoughts, rest)
        thoughts.append(rest[begin : closing.start()].strip())
        rest = rest[closing.end() :].lstrip()
        thinking = False


def _ends_thought(tag: re.Match[str]) -> bool:
    return tag[1] == "/" and tag[2].lower() != "final"


def reasoning_message(reasoning: str) -> str:
    """Reasoning as a message of its own, for people who asked to see it. Empty when there is none."""
    lines = [line.strip() for line in reasoning.strip().splitlines()]
    return "\n".join(["Reasoning:", *(f"_{line}_" if line else "" for line in lines)]) if any(lines) else ""
