"""What the disk holds for an agent's prompt: workspace files, skills, the repository around it.

A turn does not read the files again. It asks with one ``stat`` per file and folder whether anything changed, and reads
only then. Turns that begin within a tenth of a second share one check, provided that their messages came before it, so
that no edit made before a message is missed. Programs on the PATH and repositories outside the workspace are checked
every few seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from pathlib import Path
from typing import TypeAlias

import msgspec

from openclaw.agent.prompt.workspace_files import (
    BOOTSTRAP_FILES,
    MEMORY_FILES,
    BootstrapFile,
    effective_max_chars,
    load_bootstrap,
    ready_workspace,
    repo_markers,
    repo_root,
)
from openclaw.agent.skills.library import (
    BUNDLED,
    SkillsPrompt,
    folders_in,
    judged_skills,
    skill_environment,
    skill_files,
    skill_folders,
    skills_prompt,
)
from openclaw.clock import Clock
from openclaw.config.schema import Config

MOST_KEPT = 64
LOOK_AGAIN_S = 5.0
SHARED_S = 0.1
_FILES = (*BOOTSTRAP_FILES, *MEMORY_FILES)
_Sign: TypeAlias = tuple[int, int, int] | None
"""Time, size and inode of a file or folder; None where there is none."""


class Audience(msgspec.Struct, frozen=True):
    """Who will read what is found, which decides how much of it is shown."""

    window: int
    """Tokens of the model's window."""
    private: bool
    subagent: bool


class WorkspaceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    files: list[BootstrapFile]
    skills: SkillsPrompt
    skill_env: dict[str, str]
    repo_root: str | None


class _Cached(msgspec.Struct):
    snapshot: WorkspaceSnapshot
    config: Config
    near: list[str]
    near_signs: list[_Sign]
    far: list[str]
    far_signs: list[_Sign]
    looked_at: float
    seen_at: float
    """On the event loop's clock: since then nothing near is known to have changed."""

    def holds(self, config: Config, now: float, asked_at: float | None) -> bool:
        if config is not self.config:
            return False
        moment = asyncio.get_running_loop().time()
        if asked_at is not None and asked_at < self.seen_at > moment - SHARED_S:
            return True
        if not self._unchanged(now):
            return False
        self.seen_at = moment
        return True

    def _unchanged(self, now: float) -> bool:
        if _signs(self.near) != self.near_signs:
            return False
        if now - self.looked_at >= LOOK_AGAIN_S:
            self.looked_at = now
            return _signs(self.far) == self.far_signs
        return True


class WorkspaceSnapshots:
    """Keeps what was found for each agent and view."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._state_dir = state_dir
        self._clock = clock
        self._known: OrderedDict[tuple[str, Audience], _Cached] = OrderedDict()

    async def of(
        self, agent_id: str, config: Config, workspace: Path, view: Audience, asked_at: float | None = None
    ) -> WorkspaceSnapshot:
        """``asked_at``: on the event loop's clock; a look made after that will do. None: only one made now."""
        known, now = self._known.get((agent_id, view)), self._clock.monotonic()
        if known is not None and known.holds(config, now, asked_at):
            return known.snapshot
        moment = asyncio.get_running_loop().time()
        found = await asyncio.to_thread(self._look, agent_id, config, workspace, view, now, moment)
        self._known[agent_id, view] = found
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return found.snapshot

    def _look(
        self, agent_id: str, config: Config, workspace: Path, view: Audience, now: float, moment: float
    ) -> _Cached:
        defaults = config.agents.defaults
        ready_workspace(workspace, seed=not defaults.skip_bootstrap)
        near, far = self._watched(agent_id, config, workspace)
        # Before anything is read: what changes while it is being read is noticed the next time.
        near_signs, far_signs = _signs(near), _signs(far)
        max_chars = effective_max_chars(defaults.bootstrap_max_chars, view.window)
        verdicts, _ = judged_skills(config, self._state_dir, agent_id)
        snapshot = WorkspaceSnapshot(
            files=load_bootstrap(workspace, max_chars, private=view.private, subagent=view.subagent),
            skills=SkillsPrompt() if view.subagent else skills_prompt(verdicts, view.window),
            skill_env=skill_environment(verdicts, config, os.environ) if config.skills.entries else {},
            repo_root=repo_root(workspace, defaults.repo_root),
        )
        return _Cached(snapshot, config, near, near_signs, far, far_signs, now, moment)

    def _watched(self, agent_id: str, config: Config, workspace: Path) -> tuple[list[str], list[str]]:
        """A folder's own time changes when something appears in it or goes: what is missing needs no watching."""
        near = [workspace, *(path for name in _FILES if (path := workspace / name).exists())]
        far = [*repo_markers(workspace)[1:], *(Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep))]
        for place in skill_folders(config, self._state_dir, agent_id):
            # One level down as well, where skills are kept in groups.
            inside = [place.folder, *folders_in(place.folder), *skill_files(place.folder)]
            if place.source == BUNDLED:
                far += inside
            else:
                near += inside
        return [str(path) for path in near], [str(path) for path in far]


def _signs(paths: list[str]) -> list[_Sign]:
    return [_sign(path) for path in paths]


def _sign(path: str) -> _Sign:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would cost more than the question
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
