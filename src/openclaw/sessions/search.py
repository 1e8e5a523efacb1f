"""Full-text search over all transcripts, with an index that can be deleted at any time.

The index is built from the transcript files, in bounded pieces. No message waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.sessions.prompt_prefix import is_internal
from openclaw.sessions.tree import fields_of
from openclaw.storage.files.disk import RebuildableDatabase
from openclaw.storage.files.transcript_index import SUFFIX, decompressed_size, plain_name, whole_lines
from openclaw.storage.indexed_transcript import StoredTranscript, TranscriptLines

log = logging.getLogger("openclaw.sessions.search")

FILE = "search.db"
VERSION = 3
LONGEST_TEXT = 64_000
"""Characters of one entry that are indexed. The rest of its text is not searched."""
PER_QUESTION = 256 << 20
"""Bytes of transcripts that a search reads first. The results say when there are more to read."""
PER_PASS = 8 << 20
MOST_RESULTS = 200
MOST_WORDS = 16
_WORD = re.compile(r"\w+")
_NO_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff]")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, agent TEXT, session TEXT, taken INTEGER);
CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, path TEXT, entry TEXT, role TEXT, tool TEXT, at TEXT);
CREATE INDEX IF NOT EXISTS entries_path ON entries (path);
CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5(text, tokenize = "unicode61 remove_diacritics 2");
"""


class TranscriptHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: str
    session_id: str
    entry_id: str
    role: str
    tool_name: str
    timestamp: str
    snippet: str


class Reading(msgspec.Struct, frozen=True):
    """How far the transcripts are indexed."""

    complete: bool
    """False while older transcripts are still being read for the first time."""
    read: int
    """The number of transcripts that are indexed to their end."""
    transcripts: int


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    results: list[TranscriptHit]
    reading: Reading


class SearchIndex:
    """The index of all transcripts. Its methods block, so call them from a worker thread; calls wait for each other.

    ``shown`` returns the part of a model's text that people see. Only that part is indexed.
    """

    def __init__(self, state_dir: str, shown: Callable[[str], str] = lambda text: text) -> None:
        self._shown = shown
        self._file = RebuildableDatabase(Path(state_dir) / FILE, _SCHEMA, VERSION)

    def search(
        self,
        query: str,
        folders: Mapping[str, Sequence[Path]],
        *,
        limit: int = 20,
        roles: Collection[str] = (),
        session_ids: Collection[str] = (),
        most_bytes: int = PER_QUESTION,
    ) -> SearchResults:
        """Finds entries that contain all words of the query; text in quotes must occur as a phrase.

        ``folders`` are the transcript folders of each agent. ``most_bytes`` of what is not indexed yet are read first.
        Without ``roles`` or ``session_ids``, entries of all roles or sessions are found.
        """
        agents = list(folders)
        conditions, values = [f"files.agent IN ({','.join('?' * len(agents))})"], [*agents]
        for column, terms in (("entries.role", roles), ("files.session", session_ids)):
            if terms:
                conditions.append(f"{column} IN ({','.join('?' * len(terms))})")
                values += terms
        words = _condition(query)
        snippet, order = "substr(found.text, 1, 300)", "at DESC"
        if words is not None and "MATCH" in words[0]:
            snippet, order = "snippet(found, 0, '', '', '…', 40)", "rank, at DESC"

        def find(db: sqlite3.Connection) -> SearchResults:
            reading = _read_on(db, folders, most_bytes, self._shown)
            if words is None:
                return SearchResults(results=[], reading=reading)
            rows = db.execute(
                f"SELECT files.agent, files.session, entry, role, tool, at, {snippet} FROM found"
                " JOIN entries ON entries.id = found.rowid JOIN files ON files.path = entries.path"
                f" WHERE {' AND '.join([words[0], *conditions])} ORDER BY {order} LIMIT ?",
                [*words[1], *values, min(limit, MOST_RESULTS)],
            )
            hits = [TranscriptHit(**dict(zip(TranscriptHit.__struct_fields__, row, strict=True))) for row in rows]
            return SearchResults(results=hits, reading=reading)

        return self._file.use(find)

    def update(self, folders: Mapping[str, Sequence[Path]], most_bytes: int = PER_PASS) -> Reading:
        """Indexes the next piece of the transcripts."""
        return self._file.use(lambda db: _read_on(db, folders, most_bytes, self._shown))

    def taken(self) -> dict[str, int]:
        """How much of each transcript is indexed."""
        return self._file.use(lambda db: dict(db.execute("SELECT path, taken FROM files")))

    def take_lines(self, transcript: StoredTranscript, lines: Sequence[tuple[int, bytes]]) -> None:
        """Indexes the next lines of a transcript that is not a file. ``taken`` is the number of its last line."""

        def add(db: sqlite3.Connection) -> None:
            with db:
                for _, line in lines:
                    fields = fields_of(line)
                    if fields.get("type") != "session":
                        _add(db, transcript.path, fields, self._shown)
                values = (transcript.path, transcript.agent_id, transcript.session_id, lines[-1][0])
                db.execute("INSERT OR REPLACE INTO files (path, agent, session, taken) VALUES (?, ?, ?, ?)", values)

        self._file.use(add)

    def drop(self, path: str) -> None:
        self._file.use(lambda db: _drop(db, path))


class TranscriptSearch:
    """Searches the transcripts, wherever they are kept. ``lines`` reads them if they are not files."""

    def __init__(self, index: SearchIndex, lines: TranscriptLines | None = None) -> None:
        self._index = index
        self._lines = lines
        self._reading = asyncio.Lock()

    async def search(
        self,
        query: str,
        folders: Mapping[str, Sequence[Path]],
        *,
        limit: int = 20,
        roles: Collection[str] = (),
        session_ids: Collection[str] = (),
        most_bytes: int = PER_QUESTION,
    ) -> SearchResults:
        """Finds entries as ``SearchIndex.search`` does."""
        reading = None
        if self._lines is not None:
            reading = await self._read_on(self._lines, folders, most_bytes)
            folders = {agent: [] for agent in folders}
        find = partial(self._index.search, limit=limit, roles=roles, session_ids=session_ids, most_bytes=most_bytes)
        hits = await asyncio.to_thread(find, query, folders)
        return hits if reading is None else SearchResults(results=hits.results, reading=reading)

    async def update(self, folders: Mapping[str, Sequence[Path]]) -> None:
        """Indexes the next piece of the transcripts."""
        if self._lines is None:
            await asyncio.to_thread(self._index.update, folders)
        else:
            await self._read_on(self._lines, folders, PER_PASS)

    async def _read_on(
        self, source: TranscriptLines, folders: Mapping[str, Sequence[Path]], most_bytes: int
    ) -> Reading:
        async with self._reading:
            places = [place for places in folders.values() for place in places]
            taken = await asyncio.to_thread(self._index.taken)
            there = [stored for stored in await source.stored(places) if stored.path.endswith(".jsonl")]
            roots = tuple(f"{place}{os.sep}" for place in places)
            for path in taken.keys() - {stored.path for stored in there}:
                if path.startswith(roots):
                    await asyncio.to_thread(self._index.drop, path)
            for count, stored in enumerate(there):
                number = taken.get(stored.path, 0)
                if number > stored.last_line:
                    await asyncio.to_thread(self._index.drop, stored.path)
                    number = 0
                while number < stored.last_line and (lines := await source.lines_after(stored.id, number)):
                    await asyncio.to_thread(self._index.take_lines, stored, lines)
                    number = lines[-1][0]
                    most_bytes -= sum(len(line) for _, line in lines)
                    if most_bytes <= 0:
                        return Reading(complete=False, read=count, transcripts=len(there))
            return Reading(complete=True, read=len(there), transcripts=len(there))


def _condition(query: str) -> tuple[str, list[Any]] | None:
    """Returns the SQL condition for the words of a query. None when it has no words."""
    matches = _WORD.findall(query)[:MOST_WORDS]
    if not matches:
        return None
    if any(_NO_SPACES.search(word) for word in matches):
        return " AND ".join("instr(found.text, ?) > 0" for _ in matches), list(matches)
    if len(stripped := query.strip()) > 2 and stripped[0] == stripped[-1] == '"':
        return "found MATCH ?", [f'"{" ".join(matches)}"']
    return "found MATCH ?", [" AND ".join(f'"{word}" *' if len(word) > 2 else f'"{word}"' for word in matches)]


# Reading transcripts


def _read_on(
    db: sqlite3.Connection, folders: Mapping[str, Sequence[Path]], most_bytes: int, shown: Callable[[str], str]
) -> Reading:
    indexed = dict(db.execute("SELECT path, taken FROM files"))
    there: set[str] = set()
    read = 0
    for agent, folder in ((agent, folder) for agent, places in folders.items() for folder in places):
        for file in _transcripts(folder):
            plain = str(plain_name(file))
            if plain in there:
                continue
            there.add(plain)
            if most_bytes <= 0:
                continue
            size, taken = _size(file), indexed.get(plain, 0)
            if size < taken:
                _drop(db, plain)
                taken = 0
            if size > taken:
                most_bytes -= _take(db, agent, file, plain, taken, most_bytes, shown)
            read += most_bytes > 0
    if most_bytes <= 0:
        return Reading(complete=False, read=read, transcripts=len(there))
    with db:
        roots = [str(folder) + os.sep for places in folders.values() for folder in places]
        for path in indexed.keys() - there:
            if path.startswith(tuple(roots)):
                _drop(db, path)
    return Reading(complete=True, read=read, transcripts=len(there))


def _transcripts(folder: Path) -> list[Path]:
    """The transcript files of a folder. A plain file comes before its compressed copy, in case a crash left both."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in paths if path.name.endswith((".jsonl", f".jsonl{SUFFIX}"))]


def _size(file: Path) -> int:
    try:
        return (decompressed_size(file) or 0) if file.name.endswith(SUFFIX) else file.stat().st_size
    except OSError:
        return 0


def _drop(db: sqlite3.Connection, path: str) -> None:
    with db:
        db.execute("DELETE FROM found WHERE rowid IN (SELECT id FROM entries WHERE path = ?)", (path,))
        db.execute("DELETE FROM entries WHERE path = ?", (path,))
        db.execute("DELETE FROM files WHERE path = ?", (path,))


def _take(
    db: sqlite3.Connection, agent: str, file: Path, plain: str, taken: int, most: int, shown: Callable[[str], str]
) -> int:
    """Indexes whole lines from byte ``taken`` on and returns the number of bytes read."""
    session = Path(plain).name.removesuffix(".jsonl")
    row = db.execute("SELECT session FROM files WHERE path = ?", (plain,)).fetchone()
    session, read = row[0] if row else session, 0
    with db:
        try:
            for line in whole_lines(file, taken):
                read += len(line)
                fields = fields_of(line)
                if fields.get("type") == "session" and isinstance(fields.get("id"), str):
                    session = fields["id"]
                else:
                    _add(db, plain, fields, shown)
                if read >= most:
                    break
        except OSError as error:
            log.warning("%s cannot be searched: %s", file, error)
        values = (plain, agent, session, taken + read)
        db.execute("INSERT OR REPLACE INTO files (path, agent, session, taken) VALUES (?, ?, ?, ?)", values)
    return read


def _add(db: sqlite3.Connection, path: str, fields: dict[str, Any], shown: Callable[[str], str]) -> None:
    role, tool, text = searchable(fields, shown)
    if not text.strip():
        return
    values = (path, str(fields.get("id") or ""), role, tool, str(fields.get("timestamp") or ""))
    added = db.execute("INSERT INTO entries (path, entry, role, tool, at) VALUES (?, ?, ?, ?, ?)", values)
    db.execute("INSERT INTO found (rowid, text) VALUES (?, ?)", (added.lastrowid, text[:LONGEST_TEXT]))


def searchable(fields: dict[str, Any], shown: Callable[[str], str] | None = None) -> tuple[str, str, str]:
    """Role, tool name and searchable text of an entry: messages, tool calls, tool results and summaries."""
    if fields.get("type") == "compaction":
        return "summary", "", str(fields.get("summary") or "")
    message = fields.get("message")
    if fields.get("type") != "message" or not isinstance(message, dict):
        return "", "", ""
    content = message.get("content")
    blocks: Iterable[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    role = str(message.get("role") or "")
    text = "\n".join(_texts(blocks, shown if role == "assistant" else None))
    if role == "user" and is_internal(text):
        return "", "", ""
    return role, str(message.get("toolName") or ""), text


def _texts(blocks: Iterable[Any], shown: Callable[[str], str] | None) -> Iterator[str]:
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            yield shown(block["text"]) if shown else block["text"]
        elif block.get("type") == "toolCall":
            yield f"{block.get('name')} {msgspec.json.encode(block.get('arguments')).decode()}"
