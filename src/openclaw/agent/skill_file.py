"""One skill: a ``SKILL.md`` whose header says what it is for and what it needs. Reading it runs nothing."""

from __future__ import annotations

import re
from typing import Any, cast
from xml.sax.saxutils import escape

import msgspec
import pyjson5

HEADER_LINE = "---"
MAX_DESCRIPTION = 1024
MAX_HEADER_LINES = 400
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NAME = 64
_KEY = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*)|\s*)$")
_NAMESPACES = ("openclaw", "clawdbot", "moltbot")
"""Where skills of this family keep their own part of ``metadata``; the first is ours, the others are older."""
_INSTALL_KEYS = ("id", "kind", "label", "bins")


class BadSkill(Exception):
    """Why a SKILL.md cannot be used, for the person who wrote it."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    bins: tuple[str, ...] = ()
    any_bins: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    os: tuple[str, ...] = ()


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    path: str
    source: str = ""
    key: str
    """Name of its settings in ``skills.entries``."""
    emoji: str | None = None
    homepage: str | None = None
    primary_env: str | None = None
    always: bool = False
    """Offered whatever else it asks for, except another operating system."""
    hidden: bool = False
    """The model is not told of it; a person may still name it."""
    needs: Needs = Needs()
    install: tuple[dict[str, Any], ...] = ()
    """What its author would install. Shown to people; never run."""
    block: str = ""
    """Its entry in the prompt's list."""


def parse_skill(text: str, *, path: str, folder: str, source: str) -> Skill:
    header = parse_header(text)
    name = str(header.get("name") or folder).strip()
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise BadSkill(f"name {name[:80]!r}: use lower-case letters, digits and single hyphens, at most {_MAX_NAME}")
    description = " ".join(str(header.get("description") or "").split())
    if not description:
        raise BadSkill("the header has no description; say in one sentence when the skill is to be used")
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 1]}…"
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
        needs=Needs(
            bins=_words(requires.get("bins")),
            any_bins=_words(requires.get("anyBins")),
            env=_words(requires.get("env")),
            config=_words(requires.get("config")),
            os=_words(own.get("os")),
        ),
        install=_installers(own.get("install")),
        block=_block(name, description, path),
    )


def _block(name: str, description: str, path: str) -> str:
    return (
        "  <skill>\n"
        f"    <name>{escape(name)}</name>\n"
        f"    <description>{escape(description)}</description>\n"
        f"    <location>{escape(path)}</location>\n"
        "  </skill>"
    )


def parse_header(text: str) -> dict[str, Any]:
    """The part between the two ``---`` lines: the little of YAML that such headers use.

    Keys at the margin; values plain, quoted, folded over indented lines, as ``|`` or ``>`` blocks, as JSON, as a list
    or as one level of keys.
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
        while at < end and (not lines[at].strip() or lines[at][0] in " \t}]" or lines[at].startswith("- ")):
            below.append(lines[at])
            at += 1
        header[found[1]] = _value(found[1], (found[2] or "").strip(), below)
    return header


def _value(key: str, first: str, below: list[str]) -> Any:
    if first[:1] in ("|", ">"):
        kept = [line.strip() for line in below]
        return ("\n" if first[0] == "|" else " ").join(kept).strip()
    whole = "\n".join([first, *below]).strip()
    if whole[:1] in ("{", "["):
        try:
            return pyjson5.loads(whole)
        except pyjson5.Json5Exception as problem:
            raise BadSkill(f"{key} is not valid JSON: {str(problem)[:120]}") from None
    if first:
        return _scalar(" ".join([first, *(line.strip() for line in below if line.strip())]))
    rows = [line.strip() for line in below if line.strip() and not line.lstrip().startswith("#")]
    if rows and all(row.startswith("- ") for row in rows):
        return [_scalar(row[2:].strip()) for row in rows]
    nested = [_KEY.match(row) for row in rows]
    if rows and all(nested):
        return {row[1]: _value(row[1], (row[2] or "").strip(), []) for row in nested if row}
    return " ".join(rows)


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


def _own_metadata(metadata: Any) -> dict[str, Any]:
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
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return ()
    return tuple(item.strip() for item in cast("list[Any]", value) if isinstance(item, str) and item.strip())


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "yes", "on", "1"))


def _installers(value: Any) -> tuple[dict[str, Any], ...]:
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
