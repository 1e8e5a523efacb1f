"""``memory.status``, ``memory.index`` and ``memory.search``: an agent's notes, as its own tools find them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from openclaw.agent.spend.budget import BilledEmbeddings, embeddings_of_agent
from openclaw.config.agents import agent_config, default_agent_id, workspace_dir
from openclaw.config.schema.agents import MemorySearch
from openclaw.gateway.server.frames import NonEmpty, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.memory.embedders import EmbeddingFailed
from openclaw.memory.index import MOST_VECTORS, AgentMemory, Fallback, memory_files, vectors_of
from openclaw.protocol.result import Result
from openclaw.tools.memory import MOST_RESULTS, NotePassage, result_of

methods = MethodTable()


class AgentNotes(msgspec.Struct, frozen=True):
    agent_id: str
    workspace: Path
    settings: MemorySearch
    search: AgentMemory
    pay: BilledEmbeddings


def notes_of(call: MethodCall, agent_id: str | None) -> AgentNotes:
    runtime = call.gateway.runtime
    config = runtime.config.current
    chosen = agent_id or default_agent_id(config)
    call.gateway.directory.require_agent(chosen)
    agent = agent_config(config, chosen)
    settings = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    workspace = workspace_dir(config, runtime.state_dir, chosen)
    memory = runtime.tools.memories.of(chosen, workspace, settings, config)
    return AgentNotes(chosen, workspace, settings, memory, embeddings_of_agent(runtime, chosen))


class MemoryStatus(Params):
    agent_id: NonEmpty | None = None
    deep: bool = False
    """Asks the embedder for one vector, to see whether it works."""


class MemoryState(Result, kw_only=True):
    agent_id: str
    enabled: bool
    mode: Literal["hybrid", "keyword"]
    provider: str
    """The provider of the embeddings, or ``none``."""
    model: str | None
    workspace: str
    index: str
    """The path of the index."""
    files: int
    bytes: int
    chunks: int
    embedded: int
    """The passages that have a vector."""
    sources: list[str]
    embeddings_work: bool | msgspec.UnsetType = msgspec.UNSET
    """Sent if ``deep`` asked for it and an embedder is chosen."""
    fallback: Fallback | None
    """Why a weaker search is used than the configured one."""


@methods.add("memory.status", MemoryStatus)
async def status(call: MethodCall, params: MemoryStatus) -> MemoryState:
    """What the memory search has indexed, and how it finds."""
    notes = notes_of(call, params.agent_id)
    settings, search = notes.settings, notes.search
    files = await asyncio.to_thread(memory_files, notes.workspace, settings.extra_paths)
    embedders, fallback = search.embedders()
    chosen = embedders[0] if embedders else None
    counts = await asyncio.to_thread(search.index.update, files, model=chosen.identity if chosen else "")
    embeddings_work: bool | msgspec.UnsetType = msgspec.UNSET
    if params.deep and chosen is not None:
        try:
            await vectors_of(chosen, ["ping"], "query", notes.pay)
        except EmbeddingFailed as error:
            fallback = Fallback(chosen.provider, str(error))
        embeddings_work = fallback is None
    return MemoryState(
        agent_id=notes.agent_id,
        enabled=settings.enabled,
        mode="hybrid" if chosen else "keyword",
        provider=chosen.provider if chosen else "none",
        model=chosen.model if chosen else None,
        workspace=str(notes.workspace),
        index=str(search.index.path),
        files=len(files),
        bytes=sum(file.size for file in files),
        chunks=counts.chunks,
        embedded=counts.vectors,
        sources=[*(settings.sources or ["memory"])],
        embeddings_work=embeddings_work,
        fallback=fallback,
    )


class MemoryIndexParams(Params):
    agent_id: NonEmpty | None = None
    force: bool = False
    """Builds the index from nothing."""
    most: Annotated[int, msgspec.Meta(ge=1)] = MOST_VECTORS
    """Embeds at most so many passages now. ``waiting`` says how many are left for the next call."""


class MemoryIndexed(Result):
    ok: bool
    agent_id: str
    files: int
    chunks: int
    embedded: int
    waiting: int
    """The passages left for the next call."""
    provider: str
    model: str | None
    fallback: Fallback | None


@methods.add("memory.index", MemoryIndexParams)
async def index(call: MethodCall, params: MemoryIndexParams) -> MemoryIndexed:
    """Updates the index of the memory files."""
    notes = notes_of(call, params.agent_id)
    search = notes.search
    counts, embedder, fallback, waiting = await search.refresh(rebuild=params.force, pay=notes.pay, most=params.most)
    return MemoryIndexed(
        ok=True,
        agent_id=notes.agent_id,
        files=counts.files,
        chunks=counts.chunks,
        embedded=counts.vectors,
        waiting=waiting,
        provider=embedder.provider if embedder else "none",
        model=embedder.model if embedder else None,
        fallback=fallback,
    )


class MemorySearchParams(Params):
    query: NonEmpty
    agent_id: NonEmpty | None = None
    max_results: Annotated[int, msgspec.Meta(ge=1, le=MOST_RESULTS)] | None = None
    min_score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class MemoryMatches(Result):
    agent_id: str
    results: list[NotePassage]
    """Passages, as the tool ``memory_search`` returns them."""
    provider: str
    model: str | None
    mode: str
    fallback: Fallback | None
    waiting: int = 0


@methods.add("memory.search", MemorySearchParams)
async def search(call: MethodCall, params: MemorySearchParams) -> MemoryMatches:
    """The passages of the memory that fit a query best."""
    notes = notes_of(call, params.agent_id)
    usual = notes.settings.query
    if not notes.settings.enabled:
        raise MethodError("memory search is switched off (agents.defaults.memorySearch.enabled)")
    least = usual.min_score if params.min_score is None else params.min_score
    try:
        matches = await notes.search.search(params.query, params.max_results or usual.max_results, least, notes.pay)
    except (OSError, sqlite3.Error) as error:
        raise MethodError(f"the notes cannot be searched: {error}") from None
    results = [result_of(hit, params.query, cite=False) for hit in matches.hits]
    return MemoryMatches(
        notes.agent_id, results, matches.provider, matches.model, matches.mode, matches.fallback, matches.waiting
    )
