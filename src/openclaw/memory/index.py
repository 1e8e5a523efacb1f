"""The notes of an agent and the search in them, by words and by meaning.

Notes are MEMORY.md, the files under memory/, and configured extra paths. Links are not followed, so that a note cannot
lead out of the workspace. ``AgentMemory`` searches them. Without a working embedder it searches by words only.
``MemoryIndex`` is the file with chunks, their words (FTS5) and their vectors. It can be rebuilt at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import logging
import math
import os
import re
import sqlite3
import sys
import unicodedata
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.schema.agents import MemoryHybrid, MemorySearch
from openclaw.memory.embedders import (
    Embedder,
    Embedders,
    EmbeddingFailed,
    EmbeddingRefused,
    NoEmbedder,
    Pay,
    Purpose,
    unpaid,
)
from openclaw.path_opener import PathOpener, PathRefused
from openclaw.paths import normalize_agent_id
from openclaw.storage.files.disk import RebuildableDatabase
from openclaw.text import normalised

log = logging.getLogger("openclaw.memory")

# The notes

CURATED = ("MEMORY.md", "memory.md")
NOTES = "memory"
MOST_FILES = 5000
LARGEST_FILE = 4 << 20
_DEEPEST = 16


class MemoryFile(msgspec.Struct, frozen=True):
    name: str
    """The name that the model sees: relative inside the workspace, absolute elsewhere."""
    path: Path
    root: Path
    """The folder that the file may not lead out of."""
    mtime_ns: int
    size: int

    def read(self) -> bytes:
        """Raises ``PathRefused`` if it is a link by now."""
        with PathOpener(self.root, confine=True, links=False).open_read(str(self.path)) as file:
            return file.read(LARGEST_FILE)


def memory_files(workspace: Path, extra: Sequence[str] = ()) -> list[MemoryFile]:
    """All memory files. It blocks."""
    files: dict[Path, MemoryFile] = {}
    curated: set[tuple[int, int]] = set()
    for root, path in _candidates(workspace, extra):
        if len(files) >= MOST_FILES:
            break
        try:
            status = path.lstat()
        except OSError:
            continue
        if path in files or status.st_size > LARGEST_FILE or (root == workspace and status.st_nlink > 1):
            continue
        if path.name in CURATED:
            # On some disks MEMORY.md and memory.md are one file.
            if (status.st_dev, status.st_ino) in curated:
                continue
            curated.add((status.st_dev, status.st_ino))
        files[path] = MemoryFile(shown_name(path, workspace), path, root, status.st_mtime_ns, status.st_size)
    return list(files.values())


def memory_root(path: Path, workspace: Path, extra: Sequence[str] = ()) -> Path | None:
    """The folder that memory_get may not leave for this path. None if it may not read it."""
    if path.suffix.lower() != ".md":
        return None
    if (path.parent == workspace and path.name in CURATED) or path.is_relative_to(workspace / NOTES):
        return workspace
    return next((root for root, extra_path in _extra_places(workspace, extra) if path.is_relative_to(extra_path)), None)


def shown_name(path: Path, workspace: Path) -> str:
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else str(path)


def _extra_places(workspace: Path, extra: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Each configured place after the folder that it may not lead out of. Its owner may configure a link."""
    for text in extra:
        if not text.strip():
            continue
        path = Path(os.path.normpath(workspace / Path(text.strip()).expanduser()))
        if path.is_relative_to(workspace):
            yield workspace, path
        else:
            yield (path.parent if path.suffix.lower() == ".md" else path), path


def _candidates(workspace: Path, extra: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """The root and the path of each file that may be one."""
    for root, name in _files_in(workspace, workspace, depth=0):
        if name.name in CURATED:
            yield root, name
    for root, place in ((workspace, workspace / NOTES), *_extra_places(workspace, extra)):
        if place.suffix.lower() == ".md":
            yield from ((root, path) for root, path in _files_in(root, place.parent, depth=0) if path == place)
        else:
            yield from _files_in(root, place, depth=_DEEPEST)


def _files_in(root: Path, folder: Path, depth: int) -> Iterator[tuple[Path, Path]]:
    names: list[tuple[str, str]] = []
    with contextlib.suppress(OSError, PathRefused):
        names = [*PathOpener(root, confine=True, links=False).scan(str(folder))]
    for name, kind in names:
        if kind == "file" and name.lower().endswith(".md"):
            yield root, folder / name
    for name, kind in names if depth else ():
        if kind == "folder":
            yield from _files_in(root, folder / name, depth - 1)


# The index

FOLDER, ENDING = "memory", ".notes.db"
"""Where the indexes are. Another ending would stop OpenClaw 2026.9, whose older index is ``memory/<agent>.sqlite``."""
_OLD_ENDING = ".sqlite"
VERSION = 2
CHUNK_CHARS = 1600
"""About 400 tokens."""
CHARS_PER_TOKEN = 4
OVERLAP_CHARS = 320
MOST_WORDS = 32
MOST_VECTORS = 50_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, name TEXT, mtime_ns INTEGER, size INTEGER);
CREATE TABLE IF NOT EXISTS chunks (
  id INTEGER PRIMARY KEY, path TEXT, first INTEGER, last INTEGER, text TEXT, hash TEXT);
CREATE INDEX IF NOT EXISTS chunks_path ON chunks (path);
CREATE INDEX IF NOT EXISTS chunks_hash ON chunks (hash);
CREATE VIRTUAL TABLE IF NOT EXISTS found USING fts5(text, tokenize = "unicode61 remove_diacritics 2");
CREATE TABLE IF NOT EXISTS vectors (
  id INTEGER PRIMARY KEY, model TEXT, hash TEXT, vector BLOB, UNIQUE (model, hash));
"""
_WORD = re.compile(r"\w+")
_NO_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff]")
"""Scripts without spaces between words."""
_IN_EVERY_QUESTION = re.compile(
    r"a|an|the|and|or|of|in|on|at|to|for|from|with|about|by|is|are|was|were|be|been|do|does|did|has|have|had|i|me|my|"
    r"we|our|you|your|he|she|it|its|they|them|this|that|there|what|when|where|who|whom|which|why|how|can|could|would|"
    r"should|not|no"
)


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    first: int
    last: int
    score: float
    """1 when the chunk has every telling word. With vectors, near 1 when the meaning is the same."""
    text: str


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    limit: int
    least: float = 0.0
    model: str = ""
    """The identity of the embedder whose vectors are compared. Empty means words only."""
    vector: bytes = b""
    hybrid: MemoryHybrid = MemoryHybrid()


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    files: int
    chunks: int
    vectors: int
    """Chunks with a vector of the given embedder."""


def rename_indexes(state_dir: Path) -> list[Path]:
    """Rename the indexes that earlier versions wrote, and return their new paths. Indexes of others stay."""
    renamed: list[Path] = []
    for old in sorted((state_dir / FOLDER).glob(f"*{_OLD_ENDING}")):
        new = old.with_name(f"{old.name.removesuffix(_OLD_ENDING)}{ENDING}")
        if not old.is_file() or old.is_symlink() or not _is_ours(old):
            continue
        if new.exists():
            old.unlink()  # It can be built again, and the newer one counts.
        else:
            old.rename(new)
            renamed.append(new)
        for end in ("-journal", "-wal", "-shm"):
            Path(f"{old}{end}").unlink(missing_ok=True)
    return renamed


def _is_ours(path: Path) -> bool:
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            columns = {row[1] for row in db.execute("PRAGMA table_info(vectors)")}
        return 0 < version <= VERSION and {"model", "hash", "vector"} <= columns
    except sqlite3.Error:
        return False


class MemoryIndex:
    """The index file. All methods block and wait for each other; call them in a thread."""

    def __init__(self, path: Path, *, chunk_chars: int = CHUNK_CHARS, overlap_chars: int = OVERLAP_CHARS) -> None:
        self.path = path
        self._file = RebuildableDatabase(path, _SCHEMA, VERSION)
        self._chunking = (chunk_chars, overlap_chars)

    def update(self, files: Sequence[MemoryFile], *, model: str = "", rebuild: bool = False) -> Counts:
        """Reads the files that changed. ``rebuild`` first removes everything, including vectors."""

        def work(db: sqlite3.Connection) -> Counts:
            _bring_up_to_date(db, files, self._chunking)
            return _counts(db, model)

        return self._file.use(work, rebuild=rebuild)

    def without_vector(self, model: str, most: int) -> list[tuple[str, str]]:
        """Hash and text of the chunks without a vector, each text once."""

        def work(db: sqlite3.Connection) -> list[tuple[str, str]]:
            return db.execute(
                "SELECT hash, min(text) FROM chunks WHERE hash NOT IN (SELECT hash FROM vectors WHERE model = ?) "
                "GROUP BY hash ORDER BY min(id) LIMIT ?",
                (model, most),
            ).fetchall()

        return self._file.use(work)

    def store_vectors(
        self, model: str, vectors: Mapping[str, bytes], most: int = MOST_VECTORS, *, spare: bool = True
    ) -> None:
        """Stores vectors by the hash of their text. When there are too many, unused ones are removed first.

        ``spare`` keeps unused vectors while there is room, so that a passage that moves is not embedded again.
        """

        def work(db: sqlite3.Connection) -> None:
            with db:
                if not spare:
                    db.execute("DELETE FROM vectors WHERE hash NOT IN (SELECT hash FROM chunks)")
                db.executemany(
                    "INSERT OR REPLACE INTO vectors (model, hash, vector) VALUES (?, ?, ?)",
                    [(model, hash, vector) for hash, vector in vectors.items()],
                )
                over = db.execute("SELECT count(*) FROM vectors").fetchone()[0] - most
                if over > 0:
                    db.execute(
                        "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors ORDER BY "
                        "model = ? AND hash IN (SELECT hash FROM chunks), id LIMIT ?)",
                        (model, over),
                    )

        self._file.use(work)

    def search(self, question: MemoryQuery, files: Sequence[MemoryFile]) -> list[Hit]:
        """The best chunks of ``files``, the best first. Changed files are read again before."""

        def work(db: sqlite3.Connection) -> list[Hit]:
            _bring_up_to_date(db, files, self._chunking)
            return _ranked(db, question, {str(file.path): file.name for file in files})

        return self._file.use(work)


def _counts(db: sqlite3.Connection, model: str) -> Counts:
    with_vector = "SELECT count(*) FROM chunks WHERE hash IN (SELECT hash FROM vectors WHERE model = ?)"
    return Counts(
        files=db.execute("SELECT count(*) FROM files").fetchone()[0],
        chunks=db.execute("SELECT count(*) FROM chunks").fetchone()[0],
        vectors=db.execute(with_vector, (model,)).fetchone()[0],
    )


def _bring_up_to_date(db: sqlite3.Connection, files: Sequence[MemoryFile], chunking: tuple[int, int]) -> None:
    indexed = {row[0]: (row[1], row[2]) for row in db.execute("SELECT path, mtime_ns, size FROM files")}
    now = {str(file.path): file for file in files}
    sizes = str(chunking)
    before = db.execute("SELECT value FROM settings WHERE name = 'chunking'").fetchone()
    with db:
        if before is None or before[0] != sizes:
            db.execute("INSERT OR REPLACE INTO settings VALUES ('chunking', ?)", (sizes,))
            for path in indexed:
                _drop(db, path)
            indexed = {}
        for path in indexed.keys() - now.keys():
            _drop(db, path)
        for path, file in now.items():
            if indexed.get(path) != (file.mtime_ns, file.size):
                _drop(db, path)
                _take(db, file, chunking)


def _drop(db: sqlite3.Connection, path: str) -> None:
    db.execute("DELETE FROM found WHERE rowid IN (SELECT id FROM chunks WHERE path = ?)", (path,))
    db.execute("DELETE FROM chunks WHERE path = ?", (path,))
    db.execute("DELETE FROM files WHERE path = ?", (path,))


def _take(db: sqlite3.Connection, file: MemoryFile, chunking: tuple[int, int]) -> None:
    try:
        text = file.read().decode("utf-8", "replace")
    except (OSError, PathRefused) as error:
        log.warning("memory file %s cannot be read: %s", file.name, error)
        return
    for chunk in chunks_of(text, *chunking):
        digest = hashlib.sha256(chunk.text.encode("utf-8", "surrogatepass")).hexdigest()
        added = db.execute(
            "INSERT INTO chunks (path, first, last, text, hash) VALUES (?, ?, ?, ?, ?)",
            (str(file.path), chunk.first, chunk.last, chunk.text, digest),
        )
        db.execute("INSERT INTO found (rowid, text) VALUES (?, ?)", (added.lastrowid, folded(chunk.text)))
    record = (str(file.path), file.name, file.mtime_ns, file.size)
    db.execute("INSERT INTO files (path, name, mtime_ns, size) VALUES (?, ?, ?, ?)", record)


def _ranked(db: sqlite3.Connection, question: MemoryQuery, names: Mapping[str, str]) -> list[Hit]:
    by_words = word_scores(db, telling_words(question.text)[:MOST_WORDS])
    scores = _joined(question, by_words, _meanings(db, question)) if question.vector else by_words
    hits: list[Hit] = []
    most = question.limit * question.hybrid.candidate_multiplier
    for chunk_id in sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[:most]:
        if scores[chunk_id] < question.least:
            break
        path, first, last, text = db.execute(
            "SELECT path, first, last, text FROM chunks WHERE id = ?", (chunk_id,)
        ).fetchone()
        if not any(hit.name == names[path] and hit.first <= last and first <= hit.last for hit in hits):
            score = round(scores[chunk_id], 4)
            hits.append(Hit(name=names[path], first=first, last=last, score=score, text=text))
        if len(hits) >= question.limit:
            break
    return hits


def _joined(question: MemoryQuery, by_words: Mapping[int, float], meant: Mapping[int, float]) -> dict[int, float]:
    """The weighted sum of both scores. A chunk with the right words gets at least the lowest score that passes."""
    hybrid = question.hybrid
    whole = hybrid.vector_weight + hybrid.text_weight
    scores: dict[int, float] = {}
    for chunk_id in by_words.keys() | meant.keys():
        words, meaning = by_words.get(chunk_id, 0.0), max(0.0, meant.get(chunk_id, 0.0))
        score = (hybrid.vector_weight * meaning + hybrid.text_weight * words) / whole
        scores[chunk_id] = max(score, question.least) if words >= max(question.least, 0.5) else score
    return scores


def _meanings(db: sqlite3.Connection, question: MemoryQuery) -> dict[int, float]:
    rows = db.execute(
        "SELECT chunks.id, vector FROM chunks JOIN vectors ON vectors.hash = chunks.hash WHERE model = ?",
        (question.model,),
    ).fetchall()
    near = similarities(question.vector, [row[1] for row in rows])
    return {row[0]: value for row, value in zip(rows, near, strict=True)}


def word_scores(db: sqlite3.Connection, terms: Sequence[str]) -> dict[int, float]:
    """Scores by words. Rare words count more. A word that occurs nowhere counts half of a rare word, as missing."""
    total = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
    holding = {word: _holding(db, word) for word in terms}
    weights = {word: math.log(1 + total / len(ids)) for word, ids in holding.items() if ids}
    missing = sum(1 for ids in holding.values() if not ids)
    whole = sum(weights.values()) + missing * math.log(1 + total) / 2
    scores: dict[int, float] = {}
    for word, weight in weights.items():
        for chunk_id in holding[word]:
            scores[chunk_id] = scores.get(chunk_id, 0.0) + weight / whole
    return scores


def _holding(db: sqlite3.Connection, word: str) -> set[int]:
    """The chunks with the word, or with a longer word that begins like it."""
    if _NO_SPACES.search(word):
        rows = db.execute("SELECT rowid FROM found WHERE instr(text, ?) > 0", (word,))
    else:
        rows = db.execute(
            "SELECT rowid FROM found WHERE found MATCH ?", (f'"{word}" *' if len(word) > 2 else f'"{word}"',)
        )
    return {row[0] for row in rows}


# Chunks, words and vectors


class Chunk(msgspec.Struct, frozen=True):
    first: int
    """The first line, counted from 1."""
    last: int
    text: str


def chunks_of(text: str, most: int = CHUNK_CHARS, overlap: int = OVERLAP_CHARS) -> Iterator[Chunk]:
    """Cuts a text into chunks of whole lines and about ``most`` characters. Neighbouring chunks overlap.

    Only line feeds end a line, as for ``memory_get``, so that both count the same lines.
    """
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    start = 0
    while start < len(lines):
        end, size = start, 0
        while end < len(lines) and (end == start or size + len(lines[end]) < most):
            size += len(lines[end]) + 1
            end += 1
        piece = "\n".join(lines[start:end])
        if piece.strip():
            yield Chunk(start + 1, end, piece)
        if end >= len(lines):
            return
        # The next chunk begins a little before the end of this one, and after its beginning.
        size, at = 0, end
        while at - 1 > start and size + len(lines[at - 1]) < overlap:
            at -= 1
            size += len(lines[at]) + 1
        start = at


def words(text: str) -> list[str]:
    """The words in lower case and without accents, as in the index."""
    return _WORD.findall(folded(text))


def telling_words(query: str) -> list[str]:
    """The words of a query, each once. Words of every question are left out, unless there are no others."""
    terms = list(dict.fromkeys(words(query)))
    return [word for word in terms if not _IN_EVERY_QUESTION.fullmatch(word)] or terms


def folded(text: str) -> str:
    spread = normalised("NFD", text.casefold())
    return normalised("NFC", "".join(char for char in spread if not unicodedata.combining(char)))


def packed(vector: Iterable[float]) -> bytes:
    """The vector as it is stored: 32-bit floats of length one. Raises ``ValueError`` for a vector without length."""
    numbers = array("f", vector)
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    if not numbers or not math.isfinite(length) or length == 0:
        raise ValueError("an embedding has no length")
    scaled = array("f", (number / length for number in numbers))
    if sys.byteorder == "big":
        scaled.byteswap()
    return scaled.tobytes()


def similarities(vector: bytes, others: Sequence[bytes]) -> list[float]:
    """The cosine of each vector to ``vector``. It is 0 for vectors of another size, which another model made.

    With numpy (the ``memory`` extra) thousands take a millisecond, without it some tenths of a second.
    """
    same = [other if len(other) == len(vector) else bytes(len(vector)) for other in others]
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        numpy = None
    if numpy is not None and same:
        matrix = numpy.frombuffer(b"".join(same), dtype="<f4").reshape(len(same), -1)
        return (matrix @ numpy.frombuffer(vector, dtype="<f4")).tolist()
    target = _numbers(vector)
    return [sum(map(mul, target, _numbers(other))) for other in same]


def _numbers(blob: bytes) -> array[float]:
    numbers = array("f", blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# The search

LONGEST_TEXT = 8000
"""The characters of a chunk that are embedded. Only a very long line has more."""
PER_QUESTION = 1024
"""The most new chunks that are embedded for one question. The rest follow with later questions."""
QUESTION_S = 20.0
PAUSE_MS = 60_000
"""After a failure the embedder is not used for this time, so that not every question waits for a hanging server."""
QUERIES_REMEMBERED = 256

Files = Callable[[], list[MemoryFile]]
Choose = Callable[[], list[Embedder]]
"""Gives the embedder to use and its fallback. Raises ``NoEmbedder``."""


class Fallback(msgspec.Struct, frozen=True, rename={"source": "from"}):
    source: str
    reason: str


class MemoryResults(msgspec.Struct, frozen=True, kw_only=True):
    hits: list[Hit]
    provider: str = "none"
    model: str | None = None
    fallback: Fallback | None = None
    """The embedder that could not be used, and why."""
    waiting: int = 0
    """Chunks that have no vector yet."""

    @property
    def mode(self) -> str:
        return "keyword" if self.provider == "none" else "hybrid"


class EmbedderHealth:
    """Failures and recent query vectors of all embedders, shared by all searches."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[int, str]] = {}
        self._queries: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def trouble(self, embedder: Embedder) -> str | None:
        until, reason = self._failed.get(embedder.identity, (0, ""))
        return reason if self._clock.now_ms() < until else None

    def failed(self, embedder: Embedder, reason: str) -> None:
        self._failed[embedder.identity] = (self._clock.now_ms() + PAUSE_MS, reason)

    def works(self, embedder: Embedder) -> None:
        self._failed.pop(embedder.identity, None)

    async def query_vector(self, embedder: Embedder, text: str, pay: Pay = unpaid) -> bytes:
        key = (embedder.identity, text)
        if key not in self._queries:
            self._queries[key] = (await vectors_of(embedder, [text], "query", pay))[0]
        self._queries.move_to_end(key)
        while len(self._queries) > QUERIES_REMEMBERED:
            self._queries.popitem(last=False)
        return self._queries[key]


async def vectors_of(embedder: Embedder, texts: Sequence[str], purpose: Purpose, pay: Pay = unpaid) -> list[bytes]:
    inputs = [text[:LONGEST_TEXT] for text in texts]
    raw = await pay(embedder, inputs, lambda: embedder.embed(inputs, purpose))
    if len(raw) != len(texts):
        raise EmbeddingFailed(f"{embedder.provider} gave {len(raw)} embeddings for {len(texts)} texts")
    try:
        return [packed(vector) for vector in raw]
    except (ValueError, OverflowError) as error:
        raise EmbeddingFailed(f"{embedder.provider} gave an embedding that cannot be used: {error}") from None


class AgentMemory:
    """Searches the notes of one agent."""

    def __init__(
        self, index: MemoryIndex, files: Files, settings: MemorySearch, choose: Choose, health: EmbedderHealth
    ) -> None:
        self.index = index
        self._files = files
        self._settings = settings
        self._choose = choose
        self._health = health
        self._embedding = asyncio.Lock()

    async def search(self, text: str, limit: int, least: float, pay: Pay = unpaid) -> MemoryResults:
        """Searches the notes. ``pay`` makes the calls of the embedder.

        Raises ``OSError`` and ``sqlite3.Error`` when the index cannot be used.
        """
        files = await asyncio.to_thread(self._files)
        question = MemoryQuery(text=text, limit=limit, least=least, hybrid=self._settings.query.hybrid)
        embedders, fallback = self.embedders()
        for embedder in embedders if files and text.strip() else ():
            try:
                async with asyncio.timeout(QUESTION_S):
                    waiting = await self._embed_new(embedder, files, PER_QUESTION, pay)
                    vector = await self._health.query_vector(embedder, text, pay)
            except (EmbeddingFailed, TimeoutError) as error:
                fallback = fallback or Fallback(embedder.provider, self._note(embedder, error))
                continue
            self._health.works(embedder)
            meant = msgspec.structs.replace(question, model=embedder.identity, vector=vector)
            hits = await asyncio.to_thread(self.index.search, meant, files)
            return MemoryResults(
                hits=hits, provider=embedder.provider, model=embedder.model, fallback=fallback, waiting=waiting
            )
        return MemoryResults(hits=await asyncio.to_thread(self.index.search, question, files), fallback=fallback)

    def embedders(self) -> tuple[list[Embedder], Fallback | None]:
        """The embedders to try, and what is wrong with the configuration, if anything."""
        hybrid = self._settings.query.hybrid
        if not hybrid.enabled or hybrid.vector_weight <= 0:
            return [], None
        try:
            return self._choose(), None
        except NoEmbedder as problem:
            return [], Fallback(str(self._settings.provider), str(problem))

    async def refresh(
        self, *, rebuild: bool = False, pay: Pay = unpaid, most: int = MOST_VECTORS
    ) -> tuple[Counts, Embedder | None, Fallback | None, int]:
        """Brings the index and at most ``most`` vectors up to date. The last value says how many vectors are left."""
        files = await asyncio.to_thread(self._files)
        embedders, fallback = self.embedders()
        counts = await asyncio.to_thread(self.index.update, files, rebuild=rebuild)
        for embedder in embedders:
            try:
                waiting = await self._embed_new(embedder, files, min(most, MOST_VECTORS), pay, patient=True)
            except EmbeddingFailed as error:
                fallback = fallback or Fallback(embedder.provider, self._note(embedder, error))
                continue
            self._health.works(embedder)
            counts = await asyncio.to_thread(self.index.update, files, model=embedder.identity)
            return counts, embedder, fallback, waiting
        return counts, None, fallback, 0

    async def _embed_new(
        self, embedder: Embedder, files: Sequence[MemoryFile], most: int, pay: Pay, *, patient: bool = False
    ) -> int:
        """Embeds new chunks and stores each batch at once. Returns how many chunks are left without a vector."""
        if not patient and (trouble := self._health.trouble(embedder)) is not None:
            raise EmbeddingFailed(trouble)
        cache = self._settings.cache
        async with self._embedding:
            await asyncio.to_thread(self.index.update, files)
            new = await asyncio.to_thread(self.index.without_vector, embedder.identity, most)
            for start in range(0, len(new), embedder.batch_texts):
                batch = new[start : start + embedder.batch_texts]
                vectors = await vectors_of(embedder, [text for _, text in batch], "document", pay)
                stored: Mapping[str, bytes] = dict(zip((hash for hash, _ in batch), vectors, strict=True))
                await asyncio.to_thread(
                    self.index.store_vectors, embedder.identity, stored, cache.max_entries, spare=cache.enabled
                )
            if len(new) < most:
                return 0
            return len(await asyncio.to_thread(self.index.without_vector, embedder.identity, MOST_VECTORS))

    def _note(self, embedder: Embedder, error: Exception) -> str:
        reason = str(error) or f"no embeddings within {QUESTION_S:g} seconds"
        if not isinstance(error, EmbeddingRefused) and self._health.trouble(embedder) is None:
            log.warning("memory search by meaning with %s: %s", embedder.provider, reason)
            self._health.failed(embedder, reason)
        return reason


class AgentMemories:
    """Makes the search of each agent's notes. Without ``embedders`` notes are searched by words only."""

    def __init__(self, state_dir: Path, clock: Clock, embedders: Embedders | None = None) -> None:
        self._state_dir = state_dir
        self._embedders = embedders
        self._health = EmbedderHealth(clock)

    def of(self, agent_id: str, workspace: Path, settings: MemorySearch, config: Config) -> AgentMemory:
        chunking = settings.chunking
        index = MemoryIndex(
            self._state_dir / FOLDER / f"{normalize_agent_id(agent_id)}{ENDING}",
            chunk_chars=chunking.tokens * CHARS_PER_TOKEN,
            overlap_chars=min(chunking.overlap, chunking.tokens // 2) * CHARS_PER_TOKEN,
        )
        files = partial(memory_files, workspace, settings.extra_paths)

        def choose() -> list[Embedder]:
            return [] if self._embedders is None else self._embedders.candidates(settings, config, agent_id)

        return AgentMemory(index, files, settings, choose, self._health)

    async def close(self) -> None:
        if self._embedders is not None:
            await self._embedders.close()
