"""Tags by which a model says which message it answers: read while the text arrives, never shown.

``[[reply_to_current]]`` is the message that started the turn, ``[[reply_to:<id>]]`` any other of the chat.
"""

from __future__ import annotations

import re

CURRENT = "current"
LONGEST = 200
"""A tag is no longer than this; a bracket that opens more is text."""
_NAMES = ("[[reply_to_current]]", "[[audio_as_voice]]", "[[reply_to:")
_TAG = re.compile(
    r"\[\[[ \t]{0,8}"
    r"(?:(reply_to_current)|audio_as_voice|reply_to[ \t]{0,8}:[ \t]{0,8}([^\]\s][^\]\n]{0,150}?))[ \t]{0,8}\]\]",
    re.IGNORECASE,
)
_BLANKS = re.compile(r"[ \t]+")


class ReplyTags:
    """Takes the tags out of a text. What may still become one is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._before = ""
        """The last character let through."""
        self._gap = False
        """A tag was just taken out: the blanks on both sides of it become one."""
        self._id = ""
        self._current = False

    @property
    def reply_to(self) -> str:
        """``current``, an id, or nothing. The last id counts, and more than ``current``."""
        return self._id or (CURRENT if self._current else "")

    def feed(self, text: str) -> str:
        if not self._held and not self._gap and "[" not in text:
            self._before = text[-1:] or self._before
            return text
        self._held += text
        return self._release(last=False)

    def close(self, *, complete: bool = True) -> str:
        """Of a text that was cut off, half a tag stays unsaid."""
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
                said.append(self._let(place))
            elif (tag := _TAG.match(self._held)) is not None and self._before != "`":
                self._note(tag)
            elif not last and _may_become_tag(self._held):
                break
            else:
                said.append(self._let(1))
        return "".join(said)

    def _note(self, tag: re.Match[str]) -> None:
        self._current = self._current or tag[1] is not None
        self._id = (tag[2] or "").strip() or self._id
        self._held, self._gap = self._held[tag.end() :], True

    def _let(self, size: int) -> str:
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
