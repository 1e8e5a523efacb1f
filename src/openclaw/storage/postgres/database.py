"""The connections to PostgreSQL, the tables there, and what its errors mean to those who write.

Writes that belong together go to the server as one ``Statement``: one transaction and one round trip. The tables are
made by numbered steps, each of which runs once, under a lock that other Gateways wait for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from openclaw.storage import faults
from openclaw.storage.disk_errors import StorageError, is_storage_failure, reads_wait, until_written
from openclaw.storage.errors import Fenced, StorageRefused

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
"""The error codes of ``fence`` and ``must_hold`` in ``STEPS``."""
OLDEST_SERVER = 15
HELD = (
    "SELECT FROM claims WHERE name = ?::text AND node = current_setting('openclaw.node', true) AND epoch = ?"
    " FOR KEY SHARE"
)
"""Finds the claim if it still holds. Whoever lets it go deletes its row, and waits for those who have found it."""
_UNREACHABLE = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Exceptions of the client without a server. Errors of the server itself are distinguished by ``storage_error``."""
_BROKEN = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""After these a connection may be in the middle of something, and is not used again."""
_PASSING = {
    "53100": errno.ENOSPC,
    "53200": errno.ENOMEM,
    "55P03": errno.EBUSY,
    "40": errno.EBUSY,
    "40003": errno.ENOTCONN,
    "08": errno.ENOTCONN,
    "25006": errno.ENOTCONN,
    "25P03": errno.ENOTCONN,
    "25P04": errno.ENOTCONN,
    "53": errno.ENOTCONN,
    "57": errno.ENOTCONN,
    "58": errno.EIO,
}
"""The SQLSTATEs, and classes of them, after which the same statement may succeed later.

That is: no space, no memory, a lock that was not free in time, a transaction that lost against another one, a lost
connection, a standby, a transaction that took too long, too many connections, an intervention, and a failing disk.
"""


class StorageUnreachable(StorageError):
    """The database cannot be reached for now. The same call may succeed later."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(str(problem) or type(problem).__name__, errno.ENOTCONN)


class StaleWriter(Exception):
    """Another Gateway has written what this one holds in memory. Nothing was written."""


class ClaimLost(Fenced):
    """This node no longer owns the session, or has claimed it again. Nothing was written. The node itself is alive."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this node does not own {name} any more, so nothing was written")
        self.name = name


class NotWritten(Exception):
    """The first write of a statement was not possible, so nothing was written."""


class ClaimEpoch(NamedTuple):
    """A claim under which something is written. The write fails with ``ClaimLost`` if it no longer holds."""

    name: str
    epoch: int
    """0: this node did not own it, and nothing can be written."""


class PostgresDatabase:
    """A pool of connections to one schema. One Gateway has one.

    ``node`` is the id of the node that writes here. Its writes fail with ``Fenced`` once the cluster has given it up,
    and ``on_fenced`` is called. Tools that are no node have an empty one, and are not fenced.
    """

    def __init__(self, pool: asyncpg.Pool, hosts: Hosts, schema: str, node: str = "") -> None:
        self._pool = pool
        self._hosts = hosts
        self._alone: asyncpg.Connection | None = None
        """The connection that keeps Gateways away."""
        self.schema = schema
        self.node = node
        self.shown = shown_url(hosts.url, schema)
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
        hosts = Hosts(url, writable=not only_reads)
        try:
            first = await hosts.connect()
            try:
                if first.get_server_version().major < OLDEST_SERVER:
                    version = first.get_server_version()
                    raise StorageRefused(f"PostgreSQL {OLDEST_SERVER} or newer is needed, and this is {version.major}")
                ran = 0 if only_reads else await migrate(first, schema)
            finally:
                await first.close()
            pool = await asyncpg.create_pool(
                connect=hosts.connect,
                min_size=1,
                max_size=max(2, pool_size),
                command_timeout=STATEMENT_S,
                server_settings=settings,
                reset=_no_reset,
            )
        except _UNREACHABLE as error:
            raise StorageUnreachable(error) from error
        except asyncpg.PostgresError as error:
            if is_storage_failure(explained := storage_error(error)):
                raise explained from error
            raise StorageRefused(f"{shown_url(url, schema)}: {error}") from error
        if ran:
            log.info("%s: %d migrations ran", shown_url(url, schema), ran)
        return cls(pool, hosts, schema, node)

    async def connect(self) -> asyncpg.Connection:
        """Opens a connection beside the pool. Whoever asks for it closes it."""
        settings = connection_settings(self.schema, self.node)
        with storage_errors():
            return await self._hosts.connect(command_timeout=CONNECT_S, server_settings=settings)

    async def lock_out_gateways(self) -> None:
        """Make this process, which is not a Gateway, the only user of the schema until it closes the database.

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
                    except asyncpg.ReadOnlySQLTransactionError:
                        # The server has become a standby. No connection to it is used again, and the next ones are
                        # opened to the server that takes writes.
                        await self._pool.expire_connections()
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
        raise storage_error(error) from error
    except _UNREACHABLE as error:
        if isinstance(error, StorageError | ValueError):
            raise  # asyncpg counts wrong values among the errors of its interface.
        raise StorageUnreachable(error) from error


def storage_error(error: asyncpg.PostgresError) -> Exception:
    """Returns what an error of the server means, by its SQLSTATE."""
    state: str = getattr(error, "sqlstate", None) or ""
    if state == FENCED:
        return Fenced(str(error))
    if state == LOST_CLAIM:
        return ClaimLost(str(error))
    number = _PASSING.get(state) or _PASSING.get(state[:2])
    if number == errno.ENOTCONN:
        return StorageUnreachable(error)
    return StorageError(f"{error} (SQLSTATE {state})", number)


class Hosts:
    """Opens connections to the servers that ``storage.url`` names, of which one takes writes at a time."""

    def __init__(self, url: str, *, writable: bool = True) -> None:
        self.url = url
        self._urls = host_urls(url)
        """Where the search begins: the server that was found last is the first."""
        self._only = "read-write" if writable else "any"

    async def connect(self, *_: Any, **options: Any) -> asyncpg.Connection:
        """Connects to the first server that answers in time and takes writes. ``options`` are those of asyncpg.

        Each server gets its share of the time, so that one that is silent does not hide the others.
        """
        share_s, problems = max(1, CONNECT_S // len(self._urls)), list[Exception]()
        for url in list(self._urls):
            try:
                connection = await asyncpg.connect(url, timeout=share_s, target_session_attrs=self._only, **options)
            except asyncpg.TargetServerAttributeNotMatched:
                problems.append(ConnectionError("the server is read-only, as a standby is"))
            except (*_UNREACHABLE, asyncpg.PostgresError) as problem:
                problems.append(problem)
            else:
                self._urls.remove(url)
                self._urls.insert(0, url)
                return connection
        # A server that answers knows better what is wrong than one that does not.
        raise next((one for one in problems if isinstance(one, asyncpg.PostgresError)), problems[-1])


def host_urls(url: str) -> list[str]:
    """Returns the address of each server of an address with several: ``host1:5432,host2:5432``, or ``?host=a,b``."""
    parts = urlsplit(url)
    user, at, places = parts.netloc.rpartition("@")
    if "," in places:
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in places.split(",")]
    options = dict(parse_qsl(parts.query))
    names, ports = options.get("host", "").split(","), options.get("port", "").split(",")
    if len(names) == 1:
        return [url]
    urls: list[str] = []
    for number, name in enumerate(names):
        # One port stands for all, as in libpq.
        port = ports[number] if len(ports) == len(names) else ports[0]
        own = {**options, "host": name, **({"port": port} if port else {})}
        urls.append(f"{url.partition('?')[0]}?{urlencode(own, safe='/')}")
    return urls


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
        self._writes.append(f"{name} AS ({numbered(text, len(self._values))})")
        self._values += values
        self.follows = self.follows or name == "written"

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
        columns = f"{result}, (SELECT id FROM written) AS written" if self.follows else result
        columns += self._conditions()
        writes = f"WITH {', '.join(self._writes)} " if self._writes else ""
        row = await connection.fetchrow(f"{writes}SELECT {columns}", *self._values)
        assert row is not None
        if self.follows:
            self.written = row["written"]
            if self.written is None:
                raise NotWritten
        return row


def numbered(text: str, before: int = 0) -> str:
    """Returns the statement with ``$1``, ``$2`` and so on in the place of each ``?``, after so many others."""
    head, *rest = text.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, start=before + 1))


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
    # The port of an address with several hosts cannot be asked for.
    return f"postgresql://{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}#{schema}"


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


# Tables


STEPS: tuple[str, ...] = (
    """
CREATE TABLE sessions (
  agent_id text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  entry bytea NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  updated_at bigint NOT NULL,
  session_id text COLLATE "C",
  label text COLLATE "C",
  spawned_by text COLLATE "C",
  session_ids text[] NOT NULL,
  words text NOT NULL,
  is_alias boolean NOT NULL,
  PRIMARY KEY (agent_id, key)
) WITH (fillfactor = 70);
CREATE INDEX sessions_recent ON sessions (updated_at DESC, key, agent_id);
CREATE INDEX sessions_of_agent ON sessions (agent_id, updated_at DESC, key);
CREATE INDEX sessions_key ON sessions (key);
CREATE INDEX sessions_label ON sessions (label) WHERE label IS NOT NULL;
CREATE INDEX sessions_spawned ON sessions (spawned_by) WHERE spawned_by IS NOT NULL;
CREATE INDEX sessions_ids ON sessions USING gin (session_ids);
CREATE TABLE transcripts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  agent_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  last_seq bigint NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  UNIQUE (agent_id, name)
) WITH (fillfactor = 70);
CREATE TABLE entries (
  transcript_id bigint NOT NULL,
  seq bigint NOT NULL,
  id text COLLATE "C",
  parent_id text COLLATE "C",
  type text COLLATE "C" NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (transcript_id, seq)
);
CREATE TABLE messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  dedupe_key text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  session_key text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  source text NOT NULL,
  route bytea NOT NULL,
  body bytea NOT NULL,
  state text COLLATE "C" NOT NULL,
  code text NOT NULL DEFAULT '',
  detail text NOT NULL DEFAULT '',
  attempts integer NOT NULL DEFAULT 0,
  accepted_at bigint NOT NULL,
  started_at bigint,
  ended_at bigint,
  result bytea
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX messages_dedupe ON messages (dedupe_key) WHERE dedupe_key <> '';
CREATE INDEX messages_unfinished ON messages (id) WHERE ended_at IS NULL;
CREATE INDEX messages_session ON messages (session_key, id);
CREATE INDEX messages_ended ON messages (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE story (
  ledger_id bigint NOT NULL,
  step integer NOT NULL,
  at bigint NOT NULL,
  state text NOT NULL,
  code text NOT NULL DEFAULT '',
  detail text NOT NULL DEFAULT '',
  PRIMARY KEY (ledger_id, step)
);
CREATE FUNCTION tell_accepted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO story (ledger_id, step, at, state) VALUES (NEW.id, 1, NEW.accepted_at, 'accepted');
  IF NEW.state <> 'accepted' THEN
    INSERT INTO story (ledger_id, step, at, state, code, detail)
    VALUES (NEW.id, 2, NEW.accepted_at, NEW.state, NEW.code, NEW.detail);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER accepted AFTER INSERT ON messages FOR EACH ROW EXECUTE FUNCTION tell_accepted();
CREATE FUNCTION tell_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO story (ledger_id, step, at, state, code, detail)
  SELECT NEW.id, coalesce(max(step), 0) + 1, NEW.ended_at, NEW.state, NEW.code, NEW.detail
  FROM story WHERE ledger_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER ended AFTER UPDATE OF ended_at ON messages FOR EACH ROW
WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION tell_ended();
CREATE TABLE tool_calls (
  step bigint GENERATED ALWAYS AS IDENTITY,
  ledger_id bigint NOT NULL,
  call_id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  arguments text NOT NULL,
  started_at bigint NOT NULL,
  finished_at bigint,
  ok boolean,
  PRIMARY KEY (ledger_id, call_id)
);
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ledger_id bigint NOT NULL,
  run_id text COLLATE "C" NOT NULL,
  part integer NOT NULL,
  channel text COLLATE "C" NOT NULL,
  route bytea NOT NULL,
  payload bytea NOT NULL,
  state text COLLATE "C" NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  next_at bigint NOT NULL DEFAULT 0,
  created_at bigint NOT NULL,
  error text NOT NULL DEFAULT '',
  doubts integer NOT NULL DEFAULT 0,
  code text NOT NULL DEFAULT '',
  message_id text NOT NULL DEFAULT '',
  UNIQUE (ledger_id, part)
);
CREATE INDEX outbox_pending ON outbox (next_at, id) WHERE state = 'pending';
CREATE TABLE seen (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text COLLATE "C" NOT NULL UNIQUE,
  at bigint NOT NULL
);
CREATE INDEX seen_at ON seen (at);
CREATE TABLE held (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text COLLATE "C" NOT NULL UNIQUE,
  message bytea NOT NULL,
  attempts integer NOT NULL DEFAULT 0
);
CREATE TABLE turned_away (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id text COLLATE "C" NOT NULL,
  channel text COLLATE "C" NOT NULL,
  chat text COLLATE "C" NOT NULL,
  sender text NOT NULL,
  code text NOT NULL,
  detail text NOT NULL,
  count integer NOT NULL,
  first_at bigint NOT NULL,
  last_at bigint NOT NULL,
  UNIQUE (message_id, channel, chat, code)
);
CREATE TABLE jobs (
  step bigint GENERATED ALWAYS AS IDENTITY,
  id text COLLATE "C" PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  owner_key text COLLATE "C" NOT NULL,
  run_id text COLLATE "C" NOT NULL,
  trace text COLLATE "C" NOT NULL,
  state bytea NOT NULL,
  created_at bigint NOT NULL,
  ended_at bigint
);
CREATE INDEX jobs_owner ON jobs (owner_key);
CREATE INDEX jobs_run ON jobs (run_id);
CREATE INDEX jobs_trace ON jobs (trace);
CREATE INDEX jobs_open ON jobs (created_at) WHERE ended_at IS NULL;
CREATE TABLE blobs (
  digest text COLLATE "C" PRIMARY KEY,
  data bytea NOT NULL
);
""",
    """
CREATE TABLE nodes (
  id text COLLATE "C" PRIMARY KEY,
  url text NOT NULL,
  fingerprint text NOT NULL DEFAULT '',
  host text NOT NULL,
  pid integer NOT NULL,
  version text NOT NULL,
  state text COLLATE "C" NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  ended_at timestamptz,
  load bytea NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
CREATE SEQUENCE claim_epochs;
CREATE TABLE claims (
  name text COLLATE "C" PRIMARY KEY,
  node text COLLATE "C" NOT NULL,
  epoch bigint NOT NULL DEFAULT nextval('claim_epochs')
);
CREATE INDEX claims_node ON claims (node);
CREATE TABLE documents (
  name text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL DEFAULT 1,
  data bytea NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE secrets (
  name text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);
INSERT INTO secrets VALUES
  ('links', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
DROP INDEX messages_unfinished;
CREATE INDEX messages_open ON messages (session_key, id) WHERE ended_at IS NULL;
CREATE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  writer text := current_setting('openclaw.node', true);
BEGIN
  IF writer <> '' THEN
    -- The takeover of the node takes this lock alone. So either it waits for this transaction, or this one sees it.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('openclaw-write/' || writer, 0));
    PERFORM 1 FROM nodes WHERE id = writer AND state IN ('alive', 'draining');
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the node % no longer counts', writer USING ERRCODE = 'OC001';
    END IF;
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE
  written text;
BEGIN
  FOREACH written IN ARRAY ARRAY['sessions', 'transcripts', 'entries', 'messages', 'story', 'tool_calls', 'outbox',
    'seen', 'held', 'turned_away', 'jobs', 'blobs', 'claims', 'documents']
  LOOP
    EXECUTE format('CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON %I FOR EACH STATEMENT '
      'EXECUTE FUNCTION fence()', written);
  END LOOP;
END $$;
""",
    """
CREATE OR REPLACE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  writer text := current_setting('openclaw.node', true);
BEGIN
  -- The lock is held until the transaction ends, so one look is enough for all its writes.
  IF writer <> '' AND current_setting('openclaw.counts', true) IS DISTINCT FROM 'yes' THEN
    -- The takeover of the node takes this lock alone. So either it waits for this transaction, or this one sees it.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('openclaw-write/' || writer, 0));
    PERFORM 1 FROM nodes WHERE id = writer AND state IN ('alive', 'draining');
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the node % no longer counts', writer USING ERRCODE = 'OC001';
    END IF;
    PERFORM set_config('openclaw.counts', 'yes', true);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION must_hold(wanted text, is_held boolean) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF NOT is_held THEN
    RAISE EXCEPTION '%', wanted USING ERRCODE = 'OC002';
  END IF;
  RETURN true;
END $$;
CREATE FUNCTION hold_message(ledger_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  wanted text := (SELECT 'session:' || agent_id || ':' || session_key FROM messages WHERE id = ledger_id);
BEGIN
  PERFORM 1 FROM claims WHERE name = wanted AND node = current_setting('openclaw.node', true) FOR KEY SHARE;
  RETURN must_hold(wanted, wanted IS NULL OR FOUND);
END $$;
""",
    """
CREATE FUNCTION destination_of(channel text, route bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  fields json;
BEGIN
  fields := convert_from(route, 'UTF8')::json;
  RETURN channel || E'\\n' || coalesce(fields ->> 'accountId', '') || E'\\n' || coalesce(fields ->> 'to', '')
    || E'\\n' || coalesce(fields ->> 'threadId', '');
EXCEPTION WHEN OTHERS THEN
  -- The route is damaged. Its part cannot be sent, but it must not make the end of a message fail.
  RETURN channel;
END $$;
ALTER TABLE outbox ADD COLUMN answered_errors integer NOT NULL DEFAULT 0,
  ADD COLUMN destination text COLLATE "C" GENERATED ALWAYS AS (destination_of(channel, route)) STORED;
DROP INDEX outbox_pending;
CREATE INDEX outbox_pending ON outbox (destination, id) WHERE state = 'pending';
""",
)
"""A step is never changed once it was released. ``schema_version`` holds how many have run."""


async def migrate(connection: Connection, schema: str) -> int:
    """Makes the schema and runs the steps that are missing. Returns how many ran."""
    # The names of the steps below are looked up in the schema, so it is the only one on the path.
    async with connection.transaction():
        # A Gateway that migrates may take longer than a lock_timeout of the server lets the others wait.
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('openclaw-migrate/' || $1, 0))", schema)
        quoted = '"' + schema.replace('"', '""') + '"'
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
        await connection.execute(f"SET LOCAL search_path = {quoted}")
        await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (steps integer NOT NULL)")
        done = await connection.fetchval("SELECT steps FROM schema_version")
        if done is None:
            await connection.execute("INSERT INTO schema_version VALUES (0)")
            done = 0
        if done > len(STEPS):
            raise StorageRefused(
                f"the schema {schema} was made by a newer version ({done} steps, known {len(STEPS)}); "
                "upgrade this program or use another schema"
            )
        for step in STEPS[done:]:
            await connection.execute(step)
        await connection.execute("UPDATE schema_version SET steps = $1", len(STEPS))
        return len(STEPS) - done
