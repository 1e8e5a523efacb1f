"""The reader of ``SKILL.md`` files. It understands the part of YAML that their headers use, including JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast
from xml.sax.saxutils import escape

import msgspec
import pyjson5

from openclaw.text import clipped

HEADER_LINE = "---"
MAX_HEADER_LINES = 400
_DEEPEST = 12
_KEY = re.compile(r"([A-Za-z_][\w.-]*|\"[^\"\n]+\"|'[^'\n]+')\s*:(?:\s+(.*)|\s*)$")
_WORD_OR_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|(?:[^\s,\[\]{}:\"'#]|:(?=\S))+")
_LITERAL = re.compile(r"true|false|null|-?\d+(?:\.\d+)?\Z")
MAX_DESCRIPTION = 1024
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NAME = 64
_NAMESPACES = ("openclaw", "clawdbot", "moltbot")
"""The keys under ``metadata`` where a skill keeps its settings. The first is current, the others are older."""
_INSTALL_KEYS = ("id", "kind", "label", "bins")


class BadSkill(Exception):
    """A SKILL.md cannot be used. The text tells its author why."""


def parse_header(text: str) -> dict[str, Any]:
    """Reads the header between the two ``---`` lines. Raises ``BadSkill``.

    Keys stand at the margin. A value may be plain, quoted, continued on indented lines, a ``|`` or ``>`` block, JSON,
    or indented lists and keys.
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
    """Whether a line belongs to the value of the key before it, which stands at this margin."""
    inner = line.lstrip()
    indent = len(line) - len(inner)
    return not inner or indent > margin or (indent == margin and (inner[0] in "}]" or inner.startswith("- ")))


def _value(key: str, first: str, below: list[str], depth: int) -> Any:
    """The value of a key. ``first`` is the text on the key's own line, ``below`` the lines that belong to it."""
    if first[:1] in ("|", ">"):
        kept = [line.strip() for line in below]
        return ("\n" if first[0] == "|" else " ").join(kept).strip()
    whole = "\n".join([first, *below]).strip()
    if whole[:1] in ("{", "["):
        try:
            return pyjson5.loads(whole)
        except pyjson5.Json5Exception as problem:
            try:
                return pyjson5.loads(_WORD_OR_TEXT.sub(_quoted, whole))
            except pyjson5.Json5Exception:
                raise BadSkill(f"{key} is not valid JSON: {str(problem)[:120]}") from None
    if first and not first.startswith("#"):
        return _scalar(" ".join([first, *(line.strip() for line in below if line.strip())]))
    return _nested([line for line in below if line.strip() and not line.lstrip().startswith("#")], depth)


def _quoted(word: re.Match[str]) -> str:
    """The word in quotes, unless it has them or is a literal. YAML allows words without quotes, JSON does not."""
    return word[0] if word[0][0] in "\"'" or _LITERAL.match(word[0]) else json.dumps(word[0])


def _nested(lines: list[str], depth: int) -> Any:
    """The value of the lines below a key: a list, a mapping, or text."""
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
    """The lines in groups. A new group starts at each line for which ``begins`` is true."""
    groups: list[list[str]] = []
    for line in lines:
        if begins(line) or not groups:
            groups.append([])
        groups[-1].append(line)
    return groups


def _item(lines: list[str], depth: int) -> Any:
    """One item of a list: a mapping or another value."""
    first = lines[0].replace("- ", "  ", 1)
    if _KEY.match(first.strip()) and first.strip()[:1] not in ("{", "["):
        return _nested([first, *lines[1:]], depth - 1)
    return _value("an item", first.strip(), lines[1:], depth - 1)


def _unquoted(key: str) -> str:
    return key[1:-1] if key[0] in "\"'" else key


def _scalar(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        if text[0] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text[1:-1]
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    return {"true": True, "false": False, "null": None, "~": None}.get(plain.lower(), plain)


# The skill


class SkillNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a skill requires of the machine, or the part of it that is missing."""

    bins: tuple[str, ...] = ()
    """Programs that must all be installed."""
    any_bins: tuple[str, ...] = ()
    """Programs of which one must be installed."""
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    """Key paths of the config that must have a value."""
    os: tuple[str, ...] = ()
    """The operating systems on which the skill works; empty means all."""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """The header of one SKILL.md."""

    name: str
    description: str
    path: str
    source: str = ""
    """The name of the place where it was found; see ``SkillFolder``."""
    key: str
    """The name of its settings in ``skills.entries``."""
    emoji: str | None = None
    homepage: str | None = None
    primary_env: str | None = None
    """The variable that ``skills.entries.<key>.apiKey`` sets."""
    always: bool = False
    """Ignores all needs except the operating system."""
    hidden: bool = False
    """The prompt does not list it. A person may still name it."""
    needs: SkillNeeds = SkillNeeds()
    install: tuple[dict[str, Any], ...] = ()
    """The author's suggestions for installing what it needs. They are shown to people and never run."""
    block: str = ""
    """Its lines in the prompt's list."""


def parse_skill(text: str, *, path: str, folder: str, source: str) -> Skill:
    """Reads a SKILL.md. ``folder`` is its name if the header has none. Raises ``BadSkill``."""
    header = parse_header(text)
    name = str(header.get("name") or folder).strip()
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise BadSkill(f"name {name[:80]!r}: use lower-case letters, digits and single hyphens, at most {_MAX_NAME}")
    description = " ".join(str(header.get("description") or "").split())
    if not description:
        raise BadSkill("the header has no description; say in one sentence when the skill is to be used")
    description = clipped(description, MAX_DESCRIPTION)
    own = _own_metadata(header.get("metadata"))
    requires = _mapping(own.get("requires"))
    return Skill(
        name=name,
        description=description,
        path=path,
        source=source,
        key=_word(own.get("skillKey")) or name,
        emoji=_word(own.get("emoji")),
        homepage=_word(own.get("homepage")) or _word(header.get("homepage")),
        primary_env=_word(own.get("primaryEnv")),
        always=own.get("always") is True,
        hidden=_is_true(header.get("disable-model-invocation")),
        needs=SkillNeeds(
            bins=_words(requires.get("bins")),
            any_bins=_words(requires.get("anyBins")),
            env=_words(requires.get("env")),
            config=_words(requires.get("config")),
            os=_words(own.get("os")),
        ),
        install=_installers(own.get("install")),
        block=(
            "  <skill>\n"
            f"    <name>{escape(name)}</name>\n"
            f"    <description>{escape(description)}</description>\n"
            f"    <location>{escape(path)}</location>\n"
            "  </skill>"
        ),
    )


def _own_metadata(metadata: Any) -> dict[str, Any]:
    """The part of ``metadata`` under the first of our namespaces that it has."""
    if isinstance(metadata, str) and metadata.strip().startswith("{"):
        try:
            metadata = pyjson5.loads(metadata)
        except pyjson5.Json5Exception as problem:
            raise BadSkill(f"metadata is not valid JSON: {str(problem)[:120]}") from None
    known = _mapping(metadata)
    return next((_mapping(known[name]) for name in _NAMESPACES if name in known), {})


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _word(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, which may also be written as one text with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return ()
    return tuple(item.strip() for item in cast("list[Any]", value) if isinstance(item, str) and item.strip())


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "yes", "on", "1"))


def _installers(value: Any) -> tuple[dict[str, Any], ...]:
    """The suggestions in ``metadata.openclaw.install``, reduced to the known keys."""
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    shown: list[dict[str, Any]] = []
    for place, row in enumerate(rows[:20]):
        spec = _mapping(row)
        kind = _word(spec.get("kind"))
        if kind is None:
            continue
        known = {name: spec[name] for name in _INSTALL_KEYS if name in spec}
        shown.append({"id": f"{kind}-{place}", "label": kind, **known, "bins": list(_words(spec.get("bins")))})
    return tuple(shown)
