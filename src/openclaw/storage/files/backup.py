"""Backups of the state folder: a folder of pieces named by their content, and one list of files per backup.

A piece that an earlier backup has is not stored again, so that a backup of a long transcript costs only what was added.
Everything here blocks; commands call it from their own process, also while a Gateway runs. ``state_files.py`` says what
is copied and in which order, and ``restore.py`` puts a backup in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import msgspec
import zstandard

from openclaw.storage import faults
from openclaw.storage.files.disk import atomic_replace, sync_dir
from openclaw.storage.files.state_files import (
    COPY_PREFIX,
    Kind,
    StoredSession,
    list_files,
    open_files,
    sessions_of,
    store_files_among,
)
from openclaw.storage.files.transcript_index import SUFFIX, decompress

PIECE = 4 * 1024 * 1024
FORMAT = 1
MOST_PASSES = 100
"""How often a kind of files is listed at most, in case new ones come all the time."""
MOST_ROUNDS, ROUND_PAUSE_S = 5, 0.2
"""How often the session stores are copied at most while sessions have no transcript, and the pause in between."""
_PIECE_NAME = re.compile("[0-9a-f]{64}")
_BACKUP_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z")

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called after each file with the number of files done, the number there are, and the path."""


class BackupError(Exception):
    """Says what is wrong with a backup and what to do."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size: int
    mode: int
    sha256: str
    pieces: list[str]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """One backup: every file with its pieces."""

    id: str
    created_at: str
    version: str
    files: list[StoredFile]
    skipped: list[str] = []
    """The items that could not be stored: unreadable files, and sessions without a transcript."""

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
        sync_dir(self.folder.parent)

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
        """Store the state folder as it is now. Return the backup and how many bytes its new pieces take."""
        with self._swept():
            return self._create(state, version, progress)

    def _create(self, state: Path, version: str, progress: Progress) -> tuple[Backup, int]:
        copy = _Copy(self, state, progress)
        copy.run()
        now = datetime.now(UTC)
        backup = Backup(
            id=f"{now:%Y%m%dT%H%M%S.%fZ}",
            created_at=now.isoformat(timespec="seconds"),
            version=version,
            files=copy.files(),
            skipped=copy.problems(),
        )
        sync_dir(self.folder / "pieces")
        atomic_replace(self.folder / "backups" / backup.id, self._seal(msgspec.json.encode(backup)))
        faults.point("backup.stored")
        return backup, copy.added

    @contextlib.contextmanager
    def _swept(self) -> Generator[None]:
        """Remove what a killed backup left, unless another one is being made, whose files they may be."""
        with (self.folder / "backup.json").open("rb") as header:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(header, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in (*self.folder.glob(f"{COPY_PREFIX}*"), *self.folder.glob("*/*.tmp")):
                    left.unlink(missing_ok=True)
            fcntl.flock(header, fcntl.LOCK_SH)
            yield

    def store(self, path: Path, file: BinaryIO, mode: int) -> tuple[StoredFile, int]:
        """Store a file in pieces. Return it and how many bytes its new pieces take."""
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
        target = self.folder / "pieces" / name
        if target.exists():
            return name, 0
        data = self._seal(block)
        atomic_replace(target, data)
        return name, len(data)

    # Reading

    def list(self) -> list[Backup]:
        """Every backup, oldest first."""
        names = [path.name for path in (self.folder / "backups").iterdir()]
        # A backup that was killed leaves a part of its list under another name.
        return [self.read(name) for name in sorted(filter(_BACKUP_ID.fullmatch, names))]

    def read(self, backup_id: str) -> Backup:
        try:
            data = (self.folder / "backups" / backup_id).read_bytes()
        except (OSError, ValueError):
            raise BackupError(f"Backup {backup_id} does not exist; `openclaw backup list` shows all backups.") from None
        try:
            return msgspec.json.decode(self._open(data), type=Backup)
        except (msgspec.MsgspecError, _Damaged) as error:
            raise BackupError(f"The list of backup {backup_id} is damaged: {error}") from None

    def verify(self, backup: Backup, progress: Progress = lambda *_: None) -> list[str]:
        """Read every piece, compare every file with what was stored, and look for sessions without a transcript.

        Return what is wrong.
        """
        problems = [f"{line} (when the backup was made)" for line in backup.skipped]
        store_of = store_files_among(file.path for file in backup.files)
        stores: dict[str, dict[str, bytes]] = {}
        for number, file in enumerate(backup.files, start=1):
            whole, content = hashlib.sha256(), bytearray()
            store = store_of.get(file.path)
            try:
                for block in self._blocks(file):
                    whole.update(block)
                    if store is not None:
                        content += block
                if whole.hexdigest() != file.sha256:
                    problems.append(f"{file.path}: its content is not what was stored")
                elif store is not None:
                    stores.setdefault(store, {})[file.name] = bytes(content)
            except (OSError, _Damaged) as error:
                problems.append(f"{file.path}: {error}")
            progress(number, len(backup.files), file.path)
        for path, files in stores.items():
            lost = without_transcript(sessions_of(path, files), backup.files)
            problems += [line for line in map(_lost_line, lost) if line not in backup.skipped]
        return problems

    def extract(self, backup: Backup, folder: Path, progress: Progress = lambda *_: None) -> None:
        """Write all files of a backup below an empty folder, compare them, and make them durable."""
        for number, file in enumerate(backup.files, start=1):
            self._write(file, folder)
            progress(number, len(backup.files), file.path)
        for path, _, _ in os.walk(folder):
            Path(path).chmod(0o700)
            sync_dir(Path(path))

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
        compressed = zstandard.ZstdCompressor(level=6, write_checksum=True).compress(block)
        if not self._key:
            return compressed
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(12)
        return nonce + AESGCM(self._key).encrypt(nonce, compressed, None)

    def _open(self, data: bytes) -> bytes:
        if self._key:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            try:
                data = AESGCM(self._key).decrypt(data[:12], data[12:], None)
            except (InvalidTag, ValueError):
                raise _Damaged("it cannot be decrypted") from None
        try:
            return decompress(data, PIECE * 64)
        except zstandard.ZstdError as error:
            raise _Damaged(str(error)) from None


class _Damaged(Exception):
    """A piece cannot be read."""


class _Copied(NamedTuple):
    """The stored copy of a path: the file itself, or all files of a session store."""

    files: list[StoredFile]
    kind: Kind
    identity: tuple[int, int, int, int]


class _Copy:
    """The files of a backup while it is made.

    Conversations are renamed at any time: compressed, resumed, archived. So each kind of files is listed again until a
    pass finds nothing new, and a session of the store whose transcript is not there makes the store be copied again.
    """

    def __init__(self, folder: BackupFolder, state: Path, progress: Progress) -> None:
        self._folder = folder
        self._state = state
        self._progress = progress
        self._copied: dict[str, _Copied] = {}
        self._refused: dict[str, str] = {}
        self._closed: dict[str, str] = {}
        self._listed: dict[str, Kind] = {}
        """The files of the last listing."""
        self._sessions: dict[str, list[StoredSession]] = {}
        """The sessions of each store."""
        self._lost: list[StoredSession] = []
        self.added = 0

    def run(self) -> None:
        self._copy(Kind.DOCUMENT)
        self._copy(Kind.DATABASE)
        for number in range(MOST_ROUNDS):
            if number:
                # Sessions were deleted after the store was copied, or are being deleted: files first, then the entry.
                time.sleep(ROUND_PAUSE_S)
                self._forget_changed()
            self._copy(Kind.STORE)
            self._copy(Kind.TRANSCRIPT, Kind.OTHER)
            self._lost = self._without_transcript()
            if not self._lost:
                break
        self._drop_older_spellings()

    def files(self) -> list[StoredFile]:
        return [file for copied in self._copied.values() for file in copied.files]

    def problems(self) -> list[str]:
        refused = {**self._closed, **self._refused}
        return [*(f"{path}: {problem}" for path, problem in refused.items()), *map(_lost_line, self._lost)]

    def _copy(self, *kinds: Kind) -> None:
        """Copy all files of these kinds. Files newer than the copies of another kind are not searched for."""
        for _ in range(MOST_PASSES):
            self._listed = list_files(self._state, self._closed)
            faults.point("backup.listed")
            new = [path for path, kind in self._listed.items() if kind in kinds and self._is_new(path)]
            for path in sorted(new, key=lambda path: (self._listed[path], path)):
                self._copy_one(path, self._listed[path])
            if not new:
                return

    def _is_new(self, path: str) -> bool:
        return path not in self._copied and path not in self._refused and not self._is_renamed(path)

    def _copy_one(self, path: str, kind: Kind) -> None:
        source = self._state / path
        try:
            identity = _identity(source) if kind is not Kind.STORE else (0, 0, 0, 0)
            files: list[StoredFile] = []
            contents: dict[str, bytes] = {}
            for opened in open_files(source, kind, self._folder.folder):
                with opened.content as content:
                    if kind is Kind.STORE:
                        contents[opened.path.name] = content.read()
                        content.seek(0)
                    stored, added = self._folder.store(opened.path.relative_to(self._state), content, opened.mode)
                files.append(stored)
                self.added += added
        except FileNotFoundError:
            return  # It was renamed or deleted. The next listing has its new name.
        except (OSError, sqlite3.Error) as error:
            self._refused[path] = str(error)
            return
        if kind is Kind.STORE:
            self._sessions[path] = sessions_of(path, contents)
        self._copied[path] = _Copied(files, kind, identity)
        self._progress(len(self._copied), max(len(self._listed), len(self._copied)), path)
        faults.point("backup.copied")

    def _is_renamed(self, path: str) -> bool:
        """Whether this is a transcript that was archived after it had been copied under its own name."""
        plain, mark, rest = path.partition(".jsonl.")
        if not mark or rest == SUFFIX[1:]:
            return False
        original = f"{plain}.jsonl{SUFFIX if rest.endswith(SUFFIX) else ''}"
        copied = self._copied.get(original)
        if copied is None or original in self._listed:
            return False
        try:
            return _identity(self._state / path)[:2] == copied.identity[:2]
        except FileNotFoundError:
            return False

    def _without_transcript(self) -> list[StoredSession]:
        sessions = [session for sessions in self._sessions.values() for session in sessions]
        return without_transcript(sessions, self.files())

    def _forget_changed(self) -> None:
        """Forget the stores, and the transcripts that are older than the next copy of a store."""
        for path, copied in list(self._copied.items()):
            if copied.kind is Kind.STORE:
                del self._copied[path]
            elif copied.kind is Kind.TRANSCRIPT and path in self._listed:
                try:
                    changed = _identity(self._state / path) != copied.identity
                except FileNotFoundError:
                    continue
                if changed:
                    del self._copied[path]

    def _drop_older_spellings(self) -> None:
        """Drop the copy of a transcript that was compressed or decompressed later and copied again."""
        order = list(self._copied)
        for path in order:
            plain, compressed = path.removesuffix(SUFFIX), f"{path.removesuffix(SUFFIX)}{SUFFIX}"
            if path != compressed or self._copied[path].kind is not Kind.TRANSCRIPT or plain not in self._copied:
                continue
            gone = [spelling for spelling in (plain, compressed) if spelling not in self._listed]
            if gone:
                del self._copied[min(gone, key=order.index)]


def _identity(path: Path) -> tuple[int, int, int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def without_transcript(sessions: Sequence[StoredSession], files: Sequence[StoredFile]) -> list[StoredSession]:
    """Return the sessions whose transcript is not among the files although there must be one."""
    names = {file.name for file in files}
    archived = {name.partition(".jsonl.")[0] for name in names if ".jsonl." in name}
    return [
        session
        for session in sessions
        if not session.has_transcript(names)
        and (session.used or any(name.removesuffix(".jsonl") in archived for name in session.names))
    ]


def _lost_line(session: StoredSession) -> str:
    return f"session {session.key}: its transcript {session.names[0]} is missing"


def _key_of(passphrase: str, salt: str) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=bytes.fromhex(salt), dklen=32, n=2**15, r=8, p=1, maxmem=2**26)


def _check_of(key: bytes) -> str:
    return hmac.new(key, b"openclaw backup", hashlib.sha256).hexdigest()
