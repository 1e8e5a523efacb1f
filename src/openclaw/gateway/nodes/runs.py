"""Commands of agents on nodes that have not ended yet: ``nodes/runs.json``.

Usually the answer of the node ends a run. If the node or the Gateway went away meanwhile, the node tells the outcome
later with ``node.event``, and the session that began the command is told then.
"""

from __future__ import annotations

import msgspec

from openclaw.clock import Clock
from openclaw.storage.documents import DocumentStore, SharedDocument

MAX_RUNS = 256
KEPT_MS = 24 * 3_600_000


class NodeRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    node_id: str
    agent_run_id: str
    """The run of the agent that began the command."""
    at: int


class NodeRuns:
    """The runs by their ids. What ``begin`` and ``end`` change is on disk when they return."""

    def __init__(self, documents: DocumentStore, clock: Clock) -> None:
        self._clock = clock
        self._runs: SharedDocument[dict[str, NodeRun]] = SharedDocument(
            documents,
            "nodes/runs.json",
            dict,
            lambda data: msgspec.json.decode(data, type=dict[str, NodeRun]),
            msgspec.json.encode,
            damaged="drop",
            consequence="outcomes of commands on nodes may not be told",
        )
        self._awaited: set[str] = set()

    async def begin(self, run_id: str, node_id: str, agent_run_id: str) -> None:
        """Notes a command before it is sent."""
        now = self._clock.now_ms()

        def note(runs: dict[str, NodeRun]) -> list[str]:
            gone = [id for id, run in runs.items() if run.at <= now - KEPT_MS]
            gone += [id for id in runs if id not in gone][: max(0, len(runs) - len(gone) + 1 - MAX_RUNS)]
            for id in gone:
                del runs[id]
            runs[run_id] = NodeRun(node_id=node_id, agent_run_id=agent_run_id, at=now)
            return gone

        self._awaited.add(run_id)
        try:
            self._awaited.difference_update(await self._runs.change(note))
        except BaseException:
            self._awaited.discard(run_id)
            raise

    async def end(self, run_id: str) -> None:
        """Forgets a command whose outcome is known."""
        self._awaited.discard(run_id)
        await self._runs.change(lambda runs: runs.pop(run_id, None))

    def leave(self, run_id: str) -> None:
        """Nobody waits for the answer any more. What the node tells later counts."""
        self._awaited.discard(run_id)

    async def find(self, run_id: str, node_id: str) -> NodeRun | None:
        """The run with this id, if this node was asked for it."""
        run = (await self._runs.current()).get(run_id)
        return run if run is not None and run.node_id == node_id else None

    def is_awaited(self, run_id: str) -> bool:
        """Whether somebody waits for the node's answer. What the node tells beside it is then no news."""
        return run_id in self._awaited
