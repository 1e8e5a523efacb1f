"""The words by which a model says nothing, taken out of what people get to read before any of it is shown.

``NO_REPLY`` at the beginning (or as the whole, however dressed up) is silence; at the end of a real answer it is cut
off. ``HEARTBEAT_OK`` is cut off at both ends, and silence when nothing else is said.
"""

from __future__ import annotations

import re
from typing import Literal

NO_REPLY = "NO_REPLY"
HEARTBEAT_OK = "HEARTBEAT_OK"
TOKENS = (NO_REPLY, HEARTBEAT_OK)

_FIRST_LETTERS = frozenset(token[0] for token in TOKENS)
_DRESS = "*_~\"'`“”‘’«»()[]"
"""Quotes and markup that may stand around a token."""
_CUT_DRESS = frozenset(_DRESS) - {"`"}
"""At the end of an answer a token in code is a mention, not a sign."""
_MOST_DRESS = 3
_LONGEST_TAIL = 400
"""Punctuation after a token; with more of it the token was no sign."""
_PREFIXES = tuple(sorted({token[:size] for token in TOKENS for size in range(1, len(token))}, key=len, reverse=True))
_TOKEN_OR_PREFIX = (*TOKENS, *_PREFIXES)
_dress = f"[{re.escape(_DRESS)}]"
_LEADS = re.compile(r"NO_REPLY(?![A-Za-z0-9_])")
_ACK_LEADS = re.compile(
    rf"{_dress}{{0,4}}HEARTBEAT_OK(?![A-Za-z0-9_]){_dress}{{0,4}}[.,;:!]{{0,3}}(?!{_dress}|[.,;:!])"
)
_MAYBE_LEADS = re.compile(rf"{_dress}{{0,4}}(?:{'|'.join(map(re.escape, (*_PREFIXES, *TOKENS)))})?\Z")
_ALONE = re.compile(r"[\W_]{0,8}(?:NO_REPLY|HEARTBEAT_OK)[\W_]*\Z")
_MAYBE_ALONE = re.compile(rf"[\W_]{{0,8}}(?:{'|'.join(map(re.escape, (*_PREFIXES, *TOKENS)))})?[\W_]{{0,400}}\Z")
_NO_WORD = re.compile(r"[\W_]*\Z")
_AFTER_TOKEN = re.compile(rf"(?:[^\w`]|_){{0,{_LONGEST_TAIL}}}\Z")

End = Literal["NO_REPLY", "HEARTBEAT_OK"]


class SilenceGate:
    """Lets text through as soon as it can no longer be part of a token. White space at both ends goes.

    ``ack_max_chars``: in a heartbeat run ``HEARTBEAT_OK`` with at most that much more is silence too; nothing is let
    through before the end.
    """

    def __init__(self, *, ack_max_chars: int | None = None) -> None:
        self._ack_max_chars = ack_max_chars
        self._held = ""
        self._before = ""
        """The last character that was let through: it tells whether what follows is inside a word."""
        self._speaking = False
        self.silent: End | None = None
        """The token that made the whole silent."""
        self._acknowledged = False

    def feed(self, text: str) -> str:
        if not text or self.silent is not None:
            return ""
        self._held += text
        return self._release() if self._ack_max_chars is None else ""

    def close(self, *, complete: bool = True) -> str:
        """What is left to say. Of a text that was cut off, half a token stays unsaid."""
        if self.silent is not None:
            return ""
        # Otherwise all that may be said was let through as it came.
        said = self._release() if self._ack_max_chars is not None else ""
        if not complete:
            rest = ""
        elif self._speaking:
            rest = self._without_tokens()
        else:
            rest = self._settle_beginning()
        self._held = ""
        said += rest
        if self._ack_max_chars is not None and self._acknowledged and len(said) <= self._ack_max_chars:
            self.silent, said = HEARTBEAT_OK, ""
        return said

    def _release(self) -> str:
        if not self._speaking and not self._begin():
            return ""
        floor = len(self._before)
        hold = hold_from(self._before + self._held, floor) - floor
        said, self._held = self._held[:hold], self._held[hold:]
        self._before = said[-1:] or self._before
        return said

    def _begin(self) -> bool:
        """Whether it is certain that something is being said."""
        while True:
            self._held = self._held.lstrip()
            if not self._held:
                return False
            first = self._held[0]
            if first.isalnum() and first not in _FIRST_LETTERS:
                self._speaking = True  # Some other word, as nearly always.
                return True
            if _MAYBE_LEADS.match(self._held):
                return False
            if _LEADS.match(self._held):
                self.silent, self._held = NO_REPLY, ""
                return False
            if (leads := _ACK_LEADS.match(self._held)) is None:
                break
            if leads.end() == len(self._held):
                return False
            self._acknowledged, self._held = True, self._held[leads.end() :]
        if _MAYBE_ALONE.match(self._held):
            return False
        self._speaking = True
        return True

    def _settle_beginning(self) -> str:
        """The end came before it was certain that anything is being said."""
        if (alone := _ALONE.match(self._held)) is not None:
            self.silent = NO_REPLY if NO_REPLY in alone[0] else HEARTBEAT_OK
            return ""
        if self._acknowledged and _NO_WORD.match(self._held):
            self.silent = HEARTBEAT_OK
            return ""
        return self._without_tokens()

    def _without_tokens(self) -> str:
        """What is held, without the tokens that end it."""
        text, floor = self._before + self._held, len(self._before)
        end = len(text)
        while (found := _ending_token(text, floor, end)) is not None:
            end, token = found
            self._acknowledged = self._acknowledged or token == HEARTBEAT_OK
        return text[floor:end].rstrip()


def is_silent(text: str) -> bool:
    """Whether a whole text says nothing by decision."""
    gate = SilenceGate()
    gate.feed(text)
    gate.close()
    return gate.silent is not None


def hold_from(text: str, floor: int = 0) -> int:
    """From where on a text may turn out to end in a token (or in white space, which is not said either).

    What stands before ``floor`` has been said already and only tells whether a word goes on.
    """
    end = len(text)
    if text[-1:].isalnum() and not text.endswith(_TOKEN_OR_PREFIX):
        return end  # In the middle of some other word, as most of what arrives.
    words = text.rstrip()
    if len(words) < end and words[-1:].isalnum() and not words.endswith(TOKENS):
        return max(floor, len(words))  # After one.
    start = _with_dress(text, floor, end - _begun_token(text, floor))
    if start is not None:
        end = start
    while (found := _ending_token(text, floor, end)) is not None:
        end = found[0]
    return floor + len(text[floor:end].rstrip())


def _begun_token(text: str, floor: int) -> int:
    """The length of what may be the beginning of a token, at the end of the text."""
    if not text.endswith(_PREFIXES, floor):
        return 0
    return next(len(prefix) for prefix in _PREFIXES if text.endswith(prefix, floor))


def _ending_token(text: str, floor: int, end: int) -> tuple[int, str] | None:
    """Where the token begins that ends the text, what dresses it included."""
    no_reply, ok = text.rfind(NO_REPLY, floor, end), text.rfind(HEARTBEAT_OK, floor, end)
    place, token = (no_reply, NO_REPLY) if no_reply > ok else (ok, HEARTBEAT_OK)
    if place < 0 or not _AFTER_TOKEN.match(text[place + len(token) : end]):
        return None
    start = _with_dress(text, floor, place)
    return None if start is None else (start, token)


def _with_dress(text: str, floor: int, place: int) -> int | None:
    """Where quotes and markup before this place begin; None when it is inside a word."""
    start = place
    while start > floor and text[start - 1] in _CUT_DRESS:
        begin = start - 1
        if text[begin] == "_":
            while begin > floor and text[begin - 1] == "_":
                begin -= 1
            if begin > 0 and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
                break
        if place - begin > _MOST_DRESS:
            break
        start = begin
    in_word = start == place and start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")
    return None if in_word else start
