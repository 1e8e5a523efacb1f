"""The memory tools: ``memory_search`` finds passages in the notes and ``memory_get`` reads lines of a note."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from openclaw.config.schema.agents import MemorySearch
from openclaw.memory.index import CURATED, AgentMemory, Fallback, Hit, folded, memory_root, shown_name, words
from openclaw.path_opener import FileMissing, PathOpener
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult, json_result
from openclaw.tools.files import FilePage, read_page

MOST_RESULTS = 50
SNIPPET_CHARS = 700
_REFUSED = "The memory belongs to the owner, and this is"


class TranscriptMatch(msgspec.Struct, frozen=True):
    """A passage of an earlier session that fits a query."""

    session_id: str
    entry_id: str
    role: str
    timestamp: str
    snippet: str


Transcripts = Callable[[str, int, ToolContext], Awaitable[list[TranscriptMatch]]]
"""Searches the sessions that the call may see; the number is the most results."""


def memory_tools(
    notes: AgentMemory,
    workspace: Path,
    settings: MemorySearch,
    citations: str,
    transcripts: Transcripts | None = None,
) -> list[Tool]:
    """``transcripts`` is used only if the configuration names earlier sessions as a source."""
    if not settings.enabled:
        return []
    sessions = transcripts if "sessions" in (settings.sources or ()) else None
    search = MemorySearchTool(notes, settings, citations, sessions)
    return [search, MemoryGetTool(workspace, settings.extra_paths)]


class NotePassage(msgspec.Struct, rename="camel", omit_defaults=True):
    """A passage of a note that fits a query."""

    path: str
    start_line: int
    end_line: int
    score: float
    snippet: str
    source: str
    citation: str = ""


class TranscriptPassage(msgspec.Struct, rename="camel", omit_defaults=True):
    """A passage of a transcript. Its location is an entry id, since line numbers mean nothing there."""

    path: str
    entry_id: str
    role: str
    timestamp: str
    snippet: str
    source: str
    citation: str = ""


class MemorySearchResult(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The result of ``memory_search``, with the field names that all clients share."""

    results: list[NotePassage | TranscriptPassage]
    provider: str
    model: str | None
    mode: str
    fallback: Fallback | None
    waiting: int = 0
    citations: str


class MemorySearchArguments(ToolArguments):
    query: Annotated[str, Meta(description="What to look for")]
    max_results: Annotated[int, Meta(ge=1, description="Most passages to return (6)")] | None = None
    min_score: Annotated[float, Meta(description="Leave out passages that fit worse, 0 to 1 (0.35)")] | None = None


class MemorySearchTool(RecordTool[MemorySearchArguments]):
    name = "memory_search"
    parallel = True
    summary = "Search the memory files for earlier decisions, facts, people, dates and tasks"
    description = (
        "Search MEMORY.md and memory/*.md by meaning and by words. Returns the passages that fit best, with file "
        "and lines. Use it before answering about earlier work, decisions, dates, people, preferences or open "
        "tasks."
    )

    def __init__(
        self, notes: AgentMemory, settings: MemorySearch, citations: str, transcripts: Transcripts | None = None
    ) -> None:
        self._notes = notes
        self._transcripts = transcripts
        self._query = settings.query
        self._citations = citations

    async def execute(self, arguments: MemorySearchArguments, context: ToolContext) -> ToolResult:
        query = required_text(arguments.query, "query")
        limit = min(arguments.max_results or self._query.max_results, MOST_RESULTS)
        least = self._query.min_score if arguments.min_score is None else arguments.min_score
        caller = context.caller
        if not caller.may("notes"):
            # Nothing is searched, so that neither the number of results nor the time tells what the notes hold.
            return _disabled(f"{_REFUSED} {caller.described}.", "forbidden")
        curated = caller.may("curated memory")
        try:
            # The index holds all notes. A sub-agent gets other notes in place of the curated ones.
            found = await self._notes.search(query, limit if curated else MOST_RESULTS, least, context.pay)
            hits = [hit for hit in found.hits if curated or hit.name not in CURATED][:limit]
            messages: list[TranscriptMatch] = []
            if curated and self._transcripts is not None and limit > len(hits):
                messages = await self._transcripts(query, limit - len(hits), context)
        except (OSError, sqlite3.Error) as error:
            return _disabled(f"The notes could not be searched: {error}", "error")
        cite = self._citations == "on" or (self._citations == "auto" and curated)
        results = [
            *(result_of(hit, query, cite) for hit in hits),
            *(_transcript_result(found, cite) for found in messages),
        ]
        shown = MemorySearchResult(
            results=results,
            provider=found.provider,
            model=found.model,
            mode=found.mode,
            fallback=found.fallback,
            waiting=found.waiting,
            citations=self._citations,
        )
        return json_result(msgspec.to_builtins(shown))


def _disabled(error: str, status: str) -> ToolResult:
    return json_result({"status": status, "results": [], "disabled": True, "error": error})


class MemoryGetArguments(ToolArguments):
    path: Annotated[str, Meta(description="As memory_search names it, e.g. memory/2026-01-31.md")]
    first: Annotated[int, Meta(ge=1, description="First line, from 1")] = msgspec.field(name="from", default=1)
    lines: Annotated[int, Meta(ge=1, description="How many lines")] | None = None


class MemoryGetTool(RecordTool[MemoryGetArguments]):
    name = "memory_get"
    parallel = True
    summary = "Read lines of a memory file"
    description = "Read MEMORY.md or a file under memory/, whole or just some lines, e.g. after memory_search."

    def __init__(self, workspace: Path, extra: Sequence[str]) -> None:
        self._workspace = workspace
        self._extra = extra

    async def execute(self, arguments: MemoryGetArguments, context: ToolContext) -> ToolResult:
        path = required_text(arguments.path, "path")
        if not context.caller.may("notes"):
            raise ToolError(f"{_REFUSED} {context.caller.described}.")
        curated = context.caller.may("curated memory")
        name, page = await asyncio.to_thread(self._read, path, arguments.first, arguments.lines, curated)
        result: dict[str, object] = {"path": name, "text": page.text}
        if page.cut_by:
            result |= {"nextFrom": page.last + 1, "totalLines": page.total_lines}
        return json_result(result)

    def _read(self, path: str, first: int, count: int | None, curated: bool) -> tuple[str, FilePage]:
        resolved = Path(PathOpener(self._workspace, confine=True).resolve(path))
        name = shown_name(resolved, self._workspace)
        root = memory_root(resolved, self._workspace, self._extra)
        if root is None or (name in CURATED and not curated):
            raise ToolError(f"{path} is not a memory file that can be read here; use MEMORY.md or memory/….md")
        try:
            # A link inside the workspace could show a sub-agent the curated notes.
            with PathOpener(root, confine=True, links=False).open_read(str(resolved)) as file:
                page = read_page(file, first, count)
        except FileMissing:
            raise ToolError(f"The memory file {name} does not exist yet") from None
        return name, page


def result_of(hit: Hit, query: str, cite: bool) -> NotePassage:
    where = f"{hit.name}#L{hit.first}" if hit.first == hit.last else f"{hit.name}#L{hit.first}-L{hit.last}"
    snippet = _quoted(snippet_of(hit.text, query), where if cite else "")
    return NotePassage(hit.name, hit.first, hit.last, hit.score, snippet, "memory", where if cite else "")


def _transcript_result(match: TranscriptMatch, cite: bool) -> TranscriptPassage:
    path = f"sessions/{match.session_id}.jsonl"
    where = f"{path}#{match.entry_id}" if cite else ""
    snippet = _quoted(match.snippet, where)
    return TranscriptPassage(path, match.entry_id, match.role, match.timestamp, snippet, "sessions", where)


def _quoted(snippet: str, citation: str) -> str:
    return f"{snippet}\n\nSource: {citation}" if citation else snippet


def snippet_of(text: str, query: str) -> str:
    """The part of the text around the first word of the query."""
    if len(text) <= SNIPPET_CHARS:
        return text
    plain = folded(text)
    places = [position for position in (plain.find(word) for word in words(query) if len(word) > 2) if position >= 0]
    start = max(0, min(min(places, default=0) - SNIPPET_CHARS // 4, len(text) - SNIPPET_CHARS))
    return text[start : start + SNIPPET_CHARS]
