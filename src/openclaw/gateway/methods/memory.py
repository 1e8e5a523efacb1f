"""``memory.status``, ``memory.index`` and ``memory.search``: an agent's notes, as its own tools find them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from openclaw.config.agents import agent_config, default_agent_id, workspace_dir
from openclaw.config.schema import MemorySearch
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.targets import require_agent
from openclaw.memory.files import MemoryFile, memory_files
from openclaw.memory.index import MemoryIndex
from openclaw.tools.memory import LEAST_SCORE, MOST_RESULTS, RESULTS, index_path, snippet_of

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


class Notes(msgspec.Struct, frozen=True):
    agent_id: str
    workspace: Path
    settings: MemorySearch
    index: MemoryIndex

    def files(self) -> list[MemoryFile]:
        return memory_files(self.workspace, self.settings.extra_paths)


def notes_of(gateway: Gateway, agent_id: str | None) -> Notes:
    config = gateway.config.current
    chosen = agent_id or default_agent_id(config)
    require_agent(gateway, chosen)
    agent = agent_config(config, chosen)
    settings = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    workspace = workspace_dir(config, gateway.state_dir, chosen)
    return Notes(chosen, workspace, settings, MemoryIndex(index_path(Path(gateway.state_dir), chosen)))


class MemoryStatus(Params):
    agent_id: NonEmpty | None = None


@method("memory.status", MemoryStatus, access="read")
async def status(call: Call) -> Any:
    notes = notes_of(call.gateway, call.params.agent_id)
    files = await asyncio.to_thread(notes.files)
    answer: dict[str, Any] = {"agentId": notes.agent_id, "enabled": notes.settings.enabled, "mode": "keyword"}
    answer |= {"workspace": str(notes.workspace), "index": str(notes.index.path), "files": len(files)}
    sources = list(notes.settings.sources or ["memory"])
    return {**answer, "bytes": sum(file.size for file in files), "sources": sources}


class MemoryIndexParams(Params):
    agent_id: NonEmpty | None = None
    force: bool = False
    """Make it anew."""


@method("memory.index", MemoryIndexParams, access="write")
async def index(call: Call) -> Any:
    params: MemoryIndexParams = call.params
    notes = notes_of(call.gateway, params.agent_id)

    def work() -> tuple[int, int]:
        return notes.index.update(notes.files(), anew=params.force)

    files, pieces = await asyncio.to_thread(work)
    return {"ok": True, "agentId": notes.agent_id, "files": files, "chunks": pieces}


class MemorySearchParams(Params):
    query: NonEmpty
    agent_id: NonEmpty | None = None
    max_results: Annotated[int, msgspec.Meta(ge=1, le=MOST_RESULTS)] = RESULTS
    min_score: Annotated[float, msgspec.Meta(ge=0, le=1)] = LEAST_SCORE


@method("memory.search", MemorySearchParams, access="read")
async def search(call: Call) -> Any:
    params: MemorySearchParams = call.params
    notes = notes_of(call.gateway, params.agent_id)
    if not notes.settings.enabled:
        raise MethodError("memory search is switched off (agents.defaults.memorySearch.enabled)")

    def work() -> list[dict[str, Any]]:
        hits = notes.index.search(params.query, notes.files(), params.max_results, least=params.min_score)
        return [
            {
                "path": hit.name,
                "startLine": hit.first,
                "endLine": hit.last,
                "score": hit.score,
                "snippet": snippet_of(hit.text, params.query),
                "source": "memory",
            }
            for hit in hits
        ]

    return {"agentId": notes.agent_id, "results": await asyncio.to_thread(work), "mode": "keyword"}
