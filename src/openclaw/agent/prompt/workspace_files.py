"""The files of an agent's workspace: their order in the prompt, their templates, and the repository around them."""

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
"""The order of the files in the prompt."""
MEMORY_FILES = ("MEMORY.md", "memory.md")
GIT_TIMEOUT_S = 10
REPO_LEVELS = 12
"""How many folders are searched for a repository, from the workspace upwards."""

log = logging.getLogger("openclaw.agent.workspace")


def prepare_workspace(workspace: Path, *, seed: bool) -> bool:
    """Create the folder if it is missing. With ``seed``, copy the templates into a workspace that has no agent files.

    Returns whether the templates were copied. Blocking.
    """
    make_private_dir(str(workspace))
    if not seed:
        return False
    try:
        if any((workspace / name).exists() for name in (*BOOTSTRAP_FILES, *MEMORY_FILES)):
            return False
        empty = not any(workspace.iterdir())
        for name in BOOTSTRAP_FILES:
            _write_new(workspace / name, template(name))
        if empty:
            _init_git(workspace)
    except OSError as problem:
        log.warning("no starting files in %s: %s", workspace, problem)
        return False
    return True


def template(name: str) -> bytes:
    return files("openclaw.agent").joinpath("templates", name).read_bytes()


def _write_new(path: Path, content: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # Another run of the same agent created it first.
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _init_git(workspace: Path) -> None:
    """Create a repository for the agent's files if git is installed. Nothing depends on it."""
    git = shutil.which("git")
    if git is None or repo_root(workspace) is not None:
        return
    # An empty template keeps the hooks of this machine's user out of a folder that an agent can write to.
    command = [git, "init", "--quiet", "--template="]
    try:
        subprocess.run(command, cwd=workspace, capture_output=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        log.info("git init in %s did not work: %s", workspace, problem)


def repo_root(workspace: Path, configured: str | None = None) -> str | None:
    """Return the configured root, or else the nearest folder upwards that has a ``.git``."""
    if configured and configured.strip():
        return str(Path(configured.strip()).expanduser().absolute())
    return next((str(marker.parent) for marker in repo_markers(workspace) if marker.exists()), None)


def repo_markers(workspace: Path) -> list[Path]:
    """Return the paths where a ``.git`` may be, nearest first."""
    return [folder / ".git" for folder in (workspace, *workspace.parents)[:REPO_LEVELS]]
