"""Small named documents that every Gateway of an installation sees: the protocol, and one document kept in memory.

On files a document is a file of the state folder, and its name is the path there. In a database it is a row. Whoever
keeps a small file that a second Gateway must see keeps it here: pairings, devices, scheduled jobs, rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

log = logging.getLogger("openclaw.storage.documents")

T = TypeVar("T")
R = TypeVar("R")
MOST_TRIES = 50
"""How often a change is worked out anew because somebody else was faster."""

Version: TypeAlias = tuple[int, ...]
"""It differs after every change. It says nothing else."""


class StoredDocument(NamedTuple):
    data: bytes
    version: Version
    at_ms: int
    """When it was written last."""


class DocumentChanged(Exception):
    """Somebody else has changed the document since it was read. Nothing was written."""


class DocumentStore(Protocol):
    """Documents by name. A name is a relative path such as ``devices/paired.json``."""

    @property
    def shared(self) -> bool:
        """Whether other Gateways may write the documents, too."""
        ...

    async def get(self, name: str) -> StoredDocument | None: ...

    async def version(self, name: str) -> Version | None:
        """Returns the version alone, which costs little. None when there is no such document."""
        ...

    async def put(self, name: str, data: bytes, version: Version | None, *, backup: bool = False) -> Version:
        """Replaces the document, if ``version`` is still the present one. None: there is none yet.

        It is on disk when this returns. With ``backup`` the document before stays beside it, where there are files.
        Raises ``DocumentChanged``.
        """
        ...

    async def append(self, name: str, line: bytes, *, most_bytes: int, most_lines: int) -> None:
        """Adds a line, which has no newline. A document larger than ``most_bytes`` keeps its last lines."""
        ...

    async def remove(self, name: str) -> None: ...

    async def set_aside(self, name: str) -> str:
        """Renames a document that cannot be read to ``<name>.corrupt``. Returns the new name."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Returns the names that begin with ``prefix``, in order."""
        ...

    async def tell(self, name: str) -> None:
        """Lets the other Gateways hear a name, as if they had a document of that name which was written."""
        ...

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Calls ``changed`` with the name of each document that another Gateway has written.

        The empty name stands for all of them. It returns a function that ends the watch. Files are not watched.
        """
        ...

    def place(self, name: str) -> str:
        """Says for people where the document is."""
        ...


class SharedDocument(Generic[T]):
    """One document, decoded: ``value`` is the newest that this process has seen. Only ``change`` changes it."""

    def __init__(
        self,
        documents: DocumentStore,
        name: str,
        empty: Callable[[], T],
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        *,
        damaged: Literal["aside", "drop", "refuse"],
        consequence: str = "",
        backup: bool = False,
    ) -> None:
        """``empty`` makes the value of a document that does not exist.

        ``damaged`` says what becomes of one that cannot be decoded. It is set aside and counts as empty, it counts as
        empty, or the error is raised. ``consequence`` is told then: what is lost. A file that the disk does not give
        counts as empty with ``drop``; otherwise its ``OSError`` is raised.
        """
        self.name = name
        self._documents = documents
        self._empty, self._decode, self._encode = empty, decode, encode
        self._damaged = damaged
        self._consequence = consequence
        self._backup = backup
        self._version: Version | None = None
        self._data: bytes | None = None
        self._changing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self.value: T = empty()
        self.known = False
        """Whether it has been read."""

    @property
    def place(self) -> str:
        return self._documents.place(self.name)

    @property
    def exists(self) -> bool:
        return self._version is not None

    @property
    def data(self) -> bytes | None:
        """The newest bytes that this process has seen. None when there is no document, or a damaged one."""
        return self._data

    async def current(self) -> T:
        """Returns the newest value, with the change that is being written. It is read again only if it has changed."""
        if self._changing.locked():
            async with self._changing:
                pass
        if not self.known or await self._documents.version(self.name) != self._version:
            await self._read()
        return self.value

    async def latest(self) -> T:
        """Like ``current``, but while the store cannot be reached it returns the last value that was read."""
        try:
            return await self.current()
        except OSError:
            if not self.known or not self._documents.shared:
                raise
            return self.value

    async def change(self, edit: Callable[[T], R]) -> R:
        """Applies an edit to the newest value, writes it and returns what the edit returns.

        The edit changes the value that it is given, and may be called again with a newer one. Nothing is written if
        it changes nothing. What it raises goes to the caller, and nothing is changed.
        """
        async with self._changing:
            for _ in range(MOST_TRIES):
                if not self.known:
                    await self._read()
                before, version = self._data, self._version
                value = self._decode(before) if before is not None else self._empty()
                result = edit(value)
                data = self._encode(value)
                if data == (before if version is not None else self._encode(self._empty())):
                    if await self._documents.version(self.name) == version:
                        return result
                    await self._read()
                    continue
                try:
                    written = await self._documents.put(self.name, data, version, backup=self._backup)
                except DocumentChanged:
                    await self._read()
                    continue
                self.value, self._data, self._version = value, data, written
                return result
        raise OSError(f"{self.place} is changed by others all the time")

    async def _read(self) -> None:
        async with self._reading:
            try:
                found = await self._documents.get(self.name)
            except OSError as problem:
                if self._documents.shared or self._damaged != "drop":
                    raise
                log.warning("%s cannot be read (%s)%s", self.place, problem, self._told)
                found = None
                version = await self._documents.version(self.name)
            else:
                version = found.version if found is not None else None
            data = found.data if found is not None else None
            try:
                value = self._decode(data) if data is not None else self._empty()
            except (ValueError, RecursionError, msgspec.MsgspecError) as problem:
                if self._damaged == "refuse":
                    raise
                value, data, kept = self._empty(), None, ""
                if self._damaged == "aside":
                    kept = f"; it is kept as {await self._documents.set_aside(self.name)}"
                    version = None
                log.warning("%s cannot be read (%s)%s%s", self.place, problem, kept, self._told)
            self.value, self._data, self._version, self.known = value, data, version, True

    @property
    def _told(self) -> str:
        return f": {self._consequence}" if self._consequence else ""
