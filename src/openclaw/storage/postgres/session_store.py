"""``SessionStore`` in PostgreSQL: one row for each session key, with columns for what is asked of it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

import msgspec

from openclaw import json_text
from openclaw.paths import normalize_agent_id
from openclaw.sessions.entry import SessionEntry, damaged_fields, repair_entry
from openclaw.sessions.keys import is_cron_run_alias
from openclaw.storage.errors import Fenced
from openclaw.storage.postgres.database import (
    ClaimEpoch,
    ClaimLost,
    NotWritten,
    PostgresDatabase,
    StaleWriter,
    Statement,
    without_nul,
)
from openclaw.storage.session_query import SessionPage, SessionQuery, search_text, session_ids, updated_at
from openclaw.storage.sessions import Change, SessionRow

Name: TypeAlias = tuple[str, str]
"""The agent and the session key."""
log = logging.getLogger(__name__)

MOST_CACHED = 20_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""The pauses between two tries to write a change that nobody waits for."""
MOST_TRIES = 50
"""How often a change is repeated because another one came first."""
_UPDATE = """
UPDATE sessions SET entry = ?, updated_at = ?, session_id = ?, label = ?, spawned_by = ?, session_ids = ?,
  words = ?, is_alias = ?, version = version + 1
WHERE agent_id = ? AND key = ? AND version = ? RETURNING 1 AS id"""
_INSERT = """
INSERT INTO sessions (entry, updated_at, session_id, label, spawned_by, session_ids, words, is_alias, agent_id, key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1 AS id"""
_DELETE = "DELETE FROM sessions WHERE agent_id = ? AND key = ? AND version = ? RETURNING 1 AS id"
_SELECT = "SELECT agent_id, key, entry FROM sessions"
_NEWEST_FIRST = " ORDER BY updated_at DESC, key, agent_id"


class CachedRow(msgspec.Struct, frozen=True):
    raw: bytes | None
    """None if the row does not exist."""
    version: int
    epoch: int = 0
    """The epoch of the session's owner when it was read. It counts no longer when that has changed."""


def _decode(key: str, raw: bytes) -> SessionEntry | None:
    """Return the entry of a row, repaired. None when the row does not hold an object."""
    try:
        value = json_text.decode_loosely(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        log.warning("the row of session %s does not hold a JSON object and is passed over", key)
        return None
    return cast("SessionEntry", repair_entry(key, value) if damaged_fields(value) else value)


def _rows(records: Iterable[Any]) -> list[SessionRow]:
    rows = ((agent, key, _decode(key, raw)) for agent, key, raw in records)
    return [SessionRow(agent, key, entry) for agent, key, entry in rows if entry is not None]


class PendingWrite:
    """What a row becomes. ``Ledger.accept`` writes it in the transaction of its message, ``sync`` in one of its own.

    Until it is written, later changes of the row are merged into it.
    """

    def __init__(self, store: PostgresSessionStore, name: Name, before: CachedRow) -> None:
        self._store = store
        self.name = name
        self._before = before
        self._changes: list[Change] = []
        self.raw = before.raw
        self.is_written = True
        self.lock = asyncio.Lock()
        """Held by whoever writes the change, until its transaction has ended."""

    def take_in(self, change: Change) -> None:
        """Makes a change of the row, after those before it."""
        raw = _changed(change, self.name[1], self.raw)
        if raw != self.raw:
            self.raw, self.is_written = raw, False
            self._changes.append(change)

    @property
    def row(self) -> CachedRow:
        """The row when it is written."""
        return CachedRow(self.raw, 0 if self.raw is None else self._before.version + 1)

    async def sync(self) -> None:
        if not self.is_written:
            try:
                await self._store.database.write_pending(self)
            except ClaimLost:
                self._store.forget(self)
                raise

    def add_to(self, statement: Statement) -> bool:
        if self.is_written:
            return False
        if self.raw is None and not self._before.version:
            self._note_written()
            return False
        statement.only_with(self._store.claim_for(self.name, self._before.epoch))
        _add_write(statement, self.name, self._before.version, self.raw)
        return True

    async def finish_write(self, written: int | None) -> None:
        if written is None and not await self._store.holds(self):
            try:
                await self._make_again()
            except BaseException:
                self._store.forget(self)
                raise
        self._note_written()

    async def _make_again(self) -> None:
        """Makes the changes of a row that another node has changed, to what it is now."""
        for _ in range(MOST_TRIES):
            self._before = await self._store.look_up_row(self.name)
            self.raw = self._before.raw
            for change in self._changes:
                self.raw = _changed(change, self.name[1], self.raw)
            if await self._store.write_row(self.name, self._before, self.raw):
                return
        raise StaleWriter(f"the session {self.name[1]} changes too often to be written")

    def _note_written(self) -> None:
        self.is_written = True
        self._store.note_written(self)


def _changed(change: Change, key: str, raw: bytes | None) -> bytes | None:
    changed = change(None if raw is None else _decode(key, raw))
    return None if changed is None else json_text.encode(changed)


def _add_write(statement: Statement, name: Name, version: int, raw: bytes | None) -> None:
    """Adds the write of a row whose version is known; 0 is a row that does not exist."""
    row = (without_nul(name[0]), without_nul(name[1]))
    if raw is None:
        statement.add("written", _DELETE, *row, version)
        return
    entry: dict[str, Any] = msgspec.json.decode(raw)
    values: list[Any] = [raw, updated_at(entry)]
    for field in ("sessionId", "label", "spawnedBy"):
        values.append(without_nul(value) if isinstance(value := entry.get(field), str) else None)
    values += [[without_nul(session_id) for session_id in session_ids(entry)], without_nul(search_text(name[1], entry))]
    values += [is_cron_run_alias(name[1]), *row]
    if version:
        statement.add("written", _UPDATE, *values, version)
    else:
        statement.add("written", _INSERT, *values)


class PostgresSessionStore:
    """Rows of sessions that this node owns are cached, because only the owner writes to them.

    A cached entry is read and changed without waiting for the server. So messages that come together stay in their
    order. ``claim_of`` tells the claim of this node on a session, with the epoch 0 when it does not own it. Without it,
    as in a tool that uses the schema alone, everything is owned.
    """

    def __init__(self, database: PostgresDatabase, claim_of: Callable[[str, str], ClaimEpoch] | None = None) -> None:
        self.database = database
        self._claim_of = claim_of
        self.on_foreign_write: Callable[[str, str], None] | None = None
        """Is told when this node has changed a session that another one owns."""
        self._names: OrderedDict[Name, str] = OrderedDict()
        """The keys of cached sessions, by agent and session id."""
        self._cache: OrderedDict[Name, CachedRow] = OrderedDict()
        self._complete = False
        """Whether the cache holds every row, so that an unknown name has none."""
        self._looked_up: dict[Name, asyncio.Task[CachedRow]] = {}
        self._pending: dict[Name, PendingWrite] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._agents: dict[str, None] = {}
        self._locks: WeakValueDictionary[Name, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def open(
        cls, database: PostgresDatabase, claim_of: Callable[[str, str], ClaimEpoch] | None = None
    ) -> PostgresSessionStore:
        store = cls(database, claim_of)
        await store.load_agents()
        if claim_of is not None:
            return store
        select = "SELECT agent_id, key, entry, version FROM sessions ORDER BY updated_at DESC LIMIT $1"
        rows = await database.rows(select, MOST_CACHED)
        store._cache.update(((agent, key), CachedRow(raw, version, 1)) for agent, key, raw, version in reversed(rows))
        store._complete = len(rows) < MOST_CACHED
        return store

    async def get(self, agent_id: str, key: str) -> SessionEntry | None:
        row = await self._row((normalize_agent_id(agent_id), key))
        return None if row.raw is None else _decode(key, row.raw)

    async def update(self, agent_id: str, key: str, change: Change, *, durable: bool = True) -> SessionEntry | None:
        entry, pending = await self.write(agent_id, key, change)
        if not durable:
            self._write_soon(pending)
            return entry
        for _ in range(MOST_TRIES):
            try:
                await pending.sync()
                break
            except StaleWriter:
                self.forget(pending)
                entry, pending = await self.write(agent_id, key, change)
        else:
            raise StaleWriter(f"the session {key} changes too often to be written")
        if entry is None:
            await self.load_agents()
        return entry

    async def write(self, agent_id: str, key: str, change: Change) -> tuple[SessionEntry | None, PendingWrite]:
        """Makes the change in memory. It is written by ``sync``, by the message that waits for it, or with the next
        change that is written."""
        name = (normalize_agent_id(agent_id), key)
        async with self._lock(name):
            while (waiting := self._pending.get(name)) is not None and waiting.lock.locked():
                async with waiting.lock:
                    pass  # Its transaction is under way, so nothing more can be merged into it.
            if waiting is None:
                waiting = PendingWrite(self, name, await self._row(name))
            waiting.take_in(change)
            raw = waiting.raw
            if not waiting.is_written:
                self._pending[name] = waiting
            if raw is not None:
                self._agents[name[0]] = None
        return None if raw is None else _decode(key, raw), waiting

    def _write_soon(self, pending: PendingWrite) -> None:
        task = asyncio.create_task(self._write_later(pending), name=f"write {pending.name[1]}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_later(self, pending: PendingWrite) -> None:
        pause = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(0)  # The ledger may write it in the same step.
            try:
                return await pending.sync()
            except StaleWriter as stale:
                log.error("a change of a session is lost: %s", stale)
                return self.forget(pending)
            except ClaimLost:
                return self.forget(pending)  # The session's owner goes on from what is written.
            except Fenced:
                return None  # The node discards its state and restarts, and it has logged that.
            except OSError as error:
                log.warning("a change of the session %s waits for the database: %s", pending.name[1], error)
            except Exception:
                log.exception("a change of the session %s could not be written", pending.name[1])
                return self.forget(pending)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def note_written(self, pending: PendingWrite) -> None:
        if self._pending.get(pending.name) is pending:
            del self._pending[pending.name]
        epoch = self._epoch_of(*pending.name)
        self._cache_row(pending.name, pending.row, epoch)
        if not epoch and self.on_foreign_write is not None:
            self.on_foreign_write(*pending.name)

    async def write_row(self, name: Name, before: CachedRow, raw: bytes | None) -> bool:
        """Writes a row in the place of another one. False when that is another one by now."""
        if raw is None and not before.version:
            return True
        statement = Statement()
        statement.only_with(self.claim_for(name, before.epoch))
        _add_write(statement, name, before.version, raw)
        try:
            await self.database.transact(lambda connection: statement.run(connection, "1"))
        except NotWritten:
            return False
        return True

    def forget_row(self, agent_id: str, key: str) -> None:
        """Read a session again that another node has changed."""
        self._cache.pop((agent_id, key), None)

    async def settle(self, agent_id: str, key: str) -> None:
        """Writes what waits to be written of one session."""
        if (pending := self._pending.get((agent_id, key))) is not None:
            await pending.sync()

    def _epoch_of(self, agent_id: str, key: str) -> int:
        return self._claim_of(agent_id, key).epoch if self._claim_of is not None else 1

    def claim_for(self, name: Name, read_in: int) -> ClaimEpoch | None:
        """The claim under which a row is written that was read in the epoch ``read_in``.

        It is None if this node did not own the session then and does not now. Such a write compares only the version.
        """
        if self._claim_of is None:
            return None
        held = self._claim_of(*name)
        return ClaimEpoch(held.name, held.epoch or read_in) if held.epoch or read_in else None

    def transcript_claim(self, agent_id: str, session_id: str) -> ClaimEpoch | None:
        """The claim on the session whose transcript this is. None when it is not known to be this node's."""
        key = self._names.get((agent_id, session_id))
        held = self._claim_of(agent_id, key) if key is not None and self._claim_of is not None else None
        return held if held is not None and held.epoch else None

    def _cache_row(self, name: Name, row: CachedRow, epoch: int) -> None:
        if not epoch:
            self._cache.pop(name, None)
            return
        self._cache[name] = CachedRow(row.raw, row.version, epoch)
        self._cache.move_to_end(name)
        if row.raw is not None and (session_id := (_decode(name[1], row.raw) or {}).get("sessionId")):
            self._names[name[0], session_id] = name[1]
            self._names.move_to_end((name[0], session_id))
            while len(self._names) > MOST_CACHED:
                self._names.popitem(last=False)
        while len(self._cache) > MOST_CACHED:
            self._cache.popitem(last=False)
            self._complete = False

    async def holds(self, pending: PendingWrite) -> bool:
        """Finds out whether a commit whose confirmation was lost has written the row."""
        return await self.look_up_row(pending.name) == pending.row

    def forget(self, pending: PendingWrite) -> None:
        """Drops what memory says of a row. The next call reads it."""
        if self._pending.get(pending.name) is pending:
            del self._pending[pending.name]
        self._cache.pop(pending.name, None)
        self._complete = False

    async def select(self, query: SessionQuery) -> SessionPage:
        await self._write_all_pending()
        where, values = _conditions(query)
        order = " ORDER BY updated_at, key DESC, agent_id DESC" if query.oldest_first else _NEWEST_FIRST
        page = f" LIMIT {max(0, query.limit)}" if query.limit is not None else ""
        page += f" OFFSET {max(0, query.offset)}" if query.offset else ""
        found = await self.database.rows(f"{_SELECT}{where}{order}{page}", *values)
        rows = _rows(found)
        total = await self.database.value(f"SELECT count(*) FROM sessions{where}", *values) if query.count else None
        return SessionPage(rows, total)

    async def find_session_id(self, session_id: str) -> SessionRow | None:
        await self._write_all_pending()
        record = await self.database.row(
            f"{_SELECT} WHERE session_ids @> ARRAY[$1] AND session_id = $1"
            " ORDER BY is_alias, updated_at DESC, key LIMIT 1",
            without_nul(session_id),
        )
        return next(iter(_rows([] if record is None else [record])), None)

    async def count(self, agent_id: str) -> int:
        await self._write_all_pending()
        return await self.database.value(
            "SELECT count(*) FROM sessions WHERE agent_id = $1", normalize_agent_id(agent_id)
        )

    @property
    def agent_ids(self) -> list[str]:
        return list(self._agents)

    def path(self, agent_id: str) -> str:
        return self.database.shown

    async def close_agent(self, agent_id: str) -> None:
        """Do nothing: its rows are deleted one by one, and it has no folder."""

    async def close(self) -> None:
        try:
            await self._write_all_pending()
        finally:
            for task in list(self._writing):
                task.cancel()

    def _lock(self, name: Name) -> asyncio.Lock:
        """The lock of the changes of one row. It lives as long as somebody holds it."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _row(self, name: Name) -> CachedRow:
        if (waiting := self._pending.get(name)) is not None:
            return waiting.row
        if (cached := self._cache.get(name)) is not None and cached.epoch == self._epoch_of(*name):
            self._cache.move_to_end(name)
            return cached
        if self._complete:
            return CachedRow(None, 0)
        # Callers that ask together share one look-up, and go on in their order.
        task = self._looked_up.get(name)
        if task is None:
            task = self._looked_up[name] = asyncio.create_task(self._look_up(name))
            task.add_done_callback(lambda _: self._looked_up.pop(name, None))
        return await asyncio.shield(task)

    async def _look_up(self, name: Name) -> CachedRow:
        epoch = self._epoch_of(*name)
        row = await self.look_up_row(name)
        if name in self._pending:
            return row
        # A row that changed its owner while it was read is not cached.
        self._cache_row(name, row, epoch if epoch == self._epoch_of(*name) else 0)
        return CachedRow(row.raw, row.version, epoch)

    async def look_up_row(self, name: Name) -> CachedRow:
        select = "SELECT entry, version FROM sessions WHERE agent_id = $1 AND key = $2"
        record = await self.database.row(select, without_nul(name[0]), without_nul(name[1]))
        return CachedRow(record[0], record[1]) if record is not None else CachedRow(None, 0)

    async def _write_all_pending(self) -> None:
        for pending in list(self._pending.values()):
            await pending.sync()

    async def load_agents(self) -> None:
        """Reads which agents have sessions. Other nodes may have made some."""
        # It skips from agent to agent, because a list of all rows would grow with their number.
        records = await self.database.rows(
            "WITH RECURSIVE each AS ((SELECT agent_id FROM sessions ORDER BY agent_id LIMIT 1) UNION ALL"
            " SELECT (SELECT s.agent_id FROM sessions s WHERE s.agent_id > each.agent_id ORDER BY s.agent_id LIMIT 1)"
            " FROM each WHERE each.agent_id IS NOT NULL) SELECT agent_id FROM each WHERE agent_id IS NOT NULL"
        )
        self._agents = dict.fromkeys(agent for (agent,) in records)


_PINNED = """(position('"pinnedAt":'::bytea in entry) > 0)"""
_ARCHIVED = """(CASE WHEN position('"archivedAt":'::bytea in entry) > 0
  THEN coalesce((convert_from(entry, 'UTF8')::json->>'archivedAt')::bigint, 0) >= updated_at ELSE false END)"""


def _conditions(query: SessionQuery) -> tuple[str, list[Any]]:
    """Returns the WHERE clause of a query and its values."""
    tests: list[str] = []
    values: list[Any] = []

    def add(test: str, value: Any) -> None:
        values.append(value)
        tests.append(test.replace("?", f"${len(values)}"))

    if query.agent_id is not None:
        add("agent_id = ?", normalize_agent_id(query.agent_id))
    for column in ("key", "label", "session_id", "spawned_by"):
        if (value := getattr(query, column)) is not None:
            add(f"{column} = ?", without_nul(value))
    if query.ever is not None:
        add("session_ids && ?", [without_nul(session_id) for session_id in sorted(query.ever)])
    if query.updated_since is not None:
        add("updated_at >= ?", query.updated_since)
    if query.updated_before is not None:
        add("updated_at < ?", query.updated_before)
    if query.pinned is not None:
        tests.append(_PINNED if query.pinned else f"NOT {_PINNED}")
    if query.archived is not None:
        tests.append(_ARCHIVED if query.archived else f"NOT {_ARCHIVED}")
    if query.text:
        add("strpos(words, ?) > 0", without_nul(query.text))
    if query.hidden_keys:
        add("key <> ALL (?)", list(query.hidden_keys))
    if not query.aliases:
        tests.append("NOT is_alias")
    return f" WHERE {' AND '.join(tests)}" if tests else "", values
