"""Getting bytes onto the disk: append-only files that share their fdatasync calls, and atomic replacement."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from openclaw.paths import make_private_dir
from openclaw.storage import faults

# Darwin has no fdatasync; fsync asks for more and is always right.
_sync_data = getattr(os, "fdatasync", os.fsync)

T = TypeVar("T")
_Then: TypeAlias = Callable[[OSError | None], None]
_Work: TypeAlias = Callable[[], None]
_MOST_THREADS = 4
"""Syncs that run beside each other share the file system's commits: 100 files take 12 ms and not 200."""


class Disk:
    """Threads that make appended files durable. Whoever asks while a file's sync runs shares its next one."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._asked: Batch[_Work] = Batch(self._hand_on)
        self._to_make: deque[AppendFile] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def sync(self, file: AppendFile, written: int, then: _Then) -> None:
        """``then`` is called in a thread of the disk once the file's first ``written`` appends are on disk."""
        if self._closed:
            raise RuntimeError("the store is closed; nothing more can be made durable")
        self._asked.add(lambda: then(file.sync_now(written)))

    def make(self, file: AppendFile) -> None:
        """Has a file made that will soon be written to, which takes ten times as long as writing to it."""
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

    def _hand_on(self, asked: list[_Work]) -> None:
        for work in asked:
            self._wanted.put(work)
        needed = min(_MOST_THREADS, self._wanted.qsize())
        while len(self._threads) < needed:
            thread = threading.Thread(target=self._work, name=f"openclaw-disk-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_all(self) -> None:
        """One after the other: threads that make files in one folder at the same time only wait for each other.

        One sync of their folder does for all of them, where each would need one of its own with its first entry.
        """
        made: dict[Path, list[Callable[[], None]]] = {}
        with contextlib.suppress(IndexError):  # None is left; another thread may have taken the last.
            while True:
                file = self._to_make.popleft()
                if (named := file.open_early()) is not None:
                    made.setdefault(file.path.parent, []).append(named)
        for folder, files in made.items():
            with contextlib.suppress(OSError):  # The sync of each file will try again, and tell.
                sync_dir(folder)
                for named in files:
                    named()

    def _work(self) -> None:
        while (work := self._wanted.get()) is not None:
            work()


def _tell(future: asyncio.Future[Any], error: OSError | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    # A closed loop has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(settle)


class AppendFile:
    """A file that only grows. Opened at the first append; one line is one write; a torn end is closed off, never cut.

    Appends come from one thread (the event loop); ``sync_now`` runs in the disk's threads.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._fd = -1
        self._size = 0
        self._torn = False
        self._end = 0
        """Where the last append ended, if nobody wrote just before it."""
        self.end_is_sure = True
        self._written = 0
        self._synced = 0
        self._named_on_disk = False
        self._syncing = 0
        self._guard = threading.Lock()

    def __del__(self) -> None:
        self.close()

    @property
    def busy(self) -> bool:
        return self._syncing > 0

    def look(self) -> int:
        """How long the file is; opened, or begun, if it was not open or someone removed it."""
        status = os.fstat(self._fd) if self._fd >= 0 else None
        if status is None or status.st_nlink == 0:
            status = self._open()
        size = status.st_size
        if size == self._size:
            self.end_is_sure = True
        else:
            self._size = size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        return size

    def append(self, data: bytes, *, looked: bool = False) -> int:
        """Writes ``data`` at the end and returns its offset, which may ``drift``. On an error nothing of it counts.

        ``looked``: the caller has done so in this very step.
        """
        faults.write(self.path)
        if not looked:
            self.look()
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        while written < len(data):
            # After a short write the rest, or the error that cut it short. The next append sees what is torn.
            written += os.write(self._fd, memoryview(data)[written:])
        start, self._torn = self._size + self._torn, not data.endswith(b"\n")
        self._size = self._end = self._size + len(data)
        self.end_is_sure = False
        self._written += 1
        return start

    def drift(self) -> int:
        """How much further on the last append is than its offset said: another program may have written just before.

        Asked by who needs to know it, and not in every append: when other threads wait for the interpreter, each call
        of the system costs 20 µs.
        """
        if self.end_is_sure or self._fd < 0:
            return 0
        self.end_is_sure = True
        return os.lseek(self._fd, 0, os.SEEK_CUR) - self._end

    @property
    def is_durable(self) -> bool:
        """Whether all that was appended is on disk."""
        return self._synced >= self._written

    async def sync(self) -> None:
        if not self.is_durable:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self.sync_into(done, lambda: _tell(done, None))

    async def sync_into(self, done: asyncio.Future[T], then: Callable[[], None]) -> T:
        """Makes the file durable and goes on with ``then``, in a thread of the disk, which leads to ``done``."""
        self._syncing += 1
        try:
            self._disk.sync(self, self._written, lambda error: then() if error is None else _tell(done, error))
            return await done
        finally:
            self._syncing -= 1

    def sync_now(self, wanted: int | None = None) -> OSError | None:
        """In the calling thread. ``wanted``: so many appends are enough, which another's sync may have covered."""
        try:
            with self._guard:
                written = self._written
                if self._synced >= (written if wanted is None else wanted):
                    return None
                faults.sync(self.path)
                if self._fd >= 0:
                    _sync_data(self._fd)
                else:
                    # Given back meanwhile: any descriptor of the file flushes all of it.
                    with self.path.open("rb") as file:
                        os.fsync(file.fileno())
                if not self._named_on_disk:
                    sync_dir(self.path.parent)
                    self._named_on_disk = True
                self._synced = max(self._synced, written)
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        with self._guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def open_early(self) -> Callable[[], None] | None:
        """In a thread of the disk; an append that comes before it is done opens the file itself.

        If it made the file: to be called when its name in the folder is on disk.
        """
        if self._fd >= 0:
            return None
        try:
            fd = _open_or_make(self.path)
        except OSError:
            return None  # Whoever appends will meet the same error, and somebody is told then.
        with self._guard:
            if self._fd < 0:
                self._fd = fd
                return lambda: self._note_named(fd)
        os.close(fd)
        return None

    def _note_named(self, fd: int) -> None:
        with self._guard:
            self._named_on_disk = self._named_on_disk or self._fd == fd

    def _open(self) -> os.stat_result:
        fd = _open_or_make(self.path)
        with self._guard:
            before, self._fd = self._fd, fd
        if before >= 0:
            os.close(before)
        self._size, self.end_is_sure = -1, True
        status = os.fstat(self._fd)
        self._named_on_disk = self._named_on_disk and status.st_size > 0
        return status


def _open_or_make(path: Path) -> int:
    how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, how, 0o600)
    except FileNotFoundError:
        make_private_dir(str(path.parent))
        return os.open(path, how, 0o600)


def atomic_replace(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never a part; on disk when this returns."""
    prepared = write_beside(path, data)
    try:
        put_in_place(prepared, path)
    except OSError:
        prepared.unlink(missing_ok=True)
        raise


def write_beside(path: Path, data: bytes) -> Path:
    """``data`` in a new private file next to ``path``, on disk."""
    faults.write(path)
    make_private_dir(str(path.parent))
    prepared = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    fd = os.open(prepared, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        prepared.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
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
    """A file is written, or a thread woken, once for all who ask in one step and not once for each of them."""

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
        """Without waiting for the end of the step."""
        if self._items:
            items, self._items = self._items, []
            self._hand_on(items)
