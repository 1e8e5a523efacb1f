"""What the disk holds for an agent's prompt: workspace files, skills, the repository around it.

Reading all of it took a thread and a tenth of every turn. Here a turn only asks whether anything has changed, which is
one ``stat`` for each file and folder the answer depends on, and reads again when something has.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from pathlib import Path
from typing import TypeAlias

import msgspec

from openclaw.agent.bootstrap import (
    BOOTSTRAP_FILES,
    MEMORY_FILES,
    BootstrapFile,
    effective_max_chars,
    load_bootstrap,
)
from openclaw.agent.skill_env import skill_environment
from openclaw.agent.skills import (
    SkillsPrompt,
    folders_in,
    judged_skills,
    places,
    skill_files,
    skills_prompt,
)
from openclaw.agent.workspace import ready_workspace, repo_markers, repo_root
from openclaw.config.schema import Config

MOST_KEPT = 64
_Sign: TypeAlias = tuple[int, int, int] | None
"""Of a file or folder; None where there is none."""


class View(msgspec.Struct, frozen=True):
    """Who will read what is found, which decides how much of it is shown."""

    window: int
    """The model's."""
    private: bool
    subagent: bool


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    files: list[BootstrapFile]
    skills: SkillsPrompt
    skill_env: dict[str, str]
    repo_root: str | None


class Grounds:
    """Keeps what was found for each agent and view."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._known: OrderedDict[tuple[str, View], tuple[Config, list[str], list[_Sign], Ground]] = OrderedDict()

    async def of(self, agent_id: str, config: Config, workspace: Path, view: View) -> Ground:
        known = self._known.get((agent_id, view))
        if known is not None and known[0] is config and _signs(known[1]) == known[2]:
            return known[3]
        watched, signs, ground = await asyncio.to_thread(self._look, agent_id, config, workspace, view)
        self._known[agent_id, view] = (config, watched, signs, ground)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return ground

    def _look(
        self, agent_id: str, config: Config, workspace: Path, view: View
    ) -> tuple[list[str], list[_Sign], Ground]:
        defaults = config.agents.defaults
        ready_workspace(workspace, seed=not defaults.skip_bootstrap)
        watched = self._watched(agent_id, config, workspace)
        # Before anything is read: what changes while it is being read is noticed the next time.
        signs = _signs(watched)
        max_chars = effective_max_chars(defaults.bootstrap_max_chars, view.window)
        verdicts, _ = judged_skills(config, self._state_dir, agent_id)
        ground = Ground(
            files=load_bootstrap(workspace, max_chars, private=view.private, subagent=view.subagent),
            skills=SkillsPrompt() if view.subagent else skills_prompt(verdicts, view.window),
            skill_env=skill_environment(verdicts, config, os.environ) if config.skills.entries else {},
            repo_root=repo_root(workspace, defaults.repo_root),
        )
        return watched, signs, ground

    def _watched(self, agent_id: str, config: Config, workspace: Path) -> list[str]:
        paths = [workspace, *(workspace / name for name in (*BOOTSTRAP_FILES, *MEMORY_FILES))]
        paths += [] if config.agents.defaults.repo_root else repo_markers(workspace)
        for place in places(config, self._state_dir, agent_id):
            # A folder changes when something is added to it, also one level down, where skills are kept in groups.
            paths += [place.folder, *folders_in(place.folder), *skill_files(place.folder)]
        return [*map(str, paths), *filter(None, os.environ.get("PATH", "").split(os.pathsep))]


def _signs(paths: list[str]) -> list[_Sign]:
    return [_sign(path) for path in paths]


def _sign(path: str) -> _Sign:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would cost more than the question
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
