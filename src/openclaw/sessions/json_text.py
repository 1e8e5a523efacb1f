"""JSON as other programs and people write it: read tolerantly, written so that it can always be read back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyjson5

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Compact UTF-8. Half a surrogate pair, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_scrub(msgspec.to_builtins(value, enc_hook=_opened)))


def _opened(value: Any) -> Any:
    """JSON that was encoded before: good as it is, but in the way of looking through the rest."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be JSON")


def encode_indented(value: Any) -> bytes:
    """Two spaces, as people find it in the store."""
    return msgspec.json.format(encode(value), indent=2)


def decode_loosely(raw: bytes) -> Any:
    """JSON, or what is still readable of it: broken UTF-8, half surrogate pairs. Raises ValueError otherwise."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        return _scrub(json.loads(raw.decode("utf-8-sig", errors="replace")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode_json5(raw: bytes) -> Any:
    """The same for files that people write: comments, trailing commas and bare keys are welcome."""
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
