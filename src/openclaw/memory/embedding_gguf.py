"""Embeddings from a model file on this machine, in a process of its own that ends when nobody asks for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from openclaw.memory.embedder import EmbeddingFailed, Purpose
from openclaw.models.base import ModelError
from openclaw.models.gguf import says_pooling
from openclaw.models.local import Worker

CONTEXT = 2048
LONGEST_TEXT = 4000
"""Characters; a piece of notes is shorter, and what the model cannot take in one go it refuses."""
IDLE_S = 120.0


class GgufEmbedder:
    provider = "local"
    batch_texts = 16

    def __init__(self, path: Path, *, idle_s: float = IDLE_S) -> None:
        self.model = path.name
        self._path = path
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> str:
        return f"local:{self._path}"

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.alive

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> list[list[float]]:
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            worker: Worker | None = None
            try:
                worker = await self._ready()
                return await worker.vectors([text[:LONGEST_TEXT] or " " for text in texts])
            except ModelError as error:
                raise EmbeddingFailed(str(error)) from None
            finally:
                if worker is not None and worker.busy_with is not None:
                    # Stopped in the middle: the lines of that answer would be taken for the next one's.
                    worker.kill()
                    worker.busy_with = None
                self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._rest)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        if self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    async def _ready(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            if not await asyncio.to_thread(self._path.is_file):
                raise ModelError(f"there is no model file {self._path} (agents.defaults.memorySearch.local.modelPath)")
            purpose = "embeddings" if await asyncio.to_thread(says_pooling, str(self._path)) else "mean-embeddings"
            self._worker = await Worker.start(str(self._path), CONTEXT, purpose)
        return self._worker

    def _rest(self) -> None:
        if not self._turn.locked():
            task = asyncio.ensure_future(self.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
