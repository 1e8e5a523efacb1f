"""Files that last: appended to by many at once, or replaced as a whole.

``AppendFile`` and ``Disk`` are for files that only grow, whose syncs are shared; ``atomic_replace`` is for all others.
On them are built the blobs (``FileBlobStore``) and the documents (``FileDocuments``). A ``RebuildableDatabase`` is the
opposite: it may be lost at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import queue
import re
import secrets
import sqlite3
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from openclaw.config.store import exclusive
from openclaw.paths import make_private_dir
from openclaw.storage import faults
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import DocumentChanged, StoredDocument, Version

log = logging.getLogger(__name__)
# Darwin has no fdatasync. fsync does the same and more.
_sync_data = getattr(os, "fdatasync", os.fsync)
T = TypeVar("T")
_Then: TypeAlias = Callable[[OSError | None], None]
_Work: TypeAlias = Callable[[], None]
Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"
"""A future with its result or its error."""
_MOST_THREADS = 4
"""Parallel syncs share the commits of the file system: 100 files take 12 ms instead of 200."""
BUSY_S = 30.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Disk:
    """The threads that make appended files durable. Requests that come during a file's sync share the next one."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._asked: Batch[_Work] = Batch(self._hand_on)
        self._to_make: deque[AppendFile] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def sync(self, file: AppendFile, written: int, then: _Then) -> None:
        """Calls ``then`` in a disk thread when the file's first ``written`` appends are on disk."""
        if self._closed:
            raise RuntimeError("the store is closed; nothing more can be made durable")
        self._asked.add(lambda: then(file.sync_now(written)))

    def make(self, file: AppendFile) -> None:
        """Creates, in a disk thread, a file that is soon written to. Creating takes ten times as long as writing."""
        self._to_make.append(file)
        if len(self._to_make) == 1 and not self._closed:
            self._asked.add(self._make_all)

    async def close(self) -> None:
        self._closed = True
        self._asked.now()
        for _ in self._threads:
            self._wanted.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads.clear()

    def _hand_on(self, jobs: list[_Work]) -> None:
        for work in jobs:
            self._wanted.put(work)
        needed = min(_MOST_THREADS, self._wanted.qsize())
        while len(self._threads) < needed:
            thread = threading.Thread(target=self._work, name=f"openclaw-disk-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_all(self) -> None:
        """Creates the files in one thread, because threads that create files in one folder wait for each other.

        One sync of the folder serves all its new files.
        """
        made: dict[Path, list[Callable[[], None]]] = {}
        with contextlib.suppress(IndexError):  # The deque is empty. Another thread may have taken the last file.
            while True:
                file = self._to_make.popleft()
                if (named := file.open_early()) is not None:
                    made.setdefault(file.path.parent, []).append(named)
        for folder, files in made.items():
            with contextlib.suppress(OSError):  # The sync of each file tries again and reports the error.
                sync_dir(folder)
                for named in files:
                    named()

    def _work(self) -> None:
        while (work := self._wanted.get()) is not None:
            work()


def settle(*outcomes: Outcome) -> None:
    """Tells the event loop the outcomes, from another thread."""

    def tell() -> None:
        for future, result, error in outcomes:
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    # After the loop has closed, nobody waits for the futures.
    with contextlib.suppress(RuntimeError):
        outcomes[0][0].get_loop().call_soon_threadsafe(tell)


class _Appended(NamedTuple):
    """An append that no sync has confirmed yet."""

    number: int
    offset: int
    data: bytes


class AppendFile:
    """A file that only grows. The first append opens it. After a torn last line, an append begins a new line.

    Only the event loop's thread appends. ``sync_now`` runs in the disk's threads.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._fd = -1
        self._size = 0
        self._torn = False
        self._written = 0
        self._synced = 0
        self._named_on_disk = False
        self._syncing = 0
        self._guard = threading.Lock()
        self._identity: tuple[int, int] | None = None
        """Which file the name stood for when it was opened."""
        self._part_left: _Tail | None = None
        self._unsynced: deque[_Appended] = deque()
        self.sync_failed = False
        """Whether the last sync failed. The next one writes the data again first."""

    def __del__(self) -> None:
        self.close()

    @property
    def busy(self) -> bool:
        return self._syncing > 0

    def look(self) -> int:
        """Returns the size of the file. Opens it if it is not open, and creates it if it is missing.

        What a failed append left is removed first. Raises ``OSError`` if that fails again.
        """
        status = os.fstat(self._fd) if self._fd >= 0 else None
        if status is None or status.st_nlink == 0:
            status = self._open()
        if self._part_left is not None:
            self._part_left.cut_off(self._fd)
            self._part_left = None
            status = os.fstat(self._fd)
        size = status.st_size
        if size != self._size:
            self._size = size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        return size

    def put_back(self) -> bool:
        """Writes the file again, byte for byte, if somebody removed it while it was open. Returns whether it did."""
        if self._fd < 0 or os.fstat(self._fd).st_nlink > 0 or self.path.exists():
            return False
        put_in_place(write_temporary(self.path, _blocks_of(self._fd)), self.path)
        self._open()
        return True

    def append(self, data: bytes, *, looked: bool = False) -> int:
        """Writes ``data`` at the end and returns its offset. An error leaves the file as it was.

        ``looked`` says that the caller has called ``look`` in this step of the event loop.
        """
        faults.write(self.path)
        if not looked:
            self.look()
        torn = self._torn
        if torn:
            data = b"\n" + data
        try:
            self._size = append_whole(self._fd, data)
        except _PartLeft as error:
            self._part_left = error.tail
            raise
        self._torn = not data.endswith(b"\n")
        offset = self._size - len(data)
        self._unsynced.append(_Appended(self._written + 1, offset, data))
        self._written += 1
        return offset + torn

    @property
    def is_durable(self) -> bool:
        """True when everything that was appended is on disk."""
        return self._synced >= self._written

    async def sync(self) -> None:
        if not self.is_durable:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self.sync_then(lambda: settle((done, None, None)), done)

    async def sync_then(self, then: Callable[[], None], done: asyncio.Future[T]) -> T:
        """Makes the file durable, calls ``then`` in a disk thread, and returns the result of ``done``.

        ``then`` sees to it that ``done`` gets its result. If the file cannot be made durable, ``then`` is not called
        and ``done`` gets the error.
        """
        self._syncing += 1
        try:
            self._disk.sync(self, self._written, lambda error: then() if error is None else settle((done, None, error)))
            return await done
        finally:
            self._syncing -= 1

    def sync_now(self, size: int | None = None) -> OSError | None:
        """Makes the first ``size`` appends durable (None: all), in the calling thread. Returns the error, if any."""
        try:
            with self._guard:
                written = self._written
                if self._synced >= (written if size is None else size):
                    return None
                self._make_durable()
                self._synced = max(self._synced, written)
                while self._unsynced and self._unsynced[0].number <= written:
                    self._unsynced.popleft()
        except OSError as error:
            return error
        return None

    def _make_durable(self) -> None:
        try:
            if self.sync_failed:
                self._write_again()
            faults.sync(self.path)
            if self._fd >= 0:
                _sync_data(self._fd)
            else:
                # The file was closed meanwhile. Any descriptor of it flushes all its data.
                with self.path.open("rb") as file:
                    os.fsync(file.fileno())
        except OSError:
            self.sync_failed = True
            raise
        self.sync_failed = False
        if not self._named_on_disk:
            sync_dir(self.path.parent)
            self._named_on_disk = True

    def _write_again(self) -> None:
        """Write again, at its offset, everything that no sync has confirmed.

        After a failed sync the kernel counts the pages as clean and may have dropped them. A second sync alone would
        succeed without them.
        """
        descriptor = self._open_for_rewrite()
        try:
            for append in list(self._unsynced):
                written = 0
                while written < len(append.data):
                    written += os.pwrite(descriptor, memoryview(append.data)[written:], append.offset + written)
        finally:
            os.close(descriptor)

    def _open_for_rewrite(self) -> int:
        """Open the same file without ``O_APPEND``, because with it Linux writes at the end whatever the offset is."""
        # The name may be that of a newer file by now: a journal is renamed while its last sync is under way.
        by_descriptor = [f"/proc/self/fd/{self._fd}"] if self._fd >= 0 else []
        for name in (*by_descriptor, str(self.path)):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) == self._identity:
                    return descriptor
                os.close(descriptor)
        raise OSError(errno.EIO, "its last sync failed, and another file has its name now", str(self.path))

    def close(self) -> None:
        with self._guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def open_early(self) -> Callable[[], None] | None:
        """Opens the file in a disk thread, unless an append has opened it already.

        If it opened the file, it returns a function to call when the file's name in the folder is on disk.
        """
        if self._fd >= 0:
            return None
        try:
            fd = _open_or_make(self.path)
        except OSError:
            return None  # The first append meets the same error and raises it.
        with self._guard:
            if self._fd < 0:
                self._use(fd)
                return lambda: self._note_named(fd)
        os.close(fd)
        return None

    def _note_named(self, fd: int) -> None:
        with self._guard:
            self._named_on_disk = self._named_on_disk or self._fd == fd

    def _open(self) -> os.stat_result:
        fd = _open_or_make(self.path)
        with self._guard:
            before = self._fd
            status = self._use(fd)
        if before >= 0:
            os.close(before)
        self._size = -1
        self._named_on_disk = self._named_on_disk and status.st_size > 0
        return status

    def _use(self, fd: int) -> os.stat_result:
        self._fd, status = fd, os.fstat(fd)
        identity = status.st_dev, status.st_ino
        if identity != self._identity:  # What was written to another file belongs to that one.
            self._identity, self._part_left = identity, None
            self._unsynced.clear()
        return status


class _Tail(NamedTuple):
    """The bytes that the last append left at the end of a file."""

    start: int
    end: int

    def cut_off(self, fd: int) -> None:
        if os.fstat(fd).st_size == self.end:  # Otherwise somebody else has written after it.
            os.ftruncate(fd, self.start)


class _PartLeft(OSError):
    """The disk took a part of an append, and that part could not be removed either."""

    def __init__(self, error: OSError, tail: _Tail) -> None:
        super().__init__(error.errno, error.strerror)
        self.tail = tail


def append_whole(fd: int, data: bytes) -> int:
    """Write all of ``data`` at the end of a file opened with ``O_APPEND``, and return the offset after it.

    If the disk takes only a part, that part is removed before the error is raised: the caller repeats the whole append,
    and the complete lines of the part would be there twice.
    """
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:] if written else data)
    except OSError as error:
        if written:
            end = os.lseek(fd, 0, os.SEEK_CUR)
            tail = _Tail(end - written, end)
            try:
                tail.cut_off(fd)
            except OSError:
                raise _PartLeft(error, tail) from error
        raise
    return os.lseek(fd, 0, os.SEEK_CUR)  # Another program may have written just before.


def _blocks_of(fd: int) -> Iterator[bytes]:
    offset = 0
    while block := os.pread(fd, 1 << 20, offset):
        yield block
        offset += len(block)


def _open_or_make(path: Path) -> int:
    how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, how, 0o600)
    except FileNotFoundError:
        make_private_dir(str(path.parent))
        return os.open(path, how, 0o600)


def atomic_replace(path: Path, data: bytes) -> None:
    """Replaces a file. Readers see the old one or the new one, never a part. It is on disk when this returns."""
    prepared = write_temporary(path, [data])
    try:
        put_in_place(prepared, path)
    except OSError:
        prepared.unlink(missing_ok=True)
        raise


def write_temporary(path: Path, blocks: Iterable[bytes]) -> Path:
    """Writes a new private file next to ``path`` and makes it durable. An error leaves nothing behind."""
    faults.write(path)
    make_private_dir(str(path.parent))
    prepared = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        prepared.unlink(missing_ok=True)
        raise
    return prepared


def put_in_place(prepared: Path, path: Path) -> None:
    prepared.replace(path)
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Batch(Generic[T]):
    """Collects the items of one step of the event loop and hands them on together at its end."""

    def __init__(self, hand_on: Callable[[list[T]], None]) -> None:
        self._hand_on = hand_on
        self._items: list[T] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T) -> None:
        if not self._items:
            asyncio.get_running_loop().call_soon(self.now)
        self._items.append(item)

    def now(self) -> None:
        """Hands the items on at once."""
        if self._items:
            items, self._items = self._items, []
            self._hand_on(items)


# What is built on them


class FileBlobStore:
    """``BlobStore`` on files: each content is one file, named by its SHA-256."""

    def __init__(self, state_dir: str) -> None:
        self._folder = Path(state_dir) / "blobs"

    async def put(self, data: bytes) -> str:
        """Stores the bytes, unless they are stored already, and returns their digest."""
        return await asyncio.to_thread(self._put, data)

    async def get(self, digest: str) -> bytes | None:
        return await asyncio.to_thread(self._get, digest)

    def path(self, digest: str) -> Path | None:
        """Return the path of a blob, for callers that read only a part of it, or None if the text is not a digest."""
        return self._folder / digest if _DIGEST.fullmatch(digest) else None

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self._folder / digest
        try:
            same_size = path.stat().st_size == len(data)
        except FileNotFoundError:
            same_size = False
        if not same_size:
            atomic_replace(path, data)
        return digest

    def _get(self, digest: str) -> bytes | None:
        path = self.path(digest)
        try:
            data = path.read_bytes() if path else None
        except FileNotFoundError:
            return None
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            log.error("blob %s does not hold what its name says; it is not used", path)
            return None
        return data


class RebuildableDatabase:
    """Opens the file for each piece of work. It blocks, so use it in a worker thread. Concurrent work waits."""

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self._schema = schema
        self._version = version
        self._guard = threading.Lock()

    def use(self, work: Callable[[sqlite3.Connection], T], *, rebuild: bool = False) -> T:
        """Does the work. If the file is damaged or of another version, it does the work again on an empty file."""
        with self._guard:
            if rebuild:
                self._throw_away()
            try:
                with contextlib.closing(self._open()) as db:
                    return work(db)
            except sqlite3.DatabaseError as error:
                if "locked" in str(error) or "busy" in str(error):  # Another process writes to it.
                    raise
                log.warning("%s is damaged and is created again: %s", self.path, error)
            self._throw_away()
            with contextlib.closing(self._open()) as db:
                return work(db)

    def _open(self) -> sqlite3.Connection:
        make_private_dir(str(self.path.parent))
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            # The file can be rebuilt at any time, so no sync is needed.
            db.execute("PRAGMA synchronous = OFF")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, self._version):
                raise sqlite3.DatabaseError(f"version {version}")
            db.executescript(self._schema)
            db.execute(f"PRAGMA user_version = {self._version}")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _throw_away(self) -> None:
        for ending in ("", "-journal", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)


class FileDocuments:
    """The documents below one folder. Every write is atomic and private, and on disk when it returns.

    After each write a copy of the document is kept as ``<name>.bak``.
    """

    shared = False

    def __init__(self, folder: str | Path, repairs: Repairs | None = None) -> None:
        self._folder = Path(folder)
        self.repairs = repairs or Repairs()
        self._changing = Lock()
        """Held while a file is compared and replaced. The lock of the folder keeps other processes out, not threads."""

    async def get(self, name: str) -> StoredDocument | None:
        return await asyncio.to_thread(self._get, name)

    async def version(self, name: str) -> Version | None:
        # It takes microseconds, and a thread would take longer.
        return _version(self._folder / name)

    async def put(self, name: str, data: bytes, version: Version | None) -> Version:
        return await asyncio.to_thread(self._put, self._folder / name, data, version)

    async def backup(self, name: str) -> bytes | None:
        return await asyncio.to_thread(self._backup, self._folder / name)

    async def put_back(self, name: str, data: bytes) -> tuple[Version | None, str]:
        aside = await self.set_aside(name)
        return await self.put(name, data, None), aside

    async def append(self, name: str, line: bytes, *, most_bytes: int, most_lines: int) -> None:
        await asyncio.to_thread(self._append, self._folder / name, line + b"\n", most_bytes, most_lines)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._remove, self._folder / name)

    async def set_aside(self, name: str) -> str:
        path = self._folder / name
        aside = path.with_name(f"{path.name}.corrupt")
        await asyncio.to_thread(path.replace, aside)
        return aside.name

    async def list(self, prefix: str) -> list[str]:
        return await asyncio.to_thread(self._list, prefix)

    async def tell(self, name: str) -> None:
        pass

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None

    def place(self, name: str) -> str:
        return str(self._folder / name)

    # These methods run in a thread

    def _get(self, name: str) -> StoredDocument | None:
        path = self._folder / name
        # A change between the two makes the version older than the data. Then a write with it is refused.
        version = _version(path)
        try:
            # A pipe in the place of the file is an error, and nothing to wait for.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file", str(path))
                return StoredDocument(file.read(), version or (), version[0] // 1_000_000 if version else 0)
        except FileNotFoundError:
            return None

    def _put(self, path: Path, data: bytes, version: Version | None) -> Version:
        # A link stays a link, and the file it points to is replaced: dotfiles may be kept elsewhere.
        path = path.resolve() if path.is_symlink() else path
        with self._changing, exclusive(str(path)):
            if _version(path) != version:
                raise DocumentChanged(str(path))
            atomic_replace(path, data)
            _keep_backup(path, data)
            return _version(path) or ()

    def _backup(self, path: Path) -> bytes | None:
        try:
            return _backup_of(path.resolve() if path.is_symlink() else path).read_bytes()
        except FileNotFoundError:
            return None

    def _remove(self, path: Path) -> None:
        _backup_of(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _append(self, path: Path, line: bytes, most_bytes: int, most_lines: int) -> None:
        make_private_dir(str(path.parent))
        with self._changing:
            size = append_line(path, line)
            if size > most_bytes:
                atomic_replace(path, last_lines(path.read_bytes(), most_lines))

    def _list(self, prefix: str) -> list[str]:
        folder = self._folder / prefix.rpartition("/")[0]
        files = (path for path in folder.rglob("*") if path.is_file())
        names = (path.relative_to(self._folder).as_posix() for path in files)
        return sorted(name for name in names if name.startswith(prefix) and not name.endswith(".bak"))


def append_line(path: Path, line: bytes) -> int:
    """Append a line, make it durable and return the size of the file. An error leaves the file as it was. Blocking.

    For files with few appends; ``AppendFile`` is for those with many.
    """
    faults.write(path)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # A crash cut the last line.
            line = b"\n" + line
        end = append_whole(descriptor, line)
        try:
            os.fsync(descriptor)
        except OSError:
            # A second sync would succeed without the line. The caller writes it again.
            _Tail(end - len(line), end).cut_off(descriptor)
            raise
        return end
    finally:
        os.close(descriptor)


def last_lines(data: bytes, most: int) -> bytes:
    return b"\n".join([*data.splitlines()[-most:], b""])


def _version(path: Path) -> Version | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _keep_backup(path: Path, data: bytes) -> None:
    """Write a copy of a document that is on disk already. The copy needs no sync: it counts if the first is damaged."""
    backup = _backup_of(path)
    prepared = backup.with_name(f".{backup.name}.tmp")
    with contextlib.suppress(OSError):  # The document itself is what counts.
        with os.fdopen(os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        prepared.replace(backup)
