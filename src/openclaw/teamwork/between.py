"""Messages from one session to another: how they are handed in, how far they may go, and what comes of them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, Literal

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.foreign_text import disarmed
from openclaw.inbound.incoming import Facts, Incoming
from openclaw.inbound.pipeline import Accepted, Pipeline
from openclaw.outbound.reply_files import said_in
from openclaw.runs.dispatcher import Dispatcher
from openclaw.runs.queue import QueueWish
from openclaw.runs.why_text import reason_text
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.storage.base import LedgerRow, MessageBody, ReasonCode, Trace
from openclaw.teamwork.visibility import Refusal
from openclaw.tools.base import ToolContext

log = logging.getLogger("openclaw.teamwork")

MAX_HOPS = 8
"""How many sessions in a row one message may lead to."""
MOST_JOBS = 24
"""How many messages between sessions and sub-agents one message may lead to, in all branches together.

``agents.defaults.subagents.maxChildrenPerAgent`` may ask for more."""
MOST_TOLD = 200
_WAIT_S = 3600.0
_OWN_RUN = QueueWish(mode="followup", debounce_ms=0, cap=10_000)
"""Such a message is neither merged with others nor dropped: somebody waits for what comes of it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: Literal["ok", "error", "timeout", "stopped"]
    reply: str = ""
    error: str = ""
    row: LedgerRow | None = None

    @property
    def silent(self) -> bool:
        """Whether the model decided to say nothing."""
        return self.row is not None and self.row.state == "silent"


class BetweenSessions:
    """Hands messages of agents to sessions through the pipeline, and waits for their runs."""

    def __init__(self, runtime: Runtime, pipeline: Pipeline, dispatcher: Dispatcher) -> None:
        self._runtime = runtime
        self._pipeline = pipeline
        self._dispatcher = dispatcher
        self.counting = asyncio.Lock()
        """Held from ``next_trace`` until the job is stored, so that each job counts before the next is begun."""
        self._told: set[str] = set()
        """The traces of which the log says that they are used up."""

    async def hand_in(
        self,
        session: SessionRef,
        text: str,
        run_id: str,
        body: MessageBody,
        *,
        source: str = "agent",
        route: dict[str, Any] | None = None,
        new: dict[str, Any] | None = None,
    ) -> None:
        """Returns when the message is on disk. The same run id again does nothing.

        ``new`` has the fields of a session that is made for the message. Other sessions must exist: a session that
        was deleted is not made again. Raises ``SessionGone``, or ``Refusal`` when its policy forbids the message.
        """
        # Another agent wrote it, perhaps after it had read a foreign page.
        prompt = disarmed(text)
        if prompt != text:
            body = msgspec.structs.replace(body, written=text)
        message = Incoming(
            facts=Facts(session=session),
            text=prompt,
            door="program",
            run_id=run_id,
            source=source,
            route=route or {"channel": "internal", "sessionKey": session.key},
            reads_commands=False,
            body=body,
            queue=_OWN_RUN,
            entry_fields=new or {},
            existing=new is None,
        )
        if not isinstance(await self._pipeline.process(message), Accepted):
            raise Refusal("send blocked by session policy")

    async def outcome(self, run_id: str, timeout_s: float | None = None) -> Outcome:
        """Waits for the end of a run. Without a time it waits for ever, also across restarts."""
        while True:
            ended = await self._dispatcher.wait(run_id, timeout_s if timeout_s is not None else _WAIT_S)
            if ended.status != "timeout":
                break
            if timeout_s is not None:
                return Outcome(status="timeout", error=f"no answer within {timeout_s:g} s")
        row = await self._runtime.ledger.by_run(run_id)
        text = said_in(row.result) if row else ""
        if ended.status == "ok":
            return Outcome(status="ok", reply=text, row=row)
        code = row.reason.code if row else ReasonCode.NONE
        error = ended.error or (reason_text(row.reason) if row else "") or "the run failed"
        if code is ReasonCode.TIME_LIMIT:
            return Outcome(status="timeout", reply=text, error=error, row=row)
        stopped = row is not None and row.state == "superseded"
        return Outcome(status="stopped" if stopped else "error", reply=text, error=error, row=row)

    async def next_trace(self, context: ToolContext, target: str) -> Trace:
        """The trace of a message that this tool call sends. Raises ``Refusal`` when the way has become too long."""
        row = await self._runtime.ledger.by_run(context.run_id) if context.run_id else None
        before = (row.body.trace if row else None) or Trace(context.run_id or str(uuid.uuid4()))
        way = (*before.visited, context.session_key)
        if before.hops >= MAX_HOPS:
            shown = " → ".join(shown_key(key) for key in (*way, target))
            raise Refusal(f"Stopped: one message has led through {MAX_HOPS} sessions already ({shown}).", "error")
        if await self.is_spent(before.id):
            raise Refusal(f"Stopped: one message has led to {self._most_jobs()} others already.", "error")
        guest = before.guest or (row is not None and row.body.guest)
        return Trace(before.id, before.hops + 1, way[-MAX_HOPS:], guest)

    async def is_spent(self, trace_id: str) -> bool:
        """Whether one message has led to as many others as it may. Then the conversations it led to end, too."""
        most = self._most_jobs()
        spent = len(await self._runtime.ledger.jobs(trace=trace_id, limit=most)) >= most
        if spent and trace_id not in self._told:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told.add(trace_id)
            log.warning("the message %s has led to %d others; no more are sent", trace_id, most)
        return spent

    def _most_jobs(self) -> int:
        return max(MOST_JOBS, self._runtime.config.current.agents.defaults.subagents.max_children_per_agent or 0)


def provenance(source_key: str, channel: str, tool: str) -> dict[str, Any]:
    """Marks a message that another session wrote, for transcripts and clients."""
    known = {"sourceChannel": channel} if channel else {}
    return {"kind": "inter_session", "sourceSessionKey": source_key, **known, "sourceTool": tool}
