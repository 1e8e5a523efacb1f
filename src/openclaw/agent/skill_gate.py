"""Whether a skill can be used here: its system, programs, variables and settings, and what the configuration allows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import msgspec

from openclaw.agent.skill_file import Needs, Skill
from openclaw.config.schema import Config

BUNDLED = "openclaw-bundled"
_MAX_PROGRAMS = 2048
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_SYSTEMS = {"darwin": ("darwin", "macos"), "linux": ("linux",), "win32": ("win32", "windows")}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    skill: Skill
    eligible: bool
    disabled: bool
    """Switched off in ``skills.entries``."""
    blocked: bool
    """Not on the list of those this agent, or the bundled set, may use."""
    missing: Needs

    @property
    def offered(self) -> bool:
        """Whether the model is told of it."""
        return self.eligible and not self.skill.hidden


class Programs:
    """Which programs are installed. Asked of the disk again only when a folder on the PATH has changed."""

    def __init__(self) -> None:
        self._version: tuple[Any, ...] = ()
        self._known: dict[str, bool] = {}

    def has(self, name: str, search_path: str) -> bool:
        if name not in self._known:
            if len(self._known) >= _MAX_PROGRAMS:
                self._known.clear()
            self._known[name] = "/" not in name and shutil.which(name, path=search_path) is not None
        return self._known[name]

    def refresh(self, search_path: str) -> None:
        version = (search_path, *(_changed_at(folder) for folder in _folders_on(search_path)))
        if version != self._version:
            self._known.clear()
            self._version = version


@lru_cache(maxsize=8)
def _folders_on(search_path: str) -> list[Path]:
    return [Path(folder) for folder in dict.fromkeys(search_path.split(os.pathsep)) if folder]


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def judge(
    skill: Skill, config: Config, environ: Mapping[str, str], programs: Programs, allowed: Collection[str] | None = None
) -> Verdict:
    """``allowed`` is the agent's own list of skills; None means all."""
    settings = config.skills.entries.get(skill.key)
    disabled = settings is not None and not settings.enabled
    bundled = config.skills.allow_bundled
    blocked = (allowed is not None and skill.name not in allowed and skill.key not in allowed) or (
        skill.source == BUNDLED and bundled is not None and skill.name not in bundled and skill.key not in bundled
    )
    missing = _missing(skill, config, environ, programs)
    lacks = bool(missing.os) if skill.always else missing != Needs()
    return Verdict(
        skill=skill, eligible=not (disabled or blocked or lacks), disabled=disabled, blocked=blocked, missing=missing
    )


def _missing(skill: Skill, config: Config, environ: Mapping[str, str], programs: Programs) -> Needs:
    needs = skill.needs
    if needs == Needs():
        return needs
    search_path = environ.get("PATH", "")
    settings = config.skills.entries.get(skill.key)

    def is_set(name: str) -> bool:
        if environ.get(name) or (settings is not None and settings.env.get(name)):
            return True
        return settings is not None and settings.api_key is not None and name == skill.primary_env

    any_there = any(programs.has(name, search_path) for name in needs.any_bins)
    systems = _SYSTEMS.get(sys.platform, (sys.platform,))
    return Needs(
        bins=tuple(name for name in needs.bins if not programs.has(name, search_path)),
        any_bins=() if any_there else needs.any_bins,
        env=tuple(name for name in needs.env if not is_set(name)),
        config=tuple(path for path in needs.config if not is_configured(config, path)),
        os=() if not needs.os or any(name.lower() in systems for name in needs.os) else needs.os,
    )


def is_configured(config: Config, path: str) -> bool:
    """Whether something is switched on or filled in at a key path such as ``channels.signal.account``."""
    value: Any = config
    for segment in path.split("."):
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _CAPITAL.sub(r"_\1", segment).lower(), None)
        elif isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(segment)
        else:
            return False
    if isinstance(value, msgspec.Struct):
        # A section nobody wrote stands there with its defaults.
        return msgspec.to_builtins(value) != msgspec.to_builtins(type(value)())
    return bool(value)
