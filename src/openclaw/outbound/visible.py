"""Decides what people see of a model's text while it arrives: the same for every channel, event and view.

``SpeechStream`` separates reasoning, takes out reply tags and ``MEDIA:`` lines, and holds back silence tokens. The
reply tags are ``[[reply_to_current]]``, the message that started the turn, ``[[reply_to:<id>]]``, another message of
the chat, and ``[[audio_as_voice]]``: the sound files of the answer are voice messages.
"""

from __future__ import annotations

import re

import msgspec

from openclaw.events import Silent, Speech, Spoken, Unsaid
from openclaw.messages import AssistantBlock, AssistantMessage, TextBlock, ThinkingBlock
from openclaw.outbound.media_lines import MARK, MediaLines
from openclaw.outbound.reasoning import AnswerText, Framing, Piece, ReasoningText, TagStream, framed, typed
from openclaw.outbound.silence import SilenceGate

CURRENT = "current"
LONGEST = 200
"""The longest reply tag. A bracket that is not closed within this length is text."""
_NAMES = ("[[reply_to_current]]", "[[audio_as_voice]]", "[[reply_to:")
_TAG = re.compile(
    r"\[\[[ \t]{0,8}"
    r"(?:(reply_to_current)|(audio_as_voice)|reply_to[ \t]{0,8}:[ \t]{0,8}([^\]\s][^\]\n]{0,150}?))[ \t]{0,8}\]\]",
    re.IGNORECASE,
)
_BEFORE_TAG = re.compile(r"(?=\[\[)")
_BLANKS = re.compile(r"[ \t]+")


class SpeechStream:
    """Takes the model's text as it arrives and returns what can be shown so far, separated from reasoning."""

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
        """Returns the rest. ``complete`` is False for a text that was cut off."""
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
        """The form in which a message of this stream is stored. ``before`` is the earlier text of the answer."""
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
        """What can be shown of a text without its ``MEDIA:`` lines, divided where files stood."""
        lines, shown = self._media_lines, list[Piece]()
        named, places = lines.media[self._media_shown :], lines.places[self._media_shown :]
        self._media_shown += len(named)
        for place in sorted(set(places)):
            before, text = text[: place - self._read], text[place - self._read :]
            self._read = place
            media = tuple(one for one, stood in zip(named, places, strict=True) if stood == place)
            shown.append(self._say(self._gate.feed(before), media))
        self._read += len(text)
        if said := self._gate.feed(text):
            shown.append(self._say(said))
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
    """A stored message as people see it. None if they see nothing of it."""
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
    """The files that a stored message names, in order, by address."""
    text = typed(message).text
    if MARK not in text:
        return ()
    speech = speech_of(text, complete=message.stop_reason not in ("error", "aborted"))
    return speech.media if isinstance(speech, Spoken) else ()


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
        """Returns the rest. If the text was cut off, an unfinished tag is dropped."""
        if not self._held:
            return ""
        said = self._release(last=complete)
        self._held = ""
        return said

    def _release(self, *, last: bool) -> str:
        said: list[str] = []
        while self._held:
            place = self._held.find("[")
            if place != 0:
                place = len(self._held) if place < 0 else place
                said.append(self._pass(place))
            elif (tag := _TAG.match(self._held)) is not None and self._before != "`":
                self._note(tag)
            elif not last and _may_become_tag(self._held):
                break
            else:
                said.append(self._pass(1))
        return "".join(said)

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
