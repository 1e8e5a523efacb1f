"""Key names as the bytes a terminal sends for them."""

from __future__ import annotations

import re

_NAMED = {
    "enter": b"\r",
    "return": b"\r",
    "tab": b"\t",
    "btab": b"\x1b[Z",
    "escape": b"\x1b",
    "esc": b"\x1b",
    "space": b" ",
    "backspace": b"\x7f",
    "bspace": b"\x7f",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "home": b"\x1b[1~",
    "end": b"\x1b[4~",
    "insert": b"\x1b[2~",
    "ic": b"\x1b[2~",
    "delete": b"\x1b[3~",
    "del": b"\x1b[3~",
    "dc": b"\x1b[3~",
    "pageup": b"\x1b[5~",
    "pgup": b"\x1b[5~",
    "ppage": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
    "pgdn": b"\x1b[6~",
    "npage": b"\x1b[6~",
    "f1": b"\x1bOP",
    "f2": b"\x1bOQ",
    "f3": b"\x1bOR",
    "f4": b"\x1bOS",
    **{f"f{n}": b"\x1b[%d~" % code for n, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)},
}
_MODIFIED = re.compile(r"((?:[CMS]-)+)(.+)", re.IGNORECASE | re.DOTALL)
_CURSOR = re.compile(rb"\x1b\[([A-D])")
_NUMBERED = re.compile(rb"\x1b\[(\d+)~")
_PASTE_START, _PASTE_END = b"\x1b[200~", b"\x1b[201~"


class UnknownKey(ValueError):
    pass


def encode_key(token: str) -> bytes:
    """``Enter``, ``C-c``, ``M-x``, ``C-S-Left``, ``^d``, or plain text as it is."""
    if match := _MODIFIED.fullmatch(token):
        modifiers = {letter.upper() for letter in match[1].replace("-", "")}
        return _modified(match[2], modifiers, token)
    if len(token) == 2 and token[0] == "^":
        return _control(token[1], token)
    return _NAMED.get(token.lower(), token.encode("utf-8", "replace"))


def encode_hex(token: str) -> bytes:
    """``0d``, ``0x1b``, or several bytes in one token."""
    try:
        return bytes.fromhex(token.removeprefix("0x").removeprefix("0X"))
    except ValueError:
        raise UnknownKey(f"{token!r} is not hexadecimal") from None


def encode_paste(text: str, *, bracketed: bool) -> bytes:
    data = text.encode("utf-8", "replace")
    if not bracketed:
        return data
    # The end mark inside the text would let the rest of it act as typed keys.
    return _PASTE_START + data.replace(_PASTE_END, b"") + _PASTE_END


def _modified(key: str, modifiers: set[str], token: str) -> bytes:
    named = _NAMED.get(key.lower())
    if named and (special := _with_modifiers(named, modifiers)):
        return special
    if named is None and len(key) != 1:
        raise UnknownKey(f"{token!r} is not a known key")
    data = named or key.encode("utf-8", "replace")
    if "S" in modifiers:
        data = b"\x1b[Z" if data == b"\t" else data.upper()
    if "C" in modifiers:
        data = _control(data.decode("utf-8"), token)
    return b"\x1b" + data if "M" in modifiers else data


def _with_modifiers(named: bytes, modifiers: set[str]) -> bytes | None:
    number = 1 + ("S" in modifiers) + 2 * ("M" in modifiers) + 4 * ("C" in modifiers)
    if match := _CURSOR.fullmatch(named):
        return b"\x1b[1;%d%s" % (number, match[1])
    if match := _NUMBERED.fullmatch(named):
        return b"\x1b[%s;%d~" % (match[1], number)
    return None


def _control(key: str, token: str) -> bytes:
    if key == "?":
        return b"\x7f"
    if key == " ":
        return b"\0"
    code = ord(key.upper()) if len(key) == 1 else 0
    if not 0x40 <= code <= 0x5F:
        raise UnknownKey(f"{token!r} is not a known key")
    return bytes([code & 0x1F])
