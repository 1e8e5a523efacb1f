"""The skills an agent can draw on: found in a few folders, gated, and listed in the prompt by name and purpose only.

A skill is text that the model may decide to read. Nothing in it is run when it is found, listed or offered.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec

from openclaw.agent.skills.skill_file import BadSkill, Skill, SkillNeeds, parse_skill
from openclaw.config.agents import agent_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.secrets import SecretUnavailable, resolve_secret

BUNDLED = "openclaw-bundled"
_MAX_PROGRAMS = 2048
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_SYSTEMS = {"darwin": ("darwin", "macos"), "linux": ("linux",), "win32": ("win32", "windows")}


class SkillVerdict(msgspec.Struct, frozen=True, kw_only=True):
    skill: Skill
    eligible: bool
    disabled: bool
    """Switched off in ``skills.entries``."""
    blocked: bool
    """Not on the list of those this agent, or the bundled set, may use."""
    missing: SkillNeeds

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


def judge_skill(
    skill: Skill, config: Config, environ: Mapping[str, str], programs: Programs, allowed: Collection[str] | None = None
) -> SkillVerdict:
    """``allowed`` is the agent's own list of skills; None means all."""
    settings = config.skills.entries.get(skill.key)
    disabled = settings is not None and not settings.enabled
    bundled = config.skills.allow_bundled
    blocked = (allowed is not None and skill.name not in allowed and skill.key not in allowed) or (
        skill.source == BUNDLED and bundled is not None and skill.name not in bundled and skill.key not in bundled
    )
    missing = _missing(skill, config, environ, programs)
    lacks = bool(missing.os) if skill.always else missing != SkillNeeds()
    return SkillVerdict(
        skill=skill, eligible=not (disabled or blocked or lacks), disabled=disabled, blocked=blocked, missing=missing
    )


def _missing(skill: Skill, config: Config, environ: Mapping[str, str], programs: Programs) -> SkillNeeds:
    needs = skill.needs
    if needs == SkillNeeds():
        return needs
    search_path = environ.get("PATH", "")
    settings = config.skills.entries.get(skill.key)

    def is_set(name: str) -> bool:
        if environ.get(name) or (settings is not None and settings.env.get(name)):
            return True
        return settings is not None and settings.api_key is not None and name == skill.primary_env

    any_there = any(programs.has(name, search_path) for name in needs.any_bins)
    systems = _SYSTEMS.get(sys.platform, (sys.platform,))
    return SkillNeeds(
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


log = logging.getLogger("openclaw.agents.skills")


def skill_environment(verdicts: Iterable[SkillVerdict], config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """``env`` and ``apiKey`` of every skill that can be used. What the Gateway's own environment says counts more.

    Blocking: a key may be in a file or come from a program.
    """
    given: dict[str, str] = {}
    for verdict in verdicts:
        settings = config.skills.entries.get(verdict.skill.key)
        if settings is None or not verdict.eligible:
            continue
        for name, value in settings.env.items():
            if value and not environ.get(name):
                given.setdefault(name, value)
        name = verdict.skill.primary_env
        if not name or settings.api_key is None or environ.get(name) or name in given:
            continue
        try:
            if key := resolve_secret(settings.api_key, environ, f"skills.entries.{verdict.skill.key}.apiKey"):
                given[name] = key
        except SecretUnavailable as problem:
            log.warning("%s", problem)
    return given


SKILL_FILE = "SKILL.md"
MAX_FOLDERS = 300
"""Folders looked at in one place."""
MAX_FILE_BYTES = 256_000
MAX_IN_PROMPT = 150
MAX_PROMPT_CHARS = 30_000
WINDOW_SHARE = 10
"""The list takes at most this part of the model's window."""
_CHARS_PER_TOKEN = 4
_CACHE_LIMIT = 2048
_INTRODUCTION = "\n".join(
    (
        "Before you answer, look through the list: each entry is a skill, with what it is good for.",
        "- If exactly one fits the task, read the file at its <location> with `read`, then follow it.",
        "- If several could fit, take the most specific one, read only that.",
        "- If none clearly fits, read none.",
        "Relative paths inside a skill start at the folder of its file.",
    )
)


class SkillFolder(msgspec.Struct, frozen=True):
    source: str
    folder: Path


class SkillProblem(msgspec.Struct, frozen=True):
    path: str
    reason: str


class SkillLibrary(msgspec.Struct, frozen=True):
    """What was found: of several skills with one name only the one that counts."""

    skills: list[Skill]
    problems: list[SkillProblem]


class SkillsPrompt(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    """The list as it stands in the prompt; empty without skills."""
    skills: tuple[Skill, ...] = ()
    left_out: int = 0
    """Skills for which there was no room."""


_cache: dict[str, tuple[tuple[int, int, str], Skill | SkillProblem]] = {}
_programs = Programs()


def skill_folders(config: Config, state_dir: str, agent_id: str) -> list[SkillFolder]:
    """From the weakest to the strongest: of equal names the last place counts."""
    extra = [_place("openclaw-extra", folder) for folder in config.skills.load.extra_dirs if folder]
    return [
        *extra,
        SkillFolder(BUNDLED, bundled_dir()),
        SkillFolder("openclaw-managed", managed_dir(state_dir)),
        SkillFolder("openclaw-workspace", _below(workspace_dir(config, state_dir, agent_id), "skills")),
    ]


@lru_cache(maxsize=64)
def _place(source: str, folder: str) -> SkillFolder:
    return SkillFolder(source, Path(folder).expanduser())


@cache
def bundled_dir() -> Path:
    return Path(str(files("openclaw"))) / "skills"


@lru_cache(maxsize=8)
def managed_dir(state_dir: str) -> Path:
    return Path(state_dir) / "skills"


def find_skills(where: list[SkillFolder]) -> SkillLibrary:
    """Blocking. Files that have not changed are not read again."""
    found: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    for place in where:
        for path in skill_files(place.folder):
            skill = _load(path, place.source)
            if isinstance(skill, SkillProblem):
                problems.append(skill)
            elif skill is not None:
                found[skill.name] = skill
    return SkillLibrary([found[name] for name in sorted(found)], problems)


def judged_skills(
    config: Config, state_dir: str, agent_id: str, environ: Mapping[str, str] = os.environ
) -> tuple[list[SkillVerdict], list[SkillProblem]]:
    """Every skill this agent could have, with what speaks against it. Blocking."""
    library = find_skills(skill_folders(config, state_dir, agent_id))
    agent = agent_config(config, agent_id)
    allowed = agent.skills if agent else None
    _programs.refresh(environ.get("PATH", ""))
    verdicts = [judge_skill(skill, config, environ, _programs, allowed) for skill in library.skills]
    return verdicts, library.problems


def skills_prompt(verdicts: list[SkillVerdict], context_window: int) -> SkillsPrompt:
    """The list of what can be used, in the order of names, within its share of the window."""
    room = min(MAX_PROMPT_CHARS, context_window * _CHARS_PER_TOKEN // WINDOW_SHARE)
    offered = [verdict.skill for verdict in verdicts if verdict.offered]
    shown: list[Skill] = []
    for skill in offered[:MAX_IN_PROMPT]:
        room -= len(skill.block) + 1
        if room < 0:
            break
        shown.append(skill)
    if not shown:
        return SkillsPrompt(left_out=len(offered))
    blocks = "\n".join(skill.block for skill in shown)
    text = f"{_INTRODUCTION}\n<available_skills>\n{blocks}\n</available_skills>"
    return SkillsPrompt(text=text, skills=tuple(shown), left_out=len(offered) - len(shown))


def skill_files(folder: Path) -> Iterator[Path]:
    """``<name>/SKILL.md``, or one level deeper where skills are kept in groups; in a fixed order."""
    for child in folders_in(folder):
        direct = _below(child, SKILL_FILE)
        if direct.exists():
            yield direct
            continue
        for grandchild in folders_in(child):
            if (nested := _below(grandchild, SKILL_FILE)).exists():
                yield nested


def folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith((".", "_")) and entry.is_dir()]
    except OSError:
        return []
    return [_below(folder, name) for name in sorted(names)[:MAX_FOLDERS] if name != "node_modules"]


@lru_cache(maxsize=_CACHE_LIMIT)
def _below(folder: Path, name: str) -> Path:
    """Kept, because taking paths apart costs more than looking at the files."""
    return folder / name


def _load(path: Path, source: str) -> Skill | SkillProblem | None:
    try:
        status = path.stat()
        key = (status.st_mtime_ns, status.st_size, source)
        known = _cache.get(str(path))
        if known is None or known[0] != key:
            if len(_cache) >= _CACHE_LIMIT:
                _cache.clear()
            known = _cache[str(path)] = (key, _read(path, source, status))
        return known[1]
    except FileNotFoundError:
        return None
    except OSError as problem:
        return SkillProblem(str(path), problem.strerror or str(problem))


def _read(path: Path, source: str, status: os.stat_result) -> Skill | SkillProblem:
    if not stat.S_ISREG(status.st_mode):
        return SkillProblem(str(path), "not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        return SkillProblem(str(path), f"larger than {MAX_FILE_BYTES} bytes; move details into files beside it")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return parse_skill(text, path=str(path), folder=path.parent.name, source=source)
    except BadSkill as problem:
        return SkillProblem(str(path), str(problem))
