"""Configuration files as text, and text as values."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from openclaw.config.json5text import MAX_DEPTH, Json5Error, Outline

MAX_BYTES = 4 * 1024 * 1024
_NEAR = re.compile(r"near (\d+)")


class SourceError(Exception):
    """The file cannot be read as text."""


def read_source(path: str) -> str | None:
    """The text without a byte order mark; None when there is no such file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise SourceError(f"{path} is larger than {MAX_BYTES // 1024 // 1024} MiB; that cannot be a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not text in UTF-8 (byte {error.start})") from None


def parse_source(text: str) -> tuple[Any, Outline | None]:
    """The value and where its parts stand. Raises Json5Error with the position."""
    import pyjson5

    outline = Outline(text)
    try:
        return pyjson5.decode(text, MAX_DEPTH), outline
    except pyjson5.Json5Exception as error:
        message = str(error.args[0]) if error.args else "not valid JSON5"
        near = _NEAR.search(message)
        raise Json5Error(f"not valid JSON5: {_bytes_names(message)}", int(near[1]) - 1 if near else 0) from None


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bytes_names(message: str) -> str:
    return re.sub(r"b'([^']*)'", r"\1", message)
