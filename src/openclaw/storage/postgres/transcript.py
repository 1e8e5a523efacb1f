"""``TranscriptStore`` in PostgreSQL: one row for each line, which is kept byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from openclaw.clock import Clock
from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.keys import session_file_name
from openclaw.sessions.tree import BranchContext, fields_of
from openclaw.storage import faults
from openclaw.storage.errors import Fenced
from openclaw.storage.files.transcript_index import (
    HEAD_BYTES,
    HEAD_LINES,
    TranscriptIndex,
    read_envelope,
    tail_of,
    trim,
)
from openclaw.storage.indexed_transcript import (
    LONGEST_TAIL,
    IndexedTranscript,
    Rebuilding,
    StoredTranscript,
    archive_stamp,
    check_types,
    copy_labels,
    shortened_lines,
    with_own_id,
)
from openclaw.storage.postgres.database import ClaimEpoch, PostgresDatabase, StaleWriter, Statement, without_nul
from openclaw.storage.transcripts import Compressed, Context, Entry, Shortened, Transcript, TranscriptRef
from openclaw.worker_thread import with_many

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection

log = logging.getLogger(__name__)

SHORT = 100
"""The lines of a transcript that has no more are read with its index."""
PER_READ = 500
"""How many lines one statement reads at most where their number is not known."""
_ROW = (
    "INSERT INTO transcripts (agent_id, name, session_id, last_seq, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id"
)
_MOVE = "UPDATE transcripts SET last_seq = ?, updated_at = ? WHERE id = ? AND last_seq = ? RETURNING id"
_LINES = "unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bytea[]) AS line"
_INSERT = "INSERT INTO entries (transcript_id, seq, id, parent_id, type, body)"
_FIND = "SELECT id, name, session_id, last_seq FROM transcripts WHERE agent_id = $1 AND name = ANY ($2)"


class StoredLine(msgspec.Struct, frozen=True):
    """One line with what the index knows of it. The type of a line that cannot be read is empty."""

    seq: int
    id: str | None
    parent_id: str | None
    type: str
    body: bytes


class TranscriptRow(msgspec.Struct):
    """The row of a transcript. ``id`` is 0 until its first line is written."""

    agent_id: str
    name: str
    session_id: str
    id: int = 0
    last_seq: int = 0


class PostgresTranscript(IndexedTranscript):
    """Entries are written in the background at once, or by the transaction that needs them first."""

    def __init__(self, store: PostgresTranscriptStore, row: TranscriptRow, *, cwd: str, parent: str | None) -> None:
        super().__init__(row.session_id, cwd=cwd, parent=parent, clock=store.clock)
        self._store = store
        self._row = row
        self._waiting: list[StoredLine] = []
        """Lines that are not in the database yet."""
        self._under_way: list[StoredLine] = []
        """The lines of the transaction that is under way."""
        self._next_seq = row.last_seq + 1
        self._loaded: dict[int, bytes] = {}
        """Lines that were read with the index. They are kept until the branch is made of them."""
        self._writing: asyncio.Task[None] | None = None
        self.claim: ClaimEpoch | None = None
        """The claim of this node on the session when this was last known to be all there is."""
        self.lock = asyncio.Lock()
        """Held by whoever writes lines, until the transaction has ended."""

    @property
    def path(self) -> str:
        return self._store.path_of(self._row.agent_id, self._row.name)

    @property
    def place(self) -> tuple[str, str]:
        return self._row.agent_id, self._row.name

    @property
    def end(self) -> tuple[int, int]:
        """The row and its last line, as the database holds them unless another node has written."""
        return self._row.id, self._row.last_seq

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self.lock.locked()

    async def load(self) -> None:
        """Reads the index and the active branch, which of a short transcript is one question."""
        await self._load_index()
        self._leaf = len(self._index) - 1
        self._branch = await self._rebuild()
        self._loaded = {}

    async def _load_index(self) -> None:
        rows = await self._store.database.rows(
            "SELECT seq, id, parent_id, type, length(body),"
            " CASE WHEN $2 OR type IN ('session', 'label', '') THEN body END FROM entries"
            " WHERE transcript_id = $1 ORDER BY seq",
            *(self._row.id, self._row.last_seq <= SHORT),
        )
        await with_many(len(rows), lambda: self._index_rows(rows))
        if rows:
            self._next_seq = rows[-1][0] + 1

    def _index_rows(self, rows: Sequence[Any]) -> None:
        self._loaded = {row[0]: row[5] for row in rows if row[5] is not None}
        index = self._index
        for seq, own, parent, kind, length, body in rows:
            if kind == "session":
                index.header = index.header or fields_of(body)
            elif own is None:
                index.warn(f"line {seq} is damaged and was passed over")
                index.damaged.add(len(index))
            else:
                parent_index = index.by_id.get(parent, -1) if parent is not None else -1
                if parent is not None and parent_index < 0:
                    index.missing_parents[len(index)] = parent
                index.put(own, kind, parent_index, seq, length)
                if kind == "label":
                    index.note_label(fields_of(body))

    # Writing

    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str:
        own = entry_id or self._new_id()
        await self._add({own: fields})
        await self.sync()
        return own

    async def append_all(self, entries: Mapping[str, dict[str, Any]], *, soon: bool = False) -> None:
        await self._add(entries)
        if not soon:
            await self.sync()

    async def _add(self, entries: Mapping[str, dict[str, Any]]) -> None:
        check_types(entries)
        new = self._new_entries(entries)
        if not new:
            return
        faults.point("append")
        self._add_header()
        parent = self.leaf_id
        for (own, fields), body in zip(new.items(), self._encoded_lines(new), strict=True):
            seq = self._keep(StoredLine(self._next_seq, own, parent, fields["type"], body))
            self._note_written(own, fields, body, seq)
            parent = own
        if self._branch is None:
            self._branch = await self._rebuild(self._before)
        self._before = None
        self._write_soon()

    def _add_header(self) -> None:
        if self._index.header is None and not len(self._index):
            line = self._header_line().rstrip(b"\n")
            self._index.header = fields_of(line)
            self._keep(StoredLine(self._next_seq, None, None, "session", line))

    def _keep(self, line: StoredLine) -> int:
        self._waiting.append(line)
        self._next_seq += 1
        return line.seq

    def begin_with(self, entries: Sequence[Entry]) -> None:
        """Fills a new transcript with a branch of another one."""
        self._add_header()
        for entry in entries:
            body = with_own_id(entry)
            parent_index = self._index.by_id.get(entry.parent_id or "", -1)
            seq = self._keep(StoredLine(self._next_seq, entry.id, entry.parent_id, entry.type, body))
            self._index.put(entry.id, entry.type, parent_index, seq, len(body))
            if entry.type == "label":
                self._index.note_label(fields_of(body))
        self._leaf = len(self._index) - 1

    async def sync(self) -> None:
        if self.busy:
            await self._store.database.write_pending(self)

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_now(), name=f"write {self._row.name}")

    async def _write_now(self) -> None:
        await asyncio.sleep(0)  # The ledger may ask for a transaction in the same step.
        try:
            await self.sync()
        except Fenced:
            pass  # The node discards its state and restarts, and it has logged that.
        except OSError as error:
            log.error("lines of %s wait, because the database does not take them: %s", self.path, error)
        except Exception:
            log.exception("lines of %s could not be written", self.path)

    def add_to(self, statement: Statement) -> bool:
        self._under_way = list(self._waiting)
        if not self._under_way:
            return False
        now, row = self._clock.now_ms(), self._row
        first, last = self._under_way[0].seq, self._under_way[-1].seq
        statement.only_with(self._store.claim_for(self))
        if row.id:
            statement.add("written", _MOVE, last, now, row.id, first - 1)
        else:
            statement.add("written", _ROW, *_row_values(row, last, now))
        statement.add(
            "lines", f"{_INSERT} SELECT written.id, line.* FROM written, {_LINES}", *_columns(self._under_way)
        )
        return True

    async def finish_write(self, written: int | None) -> None:
        if written is None:
            written = await self._store.database.transact(self._check_written_before)
        self._row.id = written
        self._row.last_seq = self._under_way[-1].seq
        del self._waiting[: len(self._under_way)]
        self._under_way = []

    async def _check_written_before(self, connection: Connection) -> int:
        """Finds out whether a commit whose confirmation was lost has written the lines. Returns the row's id."""
        find = "SELECT id FROM transcripts WHERE agent_id = $1 AND name = $2"
        names = (self._row.agent_id, without_nul(self._row.name))
        made = self._row.id or await connection.fetchval(find, *names) or 0
        first, last = self._under_way[0].seq, self._under_way[-1].seq
        select = "SELECT body FROM entries WHERE transcript_id = $1 AND seq BETWEEN $2 AND $3 ORDER BY seq"
        stored = [row[0] for row in await connection.fetch(select, made, first, last)]
        if not stored or stored != [line.body for line in self._under_way[: len(stored)]]:
            raise StaleWriter(f"another Gateway has written to the transcript {self._row.name}")
        rest = self._under_way[len(stored) :]
        if rest:
            statement = Statement()
            statement.only_with(self._store.claim_for(self))
            await statement.check(connection)
            await connection.execute("UPDATE transcripts SET last_seq = $2 WHERE id = $1", made, last)
            await insert_lines(connection, made, rest)
        return made

    async def branch(self, entry_id: str | None) -> None:
        leaf = -1 if entry_id is None else self._index.by_id[entry_id]
        if leaf != self._leaf:
            self._leaf = leaf
            self._branch = await self._rebuild()

    # Reading

    def context(self) -> Context:
        assert self._branch is not None
        return self._branch.context()

    async def _rebuild(self, before: BranchContext | None = None) -> BranchContext:
        rebuilding = self._rebuilding(before)
        step = await with_many(len(self._index), lambda: _advance(rebuilding, None))
        while not isinstance(step, BranchContext):
            lines = await self._read(step)
            step = await with_many(len(self._index), partial(_advance, rebuilding, lines))
        return step

    async def _read(self, places: Sequence[int]) -> list[bytes]:
        here = self._loaded | {line.seq: line.body for line in self._waiting}
        index = self._index
        numbers = await with_many(len(places), lambda: [index.offsets[index_of_entry] for index_of_entry in places])
        missing = [seq for seq in numbers if seq not in here]
        if missing:
            select = "SELECT seq, body FROM entries WHERE transcript_id = $1 AND seq = ANY ($2)"
            here |= {row[0]: row[1] for row in await self._store.database.rows(select, self._row.id, missing)}
        return [here[seq] for seq in numbers]

    def renamed(self, name: str) -> None:
        self._row.name = name


def _advance(rebuilding: Rebuilding, lines: list[bytes] | None) -> list[int] | BranchContext:
    """Makes the next step. Returns the places of the lines that are needed next, or the finished context."""
    try:
        return next(rebuilding) if lines is None else rebuilding.send(lines)
    except StopIteration as built:
        return built.value


class PostgresTranscriptStore:
    """Keeps at most ``most_live`` unused transcripts in memory. One that is still in use stays the same object.

    ``claim_of`` tells, for an agent and a session id, the claim of this node on the session, and None when it does not
    own it. What another node may have written to is compared with the database before it is used. Without
    ``claim_of``, as in a tool that uses the schema alone, everything is owned.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        state_dir: str,
        *,
        clock: Clock,
        most_live: int = 128,
        claim_of: Callable[[str, str], ClaimEpoch | None] | None = None,
    ) -> None:
        self._claim_of = claim_of
        self.database = database
        self.clock = clock
        self._state = state_dir
        self._most_live = most_live
        self._live: WeakValueDictionary[tuple[str, str], PostgresTranscript] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, str], PostgresTranscript] = OrderedDict()
        self._opening: dict[tuple[str, str], asyncio.Task[PostgresTranscript | None]] = {}

    def path_of(self, agent_id: str, name: str) -> str:
        """The name of a transcript: where its file would be if it were kept in one."""
        return str(Path(sessions_dir(self._state, agent_id), name))

    async def open(self, ref: TranscriptRef, *, cwd: str = "", create: bool = True) -> PostgresTranscript | None:
        agent, names = _names(ref)
        for name in names:
            if (live := self._live.get((agent, name))) is not None and await self._is_current(live):
                return live if create or len(live) else None
        asked = (agent, names[0])
        task = self._opening.get(asked)
        if task is None:
            task = self._opening[asked] = asyncio.create_task(self._load(agent, names))
            task.add_done_callback(lambda _: self._opening.pop(asked, None))
        # The task is shielded, because other callers may wait for it too.
        transcript = await asyncio.shield(task)
        if transcript is not None or not create:
            return transcript
        if (live := self._live.get(asked)) is not None:
            return live
        return self._keep(self._make(TranscriptRow(agent, names[0], ref.session_id), cwd))

    def begin(self, ref: TranscriptRef, *, cwd: str = "") -> None:
        agent, names = _names(ref)
        if ref.file is None and (agent, names[0]) not in self._live:
            self._keep(self._make(TranscriptRow(agent, names[0], ref.session_id), cwd))

    async def fork(self, source: Transcript, ref: TranscriptRef, *, cwd: str = "") -> PostgresTranscript:
        agent, names = _names(ref)
        if await self._row(agent, names[:1]) is not None or len(self._live.get((agent, names[0]), ())):
            raise FileExistsError(f"{names[0]} exists already; a fork needs a new session id")
        forked = self._make(TranscriptRow(agent, names[0], ref.session_id), cwd, parent=source.path)
        forked.begin_with(await source.path_entries())
        await forked.sync()
        await forked.load()
        self._keep(forked)
        await copy_labels(source, forked)
        return forked

    async def tail(self, ref: TranscriptRef, limit: int, before: str | None = None) -> list[Entry]:
        limit = min(limit, LONGEST_TAIL)
        if limit <= 0:
            return []
        agent, names = _names(ref)
        if before is None and not any((agent, name) in self._live for name in names):
            row = await self._row(agent, names)
            if row is None:
                return []
            most = 2 * limit + 50
            select = "SELECT body FROM entries WHERE transcript_id = $1 ORDER BY seq DESC LIMIT $2"
            lines = [line[0] for line in await self.database.rows(select, row.id, most)]
            entries = tail_of(iter(lines), limit)
            # Fewer entries may be all that were read, and not all that there are.
            if entries is not None and (len(entries) >= limit or len(lines) < most):
                return entries
        whole = await self.open(ref, create=False)
        return await whole.shown_entries(limit, before) if whole is not None else []

    async def locate(self, ref: TranscriptRef) -> str | None:
        row = await self._settled(ref)
        return self.path_of(row.agent_id, row.name) if row is not None else None

    def default_path(self, ref: TranscriptRef) -> str:
        agent, names = _names(ref)
        return self.path_of(agent, names[0])

    async def head(self, ref: TranscriptRef) -> list[bytes]:
        if (row := await self._settled(ref)) is None:
            return []
        select = (
            "SELECT body FROM (SELECT seq, body, sum(length(body) + 1) OVER (ORDER BY seq) AS size FROM entries"
            " WHERE transcript_id = $1 AND seq <= $2) AS first WHERE size <= $3 ORDER BY seq"
        )
        return [line[0] for line in await self.database.rows(select, row.id, HEAD_LINES, HEAD_BYTES)]

    async def page(self, ref: TranscriptRef, cursor: int, most_bytes: int) -> tuple[list[bytes], int | None]:
        if (row := await self._settled(ref)) is None:
            return [], None
        select = (
            "SELECT seq, body FROM (SELECT seq, body, sum(length(body) + 1) OVER (ORDER BY seq) AS size FROM entries"
            " WHERE transcript_id = $1 AND seq > $2 AND seq <= $2 + $3) AS next"
            " WHERE size <= $4 OR seq = $2 + 1 ORDER BY seq"
        )
        rows = await self.database.rows(select, row.id, cursor, PER_READ, most_bytes)
        last = rows[-1][0] if rows else row.last_seq
        return [line[1] for line in rows], last if last < row.last_seq else None

    async def create(self, ref: TranscriptRef, data: bytes) -> None:
        agent, names = _names(ref)
        row = TranscriptRow(agent, names[0], ref.session_id)
        lines = parsed_lines(data)

        async def work(connection: Connection) -> None:
            made = await make_row(connection, row, lines[-1].seq if lines else 0, self.clock.now_ms())
            if made is None:
                raise FileExistsError(f"{row.name} exists already")
            await insert_lines(connection, made, lines)

        await self.database.transact(work)
        self._drop((agent, row.name))

    async def archive(self, ref: TranscriptRef, reason: str) -> list[str]:
        agent, names = _names(ref)
        stamp = archive_stamp(reason, self.clock.now_ms())
        archived: list[str] = []
        await self._settled(ref)
        for row in await self._rows(agent, names):
            name = await self.database.transact(lambda connection, row=row: _rename(connection, row, stamp))
            live = self._live.get((agent, row.name))
            self._drop((agent, row.name))
            if live is not None:
                live.renamed(name)
            archived.append(self.path_of(agent, name))
        return archived

    async def shorten(self, ref: TranscriptRef, max_lines: int) -> Shortened:
        row = await self._settled(ref)
        if row is None:
            return Shortened(archived=None, kept=0)
        rows = await self.database.rows("SELECT body FROM entries WHERE transcript_id = $1 ORDER BY seq", row.id)
        last_lines, count = shortened_lines([line[0] for line in rows], max_lines)
        if count <= max_lines:
            return Shortened(archived=None, kept=count)
        entries, stamp = parsed_lines(b"\n".join(last_lines)), archive_stamp("bak", self.clock.now_ms())

        async def work(connection: Connection) -> str:
            name = await _rename(connection, row, stamp)
            replacement = TranscriptRow(row.agent_id, row.name, row.session_id)
            made = await make_row(connection, replacement, entries[-1].seq, self.clock.now_ms())
            assert made is not None
            await insert_lines(connection, made, entries)
            return name

        archived = await self.database.transact(work)
        # The old object would write to the old lines, so the next caller gets a new one.
        self._drop((row.agent_id, row.name))
        return Shortened(archived=self.path_of(row.agent_id, archived), kept=max_lines)

    async def compress(self, agent_ids: Iterable[str], before_ms: int, *, most: int = 200) -> Compressed:
        """PostgreSQL compresses long lines itself."""
        return Compressed()

    async def forget(self, session_id: str) -> None:
        for name, transcript in list(self._live.items()):
            if transcript.session_id == session_id:
                with contextlib.suppress(OSError):
                    await transcript.sync()
                self._drop(name)

    def folder(self, agent_id: str) -> str:
        return sessions_dir(self._state, agent_id)

    async def stored(self, places: Sequence[Path], since_ms: int = 0) -> list[StoredTranscript]:
        for transcript in list(self._live.values()):
            if transcript.busy:
                await transcript.sync()
        agents = [folder.parent.name for folder in places if folder.name == "sessions"]
        named = [folder for folder in places if folder.parent.name == "sessions"]
        rows = await self.database.rows(
            "SELECT id, agent_id, name, session_id, last_seq FROM transcripts"
            " WHERE (agent_id = ANY ($1) AND updated_at >= $2)"
            " OR (agent_id, name) IN (SELECT * FROM unnest($3::text[], $4::text[]))",
            *(agents, since_ms, [folder.parent.parent.name for folder in named], [folder.name for folder in named]),
        )
        return [
            StoredTranscript(id=own, agent_id=agent, session_id=session, path=self.path_of(agent, name), last_line=last)
            for own, agent, name, session, last in rows
        ]

    async def lines_after(self, transcript_id: int, number: int) -> list[tuple[int, bytes]]:
        select = "SELECT seq, body FROM entries WHERE transcript_id = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        return [(row[0], row[1]) for row in await self.database.rows(select, transcript_id, number, PER_READ)]

    async def close(self) -> None:
        for task in list(self._opening.values()):
            await asyncio.wait([task])
        for transcript in list(self._live.values()):
            try:
                await transcript.sync()
            except (OSError, StaleWriter) as error:
                log.error("transcript %s may not be wholly in the database: %s", transcript.path, error)
        self._recent.clear()

    def _make(self, row: TranscriptRow, cwd: str, parent: str | None = None) -> PostgresTranscript:
        made = PostgresTranscript(self, row, cwd=cwd, parent=parent)
        made.claim = self._claim(row.agent_id, row.session_id)
        return made

    def _claim(self, agent_id: str, session_id: str) -> ClaimEpoch | None:
        return self._claim_of(agent_id, session_id) if self._claim_of is not None else None

    def claim_for(self, live: PostgresTranscript) -> ClaimEpoch | None:
        """The claim under which lines are written: that of now, or the one under which the transcript was read.

        It is None if this node did not own the session then and does not now, or if the transcript has no session yet.
        """
        return self._claim(live.place[0], live.session_id) or live.claim

    async def _is_current(self, live: PostgresTranscript) -> bool:
        """Tells whether an open transcript holds every line. If not, it is let go, and the next caller reads it."""
        agent, name = live.place
        claim = self._claim(agent, live.session_id)
        if self._claim_of is None or (claim is not None and live.claim == claim) or live.busy:
            return True
        row = await self._row(agent, [name])
        if live.busy or (row.id if row else 0, row.last_seq if row else 0) == live.end:
            live.claim = claim
            return True
        if self._live.get((agent, name)) is live:
            self._drop((agent, name))
        return False

    async def _load(self, agent: str, names: list[str]) -> PostgresTranscript | None:
        row = await self._row(agent, names)
        if row is None:
            return None
        transcript = self._make(row, "")
        await transcript.load()
        for warning in transcript.warnings:
            log.warning("transcript %s: %s", transcript.path, warning)
        if (live := self._live.get((agent, row.name))) is not None:
            return live
        return self._keep(transcript)

    async def _rows(self, agent: str, names: list[str]) -> list[TranscriptRow]:
        records = await self.database.rows(_FIND, agent, [without_nul(name) for name in names])
        rows = [TranscriptRow(agent, name, session_id, own, last) for own, name, session_id, last in records]
        return sorted(rows, key=lambda row: names.index(row.name))

    async def _row(self, agent: str, names: list[str]) -> TranscriptRow | None:
        return next(iter(await self._rows(agent, names)), None)

    async def _settled(self, ref: TranscriptRef) -> TranscriptRow | None:
        """Returns the row of a transcript whose lines are all in the database."""
        agent, names = _names(ref)
        for name in names:
            if (live := self._live.get((agent, name))) is not None:
                await live.sync()
        return await self._row(agent, names)

    def _keep(self, transcript: PostgresTranscript) -> PostgresTranscript:
        row = transcript.place
        self._live[row] = self._recent[row] = transcript
        self._recent.move_to_end(row)
        for name in list(self._recent)[: max(0, len(self._recent) - self._most_live)]:
            if not self._recent[name].busy:
                del self._recent[name]
        return transcript

    def _drop(self, name: tuple[str, str]) -> None:
        self._live.pop(name, None)
        self._recent.pop(name, None)


def _names(ref: TranscriptRef) -> tuple[str, list[str]]:
    """Returns the agent and the names that the transcript may have, the right one first."""
    names = [session_file_name(ref.session_id, ref.thread_id)]
    if ref.thread_id is not None:
        names.append(session_file_name(ref.session_id))
    pointed = Path((ref.file or "").strip()).name
    if pointed.endswith(".jsonl"):
        names.insert(0, pointed)
    return normalize_agent_id(ref.agent_id), list(dict.fromkeys(names))


class LineParser:
    """Gives the lines of a file their numbers, ids and parents, as the index of a file knows them."""

    def __init__(self) -> None:
        self._index = TranscriptIndex()
        self._count = 0

    @property
    def header(self) -> dict[str, Any] | None:
        return self._index.header

    def take(self, body: bytes) -> StoredLine | None:
        """Returns the next line. None when it is empty."""
        line, _ = trim(body)
        if not line:
            return None
        self._count += 1
        index, seq, envelope = self._index, self._count, read_envelope(line)
        if envelope is None:
            index.damaged.add(len(index))
            return StoredLine(seq, None, None, "", body)
        if envelope.type == "session":
            index.header = index.header or fields_of(line)
            return StoredLine(seq, None, None, "session", body)
        position = index.add(envelope, seq, len(line))
        return StoredLine(seq, index.ids[position], index.parent_id(position), envelope.type, body)


def parsed_lines(data: bytes) -> list[StoredLine]:
    parser = LineParser()
    return [line for body in data.split(b"\n") if (line := parser.take(body)) is not None]


async def make_row(connection: Connection, row: TranscriptRow, last_seq: int, now: int) -> int | None:
    statement = Statement()
    statement.add("made", _ROW, *_row_values(row, last_seq, now))
    return (await statement.run(connection, "(SELECT id FROM made)"))[0]


async def insert_lines(connection: Connection, transcript_id: int, lines: Sequence[StoredLine]) -> None:
    statement = Statement()
    statement.add("lines", f"{_INSERT} SELECT ?::bigint, line.* FROM {_LINES}", transcript_id, *_columns(lines))
    await statement.run(connection, "1")


def _row_values(row: TranscriptRow, last_seq: int, now: int) -> tuple[str | int, ...]:
    return row.agent_id, without_nul(row.name), without_nul(row.session_id), last_seq, now, now


def _columns(lines: Sequence[StoredLine]) -> tuple[list[Any], ...]:
    """The lines as arrays, one for each column of ``_LINES``."""

    def text(value: str | None) -> str | None:
        return None if value is None else without_nul(value)

    return (
        [line.seq for line in lines],
        [text(line.id) for line in lines],
        [text(line.parent_id) for line in lines],
        [without_nul(line.type) for line in lines],
        [line.body for line in lines],
    )


async def _rename(connection: Connection, row: TranscriptRow, stamp: str) -> str:
    """Puts the stamp behind the name of a transcript, and a number if that name is taken."""
    taken = "SELECT 1 FROM transcripts WHERE agent_id = $1 AND name = $2"
    name, count = f"{row.name}.{stamp}", 1
    while await connection.fetchval(taken, row.agent_id, name):
        name, count = f"{row.name}.{stamp}-{count}", count + 1
    await connection.execute("UPDATE transcripts SET name = $2 WHERE id = $1", row.id, name)
    return name
