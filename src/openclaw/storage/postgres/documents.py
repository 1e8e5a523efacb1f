"""``DocumentStore`` and ``BlobStore`` in PostgreSQL.

Each document is a row, and other Gateways hear of its changes by NOTIFY. Of each blob there is a copy in the state
folder, where the agent's tools read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import asyncpg

from openclaw.storage.disk_errors import Repairs
from openclaw.storage.documents import DocumentChanged, StoredDocument, Version
from openclaw.storage.files.disk import FileBlobStore, last_lines
from openclaw.storage.postgres.database import CONNECT_S, PostgresDatabase

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection


log = logging.getLogger("openclaw.storage.postgres")

AGAIN_S = 0.5
"""How long after a lost connection the next one is tried."""
LOOK_S = 20.0
"""How often the connection that listens is asked whether it still works."""

_NEW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The first version of a document. One that is removed and made again does not get an old version back."""
_INSERT = (
    f"WITH made AS (INSERT INTO documents (name, version, data, updated_at) VALUES ($1, {_NEW}, $2, now())"
    " ON CONFLICT DO NOTHING RETURNING version) SELECT version, pg_notify($3, $4) FROM made"
)
_UPDATE = (
    "WITH made AS (UPDATE documents SET data = $2, version = version + 1, updated_at = now()"
    " WHERE name = $1 AND version = $5 RETURNING version) SELECT version, pg_notify($3, $4) FROM made"
)
_APPEND = (
    f"INSERT INTO documents (name, version, data, updated_at) VALUES ($1, {_NEW}, $2, now())"
    " ON CONFLICT (name) DO UPDATE SET data = documents.data || excluded.data, version = documents.version + 1,"
    " updated_at = now() RETURNING length(data)"
)


class PostgresDocuments:
    shared = True

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self.repairs = Repairs()
        self._self = secrets.token_hex(8)
        """Marks our own notifications."""
        digest = hashlib.sha256(database.schema.encode()).hexdigest()[:16]
        self._channel = f"openclaw_documents_{digest}"
        self._watchers: list[Callable[[str], None]] = []
        self._listener: asyncio.Task[None] | None = None

    async def get(self, name: str) -> StoredDocument | None:
        select = (
            "SELECT data, version, (extract(epoch FROM updated_at) * 1000)::bigint AS at FROM documents WHERE name = $1"
        )
        row = await self._database.row(select, name)
        return StoredDocument(row["data"], (row["version"],), row["at"]) if row is not None else None

    async def version(self, name: str) -> Version | None:
        version = await self._database.value("SELECT version FROM documents WHERE name = $1", name)
        return (version,) if version is not None else None

    async def backup(self, name: str) -> bytes | None:
        return None  # The database has its own protection against damage.

    async def put_back(self, name: str, data: bytes) -> tuple[Version | None, str]:
        aside = await self.set_aside(name)
        return await self.put(name, data, None), aside

    async def put(self, name: str, data: bytes, version: Version | None) -> Version:
        payload = f"{self._self} {name}"
        if version is None:
            made = await self._database.value(_INSERT, name, data, self._channel, payload)
        else:
            made = await self._database.value(_UPDATE, name, data, self._channel, payload, *version)
        if made is None:
            raise DocumentChanged(name)
        return (made,)

    async def append(self, name: str, line: bytes, *, most_bytes: int, most_lines: int) -> None:
        if await self._database.value(_APPEND, name, line + b"\n") > most_bytes:
            await self._database.transact(lambda connection: _shorten(connection, name, most_lines))

    async def remove(self, name: str) -> None:
        await self._database.write("DELETE FROM documents WHERE name = $1", name)

    async def set_aside(self, name: str) -> str:
        aside = f"{name}.corrupt"

        async def work(connection: Connection) -> None:
            await connection.execute("DELETE FROM documents WHERE name = $1", aside)
            await connection.execute("UPDATE documents SET name = $2 WHERE name = $1", name, aside)

        await self._database.transact(work)
        return aside

    async def list(self, prefix: str) -> list[str]:
        select = "SELECT name FROM documents WHERE starts_with(name, $1) ORDER BY name"
        return [name for (name,) in await self._database.rows(select, prefix)]

    def place(self, name: str) -> str:
        return f"{self._database.shown}/{name}"

    # What others change

    async def tell(self, name: str) -> None:
        await self._database.rows("SELECT pg_notify($1, $2)", self._channel, f"{self._self} {name}")

    def watch(self, changed: Callable[[str], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="documents of other Gateways")

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(changed)

        return end

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _listen(self) -> None:
        """Listens on a connection of its own. After each connection everything counts as changed."""
        while True:
            try:
                connection = await self._database.connect()
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await self._hear(connection)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
                log.info("changes of other Gateways are not heard for a moment: %s", problem)
            finally:
                connection.terminate()
            await asyncio.sleep(AGAIN_S)

    async def _hear(self, connection: asyncpg.Connection) -> None:
        """Returns or raises when the connection has ended."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await connection.add_listener(self._channel, self._heard)
        self._tell("")
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), LOOK_S)
            if not ended.is_set():
                await connection.execute("SELECT 1", timeout=CONNECT_S)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        sender, _, name = str(payload).partition(" ")
        if sender != self._self:
            self._tell(name)

    def _tell(self, name: str) -> None:
        for changed in list(self._watchers):
            try:
                changed(name)
            except Exception:
                log.exception("a change of %s was not applied", name or "documents")


async def _shorten(connection: Connection, name: str, most_lines: int) -> None:
    data = await connection.fetchval("SELECT data FROM documents WHERE name = $1 FOR UPDATE", name)
    if data is not None:
        shorter = last_lines(data, most_lines)
        await connection.execute("UPDATE documents SET data = $2, version = version + 1 WHERE name = $1", name, shorter)


class PostgresBlobStore:
    """Blobs never change, so a copy that is there is right. It is made again when it is missing."""

    def __init__(self, database: PostgresDatabase, state_dir: str) -> None:
        self._database = database
        self._copies = FileBlobStore(state_dir)

    async def put(self, data: bytes) -> str:
        digest = await self._copies.put(data)
        insert = "INSERT INTO blobs (digest, data) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await self._database.write(insert, digest, data)
        return digest

    async def get(self, digest: str) -> bytes | None:
        if self._copies.path(digest) is None:
            return None
        data = await self._copies.get(digest)
        if data is None:
            data = await self._database.value("SELECT data FROM blobs WHERE digest = $1", digest)
            if data is not None:
                await self._copies.put(data)
        return data
