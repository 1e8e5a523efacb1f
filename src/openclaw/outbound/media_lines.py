"""``MEDIA:`` lines: how an agent sends files with its reply.

A line that begins with ``MEDIA:`` names files by a web address or by a path of the workspace that begins with ``./``.
The line is for the Gateway; people get the files. Lines in a block of code, and lines that name nothing that may be
sent, are text.
"""

from __future__ import annotations

import re

import msgspec

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
    """The files that a line names. None if it is text."""
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
    """Whether an address is one that a reply may name. Whether there is such a file is not looked at."""
    if len(address) > LONGEST_ADDRESS or any(ord(char) < 32 or ord(char) == 127 for char in address):
        return False
    if is_web(address):
        return not any(char.isspace() for char in address)
    return address.startswith("./") and len(address) > 2 and ".." not in address


def is_web(address: str) -> bool:
    return _WEB.match(address) is not None


def closed_up(text: str) -> str:
    """A text beside files: blank lines outside of blocks of code go, because a caption is short of room."""
    said: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if line.strip() or fence:
            said.append(line)
        fence = after_line(fence, line)
    return "\n".join(said).strip()


def after_line(fence: str, line: str) -> str:
    """The marks of the block of code that is open behind a line, or nothing. ``fence`` is open before it."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return "" if found[1][0] == "`" and "`" in found[2] else found[1]
    closes = found[1][0] == fence[0] and len(found[1]) >= len(fence) and not found[2].strip()
    return "" if closes else fence


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
        """Returns the rest. If the text was cut off, an unfinished ``MEDIA:`` line is dropped."""
        said = self._take(last=complete)
        if not complete and not self._held.lstrip().startswith(MARK[:1]):
            said += self._held
        self._held = ""
        return said

    def _take(self, *, last: bool) -> str:
        said: list[str] = []
        while self._held:
            end = self._held.find("\n")
            line = self._held if end < 0 else self._held[:end]
            if self._lead is None and not self._fence:
                if end < 0 and not last and _may_become(line):
                    break
                if (found := read_line(line)) is not None:
                    self._held, self._after_line = "" if end < 0 else self._held[end + 1 :], True
                    if found.words:
                        said.append(self._release(found.words + ("" if end < 0 else "\n")))
                    self.media += found.media
                    self.places += [self._released] * len(found.media)
                    continue
                if self._after_line and end >= 0 and not line.strip() and self._tail == "\n\n":
                    self._held = self._held[end + 1 :]
                    continue
            piece = line if end < 0 else self._held[: end + 1]
            self._held = self._held[len(piece) :]
            said.append(self._release(piece))
        return "".join(said)

    def _release(self, piece: str) -> str:
        """Notes a piece of one line, or a whole line."""
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
