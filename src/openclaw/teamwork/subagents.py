"""Sub-agents: ``sessions_spawn`` starts one, a job follows it to its end, and its result is announced to whoever asked.

The result is stored before it is delivered. It is delivered once, as a message of the requester's chat, as soon as no
run writes there. A result that cannot be delivered stays in the job, where ``/subagents log`` finds it. The command
``/subagents`` is here too.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import session_totals
from openclaw.config.agents import agent_config, main_session_key
from openclaw.config.schema import Config
from openclaw.config.schema.agents import ModelChoice
from openclaw.inbound.incoming import Process, SessionGone
from openclaw.messages import Route
from openclaw.models.base import ModelError
from openclaw.models.thinking import parse_level
from openclaw.outbound.reply import money, token_count
from openclaw.outbound.reply_files import result_text
from openclaw.outbound.session_preview import last_messages, preview_role, preview_text
from openclaw.outbound.silence import ANNOUNCE_SKIP
from openclaw.paths import normalize_agent_id
from openclaw.runs.runs import Runs
from openclaw.runs.session_change import StillActive, delete_session
from openclaw.sessions.entry import last_route
from openclaw.sessions.keys import SessionRef, channel_of, is_subagent, shown_key
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.message_ledger import AbortReason, JobRow, Ledger, MessageBody, Trace, step_id
from openclaw.storage.sessions import SessionRow
from openclaw.teamwork.announcement import announcement_text
from openclaw.teamwork.send import BetweenSessions, Jobs, ReplyOutcome, Say, provenance
from openclaw.teamwork.session_tools import Refusal, SessionViews, answer, offered_model, refused, spawnable
from openclaw.text import age, shortened
from openclaw.tools.arguments import RecordTool, ToolArguments, required_text
from openclaw.tools.base import ToolContext, ToolResult

log = logging.getLogger("openclaw.teamwork.subagents")

KIND = "spawn"
ANNOUNCE_S = 120.0
"""The announce step may take this long. Then the sub-agent's last words are the result."""
SWEEP_S = 60.0
LONGEST_LABEL = 64
LONGEST_RESULT = 20_000
_LEVELS = "off, minimal, low, medium, high"
Status = Literal["running", "success", "error", "timeout", "stopped"]


class SpawnState(msgspec.Struct, kw_only=True, rename="camel"):
    """The state of one ``sessions_spawn`` job."""

    agent_id: str
    child: str
    requester_agent: str
    requester: str
    route: Route
    """Where the run that asked was answered."""
    task: str
    label: str = ""
    model: str = ""
    thinking: str = ""
    timeout_s: float = 0
    cleanup: Literal["delete", "keep"] = "keep"
    trace: Trace
    begun: bool = False
    status: Status = "running"
    error: str = ""
    run_ms: int = 0
    result: str = ""
    """The announcement, once it is known."""
    silent: bool = False
    """The sub-agent did not want its result to be told."""
    delivered: bool = False
    withheld: bool = False
    """The send policy kept the result from the channel. It is in the requester's session all the same."""
    archive_at: int = 0
    archived: bool = False

    @property
    def child_ref(self) -> SessionRef:
        return SessionRef(self.agent_id, self.child)

    @property
    def requester_ref(self) -> SessionRef:
        return SessionRef(self.requester_agent, self.requester)

    @property
    def name(self) -> str:
        return self.label or shortened(self.task, 48)


def state_of(job: JobRow) -> SpawnState:
    return msgspec.convert(job.state, SpawnState)


class SessionsSpawnArguments(ToolArguments):
    task: Annotated[str, Meta(description="What to do, with everything it must know")]
    label: Annotated[str, Meta(description="A short name for lists")] = ""
    agent_id: Annotated[str, Meta(description="Another agent, as agents_list shows")] = ""
    model: Annotated[str, Meta(description="provider/model or an alias")] = ""
    thinking: Annotated[str, Meta(description=_LEVELS)] = ""
    run_timeout_seconds: Annotated[float, Meta(ge=0, description="Stop it after this; 0 is never")] | None = None
    timeout_seconds: Annotated[float | None, Meta(extra={"hidden": True})] = None
    """An older name of ``run_timeout_seconds``."""
    cleanup: Annotated[Literal["delete", "keep"], Meta(description="Its session afterwards (keep)")] = "keep"


class SessionsSpawnTool(RecordTool[SessionsSpawnArguments]):
    name = "sessions_spawn"
    summary = "Start a sub-agent in a session of its own; its result comes back by itself"
    description = (
        "Start a sub-agent for a task in a session of its own. Returns at once; when the sub-agent is done, its "
        "result is posted to this chat by itself, so do not wait for it or poll."
    )

    examples = ({"task": "Read docs/faq.md and list what is out of date, with line numbers."},)

    def __init__(self, views: SessionViews, between: BetweenSessions, subagents: Subagents) -> None:
        self._views = views
        self._between = between
        self._subagents = subagents

    async def execute(self, arguments: SessionsSpawnArguments, context: ToolContext) -> ToolResult:
        task = required_text(arguments.task, "task").strip()
        job_id = step_id(f"{context.run_id}/{context.call_id}", KIND)
        try:
            async with self._between.counting:
                job, more = await self._job(job_id, arguments, context, task)
                await self._subagents.begin(job)
        except Refusal as refusal:
            return refused(refusal)
        state = state_of(job)
        run_id = step_id(job_id, "work")
        return answer({"status": "accepted", "childSessionKey": state.child, "runId": run_id, **more})

    async def _job(
        self, job_id: str, arguments: SessionsSpawnArguments, context: ToolContext, task: str
    ) -> tuple[JobRow, dict[str, Any]]:
        runtime, requester = self._views.runtime, SessionRef(context.agent_id, context.session_key)
        config, defaults = runtime.config.current, runtime.config.current.agents.defaults
        if is_subagent(requester.key):
            raise Refusal("sessions_spawn is not allowed from sub-agent sessions")
        agent_id = _agent(config, requester.agent_id, arguments.agent_id)
        self._subagents.check_room(requester.key)
        child = f"agent:{agent_id}:subagent:{uuid.uuid5(uuid.UUID(job_id), 'session')}"
        trace = await self._between.next_trace(context, child)
        model, more = _model(runtime, agent_id, arguments.model.strip(), child)
        label = arguments.label.strip()[:LONGEST_LABEL]
        timeouts = (arguments.run_timeout_seconds, arguments.timeout_seconds, defaults.subagents.run_timeout_seconds)
        row = await runtime.stores.ledger.by_run(context.run_id) if context.run_id else None
        entry = await runtime.stores.sessions.get(requester.agent_id, requester.key)
        state = SpawnState(
            agent_id=agent_id,
            child=child,
            requester_agent=requester.agent_id,
            requester=requester.key,
            route=row.route if row else last_route(entry),
            task=task,
            label=label,
            model=model,
            thinking=_thinking(config, agent_id, arguments.thinking.strip()),
            timeout_s=next(timeout for timeout in timeouts if timeout is not None),
            cleanup=arguments.cleanup,
            trace=trace,
        )
        job = JobRow(
            id=job_id,
            kind=KIND,
            owner_key=requester.key,
            run_id=context.run_id,
            trace=trace.id,
            state=msgspec.to_builtins(state),
            created_at=runtime.clock.now_ms(),
        )
        return job, more


def _agent(config: Config, requester: str, wanted: str) -> str:
    """The agent to start. Raises ``Refusal`` for one that the requester may not start."""
    agent_id = normalize_agent_id(wanted) if wanted.strip() else requester
    allowed = spawnable(config, requester)
    if agent_id != requester and "*" not in allowed and agent_id not in allowed:
        others = ", ".join(sorted(allowed - {requester})) or "none"
        raise Refusal(f"agentId is not allowed for sessions_spawn (allowed: {others})")
    if agent_id != requester and agent_config(config, agent_id) is None:
        raise Refusal(f'There is no agent "{agent_id}"; agents_list shows them.', "error")
    return agent_id


def _model(runtime: Runtime, agent_id: str, wanted: str, child: str) -> tuple[str, dict[str, Any]]:
    """The model of the sub-agent, and what the answer says of it. Raises ``Refusal`` for a model nobody knows."""
    config = runtime.config.current
    if wanted:
        try:
            model = offered_model(runtime, agent_id, wanted)
            runtime.models.catalogue().check_known(model)
            return model.ref, {"modelApplied": True}
        except ModelError as refusal:
            raise Refusal(str(refusal), "error", childSessionKey=child) from None
    agent = agent_config(config, agent_id)
    for setting in (agent.subagents.model if agent else None, config.agents.defaults.subagents.model):
        name = setting.primary if isinstance(setting, ModelChoice) else setting
        if not name:
            continue
        try:
            return runtime.models.catalogue().resolve(name).ref, {"modelApplied": True}
        except ModelError as unknown:
            return "", {"warning": f"The configured model of sub-agents is not used: {unknown}"}
    return "", {}


def _thinking(config: Config, agent_id: str, wanted: str) -> str:
    agent = agent_config(config, agent_id)
    if wanted:
        level = parse_level(wanted)
        if level is None:
            raise Refusal(f'Invalid thinking level "{wanted}". Use one of: {_LEVELS}.', "error")
        return level
    usual = (agent.subagents.thinking if agent else None) or config.agents.defaults.subagents.thinking or ""
    return parse_level(usual) or ""


class SubagentIndex:
    """The sub-agents of each session: lists them and stops them."""

    def __init__(self, ledger: Ledger, runs: Runs) -> None:
        self._ledger = ledger
        self._runs = runs
        self._living: dict[str, dict[str, JobRow]] = {}
        """The sub-agents that have not ended, by the key of the session that asked for them, then by job."""

    def add(self, job: JobRow) -> None:
        if state_of(job).status == "running":
            self._living.setdefault(job.owner_key, {})[job.id] = job

    def remove(self, job: JobRow) -> None:
        living = self._living.get(job.owner_key, {})
        living.pop(job.id, None)
        if not living:
            self._living.pop(job.owner_key, None)

    def living(self, owner_key: str) -> list[JobRow]:
        return list(self._living.get(owner_key, {}).values())

    def lines(self, owner_key: str) -> list[str]:
        """Describe the living sub-agents for the requester's next prompt. Returns an empty list if there are none."""
        living = self._living.get(owner_key)
        if not living:
            return []
        names = [f"{state.name} ({state.child})" for state in map(state_of, living.values())]
        return [f"Sub-agents at work ({len(names)}): {'; '.join(names[:20])}"]

    async def of(self, owner_key: str) -> list[JobRow]:
        """Return all sub-agents of a session that the ledger has, the oldest first."""
        return await self._ledger.jobs(kind=KIND, owner_key=owner_key)

    async def stop_all(self, owner_key: str) -> int:
        """Stop the sub-agents of a session. Returns how many were at work."""
        living = self.living(owner_key)
        await asyncio.gather(*(self.stop_one(job) for job in living))
        return len(living)

    async def stop_one(self, job: JobRow) -> bool:
        return bool(await self._runs.abort(state_of(job).child, reason=AbortReason.STOP))


class Subagents:
    """Follows the sub-agents to their end, tells their results, and archives their sessions."""

    def __init__(
        self,
        runtime: Runtime,
        index: SubagentIndex,
        between: BetweenSessions,
        jobs: Jobs,
        runs: Runs,
        say: Say,
    ) -> None:
        self._runtime = runtime
        self._index = index
        self._between = between
        self._jobs = jobs
        self._runs = runs
        self._say = say
        jobs.add_kind(KIND, self.carry_on)

    # Beginning and looking

    def check_room(self, owner_key: str) -> None:
        most = self._runtime.config.current.agents.defaults.subagents.max_children_per_agent
        if most is not None and len(self._index.living(owner_key)) >= most:
            raise Refusal(
                f"{most} sub-agents of this session are at work already "
                "(agents.defaults.subagents.maxChildrenPerAgent); wait for one to end."
            )

    async def begin(self, job: JobRow) -> None:
        """Returns when the sub-agent's task is on disk. A call that is repeated begins nothing new."""
        if await self._runtime.stores.ledger.job(job.id) is not None:
            return
        await self._jobs.save(job)
        self._index.add(job)
        self._jobs.start(job)

    # One sub-agent

    async def carry_on(self, job: JobRow) -> None:
        self._index.add(job)
        try:
            await self._follow(job)
        finally:
            self._index.remove(job)

    async def _follow(self, job: JobRow) -> None:
        state = state_of(job)
        if not state.begun:
            if await self._runtime.stores.ledger.by_run(step_id(job.id, "work")) is None:
                try:
                    await self._begin_work(job, state)
                except Refusal as refusal:
                    state.status, state.error = "error", str(refusal)
            state.begun = True
            await self._save(job, state)
        if state.status == "running":
            outcome = await self._between.outcome(step_id(job.id, "work"))
            self._note_end(state, outcome)
            await self._save(job, state)
            self._index.remove(job)
        if not state.result and state.status != "stopped":
            await self._find_result(job, state)
            await self._save(job, state)
        if not state.delivered and not state.silent and state.status != "stopped":
            await self._deliver(job, state)
        minutes = self._runtime.config.current.agents.defaults.subagents.archive_after_minutes
        state.archive_at = job.created_at + minutes * 60_000 if minutes > 0 else 0
        if state.cleanup == "delete":
            state.archived, state.archive_at = await self._remove(state), job.created_at
        await self._save(job, state)

    async def _begin_work(self, job: JobRow, state: SpawnState) -> None:
        """Makes the session and hands the task in."""
        fields: dict[str, Any] = {"spawnedBy": state.requester}
        if state.label:
            fields["label"] = state.label
        if state.thinking:
            fields["thinkingLevel"] = state.thinking
        if state.model:
            provider, _, model = state.model.partition("/")
            fields |= {"providerOverride": provider, "modelOverride": model}
        entry = await self._runtime.stores.sessions.get(state.requester_agent, state.requester)
        channel = channel_of(entry, state.requester)
        body = MessageBody(
            extra_system_prompt=_role(state, channel),
            timeout_seconds=state.timeout_s or None,
            provenance=provenance(state.requester, channel, "sessions_spawn"),
            trace=state.trace,
        )
        await self._between.submit(
            state.child_ref, state.task, step_id(job.id, "work"), body, source="subagent", new=fields
        )

    @staticmethod
    def _note_end(state: SpawnState, outcome: ReplyOutcome) -> None:
        """Takes the status from how the run really ended, never from what was said."""
        state.status = "success" if outcome.status == "ok" else outcome.status
        state.error = outcome.error
        row = outcome.row
        if row is not None and row.ended_at is not None:
            state.run_ms = row.ended_at - (row.started_at or row.accepted_at)
        state.result = ""

    async def _find_result(self, job: JobRow, state: SpawnState) -> None:
        """Lets the sub-agent say what came of its task, and stores it in its final form."""
        work = await self._runtime.stores.ledger.by_run(step_id(job.id, "work"))
        reply = result_text(work.result).strip() if work else ""
        if state.status == "success":
            announced = await self._announce_step(job, state)
            state.silent = announced is not None and announced.silent
            reply = (announced.reply.strip() if announced else "") or reply
        state.result = announcement_text(state.status, reply[:LONGEST_RESULT], state.error, await self._stats(state))

    async def _announce_step(self, job: JobRow, state: SpawnState) -> ReplyOutcome | None:
        run_id = step_id(job.id, "announce")
        lines = [
            "Your task is done. This is the announce step: what you answer now is posted to the chat of whoever asked.",
            "Say the result in a few sentences, with what must be known to use it.",
            f"Answer exactly {ANNOUNCE_SKIP} to post nothing.",
        ]
        body = MessageBody(
            internal=True, extra_system_prompt="\n".join(lines), trace=state.trace, without_tools=["message"]
        )
        try:
            await self._between.submit(state.child_ref, "Sub-agent announce step.", run_id, body, source="subagent")
        except (SessionGone, Refusal):
            return None
        return await self._between.outcome(run_id, ANNOUNCE_S)

    async def _stats(self, state: SpawnState) -> str:
        """The line under a result: time, tokens, cost and where the transcript is."""
        entry = await self._runtime.stores.sessions.get(state.agent_id, state.child)
        parts = [f"runtime {runtime_text(state.run_ms)}"]
        session_id, path = "n/a", "n/a"
        if entry is not None:
            session_id, ref = entry["sessionId"], transcript_ref(state.agent_id, entry)
            path = await self._runtime.stores.transcripts.locate(ref) or self._runtime.stores.transcripts.default_path(
                ref
            )
        sent, received = (entry or {}).get("inputTokens"), (entry or {}).get("outputTokens")
        if sent is None and received is None:
            parts.append("tokens n/a")
        else:
            both = token_count((sent or 0) + (received or 0))
            parts.append(f"tokens {both} (in {token_count(sent or 0)} / out {token_count(received or 0)})")
        totals = await session_totals(self._runtime, state.child_ref, entry)
        if totals.known and totals.total_cost:
            parts.append(f"est {money(totals.total_cost)}")
        parts += [f"sessionKey {state.child}", f"sessionId {session_id}", f"transcript {path}"]
        return f"Stats: {' • '.join(parts)}"

    async def _deliver(self, job: JobRow, state: SpawnState) -> None:
        """Tells the result in the requester's chat, once. A requester that was deleted is not made again."""
        requester = state.requester_ref
        if await self._runtime.stores.sessions.get(requester.agent_id, requester.key) is None:
            log.warning("the result of sub-agent %s is kept: its requester %s is gone", state.child, requester.key)
            return
        if self._runtime.config.current.agents.defaults.subagents.announce_mode == "summarize":
            body = MessageBody(provenance=provenance(state.child, "", "sessions_spawn"), trace=state.trace)
            text = f"[The sub-agent {state.name} has ended. Tell the person what came of it.]\n{state.result}"
            try:
                await self._between.submit(
                    requester, text, step_id(job.id, "deliver"), body, source="subagent", route=state.route
                )
            except (SessionGone, Refusal) as problem:
                log.warning("the result of sub-agent %s is kept: %s", state.child, problem)
                return
        else:
            state.withheld = not await self._say(requester, step_id(job.id, "deliver"), state.result, state.route)
        state.delivered = True
        await self._save(job, state)

    # Archiving

    async def sweep(self) -> None:
        """Archives the sessions of sub-agents that ended long enough ago. It runs until cancelled."""
        while True:
            try:
                await self.archive_due()
            except Exception:
                log.exception("sessions of sub-agents could not be archived; trying again")
            await self._runtime.clock.sleep(SWEEP_S)

    async def archive_due(self) -> None:
        now = self._runtime.clock.now_ms()
        for job in await self._runtime.stores.ledger.jobs(kind=KIND, ended=True):
            state = state_of(job)
            if not state.archived and state.archive_at and state.archive_at <= now:
                state.archived = await self._remove(state)
                await self._save(job, state)

    async def _remove(self, state: SpawnState) -> bool:
        """Deletes the session. False: one of its runs does not end, and the next sweep tries again."""
        if state.child_ref.key != main_session_key(self._runtime.config.current, state.agent_id):
            try:
                await delete_session(self._runtime, self._runs, state.child_ref)
            except StillActive:
                return False
        return True

    async def _save(self, job: JobRow, state: SpawnState) -> None:
        job.state = msgspec.to_builtins(state)
        await self._jobs.save(job)


def runtime_text(ms: int) -> str:
    """``450ms``, ``41s``, ``2m31s``, ``1h15m``. An unknown time is ``n/a``."""
    if ms <= 0:
        return "n/a"
    if ms < 1000:
        return f"{ms}ms"
    seconds = (ms + 500) // 1000
    if seconds < 60:
        return f"{seconds}s"
    amount, unit, rest, smaller = (seconds // 60, "m", seconds % 60, "s")
    if amount >= 60:
        amount, unit, rest, smaller = (amount // 60, "h", amount % 60, "m")
    return f"{amount}{unit}{rest}{smaller}" if rest else f"{amount}{unit}"


def _role(state: SpawnState, channel: str) -> str:
    """Return the prompt that introduces a sub-agent to its task."""
    lines = [
        "You are a sub-agent: a session that another agent started for one task.",
        "- Do this task and nothing else. Your last message is the result; make it complete and short.",
        "- Do not start conversations, schedule anything or act for the person beyond the task.",
        "- You exist for this task only, and your session may be deleted afterwards.",
        f"Label: {state.label}" if state.label else "",
        f"Requester session: {shown_key(state.requester)}",
        f"Requester channel: {channel}" if channel not in ("", "unknown") else "",
        f"Your session: {state.child}",
    ]
    return "\n".join(line for line in lines if line)


# The command /subagents

USAGE = "⚙️ Usage: /subagents list | log <which> [n] | info <which> | send <which> <text> | stop <which|all>"
WAIT_S = 30.0
SHORTEST_ID = 4
USUAL_LINES, MOST_LINES = 10, 50


class SubagentsCommand:
    """Answers the command. ``which`` is a number of the list, ``last``, a label, a key or the beginning of a run id."""

    def __init__(self, runtime: Runtime, index: SubagentIndex, runs: Runs) -> None:
        self._runtime = runtime
        self._index = index
        self._runs = runs

    async def stop_all(self, session_key: str) -> int:
        return await self._index.stop_all(session_key)

    async def answer(self, session: SessionRef, args: str, message_id: str, *, guest: bool, process: Process) -> str:
        words = args.split(None, 2)
        verb = words[0].lower() if words else "list"
        jobs = await self._index.of(session.key)
        if verb == "list":
            return self._list(jobs)
        if verb not in ("log", "info", "send", "stop") or len(words) < 2:
            return USAGE
        if verb == "stop" and words[1].lower() == "all":
            return f"⚙️ Stopped {await self._index.stop_all(session.key)} sub-agent(s)."
        job = _chosen(jobs, words[1])
        if job is None:
            return f'There is no sub-agent "{shortened(words[1], 40)}" here; /subagents list shows them.'
        state, rest = state_of(job), words[2] if len(words) > 2 else ""
        match verb:
            case "info":
                return self._info(job, state)
            case "log":
                return await self._log(state, rest)
            case "stop":
                stopped = await self._index.stop_one(job)
                return f"⚙️ {state.name} was stopped." if stopped else f"{state.name} is not at work."
            case _:
                between = BetweenSessions(self._runtime, process, self._runs)
                return await self._send(between, session, job, state, rest, message_id, guest=guest)

    def _list(self, jobs: list[JobRow]) -> str:
        if not jobs:
            return "🧩 No sub-agents here."
        now = self._runtime.clock.now_ms()
        lines = [
            f"{number}. {state.name} · {state.status} · {age(now - job.created_at)}"
            for number, (job, state) in enumerate(((job, state_of(job)) for job in jobs), 1)
        ]
        working = sum(state_of(job).status == "running" for job in jobs)
        return "\n".join([f"🧩 Sub-agents ({working} at work)", *lines[-40:]])

    def _info(self, job: JobRow, state: SpawnState) -> str:
        delivery = "posted" if state.delivered else "not posted (it wanted silence)" if state.silent else "not posted"
        if state.withheld:
            delivery = "kept in the session; its send policy does not allow replies"
        facts = {
            "Status": state.status,
            "Label": state.label,
            "Task": shortened(state.task, 500),
            "Run": step_id(job.id, "work"),
            "Session": state.child,
            "Model": state.model,
            "Error": state.error,
            "Result": delivery if state.result else "",
            "Afterwards": "deleted" if state.cleanup == "delete" else "kept",
        }
        return "\n".join(["🧩 Sub-agent", *(f"{name}: {value}" for name, value in facts.items() if value)])

    async def _log(self, state: SpawnState, rest: str) -> str:
        entry = await self._runtime.stores.sessions.get(state.agent_id, state.child)
        if entry is None:
            return state.result or "Its session is gone, and it left no result."
        limit = min(int(rest), MOST_LINES) if rest.isascii() and rest.isdigit() and int(rest) else USUAL_LINES
        row = SessionRow(state.agent_id, state.child, entry)
        messages = await last_messages(self._runtime.stores.transcripts, row, limit)
        lines = [
            f"{preview_role(message)}: {shortened(text, 400)}"
            for message in messages
            if (text := preview_text(message).strip())
        ]
        return "\n".join([f"🧩 {state.name}", *lines]) if lines else f"{state.name} has said nothing yet."

    async def _send(
        self,
        between: BetweenSessions,
        session: SessionRef,
        job: JobRow,
        state: SpawnState,
        text: str,
        message_id: str,
        *,
        guest: bool,
    ) -> str:
        if not text.strip():
            return USAGE
        entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
        source = provenance(session.key, channel_of(entry, session.key), "subagents")
        run_id = step_id(job.id, f"send {message_id}")
        # A guest speaks here with a guest's rights, also to a sub-agent of the owner.
        body = MessageBody(provenance=source, guest=guest, trace=state.trace)
        try:
            await between.submit(state.child_ref, text, run_id, body, source="subagent")
        except Refusal as refusal:
            return f"⚙️ {refusal}"
        except LookupError:
            return "Its session is gone."
        outcome = await between.outcome(run_id, WAIT_S)
        if outcome.status == "ok":
            return outcome.reply or f"{state.name} said nothing."
        if outcome.row is None:
            return f"⚙️ Sent to {state.name}; it has not answered yet. /subagents log shows it later."
        return f"⚙️ {state.name} could not answer: {outcome.error}"


def _chosen(jobs: list[JobRow], which: str) -> JobRow | None:
    if which.lower() == "last":
        return jobs[-1] if jobs else None
    if which.isascii() and which.isdigit() and 1 <= int(which) <= len(jobs):
        return jobs[int(which) - 1]
    for job in reversed(jobs):
        state = state_of(job)
        beginning = len(which) >= SHORTEST_ID and step_id(job.id, "work").startswith(which)
        if beginning or which in (state.child, state.label):
            return job
    return None
