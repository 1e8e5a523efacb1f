"""How far a channel has got in the events of its platform, kept over restarts; and what it saw or did lately."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Protocol, TypeVar

from openclaw.clock import Clock
from openclaw.paths import make_private_dir
from openclaw.storage import faults
from openclaw.storage.documents import DocumentChanged, DocumentStore, Version

log = logging.getLogger("openclaw.channels")

MAX_EVENT_ID = 1000
BOOKMARK_PAUSE_S = 0.2


class Bookmark:
    """The id of the last event that was handled, so that a new start asks for what came since.

    It is not synced to disk, and a burst of events is written once, a moment later. An old bookmark only makes the
    platform repeat events, and dedupe drops them.
    """

    def __init__(self, place: BookmarkPlace, clock: Clock, most: int = MAX_EVENT_ID) -> None:
        """``most`` is the length of an id at most."""
        self._place = place
        self._most = most
        self._clock = clock
        self._writer: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._written = ""
        self.last_id = ""
        self.moved_at_ms: int | None = None
        """When it was moved last, as it was loaded."""

    async def load(self) -> None:
        self.last_id, self.moved_at_ms = await self._place.read(self._most)
        self._written = self.last_id

    def move_to(self, event_id: str) -> None:
        """Sets the bookmark. An empty id is ignored."""
        if event_id and event_id != self.last_id and len(event_id) <= self._most:
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
            self._writing = asyncio.ensure_future(self._place.write(event_id))
            await asyncio.shield(self._writing)
        except OSError as error:
            log.warning("%s stays where it was: %s", self._place, error)


class BookmarkPlace(Protocol):
    """Where a bookmark is kept."""

    async def read(self, most: int) -> tuple[str, int | None]:
        """Returns the id, of ``most`` characters at most, and when it was written."""
        ...

    async def write(self, event_id: str) -> None: ...


class BookmarkFile:
    """A bookmark in a file with a second name, which is there if the first one is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name(f"{path.name}.bak")

    def __str__(self) -> str:
        return str(self._path)

    async def read(self, most: int) -> tuple[str, int | None]:
        return await asyncio.to_thread(self._read, most)

    async def write(self, event_id: str) -> None:
        await asyncio.to_thread(self._write, event_id)

    def _read(self, most: int) -> tuple[str, int | None]:
        """Reads the bookmark, or its copy if the bookmark is gone or empty."""
        for path in (self._path, self._copy):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                if event_id := file.read(most).decode("ascii", "ignore").strip():
                    at_ms = int(os.fstat(file.fileno()).st_mtime * 1000)
                    if path is self._copy:
                        log.error("%s was gone. It was restored from %s.", self._path, path.name)
                        self._write(event_id)
                    return event_id, at_ms
        return "", None

    def _write(self, event_id: str) -> None:
        faults.write(self._path)
        make_private_dir(str(self._path.parent))
        beside = self._path.with_name(f"{self._path.name}.new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(event_id.encode("ascii", "ignore"))
        with contextlib.suppress(OSError):  # Some file systems have no second names for a file.
            self._copy.unlink(missing_ok=True)
            os.link(beside, self._copy)
        beside.replace(self._path)


class BookmarkDocument:
    """A bookmark that the Gateway finds which connects the account next, wherever it runs."""

    def __init__(self, documents: DocumentStore, name: str) -> None:
        self._documents = documents
        self._name = name
        self._version: Version | None = None

    def __str__(self) -> str:
        return self._documents.place(self._name)

    async def read(self, most: int) -> tuple[str, int | None]:
        found = await self._documents.get(self._name)
        if found is None:
            return "", None
        self._version = found.version
        return found.data[:most].decode("ascii", "ignore").strip(), found.at_ms

    async def write(self, event_id: str) -> None:
        data = event_id.encode("ascii", "ignore")
        try:
            self._version = await self._documents.put(self._name, data, self._version)
        except DocumentChanged:
            # Another Gateway had the account meanwhile. It is ours now, and so is the bookmark.
            self._version = await self._documents.version(self._name)
            with contextlib.suppress(DocumentChanged):
                self._version = await self._documents.put(self._name, data, self._version)


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
