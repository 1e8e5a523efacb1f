"""How far a channel has got in the events of its platform, kept over restarts; and what it saw or did lately."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from openclaw.clock import Clock
from openclaw.paths import make_private_dir
from openclaw.storage import faults
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import DocumentChanged, DocumentStore, Version

log = logging.getLogger("openclaw.channels")

MAX_EVENT_ID = 1000
BOOKMARK_PAUSE_S = 0.2
COPY_EVERY_S = 5.0
"""How often the copy of a bookmark is replaced, which takes a sync."""


class Bookmark:
    """The id of the last event that was handled, so that a new start asks for what came since.

    It is not synced to disk, and a burst of events is written once, a moment later. An old bookmark only makes the
    platform repeat events, and dedupe drops them.
    """

    def __init__(
        self,
        place: BookmarkPlace,
        clock: Clock,
        most: int = MAX_EVENT_ID,
        is_id: Callable[[str], bool] = lambda text: True,
    ) -> None:
        """``most`` is the length of an id at most, and ``is_id`` recognises the ids of the platform."""
        self._place = place
        self._most = most
        self._is_id = is_id
        self._clock = clock
        self._writer: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._written = ""
        self.last_id = ""
        self.moved_at_ms: int | None = None
        """When it was moved last, as it was loaded."""

    async def load(self) -> None:
        """Read the bookmark. One that is damaged counts as missing."""
        data, self.moved_at_ms = await self._place.read(self._is_valid)
        self.last_id = self._written = data.decode("ascii")

    def _is_valid(self, data: bytes) -> bool:
        # Zeros of a power cut are in no id, and would be refused in the header of a request.
        if not data or len(data) > self._most or not data.isascii():
            return False
        text = data.decode("ascii")
        return text.isprintable() and self._is_id(text)

    def move_to(self, event_id: str) -> None:
        """Sets the bookmark. An id that could not be read again is ignored, as an empty one is."""
        if event_id != self.last_id and event_id.isascii() and self._is_valid(event_id.encode("ascii")):
            self.last_id = event_id
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        if self._writing is not None:  # A thread goes on writing when its waiter is cancelled.
            await asyncio.gather(self._writing, return_exceptions=True)
        if self.last_id != self._written:
            await self._put(self.last_id)

    async def _keep_up(self) -> None:
        while self.last_id != self._written:
            event_id = self.last_id
            await self._put(event_id)
            await self._clock.sleep(BOOKMARK_PAUSE_S)

    async def _put(self, event_id: str) -> None:
        self._written = event_id
        try:
            self._writing = asyncio.ensure_future(self._place.write(event_id.encode("ascii")))
            await asyncio.shield(self._writing)
        except OSError as error:
            log.warning("%s stays where it was: %s", self._place, error)


class BookmarkPlace(Protocol):
    """Where a bookmark is kept."""

    async def read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        """Return the newest bookmark that is valid and when it was written. Empty if there is none."""
        ...

    async def write(self, event_id: bytes) -> None: ...


class BookmarkFile:
    """A bookmark in a file that is not synced, with a synced copy of an older one beside it."""

    def __init__(self, path: Path, repairs: Repairs) -> None:
        self._path = path
        self._copy = path.with_name(f"{path.name}.bak")
        self._repairs = repairs

    def __str__(self) -> str:
        return str(self._path)

    async def read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        return await asyncio.to_thread(self._read, valid)

    async def write(self, event_id: bytes) -> None:
        await asyncio.to_thread(self._write, event_id)

    def _read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        problem = ""
        for path in (self._path, self._copy):
            try:
                data, at_ms = path.read_bytes().strip(), int(path.stat().st_mtime * 1000)
            except FileNotFoundError:
                problem = problem or "gone"
                continue
            except OSError as error:
                log.warning("%s cannot be read: %s", path, error)
                problem = problem or "damaged"
                continue
            if not valid(data):
                problem = problem or "damaged"
                continue
            if path is self._copy:
                self._repairs.note(f"{self._path} was {problem}. It was restored from {path.name}.")
                self._put_back()
            return data, at_ms
        if problem == "damaged":
            self._repairs.note(f"{self._path} was damaged, and there is no copy of it. What was missed may be missing.")
        return b"", None

    def _put_back(self) -> None:
        """Put the copy in place. It keeps its time, by which a channel sees whether it is too old."""
        with contextlib.suppress(OSError):
            prepared = self._path.with_name(f"{self._path.name}.new")
            prepared.unlink(missing_ok=True)
            shutil.copy2(self._copy, prepared)
            prepared.replace(self._path)

    def _write(self, event_id: bytes) -> None:
        faults.write(self._path)
        make_private_dir(str(self._path.parent))
        prepared = self._path.with_name(f"{self._path.name}.new")
        prepared.unlink(missing_ok=True)
        _write_private(prepared, event_id)
        self._keep_copy(prepared, event_id)
        prepared.replace(self._path)

    def _keep_copy(self, prepared: Path, event_id: bytes) -> None:
        """Replace the copy from time to time by the bookmark before this one, once that one is on disk.

        A power cut may leave zeros in the bookmark, so the copy must be another file.
        """
        fresh = self._path.with_name(f"{self._copy.name}.new")
        try:
            if self._copy.exists():
                age_s = prepared.stat().st_mtime - self._copy.stat().st_mtime
                if 0 <= age_s < COPY_EVERY_S or not self._path.exists():
                    return
                fresh.unlink(missing_ok=True)
                os.link(self._path, fresh)
            else:
                _write_private(fresh, event_id)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(self._copy)
        except OSError as error:  # Some file systems have no second names for a file.
            log.debug("%s stays as it is: %s", self._copy, error)


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


class BookmarkDocument:
    """A bookmark that the Gateway finds which connects the account next, wherever it runs."""

    def __init__(self, documents: DocumentStore, name: str) -> None:
        self._documents = documents
        self._name = name
        self._version: Version | None = None

    def __str__(self) -> str:
        return self._documents.place(self._name)

    async def read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        found = await self._documents.get(self._name)
        if found is None:
            return b"", None
        self._version = found.version
        data = found.data.strip()
        if not valid(data):
            log.error("%s is damaged and is not used", self)
            return b"", None
        return data, found.at_ms

    async def write(self, event_id: bytes) -> None:
        try:
            self._version = await self._documents.put(self._name, event_id, self._version)
        except DocumentChanged:
            # Another Gateway had the account meanwhile. It is ours now, and so is the bookmark.
            self._version = await self._documents.version(self._name)
            with contextlib.suppress(DocumentChanged):
                self._version = await self._documents.put(self._name, event_id, self._version)


Key = TypeVar("Key")
Value = TypeVar("Value")
MAX_KNOWN = 2000


class Remembered(OrderedDict[Key, Value]):
    """The values that were put in most recently. The oldest are forgotten."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
