"""A channel's read position in its platform's events, persisted across restarts, and a bounded dictionary."""

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
"""How often the synced backup of a bookmark is replaced."""


class Bookmark:
    """The id of the last handled event, from which a restart continues.

    Written without a sync and at most once per ``BOOKMARK_PAUSE_S``: an old bookmark only makes the platform repeat
    events, which deduplication drops.
    """

    def __init__(
        self,
        store: BookmarkStore,
        clock: Clock,
        max_length: int = MAX_EVENT_ID,
        is_id: Callable[[str], bool] = lambda text: True,
    ) -> None:
        """``is_id`` validates an id of the platform."""
        self._store = store
        self._max_length = max_length
        self._is_id = is_id
        self._clock = clock
        self._writer: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._written = ""
        self.last_id = ""
        self.moved_at_ms: int | None = None
        """When the loaded bookmark was last moved."""

    async def load(self) -> None:
        """Read the bookmark. A damaged one counts as missing."""
        data, self.moved_at_ms = await self._store.read(self._is_valid)
        self.last_id = self._written = data.decode("ascii")

    def _is_valid(self, data: bytes) -> bool:
        # A power cut can leave zeros, which a request header would reject.
        if not data or len(data) > self._max_length or not data.isascii():
            return False
        text = data.decode("ascii")
        return text.isprintable() and self._is_id(text)

    def move_to(self, event_id: str) -> None:
        """Set the bookmark. Ignores an id that ``load`` would not accept."""
        if event_id != self.last_id and event_id.isascii() and self._is_valid(event_id.encode("ascii")):
            self.last_id = event_id
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._write_behind())

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        if self._writing is not None:  # Cancelling the waiter does not stop the writing thread.
            await asyncio.gather(self._writing, return_exceptions=True)
        if self.last_id != self._written:
            await self._put(self.last_id)

    async def _write_behind(self) -> None:
        while self.last_id != self._written:
            await self._put(self.last_id)
            await self._clock.sleep(BOOKMARK_PAUSE_S)

    async def _put(self, event_id: str) -> None:
        self._written = event_id
        try:
            self._writing = asyncio.ensure_future(self._store.write(event_id.encode("ascii")))
            await asyncio.shield(self._writing)
        except OSError as error:
            log.warning("%s could not be written: %s", self._store, error)


class BookmarkStore(Protocol):
    async def read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        """Return the newest valid bookmark and when it was written, or ``(b"", None)``."""
        ...

    async def write(self, event_id: bytes) -> None: ...


class BookmarkFile:
    """A bookmark in an unsynced file, with a synced backup of an older one next to it."""

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
                self._restore()
            return data, at_ms
        if problem == "damaged":
            self._repairs.note(
                f"{self._path} was damaged and has no backup. Messages from the downtime may be missing."
            )
        return b"", None

    def _restore(self) -> None:
        """Copy the backup with its modification time, by which a channel detects that it is too old."""
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
        self._update_backup(prepared, event_id)
        prepared.replace(self._path)

    def _update_backup(self, prepared: Path, event_id: bytes) -> None:
        """Replace an old backup by the previous bookmark, synced.

        A power cut may leave zeros in the bookmark, so the backup must be another file.
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
        except OSError as error:  # Some file systems have no hard links.
            log.debug("%s was not updated: %s", self._copy, error)


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


class BookmarkDocument:
    """A bookmark in the shared store, for whichever Gateway connects the account next."""

    def __init__(self, documents: DocumentStore, name: str) -> None:
        self._documents = documents
        self._name = name
        self._version: Version | None = None

    def __str__(self) -> str:
        return self._documents.place(self._name)

    async def read(self, valid: Callable[[bytes], bool]) -> tuple[bytes, int | None]:
        document = await self._documents.get(self._name)
        if document is None:
            return b"", None
        self._version = document.version
        data = document.data.strip()
        if not valid(data):
            log.error("%s is damaged and is not used", self)
            return b"", None
        return data, document.at_ms

    async def write(self, event_id: bytes) -> None:
        try:
            self._version = await self._documents.put(self._name, event_id, self._version)
        except DocumentChanged:
            # Another Gateway owned the account in between. This one owns it now, so its bookmark wins.
            self._version = await self._documents.version(self._name)
            with contextlib.suppress(DocumentChanged):
                self._version = await self._documents.put(self._name, event_id, self._version)


Key = TypeVar("Key")
Value = TypeVar("Value")
MAX_RECENT = 2000


class RecentDict(OrderedDict[Key, Value]):
    """A dictionary of the most recently set items. The oldest are dropped."""

    def __init__(self, max_items: int = MAX_RECENT) -> None:
        super().__init__()
        self._max_items = max_items

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._max_items:
            self.popitem(last=False)
