"""Backups of the state folder: a folder of pieces named by their content, and one list of files per backup.

A piece that an earlier backup has is not stored again, so that a backup of a long transcript costs only what was added.
Everything here blocks; commands call it from their own process, also while a Gateway runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
import zstandard

from openclaw.clock import SystemClock
from openclaw.storage.base import Reason, ReasonCode
from openclaw.storage.files.disk import atomic_replace, sync_dir
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.transcript_index import unpacked

PIECE = 4 * 1024 * 1024
FORMAT = 1
DATABASES = (".db", ".sqlite")
STORE = "sessions.json"
STORE_TRIES, STORE_PAUSE_S = 100, 0.02
LEFT_OUT = frozenset({"logs", "sandboxes", "search.db", "gateway.lock", "browser", "models", "memory", "tmp"})
"""Names at the top of the state folder that can be made again or mean nothing elsewhere."""
_PIECE_NAME = re.compile("[0-9a-f]{64}")
_SIDE_FILES = ("-wal", "-shm", "-journal", ".tmp", ".db.bak")

Progress: TypeAlias = Callable[[int, int, str], None]
"""Told after each file: how many are done, how many there are, and the path."""


class BackupError(Exception):
    """Says what is wrong with a backup and what to do."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size: int
    mode: int
    sha256: str
    pieces: list[str]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """One backup: every file with its pieces."""

    id: str
    created_at: str
    version: str
    files: list[StoredFile]
    skipped: list[str] = []
    """Files that could not be read."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """``backup.json`` of the folder: how its pieces are written."""

    format: int = FORMAT
    salt: str = ""
    """Of the key that is made from the passphrase. Empty: the pieces are not encrypted."""
    check: str = ""
    """Tells a wrong passphrase from a damaged piece."""


class BackupFolder:
    """A folder that holds backups. It can be copied to another machine as it is."""

    def __init__(self, folder: Path, passphrase: str = "", *, create: bool = False) -> None:
        self.folder = folder
        if not (folder / "backup.json").exists():
            if not create:
                raise BackupError(f"There are no backups in {folder}. `openclaw backup create` makes one.")
            self._make(passphrase)
        try:
            header = msgspec.json.decode((folder / "backup.json").read_bytes(), type=_Header)
        except (OSError, msgspec.MsgspecError) as error:
            raise BackupError(f"{folder / 'backup.json'} cannot be read: {error}") from None
        if header.format != FORMAT:
            raise BackupError(f"{folder} was written by a newer version (format {header.format}).")
        self._key = self._unlock(header, passphrase)

    def _make(self, passphrase: str) -> None:
        for name in ("", "pieces", "backups"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        header = _Header()
        if passphrase:
            salt = secrets.token_hex(16)
            header = _Header(salt=salt, check=_check_of(_key_of(passphrase, salt)))
        atomic_replace(self.folder / "backup.json", msgspec.json.encode(header))

    def _unlock(self, header: _Header, passphrase: str) -> bytes:
        if not header.salt:
            if passphrase:
                # Somebody may have put them there in place of the encrypted ones.
                raise BackupError(
                    f"A passphrase is given, but the backups in {self.folder} are not encrypted. If they are meant, "
                    "leave the passphrase out."
                )
            return b""
        if not passphrase:
            raise BackupError("These backups are encrypted: give the passphrase in OPENCLAW_BACKUP_PASSPHRASE.")
        key = _key_of(passphrase, header.salt)
        if not hmac.compare_digest(_check_of(key), header.check):
            raise BackupError("The passphrase is wrong.")
        return key

    @property
    def encrypted(self) -> bool:
        return bool(self._key)

    # Making

    def create(self, state: Path, version: str, progress: Progress = lambda *_: None) -> tuple[Backup, int]:
        """Stores the state folder as it is now. Returns the backup and how many bytes its new pieces take."""
        skipped: list[str] = []
        paths = list(_paths(state, skipped))
        files: list[StoredFile] = []
        added = 0
        for number, place in enumerate(paths, start=1):
            name = str(place.relative_to(state))
            try:
                for path, mode, content in self._read(place):
                    with content as file:
                        stored, new = self._cut(path.relative_to(state), file, mode)
                    files.append(stored)
                    added += new
            except FileNotFoundError:
                pass  # It went while the Gateway worked.
            except (OSError, sqlite3.Error) as error:
                skipped.append(f"{name}: {error}")
            progress(number, len(paths), name)
        now = datetime.now(UTC)
        backup = Backup(
            id=f"{now:%Y%m%dT%H%M%S.%fZ}",
            created_at=now.isoformat(timespec="seconds"),
            version=version,
            files=files,
            skipped=skipped,
        )
        sync_dir(self.folder / "pieces")
        atomic_replace(self.folder / "backups" / backup.id, self._seal(msgspec.json.encode(backup)))
        return backup, added

    def _read(self, path: Path) -> Iterator[tuple[Path, int, BinaryIO]]:
        """Opens a file, or all files of a session store as they are at one moment."""
        if _is_store(path):
            yield from _read_store(path)
        elif path.suffix in DATABASES:
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                copy = Path(scratch) / "copy"
                _copy_database(path, copy)
                yield path, _mode(path), copy.open("rb")
        else:
            yield path, _mode(path), path.open("rb")

    def _cut(self, path: Path, file: BinaryIO, mode: int) -> tuple[StoredFile, int]:
        whole, size, added = hashlib.sha256(), 0, 0
        pieces: list[str] = []
        while block := file.read(PIECE):
            whole.update(block)
            size += len(block)
            name, new = self._put(block)
            pieces.append(name)
            added += new
        stored = StoredFile(path=path.as_posix(), size=size, mode=mode, sha256=whole.hexdigest(), pieces=pieces)
        return stored, added

    def _put(self, block: bytes) -> tuple[str, int]:
        name = self._name(block)
        place = self.folder / "pieces" / name
        if place.exists():
            return name, 0
        data = self._seal(block)
        atomic_replace(place, data)
        return name, len(data)

    # Reading

    def list(self) -> list[Backup]:
        """Every backup, oldest first."""
        names = sorted(path.name for path in (self.folder / "backups").iterdir())
        return [self.read(name) for name in names]

    def read(self, backup_id: str) -> Backup:
        try:
            data = (self.folder / "backups" / backup_id).read_bytes()
        except (OSError, ValueError):
            raise BackupError(f"There is no backup {backup_id}; `openclaw backup list` shows them.") from None
        try:
            return msgspec.json.decode(self._open(data), type=Backup)
        except (msgspec.MsgspecError, _Damaged) as error:
            raise BackupError(f"The list of backup {backup_id} is damaged: {error}") from None

    def verify(self, backup: Backup, progress: Progress = lambda *_: None) -> list[str]:
        """Reads every piece and compares every file with what was stored. Returns what is wrong."""
        problems: list[str] = []
        for number, file in enumerate(backup.files, start=1):
            whole = hashlib.sha256()
            try:
                for block in self._blocks(file):
                    whole.update(block)
                if whole.hexdigest() != file.sha256:
                    problems.append(f"{file.path}: its content is not what was stored")
            except (OSError, _Damaged) as error:
                problems.append(f"{file.path}: {error}")
            progress(number, len(backup.files), file.path)
        return problems

    def restore(self, backup: Backup, state: Path, progress: Progress = lambda *_: None) -> Path | None:
        """Makes ``state`` what it was. An older folder of that name is moved aside; its new path is returned.

        Nothing of ``state`` is touched before everything has been written and compared beside it.
        """
        state.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{state.name}-restore-", dir=state.parent))
        try:
            for number, file in enumerate(backup.files, start=1):
                self._write(file, fresh)
                progress(number, len(backup.files), file.path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)  # It may hold keys.
            raise
        for folder, _, _ in os.walk(fresh):
            Path(folder).chmod(0o700)
        aside: Path | None = None
        if state.exists() and any(state.iterdir()):
            aside = state.with_name(f"{state.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
            state.rename(aside)
        elif state.exists():
            state.rmdir()
        fresh.rename(state)
        sync_dir(state.parent)
        return aside

    def _write(self, file: StoredFile, folder: Path) -> None:
        """Writes one file of a backup below the folder. Whoever made the backup decides nothing but its content."""
        whole = hashlib.sha256()
        try:
            place = folder / file.path
            if not place.resolve().is_relative_to(folder.resolve()):
                raise BackupError(f"The backup names a file outside of its folder: {file.path}. Nothing was changed.")
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with place.open("xb") as target:
                os.fchmod(target.fileno(), file.mode & 0o700)
                for block in self._blocks(file):
                    whole.update(block)
                    target.write(block)
                target.flush()
                os.fsync(target.fileno())
        except (_Damaged, FileExistsError, NotADirectoryError, IsADirectoryError, ValueError) as error:
            raise BackupError(f"{file.path} is damaged in the backup: {error}. Nothing was changed.") from None
        if whole.hexdigest() != file.sha256:
            raise BackupError(f"{file.path} is not what was stored. Nothing was changed.")

    def _blocks(self, file: StoredFile) -> Iterator[bytes]:
        for name in file.pieces:
            if not _PIECE_NAME.fullmatch(name):
                raise _Damaged("the name of a piece is none")
            try:
                block = self._open((self.folder / "pieces" / name).read_bytes())
            except FileNotFoundError:
                raise _Damaged(f"the piece {name[:12]} is missing") from None
            if self._name(block) != name:
                raise _Damaged(f"the piece {name[:12]} has another content")
            yield block

    # Pieces

    def _name(self, block: bytes) -> str:
        """Of an encrypted piece the name tells nothing about the content either."""
        if self._key:
            return hmac.new(self._key, block, hashlib.sha256).hexdigest()
        return hashlib.sha256(block).hexdigest()

    def _seal(self, block: bytes) -> bytes:
        packed = zstandard.ZstdCompressor(level=6, write_checksum=True).compress(block)
        if not self._key:
            return packed
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(12)
        return nonce + AESGCM(self._key).encrypt(nonce, packed, None)

    def _open(self, data: bytes) -> bytes:
        if self._key:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            try:
                data = AESGCM(self._key).decrypt(data[:12], data[12:], None)
            except (InvalidTag, ValueError):
                raise _Damaged("it cannot be decrypted") from None
        try:
            return unpacked(data, PIECE * 64)
        except zstandard.ZstdError as error:
            raise _Damaged(str(error)) from None


class _Damaged(Exception):
    """A piece cannot be read."""


def _paths(state: Path, closed: list[str]) -> Iterator[Path]:
    """The files of the state folder. One path stands for all files of a session store. Links are left out.

    ``closed`` gets the folders that cannot be read.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            closed.append(f"{os.path.relpath(error.filename, state)}: {error.strerror}")

    for folder, names, files in os.walk(state, onerror=note):
        here = Path(folder)
        if here == state:
            names[:] = [name for name in names if name not in LEFT_OUT]
            files = [name for name in files if name not in LEFT_OUT]
        names[:] = [name for name in names if name != "__pycache__" and not (here / name).is_symlink()]
        plain = [here / name for name in sorted(files) if not (here / name).is_symlink()]
        kept = [path for path in plain if path.is_file() and not _is_side_file(path)]
        if any(_is_store(path) for path in kept):
            # The files of the store are looked for when it is read, because they come and go together.
            yield here / STORE
        yield from (path for path in kept if not _is_store(path))


def _is_side_file(path: Path) -> bool:
    """Logs and second names of databases, whose content is in the copy of the database."""
    return path.name.endswith(_SIDE_FILES)


def _is_store(path: Path) -> bool:
    """Whether this is a session store or one of its journals."""
    return path.parent.name == "sessions" and path.name.startswith("sessions.")


def _read_store(path: Path) -> list[tuple[Path, int, BinaryIO]]:
    """Reads a session store and its journals, of which some may not be there.

    The store takes the journal in and begins a new one. A copy of one from before that and of the other from after it
    would lose or undo what lies between. So all are read again until none has been replaced meanwhile.
    """
    for _ in range(STORE_TRIES):
        before = _store_files(path.parent)
        try:
            found = [(one, _mode(one), one.read_bytes()) for one in before]
        except FileNotFoundError:
            continue
        if _store_files(path.parent) == before:
            return [(one, mode, BytesIO(data)) for one, mode, data in found]
        time.sleep(STORE_PAUSE_S)
    raise OSError("it changes all the time; try again in a quiet moment")


def _store_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files of a session store, and which file each of them is. Journals only grow, the others are replaced."""
    files: dict[Path, tuple[int, int]] = {}
    for path in sorted(folder.glob("sessions.*")):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and not _is_side_file(path):
                files[path] = (found.st_ino, found.st_mtime_ns if path.name == STORE else 0)
    return files


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _copy_database(path: Path, copy: Path) -> None:
    """Copies a database at one moment, with what is still in its log. A Gateway may write to it meanwhile."""
    with (
        contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def _key_of(passphrase: str, salt: str) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=bytes.fromhex(salt), dklen=32, n=2**15, r=8, p=1, maxmem=2**26)


def _check_of(key: bytes) -> str:
    return hmac.new(key, b"openclaw backup", hashlib.sha256).hexdigest()


async def settle_restored(state: str) -> tuple[int, int]:
    """Ends the messages and replies that were under way when the backup was made. Returns how many there were.

    The Gateway that went on since may have answered and delivered them. ``openclaw outbox retry`` sends a reply anew.
    """
    ledger = await FileLedger.open(state, clock=SystemClock())
    try:
        rows = await ledger.unfinished()
        for row in rows:
            await ledger.finish(row.id, "expired", reason=Reason(ReasonCode.RESTORED))
        parts = await ledger.outbox_parts(("pending", "sending"), limit=1_000_000)
        for part in parts:
            await ledger.outbox_mark(part.id, "dead", error="it was not sent when the backup was made", doubts=1)
        return len(rows), len(parts)
    finally:
        await ledger.close()
