"""The skills an agent can draw on: found in a few folders, gated, and listed in the prompt by name and purpose only.

A skill is text that the model may decide to read. Nothing in it is run when it is found, listed or offered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from openclaw.agent.skill_file import BadSkill, Skill, parse_skill
from openclaw.agent.skill_gate import BUNDLED, Programs, Verdict, judge
from openclaw.config.agents import agent_config, workspace_dir
from openclaw.config.schema import Config

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


class Place(msgspec.Struct, frozen=True):
    source: str
    folder: Path


class Problem(msgspec.Struct, frozen=True):
    path: str
    reason: str


class Library(msgspec.Struct, frozen=True):
    """What was found: of several skills with one name only the one that counts."""

    skills: list[Skill]
    problems: list[Problem]


class SkillsPrompt(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    """The list as it stands in the prompt; empty without skills."""
    skills: tuple[Skill, ...] = ()
    left_out: int = 0
    """Skills for which there was no room."""


_cache: dict[str, tuple[tuple[int, int, str], Skill | Problem]] = {}
_programs = Programs()


def places(config: Config, state_dir: str, agent_id: str) -> list[Place]:
    """From the weakest to the strongest: of equal names the last place counts."""
    extra = [_place("openclaw-extra", folder) for folder in config.skills.load.extra_dirs if folder]
    return [
        *extra,
        Place(BUNDLED, bundled_dir()),
        Place("openclaw-managed", managed_dir(state_dir)),
        Place("openclaw-workspace", _below(workspace_dir(config, state_dir, agent_id), "skills")),
    ]


@lru_cache(maxsize=64)
def _place(source: str, folder: str) -> Place:
    return Place(source, Path(folder).expanduser())


@cache
def bundled_dir() -> Path:
    return Path(str(files("openclaw"))) / "skills"


@lru_cache(maxsize=8)
def managed_dir(state_dir: str) -> Path:
    return Path(state_dir) / "skills"


def find_skills(where: list[Place]) -> Library:
    """Blocking. Files that have not changed are not read again."""
    found: dict[str, Skill] = {}
    problems: list[Problem] = []
    for place in where:
        for path in skill_files(place.folder):
            skill = _load(path, place.source)
            if isinstance(skill, Problem):
                problems.append(skill)
            elif skill is not None:
                found[skill.name] = skill
    return Library([found[name] for name in sorted(found)], problems)


def judged_skills(
    config: Config, state_dir: str, agent_id: str, environ: Mapping[str, str] = os.environ
) -> tuple[list[Verdict], list[Problem]]:
    """Every skill this agent could have, with what speaks against it. Blocking."""
    library = find_skills(places(config, state_dir, agent_id))
    agent = agent_config(config, agent_id)
    allowed = agent.skills if agent else None
    _programs.refresh(environ.get("PATH", ""))
    verdicts = [judge(skill, config, environ, _programs, allowed) for skill in library.skills]
    return verdicts, library.problems


def skills_prompt(verdicts: list[Verdict], context_window: int) -> SkillsPrompt:
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


def _load(path: Path, source: str) -> Skill | Problem | None:
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
        return Problem(str(path), problem.strerror or str(problem))


def _read(path: Path, source: str, status: os.stat_result) -> Skill | Problem:
    if not stat.S_ISREG(status.st_mode):
        return Problem(str(path), "not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        return Problem(str(path), f"larger than {MAX_FILE_BYTES} bytes; move details into files beside it")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return parse_skill(text, path=str(path), folder=path.parent.name, source=source)
    except BadSkill as problem:
        return Problem(str(path), str(problem))
