"""The header of a ``SKILL.md``: the part of YAML that such headers use, and JSON, which is YAML too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pyjson5

HEADER_LINE = "---"
MAX_HEADER_LINES = 400
_DEEPEST = 12
_KEY = re.compile(r"([A-Za-z_][\w.-]*|\"[^\"\n]+\"|'[^'\n]+')\s*:(?:\s+(.*)|\s*)$")
_WORD_OR_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|(?:[^\s,\[\]{}:\"'#]|:(?=\S))+")
_LITERAL = re.compile(r"true|false|null|-?\d+(?:\.\d+)?\Z")


class BadSkill(Exception):
    """Why a SKILL.md cannot be used, for the person who wrote it."""


def parse_header(text: str) -> dict[str, Any]:
    """The part between the two ``---`` lines.

    Keys at the margin; values plain, quoted, folded over indented lines, as ``|`` or ``>`` blocks, as JSON, or as
    lists and further keys below, indented.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != HEADER_LINE:
        raise BadSkill("the file does not begin with a header between two lines of ---")
    end = next((n for n, line in enumerate(lines[1:MAX_HEADER_LINES], 1) if line.rstrip() == HEADER_LINE), None)
    if end is None:
        raise BadSkill(f"the header is not closed by a line of --- within {MAX_HEADER_LINES} lines")
    header: dict[str, Any] = {}
    at = 1
    while at < end:
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _KEY.match(line)
        if found is None:
            raise BadSkill(f"line {at} of the header is not of the form `key: value`: {line.strip()[:60]!r}")
        below: list[str] = []
        while at < end and _belongs(lines[at], 0):
            below.append(lines[at])
            at += 1
        header[_unquoted(found[1])] = _value(found[1], (found[2] or "").strip(), below, _DEEPEST)
    return header


def _belongs(line: str, margin: int) -> bool:
    """Whether a line goes on with the value of the key before it, which stands at this margin."""
    inner = line.lstrip()
    indent = len(line) - len(inner)
    return not inner or indent > margin or (indent == margin and (inner[0] in "}]" or inner.startswith("- ")))


def _value(key: str, first: str, below: list[str], depth: int) -> Any:
    if first[:1] in ("|", ">"):
        kept = [line.strip() for line in below]
        return ("\n" if first[0] == "|" else " ").join(kept).strip()
    whole = "\n".join([first, *below]).strip()
    if whole[:1] in ("{", "["):
        return _flow(key, whole)
    if first and not first.startswith("#"):
        return _scalar(" ".join([first, *(line.strip() for line in below if line.strip())]))
    return _block([line for line in below if line.strip() and not line.lstrip().startswith("#")], depth)


def _flow(key: str, text: str) -> Any:
    try:
        return pyjson5.loads(text)
    except pyjson5.Json5Exception as problem:
        try:
            return pyjson5.loads(_WORD_OR_TEXT.sub(_quoted, text))
        except pyjson5.Json5Exception:
            raise BadSkill(f"{key} is not valid JSON: {str(problem)[:120]}") from None


def _quoted(word: re.Match[str]) -> str:
    """YAML lets words in a list stand without quotes."""
    return word[0] if word[0][0] in "\"'" or _LITERAL.match(word[0]) else json.dumps(word[0])


def _block(lines: list[str], depth: int) -> Any:
    """Lines below a key: a list, further keys, or just text."""
    if not lines or depth <= 0:
        return " ".join(line.strip() for line in lines)
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    if lines[0].lstrip().startswith("- "):
        return [_item(group, depth) for group in _groups(lines, lambda line: line[margin:].startswith("- "))]
    groups = _groups(lines, lambda line: not _belongs(line, margin))
    keys = [_KEY.match(group[0].strip()) for group in groups]
    if not all(keys):
        return " ".join(line.strip() for line in lines)
    return {
        _unquoted(key[1]): _value(key[1], (key[2] or "").strip(), group[1:], depth - 1)
        for key, group in zip(keys, groups, strict=True)
        if key
    }


def _groups(lines: list[str], begins: Callable[[str], bool]) -> list[list[str]]:
    groups: list[list[str]] = []
    for line in lines:
        if begins(line) or not groups:
            groups.append([])
        groups[-1].append(line)
    return groups


def _item(lines: list[str], depth: int) -> Any:
    """One entry of a list: keys of its own, or a value."""
    first = lines[0].replace("- ", "  ", 1)
    if _KEY.match(first.strip()) and first.strip()[:1] not in ("{", "["):
        return _block([first, *lines[1:]], depth - 1)
    return _value("an item", first.strip(), lines[1:], depth - 1)


def _unquoted(key: str) -> str:
    return key[1:-1] if key[0] in "\"'" else key


def _scalar(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        if text[0] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text[1:-1]
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    return {"true": True, "false": False, "null": None, "~": None}.get(plain.lower(), plain)
