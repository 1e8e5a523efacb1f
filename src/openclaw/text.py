"""Text for people: shortened, with times in words, safe for a terminal, and without the secrets of addresses.

A terminal obeys control characters: they move the cursor, rewrite lines above, set the title, fill the clipboard and
open links. Bidirectional and invisible characters make a text look like another one. An address gives away the password
before its host, and keys, tokens and signatures behind it.

The command line imports this file, so it imports hardly anything itself.
"""

from __future__ import annotations

import re
import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

LONGEST_MARKS = 30
"""How many combining marks of one letter are ordered. Unicode's Stream-Safe Text Format has the same limit."""


def clipped(text: str, limit: int) -> str:
    """Cut a text to ``limit`` characters, of which the last is an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shortened(text: str, limit: int = 80) -> str:
    """Put a text on one line and cut it to ``limit`` characters, without a blank before the ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def normalised(form: Literal["NFC", "NFD"], text: str) -> str:
    """Return the text in a normal form of Unicode, in a time that grows with its length only.

    The library sorts the combining marks of a letter in a time that grows with the square of their number: 200 KB of
    marks hold the interpreter for seconds.
    """
    if text.isascii():
        return text
    pieces: list[str] = []
    begin = marks = 0
    for position, char in enumerate(text):
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks > LONGEST_MARKS:
            pieces.append(text[begin:position])
            begin, marks = position, 1
    return "".join(unicodedata.normalize(form, piece) for piece in (*pieces, text[begin:]))


def age(ms: float | None) -> str:
    """``just now``, ``16m ago``, ``5h ago``, ``3d ago``; ``unknown`` when there is none."""
    if ms is None:
        return "unknown"
    minutes = int(ms // 60_000)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes}m ago"
    hours = minutes // 60
    return f"{hours}h ago" if hours < 48 else f"{hours // 24}d ago"


def duration(ms: int) -> str:
    """``450 ms``, ``3.2 s``, ``41 s``, ``5 min 3 s``, ``2 h 5 min``, ``3 d 4 h``. A negative time is ``0 ms``."""
    ms = max(0, ms)
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms // 100 / 10:g} s"
    seconds = ms // 1_000
    for size, name, small, small_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {name} {rest} {small_name}" if rest else f"{seconds // size} {name}"
    return f"{seconds} s"


def short_duration(ms: int) -> str:
    """``41s``, ``5m03s``, ``2h05m``."""
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def counted(count: int, one: str, several: str) -> str:
    """Return a number and the word that fits it: "1 file", "2 files"."""
    return f"{count} {one if count == 1 else several}"


def failure_text(text: str) -> str:
    """What a failed tool says for people: the sentence inside, where its result is an object with one."""
    if not text.startswith("{"):
        return text
    import json

    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = result.get("error") if isinstance(result, dict) else None
    return error if isinstance(error, str) and error.strip() else text


# Safe for a terminal

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""Everything but tab, line feed, and the two joiners that emoji and some scripts need."""
_CONTROL = re.compile(f"[{_UNSAFE}]")


def printable(text: str) -> str:
    """Return the text without characters that a terminal would obey or that nobody sees. Tabs and line feeds stay."""
    return _CONTROL.sub("", text)


def printable_json(text: str) -> str:
    """JSON with such characters as ``\\u001b``. It means the same. Between the strings of JSON there are none."""
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    if found[0] == "\r":
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[position] << 8 | units[position + 1]:04x}" for position in range(0, len(units), 2))


# Addresses without their secrets

MASK = "***"
_ADDRESS = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}://)([^\s\"'<>`]+)", re.IGNORECASE)
_SECRET = re.compile(
    r"token|key|secret|passw|pwd|^pass$|auth|credential|^sig$|signature|^code$|jwt|^session|^x-(?:amz|goog)-",
    re.IGNORECASE,
)
"""The names of parameters with a secret. Signed addresses of storage services have a whole family of them."""
_NOT_SECRET = re.compile(r"^(?:sessionkey|session_key|session)$", re.IGNORECASE)
"""OpenClaw's own addresses name a session, which opens nothing."""
_LONGEST_USER = 12
"""A longer name before the host is a token, as in ``https://ghp_…@github.com``."""


def redact_urls(text: str) -> str:
    """Return the text with the secrets of all addresses masked. It runs in linear time."""
    return _ADDRESS.sub(lambda result: result[1] + _shown(result[2]), text) if "://" in text else text


def has_secret(address: str) -> bool:
    return redact_urls(address) != address


def _shown(rest: str) -> str:
    size = next((position for position, char in enumerate(rest) if char in "/?#"), len(rest))
    user, at, host = rest[:size].rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        name = name if len(name) <= _LONGEST_USER else MASK
        rest = f"{name}{colon}{MASK if colon else ''}@{host}{rest[size:]}"
    path, question, query = rest.partition("?")
    if question:
        query, mark, fragment = query.partition("#")
        return f"{path}?{_parameters(query)}{mark}{_parameters(fragment)}"
    path, mark, fragment = rest.partition("#")
    return f"{path}{mark}{_parameters(fragment)}"


def _parameters(query: str) -> str:
    if "=" not in query:
        return query
    return "&".join(_parameter(part) for part in query.split("&"))


def _parameter(part: str) -> str:
    from urllib.parse import unquote  # The command line starts faster without it.

    name, equals, value = part.partition("=")
    plain = unquote(name[:200])
    secret = value and _SECRET.search(plain) is not None and _NOT_SECRET.match(plain) is None
    return f"{name}{equals}{MASK}" if secret else part
