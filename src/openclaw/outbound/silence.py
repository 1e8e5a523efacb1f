"""Recognises the tokens by which a model says nothing, and takes them out of the text before it is shown.

``NO_REPLY`` at the beginning, or alone with any quotes and markup, means silence. At the end of an answer it is cut
off. ``HEARTBEAT_OK`` is cut off at both ends and means silence when nothing else is said. ``REPLY_SKIP`` and
``ANNOUNCE_SKIP``, with which agents end what they have to say to each other, mean silence only when they are the whole
answer.
"""

from __future__ import annotations

import re
from typing import Literal

NO_REPLY = "NO_REPLY"
HEARTBEAT_OK = "HEARTBEAT_OK"
REPLY_SKIP = "REPLY_SKIP"
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
TOKENS = (NO_REPLY, HEARTBEAT_OK)
WHOLE_ANSWERS = (REPLY_SKIP, ANNOUNCE_SKIP)

_FIRST_LETTERS = frozenset(token[0] for token in (*TOKENS, *WHOLE_ANSWERS))
_MARKUP = "*_~\"'`“”‘’«»()[]"
"""Quotes and markup that may surround a token."""
_MARKUP_WITHOUT_CODE = frozenset(_MARKUP) - {"`"}
"""The same without backticks: at the end of an answer, a token in code is only mentioned."""
_MOST_MARKUP = 3
_LONGEST_TAIL = 400
"""The most punctuation after a token. With more of it the token does not count."""
_PREFIXES = tuple(sorted({token[:size] for token in TOKENS for size in range(1, len(token))}, key=len, reverse=True))
_TOKEN_OR_PREFIX = (*TOKENS, *_PREFIXES)
_markup = f"[{re.escape(_MARKUP)}]"
_LEADS = re.compile(r"NO_REPLY(?![A-Za-z0-9_])")
_ACK_LEADS = re.compile(
    rf"{_markup}{{0,4}}HEARTBEAT_OK(?![A-Za-z0-9_]){_markup}{{0,4}}[.,;:!]{{0,3}}(?!{_markup}|[.,;:!])"
)
_ACK_IN_TAGS = re.compile(r"(?:<[a-zA-Z][^<>]{0,40}>|&nbsp;){0,4}HEARTBEAT_OK(?:</[a-zA-Z][^<>]{0,40}>|&nbsp;){0,4}")
_MAYBE_LEADS = re.compile(rf"{_markup}{{0,4}}(?:{'|'.join(map(re.escape, (*_PREFIXES, *TOKENS)))})?\Z")
_ALONE = re.compile(r"[\W_]{0,8}(?:NO_REPLY|HEARTBEAT_OK)[\W_]*\Z")
_MAYBE_ALONE = re.compile(rf"[\W_]{{0,8}}(?:{'|'.join(map(re.escape, (*_PREFIXES, *TOKENS)))})?[\W_]{{0,400}}\Z")
_NO_WORD = re.compile(r"[\W_]*\Z")
_AFTER_TOKEN = re.compile(rf"(?:[^\w`]|_){{0,{_LONGEST_TAIL}}}\Z")

End = Literal["NO_REPLY", "HEARTBEAT_OK", "REPLY_SKIP", "ANNOUNCE_SKIP"]


class SilenceGate:
    """Releases text as soon as it can no longer be part of a token. White space at both ends is dropped.

    ``ack_max_chars`` is for heartbeat runs: ``HEARTBEAT_OK`` with at most that many more characters is silence as well.
    Then nothing is released before the end.
    """

    def __init__(self, *, ack_max_chars: int | None = None) -> None:
        self._ack_max_chars = ack_max_chars
        self._held = ""
        self._before = ""
        """The last character that was released. It tells whether the next one continues a word."""
        self._speaking = False
        self.silent: End | None = None
        """The token that made the text silent, or None."""
        self._acknowledged = False

    def feed(self, text: str) -> str:
        if not text or self.silent is not None:
            return ""
        self._held += text
        return self._release() if self._ack_max_chars is None else ""

    def close(self, *, complete: bool = True) -> str:
        """Return the rest. If the text was cut off, an unfinished token is dropped."""
        if self.silent is not None:
            return ""
        reply = ""
        if self._ack_max_chars is not None:  # In other runs the text was released as it came.
            self._held = _ACK_IN_TAGS.sub(HEARTBEAT_OK, self._held)
            reply = self._release()
        if not complete:
            rest = ""
        elif self._speaking:
            rest = self._without_tokens()
        else:
            rest = self._settle_beginning()
        self._held = ""
        reply += rest
        if self._ack_max_chars is not None and self._acknowledged and len(reply) <= self._ack_max_chars:
            self.silent, reply = HEARTBEAT_OK, ""
        return reply

    def _release(self) -> str:
        if not self._speaking and not self._begin():
            return ""
        floor = len(self._before)
        hold = hold_from(self._before + self._held, floor) - floor
        reply, self._held = self._held[:hold], self._held[hold:]
        self._before = reply[-1:] or self._before
        return reply

    def _begin(self) -> bool:
        """Return whether it is certain that the text says something."""
        while True:
            self._held = self._held.lstrip()
            if not self._held:
                return False
            first = self._held[0]
            if first.isalnum() and first not in _FIRST_LETTERS:
                self._speaking = True  # This is the usual case: some other word.
                return True
            if _MAYBE_LEADS.match(self._held) or _may_be_whole(self._held):
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
        """Decide at the end of a text that has not been certain to say something."""
        if (whole := self._held.strip()) == REPLY_SKIP or whole == ANNOUNCE_SKIP:
            self.silent = whole
            return ""
        if (alone := _ALONE.match(self._held)) is not None:
            self.silent = NO_REPLY if NO_REPLY in alone[0] else HEARTBEAT_OK
            return ""
        if self._acknowledged and _NO_WORD.match(self._held):
            self.silent = HEARTBEAT_OK
            return ""
        return self._without_tokens()

    def _without_tokens(self) -> str:
        """Return the held text without the tokens at its end."""
        text, floor = self._before + self._held, len(self._before)
        end = len(text)
        while (result := _ending_token(text, floor, end)) is not None:
            end, token = result
            self._acknowledged = self._acknowledged or token == HEARTBEAT_OK
        return text[floor:end].rstrip()


def _may_be_whole(text: str) -> bool:
    """Return whether the text is the beginning of a token that counts only alone."""
    words = text.rstrip()
    return any(token.startswith(words) for token in WHOLE_ANSWERS)


def is_silent(text: str) -> bool:
    """Return whether a whole text means silence."""
    gate = SilenceGate()
    gate.feed(text)
    gate.close()
    return gate.silent is not None


def hold_from(text: str, floor: int = 0) -> int:
    """Return the position from which on the text may turn out to be a token at the end, or white space.

    The text before ``floor`` has been released already. It only tells whether a word continues.
    """
    end = len(text)
    if text[-1:].isalnum() and not text.endswith(_TOKEN_OR_PREFIX):
        return end  # This is the usual case: inside some other word.
    words = text.rstrip()
    if len(words) < end and words[-1:].isalnum() and not words.endswith(TOKENS):
        return max(floor, len(words))  # After some other word.
    start = _with_markup(text, floor, end - _begun_token(text, floor))
    if start is not None:
        end = start
    while (result := _ending_token(text, floor, end)) is not None:
        end = result[0]
    return floor + len(text[floor:end].rstrip())


def _begun_token(text: str, floor: int) -> int:
    """Return the length of the possible beginning of a token at the end of the text."""
    if not text.endswith(_PREFIXES, floor):
        return 0
    return next(len(prefix) for prefix in _PREFIXES if text.endswith(prefix, floor))


def _ending_token(text: str, floor: int, end: int) -> tuple[int, str] | None:
    """Return the token at the end of the text, and the position where it begins with its quotes and markup."""
    no_reply, ok = text.rfind(NO_REPLY, floor, end), text.rfind(HEARTBEAT_OK, floor, end)
    position, token = (no_reply, NO_REPLY) if no_reply > ok else (ok, HEARTBEAT_OK)
    if position < 0 or not _AFTER_TOKEN.match(text[position + len(token) : end]):
        return None
    start = _with_markup(text, floor, position)
    return None if start is None else (start, token)


def _with_markup(text: str, floor: int, place: int) -> int | None:
    """Return the position where the quotes and markup before this place begin. None if the place is inside a word."""
    start = place
    while start > floor and text[start - 1] in _MARKUP_WITHOUT_CODE:
        begin = start - 1
        if text[begin] == "_":
            while begin > floor and text[begin - 1] == "_":
                begin -= 1
            if begin > 0 and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
                break
        if place - begin > _MOST_MARKUP:
            break
        start = begin
    in_word = start == place and start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")
    return None if in_word else start
