"""Every agent's notes, ready to be searched: one place that knows files, index and embedders belong together."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from openclaw.clock import Clock
from openclaw.config.schema import Config, MemorySearch
from openclaw.memory.embedder import Embedder
from openclaw.memory.embedders import Embedders
from openclaw.memory.files import memory_files
from openclaw.memory.index import MemoryIndex
from openclaw.memory.search import Health, NotesSearch
from openclaw.paths import normalize_agent_id

CHARS_PER_TOKEN = 4


class Notebooks:
    """``embedders`` may be left out: then words alone are searched."""

    def __init__(self, state_dir: Path, clock: Clock, embedders: Embedders | None = None) -> None:
        self._state_dir = state_dir
        self._embedders = embedders
        self._health = Health(clock)

    def of(self, agent_id: str, workspace: Path, settings: MemorySearch, config: Config) -> NotesSearch:
        chunking = settings.chunking
        index = MemoryIndex(
            index_path(self._state_dir, agent_id),
            chunk_chars=chunking.tokens * CHARS_PER_TOKEN,
            overlap_chars=min(chunking.overlap, chunking.tokens // 2) * CHARS_PER_TOKEN,
        )
        files = partial(memory_files, workspace, settings.extra_paths)

        def choose() -> list[Embedder]:
            return [] if self._embedders is None else self._embedders.candidates(settings, config, agent_id)

        return NotesSearch(index, files, settings, choose, self._health)

    async def close(self) -> None:
        if self._embedders is not None:
            await self._embedders.close()


def index_path(state_dir: Path, agent_id: str) -> Path:
    return state_dir / "memory" / f"{normalize_agent_id(agent_id)}.sqlite"
