"""Finds and reads the files of an agent's memory: MEMORY.md, the notes under memory/, and configured extra paths.

Links are not followed, so that a note cannot lead out of the workspace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from openclaw.opener import PathOpener, PathRefused

CURATED = ("MEMORY.md", "memory.md")
NOTES = "memory"
MOST_FILES = 5000
LARGEST_FILE = 4 << 20
_DEEPEST = 16


class MemoryFile(msgspec.Struct, frozen=True):
    name: str
    """The name that the model sees: relative inside the workspace, absolute elsewhere."""
    path: Path
    root: Path
    """The folder that the file may not lead out of."""
    mtime_ns: int
    size: int

    def read(self) -> bytes:
        """Raises ``PathRefused`` if it is a link by now."""
        with PathOpener(self.root, confine=True, links=False).open_read(str(self.path)) as file:
            return file.read(LARGEST_FILE)


def memory_files(workspace: Path, extra: Sequence[str] = ()) -> list[MemoryFile]:
    """All memory files. It blocks."""
    found: dict[Path, MemoryFile] = {}
    curated: set[tuple[int, int]] = set()
    for root, path in _candidates(workspace, extra):
        if len(found) >= MOST_FILES:
            break
        try:
            status = path.lstat()
        except OSError:
            continue
        if path in found or status.st_size > LARGEST_FILE or (root == workspace and status.st_nlink > 1):
            continue
        if path.name in CURATED:
            # On some disks MEMORY.md and memory.md are one file.
            if (status.st_dev, status.st_ino) in curated:
                continue
            curated.add((status.st_dev, status.st_ino))
        found[path] = MemoryFile(shown_name(path, workspace), path, root, status.st_mtime_ns, status.st_size)
    return list(found.values())


def memory_root(path: Path, workspace: Path, extra: Sequence[str] = ()) -> Path | None:
    """The folder that memory_get may not leave for this path. None if it may not read it."""
    if path.suffix.lower() != ".md":
        return None
    if (path.parent == workspace and path.name in CURATED) or path.is_relative_to(workspace / NOTES):
        return workspace
    return next((root for root, place in _extra_places(workspace, extra) if path.is_relative_to(place)), None)


def shown_name(path: Path, workspace: Path) -> str:
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else str(path)


def _extra_places(workspace: Path, extra: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Each configured place after the folder that it may not lead out of. Its owner may configure a link."""
    for text in extra:
        if not text.strip():
            continue
        place = Path(os.path.normpath(workspace / Path(text.strip()).expanduser()))
        if place.is_relative_to(workspace):
            yield workspace, place
        else:
            yield (place.parent if place.suffix.lower() == ".md" else place), place


def _candidates(workspace: Path, extra: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """The root and the path of each file that may be one."""
    for root, name in _files_in(workspace, workspace, depth=0):
        if name.name in CURATED:
            yield root, name
    for root, place in ((workspace, workspace / NOTES), *_extra_places(workspace, extra)):
        if place.suffix.lower() == ".md":
            yield from ((root, path) for root, path in _files_in(root, place.parent, depth=0) if path == place)
        else:
            yield from _files_in(root, place, depth=_DEEPEST)


def _files_in(root: Path, folder: Path, depth: int) -> Iterator[tuple[Path, Path]]:
    names: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, PathRefused):
        names = [*PathOpener(root, confine=True, links=False).scan(str(folder))]
    for name, kind in names:
        if kind == "file" and name.lower().endswith(".md"):
            yield root, folder / name
    for name, kind in names if depth else ():
        if kind == "folder":
            yield from _files_in(root, folder / name, depth - 1)
