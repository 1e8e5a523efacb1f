"""Commands that wait for a person's yes: asked once, answered once, or refused when the time is up."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.tools.approval_journal import ApprovalJournal, Pending

log = logging.getLogger("openclaw.tools.approvals")

Decision: TypeAlias = Literal["allow-once", "allow-always", "deny"]
TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 24 * 3_600_000
MAX_PENDING = 64
SLUG = 8
"""So many characters of an id are enough to name it."""
KEPT_COMMAND = 2000
LOST = "the Gateway was restarted while it waited. Have the command asked for again"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a person must know to decide."""

    command: str
    cwd: str | None = None
    host: str | None = None
    security: str | None = None
    ask: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None


class Approval:
    """One question, from asking to its end."""

    def __init__(self, id: str, request: ApprovalRequest, now_ms: int, timeout_ms: int, run_id: str) -> None:
        self.id = id
        self.request = request
        self.created_at_ms = now_ms
        self.expires_at_ms = now_ms + timeout_ms
        self.run_id = run_id
        """The run that asked; empty when it was another program."""
        self.decision: Decision | None = None
        self.withdrawn = False
        """Nobody wants to know any more: the session was stopped."""
        self.ended = asyncio.Event()

    @property
    def slug(self) -> str:
        return self.id[:SLUG]

    async def wait(self) -> Decision | None:
        """None: nobody decided in time."""
        await self.ended.wait()
        return self.decision


class UnknownApproval(Exception):
    """No such question is open, or several begin like this."""

    perhaps = " It may have been answered already, or its time was up."
    """For people, after the message."""


class LostApproval(UnknownApproval):
    """It was open when the Gateway stopped."""

    perhaps = ""


class Approvals:
    """The open questions of one Gateway. Who is told of them is set by whoever puts the Gateway together."""

    def __init__(self, clock: Clock, journal: ApprovalJournal | None = None) -> None:
        self._clock = clock
        self.journal = journal
        """Where questions outlive the process; None: nowhere."""
        self._open: dict[str, Approval] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_requested: Callable[[Approval], None] = _nobody
        self.on_decided: Callable[[Approval, str | None], None] = _nobody_either
        self.on_expired: Callable[[Approval], None] = _nobody

    def ask(
        self, request: ApprovalRequest, *, id: str | None = None, timeout_ms: int = TIMEOUT_MS, run_id: str = ""
    ) -> Approval:
        """Raises ``ValueError`` when the id is taken or too many questions are open."""
        if id is not None and id in self._open:
            raise ValueError("approval id already pending")
        if len(self._open) >= MAX_PENDING:
            raise ValueError(f"{MAX_PENDING} approvals are pending already; decide some of them first")
        timeout = max(1, min(timeout_ms, MAX_TIMEOUT_MS))
        approval = Approval(id or str(uuid.uuid4()), request, self._clock.now_ms(), timeout, run_id)
        self._open[approval.id] = approval
        self.spawn(self._expire(approval, timeout / 1000))
        self.on_requested(approval)
        return approval

    def find(self, ref: str) -> Approval:
        """By id, or by its beginning when that names one only. Raises ``UnknownApproval``."""
        ref = ref.strip()
        if ref in self._open:
            return self._open[ref]
        found = [one for id, one in self._open.items() if len(ref) >= 4 and id.startswith(ref.lower())]
        if len(found) > 1:
            raise UnknownApproval(
                f"ambiguous approval id: {len(found)} pending ones begin with {ref}; write more of it"
            )
        if found:
            return found[0]
        if self.journal is not None and self.journal.is_lost(ref.lower()):
            raise LostApproval(f"approval {ref[:SLUG]} is no longer open: {LOST}")
        raise UnknownApproval("unknown approval id")

    async def keep(self, approval: Approval, state: Literal["asked", "running"] = "asked") -> None:
        """Once this returns, a restart will tell the session what became of the question."""
        if self.journal is not None:
            command = approval.request.command[:KEPT_COMMAND]
            pending = Pending(id=approval.id, command=command, run_id=approval.run_id, state=state)
            await _written(self.journal.note(pending))

    async def settled(self, approval: Approval) -> None:
        """Whoever asked knows the outcome."""
        if self.journal is not None:
            await _written(self.journal.forget(approval.id))

    def resolve(self, ref: str, decision: Decision, by: str | None = None) -> Approval:
        approval = self.find(ref)
        approval.decision = decision
        self._close(approval)
        self.on_decided(approval, by)
        return approval

    def pending(self) -> list[Approval]:
        return list(self._open.values())

    def withdraw(self, session_key: str) -> None:
        """The session was stopped: what it asked for is not done."""
        for approval in self.pending():
            if approval.request.session_key == session_key and approval.run_id:
                approval.withdrawn = True
                self._close(approval)
                self.on_expired(approval)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Goes on beside everything else until ``close``; a failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what follows an approval failed", exc_info=error)

    async def _expire(self, approval: Approval, seconds: float) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        ended = asyncio.ensure_future(approval.ended.wait())
        try:
            await asyncio.wait({timer, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            ended.cancel()
        if not approval.ended.is_set():
            self._close(approval)
            self.on_expired(approval)

    def _close(self, approval: Approval) -> None:
        self._open.pop(approval.id, None)
        approval.ended.set()


async def _written(change: Awaitable[None]) -> None:
    try:
        await change
    except OSError as error:  # The question itself does not depend on it.
        log.warning("a restart would not know what became of a question: %s", error)


def _nobody(approval: Approval) -> None: ...


def _nobody_either(approval: Approval, by: str | None) -> None: ...
