"""Key paths as people write them: ``agents.list[0].id``, ``models.providers."my.host".baseUrl``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
MISSING: Any = object()

_BARE = re.compile(r"[^.\[\]\"'\s]+")
_INDEX = re.compile(r"\[\s*(\d+)\s*\]")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETED = re.compile(r"\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]")


class KeyPathError(ValueError):
    """The path cannot be understood, or does not fit the configuration."""


def parse_path(text: str) -> KeyPath:
    """The segments of a path. Indices in brackets are numbers; everything else is text."""
    segments: list[str | int] = []
    at, text = 0, text.strip()
    while at < len(text):
        if text[at] == "[":
            if found := _INDEX.match(text, at):
                segments.append(int(found[1]))
            elif found := _BRACKETED.match(text, at):
                segments.append(_unquote(found[1], text))
            else:
                raise KeyPathError(
                    f'expected a number or a quoted name in the brackets of key path {text!r}, like [0] or ["a.b"]'
                )
        else:
            if segments:
                if text[at] != ".":
                    raise KeyPathError(f'expected "." or "[" at position {at + 1} of key path {text!r}')
                at += 1
            if found := _QUOTED.match(text, at):
                segments.append(_unquote(found[0], text))
            elif found := _BARE.match(text, at):
                segments.append(found[0])
            else:
                raise KeyPathError(f"a name is missing at position {at + 1} of key path {text!r}")
        at = found.end()
    if not segments:
        raise KeyPathError("the key path is empty; write something like gateway.port")
    return tuple(segments)


def _unquote(quoted: str, text: str) -> str:
    try:
        return json.loads(quoted)
    except ValueError:
        raise KeyPathError(f"the quoted name {quoted} in key path {text!r} is not valid") from None


def format_path(path: Sequence[str | int]) -> str:
    """The path as text that ``parse_path`` reads back."""
    parts: list[str] = []
    for segment in path:
        if isinstance(segment, int):
            parts.append(f"[{segment}]")
        else:
            name = segment if _BARE.fullmatch(segment) else json.dumps(segment, ensure_ascii=False)
            parts.append(f".{name}" if parts else name)
    return "".join(parts)


def get_path(data: Any, path: str | Sequence[str | int], default: Any = None) -> Any:
    """The value at a path of a parsed configuration, or the default.

    ``list.0`` and ``list[0]`` mean the same, and so do ``map.7`` and ``map[7]``.
    """
    for segment in parse_path(path) if isinstance(path, str) else path:
        if isinstance(data, dict) and str(segment) in data:
            data = data[str(segment)]
        elif isinstance(data, list) and str(segment).isdecimal() and int(segment) < len(data):
            data = data[int(segment)]
        else:
            return default
    return data


def overlaps(one: str, other: str) -> bool:
    """Whether one written key path is the other, or covers it."""
    shorter, longer = sorted((one, other), key=len)
    return bool(shorter) and (longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}[")))
