"""The files of a state folder as a backup copies them: which ones, in which order, and each at one moment.

The order makes the copy consistent while a Gateway writes. A channel's bookmark moves after its message is in the
ledger, so bookmarks are copied before the ledger. After a restore the channel asks again for the messages in between,
and the ledger knows them. A session is in the store before its first message is in the ledger, and its transcript is
written after that. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import time
from collections.abc import Container, Iterable, Mapping
from enum import IntEnum
from io import BytesIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any, BinaryIO, NamedTuple

from openclaw.sessions.keys import session_file_name
from openclaw.storage.files.store_file import entries_in
from openclaw.storage.files.transcript_index import SUFFIX

DATABASES = (".db", ".sqlite")
STORE = "sessions.json"
STORE_TRIES, STORE_PAUSE_S = 100, 0.02
COPY_PREFIX = ".copy-"
"""The beginning of the name that the copy of a database has for a moment."""
RESTORING, BEFORE_RESTORE = ".restore", "before-restore-"
"""The folders that a restore makes in a state folder which it cannot replace as a whole. See ``restore.py``."""
LEFT_OUT = frozenset(
    {
        "logs",
        "sandboxes",
        "search.db",
        "gateway.lock",
        "browser",
        "models",
        "memory",
        "tmp",
        RESTORING,
    }
)
"""Names at the top of the state folder that can be made again or mean nothing elsewhere."""
_SIDE_FILES = ("-wal", "-shm", "-journal", ".tmp", ".db.bak")
_STORE_NAME = re.compile(r"(?P<stem>.+?)\.(?:json|journal)(?:\..+)?")
_LINK = "it is a link, and a backup does not follow links: copy what it leads to yourself"
_PREPARED = ".new"
"""The ending of a bookmark that is about to replace the older one."""


class Kind(IntEnum):
    """The kinds of files in the order in which they are copied."""

    DOCUMENT = 0
    """Bookmarks, documents, the configuration, keys, and everything else that is small."""
    DATABASE = 1
    STORE = 2
    TRANSCRIPT = 3
    OTHER = 4
    """Blobs, which transcripts name, and workspaces."""


def list_files(state: Path, closed: dict[str, str]) -> dict[str, Kind]:
    """List the files of a state folder by their relative paths. Links are left out.

    One path, that of its ``sessions.json``, stands for all files of a session store, because they come and go together.
    ``closed`` gets the folders that cannot be read and the links that hide a part of the state, each with the reason.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            closed[os.path.relpath(error.filename, state)] = error.strerror or str(error)

    kinds: dict[str, Kind] = {}
    for folder, names, files in os.walk(state, onerror=note):
        here = Path(folder)
        if here == state:
            names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith(BEFORE_RESTORE)]
            files = [name for name in files if name not in LEFT_OUT]
        links = [here / name for name in (*names, *files) if (here / name).is_symlink()]
        closed |= {str(link.relative_to(state)): _LINK for link in links if _hides_state(link, state)}
        names[:] = [name for name in names if name != "__pycache__" and here / name not in links]
        stems = _store_stems(files)
        for name in sorted(files):
            path = here / name
            if (stem := _stem(name)) in stems:
                kinds[(here / f"{stem}.json").relative_to(state).as_posix()] = Kind.STORE
            elif not name.endswith(_SIDE_FILES) and path not in links and path.is_file():
                relative = path.relative_to(state)
                kind = _kind(relative)
                if not (kind is Kind.DOCUMENT and name.endswith(_PREPARED)):
                    kinds[relative.as_posix()] = kind
    return kinds


def _hides_state(link: Path, state: Path) -> bool:
    """Whether the owner put a part of the state elsewhere. Links in workspaces are an agent's and may lead anywhere."""
    path = link.relative_to(state)
    if path.parts[0] == "agents" or path.name == "openclaw.json":
        return True
    return len(path.parts) == 1 and _kind(path) is not Kind.OTHER and link.is_dir()


def _kind(path: Path) -> Kind:
    if path.suffix in DATABASES:
        return Kind.DATABASE
    if path.parts[0] == "blobs" or path.parts[0].startswith("workspace"):
        return Kind.OTHER
    if path.parent.name == "sessions" or ".jsonl" in path.name:
        return Kind.TRANSCRIPT
    return Kind.DOCUMENT


def store_files_among(paths: Iterable[str]) -> dict[str, str]:
    """Return the relative paths that belong to session stores, each with the path of its store."""
    names_in: dict[str, list[str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        names_in.setdefault(folder + slash, []).append(name)
    return {
        folder + name: f"{folder}{stem}.json"
        for folder, names in names_in.items()
        for name in names
        if (stem := _stem(name)) in _store_stems(names)
    }


def _store_stems(names: list[str]) -> set[str]:
    """Session stores have a journal next to them. Where they are is up to ``session.store``."""
    stems = {name.partition(".journal")[0] for name in names if re.search(r"\.journal(\.|$)", name)}
    return stems | ({"sessions"} if STORE in names else set())


def _stem(name: str) -> str:
    match = _STORE_NAME.fullmatch(name)
    return match["stem"] if match else ""


class OpenFile(NamedTuple):
    path: Path
    mode: int
    content: BinaryIO


def open_files(path: Path, kind: Kind, scratch: Path) -> list[OpenFile]:
    """Open a file as it is at one moment, or all files of a session store. Raises ``OSError`` or ``sqlite3.Error``.

    ``scratch`` is a folder with room for a copy of a database.
    """
    match kind:
        case Kind.STORE:
            return _read_store(path)
        case Kind.DATABASE:
            return [OpenFile(path, _mode(path), copy_database(path, scratch))]
        case _:
            return [OpenFile(path, _mode(path), path.open("rb"))]


def _read_store(path: Path) -> list[OpenFile]:
    """Read a session store and its journals, of which some may be missing.

    The store folds the journal into the snapshot and begins a new one. A copy of one from before that and of the other
    from after it would lose or undo what lies between. So all are read again until none has been replaced meanwhile. A
    snapshot that is prepared for a fold is copied too: without it, a fold that the journal notes counts as done.
    """
    for _ in range(STORE_TRIES):
        before = _store_files(path)
        try:
            copies = [(file, _mode(file), file.read_bytes()) for file in before]
        except FileNotFoundError:
            continue
        if _store_files(path) == before:
            return [OpenFile(file, mode, BytesIO(data)) for file, mode, data in copies]
        time.sleep(STORE_PAUSE_S)
    raise OSError("it changes all the time; try again in a quiet moment")


def _store_files(path: Path) -> dict[Path, tuple[int, int]]:
    """The files of a session store, and which file each of them is. Journals only grow, the others are replaced."""
    files: dict[Path, tuple[int, int]] = {}
    for file in sorted(path.parent.iterdir()):
        if _stem(file.name) == path.stem:
            with contextlib.suppress(FileNotFoundError):
                status = file.lstat()
                if stat.S_ISREG(status.st_mode):
                    files[file] = (status.st_ino, status.st_mtime_ns if file == path else 0)
    return files


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def copy_database(path: Path, scratch: Path) -> BinaryIO:
    """Copy a database at one moment, with what is still in its log. A Gateway may write to it meanwhile.

    The copy has no name once it has content, so that nobody who dies here leaves plain text next to encrypted backups.
    """
    descriptor, name = mkstemp(prefix=COPY_PREFIX, dir=scratch)
    file = os.fdopen(descriptor, "rb")
    try:
        with contextlib.closing(sqlite3.connect(name)) as target:
            target.execute("PRAGMA journal_mode = OFF")  # It needs no second file.
            target.execute("PRAGMA user_version").fetchone()  # It opens the file.
            Path(name).unlink()
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
                source.backup(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        file.close()
        raise
    return file


# Sessions and their transcripts


class StoredSession(NamedTuple):
    """A session of a store, and the names that its transcript may have."""

    key: str
    session_id: str
    names: tuple[str, ...]
    used: bool
    """Whether the entry shows that a model was asked, so that there must be a transcript."""

    def has_transcript(self, names: Container[str]) -> bool:
        """Whether the transcript is among these file names."""
        return any(name in names for name in self.names)


def sessions_of(path: str, files: Mapping[str, bytes]) -> list[StoredSession]:
    """Return the sessions of the store at ``path``. ``files`` are its files by their base names."""
    name = path.rpartition("/")[2]
    sessions: list[StoredSession] = []
    for key, entry in entries_in(files, name).items():
        session_id: Any = entry.get("sessionId") if isinstance(entry, dict) else None
        if not isinstance(session_id, str) or not session_id:
            continue
        file: Any = entry.get("sessionFile")
        named = [Path(file.strip()).name] if isinstance(file, str) and file.strip() else []
        _, is_topic, topic = key.rpartition(":topic:")
        plain = [*named, *([session_file_name(session_id, topic)] if is_topic else []), session_file_name(session_id)]
        names = tuple(dict.fromkeys(spelling for one in plain for spelling in (one, one + SUFFIX)))
        used = any(entry.get(name) for name in ("systemSent", "totalTokens", "outputTokens"))
        sessions.append(StoredSession(key, session_id, names, used))
    return sessions
