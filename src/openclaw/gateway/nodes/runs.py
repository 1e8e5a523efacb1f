"""Commands of agents on nodes that have not ended yet: ``nodes/runs.json``.

Usually the answer of the node ends a run. If the node or the Gateway went away meanwhile, the node tells the outcome
later with ``node.event``, and the session that began the command is told then.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from openclaw.clock import Clock
from openclaw.config.store import write_private

log = logging.getLogger("openclaw.nodes")

MAX_RUNS = 256
KEPT_MS = 24 * 3_600_000


class NodeRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    node_id: str
    agent_run_id: str
    """The run of the agent that began the command."""
    at: int


class NodeRuns:
    """The runs by their ids. What ``begin`` and ``end`` change is on disk when they return."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._path = Path(state_dir) / "nodes" / "runs.json"
        self._clock = clock
        self._runs: dict[str, NodeRun] = {}
        self._awaited: set[str] = set()
        self._changing = asyncio.Lock()
        self._loaded = False

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None:
        """Notes a command before it is sent."""
        async with self._changing:
            await self._load()
            now = self._clock.now_ms()
            self._runs = {id: run for id, run in self._runs.items() if run.at > now - KEPT_MS}
            while len(self._runs) >= MAX_RUNS:
                self._awaited.discard(oldest := next(iter(self._runs)))
                del self._runs[oldest]
            self._runs[run_id] = NodeRun(node_id=node_id, agent_run_id=agent_run_id, at=now)
            self._awaited.add(run_id)
            await self._save()

    async def end(self, run_id: str) -> None:
        """Forgets a command whose outcome is known."""
        async with self._changing:
            await self._load()
            self._awaited.discard(run_id)
            if self._runs.pop(run_id, None) is not None:
                await self._save()

    def leave(self, run_id: str) -> None:
        """Nobody waits for the answer any more. What the node tells later counts."""
        self._awaited.discard(run_id)

    async def find(self, run_id: str, node_id: str) -> NodeRun | None:
        """The run with this id, if this node was asked for it."""
        async with self._changing:
            await self._load()
        run = self._runs.get(run_id)
        return run if run is not None and run.node_id == node_id else None

    def is_awaited(self, run_id: str) -> bool:
        """Whether somebody waits for the node's answer. What the node tells beside it is then no news."""
        return run_id in self._awaited

    async def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        try:
            content = await asyncio.to_thread(self._path.read_bytes)
            self._runs = msgspec.json.decode(content, type=dict[str, NodeRun]) | self._runs
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as problem:
            log.warning("%s cannot be read, so outcomes of commands on nodes may not be told: %s", self._path, problem)

    async def _save(self) -> None:
        text = msgspec.json.encode(self._runs).decode()
        await asyncio.to_thread(write_private, str(self._path), text)
