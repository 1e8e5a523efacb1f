"""Copies everything that the stores hold from files to PostgreSQL, or back. The source is only read.

A copy can be repeated after an interruption: what is there already and equal is left as it is. What differs is a
conflict, which is reported and left alone. Every transcript is read back and compared by its hash.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.paths import make_private_dir, normalize_agent_id
from openclaw.storage.files.disk import FileBlobStore, FileDocuments, put_in_place, write_temporary
from openclaw.storage.files.ledger import FileLedger
from openclaw.storage.files.ledger_db import KEYS
from openclaw.storage.files.session_store import FileSessionStore, sessions_folders
from openclaw.storage.files.transcript_index import SUFFIX, plain_name, whole_lines
from openclaw.storage.postgres.database import PostgresDatabase, without_nul
from openclaw.storage.postgres.documents import PostgresBlobStore, PostgresDocuments
from openclaw.storage.postgres.session_store import PostgresSessionStore
from openclaw.storage.postgres.transcript import PER_READ, LineParser, TranscriptRow, insert_lines, make_row
from openclaw.storage.session_query import SessionQuery, in_pages

if TYPE_CHECKING:
    from openclaw.sessions.entry import SessionEntry
    from openclaw.storage.documents import DocumentStore
    from openclaw.storage.postgres.database import Connection
    from openclaw.storage.sessions import SessionStore

Tell: TypeAlias = Callable[[str, int], None]
"""Is told what is being copied and how many were done."""
_NUMBERED = {table: key for table, key in KEYS.items() if key in ("id", "step")}
"""The tables whose rows have numbers that the database gives."""
_BYTES = frozenset({"route", "body", "result", "payload", "message"})
_ROWS_AT_ONCE = 500
DOCUMENTS = (
    *("credentials/*-pairing.json", "credentials/*-allowFrom.json", "credentials/*-names.json"),
    *("devices/paired.json", "devices/pending.json", "exec-approvals.json", "exec-pending.json"),
    *("nodes/paired.json", "nodes/pending.json", "nodes/names.json", "nodes/runs.json"),
    *("cron/jobs.json", "cron/jobs.json.journal", "cron/runs/*.jsonl", "system-events.json"),
    *("heartbeat.json", "first-sessions.json", "hook-runs.json"),
    *("channels/*/*/last-event", "channels/*/*/last-update", "channels/*/*/last-message", "channels/*/*/session"),
    *("channels/*/*/sync-token", "channels/*/*/drafts", "channels/*/*/login.json"),
)
"""The files of a state folder that are documents. ``storage/documents.py`` says what that is."""


class Copied(msgspec.Struct, kw_only=True):
    """What a copy has done."""

    transcripts: int = 0
    lines: int = 0
    sessions: int = 0
    messages: int = 0
    blobs: int = 0
    documents: int = 0
    """Pairings, devices, scheduled jobs, rules and the like."""
    present: int = 0
    """Items that existed already and are equal."""
    conflicts: list[str] = []


class FolderTranscript(msgspec.Struct, frozen=True):
    agent_id: str
    name: str
    path: Path


async def copy_to_postgres(
    state: Path,
    database: PostgresDatabase,
    agents: Sequence[str],
    template: str | None,
    clock: Clock,
    tell: Tell,
    cron_store: str | None = None,
) -> Copied:
    """Copies a state folder into an empty schema, or goes on with an earlier copy. No Gateway may run on either."""
    done = Copied()
    sessions = await FileSessionStore.open(str(state), clock=clock, store_template=template, agent_ids=agents)
    ledger = await FileLedger.open(str(state), clock=clock)
    await ledger.close()  # It has brought the tables up to date.
    try:
        agent_ids = sorted({*map(normalize_agent_id, agents), *sessions.agent_ids})
        for transcript in await asyncio.to_thread(list, _transcripts(state, agent_ids, template)):
            await _transcript_to_postgres(database, transcript, clock, done)
            tell("transcripts", done.transcripts + done.present)
        rows = await PostgresSessionStore.open(database)
        await _copy_sessions(sessions, rows, done, tell)
        await rows.close()  # The last rows are written now.
        done.messages = await _ledger_to_postgres(database, state / "ledger.db", done)
        blobs, copies = PostgresBlobStore(database, str(state)), FileBlobStore(str(state))
        for digest in await asyncio.to_thread(_blob_names, state):
            if (data := await copies.get(digest)) is not None:
                await blobs.put(data)
                done.blobs += 1
                tell("blobs", done.blobs)
        files = folder_documents(state, cron_store)
        named = {
            name: transcript
            for name, transcript in files.items()
            if await transcript.store.version(transcript.name) is not None
        }
        await _copy_documents(named, lambda name: PlacedDocument(PostgresDocuments(database), name), done, tell)
    finally:
        await sessions.close()
    return done


async def copy_to_files(
    database: PostgresDatabase,
    state: Path,
    agents: Sequence[str],
    template: str | None,
    clock: Clock,
    tell: Tell,
    cron_store: str | None = None,
) -> Copied:
    """Copies a schema into a state folder that holds nothing else, or goes on with an earlier copy."""
    done = Copied()
    make_private_dir(str(state))
    folder_of = sessions_folders(str(state), template)
    rows = await database.rows("SELECT id, agent_id, name FROM transcripts ORDER BY id")
    for own, agent, name in rows:
        path = folder_of(agent) / Path(name).name
        await _transcript_to_file(database, own, path, done)
        tell("transcripts", done.transcripts + done.present)
    sessions = await FileSessionStore.open(str(state), clock=clock, store_template=template, agent_ids=agents)
    try:
        await _copy_sessions(await PostgresSessionStore.open(database), sessions, done, tell)
    finally:
        await sessions.close()
    ledger = await FileLedger.open(str(state), clock=clock)
    await ledger.close()
    done.messages = await _ledger_to_files(database, state / "ledger.db", done)
    copies = FileBlobStore(str(state))
    for (digest,) in await database.rows("SELECT digest FROM blobs ORDER BY digest"):
        await copies.put(await database.value("SELECT data FROM blobs WHERE digest = $1", digest))
        done.blobs += 1
        tell("blobs", done.blobs)
    rows = PostgresDocuments(database)
    named = {name: PlacedDocument(rows, name) for name in await rows.list("")}
    await _copy_documents(named, lambda name: _place_of(state, name, cron_store), done, tell)
    return done


# Documents


class PlacedDocument(NamedTuple):
    store: DocumentStore
    name: str


def folder_documents(state: Path, cron_store: str | None) -> dict[str, PlacedDocument]:
    """The documents of a state folder by the names that they have in a database."""
    names = {path.relative_to(state).as_posix() for pattern in DOCUMENTS for path in state.glob(pattern)}
    if cron_store:
        path = Path(cron_store).expanduser()
        names = {name for name in names if not name.startswith("cron/")}
        names |= {"cron/jobs.json", "cron/jobs.json.journal"}
        names |= {f"cron/runs/{file.name}" for file in path.parent.glob("runs/*.jsonl")}
    return {name: _place_of(state, name, cron_store) for name in sorted(names)}


def _place_of(state: Path, name: str, cron_store: str | None) -> PlacedDocument:
    if cron_store and name.startswith("cron/"):
        path = Path(cron_store).expanduser()
        own = name.removeprefix("cron/")
        if own.startswith("jobs.json"):
            own = path.name + own.removeprefix("jobs.json")
        return PlacedDocument(FileDocuments(path.parent), own)
    return PlacedDocument(FileDocuments(state), name)


async def _copy_documents(
    source: dict[str, PlacedDocument], target_of: Callable[[str], PlacedDocument], done: Copied, tell: Tell
) -> None:
    for name, (store, own) in source.items():
        target, there = target_of(name)
        own_content, target_content = await store.get(own), await target.get(there)
        if own_content is None:
            continue
        if target_content is None:
            await target.put(there, own_content.data, None)
            done.documents += 1
            tell("documents", done.documents)
            target_content = await target.get(there)
        else:
            done.present += 1
        if target_content is None or target_content.data != own_content.data:
            done.conflicts.append(f"{name} differs")


# Transcripts


def _transcripts(state: Path, agents: Sequence[str], template: str | None) -> Iterator[FolderTranscript]:
    """Yields the transcripts of the folder, also archived and compressed ones. A plain file comes before its copy."""
    folder_of = sessions_folders(str(state), template)
    usual = sessions_folders(str(state), None)
    seen: set[tuple[str, str]] = set()
    for agent in agents:
        for folder in dict.fromkeys([folder_of(agent), usual(agent)]):
            for path in sorted(folder.glob("*.jsonl*")):
                name = plain_name(path).name if path.name.endswith(SUFFIX) else path.name
                if path.is_file() and not path.name.endswith(".tmp") and (agent, name) not in seen:
                    seen.add((agent, name))
                    yield FolderTranscript(agent, name, path)


async def _transcript_to_postgres(
    database: PostgresDatabase, transcript: FolderTranscript, clock: Clock, done: Copied
) -> None:
    digest, lines, session_id = await asyncio.to_thread(_hash_file, transcript.path)
    find = "SELECT id FROM transcripts WHERE agent_id = $1 AND name = $2"
    existing = await database.value(find, transcript.agent_id, without_nul(transcript.name))
    if existing is None:
        row = TranscriptRow(transcript.agent_id, transcript.name, session_id or transcript.name.partition(".jsonl")[0])
        await database.transact(
            lambda connection: _insert_file(connection, row, transcript.path, lines, clock.now_ms())
        )
        existing = await database.value(find, transcript.agent_id, without_nul(transcript.name))
        done.transcripts += 1
        done.lines += lines
    else:
        done.present += 1
    if await _hash_rows(database, existing) != digest:
        done.conflicts.append(f"the transcript {transcript.name} of {transcript.agent_id} differs")


async def _insert_file(connection: Connection, row: TranscriptRow, path: Path, lines: int, now: int) -> None:
    made = await make_row(connection, row, lines, now)
    assert made is not None
    parser = LineParser()
    batch = []
    for body in whole_lines(path):
        if (line := parser.take(body.removesuffix(b"\n"))) is not None:
            batch.append(line)
        if len(batch) >= PER_READ:
            await insert_lines(connection, made, batch)
            batch = []
    await insert_lines(connection, made, batch)


def _hash_file(path: Path) -> tuple[str, int, str]:
    """Returns the hash of the lines that are kept, their number, and the session that the header names."""
    parser, digest = LineParser(), hashlib.sha256()
    count = 0
    for body in whole_lines(path):
        if (line := parser.take(body.removesuffix(b"\n"))) is not None:
            digest.update(line.body + b"\n")
            count += 1
    return digest.hexdigest(), count, str((parser.header or {}).get("id") or "")


async def _bodies(database: PostgresDatabase, transcript_id: int) -> AsyncIterator[bytes]:
    last = 0
    select = "SELECT seq, body FROM entries WHERE transcript_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
    while rows := await database.rows(select, transcript_id, last, PER_READ):
        for seq, body in rows:
            last = seq
            yield body


async def _hash_rows(database: PostgresDatabase, transcript_id: int) -> str:
    digest = hashlib.sha256()
    async for body in _bodies(database, transcript_id):
        digest.update(body + b"\n")
    return digest.hexdigest()


async def _transcript_to_file(database: PostgresDatabase, transcript_id: int, path: Path, done: Copied) -> None:
    expected = await _hash_rows(database, transcript_id)
    if path.exists():
        done.present += 1
    else:
        # The lines of one transcript fit into memory, because an open one has most of them there.
        lines = [body + b"\n" async for body in _bodies(database, transcript_id)]
        await asyncio.to_thread(lambda: put_in_place(write_temporary(path, lines), path))
        done.transcripts += 1
        done.lines += len(lines)
    if (await asyncio.to_thread(_hash_file, path))[0] != expected:
        done.conflicts.append(f"{path} differs")


# Sessions


async def _copy_sessions(source: SessionStore, target: SessionStore, done: Copied, tell: Tell) -> None:
    async for row in in_pages(source, SessionQuery()):
        existing = await target.get(row.agent_id, row.key)
        if existing is not None:
            done.present += 1
            if existing != row.entry:
                done.conflicts.append(f"the session {row.key} differs")
            continue

        def put(_: SessionEntry | None, entry: SessionEntry = row.entry) -> SessionEntry:
            return entry

        await target.update(row.agent_id, row.key, put, durable=False)
        done.sessions += 1
        tell("sessions", done.sessions)


# The ledger


def _blob_names(state: Path) -> list[str]:
    folder = state / "blobs"
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _columns(ledger: sqlite3.Connection, table: str) -> list[str]:
    """The columns of a table of the ledger, which have the same names in SQLite and in PostgreSQL.

    The destination of a part is left out, because both databases derive it from the route.
    """
    return [row[1] for row in ledger.execute(f"PRAGMA table_info({table})") if row[1] != "destination"]


def _row(table: str, names: Sequence[str], row: Sequence[Any]) -> list[Any]:
    """A row of SQLite as PostgreSQL takes it."""

    def column(name: str, value: Any) -> Any:
        if name in _BYTES or (table == "jobs" and name == "state"):
            return value.encode() if isinstance(value, str) else value
        if name == "ok":
            return None if value is None else bool(value)
        return without_nul(value) if isinstance(value, str) else value

    return [column(name, value) for name, value in zip(names, row, strict=True)]


async def _ledger_to_postgres(database: PostgresDatabase, path: Path, done: Copied) -> int:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as ledger:
        (there,) = ledger.execute("SELECT count(*) FROM messages").fetchone()
        here = await database.value("SELECT count(*) FROM messages")
        if here:
            done.present += here
            if here != there:
                done.conflicts.append(f"the database holds {here} messages and the folder {there}")
            return 0

        async def work(connection: Connection) -> None:
            # The story of each message is copied. The trigger would tell its beginning again.
            await connection.execute("ALTER TABLE messages DISABLE TRIGGER USER")
            for table in KEYS:
                names = _columns(ledger, table)
                marks = ", ".join(f"${number}" for number in range(1, len(names) + 1))
                insert = f"INSERT INTO {table} ({', '.join(names)}) OVERRIDING SYSTEM VALUE VALUES ({marks})"
                rows = ledger.execute(f"SELECT {', '.join(names)} FROM {table}")
                while batch := rows.fetchmany(_ROWS_AT_ONCE):
                    await connection.executemany(insert, [_row(table, names, row) for row in batch])
                if (numbered := _NUMBERED.get(table)) is not None:
                    await connection.execute(
                        f"SELECT setval(pg_get_serial_sequence('{table}', '{numbered}'), max({numbered})) FROM {table}"
                        f" HAVING max({numbered}) IS NOT NULL"
                    )
            await connection.execute("ALTER TABLE messages ENABLE TRIGGER USER")

        await database.transact(work)
        return there


async def _ledger_to_files(database: PostgresDatabase, path: Path, done: Copied) -> int:
    there = await database.value("SELECT count(*) FROM messages")
    with contextlib.closing(sqlite3.connect(path)) as ledger, ledger:
        (here,) = ledger.execute("SELECT count(*) FROM messages").fetchone()
        if here:
            done.present += here
            if here != there:
                done.conflicts.append(f"the folder holds {here} messages and the database {there}")
            return 0
        for table in KEYS:
            names = _columns(ledger, table)
            insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            rows = await database.rows(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2")
            ledger.executemany(insert, [tuple(row) for row in rows])
    return there
