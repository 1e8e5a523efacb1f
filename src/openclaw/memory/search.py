"""Searches an agent's notes by words and by meaning. Without a working embedder it searches by words only."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema import Config
from openclaw.config.schema.agents import MemorySearch
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
from openclaw.memory.index import MOST_VECTORS, Counts, Hit, MemoryFile, MemoryIndex, MemoryQuery, memory_files, packed
from openclaw.paths import normalize_agent_id

log = logging.getLogger("openclaw.memory")

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
    asked = [text[:LONGEST_TEXT] for text in texts]
    raw = await pay(embedder, asked, lambda: embedder.embed(asked, purpose))
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
        self, *, anew: bool = False, pay: Pay = unpaid, most: int = MOST_VECTORS
    ) -> tuple[Counts, Embedder | None, Fallback | None, int]:
        """Brings the index and at most ``most`` vectors up to date. The last value says how many vectors are left."""
        files = await asyncio.to_thread(self._files)
        embedders, fallback = self.embedders()
        counts = await asyncio.to_thread(self.index.update, files, anew=anew)
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
                kept: Mapping[str, bytes] = dict(zip((hash for hash, _ in batch), vectors, strict=True))
                await asyncio.to_thread(
                    self.index.keep_vectors, embedder.identity, kept, cache.max_entries, spare=cache.enabled
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


CHARS_PER_TOKEN = 4


class AgentMemories:
    """Makes the search of each agent's notes. Without ``embedders`` notes are searched by words only."""

    def __init__(self, state_dir: Path, clock: Clock, embedders: Embedders | None = None) -> None:
        self._state_dir = state_dir
        self._embedders = embedders
        self._health = EmbedderHealth(clock)

    def of(self, agent_id: str, workspace: Path, settings: MemorySearch, config: Config) -> AgentMemory:
        chunking = settings.chunking
        index = MemoryIndex(
            self._state_dir / "memory" / f"{normalize_agent_id(agent_id)}.sqlite",
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
