"""The agent's folder: made when first needed, and given starting files when it is brand-new."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from openclaw.agent.bootstrap import FIRST_RUN_FILE, MEMORY_FILES, SEEDED_FILES
from openclaw.paths import make_private_dir

log = logging.getLogger("openclaw.agents.workspace")

GIT_TIMEOUT_S = 10
REPO_LEVELS = 12
_MAX_REMEMBERED = 1024
_ready: set[str] = set()


def ready_workspace(workspace: Path, *, seed: bool) -> None:
    """Makes the folder; a brand-new one gets its files. Blocking, and almost free after the first time."""
    folder = str(workspace)
    if folder in _ready and workspace.is_dir():
        return
    make_private_dir(folder)
    if seed:
        try:
            _seed(workspace)
        except OSError as problem:
            log.warning("no starting files in %s: %s", folder, problem)
    if len(_ready) >= _MAX_REMEMBERED:
        _ready.clear()
    _ready.add(folder)


def is_brand_new(workspace: Path) -> bool:
    """Nobody has lived here: none of the files an agent keeps is there."""
    return not any((workspace / name).exists() for name in (*SEEDED_FILES, FIRST_RUN_FILE, *MEMORY_FILES))


def _seed(workspace: Path) -> None:
    if not is_brand_new(workspace):
        return
    empty = not any(workspace.iterdir())
    for name in (*SEEDED_FILES, FIRST_RUN_FILE):
        _write_new(workspace / name, template(name))
    if empty:
        _init_git(workspace)


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
    """A history for the agent's files, where git is installed; a convenience, so nothing depends on it."""
    git = shutil.which("git")
    if git is None or repo_root(workspace) is not None:
        return
    command = [git, "init", "--quiet", "--template="]
    try:
        subprocess.run(command, cwd=workspace, capture_output=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        log.info("git init in %s did not work: %s", workspace, problem)


def repo_root(workspace: Path, configured: str | None = None) -> str | None:
    """The configured root, else the nearest folder upwards that holds a ``.git``."""
    if configured and configured.strip():
        return str(Path(configured.strip()).expanduser().absolute())
    return next((str(marker.parent) for marker in repo_markers(workspace) if marker.exists()), None)


@lru_cache(maxsize=64)
def repo_markers(workspace: Path) -> list[Path]:
    return [folder / ".git" for folder in (workspace, *workspace.parents)[:REPO_LEVELS]]
