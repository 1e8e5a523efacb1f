"""What an installation shares, for commands that only look: nothing is made, changed or set aside.

With files the documents are those of the state folder. With ``storage.url`` they are in the database, as for the
Gateway.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import StoredDocument, Version
from openclaw.storage.errors import StorageRefused
from openclaw.storage.files.disk import FileDocuments

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.storage.documents import DocumentStore
    from openclaw.storage.postgres.database import PostgresDatabase

MOST_COUNTED = 100_000
"""Rows beyond these are not counted, because that would take long in a large table."""


def storage_url(config: Config, environ: Mapping[str, str]) -> str | None:
    """The address of the database, or None for files."""
    return environ.get("OPENCLAW_STORAGE_URL", "").strip() or config.storage.url or None


class ReadOnlyDocuments:
    """Documents that are read and left as they are. Those that would be set aside are named in ``damaged``."""

    def __init__(self, documents: DocumentStore | None) -> None:
        """``documents`` is None when there are no tables yet."""
        self._documents = documents
        self.repairs = Repairs()
        self.damaged: list[str] = []

    @property
    def shared(self) -> bool:
        return self._documents is None or self._documents.shared

    async def get(self, name: str) -> StoredDocument | None:
        return await self._documents.get(name) if self._documents is not None else None

    async def version(self, name: str) -> Version | None:
        return await self._documents.version(name) if self._documents is not None else None

    async def list(self, prefix: str) -> list[str]:
        return await self._documents.list(prefix) if self._documents is not None else []

    def place(self, name: str) -> str:
        return self._documents.place(name) if self._documents is not None else name

    async def set_aside(self, name: str) -> str:
        self.damaged.append(name)
        return name

    async def backup(self, name: str) -> bytes | None:
        return await self._documents.backup(name) if self._documents is not None else None

    async def put_back(self, name: str, data: bytes) -> tuple[Version | None, str]:
        await self.set_aside(name)
        return await self.version(name), ""

    async def put(self, name: str, data: bytes, version: Version | None) -> Version:
        raise StorageRefused(f"{self.place(name)} is only read here")

    async def append(self, name: str, line: bytes, *, most_bytes: int, most_lines: int) -> None:
        raise StorageRefused(f"{self.place(name)} is only read here")

    async def remove(self, name: str) -> None:
        raise StorageRefused(f"{self.place(name)} is only read here")

    async def tell(self, name: str) -> None:
        pass

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    server: str
    """The version of the server."""
    has_tables: bool
    """The first start of a Gateway makes them."""
    sessions: int = 0
    """Counted up to ``MOST_COUNTED``, as the messages are."""
    messages: int = 0
    unfinished: int = 0


class Inspected(msgspec.Struct, frozen=True):
    documents: ReadOnlyDocuments
    database: DatabaseFacts | None
    """None with files."""


@asynccontextmanager
async def open_for_inspection(state_dir: str, config: Config, environ: Mapping[str, str]) -> AsyncGenerator[Inspected]:
    """Opens the documents. Raises ``OSError`` when the database cannot be reached, and ``StorageRefused``."""
    url = storage_url(config, environ)
    if url is None:
        yield Inspected(ReadOnlyDocuments(FileDocuments(state_dir)), None)
        return
    try:
        from asyncpg import PostgresError

        from openclaw.storage.postgres.database import PostgresDatabase
        from openclaw.storage.postgres.documents import PostgresDocuments
    except ImportError:
        raise StorageRefused("the package for PostgreSQL is missing: openclaw extras add postgres") from None
    database = await PostgresDatabase.open(url, schema=config.storage.schema, pool_size=2, only_reads=True)
    try:
        facts = await _facts(database)
        yield Inspected(ReadOnlyDocuments(PostgresDocuments(database) if facts.has_tables else None), facts)
    except PostgresError as error:
        raise StorageRefused(f"{database.shown}: {error}") from error
    finally:
        await database.close()


async def _facts(database: PostgresDatabase) -> DatabaseFacts:
    server = await database.value("SHOW server_version")
    if not await database.value("SELECT to_regclass('documents') IS NOT NULL"):
        return DatabaseFacts(place=database.shown, server=server, has_tables=False)

    async def count(table: str) -> int:
        return await database.value(f"SELECT count(*) FROM (SELECT FROM {table} LIMIT $1) AS counted", MOST_COUNTED)

    return DatabaseFacts(
        place=database.shown,
        server=server,
        has_tables=True,
        sessions=await count("sessions"),
        messages=await count("messages"),
        unfinished=await count("messages WHERE ended_at IS NULL"),
    )
