"""Keeps the state folder to its owner: folders 0700 and files 0600, also those that something else made wider."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

import msgspec

MOST_NAMED = 5
"""How many of the files that were too wide are named in a sentence."""
MOST_LISTED = 500
_DATA = (".json", ".jsonl", ".journal", ".db", ".sqlite", ".bak", ".log", ".zst")
"""Endings of files that nobody runs. Other files stay executable for their owner."""
_NOT_OURS = ("workspace", "sandboxes")
"""Folders that agents fill. They are closed themselves, and what is in them stays as it is."""


class Change(msgspec.Struct, frozen=True):
    path: str
    before: int
    after: int


class Narrowed(msgspec.Struct, kw_only=True):
    """What others could read or write until now."""

    count: int = 0
    changes: list[Change] = []
    """The first of them."""
    failed: list[str] = []

    def __str__(self) -> str:
        named = [f"{change.path} ({change.before:04o})" for change in self.changes[:MOST_NAMED]]
        more = f" and {self.count - len(named)} more" if self.count > len(named) else ""
        return f"{', '.join(named)}{more}"


def narrow(state_dir: str) -> Narrowed:
    """Takes away the rights of group and others on everything in the state folder. Links are not followed. Blocking."""
    narrowed = Narrowed()
    for folder, path, name, wanted in _entries(state_dir):
        _narrow(folder, path, name, wanted, narrowed)
    return narrowed


def wide_files(state_dir: str) -> Narrowed:
    """Lists what ``narrow`` would close to others, and changes nothing. Blocking."""
    found = Narrowed()
    for folder, path, name, wanted in _entries(state_dir):
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=folder is None)
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISLNK(status.st_mode) and mode & ~wanted & 0o077:
                found.count += 1
                if len(found.changes) < MOST_LISTED:
                    found.changes.append(Change(path, mode, mode & wanted))
    return found


def _entries(state_dir: str) -> Iterator[tuple[int | None, str, str, int]]:
    """The open folder, the path, the name and the most rights of everything in the state folder, itself first."""
    yield None, state_dir, state_dir, 0o700
    for place, folders, files, fd in os.fwalk(state_dir, follow_symlinks=False, onerror=lambda error: None):
        for name in folders:
            yield fd, f"{place}/{name}", name, 0o700
        for name in files:
            yield fd, f"{place}/{name}", name, 0o600 if name.endswith(_DATA) else 0o700
        if place == state_dir:
            folders[:] = [name for name in folders if not name.startswith(_NOT_OURS)]


def _narrow(folder: int | None, path: str, name: str, wanted: int, narrowed: Narrowed) -> None:
    # A file that is gone again was replaced by a newer one, which is private from its beginning.
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=folder is None)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode) or not mode & ~wanted & 0o777:
            return
        try:
            no_follow = os.O_NOFOLLOW if folder is not None else 0
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | no_follow, dir_fd=folder)
            try:
                os.fchmod(fd, mode & wanted)
            finally:
                os.close(fd)
        except OSError as error:
            narrowed.failed.append(f"{path}: {error.strerror}")
            return
        if mode & 0o077:
            narrowed.count += 1
            if len(narrowed.changes) < MOST_LISTED:
                narrowed.changes.append(Change(path, mode, mode & wanted))
