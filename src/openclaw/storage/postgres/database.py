"""The connections to PostgreSQL, and what its errors mean to those who write."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

from openclaw.storage import faults
from openclaw.storage.base import Fenced, StorageRefused
from openclaw.storage.disk_errors import reads_wait, until_written
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
IDLE_TRANSACTION_S = 5
LOCK_S, LOCK_PAUSE_S = 5, 0.1
FENCED, LOST_CLAIM = "OC001", "OC002"
"""The error codes of ``fence`` and ``must_hold`` in ``migrations.py``."""
OLDEST_SERVER = 15
HELD = (
    "SELECT FROM claims WHERE name = ?::text AND node = current_setting('openclaw.node', true) AND epoch = ?"
    " FOR KEY SHARE"
)
"""Finds the claim if it still holds. Whoever lets it go deletes its row, and waits for those who have found it."""
_UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
)
_BROKEN = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""After these a connection may be in the middle of something, and is not used again."""
_FULL = (asyncpg.DiskFullError,)


class StorageUnreachable(OSError):
    """The database cannot be reached for now. The same call may succeed later."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(errno.ENOTCONN, str(problem) or type(problem).__name__)


class StaleWriter(Exception):
    """Another Gateway has written what this one holds in memory. Nothing was written."""


class ClaimLost(Fenced):
    """This node owns the session no longer, or owns it anew. Nothing was written. The node itself still counts."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this node does not own {name} any more, so nothing was written")
        self.name = name


class ClaimEpoch(NamedTuple):
    """A claim under which something is written. The write fails with ``ClaimLost`` if it no longer holds."""

    name: str
    epoch: int
    """0: this node did not own it, and nothing can be written."""


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


def connection_settings(schema: str, node: str) -> dict[str, str]:
    """What every connection says of itself. The fence in the database reads ``openclaw.node``.

    The server ends a transaction whose client stops in the middle, because others may wait for its locks.
    """
    return {
        "search_path": '"' + schema.replace('"', '""') + '"',
        "application_name": f"openclaw {node}".strip(),
        "openclaw.node": node,
        "idle_in_transaction_session_timeout": f"{IDLE_TRANSACTION_S}s",
    }


class PostgresDatabase:
    """A pool of connections to one schema. One Gateway has one.

    ``node`` is the id of the node that writes here. Its writes fail with ``Fenced`` once the cluster has given it up,
    and ``on_fenced`` is called. Tools that are no node have an empty one, and are not fenced.
    """

    def __init__(self, pool: asyncpg.Pool, url: str, schema: str, node: str = "") -> None:
        self._pool = pool
        self.url = url
        self._alone: asyncpg.Connection | None = None
        """The connection that keeps Gateways away."""
        self.schema = schema
        self.node = node
        self.shown = shown_url(url, schema)
        self.on_fenced: Callable[[], None] = lambda: None
        self.on_claim_lost: Callable[[str], None] = lambda _: None
        """Is told the name of a claim that a write found to be lost."""

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        pool_size: int = DEFAULT_POOL,
        node: str = "",
        only_reads: bool = False,
    ) -> PostgresDatabase:
        """Connects, and makes or migrates the tables. With ``only_reads`` nothing can be written, not even tables."""
        settings = connection_settings(schema, node)
        if only_reads:
            settings["default_transaction_read_only"] = "on"
        try:
            first = await asyncpg.connect(url, timeout=CONNECT_S)
            try:
                if first.get_server_version().major < OLDEST_SERVER:
                    found = first.get_server_version()
                    raise StorageRefused(f"PostgreSQL {OLDEST_SERVER} or newer is needed, and this is {found.major}")
                ran = 0 if only_reads else await migrate(first, schema)
            finally:
                await first.close()
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=max(2, pool_size),
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S,
                server_settings=settings,
                reset=_no_reset,
            )
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error
        except asyncpg.PostgresError as error:
            raise StorageRefused(f"{shown_url(url, schema)}: {error}") from error
        if ran:
            log.info("%s: %d migrations ran", shown_url(url, schema), ran)
        return cls(pool, url, schema, node)

    async def connect(self) -> asyncpg.Connection:
        """Opens a connection beside the pool. Whoever asks for it closes it."""
        try:
            return await asyncpg.connect(
                self.url,
                timeout=CONNECT_S,
                command_timeout=CONNECT_S,
                server_settings=connection_settings(self.schema, self.node),
            )
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error

    async def keep_gateways_away(self) -> None:
        """Makes this process, which is no Gateway, the only user of the schema until it closes the database.

        Raises ``StorageRefused`` when a Gateway uses it.
        """
        self._alone = await self.connect()
        if not await use_schema(self._alone, self.schema, alone=True):
            raise StorageRefused(f"a Gateway uses {self.shown}. Stop it first, or choose another schema")

    async def close(self) -> None:
        if self._alone is not None:
            self._alone.terminate()
        try:
            await asyncio.wait_for(self._pool.close(), CONNECT_S)
        except (TimeoutError, *_UNREACHABLE):
            self._pool.terminate()

    async def rows(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        """Does one statement, which is a transaction of its own, and returns its rows."""
        return await self._read(lambda connection: connection.fetch(statement, *values))

    async def row(self, statement: str, *values: Any) -> asyncpg.Record | None:
        return await self._read(lambda connection: connection.fetchrow(statement, *values))

    async def value(self, statement: str, *values: Any) -> Any:
        return await self._read(lambda connection: connection.fetchval(statement, *values))

    async def write(self, statement: str, *values: Any) -> int:
        """Does one statement and returns how many rows it changed."""
        return changed(await self._use(lambda connection: connection.execute(statement, *values)))

    async def once(self, work: Callable[[Connection, Statement], Awaitable[T]], after: Pending | None = None) -> T:
        """Does work whose writes are one statement, together with what must be written before them.

        That is one transaction and one round trip. It is on disk when this returns.
        """
        if after is None:
            return await self._once(work, Statement())
        async with after.lock:
            statement = Statement()
            if after.add_to(statement):
                try:
                    done = await self._once(work, statement)
                except NotWritten:
                    await after.finish_write(None)
                else:
                    await after.finish_write(statement.written)
                    return done
            return await self._once(work, Statement())

    async def write_pending(self, pending: Pending) -> None:
        """Writes what waits, alone."""

        async def alone(connection: Connection, statement: Statement) -> None:
            if statement.follows:
                await statement.run(connection, "1")

        await self.once(alone, pending)

    async def _once(self, work: Callable[[Connection, Statement], Awaitable[T]], statement: Statement) -> T:
        async def alone(connection: Connection) -> T:
            faults.point("commit.before")
            done = await work(connection, statement)
            faults.point("commit.after")
            return done

        return await self._use(alone)

    async def transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does the work in one transaction. It is on disk when this returns."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                done = await work(connection)
                faults.point("commit.before")
            faults.point("commit.after")
            return done

        return await self._use(inside)

    async def _read(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        if not reads_wait.get():
            return await self._use(work)
        return await until_written(lambda: self._use(work), asyncio.sleep)

    async def _use(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._connection() as connection:
            return await work(connection)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Connection]:
        try:
            with storage_errors():
                async with self._pool.acquire(timeout=CONNECT_S) as connection:
                    try:
                        yield connection
                    except _BROKEN:
                        with suppress(asyncpg.InterfaceError):  # The pool may have let it go already.
                            connection.terminate()
                        raise
        except ClaimLost as lost:
            self.on_claim_lost(lost.name)
            raise
        except Fenced:
            self.on_fenced()
            raise


@contextmanager
def storage_errors() -> Generator[None]:
    """Raises errors of the server as what they mean to those who write."""
    try:
        yield
    except asyncpg.PostgresError as error:
        if getattr(error, "sqlstate", "") == FENCED:
            raise Fenced(str(error)) from error
        if getattr(error, "sqlstate", "") == LOST_CLAIM:
            raise ClaimLost(str(error)) from error
        if isinstance(error, _FULL):
            raise OSError(errno.ENOSPC, f"the database has no space left: {error}") from error
        if isinstance(error, _UNREACHABLE):
            raise StorageUnreachable(error) from error
        raise
    except _UNREACHABLE as error:
        if isinstance(error, StorageUnreachable | ValueError):
            raise  # asyncpg counts wrong values among the errors of its interface.
        raise StorageUnreachable(error) from error


async def use_schema(connection: asyncpg.Connection, schema: str, *, alone: bool = False) -> bool:
    """Tells everybody that the schema is used, as long as the connection is open. Gateways use it together.

    Returns False when somebody uses it alone, or, with ``alone``, when anybody uses it.
    """
    how = "" if alone else "_shared"
    lock = f"SELECT pg_try_advisory_lock{how}(hashtextextended('openclaw-gateway/' || $1, 0))"
    for _ in range(round(LOCK_S / LOCK_PAUSE_S)):
        if await connection.fetchval(lock, schema):
            return True
        # The server may not have noticed yet that a process has died.
        await asyncio.sleep(LOCK_PAUSE_S)
    return False


async def _no_reset(_connection: Connection) -> None:
    """Nothing is set on a connection of the pool that the next user must not find, so it needs no round trip."""


class NotWritten(Exception):
    """The first write of a statement was not possible, so nothing was written."""


class Statement:
    """Several writes as one statement: one transaction and one round trip to the server.

    Each write has a name, by which later ones refer to what it returned. Otherwise no write sees what another one does.
    The others depend on a write called ``written``: they have the condition ``where`` or ``also``.
    """

    def __init__(self) -> None:
        self._writes: list[str] = []
        self._values: list[Any] = []
        self._claims: dict[str, int] = {}
        self._messages: list[int] = []
        self.follows = False
        """Whether there is a write called ``written``."""
        self.written: int | None = None
        """The id that it returned."""

    @property
    def where(self) -> str:
        return " WHERE EXISTS (SELECT FROM written)" if self.follows else ""

    @property
    def also(self) -> str:
        return " AND EXISTS (SELECT FROM written)" if self.follows else ""

    def add(self, name: str, text: str, *values: Any) -> None:
        """Adds a write. Each ``?`` in it stands for the next of the values."""
        head, *rest = text.split("?")
        first = len(self._values) + 1
        numbered = [f"${number}{part}" for number, part in enumerate(rest, start=first)]
        self._values += values
        self.follows = self.follows or name == "written"
        self._writes.append(f"{name} AS ({''.join([head, *numbered])})")

    def only_with(self, claim: ClaimEpoch | None) -> None:
        """Nothing is written unless the node still holds the claim. None: nobody else can own what is written."""
        if claim is not None:
            self._claims[without_nul(claim.name)] = claim.epoch

    def only_with_message(self, ledger_id: int) -> None:
        """Nothing is written unless the node owns the session of the message."""
        self._messages.append(ledger_id)

    def _conditions(self) -> str:
        """Adds expressions that raise when a claim is lost. That ends the transaction, whenever they are reached."""
        held: list[str] = []
        for number, (name, epoch) in enumerate(self._claims.items()):
            self.add(f"held{number}", HELD, name, epoch)
            held.append(f", must_hold(${len(self._values) - 1}, EXISTS (SELECT FROM held{number}))")
        for ledger_id in self._messages:
            self._values.append(ledger_id)
            held.append(f", hold_message(${len(self._values)})")
        return "".join(held)

    async def check(self, connection: Connection) -> None:
        """Raises ``ClaimLost`` if a claim is lost. Otherwise it holds until the transaction ends."""
        if self._claims or self._messages:
            await self.run(connection, "1")

    async def run(self, connection: Connection, result: str) -> asyncpg.Record:
        """Does the writes and returns one row: the result is a list of expressions.

        Raises ``NotWritten`` when the write called ``written`` returned nothing, and ``ClaimLost``.
        """
        asked = f"{result}, (SELECT id FROM written) AS written" if self.follows else result
        asked += self._conditions()
        writes = f"WITH {', '.join(self._writes)} " if self._writes else ""
        row = await connection.fetchrow(f"{writes}SELECT {asked}", *self._values)
        assert row is not None
        if self.follows:
            self.written = row["written"]
            if self.written is None:
                raise NotWritten
        return row


class Pending(Protocol):
    """Something that waits to be written, alone or with what depends on it."""

    lock: asyncio.Lock
    """Held by whoever writes it, until that has ended."""

    def add_to(self, statement: Statement) -> bool:
        """Adds a write called ``written``, which returns an id if it was done. False when there is nothing to write."""
        ...

    async def finish_write(self, written: int | None) -> None:
        """Is told the id. None: it was not done; this writes it in another way, or raises ``StaleWriter``."""
        ...


def changed(status: str) -> int:
    """Returns how many rows a statement changed, from its command tag. Some statements do not tell."""
    count = status.rsplit(" ", 1)[-1]
    return int(count) if count.isdigit() else 0
