"""What the disk has for an agent's prompt: the workspace files, the skills, the repository around the workspace.

A turn does not read the files again. It checks each file and folder with one ``stat`` and reads only if something has
changed. Turns that begin within a tenth of a second share one check if their messages arrived before it. So no edit
that was made before a message is missed. Programs on the PATH and repositories outside the workspace are checked every
few seconds.
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
MOST_WARNINGS = 256
LOOK_AGAIN_S = 5.0
"""How often the paths in ``_Cached.rarely`` are checked."""
SHARED_S = 0.1
"""For how long turns share one check."""
_FILES = (*BOOTSTRAP_FILES, *MEMORY_FILES)
_FileState: TypeAlias = tuple[int, int, int] | None
"""The time, size and inode of a file or folder. None: it does not exist."""


class Audience(msgspec.Struct, frozen=True):
    """Who reads the prompt. This decides how much of the workspace is shown."""

    window: int
    """Tokens of the model's window."""
    private: bool
    subagent: bool


class WorkspaceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt gets from the disk."""

    files: list[BootstrapFile]
    skills: SkillsPrompt
    skill_env: dict[str, str]
    repo_root: str | None


class _Cached(msgspec.Struct):
    """A snapshot and the state of the files at the time it was made."""

    snapshot: WorkspaceSnapshot
    config: Config
    often: list[str]
    """Paths that are checked in every turn, unless a check is shared."""
    often_states: list[_FileState]
    rarely: list[str]
    """Paths that are checked every ``LOOK_AGAIN_S`` seconds."""
    rarely_states: list[_FileState]
    rarely_checked_at: float
    """On the Gateway's monotonic clock."""
    checked_at: float
    """The time of the last check of ``often``, on the event loop's clock."""

    def is_current(self, config: Config, now: float, arrived_at: float | None) -> bool:
        """Whether the snapshot can be used for a message that arrived at that time."""
        if config is not self.config:
            return False
        loop_now = asyncio.get_running_loop().time()
        if arrived_at is not None and arrived_at < self.checked_at > loop_now - SHARED_S:
            return True
        if _states(self.often) != self.often_states:
            return False
        if now - self.rarely_checked_at >= LOOK_AGAIN_S:
            self.rarely_checked_at = now
            if _states(self.rarely) != self.rarely_states:
                return False
        self.checked_at = loop_now
        return True


class WorkspaceSnapshots:
    """Keeps a snapshot for each agent and audience, and knows which warnings about files were given."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._state_dir = state_dir
        self._clock = clock
        self._known: OrderedDict[tuple[str, Audience], _Cached] = OrderedDict()
        self._ready: set[Path] = set()
        """Workspaces that were made ready. They do not get their first files again, even if all are deleted."""
        self._warned: set[tuple[str, int, int]] = set()

    async def of(
        self, agent_id: str, config: Config, workspace: Path, audience: Audience, arrived_at: float | None = None
    ) -> WorkspaceSnapshot:
        """A current snapshot. A check after ``arrived_at`` (on the event loop's clock) is recent enough. None: now."""
        known, now = self._known.get((agent_id, audience)), self._clock.monotonic()
        if known is not None and known.is_current(config, now, arrived_at):
            return known.snapshot
        loop_now = asyncio.get_running_loop().time()
        made = await asyncio.to_thread(self._make, agent_id, config, workspace, audience, now, loop_now)
        self._known[agent_id, audience] = made
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return made.snapshot

    def _make(
        self, agent_id: str, config: Config, workspace: Path, audience: Audience, now: float, loop_now: float
    ) -> _Cached:
        defaults = config.agents.defaults
        if workspace not in self._ready or not workspace.is_dir():
            ready_workspace(workspace, seed=not defaults.skip_bootstrap)
            self._ready.add(workspace)
        # A new file changes the time of its folder, so a file that does not exist is not watched.
        often = [workspace, *(path for name in _FILES if (path := workspace / name).exists())]
        rarely = [*repo_markers(workspace)[1:], *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
        for place in skill_folders(config, self._state_dir, agent_id):
            # Skills can be kept in groups, so the folders one level down are watched too.
            inside = [place.folder, *folders_in(place.folder), *skill_files(place.folder)]
            (rarely if place.source == BUNDLED else often).extend(inside)
        often_paths, rarely_paths = [str(path) for path in often], [str(path) for path in rarely]
        # These are taken before anything is read. A change during the reading is noticed by the next check.
        often_states, rarely_states = _states(often_paths), _states(rarely_paths)
        verdicts, _ = judged_skills(config, self._state_dir, agent_id)
        max_chars = effective_max_chars(defaults.bootstrap_max_chars, audience.window)
        snapshot = WorkspaceSnapshot(
            files=load_bootstrap(workspace, max_chars, private=audience.private, subagent=audience.subagent),
            skills=SkillsPrompt() if audience.subagent else skills_prompt(verdicts, audience.window),
            skill_env=skill_environment(verdicts, config, os.environ) if config.skills.entries else {},
            repo_root=repo_root(workspace, defaults.repo_root),
        )
        return _Cached(snapshot, config, often_paths, often_states, rarely_paths, rarely_states, now, loop_now)

    def new_warnings(self, files: list[BootstrapFile]) -> list[str]:
        """Warnings about cut files that were not given before. Each version of a file is warned about once."""
        warnings: list[str] = []
        for file in files:
            if file.warning and (key := (file.path, file.version, len(file.text))) not in self._warned:
                if len(self._warned) >= MOST_WARNINGS:
                    self._warned.clear()
                self._warned.add(key)
                warnings.append(file.warning)
        return warnings


def _states(paths: list[str]) -> list[_FileState]:
    return [_state(path) for path in paths]


def _state(path: str) -> _FileState:
    try:
        status = os.stat(path)  # noqa: PTH116 - making a Path costs more than the call
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
