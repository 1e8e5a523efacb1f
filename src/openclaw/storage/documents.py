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

from openclaw.storage.disk_errors import Repairs

log = logging.getLogger("openclaw.storage.documents")

T = TypeVar("T")
R = TypeVar("R")
_UNREADABLE = (ValueError, RecursionError, msgspec.MsgspecError)
MOST_TRIES = 50
"""How often a change is repeated because another writer was faster."""

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

    repairs: Repairs
    """Collects what was found damaged, for the owner."""

    @property
    def shared(self) -> bool:
        """Whether other Gateways may also write the documents."""
        ...

    async def get(self, name: str) -> StoredDocument | None: ...

    async def version(self, name: str) -> Version | None:
        """Return only the version, which is cheap, or None if the document does not exist."""
        ...

    async def put(self, name: str, data: bytes, version: Version | None) -> Version:
        """Replaces the document, if ``version`` is still the present one. None: there is none yet.

        It is on disk when this returns. Where there are files, a copy is kept for ``backup``. Raises
        ``DocumentChanged``.
        """
        ...

    async def backup(self, name: str) -> bytes | None:
        """Return the last stored copy of the document, or None if no copy exists."""
        ...

    async def put_back(self, name: str, data: bytes) -> tuple[Version | None, str]:
        """Set a document that cannot be read aside and put ``data``, its backup, in its place.

        Returns its version and the new name of the damaged one, which is empty if nothing was changed.
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


def is_blank(data: bytes) -> bool:
    """Whether a text file is empty or has zeros in it, as a power cut leaves one whose bytes never reached the disk."""
    return b"\0" in data or not data.strip()


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
    ) -> None:
        """``empty`` makes the value of a document that does not exist.

        One that a power cut or a bad disk has emptied, cut or filled with zeros is replaced by its backup copy.
        ``damaged`` says what becomes of one that cannot be decoded otherwise. It is set aside and counts as empty, it
        counts as empty unless its backup can be decoded, or the error is raised. The backup does not stand in for a
        file that a person edited: it may grant what that person took away. ``consequence`` is logged: what is lost. A
        file that the disk does not give counts as empty with ``drop``; otherwise its ``OSError`` is raised.
        """
        self.name = name
        self._documents = documents
        self._empty, self._decode, self._encode = empty, decode, encode
        self._damaged = damaged
        self._consequence = consequence
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
        """The newest bytes that this process has read, or None if the document is missing or damaged."""
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
        it changes nothing. Its exceptions reach the caller, and nothing is changed.
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
                    written = await self._documents.put(self.name, data, version)
                except DocumentChanged:
                    await self._read()
                    continue
                self.value, self._data, self._version = value, data, written
                return result
        raise OSError(f"{self.place} is changed by others all the time")

    async def _read(self) -> None:
        async with self._reading:
            try:
                content = await self._documents.get(self.name)
            except OSError as problem:
                if self._documents.shared or self._damaged != "drop":
                    raise
                log.warning("%s cannot be read (%s)%s", self.place, problem, self._told)
                content = None
                version = await self._documents.version(self.name)
            else:
                version = content.version if content is not None else None
            data = content.data if content is not None else None
            try:
                if data is not None and is_blank(data):
                    data, version = await self._from_backup(data, version)
                value = self._decode(data) if data is not None else self._empty()
            except _UNREADABLE as problem:
                value, data, version = await self._instead_of(data or b"", version, problem)
            self.value, self._data, self._version, self.known = value, data, version, True

    async def _instead_of(
        self, data: bytes, version: Version | None, problem: Exception
    ) -> tuple[T, bytes | None, Version | None]:
        """Return what counts in place of a document that cannot be decoded, or raise the problem."""
        copy, version = await self._from_backup(data, version)
        if copy != data:
            return self._decode(copy), copy, version
        if self._damaged == "refuse":
            raise problem
        copy_note = ""
        if self._damaged == "aside":
            copy_note = f"; it is kept as {await self._documents.set_aside(self.name)}"
            version = None
        log.warning("%s cannot be read (%s)%s%s", self.place, problem, copy_note, self._told)
        return self._empty(), None, version

    async def _from_backup(self, data: bytes, version: Version | None) -> tuple[bytes, Version | None]:
        """Put the backup copy in the place of ``data`` if it may stand in for it. Returns what is there then."""
        copy = await self._documents.backup(self.name)
        if copy is None or is_blank(copy):
            return data, version
        if not (is_blank(data) or copy.startswith(data) or self._damaged == "drop"):
            return data, version
        try:
            self._decode(copy)
        except _UNREADABLE:
            return data, version
        copy_note = ""
        try:
            version, aside = await self._documents.put_back(self.name, copy)
            copy_note = f" and was kept as {aside}" if aside else ""
        except OSError as problem:
            log.warning("%s cannot be replaced by its backup copy for now: %s", self.place, problem)
        self._documents.repairs.note(f"{self.place} was damaged{copy_note}. Its backup copy is used in its place.")
        return copy, version

    @property
    def _told(self) -> str:
        return f": {self._consequence}" if self._consequence else ""
