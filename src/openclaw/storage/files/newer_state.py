"""Whether this version can serve a state folder; and folders of a newer generation, read without writing to them.

From 2026.8 on, OpenClaw keeps an agent's sessions and transcripts in ``agents/<agent>/agent/openclaw-agent.sqlite``:

* ``session_nodes`` (``session_entries`` before database schema 14): session key → current session id and entry;
* ``session_windows`` (``sessions`` before 14): every session that a key has or had;
* ``transcript_events``: the lines of the transcripts, as text or (from 23 on) compressed with zstd;
* ``session_transcript_cold_archives``: transcripts moved to ``sessions/cold/`` or into a blob (from 20 on);
* ``session_transcript_archives``: transcripts of sessions that were reset or deleted.

The transcript files of the generation before, which is ours, go to ``agents/<agent>/session-sqlite-import-archive/``.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import zstandard

from openclaw.findings import Finding
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import DEFAULT_AGENT
from openclaw.storage.files.store_file import parse_store
from openclaw.storage.files.transcript_index import SUFFIX, decompress, plain_blocks

DATABASES = "agent/openclaw-agent*.sqlite"
ARCHIVE = "session-sqlite-import-archive"
FIRST_WITH_SESSIONS = 4
"""Databases before this schema hold no sessions."""
LARGEST_EVENT = 64 << 20
"""The most bytes that one compressed line may decompress to."""
_COPY_ATTEMPTS = 3
_ARCHIVED = re.compile(r"(?:.*\.)?([^.]+)\.jsonl(?:\.[^.]+)*\.imported-\d+(?:\.\d+)?")


class Unreadable(Exception):
    """Something in the folder cannot be read. The text says what, and what to do."""


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables and columns of one database."""

    keys: str
    current: str
    """The column of ``keys`` with the current session id."""
    windows: str
    compressed: bool
    """Lines may be compressed."""
    cold: bool
    ended: bool
    """Transcripts of sessions that a reset ended have a table of their own."""


class FoundSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session of the folder, with its transcript."""

    agent_id: str
    key: str | None
    """None when nothing says which conversation it belongs to."""
    session_id: str
    current: bool
    """It is the present session of its key, not one that a reset has ended."""
    updated_at: int
    entry: Mapping[str, Any]
    """The entry of its key; empty for a session that is not current."""
    place: str
    """Where it was found, relative to the folder."""
    lines: Callable[[], Iterator[bytes]]
    """Reads the lines of the transcript. Raises ``Unreadable``."""


class Database:
    """One agent's database of the newer generation."""

    def __init__(self, state: Path, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._state = state
        self.place = str(path.relative_to(state))
        self.agent_id = normalize_agent_id(path.parent.parent.name)
        self._connection = connection
        connection.text_factory = bytes
        self.schema, self.version = self._versions()

    @property
    def name(self) -> str:
        """The version that wrote it, in words."""
        return f"OpenClaw {self.version or '2026.8 or newer'} (database schema {self.schema})"

    def tables(self) -> Tables | None:
        """None when the database holds no sessions: the first databases had none. Raises ``Unreadable``."""
        events = self._columns("transcript_events")
        nodes, entries = self._columns("session_nodes"), self._columns("session_entries")
        windows = self._columns("session_windows"), self._columns("sessions")
        if not (events or nodes or entries or any(windows)) and self.schema < FIRST_WITH_SESSIONS:
            return None
        tables = Tables(
            keys="session_nodes" if nodes else "session_entries",
            current="current_session_id" if nodes else "session_id",
            windows="session_windows" if windows[0] else "sessions",
            compressed="event_zstd" in events,
            cold=bool(self._columns("session_transcript_cold_archives")),
            ended=bool(self._columns("session_transcript_archives")),
        )
        expected = {
            tables.keys: {"session_key", tables.current, "entry_json"} - (nodes or entries),
            tables.windows: {"session_id", "session_key", "updated_at"} - (windows[0] or windows[1]),
            "transcript_events": {"session_id", "seq", "event_json"} - events,
        }
        lacking = [f"{table}.{column}" for table, columns in expected.items() for column in sorted(columns)]
        if lacking:
            raise Unreadable(
                f"{self.path} of {self.name} has another layout than the ones known ({', '.join(lacking)} is missing); "
                "update this OpenClaw, or export the sessions with the version that wrote them"
            )
        return tables

    def sessions(self) -> Iterator[FoundSession]:
        """Every session that has a transcript or is the current one of its key. Raises ``Unreadable``."""
        tables = self.tables()
        if tables is None:
            return
        current: dict[str, str] = {}
        entries: dict[str, dict[str, Any]] = {}
        for key, session_id, entry in self._rows(
            f"SELECT session_key, {tables.current}, entry_json FROM {tables.keys}"
        ):
            current[session_id] = key
            entries[key] = _object(entry) or {}
        windows = {
            session_id: (key, updated)
            for session_id, key, updated in self._rows(
                f"SELECT session_id, session_key, updated_at FROM {tables.windows}"
            )
        }
        written = {session_id for (session_id,) in self._rows("SELECT DISTINCT session_id FROM transcript_events")}
        cold = self._cold() if tables.cold else set[str]()
        for session_id in sorted({*written, *cold, *current}):
            key, updated = windows.get(session_id, (current.get(session_id), 0))
            is_current = current.get(session_id) == key and key is not None
            yield FoundSession(
                agent_id=self.agent_id,
                key=key,
                session_id=session_id,
                current=is_current,
                updated_at=int(updated or 0),
                entry=entries.get(key or "", {}) if is_current else {},
                place=self.place,
                lines=partial(self._lines, session_id, tables, session_id in cold and session_id not in written),
            )
        if tables.ended:
            yield from self._ended({*written, *cold, *current})

    def event_counts(self) -> dict[str, int]:
        """The number of transcript lines of each session that has any."""
        tables = self.tables()
        if tables is None:
            return {}
        counts = dict(self._rows("SELECT session_id, count(*) FROM transcript_events GROUP BY session_id"))
        if tables.cold:
            query = "SELECT session_id, event_count FROM session_transcript_cold_archives"
            counts |= {session_id: count for session_id, count in self._rows(query) if session_id not in counts}
        return counts

    def _ended(self, others: set[str]) -> Iterator[FoundSession]:
        """Sessions that a reset ended, the newest transcript of each. Deleted ones stay deleted."""
        query = (
            "SELECT session_id, session_key, max(created_at) FROM session_transcript_archives "
            "WHERE reason = 'reset' GROUP BY session_id"
        )
        for session_id, key, ended in self._rows(query):
            if session_id not in others:
                yield FoundSession(
                    agent_id=self.agent_id,
                    key=key,
                    session_id=session_id,
                    current=False,
                    updated_at=int(ended or 0),
                    entry={},
                    place=self.place,
                    lines=partial(self._ended_lines, session_id),
                )

    def _ended_lines(self, session_id: str) -> Iterator[bytes]:
        query = (
            "SELECT encoding, archive_blob, archive_sha256 FROM session_transcript_archives "
            "WHERE session_id = ? AND reason = 'reset' ORDER BY created_at DESC LIMIT 1"
        )
        ((encoding, blob, digest),) = self._raw_rows(query, session_id)
        for line in _lines_of(_checked_blocks(blob, digest, session_id, compressed=encoding == b"zstd")):
            yield _one_line(line, f"{self.place}: a line of {session_id}")

    def _cold(self) -> set[str]:
        return {session_id for (session_id,) in self._rows("SELECT session_id FROM session_transcript_cold_archives")}

    def _lines(self, session_id: str, tables: Tables, cold: bool) -> Iterator[bytes]:
        if cold:
            yield from self._cold_lines(session_id)
            return
        compressed = "event_zstd" if tables.compressed else "NULL"
        query = f"SELECT seq, event_json, {compressed} FROM transcript_events WHERE session_id = ? ORDER BY seq"
        for seq, text, blob in self._raw_rows(query, session_id):
            if text is None and blob is None:
                raise Unreadable(f"{self.place}: event {seq} of session {session_id} is stored in an unknown way")
            yield _one_line(_decompress(blob) if text is None else text, f"{self.place}: event {seq} of {session_id}")

    def _cold_lines(self, session_id: str) -> Iterator[bytes]:
        query = (
            "SELECT archive_name, archive_sha256, storage, archive_blob FROM session_transcript_cold_archives "
            "WHERE session_id = ?"
        )
        ((name, digest, storage, blob),) = self._raw_rows(query, session_id)
        if storage != b"sqlite":
            file = self.path.parent.parent / "sessions" / "cold" / Path(name.decode()).name
            if not is_inside(self._state, file):
                raise Unreadable(f"{file} {LEADS_OUT}")
            try:
                blob = file.read_bytes()
            except OSError as error:
                raise Unreadable(
                    f"the transcript of session {session_id} is missing: {file}: {error.strerror}"
                ) from None
        for line in _lines_of(_checked_blocks(blob, digest, session_id, compressed=True)):
            record = _object(line) or {}
            if record.get("kind") == "event":
                text = str((record.get("row") or {}).get("event_json"))
                yield _one_line(text.encode(), f"{self.place}: an archived event of {session_id}")

    def _versions(self) -> tuple[int, str]:
        (schema,) = next(self._raw_rows("PRAGMA user_version"))
        version = b""
        if self._columns("schema_meta") >= {"schema_version", "app_version", "updated_at"}:
            query = "SELECT schema_version, app_version FROM schema_meta ORDER BY updated_at DESC LIMIT 1"
            schema, version = next(self._raw_rows(query), (schema, version))
        return int(schema or 0), (version or b"").decode("utf-8", "replace")

    def _columns(self, table: str) -> set[str]:
        return {name.decode() for _, name, *_ in self._raw_rows(f"PRAGMA table_info({table})")}

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        for row in self._raw_rows(query):
            yield tuple(value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row)

    def _raw_rows(self, query: str, *values: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as error:
            raise Unreadable(f"{self.path} cannot be read: {error}") from None


def database_files(state: Path) -> list[Path]:
    """Return the databases of all agents. Those that links lead to outside the folder are left out."""
    return [path for path in _databases(state) if is_inside(state, path, *_logs(path))]


def _databases(state: Path) -> list[Path]:
    return sorted((state / "agents").glob(f"*/{DATABASES}"))


def _logs(database: Path) -> list[Path]:
    """Return the unfinished logs of a database."""
    logs = (Path(f"{database}{end}") for end in ("-wal", "-journal"))
    return [log for log in logs if log.is_file() and log.stat().st_size]


@contextlib.contextmanager
def open_databases(state: Path, files: Iterable[Path]) -> Generator[list[Database]]:
    """Open databases of a folder, without writing to it. Raises ``Unreadable``."""
    with contextlib.ExitStack() as stack:
        yield [Database(state, path, stack.enter_context(open_read_only(path))) for path in files]


@contextlib.contextmanager
def open_read_only(path: Path) -> Generator[sqlite3.Connection]:
    """Opens a database without any change to its folder. One with an unfinished log is copied, and the copy opened."""
    logs = _logs(path)
    with contextlib.ExitStack() as stack:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        if logs:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openclaw-import-")))
            _copy_at_rest([path, *logs], folder)
            uri = (folder / path.name).as_uri()
        try:
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise Unreadable(f"{path} cannot be opened: {error}") from None
        yield stack.enter_context(closing(connection))


def _copy_at_rest(files: list[Path], folder: Path) -> None:
    for _ in range(_COPY_ATTEMPTS):
        before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        try:
            for file in files:
                shutil.copy(file, folder)
        except OSError as error:
            raise Unreadable(
                f"{files[0]} cannot be copied to {folder}: {error.strerror}; set TMPDIR elsewhere"
            ) from None
        if before == [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]:
            return
    raise Unreadable(f"{files[0]} is being written to; stop the OpenClaw that uses it, then try again")


# Files: those of our own generation, and the ones that the newer generation has moved away


LEADS_OUT = "is a link that leads out of the folder and is not followed; put a copy in its place"


def is_inside(folder: Path, *paths: Path) -> bool:
    """Whether the paths are below the folder after all links are resolved."""
    root = folder.resolve()
    return all(path.resolve().is_relative_to(root) for path in paths)


def outward_links(state: Path) -> Iterator[Path]:
    """The folders, stores and databases of agents that cannot be read because a link leads out of the state folder."""
    for home in sorted((state / "agents").glob("*")):
        if is_inside(state, home):
            folders = [folder for name in ("agent", "sessions", ARCHIVE) if (folder := home / name).is_dir()]
            outside = [folder for folder in folders if not is_inside(state, folder)]
            yield from outside
            files = [*_stores(home), *home.glob(DATABASES)]
            parts = [(file, [file, *_logs(file)]) for file in files if file.parent not in outside and file.is_file()]
            yield from (file for file, linked in parts if not is_inside(state, *linked))
        elif home.is_dir():
            yield home


def _stores(home: Path) -> list[Path]:
    return [home / "sessions" / "sessions.json", *sorted((home / ARCHIVE).glob("*sessions.json*"))]


def file_sessions(state: Path) -> Iterator[FoundSession]:
    """The sessions of ``sessions.json`` files, and archived transcripts that belong to none."""
    for home in sorted((state / "agents").glob("*")):
        if not is_inside(state, home, home / "sessions", home / ARCHIVE):
            continue
        agent = normalize_agent_id(home.name)
        archived = archived_transcripts(home)
        listed: set[str] = set()
        for key, entry in _entries([store for store in _stores(home) if is_inside(state, store)]).items():
            session_id = str(entry["sessionId"])
            listed.add(session_id)
            file = _transcript_file(home, session_id, entry) or archived.get(session_id)
            if file is not None:
                yield _file_session(state, agent, key, session_id, file, entry)
        for session_id, file in archived.items():
            if session_id not in listed:
                yield _file_session(state, agent, None, session_id, file, {})


def archived_transcripts(home: Path) -> dict[str, Path]:
    """The transcripts that a newer OpenClaw moved out of an agent's folder, by session id. The newest counts."""
    transcripts: dict[str, Path] = {}
    for file in sorted((home / ARCHIVE).glob("*.imported-*")):
        if match := _ARCHIVED.fullmatch(file.name):
            transcripts[match[1]] = file
    return transcripts


def _entries(stores: list[Path]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for store in stores:
        with contextlib.suppress(OSError):
            for key, entry in (parse_store(store.read_bytes()) or {}).items():
                if isinstance(entry, dict) and isinstance(entry.get("sessionId"), str):
                    entries.setdefault(key, entry)
    return entries


def _transcript_file(home: Path, session_id: str, entry: Mapping[str, Any]) -> Path | None:
    named = Path(str(entry.get("sessionFile") or f"{session_id}.jsonl")).name
    for name in (named, f"{session_id}.jsonl", f"{session_id}.jsonl{SUFFIX}"):
        if (file := home / "sessions" / name).is_file():
            return file
    return None


def _file_session(
    state: Path, agent: str, key: str | None, session_id: str, file: Path, entry: dict[str, Any]
) -> FoundSession:
    updated = entry.get("updatedAt")
    return FoundSession(
        agent_id=agent,
        key=key,
        session_id=session_id,
        current=key is not None,
        updated_at=int(updated) if isinstance(updated, int | float) else file.stat().st_mtime_ns // 1_000_000,
        entry=entry,
        place=str(file.relative_to(state)),
        lines=partial(_file_lines, state, file),
    )


def _file_lines(state: Path, file: Path) -> Iterator[bytes]:
    if not is_inside(state, file):
        raise Unreadable(f"{file} {LEADS_OUT}")
    try:
        yield from _lines_of(plain_blocks(file))
    except OSError as error:
        raise Unreadable(f"{file} cannot be read: {error.strerror}") from None


def _checked_blocks(blob: bytes, digest: bytes, session_id: str, *, compressed: bool) -> Iterator[bytes]:
    """The content of an archived transcript, after its hash was compared."""
    if hashlib.sha256(blob).hexdigest().encode() != digest:
        raise Unreadable(f"the archived transcript of session {session_id} is damaged (its hash differs)")
    if not compressed:
        yield blob
        return
    try:
        with zstandard.ZstdDecompressor().stream_reader(blob) as reader:
            yield from iter(partial(reader.read, 1 << 20), b"")
    except zstandard.ZstdError as error:
        raise Unreadable(f"the archived transcript of session {session_id} is damaged: {error}") from None


def _lines_of(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _one_line(raw: bytes, what: str) -> bytes:
    """The event as one line of a transcript."""
    if _object(raw) is None:
        raise Unreadable(f"{what} is not a JSON object")
    return raw if b"\n" not in raw else msgspec.json.format(raw, indent=-1)


def _object(raw: bytes | str | None) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(raw or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _decompress(blob: bytes) -> bytes:
    try:
        return decompress(blob, LARGEST_EVENT)
    except zstandard.ZstdError as error:
        raise Unreadable(f"a compressed event is damaged: {error}") from None


_STORE_FILES = ("sessions.json", "sessions.json.bak", "sessions.journal", "sessions.journal.folding")
FolderOf: TypeAlias = Callable[[str], Path]
"""Returns the folder of an agent's sessions."""


def check_generation(state: Path, folder_of: FolderOf) -> None:
    """Raises ``Unreadable`` when the folder holds sessions that only a newer OpenClaw shows."""
    hidden = list(hidden_sessions(state, folder_of))
    if hidden:
        raise Unreadable(
            f"{'; '.join(hidden)}. This version does not open them and would begin again as if nothing had been said: "
            f"use the version that wrote them, or read them into a folder of their own with "
            f"`OPENCLAW_STATE_DIR={state}-imported openclaw sessions import --from {state}` and start with that folder."
        )


def hidden_sessions(state: Path, folder_of: FolderOf) -> Iterator[str]:
    """Sentences about sessions of the folder that this version does not show. Raises ``Unreadable``."""
    stored: set[tuple[str, str]] = set()
    with open_databases(state, _databases(state)) as databases:
        for database in databases:
            counts = database.event_counts()
            stored |= {(database.agent_id, session_id) for session_id in counts}
            folder = folder_of(database.agent_id)
            unseen = [session_id for session_id, count in counts.items() if _lines(folder, session_id) < count]
            if unseen:
                yield f"{database.path} holds {_sessions(len(unseen))} of {database.name}"
    for home in sorted((state / "agents").glob(f"*/{ARCHIVE}")):
        agent = normalize_agent_id(home.parent.name)
        folder = folder_of(agent)
        moved = [
            session_id
            for session_id in archived_transcripts(home.parent)
            if (agent, session_id) not in stored and not any(_files(folder, session_id))
        ]
        if moved:
            yield f"{home} holds {_sessions(len(moved))} that OpenClaw 2026.8 or newer moved out of this store"


def missing_stores(state: Path, folder_of: FolderOf) -> Iterator[Finding]:
    """Report stores that are gone while transcripts or the ledger still know their sessions."""
    agents = {DEFAULT_AGENT, *(normalize_agent_id(home.name) for home in (state / "agents").glob("*") if home.is_dir())}
    folders = sorted({folder_of(agent) for agent in agents})
    lost = [folder for folder in folders if not any((folder / name).exists() for name in _STORE_FILES)]
    if lost == folders and (conversations := _in_ledger(state)):
        yield _problem(
            f"{state} has no session store, but its ledger knows {conversations} conversations: was the folder "
            "`agents` moved away? Put it back, or bring it in with `openclaw sessions import --from FOLDER`"
        )
    for folder in lost:
        if folder.is_dir():
            transcripts = sum(1 for _ in folder.glob("*.jsonl")) + sum(1 for _ in folder.glob(f"*.jsonl{SUFFIX}"))
            if transcripts:
                yield _problem(
                    f"{folder / 'sessions.json'} is gone, and with it the names of {_sessions(transcripts)} whose "
                    "transcripts are still there; put it back from a backup, or bring single ones back with "
                    "`openclaw sessions import FILE --key KEY`"
                )


def _problem(text: str) -> Finding:
    return Finding("generation", "critical", text, "put the store back from a backup")


def _in_ledger(state: Path) -> int:
    """The number of conversations that the ledger knows."""
    ledger = state / "ledger.db"
    if not ledger.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(DISTINCT session_key) FROM messages").fetchone()[0])
    except sqlite3.Error:
        return 0  # Damage to the ledger is reported elsewhere.


class StateWatch:
    """Looks at the state folder from time to time, and says what happened to it from outside."""

    def __init__(self, state: Path, folder_of: FolderOf) -> None:
        self._state = state
        self._folder_of = folder_of
        self._seen: object = None
        self._hidden: list[Finding] = []
        self.problems: list[Finding] = []

    def look(self) -> list[Finding]:
        """Return the problems that are new. Blocks."""
        newer = [*(self._state / "agents").glob(f"*/{DATABASES}"), *(self._state / "agents").glob(f"*/{ARCHIVE}")]
        seen = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(newer)]
        if seen != self._seen:
            self._seen = seen
            self._hidden = self._look_for_hidden() if seen else []
        before, self.problems = self.problems, [*self._hidden, *missing_stores(self._state, self._folder_of)]
        return [problem for problem in self.problems if problem not in before]

    def _look_for_hidden(self) -> list[Finding]:
        try:
            return [_problem(text) for text in hidden_sessions(self._state, self._folder_of)]
        except Unreadable as problem:
            return [_problem(str(problem))]


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _files(folder: Path, session_id: str) -> Iterator[Path]:
    name = glob.escape(session_id)
    for ending in (".jsonl", f".jsonl{SUFFIX}"):
        yield from folder.glob(f"{name}{ending}")
        yield from folder.glob(f"{name}-topic-*{ending}")


def _lines(folder: Path, session_id: str) -> int:
    """The number of lines of a session's longest transcript; 0 when there is none."""
    counts = (sum(block.count(b"\n") for block in plain_blocks(file)) for file in _files(folder, session_id))
    return max(counts, default=0)
