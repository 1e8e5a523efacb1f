"""The folder of an agent: the names of its files, the files that a new one gets, and the repository it is in."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from openclaw.paths import make_private_dir

SEEDED_FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md")
FIRST_RUN_FILE = "BOOTSTRAP.md"
BOOTSTRAP_FILES = (*SEEDED_FILES, FIRST_RUN_FILE)
MEMORY_FILES = ("MEMORY.md", "memory.md")
GIT_TIMEOUT_S = 10
REPO_LEVELS = 12
"""A repository is looked for in the workspace and in this many folders in all."""

log = logging.getLogger("openclaw.agent.workspace")


def ready_workspace(workspace: Path, *, seed: bool) -> None:
    """Makes the folder. With ``seed`` a workspace without any of an agent's files gets them. Blocking."""
    make_private_dir(str(workspace))
    if not seed:
        return
    try:
        if any((workspace / name).exists() for name in (*BOOTSTRAP_FILES, *MEMORY_FILES)):
            return
        empty = not any(workspace.iterdir())
        for name in BOOTSTRAP_FILES:
            _write_new(workspace / name, template(name))
        if empty:
            _init_git(workspace)
    except OSError as problem:
        log.warning("no starting files in %s: %s", workspace, problem)


def template(name: str) -> bytes:
    return files("openclaw.agent").joinpath("templates", name).read_bytes()


def _write_new(path: Path, content: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # Another run of the same agent was first.
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _init_git(workspace: Path) -> None:
    """Makes a repository for the agent's files if git is installed. Nothing depends on it."""
    git = shutil.which("git")
    if git is None or repo_root(workspace) is not None:
        return
    command = [git, "init", "--quiet", "--template="]
    try:
        subprocess.run(command, cwd=workspace, capture_output=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        log.info("git init in %s did not work: %s", workspace, problem)


def repo_root(workspace: Path, configured: str | None = None) -> str | None:
    """The configured root, else the nearest folder upwards that has a ``.git``."""
    if configured and configured.strip():
        return str(Path(configured.strip()).expanduser().absolute())
    return next((str(marker.parent) for marker in repo_markers(workspace) if marker.exists()), None)


def repo_markers(workspace: Path) -> list[Path]:
    """The paths at which a ``.git`` is looked for, nearest first."""
    return [folder / ".git" for folder in (workspace, *workspace.parents)[:REPO_LEVELS]]
