"""One skill: a ``SKILL.md`` whose header says what it is for and what it needs. Reading it runs nothing."""

from __future__ import annotations

import re
from typing import Any, cast
from xml.sax.saxutils import escape

import msgspec
import pyjson5

from openclaw.agent.skill_header import BadSkill, parse_header

MAX_DESCRIPTION = 1024
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NAME = 64
_NAMESPACES = ("openclaw", "clawdbot", "moltbot")
"""Where skills of this family keep their own part of ``metadata``; the first is ours, the others are older."""
_INSTALL_KEYS = ("id", "kind", "label", "bins")


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
