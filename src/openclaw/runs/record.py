"""A run as the Gateway remembers it: what it is doing, how it ended, who is waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from openclaw.agent.abort import AbortSignal
from openclaw.agent.run import RunResult
from openclaw.events import Event
from openclaw.runs.queue import QueueSettings
from openclaw.storage.base import FirstStep, LedgerRow
from openclaw.storage.trouble import DiskWait

if TYPE_CHECKING:
    from openclaw.runs.doorway import Guest
    from openclaw.runs.inbox import RunInbox

RunState = Literal["queued", "running", "ok", "error", "aborted"]


class RunRecord:
    def __init__(self, row: LedgerRow, *, noted: FirstStep | None = None) -> None:
        self.row = row
        self.run_id = row.run_id
        self.session_key = row.session_key
        self.agent_id = row.agent_id
        self.state: RunState = "queued"
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.error: str | None = None
        self.result: RunResult | None = None
        self.abort = AbortSignal()
        self.verbose: str | None = None
        """The session's own setting when the run began."""
        self.reasoning = "off"
        """Whether the session sees the model's reasoning: ``off``, ``on`` (with the answer) or ``stream``."""
        self.noted = noted
        """What was written down about it when it was accepted: that it runs, or that it waits."""
        self.recovered = False
        """Taken up after a restart."""
        self.expired = False
        """It is too old to be answered any more."""
        self.disk = DiskWait()
        self.queue = QueueSettings()
        self.queued = False
        """Waited, or waits, behind another run."""
        self.inbox: RunInbox | None = None
        self.absorbed: list[RunRecord] = []
        """Messages this run answers besides its own."""
        self.absorbed_by: str | None = None
        self.watchers: set[str] = set()
        """Connections that asked for this run and may see its tool events."""
        self.listeners: list[Callable[[Event], None]] = []
        """In-process followers of the run's events, e.g. an HTTP response that streams it."""
        self.guest: Guest | None = None
        """Its place in the doorway."""
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def steerable(self) -> bool:
        return self.state == "running" and self.inbox is not None and self.inbox.open and not self.abort.aborted

    def begin(self, now_ms: int) -> None:
        self.state, self.started_at = "running", now_ms

    def asks(self) -> None:
        """The model is being asked, or will not be for now: others may come in."""
        if self.guest is not None:
            self.guest.leave()

    def end(self, state: RunState, now_ms: int, error: str | None = None, result: RunResult | None = None) -> None:
        self.state, self.ended_at, self.error, self.result = state, now_ms, error, result
        self._ended.set()
        self.asks()

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    async def wait(self) -> None:
        await self._ended.wait()
