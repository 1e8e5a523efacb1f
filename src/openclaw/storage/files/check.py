"""Checks of a state folder: what of it is damaged or missing, and what others than its owner may read.

Both can be repaired: damage while no Gateway runs, and rights at every start. Folders get 0700 and files 0600.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from openclaw.clock import Clock
from openclaw.findings import Finding
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import is_blank
from openclaw.storage.files.disk import atomic_replace
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import second_name
from openclaw.storage.files.session_store import FileSessionStore
from openclaw.storage.files.store_file import parse_store
from openclaw.storage.files.transcript_index import scan

MOST_NAMED = 20
"""Damaged transcripts that are named one by one. The others are counted."""
_BY_REPAIR = "`openclaw doctor --fix`, or the next start of the Gateway, brings it back"
_KEPT = ("*.damaged-*", "*.corrupt-*")


def find_damage(state: Path, config: Path) -> Iterator[Finding]:
    """Looks at every store and changes nothing. It reads all transcripts, so it takes a while."""
    for path, copy in _copies(state, config):
        if copy.exists() and not path.exists():
            yield _lost(f"{path} is gone; {copy.name} is there", _BY_REPAIR)
    for path, copy in _blank_files(state, config):
        yield _lost(f"{path} is empty or full of zeros; {copy.name} is there", _BY_REPAIR)
    yield from _ledger(state / "ledger.db")
    for store in sorted(state.glob("agents/*/sessions/sessions.json")):
        if parse_store(store.read_bytes()) is None:
            yield _lost(f"{store} does not hold a JSON object", _BY_REPAIR)
    yield from _transcripts(state)
    for pattern in _KEPT:
        for damaged_file in sorted([*state.glob(pattern), *state.glob(f"agents/*/sessions/{pattern}")]):
            if not damaged_file.name.endswith(("-wal", "-shm")):
                fix = "delete it when you no longer want to look into it"
                yield Finding("damage", "warn", f"{damaged_file} is a damaged file that was replaced", fix)


def _lost(text: str, fix: str) -> Finding:
    return Finding("damage", "critical", text, fix, repairable=True)


def _copies(state: Path, config: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the files that have a copy, each with its copy."""
    yield config, config.with_name(f"{config.name}.last-good")
    yield state / "ledger.db", second_name(state / "ledger.db")
    for folder in sorted(state.glob("agents/*/sessions")):
        store = folder / "sessions.json"
        backup = folder / "sessions.json.bak"
        yield store, backup if backup.exists() else folder / "sessions.journal.prev"
    for copy in sorted(state.glob("channels/*/*/*.bak")):
        yield copy.with_suffix(""), copy


def _blank_files(state: Path, config: Path) -> Iterator[tuple[Path, Path]]:
    """Yields documents and bookmarks that a power cut has emptied, each with its copy."""
    for pattern in ("*.json.bak", "*/*.json.bak", "channels/*/*/*.bak"):
        for copy in sorted(state.glob(pattern)):
            path = copy.with_suffix("")
            if path != config and path.is_file() and is_blank(path.read_bytes()) and not is_blank(copy.read_bytes()):
                yield path, copy


def _ledger(path: Path) -> Iterator[Finding]:
    if not path.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        fix = "`openclaw doctor --fix`, or the next start of the Gateway, takes over what can be read"
        yield _lost(f"{path} is damaged: {verdict}", fix)


def _transcripts(state: Path) -> Iterator[Finding]:
    damaged = 0
    for path in sorted(state.glob("agents/*/sessions/*.jsonl")):
        try:
            warnings = scan(path).warnings
        except OSError as error:
            warnings = [str(error)]
        damaged += bool(warnings)
        if warnings and damaged <= MOST_NAMED:
            fix = "nothing needs to be done: what can be read is used, and the file stays as it is"
            yield Finding("damage", "warn", f"{path}: {'; '.join(warnings[:5])}", fix)
    if damaged > MOST_NAMED:
        yield Finding("damage", "warn", f"{damaged - MOST_NAMED} more transcripts are damaged in places", "")


async def repair(
    state: Path, config: Path, clock: Clock, *, store_template: str | None, agent_ids: Sequence[str]
) -> list[str]:
    """Mends what a start of the Gateway would mend, and says what it did. No Gateway may run meanwhile."""
    repairs = Repairs()
    ledger = await FileLedger.open(str(state), clock=clock, repairs=repairs)
    await ledger.close()
    sessions = await FileSessionStore.open(
        str(state), clock=clock, store_template=store_template, agent_ids=agent_ids, repairs=repairs
    )
    await sessions.flush()
    await sessions.close()
    done = repairs.take()
    for copy in state.glob("channels/*/*/*.bak"):
        bookmark = copy.with_suffix("")
        if not bookmark.exists():
            shutil.copy2(copy, bookmark)
            done.append(f"{bookmark} was gone. It was restored from {copy.name}.")
    for path, copy in list(_blank_files(state, config)):
        atomic_replace(path, copy.read_bytes())
        done.append(f"{path} was empty or full of zeros. It was restored from {copy.name}.")
    return done


# Rights

MOST_PATHS_NAMED = 5
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

    def note(self, path: str, before: int, after: int) -> None:
        self.count += 1
        if len(self.changes) < MOST_LISTED:
            self.changes.append(Change(path, before, after))

    def __str__(self) -> str:
        named = [f"{change.path} ({change.before:04o})" for change in self.changes[:MOST_PATHS_NAMED]]
        more = f" and {self.count - len(named)} more" if self.count > len(named) else ""
        return f"{', '.join(named)}{more}"


def narrow(state_dir: str) -> Narrowed:
    """Takes away the rights of group and others on everything in the state folder. Links are not followed. Blocking."""
    narrowed = Narrowed()
    for folder, path, name, mode, private_mode in _entries(state_dir):
        if not mode & ~private_mode & 0o777:
            continue
        try:
            no_follow = os.O_NOFOLLOW if folder is not None else 0
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | no_follow, dir_fd=folder)
            try:
                os.fchmod(fd, mode & private_mode)
            finally:
                os.close(fd)
        except FileNotFoundError:
            continue  # It was replaced by a newer file, which is private from its beginning.
        except OSError as error:
            narrowed.failed.append(f"{path}: {error.strerror}")
            continue
        if mode & 0o077:
            narrowed.note(path, mode, mode & private_mode)
    return narrowed


def wide_files(state_dir: str) -> Narrowed:
    """Lists what ``narrow`` would close to others, and changes nothing. Blocking."""
    narrowed = Narrowed()
    for _, path, _, mode, private_mode in _entries(state_dir):
        if mode & ~private_mode & 0o077:
            narrowed.note(path, mode, mode & private_mode)
    return narrowed


def _entries(state_dir: str) -> Iterator[tuple[int | None, str, str, int, int]]:
    """Yields everything in the state folder but links, itself first.

    Each comes with the open folder, its path, its name there, its rights, and the most rights it should have.
    """

    def found(folder: int | None, path: str, name: str, wanted: int) -> Iterator[tuple[int | None, str, str, int, int]]:
        with contextlib.suppress(OSError):  # It may be gone again.
            mode = os.stat(name, dir_fd=folder, follow_symlinks=folder is None).st_mode
            if not stat.S_ISLNK(mode):
                yield folder, path, name, stat.S_IMODE(mode), wanted

    yield from found(None, state_dir, state_dir, 0o700)
    for path, folders, files, fd in os.fwalk(state_dir, follow_symlinks=False, onerror=lambda error: None):
        for name in folders:
            yield from found(fd, f"{path}/{name}", name, 0o700)
        for name in files:
            yield from found(fd, f"{path}/{name}", name, 0o600 if name.endswith(_DATA) else 0o700)
        if path == state_dir:
            folders[:] = [name for name in folders if not name.startswith(_NOT_OURS)]
