"""The connections to PostgreSQL, and what its errors mean to those who write."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

from openclaw.storage import faults
from openclaw.storage.base import StorageRefused
from openclaw.storage.postgres.migrations import migrate

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy

log = logging.getLogger("openclaw.storage.postgres")
T = TypeVar("T")

DEFAULT_SCHEMA = "openclaw"
DEFAULT_POOL = 8
CONNECT_S = 10
STATEMENT_S = 60
CLAIM_S, CLAIM_PAUSE_S = 5, 0.1
OLDEST_SERVER = 15
_UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
_FULL = (asyncpg.DiskFullError,)


class StorageUnreachable(OSError):
    """The database cannot be reached for now. The same call may succeed later."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(errno.ENOTCONN, str(problem) or type(problem).__name__)


class StaleWriter(Exception):
    """Another Gateway has written what this one holds in memory. Nothing was written."""


def without_nul(text: str) -> str:
    """Returns the text as a text column takes it: without NUL and without half surrogate pairs."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shown_url(url: str, schema: str) -> str:
    """The address for people, without the user's name and password."""
    parts = urlsplit(url)
    place = f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}"
    return f"postgresql://{place}{parts.path}#{schema}"


class PostgresDatabase:
    """A pool of connections to one schema. One Gateway has one."""

    def __init__(self, pool: asyncpg.Pool, url: str, schema: str) -> None:
        self._pool = pool
        self._url = url
        self._claim: asyncpg.Connection | None = None
        """The connection that holds the lock of the schema."""
        self._claiming = asyncio.Lock()
        self.schema = schema
        self.shown = shown_url(url, schema)

    @classmethod
    async def open(cls, url: str, *, schema: str = DEFAULT_SCHEMA, pool_size: int = DEFAULT_POOL) -> PostgresDatabase:
        """Connects, and makes or migrates the tables."""
        settings = {"search_path": '"' + schema.replace('"', '""') + '"', "application_name": "openclaw"}
        try:
            first = await asyncpg.connect(url, timeout=CONNECT_S)
            try:
                if first.get_server_version().major < OLDEST_SERVER:
                    found = first.get_server_version()
                    raise StorageRefused(f"PostgreSQL {OLDEST_SERVER} or newer is needed, and this is {found.major}")
                ran = await migrate(first, schema)
            finally:
                await first.close()
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=max(2, pool_size),
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S,
                server_settings=settings,
            )
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error
        except asyncpg.PostgresError as error:
            raise StorageRefused(f"{shown_url(url, schema)}: {error}") from error
        if ran:
            log.info("%s: %d migrations ran", shown_url(url, schema), ran)
        return cls(pool, url, schema)

    async def claim(self) -> None:
        """Makes this process the only Gateway of the schema, until it closes the database or ends.

        Raises ``StorageRefused`` when there is another one. If the server restarts, the claim is made again before
        anything else is done.
        """
        try:
            connection = await asyncpg.connect(self._url, timeout=CONNECT_S)
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error
        lock = "SELECT pg_try_advisory_lock(hashtextextended('openclaw-gateway/' || $1, 0))"
        for _ in range(round(CLAIM_S / CLAIM_PAUSE_S)):
            if await connection.fetchval(lock, self.schema):
                break
            # The server may not have noticed yet that the Gateway before this one has died.
            await asyncio.sleep(CLAIM_PAUSE_S)
        else:
            await connection.close()
            raise StorageRefused(
                f"another Gateway uses {self.shown}. Stop it, or give this one a schema of its own (storage.schema)"
            )
        self._claim = connection

    async def _claimed(self) -> None:
        if self._claim is not None and self._claim.is_closed():
            async with self._claiming:
                if self._claim.is_closed():
                    try:
                        await self.claim()
                    except StorageRefused as refused:
                        raise StorageUnreachable(refused) from refused

    async def connect(self) -> asyncpg.Connection:
        """Opens a connection beside the pool, for somebody who keeps it."""
        settings = {"search_path": '"' + self.schema.replace('"', '""') + '"', "application_name": "openclaw"}
        try:
            return await asyncpg.connect(self._url, timeout=CONNECT_S, server_settings=settings)
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error

    async def close(self) -> None:
        if self._claim is not None:
            self._claim.terminate()
        try:
            await asyncio.wait_for(self._pool.close(), CONNECT_S)
        except (TimeoutError, *_UNREACHABLE):
            self._pool.terminate()

    async def rows(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        """Does one statement, which is a transaction of its own, and returns its rows."""
        return await self._use(lambda connection: connection.fetch(statement, *values))

    async def row(self, statement: str, *values: Any) -> asyncpg.Record | None:
        return await self._use(lambda connection: connection.fetchrow(statement, *values))

    async def value(self, statement: str, *values: Any) -> Any:
        return await self._use(lambda connection: connection.fetchval(statement, *values))

    async def write(self, statement: str, *values: Any) -> int:
        """Does one statement and returns how many rows it changed."""
        return changed(await self._use(lambda connection: connection.execute(statement, *values)))

    async def write_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """Does one statement with each of the values, in one transaction."""
        await self._use(lambda connection: connection.executemany(statement, values))

    async def transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does the work in one transaction. It is on disk when this returns."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                done = await work(connection)
                faults.point("commit.before")
            faults.point("commit.after")
            return done

        return await self._use(inside)

    async def _use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        await self._claimed()
        async with self._connection() as connection:
            return await work(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        try:
            async with self._pool.acquire(timeout=CONNECT_S) as connection:
                yield connection
        except _FULL as error:
            raise OSError(errno.ENOSPC, f"the database has no space left: {error}") from error
        except _UNREACHABLE as error:
            if isinstance(error, StorageUnreachable | ValueError):
                raise  # asyncpg counts wrong values among the errors of its interface.
            raise StorageUnreachable(error) from error


def changed(status: str) -> int:
    """Returns how many rows a statement changed, from its command tag. Some statements do not tell."""
    count = status.rsplit(" ", 1)[-1]
    return int(count) if count.isdigit() else 0
