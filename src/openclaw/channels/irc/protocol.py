"""The lines of IRC: how they are read and written, how names compare, and how a text is cut into lines.

Everything here is a pure function of its arguments.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

import msgspec

LONGEST_LINE = 512
"""Bytes of a line with its end and with the prefix that the server puts before it. Tags are not counted."""
UNKNOWN_HOST = 63
UNKNOWN_USER = 11
"""Bytes that are reserved for our host and our user name while the server has not told them."""
SHORTEST_TEXT = 32
"""Bytes of text that a line has at least, however long the names around it are."""
CHANNEL_SIGNS = "#&"

_NOT_IN_NAMES = re.compile(r"[\x00-\x20\x7f,:!@*?$]")
_NOT_IN_CHANNELS = re.compile(r"[\x00-\x20\x7f,:]")
_FORMATS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6})?|[\x02\x0f\x11\x16\x1d\x1e\x1f]")
_TOGGLES = "\x02\x11\x1d\x1e\x1f"
_UNSAFE_IN_LINES = re.compile(r"[\x00\r\n]+")
_TAG_ESCAPES = {";": "\\:", " ": "\\s", "\\": "\\\\", "\r": "\\r", "\n": "\\n"}
_TAG_MEANINGS = {":": ";", "s": " ", "\\": "\\", "r": "\r", "n": "\n"}
_RFC1459 = str.maketrans("[]\\~", "{}|^")
_STRICT_RFC1459 = str.maketrans("[]\\", "{}|")


class BadLine(ValueError):
    """A line cannot be sent or read. The message says why."""


class Line(msgspec.Struct, frozen=True):
    """One line from the server or to it."""

    command: str
    """In upper case."""
    params: tuple[str, ...] = ()
    prefix: str = ""
    """Who it comes from: ``nick!user@host`` or the name of a server."""
    tags: Mapping[str, str] = {}

    @property
    def nick(self) -> str:
        return self.prefix.partition("!")[0]

    def param(self, index: int) -> str:
        """A parameter, or an empty text if the line has no such one."""
        return self.params[index] if -len(self.params) <= index < len(self.params) else ""


def parse_line(data: bytes) -> Line:
    """Reads a line without its end. Raises ``BadLine``."""
    rest = _decoded(data).rstrip("\r\n").replace("\x00", "")
    tags: dict[str, str] = {}
    prefix = ""
    if rest.startswith("@"):
        written, _, rest = rest[1:].partition(" ")
        tags = parse_tags(written)
    rest = rest.lstrip(" ")
    if rest.startswith(":"):
        prefix, _, rest = rest[1:].partition(" ")
    head, colon, trailing = rest.partition(" :")
    words = [word for word in head.split(" ") if word]
    if not words:
        raise BadLine("a line without a command")
    return Line(words[0].upper(), (*words[1:], *((trailing,) if colon else ())), prefix, tags)


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Old clients write Latin-1. Every sequence of bytes is a text in it.
        return data.decode("latin-1")


def parse_tags(written: str) -> dict[str, str]:
    tags: dict[str, str] = {}
    for tag in written.split(";"):
        name, _, value = tag.partition("=")
        if name:
            tags[name] = _tag_meaning(value)
    return tags


def _tag_meaning(value: str) -> str:
    return re.sub(r"\\(.?)", lambda found: _TAG_MEANINGS.get(found[1], found[1]), value, flags=re.DOTALL)


def format_line(command: str, *params: str, tags: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a line with its end.

    No parameter can begin a line or a parameter of its own: ``BadLine`` is raised for one that would.
    """
    for index, param in enumerate(params):
        if _UNSAFE_IN_LINES.search(param):
            raise BadLine(f"a parameter of {command} has a line end in it")
        if index < len(params) - 1 and (not param or " " in param or param.startswith(":")):
            raise BadLine(f"{param!r} cannot be a parameter of {command}")
    words = [command, *params]
    if params and (not params[-1] or " " in params[-1] or params[-1].startswith(":") or command in _WITH_TEXT):
        words[-1] = f":{words[-1]}"
    body = " ".join(words).encode("utf-8", "replace") + b"\r\n"
    if len(body) > LONGEST_LINE:
        raise BadLine(f"a line of {len(body)} bytes is too long for IRC")
    return _tag_bytes(tags or {}) + body


_WITH_TEXT = frozenset({"PRIVMSG", "NOTICE", "USER", "QUIT"})


def _tag_bytes(tags: Mapping[str, str]) -> bytes:
    if not tags:
        return b""
    written = [f"{name}={''.join(_TAG_ESCAPES.get(sign, sign) for sign in value)}" for name, value in tags.items()]
    if any(_UNSAFE_IN_LINES.search(tag) or " " in tag for tag in written):
        raise BadLine("a tag cannot be written")
    return f"@{';'.join(written)} ".encode("utf-8", "replace")


# Names


def is_channel(name: str, signs: str = CHANNEL_SIGNS) -> bool:
    return len(name) > 1 and name[0] in signs and _NOT_IN_CHANNELS.search(name) is None


def is_nick(name: str) -> bool:
    return bool(name) and name[0] not in "#&+-0123456789" and _NOT_IN_NAMES.search(name) is None


def folded(name: str, mapping: str = "rfc1459") -> str:
    """The form of a name in which two spellings of one name are equal, under the server's CASEMAPPING."""
    lowered = name.lower()
    if mapping == "ascii":
        return lowered
    return lowered.translate(_STRICT_RFC1459 if mapping == "rfc1459-strict" else _RFC1459)


# Texts


def without_formats(text: str) -> str:
    """The text without colours and other control codes."""
    return _FORMATS.sub("", text).replace("\x01", "")


def text_room(nick: str, user: str, host: str, target: str) -> int:
    """How many bytes of text fit into a line, once the server has put our name before it."""
    user_bytes = len(user.encode()) if user else UNKNOWN_USER
    host_bytes = len(host.encode()) if host else UNKNOWN_HOST
    around = len(f":{nick}!@ PRIVMSG {target} :\r\n".encode()) + user_bytes + host_bytes
    return max(LONGEST_LINE - around, SHORTEST_TEXT)


def lines_of(text: str, room: int) -> list[str]:
    """The text as lines of at most ``room`` bytes: one for each line of the text, long ones cut between words.

    Bold and the like end with each line, so what is open at a cut is opened again.
    """
    lines: list[str] = []
    open_codes = ""
    for written in _UNSAFE_IN_LINES.sub("\n", text).split("\n"):
        rest = open_codes + written
        while rest.strip(_TOGGLES + " "):
            piece, rest = _cut(rest, room)
            open_codes = _open_codes(piece)
            lines.append(piece.rstrip(" "))
            rest = rest.lstrip(" ")
            if rest:
                rest = open_codes + rest
        open_codes = _open_codes(rest) if rest else open_codes
    return lines


def _cut(text: str, room: int) -> tuple[str, str]:
    if len(text.encode("utf-8", "replace")) <= room:
        return text, ""
    end = _fitting(text, room)
    space = text.rfind(" ", 0, end + 1)
    # A cut between words, unless it would waste most of the line.
    if space > end // 2 and text[:space].strip(_TOGGLES + " "):
        return text[:space], text[space:]
    return text[:end], text[end:]


def _fitting(text: str, room: int) -> int:
    """The number of characters that fit. A character and the marks that belong to it are not torn apart."""
    used = end = 0
    while end < len(text) and (used := used + len(text[end].encode("utf-8", "replace"))) <= room:
        end += 1
    if end == len(text):
        return end
    whole = end
    while whole > 1 and (_joins(text[whole]) or text[whole - 1] == "\u200d"):
        whole -= 1
    return whole if whole > 1 and text[:whole].strip(_TOGGLES) else max(end, 1)


def _joins(char: str) -> bool:
    return char == "\u200d" or "\ufe00" <= char <= "\ufe0f" or unicodedata.combining(char) != 0


def _open_codes(text: str) -> str:
    return "".join(code for code in _TOGGLES if text.count(code) % 2)
