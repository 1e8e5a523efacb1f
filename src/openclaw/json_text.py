"""Reads JSON that other programs and people wrote, with tolerance, and write JSON that can always be read back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyjson5

MAX_DEPTH = 100
"""The deepest nesting accepted from outside, because recursive functions read the stored value later."""
_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Encode as compact UTF-8. Half a surrogate pair, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        pass

    def decode_raw(part: Any) -> Any:
        """Decode parts that were encoded before, so that ``_scrub`` can walk through the whole value."""
        if isinstance(part, msgspec.Raw):
            return msgspec.json.decode(part)
        raise TypeError(f"objects of type {type(part).__name__} cannot be JSON")

    return _encoder.encode(_scrub(msgspec.to_builtins(value, enc_hook=decode_raw)))


def encode_indented(value: Any) -> bytes:
    """Encode with an indent of two spaces."""
    return msgspec.json.format(encode(value), indent=2)


def may_be_deep(raw: bytes | str) -> bool:
    """Return whether the text has enough brackets to be nested too deeply. It is quick, and its yes may be wrong."""
    brackets: tuple[Any, Any] = ("[", "{") if isinstance(raw, str) else (b"[", b"{")
    return sum(map(raw.count, brackets)) > MAX_DEPTH


def is_deep(value: Any) -> bool:
    """Return whether plain values are nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for item in level
            for inner in (item.values() if type(item) is dict else item if type(item) is list else ())
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return True


def decode_loosely(raw: bytes) -> Any:
    """Decode JSON, also with broken UTF-8 or half surrogate pairs. Raises ValueError if that fails."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return _scrub(json.loads(raw.decode("utf-8-sig", errors="replace")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode_json5(raw: bytes) -> Any:
    """Decode JSON or JSON5, with comments, trailing commas and bare keys. Raises ValueError if that fails."""
    try:
        return decode_loosely(raw)
    except ValueError:
        pass
    try:
        return _scrub(pyjson5.decode(raw.decode("utf-8-sig", errors="replace")))
    except (pyjson5.Json5Exception, RecursionError) as error:
        raise ValueError(str(error)) from error


def _scrub(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
        case dict():
            return {_scrub(key): _scrub(item) for key, item in value.items()}
        case list() | tuple():
            return [_scrub(item) for item in value]
        case _:
            return value
