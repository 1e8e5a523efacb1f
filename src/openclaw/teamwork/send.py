"""``sessions_send``: a message to another session, the conversation that may follow, and its announcement.

The primary run answers the message. Then requester and target answer each other in turns, until one of them says
``REPLY_SKIP`` or the turns are used up. At last the target says in its own channel what came of it, or
``ANNOUNCE_SKIP``. All of this is one job, so a restart goes on where it was. ``BetweenSessions`` hands the messages in,
those of sub-agents too.

A job is work that goes on beyond the run that asked for it, and beyond the life of the process. It is a row of the
ledger. Its kind has one function that carries it from wherever it is to its end. Each step of a job is a message with a
run id made from the job's id (``step_id``). The ledger takes a run id only once, so a step that is repeated after a
crash starts nothing new, and what came of it is found under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openclaw.agent.runtime import Runtime
from openclaw.clock import Clock
from openclaw.cluster.claims import Claims
from openclaw.inbound.incoming import Facts, Incoming, Process, SessionGone
from openclaw.inbound.pipeline import Accepted
from openclaw.messages import NO_ROUTE, Route
from openclaw.outbound.reply_files import result_text
from openclaw.outbound.silence import ANNOUNCE_SKIP, REPLY_SKIP
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.runs.reasons import reason_text
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import BLOCKED, SessionEntry, last_route
from openclaw.sessions.keys import SessionRef, channel_of, rest_of, shown_key
from openclaw.storage import faults
from openclaw.storage.disk_errors import FOREVER, UNKNOWN_TRIES, until_written
from openclaw.storage.errors import Fenced
from openclaw.storage.message_ledger import JobRow, Ledger, LedgerRow, MessageBody, ReasonCode, Trace, step_id
from openclaw.storage.sessions import SessionRow
from openclaw.teamwork.session_tools import Refusal, SessionViews, answer, refused
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolResult, text_result
from openclaw.untrusted_text import disarmed

log = logging.getLogger("openclaw.teamwork.send")

KIND = "send"
USUAL_WAIT_S = 30.0
LONGEST_WAIT_S = 24 * 3600.0
_PENDING = {"status": "pending", "mode": "announce"}
Say = Callable[[SessionRef, str, str, Route], Awaitable[bool]]
"""Says a text in a session's chat and on a route. It takes the session, a run id, the text and the route.

Returns False if the send policy kept it from the route.
"""
MAX_HOPS = 8
"""How many sessions in a row one message may lead to."""
MOST_JOBS = 24
"""How many messages between sessions and sub-agents one message may lead to, in all branches together.

``agents.defaults.subagents.maxChildrenPerAgent`` may ask for more."""
MOST_TOLD = 200
_WAIT_S = 3600.0
_OWN_RUN = QueueOverrides(mode="followup", debounce_ms=0, cap=10_000)
"""Such a message is neither merged with others nor dropped: somebody waits for what comes of it."""
CarryOn = Callable[[JobRow], Awaitable[None]]
PAUSES_S = (1.0, 10.0, 60.0)
"""The pauses after the first, second … failure of our own. After the last one the job is given up."""
NEW_MS = 10_000
"""How old a job must be before another node than its own looks whether somebody carries it on."""
NODE = "node"
"""The field of a job's state that names the node which stored it last."""


class SendState(msgspec.Struct, kw_only=True, rename="camel"):
    """The state of one ``sessions_send`` job."""

    requester_agent: str
    requester: str
    requester_channel: str
    target_agent: str
    target: str
    message: str
    trace: Trace
    decision: Literal["open", "follow", "late"] = "open"
    """``follow``: the requester has the answer or does not wait for it, and the conversation goes on. ``late``: the
    requester stopped waiting, and gets the answer as a message of its own. ``open``: it still waits."""
    first_reply: str = ""
    latest: str = ""
    turn: int = 0
    """How many turns of the conversation are done."""
    over: bool = False
    """The conversation is over; only the announcement is left."""

    @property
    def requester_ref(self) -> SessionRef:
        return SessionRef(self.requester_agent, self.requester)

    @property
    def target_ref(self) -> SessionRef:
        return SessionRef(self.target_agent, self.target)


class SessionsSendArguments(ToolArguments, kw_only=True):
    session_key: Annotated[str, Meta(description="A key or a sessionId of sessions_list")] = ""
    label: Annotated[str, Meta(min_length=1, max_length=64, description="In place of sessionKey")] = ""
    agent_id: Annotated[str, Meta(min_length=1, max_length=64, description="The label's agent")] = ""
    message: str
    timeout_seconds: Annotated[float, Meta(ge=0, description="0 does not wait (30)")] = USUAL_WAIT_S


class SessionsSendTool(RecordTool[SessionsSendArguments]):
    name = "sessions_send"
    summary = "Send a message to another session and get its reply"
    description = (
        "Send a message to another session, named by its key, session id or label. Waits for the reply up to "
        "timeoutSeconds (30); with 0 it returns at once. After a timeout the run goes on, and its answer comes "
        "later by itself."
    )

    def __init__(self, views: SessionViews, between: BetweenSessions, jobs: Jobs, conversations: Conversations) -> None:
        self._views = views
        self._between = between
        self._jobs = jobs
        self._conversations = conversations

    async def execute(self, arguments: SessionsSendArguments, context: ToolContext) -> ToolResult:
        text = required_text(arguments.message, "message")
        job_id = step_id(f"{context.run_id}/{context.call_id}", KIND)
        run_id = step_id(job_id, "ask")
        wait_s = min(arguments.timeout_seconds, LONGEST_WAIT_S)
        try:
            row, shown = await self._target(arguments, context)
            async with self._between.counting:
                trace = await self._between.next_trace(context, row.key)
                if row.key in (context.session_key, *trace.visited):
                    wait_s = 0.0  # It cannot answer while it waits for us.
                job = await self._job(job_id, context, row, text, trace, waits=wait_s > 0)
                await self._jobs.save(job)
        except Refusal as refusal:
            return refused(refusal, runId=run_id)
        try:
            await until_written(lambda: self._conversations.ask(job, run_id), self._views.runtime.clock.sleep)
        except (Refusal, SessionGone) as problem:
            await self._jobs.end(job)
            refusal = problem if isinstance(problem, Refusal) else Refusal(f"No session found: {shown}", "error")
            return refused(refusal, runId=run_id, sessionKey=shown)
        self._jobs.start(job)
        notice: dict[str, Any] = {"runId": run_id, "sessionKey": shown}
        if wait_s <= 0:
            return answer({**notice, "status": "accepted", "delivery": _PENDING})
        try:
            outcome = await self._between.outcome(run_id, wait_s)
        except asyncio.CancelledError:
            self._conversations.stop_waiting(job)
            raise
        late = outcome.status == "timeout" and outcome.row is None
        await self._conversations.decide(job, "late" if late else "follow")
        if outcome.status == "ok":
            return answer({**notice, "status": "ok", "reply": outcome.reply, "delivery": _PENDING})
        if late:
            text = f"No reply from {shown} within {wait_s:g} s. Its run goes on; the reply will come here by itself."
            return text_result(text, {**notice, "status": "timeout", "error": outcome.error})
        return answer({**notice, "status": "error", "error": outcome.error or "the run failed"})

    async def _target(self, arguments: SessionsSendArguments, context: ToolContext) -> tuple[SessionRow, str]:
        name, label = arguments.session_key.strip(), arguments.label.strip()
        if name and label:
            raise Refusal("Provide either sessionKey or label (not both).", "error")
        if not name and not label:
            raise Refusal("Either sessionKey or label is required", "error")
        visibility = self._views.visibility(context)
        try:
            row = await visibility.find(name, label=label, agent_id=arguments.agent_id.strip())
        except Refusal:
            row = visibility.main_of_agent(name)
            if row is None:
                raise
        visibility.check(row, "send", name or label)
        if not row.entry["sessionId"]:
            await self._begin(row)
        return row, visibility.shown(row.key)

    async def _begin(self, row: SessionRow) -> None:
        """Makes the session of an agent that nobody has written to yet."""
        now = self._views.runtime.clock.now_ms()

        def change(entry: SessionEntry | None) -> SessionEntry:
            return entry or SessionEntry(sessionId=str(uuid.uuid4()), updatedAt=now)

        await self._views.runtime.stores.sessions.update(row.agent_id, row.key, change)

    async def _job(
        self, job_id: str, context: ToolContext, row: SessionRow, text: str, trace: Trace, *, waits: bool
    ) -> JobRow:
        runtime = self._views.runtime
        entry = await runtime.stores.sessions.get(context.agent_id, context.session_key)
        state = SendState(
            requester_agent=context.agent_id,
            requester=context.session_key,
            requester_channel=channel_of(entry, context.session_key),
            target_agent=row.agent_id,
            target=row.key,
            message=text,
            trace=trace,
            decision="open" if waits else "follow",
        )
        return JobRow(
            id=job_id,
            kind=KIND,
            owner_key=context.session_key,
            run_id=context.run_id,
            trace=trace.id,
            state=msgspec.to_builtins(state),
            created_at=runtime.clock.now_ms(),
        )


class Conversations:
    """Carries the jobs of ``sessions_send`` on, from wherever they are."""

    def __init__(self, runtime: Runtime, between: BetweenSessions, jobs: Jobs, say: Say) -> None:
        self._runtime = runtime
        self._between = between
        self._jobs = jobs
        self._say = say
        self._decided: dict[str, asyncio.Event] = {}
        """The jobs whose requester waits in this process."""
        jobs.add_kind(KIND, self.carry_on)

    async def ask(self, job: JobRow, run_id: str) -> None:
        """Hands the message in. Raises ``Refusal`` or ``SessionGone``."""
        state = msgspec.convert(job.state, SendState)
        lines = ["This message comes from another agent session, not from a person.", *_parties(state)]
        await self._submit(state, state.target_ref, state.requester_ref, state.message, run_id, lines)
        if state.decision == "open":
            self._decided[job.id] = asyncio.Event()

    async def decide(self, job: JobRow, decision: Literal["follow", "late"]) -> None:
        """Notes what the requester made of its wait."""
        job.state["decision"] = decision
        await self._jobs.save(job)
        self.stop_waiting(job)

    def stop_waiting(self, job: JobRow) -> None:
        """The requester has decided, or its run was stopped while it waited."""
        if waiting := self._decided.pop(job.id, None):
            waiting.set()

    async def carry_on(self, job: JobRow) -> None:
        run_id = step_id(job.id, "ask")
        state = msgspec.convert(job.state, SendState)
        try:
            if job.id not in self._decided:
                await self.ask(job, run_id)  # It may have been cut off before the message was on disk.
                self._decided.pop(job.id, None)
            if not state.first_reply:
                outcome = await self._between.outcome(run_id)
                if waiting := self._decided.get(job.id):
                    await waiting.wait()
                # After a restart, or when its run was stopped, the requester waits no more.
                late = job.state["decision"] != "follow"
                state = msgspec.convert(job.state, SendState)
                if late:
                    await self._notify_late(job, state, outcome)
                    return
                if outcome.status != "ok" or not outcome.reply.strip():
                    return
                state.first_reply = state.latest = outcome.reply
                await self._save(job, state)
            await self._converse(job, state)
            await self._announce(job, state)
        except SessionGone as gone:
            log.info("the conversation %s ends: the session %s is gone", job.id, gone)
        except Refusal as refusal:
            log.info("the conversation %s ends: %s", job.id, refusal)

    async def _converse(self, job: JobRow, state: SendState) -> None:
        """Requester and target answer each other. The requester begins."""
        turns = self._runtime.config.current.session.agent_to_agent.max_ping_pong_turns
        if state.requester == state.target:
            turns = 0
        while not state.over and state.turn < turns and not await self._between.is_spent(state.trace.id):
            number = state.turn + 1
            requester_asks = number % 2 == 1
            here, there = (state.requester_ref, state.target_ref)[:: 1 if requester_asks else -1]
            lines = [
                "This is a turn of a conversation between two agent sessions, not a message from a person.",
                f"You are the {'requester' if requester_asks else 'target'}. Turn {number} of {turns}.",
                *_parties(state),
                f"Answer exactly {REPLY_SKIP} to end the conversation.",
            ]
            run_id = step_id(job.id, f"turn {number}")
            await self._submit(state, here, there, state.latest, run_id, lines, hops=number)
            # ``REPLY_SKIP`` is silence, and a silent run has no reply.
            reply = (await self._between.outcome(run_id)).reply.strip()
            state.turn, state.over = number, not reply
            state.latest = reply or state.latest
            await self._save(job, state)

    async def _announce(self, job: JobRow, state: SendState) -> None:
        """Lets the target say in its own channel what came of the request, and sends it there."""
        if await self._between.is_spent(state.trace.id):
            return
        run_id, target = step_id(job.id, "announce"), state.target_ref
        lines = [
            "This is the announce step after a conversation between two agent sessions.",
            *_parties(state),
            f"Original request: {disarmed(state.message)}",
            f"First reply: {disarmed(state.first_reply) or 'not available'}",
            f"Latest reply: {disarmed(state.latest) or 'not available'}",
            f"Your answer is posted to the target's channel. Answer exactly {ANNOUNCE_SKIP} to stay silent.",
        ]
        body = MessageBody(
            internal=True, extra_system_prompt=_block(lines), trace=state.trace, without_tools=["message"]
        )
        await self._between.submit(target, "Agent-to-agent announce step.", run_id, body)
        reply = (await self._between.outcome(run_id)).reply.strip()
        entry = await self._runtime.stores.sessions.get(target.agent_id, target.key)
        route = announce_route(target.key, entry)
        if reply and entry is not None and route.is_delivered:
            await self._say(target, step_id(job.id, "post"), reply, route)

    async def _notify_late(self, job: JobRow, state: SendState, outcome: ReplyOutcome) -> None:
        """Gives the requester an answer for which it did not wait."""
        what = outcome.reply.strip() or f"({outcome.error or 'it said nothing'})"
        text = f"[Late reply from session {shown_key(state.target)} to your sessions_send]\n{what}"
        run_id, sender = step_id(job.id, "late"), state.target_ref
        lines = ["This is the late answer to a message that you sent to another session.", *_parties(state)]
        row = await self._runtime.stores.ledger.by_run(job.run_id)
        if row is not None and state.decision == "open":
            row = (await self._between.outcome(job.run_id)).row
            if row is not None and row.state == "superseded":
                return  # Somebody stopped the run that asked, and wants to hear no more of it.
        route = row.route if row is not None else NO_ROUTE
        await self._submit(state, state.requester_ref, sender, text, run_id, lines, route=route)

    async def _submit(
        self,
        state: SendState,
        to: SessionRef,
        sender: SessionRef,
        text: str,
        run_id: str,
        lines: list[str],
        *,
        hops: int = 0,
        route: Route = NO_ROUTE,
    ) -> None:
        trace = msgspec.structs.replace(state.trace, hops=state.trace.hops + hops)
        channel = state.requester_channel if sender == state.requester_ref else ""
        body = MessageBody(
            extra_system_prompt=_block(lines),
            provenance=provenance(sender.key, channel, "sessions_send"),
            trace=trace,
        )
        await self._between.submit(to, text, run_id, body, route=route)

    async def _save(self, job: JobRow, state: SendState) -> None:
        job.state = msgspec.to_builtins(state)
        await self._jobs.save(job)


def _parties(state: SendState) -> list[str]:
    channel_note = f" (channel {state.requester_channel})" if state.requester_channel not in ("", "unknown") else ""
    return [
        f"Requester session: {shown_key(state.requester)}{channel_note}.",
        f"Target session: {shown_key(state.target)}.",
    ]


def _block(lines: list[str]) -> str:
    return "\n".join(["Agent-to-agent message context:", *lines])


def announce_route(key: str, entry: SessionEntry | None) -> Route:
    """Where a session's chat is: as its key says for a group, else where its last message came from."""
    parts = rest_of(key).split(":")
    stored = last_route(entry)
    if len(parts) >= 3 and parts[1] in ("group", "channel") and stored.channel != parts[0]:
        channel, kind = parts[0], parts[1]
        thread = parts[4] if len(parts) >= 5 and parts[3] in ("topic", "thread") else None
        to = f"channel:{parts[2]}" if channel in ("discord", "slack") else f"{kind}:{parts[2]}"
        return Route(channel=channel, to=to, thread_id=thread, session_key=key)
    return msgspec.structs.replace(stored, session_key=key)


# Messages between sessions


class ReplyOutcome(msgspec.Struct, frozen=True, kw_only=True):
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

    def __init__(self, runtime: Runtime, process: Process, runs: Runs) -> None:
        self._runtime = runtime
        self._process = process
        self._runs = runs
        self.counting = asyncio.Lock()
        """Held from ``next_trace`` until the job is stored, so that each job counts before the next is begun."""
        self._told: set[str] = set()
        """The traces of which the log says that they are used up."""

    async def submit(
        self,
        session: SessionRef,
        text: str,
        run_id: str,
        body: MessageBody,
        *,
        source: str = "agent",
        route: Route = NO_ROUTE,
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
            route=route if route.channel else Route(channel="internal", session_key=session.key),
            reads_commands=False,
            body=body,
            queue=_OWN_RUN,
            entry_fields=new or {},
            existing=new is None,
        )
        if not isinstance(await self._process(message), Accepted):
            raise Refusal(BLOCKED)

    async def outcome(self, run_id: str, timeout_s: float | None = None) -> ReplyOutcome:
        """Wait for the end of a run. Without a timeout it waits forever, even across restarts."""
        while True:
            ended = await self._runs.index.wait(run_id, timeout_s if timeout_s is not None else _WAIT_S)
            if ended.status != "timeout":
                break
            if timeout_s is not None:
                return ReplyOutcome(status="timeout", error=f"no answer within {timeout_s:g} s")
        row = await self._runtime.stores.ledger.by_run(run_id)
        text = result_text(row.result) if row else ""
        if ended.status == "ok":
            return ReplyOutcome(status="ok", reply=text, row=row)
        code = row.reason.code if row else ReasonCode.NONE
        error = ended.error or (reason_text(row.reason) if row else "") or "the run failed"
        if code is ReasonCode.TIME_LIMIT:
            return ReplyOutcome(status="timeout", reply=text, error=error, row=row)
        stopped = row is not None and row.state == "superseded"
        return ReplyOutcome(status="stopped" if stopped else "error", reply=text, error=error, row=row)

    async def next_trace(self, context: ToolContext, target: str) -> Trace:
        """The trace of a message that this tool call sends. Raises ``Refusal`` when the way has become too long."""
        row = await self._runtime.stores.ledger.by_run(context.run_id) if context.run_id else None
        before = (row.body.trace if row else None) or Trace(context.run_id or str(uuid.uuid4()))
        way = (*before.visited, context.session_key)
        if before.hops >= MAX_HOPS:
            shown = " → ".join(shown_key(key) for key in (*way, target))
            raise Refusal(f"Stopped: one message has led through {MAX_HOPS} sessions already ({shown}).", "error")
        if await self.is_spent(before.id):
            raise Refusal(f"Stopped: one message has led to {self._most_jobs()} others already.", "error")
        return Trace(before.id, before.hops + 1, way[-MAX_HOPS:], before.guest or not context.caller.trusted)

    async def is_spent(self, trace_id: str) -> bool:
        """Whether one message has led to as many others as it may. Then the conversations it led to end as well."""
        most = self._most_jobs()
        spent = len(await self._runtime.stores.ledger.jobs(trace=trace_id, limit=most)) >= most
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
    channel_fields = {"sourceChannel": channel} if channel else {}
    return {"kind": "inter_session", "sourceSessionKey": source_key, **channel_fields, "sourceTool": tool}


# Jobs


class Jobs:
    """Carries jobs on, each in a task of its own, and goes on with those that an earlier process left."""

    def __init__(self, ledger: Ledger, clock: Clock, claims: Claims) -> None:
        self._claims = claims
        self._ledger = ledger
        self._clock = clock
        self._kinds: dict[str, CarryOn] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def add_kind(self, kind: str, carry_on: CarryOn) -> None:
        self._kinds[kind] = carry_on

    async def resume(self) -> int:
        """Goes on with the jobs that an earlier process left. Returns their number."""
        left = await self._ledger.jobs(ended=False)
        # A job that has just been stored is about to be started by the node that stored it, if that still lives.
        before = self._clock.now_ms() - NEW_MS
        left = [job for job in left if job.created_at < before or not self._claims.lives(job.state.get(NODE, ""))]
        for job in left:
            self.start(job, left=True)
        return len(left)

    def start(self, job: JobRow, *, left: bool = False) -> None:
        """Carries the job on. It must be in the ledger. ``left``: another process may have carried it before."""
        if self._closed or job.id in self._tasks or job.kind not in self._kinds:
            return
        task = asyncio.create_task(self._carry_on(job, left), name=f"job {job.kind}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def save(self, job: JobRow) -> None:
        """Store where the job is. A full disk is waited out, and an unknown error is tried again."""
        await self._save(job, UNKNOWN_TRIES)

    async def _save(self, job: JobRow, tries: float) -> None:
        faults.point(f"job.{job.kind}.before")
        if self._claims.node:
            job.state[NODE] = self._claims.node
        await until_written(lambda: self._ledger.job_put(job), self._clock.sleep, unknown_tries=tries)
        faults.point(f"job.{job.kind}.after")

    async def end(self, job: JobRow) -> None:
        """Store that the job has ended, and try again until that is written, whatever the error."""
        job.ended_at = self._clock.now_ms()
        await self._save(job, FOREVER)

    async def close(self) -> None:
        """Stops carrying the jobs on. The next start goes on with them."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_on(self, job: JobRow, left: bool) -> None:
        # Every node looks at the jobs that are left, and one of them carries each on.
        name, pause = f"job:{job.id}", self._clock.sleep
        if (await until_written(lambda: self._claims.claim(name), pause, unknown_tries=FOREVER)).mine:
            try:
                read = partial(self._ledger.job, job.id)
                now = await until_written(read, pause, unknown_tries=FOREVER) if left else job
                if now is not None and now.ended_at is None:
                    await self._lead(now)
            finally:
                with contextlib.suppress(OSError, Fenced):
                    await self._claims.release(name)

    async def _lead(self, job: JobRow) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await until_written(lambda: self._kinds[job.kind](job), self._clock.sleep)
                if job.ended_at is None:
                    await self.end(job)
                return
            except Exception as problem:
                log.exception("job %s (%s) failed", job.id, job.kind)
                if pause_s is None:
                    job.state["problem"] = f"{type(problem).__name__}: {problem}"
                    await self.end(job)
                    return
            await self._clock.sleep(pause_s)
