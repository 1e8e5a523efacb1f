"""Finds the files of an agent's memory: MEMORY.md, the notes under memory/, and configured extra paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

CURATED = ("MEMORY.md", "memory.md")
NOTES = "memory"
MOST_FILES = 5000
LARGEST_FILE = 4 << 20


class MemoryFile(msgspec.Struct, frozen=True):
    name: str
    """The name that the model sees: relative inside the workspace, absolute elsewhere."""
    path: Path
    mtime_ns: int
    size: int


def memory_files(workspace: Path, extra: Sequence[str] = ()) -> list[MemoryFile]:
    """All memory files. It blocks. Links are not followed, so that a note cannot lead out of the workspace."""
    found: dict[Path, MemoryFile] = {}
    for path in _candidates(workspace, extra):
        if len(found) >= MOST_FILES:
            break
        try:
            status = path.lstat()
        except OSError:
            continue
        if is_plain(path) and status.st_size <= LARGEST_FILE and not _same_as_known(path, found):
            found[path] = MemoryFile(shown_name(path, workspace), path, status.st_mtime_ns, status.st_size)
    return list(found.values())


def is_memory(path: Path, workspace: Path, extra: Sequence[str] = ()) -> bool:
    """Whether memory_get may read it."""
    if path.suffix.lower() != ".md":
        return False
    if path.parent == workspace and path.name in CURATED:
        return True
    roots = [workspace / NOTES, *extra_places(workspace, extra)]
    return any(path == root or path.is_relative_to(root) for root in roots)


def is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def shown_name(path: Path, workspace: Path) -> str:
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else str(path)


def extra_places(workspace: Path, extra: Sequence[str]) -> list[Path]:
    return [Path(os.path.normpath(workspace / Path(text.strip()).expanduser())) for text in extra if text.strip()]


def _candidates(workspace: Path, extra: Sequence[str]) -> Iterator[Path]:
    for name in CURATED:
        yield workspace / name
    for place in (workspace / NOTES, *extra_places(workspace, extra)):
        if place.suffix.lower() == ".md":
            yield place
            continue
        for folder, folders, names in os.walk(place):
            folders.sort()
            for name in sorted(names):
                if name.lower().endswith(".md"):
                    yield Path(folder) / name


def _same_as_known(path: Path, known: dict[Path, MemoryFile]) -> bool:
    """Whether the file is already known. On some disks MEMORY.md and memory.md are one file."""
    if path.name not in CURATED:
        return path in known
    return any(other.name in CURATED and path.samefile(other) for other in known)
