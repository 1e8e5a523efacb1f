"""Reads configuration files as JSON5, and finds where each key and value stands in the text.

``pyjson5`` reads the values. The ``Outline`` finds the positions, for line numbers and for edits that keep the rest of
the text, and explains syntax errors in words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from openclaw.config.keypath import KeyPath

MAX_DEPTH = 64

_SKIP = re.compile(r"(?:\s+|\ufeff|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r"\"(?:[^\"\\\n\r]|\\(?:\r\n|.))*\"|'(?:[^'\\\n\r]|\\(?:\r\n|.))*'", re.DOTALL)
_WORD = re.compile(r"[^\s,:\[\]{}\"'/]+")
_NEWLINE = re.compile(r"\r\n|\r|\n")
MAX_BYTES = 4 * 1024 * 1024
_NEAR = re.compile(r"near (\d+)")


class Node(msgspec.Struct):
    """A value: the text from ``start`` to ``end``, and what is in it."""

    kind: str
    """``object``, ``array`` or ``scalar``."""
    start: int
    end: int = 0
    members: list[Member] = []


class Member(msgspec.Struct):
    key: str | int
    start: int
    value: Node
    comma: int | None = None
    """The offset of the comma that follows, if there is one."""


class Json5Error(ValueError):
    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Outline:
    """The positions of all keys and values in one text. Making it raises Json5Error when the text is not JSON5."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.duplicates: list[KeyPath] = []
        start = self._skip(0)
        self.root = self._value(start, ())
        rest = self._skip(self.root.end)
        if rest < len(text):
            raise Json5Error(f"unexpected {self._seen(rest)} after the end of the configuration", rest)

    def find(self, path: Sequence[str | int]) -> tuple[int, Member | None]:
        """Returns how many segments of the path the text has, and the member of the deepest one."""
        node, found, depth = self.root, None, 0
        for segment in path:
            if node.kind == "array" and isinstance(segment, str) and segment.isascii() and segment.isdigit():
                segment = int(segment)
            if node.kind == "object":
                segment = str(segment)
            # Of duplicate keys the last one counts.
            member = next((member for member in reversed(node.members) if member.key == segment), None)
            if member is None:
                break
            node, found, depth = member.value, member, depth + 1
        return depth, found

    def _skip(self, at: int) -> int:
        match = _SKIP.match(self.text, at)
        return match.end() if match else at

    def _seen(self, at: int) -> str:
        if at >= len(self.text):
            return "end of the file"
        if self.text.startswith("/*", at):
            return "comment that is never closed"
        if self.text[at] in "\"'":
            return "text whose closing quote is missing"
        word = _WORD.match(self.text, at)
        return f'"{(word[0] if word else self.text[at])[:20]}"'

    def _value(self, at: int, path: KeyPath) -> Node:
        if len(path) > MAX_DEPTH:
            raise Json5Error(f"nested more than {MAX_DEPTH} levels deep", at)
        opening = self.text[at : at + 1]
        if opening in ("{", "["):
            return self._container(at, path, closing="}" if opening == "{" else "]")
        match = _STRING.match(self.text, at) or _WORD.match(self.text, at)
        if match is None:
            raise Json5Error(f"expected a value, found {self._seen(at)}", at)
        return Node("scalar", at, match.end())

    def _container(self, start: int, path: KeyPath, closing: str) -> Node:
        node = Node("object" if closing == "}" else "array", start)
        keys: set[str | int] = set()
        at = self._skip(start + 1)
        while not self.text.startswith(closing, at):
            begin, key = at, len(node.members)
            if closing == "}":
                key, at = self._key(at)
                if key in keys:
                    self.duplicates.append((*path, key))
                keys.add(key)
            value = self._value(at, (*path, key))
            at = self._skip(value.end)
            member = Member(key, begin, value)
            node.members.append(member)
            if self.text.startswith(",", at):
                member.comma = at
                at = self._skip(at + 1)
            elif not self.text.startswith(closing, at):
                raise Json5Error(f'expected "," or "{closing}", found {self._seen(at)}', at)
        node.end = at + 1
        return node

    def _key(self, at: int) -> tuple[str, int]:
        match = _STRING.match(self.text, at) or _WORD.match(self.text, at)
        if match is None:
            raise Json5Error(f"expected a key, found {self._seen(at)}", at)
        colon = self._skip(match.end())
        if not self.text.startswith(":", colon):
            raise Json5Error(f'expected ":" after the key {match[0][:40]}, found {self._seen(colon)}', colon)
        return _unescaped(match[0], at), self._skip(colon + 1)


def line_at(text: str, offset: int) -> int:
    """Returns the line of an offset, counted from 1."""
    return sum(1 for _ in _NEWLINE.finditer(text, 0, offset)) + 1


def _unescaped(key: str, at: int) -> str:
    if "\\" not in key:
        return key[1:-1] if key[0] in "\"'" else key
    import pyjson5

    try:
        return pyjson5.decode(key if key[0] in "\"'" else f'"{key}"')
    except pyjson5.Json5Exception:
        raise Json5Error(f"the key {key[:40]} has an escape that does not exist", at) from None


class SourceError(Exception):
    """The file cannot be read as text."""


def read_source(path: str) -> str | None:
    """Returns the text without a byte order mark, or None when there is no such file."""
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


def parse_source(text: str) -> tuple[Any, Outline]:
    """Returns the value and the positions of its parts. It raises Json5Error with the position of a fault."""
    import pyjson5

    outline = Outline(text)
    try:
        return pyjson5.decode(text, MAX_DEPTH), outline
    except pyjson5.Json5Exception as error:
        message = str(error.args[0]) if error.args else "not valid JSON5"
        near = _NEAR.search(message)
        words = re.sub(r"b'([^']*)'", r"\1", message)
        raise Json5Error(f"not valid JSON5: {words}", int(near[1]) - 1 if near else 0) from None
