"""``/subagents``: the sub-agents of a chat, what they did, a word to one of them, and their end."""

from __future__ import annotations

from openclaw.agent.runtime import Runtime
from openclaw.outbound.preview import last_messages, preview_role, preview_text
from openclaw.sessions.keys import SessionRef, channel_of
from openclaw.storage.base import JobRow, MessageBody, SessionRow, step_id
from openclaw.teamwork.between import BetweenSessions, provenance
from openclaw.teamwork.subagents import SpawnState, Subagents, state_of
from openclaw.teamwork.visibility import Refusal
from openclaw.text import age, shortened

USAGE = "⚙️ Usage: /subagents list | log <which> [n] | info <which> | send <which> <text> | stop <which|all>"
WAIT_S = 30.0
SHORTEST_ID = 4
USUAL_LINES, MOST_LINES = 10, 50


class SubagentsCommand:
    """Answers the command. ``which`` is a number of the list, ``last``, a label, a key or the beginning of a run id."""

    def __init__(self, runtime: Runtime, subagents: Subagents, between: BetweenSessions) -> None:
        self._runtime = runtime
        self._subagents = subagents
        self._between = between

    async def answer(self, session: SessionRef, args: str, message_id: str) -> str:
        words = args.split(None, 2)
        verb = words[0].lower() if words else "list"
        jobs = await self._subagents.of(session.key)
        if verb == "list":
            return self._list(jobs)
        if verb not in ("log", "info", "send", "stop") or len(words) < 2:
            return USAGE
        if verb == "stop" and words[1].lower() == "all":
            return f"⚙️ Stopped {await self._subagents.stop_all(session.key)} sub-agent(s)."
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
                stopped = await self._subagents.stop_one(job)
                return f"⚙️ {state.name} was stopped." if stopped else f"{state.name} is not at work."
            case _:
                return await self._send(session, job, state, rest, message_id)

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
        told = "posted" if state.delivered else "not posted (it wanted silence)" if state.silent else "not posted"
        facts = {
            "Status": state.status,
            "Label": state.label,
            "Task": shortened(state.task, 500),
            "Run": step_id(job.id, "work"),
            "Session": state.child,
            "Model": state.model,
            "Error": state.error,
            "Result": told if state.result else "",
            "Afterwards": "deleted" if state.cleanup == "delete" else "kept",
        }
        return "\n".join(["🧩 Sub-agent", *(f"{name}: {value}" for name, value in facts.items() if value)])

    async def _log(self, state: SpawnState, rest: str) -> str:
        entry = await self._runtime.sessions.get(state.agent_id, state.child)
        if entry is None:
            return state.result or "Its session is gone, and it left no result."
        limit = min(int(rest), MOST_LINES) if rest.isascii() and rest.isdigit() and int(rest) else USUAL_LINES
        row = SessionRow(state.agent_id, state.child, entry)
        messages = await last_messages(self._runtime.transcripts, row, limit)
        lines = [
            f"{preview_role(one)}: {shortened(text, 400)}" for one in messages if (text := preview_text(one).strip())
        ]
        return "\n".join([f"🧩 {state.name}", *lines]) if lines else f"{state.name} has said nothing yet."

    async def _send(self, session: SessionRef, job: JobRow, state: SpawnState, text: str, message_id: str) -> str:
        if not text.strip():
            return USAGE
        entry = await self._runtime.sessions.get(session.agent_id, session.key)
        told = provenance(session.key, channel_of(entry, session.key), "subagents")
        run_id = step_id(job.id, f"send {message_id}")
        try:
            await self._between.hand_in(state.child_ref, text, run_id, MessageBody(provenance=told), source="subagent")
        except Refusal as refusal:
            return f"⚙️ {refusal}"
        except LookupError:
            return "Its session is gone."
        outcome = await self._between.outcome(run_id, WAIT_S)
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
