"""The skills that an agent can use: finding them, checking what they need, and listing them in the prompt.

The prompt lists only name, purpose and path. The model reads a skill's file when it wants to. Nothing in a skill is run
here. The functions that read the disk block. A turn calls them only after ``WorkspaceSnapshots`` has seen a change.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec

from openclaw.agent.skills.skill_file import BadSkill, Skill, SkillNeeds, parse_skill
from openclaw.config.agents import agent_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.opener import FileMissing, Kind, PathOpener, PathRefused

log = logging.getLogger("openclaw.agents.skills")

BUNDLED = "openclaw-bundled"
SKILL_FILE = "SKILL.md"
MAX_FOLDERS = 300
"""The number of folders that are searched in one place."""
MAX_FILE_BYTES = 256_000
MAX_IN_PROMPT = 150
MAX_PROMPT_CHARS = 30_000
WINDOW_SHARE = 10
"""The list takes at most one tenth of the model's window."""
_CHARS_PER_TOKEN = 4
_INTRODUCTION = "\n".join(
    (
        "Before you answer, look through the list: each entry is a skill, with what it is good for.",
        "- If exactly one fits the task, read the file at its <location> with `read`, then follow it.",
        "- If several could fit, take the most specific one, read only that.",
        "- If none clearly fits, read none.",
        "Relative paths inside a skill start at the folder of its file.",
    )
)
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_SYSTEMS = {"darwin": ("darwin", "macos"), "linux": ("linux",), "win32": ("win32", "windows")}
"""The names that a skill may use for each ``sys.platform``."""


class SkillFolder(msgspec.Struct, frozen=True):
    """A folder that is searched for skills. ``source`` is the name of the place, as ``skills.status`` shows it."""

    source: str
    folder: Path
    workspace: Path | None = None
    """The workspace that it is in. Links there may not lead out of it, since the agent or a stranger can make them."""

    @property
    def opener(self) -> PathOpener:
        return PathOpener(self.workspace or self.folder, confine=self.workspace is not None)


class SkillProblem(msgspec.Struct, frozen=True):
    """A skill file that cannot be used, and why."""

    path: str
    reason: str


class SkillLibrary(msgspec.Struct, frozen=True):
    """The skills that were found, sorted by name. Of several with the same name it holds the strongest one."""

    skills: list[Skill]
    problems: list[SkillProblem]


class SkillVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one agent can use a skill, and what prevents it."""

    skill: Skill
    eligible: bool
    disabled: bool
    """True if ``skills.entries`` switches it off."""
    blocked: bool
    """True if the agent's own list of skills, or the list of allowed bundled skills, does not name it."""
    missing: SkillNeeds

    @property
    def offered(self) -> bool:
        """Whether the prompt lists the skill."""
        return self.eligible and not self.skill.hidden


class SkillsPrompt(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    """The list as the prompt shows it; empty without skills."""
    skills: tuple[Skill, ...] = ()
    left_out: int = 0
    """The number of skills for which there was no room."""


# Finding


def skill_folders(config: Config, state_dir: str, agent_id: str) -> list[SkillFolder]:
    """The folders of an agent. Of skills with the same name, the one in the last folder counts."""
    extra = [Path(folder).expanduser() for folder in config.skills.load.extra_dirs if folder]
    workspace = workspace_dir(config, state_dir, agent_id)
    return [
        *(SkillFolder("openclaw-extra", folder) for folder in extra),
        SkillFolder(BUNDLED, bundled_dir()),
        SkillFolder("openclaw-managed", managed_dir(state_dir)),
        SkillFolder("openclaw-workspace", workspace / "skills", workspace),
    ]


def bundled_dir() -> Path:
    return Path(str(files("openclaw"))) / "skills"


def managed_dir(state_dir: str) -> Path:
    return Path(state_dir) / "skills"


def find_skills(where: list[SkillFolder]) -> SkillLibrary:
    """Reads every skill in the folders. Blocking."""
    found: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    for place in where:
        problems += _closed_folders(place)
        for path in skill_files(place):
            try:
                skill = _read(path, place)
                found[skill.name] = skill
            except FileMissing:
                continue  # It was removed since the folder was listed.
            except (BadSkill, PathRefused, OSError) as problem:
                problems.append(SkillProblem(str(path), str(problem)))
    return SkillLibrary([found[name] for name in sorted(found)], problems)


def _closed_folders(place: SkillFolder) -> Iterator[SkillProblem]:
    """The links that lead out of the workspace, so that a person learns why their skills are missing."""
    links = [name for name, kind in _names_in(place, place.folder).items() if kind == "link"]
    for folder in (place.folder, *(place.folder / name for name in links)) if place.workspace else ():
        try:
            place.opener.scan(str(folder))
        except FileMissing:
            continue
        except PathRefused as problem:
            yield SkillProblem(str(folder), str(problem))


def skill_files(place: SkillFolder) -> Iterator[Path]:
    """The ``SKILL.md`` files in the subfolders, in sorted order. A subfolder without one may hold a group of skills."""
    for child in folders_in(place):
        names = _names_in(place, child)
        if SKILL_FILE in names:
            yield child / SKILL_FILE
            continue
        for grandchild in folders_in(place, child):
            if SKILL_FILE in _names_in(place, grandchild):
                yield grandchild / SKILL_FILE


def folders_in(place: SkillFolder, folder: Path | None = None) -> list[Path]:
    """The subfolders in sorted order, without hidden ones; empty if the folder cannot be read.

    A link counts as a folder. It is followed if it leads to one, in a workspace only inside of it.
    """
    folder = folder or place.folder
    names = [
        name
        for name, kind in _names_in(place, folder).items()
        if kind != "file" and not name.startswith((".", "_")) and name != "node_modules"
    ]
    return [folder / name for name in names[:MAX_FOLDERS]]


def _names_in(place: SkillFolder, folder: Path) -> dict[str, Kind]:
    try:
        return dict(place.opener.scan(str(folder)))
    except (OSError, PathRefused):
        return {}


def _read(path: Path, place: SkillFolder) -> Skill:
    with place.opener.open_read(str(path)) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadSkill(f"larger than {MAX_FILE_BYTES} bytes; move details into files beside it")
    text = data.decode("utf-8", "replace")
    return parse_skill(text, path=str(path), folder=path.parent.name, source=place.source)


# Judging


def judged_skills(
    config: Config, state_dir: str, agent_id: str, environ: Mapping[str, str] = os.environ
) -> tuple[list[SkillVerdict], list[SkillProblem]]:
    """Every skill in the agent's folders with its verdict, and the files that cannot be used. Blocking."""
    library = find_skills(skill_folders(config, state_dir, agent_id))
    agent = agent_config(config, agent_id)
    allowed = agent.skills if agent else None
    return [_judge(skill, config, environ, allowed) for skill in library.skills], library.problems


def _judge(skill: Skill, config: Config, environ: Mapping[str, str], allowed: Collection[str] | None) -> SkillVerdict:
    """``allowed`` is the agent's own list of skills; None allows all."""
    settings = config.skills.entries.get(skill.key)
    disabled = settings is not None and not settings.enabled
    bundled = config.skills.allow_bundled
    blocked = (allowed is not None and skill.name not in allowed and skill.key not in allowed) or (
        skill.source == BUNDLED and bundled is not None and skill.name not in bundled and skill.key not in bundled
    )
    missing = _missing(skill, config, environ)
    lacks = bool(missing.os) if skill.always else missing != SkillNeeds()
    return SkillVerdict(
        skill=skill, eligible=not (disabled or blocked or lacks), disabled=disabled, blocked=blocked, missing=missing
    )


def _missing(skill: Skill, config: Config, environ: Mapping[str, str]) -> SkillNeeds:
    """The part of the skill's needs that is not met."""
    needs = skill.needs
    if needs == SkillNeeds():
        return needs
    search_path = environ.get("PATH", "")
    settings = config.skills.entries.get(skill.key)

    def is_set(name: str) -> bool:
        if environ.get(name) or (settings is not None and settings.env.get(name)):
            return True
        return settings is not None and settings.api_key is not None and name == skill.primary_env

    def is_installed(name: str) -> bool:
        return "/" not in name and shutil.which(name, path=search_path) is not None

    systems = _SYSTEMS.get(sys.platform, (sys.platform,))
    return SkillNeeds(
        bins=tuple(name for name in needs.bins if not is_installed(name)),
        any_bins=() if any(is_installed(name) for name in needs.any_bins) else needs.any_bins,
        env=tuple(name for name in needs.env if not is_set(name)),
        config=tuple(path for path in needs.config if not _is_configured(config, path)),
        os=() if not needs.os or any(name.lower() in systems for name in needs.os) else needs.os,
    )


def _is_configured(config: Config, path: str) -> bool:
    """Whether a key path such as ``channels.signal.account`` has a value that is neither empty nor false."""
    value: Any = config
    for segment in path.split("."):
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _CAPITAL.sub(r"_\1", segment).lower(), None)
        elif isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(segment)
        else:
            return False
    if isinstance(value, msgspec.Struct):
        # A section that is not in the file has its default values.
        return msgspec.to_builtins(value) != msgspec.to_builtins(type(value)())
    return bool(value)


def skill_environment(verdicts: Iterable[SkillVerdict], config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ``env`` and ``apiKey`` of the eligible skills set.

    A variable of the Gateway's own environment is never overridden. Blocking: a key may be in a file or come from a
    program.
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


# Listing


def skills_prompt(verdicts: list[SkillVerdict], context_window: int) -> SkillsPrompt:
    """The list of the offered skills, in the order of names, as far as it fits its share of the window."""
    room = min(MAX_PROMPT_CHARS, context_window * _CHARS_PER_TOKEN // WINDOW_SHARE)
    offered = [verdict.skill for verdict in verdicts if verdict.offered]
    shown: list[Skill] = []
    for skill in offered[:MAX_IN_PROMPT]:
        room -= len(skill.block) + 1
        if room < 0:
            break
        shown.append(skill)
    return SkillsPrompt(text=_list(shown), skills=tuple(shown), left_out=len(offered) - len(shown))


def only(prompt: SkillsPrompt, names: Collection[str]) -> SkillsPrompt:
    """The list with the named skills alone. They are named as in an agent's own list."""
    shown = tuple(skill for skill in prompt.skills if skill.name in names or skill.key in names)
    return msgspec.structs.replace(prompt, text=_list(shown), skills=shown)


def _list(shown: Sequence[Skill]) -> str:
    if not shown:
        return ""
    blocks = "\n".join(skill.block for skill in shown)
    return f"{_INTRODUCTION}\n<available_skills>\n{blocks}\n</available_skills>"
