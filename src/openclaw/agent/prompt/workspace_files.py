"""The workspace files that go into every prompt: instructions, persona, notes about tools and people."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from openclaw.paths import make_private_dir

SEEDED_FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md")
FIRST_RUN_FILE = "BOOTSTRAP.md"
BOOTSTRAP_FILES = (*SEEDED_FILES, FIRST_RUN_FILE)
MEMORY_FILES = ("MEMORY.md", "memory.md")
SUBAGENT_FILES = ("AGENTS.md", "TOOLS.md")
HEAD_PERCENT = 70
TAIL_PERCENT = 20
WINDOW_SHARE = 6
"""One file takes at most this part of the window, so that small models keep room for the conversation."""
MIN_CHARS = 1000
MAX_READ_BYTES = 4_000_000
_CACHE_LIMIT = 256
_CHARS_PER_TOKEN = 4


class BootstrapFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: str
    missing: bool
    raw_chars: int
    text: str
    """What goes into the prompt; cut in the middle when the file is over the limit, empty for a blank file."""
    truncated: bool
    version: int = 0
    """Differs when the file on disk does."""
    warning: str = ""
    """For the person: what the model does not see of this file."""


_cache: dict[str, tuple[tuple[int, int, int], BootstrapFile]] = {}
_told: dict[tuple[str, int, int], None] = {}


def load_bootstrap(
    workspace: Path, max_chars: int, *, private: bool = True, subagent: bool = False
) -> list[BootstrapFile]:
    """The files in their fixed order; unchanged ones come from memory.

    BOOTSTRAP.md is there only while it exists. Long-term memory is for private chats: in a group it would tell
    everyone what one person confided. Sub-agents get the instructions only.
    """
    if subagent:
        return [_load(path, max_chars) for path in _paths(workspace, SUBAGENT_FILES)]
    files = [_load(path, max_chars) for path in _paths(workspace, BOOTSTRAP_FILES)]
    if files[-1].missing:
        files.pop()
    return [*files, *_memory(workspace, max_chars)] if private else files


@lru_cache(maxsize=_CACHE_LIMIT)
def _paths(workspace: Path, names: tuple[str, ...]) -> list[Path]:
    """Kept, because taking paths apart costs more than looking at the files."""
    return [workspace / name for name in names]


def _memory(workspace: Path, max_chars: int) -> list[BootstrapFile]:
    files = [_load(path, max_chars) for path in _paths(workspace, MEMORY_FILES)]
    found = [file for file in files if not file.missing]
    if len(found) == 2 and Path(found[0].path).samefile(found[1].path):
        # Where the disk ignores case, both names are one file.
        return found[:1]
    return found


def effective_max_chars(max_chars: int, context_window: int) -> int:
    """The configured limit per file, less where the model's window is small."""
    return max(min(max_chars, context_window * _CHARS_PER_TOKEN // WINDOW_SHARE), min(max_chars, MIN_CHARS))


def untold_warnings(files: list[BootstrapFile]) -> list[str]:
    """Warnings of cut files nobody has been given yet. Each version of a file is warned about once."""
    warnings: list[str] = []
    for file in files:
        if file.warning and (key := (file.path, file.version, len(file.text))) not in _told:
            if len(_told) >= _CACHE_LIMIT:
                _told.clear()
            _told[key] = None
            warnings.append(file.warning)
    return warnings


def _load(path: Path, max_chars: int) -> BootstrapFile:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return _missing(path)
        key = (status.st_mtime_ns, status.st_size, max_chars)
        known = _cache.get(str(path))
        if known is None or known[0] != key:
            if len(_cache) >= _CACHE_LIMIT:
                _cache.clear()
            known = _cache[str(path)] = (key, _read(path, status, max_chars))
        return known[1]
    except OSError:
        return _missing(path)


def _missing(path: Path) -> BootstrapFile:
    text = f"[MISSING] Expected at: {path}"
    return BootstrapFile(name=path.name, path=str(path), missing=True, raw_chars=0, text=text, truncated=False)


def _read(path: Path, status: os.stat_result, max_chars: int) -> BootstrapFile:
    with path.open("rb") as file:
        data = file.read(MAX_READ_BYTES)
        if status.st_size > MAX_READ_BYTES:
            # Only the two ends of such a file can ever be shown.
            file.seek(-min(MAX_READ_BYTES, status.st_size - MAX_READ_BYTES), os.SEEK_END)
            data += file.read(MAX_READ_BYTES)
    raw = data.decode("utf-8-sig", "replace").rstrip()
    truncated = len(raw) > max_chars
    return BootstrapFile(
        name=path.name,
        path=str(path),
        missing=False,
        raw_chars=len(raw),
        text=truncate_middle(raw, path.name, max_chars) if truncated else raw,
        truncated=truncated,
        version=status.st_mtime_ns,
        warning=_warning(raw, path.name, max_chars) if truncated else "",
    )


def _kept(max_chars: int) -> tuple[int, int]:
    return max_chars * HEAD_PERCENT // 100, max_chars * TAIL_PERCENT // 100


def truncate_middle(text: str, name: str, max_chars: int) -> str:
    """Keeps the beginning and the end, and says in the gap what is missing and how to see it."""
    head, tail = _kept(max_chars)
    marker = (
        f"\n\n[...truncated, read {name} for full content...]\n"
        f"…(truncated {name}: kept {head}+{tail} chars of {len(text)})…\n\n"
    )
    return text[:head] + marker + text[len(text) - tail :]


def _warning(text: str, name: str, max_chars: int) -> str:
    head, tail = _kept(max_chars)
    first = text.count("\n", 0, head) + 1
    last = text.count("\n", 0, len(text) - tail) + 1
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    return (
        f"{name} is too long for the prompt: {len(text):,} characters, of which the model sees the first {head:,} and "
        f"the last {tail:,}. Cut out: {lines}. Shorten the file, or raise agents.defaults.bootstrapMaxChars "
        f"(now {max_chars:,} for this model)."
    )


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
