"""Filters a model's text as it arrives down to the answer that people get, alike for every channel, event and view.

``SpeechStream`` separates reasoning from the answer, takes out reply tags and ``MEDIA:`` lines, and holds back silence
tokens.

- Some models put reasoning between tags (``<think>…</think>``), and some put the answer between ``<final>`` tags. Tags
  inside code are ordinary text.
- Reply tags are ``[[reply_to_current]]``, the message that started the turn, ``[[reply_to:<id>]]``, another message of
  the chat, and ``[[audio_as_voice]]``: the sound files of the answer are voice messages.
- A line that begins with ``MEDIA:`` names files by a web address or by a path of the workspace that begins with ``./``.
  The line is for the Gateway; people get the files. Lines in a block of code, and lines that name nothing that may be
  sent, are text.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from openclaw.events import Silent, Speech, Spoken, Unsaid
from openclaw.messages import (
    AssistantBlock,
    AssistantMessage,
    TextBlock,
    ThinkingBlock,
)
from openclaw.outbound.markdown import fence_after
from openclaw.outbound.silence import SilenceGate

CURRENT = "current"
_BEFORE_TAG = re.compile(r"(?=\[\[)")


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


class SpeechRules(msgspec.Struct, frozen=True):
    """What people see of a model's text."""

    only_final: Framing = False
    ack_max_chars: int | None = None

    def stream(self) -> SpeechStream:
        return SpeechStream(only_final=self.only_final, ack_max_chars=self.ack_max_chars)


class SpeechStream:
    """Takes the model's text as it arrives and return what can be shown so far, separated from reasoning."""

    def __init__(self, *, only_final: Framing = False, ack_max_chars: int | None = None) -> None:
        self._only_final: Framing = only_final
        self._tags = TagStream(only_final=only_final)
        self._reply_tags = ReplyTags()
        self._media_lines = MediaLines()
        self._media_shown = 0
        self._read = 0
        """How much text without such lines there was so far."""
        self._gate = SilenceGate(ack_max_chars=ack_max_chars)
        self._said: list[str] = []

    def feed(self, delta: str) -> list[Piece]:
        return self._through(self._tags.feed(delta))

    def close(self, *, complete: bool = True) -> list[Piece]:
        """Return the rest. ``complete`` is False for a text that was cut off."""
        pieces = self._through(self._tags.close(complete=complete))
        rest = self._media_lines.feed(self._reply_tags.close(complete=complete))
        pieces += self._answer(rest + self._media_lines.close(complete=complete))
        if text := self._gate.close(complete=complete):
            pieces.append(self._say(text))
        return pieces

    @property
    def thinking(self) -> bool:
        return self._tags.thinking

    def stored(self, message: AssistantMessage, before: str, *, thinking: bool) -> AssistantMessage:
        """Return the form in which a message of this stream is stored. ``before`` is the earlier text of the answer."""
        if self._only_final:
            return framed(message, before, thinking=thinking, only_final=self._only_final)
        return typed(message, thinking=thinking)

    @property
    def silent(self) -> bool:
        return self._gate.silent is not None

    @property
    def said(self) -> str:
        """The text that was shown so far."""
        return "".join(self._said)

    @property
    def media(self) -> tuple[str, ...]:
        """The files that were named so far."""
        return tuple(self._media_lines.media)

    @property
    def outcome(self) -> Speech:
        media = self.media
        if self._gate.silent is not None and not media:
            return Silent(self._gate.silent)
        text = self.said.strip()
        return Spoken(text, self._reply_tags.reply_to, media, self._reply_tags.voice) if text or media else Unsaid()

    def _through(self, pieces: list[Piece]) -> list[Piece]:
        shown: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ReasoningText):
                shown.append(piece)
                continue
            # Divided before each tag, so that the words before it do not answer what it names.
            for part in _BEFORE_TAG.split(piece.text) if "[[" in piece.text else (piece.text,):
                shown += self._answer(self._media_lines.feed(self._reply_tags.feed(part)))
        return shown

    def _answer(self, text: str) -> list[Piece]:
        """Return the visible text without its ``MEDIA:`` lines, divided at the files."""
        lines, shown = self._media_lines, list[Piece]()
        named, places = lines.media[self._media_shown :], lines.places[self._media_shown :]
        self._media_shown += len(named)
        for position in sorted(set(places)):
            before, text = text[: position - self._read], text[position - self._read :]
            self._read = position
            media = tuple(item for item, stood in zip(named, places, strict=True) if stood == position)
            shown.append(self._say(self._gate.feed(before), media))
        self._read += len(text)
        if reply := self._gate.feed(text):
            shown.append(self._say(reply))
        return shown

    def _say(self, text: str, media: tuple[str, ...] = ()) -> AnswerText:
        self._said.append(text)
        return AnswerText(text, self._reply_tags.reply_to, media, self._reply_tags.voice)


def speech_of(text: str, *, complete: bool = True) -> Speech:
    """What people see of a whole text."""
    stream = SpeechStream()
    stream.feed(text)
    stream.close(complete=complete)
    return stream.outcome


def visible_text(text: str, *, complete: bool = True) -> str:
    """What people see of a whole text, as a string. It is empty for silence."""
    speech = speech_of(text, complete=complete)
    return speech.text if isinstance(speech, Spoken) else ""


def visible_message(message: AssistantMessage, *, with_reasoning: bool) -> AssistantMessage | None:
    """Return a stored message as people see it. None if they see nothing of it."""
    message = typed(message)
    complete = message.stop_reason not in ("error", "aborted")
    speech = speech_of(message.text, complete=complete)
    whole, media = (speech.text, speech.media) if isinstance(speech, Spoken) else ("", ())
    content: list[AssistantBlock] = []
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    for block in message.content:
        match block:
            case TextBlock() if len(texts) == 1 or block is texts[0]:
                # Tokens and tags may continue from one block into the next, so the blocks are read as one text.
                shown = block if block.text == whole and len(texts) == 1 else TextBlock(text=whole)
                content += [shown] if whole else []
            case TextBlock():
                pass
            case ThinkingBlock():
                content += [block] if with_reasoning else []
            case _:
                content.append(block)
    if not content and message.content and complete and not media:
        return None
    return msgspec.structs.replace(message, content=content)


def media_of(message: AssistantMessage) -> tuple[str, ...]:
    """Return the files that a stored message names, in order, by address."""
    text = typed(message).text
    if MARK not in text:
        return ()
    speech = speech_of(text, complete=message.stop_reason not in ("error", "aborted"))
    return speech.media if isinstance(speech, Spoken) else ()


# Reasoning

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


class Tag(msgspec.Struct, frozen=True):
    closes: bool
    final: bool
    end: int


def tag_at(text: str, at: int, *, last: bool) -> Tag | Literal["undecided"] | None:
    """Return the tag that begins at this ``<``. ``last`` says that no more text comes."""
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
        """Handle a run of backticks or tildes."""
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
        for match in _RUN_OR_END.finditer(ahead):
            if match[0] == "\n":
                return False
            if match.end() == len(ahead) and not whole:
                return None
            if len(match[0]) in self.open_runs:
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
        """Return the rest. If the text was cut off, held text is dropped, since it may be half a tag."""
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
        position = text.find("<", at)
        if position != at:
            position = len(text) if position < 0 else position
            out.add(ReasoningText, text[at:position])
            return position
        tag = tag_at(text, at, last=last)
        if tag == "undecided":
            return at
        if tag is None or tag.final:
            out.add(ReasoningText, "<")
            return at + 1
        self._thinking = not tag.closes
        return tag.end

    def _said(self, text: str, at: int, last: bool, out: _Pieces) -> int:
        match = _SPECIAL.search(text, at)
        position = match.start() if match else len(text)
        if position > at:
            self._code.plain(text[at:position])
            self._say(text[at:position], out)
            return position
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
    """Return the message as it is stored: reasoning in tags at its beginning becomes a ``ThinkingBlock``.

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
    """Return the message as it is stored for a model that uses ``<final>``: text outside it becomes reasoning.

    ``before`` is the text of the earlier parts of the answer.
    """
    stream = TagStream(only_final=only_final)
    stream.feed(before)
    outside = len(stream.unframed)
    pieces = [*stream.feed(message.text), *stream.close()]
    if not stream.spoke or not stream.framed:
        return typed(message, thinking=thinking)
    reply = "".join(piece.text for piece in pieces if isinstance(piece, AnswerText))
    if not before and message.stop_reason != "length":
        reply = reply.strip()
    thoughts = [*(piece.text for piece in pieces if isinstance(piece, ReasoningText)), stream.unframed[outside:]]
    text = "\n\n".join(thought.strip() for thought in thoughts if thought.strip())
    others = [block for block in message.content if not isinstance(block, TextBlock)]
    position = next((n for n, block in enumerate(others) if not isinstance(block, ThinkingBlock)), len(others))
    made: list[AssistantBlock] = [
        *([ThinkingBlock(thinking=text)] if text else []),
        *([TextBlock(text=reply)] if reply else []),
    ]
    return msgspec.structs.replace(message, content=[*others[:position], *made, *others[position:]])


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
    """Return the reasoning as a message for people who asked to see it. Empty if there is none."""
    lines = [line.strip() for line in reasoning.strip().splitlines()]
    return "\n".join(["Reasoning:", *(f"_{line}_" if line else "" for line in lines)]) if any(lines) else ""


# Reply tags

LONGEST = 200
"""The longest reply tag. A bracket that is not closed within this length is text."""
_NAMES = ("[[reply_to_current]]", "[[audio_as_voice]]", "[[reply_to:")
_REPLY_TAG = re.compile(
    r"\[\[[ \t]{0,8}"
    r"(?:(reply_to_current)|(audio_as_voice)|reply_to[ \t]{0,8}:[ \t]{0,8}([^\]\s][^\]\n]{0,150}?))[ \t]{0,8}\]\]",
    re.IGNORECASE,
)
_BLANKS = re.compile(r"[ \t]+")


class ReplyTags:
    """Takes reply tags out of a text. Text that may still become a tag is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._before = ""
        """The last character that was released."""
        self._gap = False
        """True after a tag was taken out. The blanks on both sides of it become one."""
        self._id = ""
        self._current = False
        self.voice = False

    @property
    def reply_to(self) -> str:
        """An id, ``current`` or nothing. The last id counts; it takes precedence over ``current``."""
        return self._id or (CURRENT if self._current else "")

    def feed(self, text: str) -> str:
        if not self._held and not self._gap and "[" not in text:
            self._before = text[-1:] or self._before
            return text
        self._held += text
        return self._release(last=False)

    def close(self, *, complete: bool = True) -> str:
        """Return the rest. If the text was cut off, an unfinished tag is dropped."""
        if not self._held:
            return ""
        reply = self._release(last=complete)
        self._held = ""
        return reply

    def _release(self, *, last: bool) -> str:
        reply: list[str] = []
        while self._held:
            position = self._held.find("[")
            if position != 0:
                position = len(self._held) if position < 0 else position
                reply.append(self._pass(position))
            elif (tag := _REPLY_TAG.match(self._held)) is not None and self._before != "`":
                self._note(tag)
            elif not last and _may_become_tag(self._held):
                break
            else:
                reply.append(self._pass(1))
        return "".join(reply)

    def _note(self, tag: re.Match[str]) -> None:
        self._current = self._current or tag[1] is not None
        self.voice = self.voice or tag[2] is not None
        self._id = (tag[3] or "").strip() or self._id
        self._held, self._gap = self._held[tag.end() :], True

    def _pass(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        if self._gap:
            text = text.lstrip(" \t")
            if not text:
                return ""
            if self._before and not self._before.isspace() and not text[0].isspace():
                text = f" {text}"
            self._gap = False
        self._before = text[-1]
        return text


def _may_become_tag(text: str) -> bool:
    if len(text) > LONGEST or "\n" in text:
        return False
    begun = _BLANKS.sub("", text).lower()
    if begun.startswith(_NAMES[-1]):
        rest = begun[len(_NAMES[-1]) :]
        return "]" not in rest[:-1] and rest != "]"
    return any(name.startswith(begun) for name in _NAMES)


# Media lines

LONGEST_ADDRESS = 4096
LONGEST_LINE = 16_384
"""A longer line is text. It is held back until it is complete."""
MARK = "MEDIA:"
_LEAD = 120
_TOKEN = re.compile(r'"([^"]{1,4100})"(?!\S)|\'([^\']{1,4100})\'(?!\S)|`([^`]{1,4100})`(?!\S)|(\S+)')
_WEB = re.compile(r"https?://[^\s/]", re.IGNORECASE)
_FENCE = re.compile(r"[ \t>]{0,40}(?:(?:[-+*]|\d{1,9}[.)])[ \t]{1,4})?(`{3,100}|~{3,100})([^\n]*)")


class MediaLine(msgspec.Struct, frozen=True):
    """What a line names, and the words that are left of it."""

    media: tuple[str, ...]
    words: str


def read_line(line: str) -> MediaLine | None:
    """Return the files that a line names. None if it is text."""
    value = line.strip()
    if not value.startswith(MARK) or len(line) > LONGEST_LINE:
        return None
    media: list[str] = []
    words: list[str] = []
    for token in _TOKEN.finditer(value, len(MARK)):
        quoted = token[1] or token[2] or token[3]
        address = quoted.strip() if quoted else token[4].strip("<>").rstrip(",;")
        if is_sendable(address):
            media.append(address)
        else:
            words.append(token[0])
    return MediaLine(tuple(media), " ".join(words)) if media else None


def is_sendable(address: str) -> bool:
    """Return whether an address is one that a reply may name. Whether there is such a file is not looked at."""
    if len(address) > LONGEST_ADDRESS or any(ord(char) < 32 or ord(char) == 127 for char in address):
        return False
    if is_web(address):
        return not any(char.isspace() for char in address)
    return address.startswith("./") and len(address) > 2 and ".." not in address


def is_web(address: str) -> bool:
    return _WEB.match(address) is not None


def closed_up(text: str) -> str:
    """A text beside files: blank lines outside of blocks of code go, because a caption is short of room."""
    reply: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if line.strip() or fence:
            reply.append(line)
        fence = after_line(fence, line)
    return "\n".join(reply).strip()


def after_line(fence: str, line: str) -> str:
    """Return the marks of the block of code that is open behind a line, or nothing. ``fence`` is open before it."""
    found = _FENCE.match(line)
    return fence if found is None else fence_after(found, fence)


class MediaLines:
    """Takes such lines out of a text that arrives in pieces. A line that may become one is held back."""

    def __init__(self) -> None:
        self.media: list[str] = []
        """All that was named so far."""
        self.places: list[int] = []
        """For each of them, how much text had been released where it stood."""
        self._released = 0
        self._held = ""
        """The beginning of a line of which nothing was released."""
        self._lead: str | None = None
        """The beginning of the line that is being released."""
        self._tail = "\n\n"
        """The end of what was released."""
        self._fence = ""
        self._after_line = False

    def feed(self, text: str) -> str:
        if self._lead is not None and "\n" not in text:
            self._release(text)
            return text
        self._held += text
        return self._take(last=False)

    def close(self, *, complete: bool = True) -> str:
        """Return the rest. If the text was cut off, an unfinished ``MEDIA:`` line is dropped."""
        reply = self._take(last=complete)
        if not complete and not self._held.lstrip().startswith(MARK[:1]):
            reply += self._held
        self._held = ""
        return reply

    def _take(self, *, last: bool) -> str:
        reply: list[str] = []
        while self._held:
            end = self._held.find("\n")
            line = self._held if end < 0 else self._held[:end]
            if self._lead is None and not self._fence:
                if end < 0 and not last and _may_become(line):
                    break
                if (result := read_line(line)) is not None:
                    self._held, self._after_line = "" if end < 0 else self._held[end + 1 :], True
                    if result.words:
                        reply.append(self._release(result.words + ("" if end < 0 else "\n")))
                    self.media += result.media
                    self.places += [self._released] * len(result.media)
                    continue
                if self._after_line and end >= 0 and not line.strip() and self._tail == "\n\n":
                    self._held = self._held[end + 1 :]
                    continue
            piece = line if end < 0 else self._held[: end + 1]
            self._held = self._held[len(piece) :]
            reply.append(self._release(piece))
        return "".join(reply)

    def _release(self, piece: str) -> str:
        """Note a piece of one line, or a whole line."""
        self._released += len(piece)
        lead = self._lead or ""
        self._lead = lead if len(lead) >= _LEAD else lead + piece[: _LEAD - len(lead)]
        self._tail = (self._tail + piece)[-2:]
        self._after_line = self._after_line and not piece.strip()
        if piece.endswith("\n"):
            self._fence, self._lead = after_line(self._fence, self._lead.rstrip("\n")), None
        return piece


def _may_become(line: str) -> bool:
    begun = line.lstrip()
    return len(line) <= LONGEST_LINE and begun[: len(MARK)] == MARK[: len(begun)]
