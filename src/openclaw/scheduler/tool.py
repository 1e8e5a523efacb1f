"""The ``cron`` tool: an agent schedules jobs and reminders, and wakes itself.

An agent sees and changes its own jobs only. Outside its main session it can neither speak as the system there nor send
elsewhere than to the chat it is in, because others write in that chat. What others than the owner may have caused, in a
group or as a guest, sees and changes only the jobs of that chat, and they run with no more rights than it has. In the
session of a webhook it schedules nothing.
"""

from __future__ import annotations

import json
from typing import Any, cast

from openclaw.agent.runtime import Runtime
from openclaw.agent.sandbox import comes_from_group
from openclaw.messages import AssistantMessage, ToolSpec, UserMessage, user_text
from openclaw.models.base import ModelError
from openclaw.scheduler.cron import Cron
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.jobs import SCHEDULED_BY, Job, JobError, normalized
from openclaw.scheduler.schedule import BadSchedule
from openclaw.sessions.entry import normalize_route
from openclaw.sessions.keys import kind_of
from openclaw.sessions.reset import transcript_ref
from openclaw.text import shortened
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result

ACTIONS = ("status", "list", "add", "update", "remove", "run", "runs", "wake")
CHANGES = frozenset({"add", "update", "remove", "run", "wake"})
MOST_CONTEXT = 10
LONGEST_LINE = 220
DESCRIPTION = """Manages scheduled jobs (reminders, repeated tasks) and wake events.

Actions: status | list (includeDisabled) | add (job) | update (jobId, patch) | remove (jobId) | run (jobId) |
runs (jobId) | wake (text, mode).

A job: {"name", "schedule", "sessionTarget": "main"|"isolated", "wakeMode": "now"|"next-heartbeat", "payload",
"delivery", "enabled"}.
schedule: {"kind":"at","at":"<ISO time; without a zone it is UTC>"} | {"kind":"every","everyMs":<ms>} |
{"kind":"cron","expr":"<minute hour day month weekday>","tz":"<IANA zone>"}.
payload: {"kind":"systemEvent","text"} for sessionTarget main: the text appears to you as a system message at that time,
so write it as a reminder that explains itself. {"kind":"agentTurn","message","model","thinking","timeoutSeconds"} for
sessionTarget isolated: a turn in a session of its own, whose answer is delivered to this chat unless delivery says
otherwise: {"mode":"announce"|"none","channel","to","bestEffort"}.
contextMessages (0-10) adds the last messages of this chat to the text of a reminder."""


class CronTool:
    summary = "Manage scheduled jobs, reminders and wake events"

    def __init__(self, cron: Cron, heartbeats: Heartbeats, runtime: Runtime) -> None:
        self._cron = cron
        self._heartbeats = heartbeats
        self._runtime = runtime
        text, thing = {"type": "string"}, {"type": "object", "additionalProperties": True}
        self.spec = ToolSpec(
            name="cron",
            description=DESCRIPTION,
            parameters={
                "type": "object",
                "properties": {
                    "action": {"type": "string", "enum": list(ACTIONS)},
                    "gatewayUrl": text,
                    "gatewayToken": text,
                    "timeoutMs": {"type": "number"},
                    "includeDisabled": {"type": "boolean"},
                    "job": thing,
                    "jobId": text,
                    "id": text,
                    "patch": thing,
                    "text": text,
                    "mode": {"type": "string", "enum": ["now", "next-heartbeat"]},
                    "contextMessages": {"type": "number", "minimum": 0, "maximum": MOST_CONTEXT},
                },
                "required": ["action"],
            },
        )

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        action = str(arguments.get("action") or "")
        if action in CHANGES and kind_of(context.session_key) == "hook":
            raise ToolError("In the session of a webhook nothing can be scheduled.")
        try:
            answer = await self._answer(action, arguments, context)
        except (JobError, BadSchedule) as problem:
            raise ToolError(str(problem)) from None
        return text_result(json.dumps(answer, indent=2, ensure_ascii=False), answer)

    async def _answer(self, action: str, given: dict[str, Any], context: ToolContext) -> Any:
        match action:
            case "status":
                return await self._cron.status()
            case "list":
                return {"jobs": await self._jobs(context, disabled=bool(given.get("includeDisabled")))}
            case "add":
                return await self._add(given, context)
            case "update":
                return await self._update(given, context)
            case "remove":
                return {"ok": True, "removed": await self._cron.remove(await self._own_job(given, context))}
            case "run":
                return await self._run(given, context)
            case "runs":
                return {"entries": await self._cron.history.entries(await self._own_job(given, context), 50)}
            case "wake":
                return await self._wake(given, context)
            case _:
                raise ToolError(f"Unknown action {action!r}; use one of {', '.join(ACTIONS)}.")

    async def _own_job(self, given: dict[str, Any], context: ToolContext) -> str:
        """The id of the job that is meant. Jobs that this chat may not see do not exist for it."""
        job_id = str(given.get("jobId") or given.get("id") or "").strip()
        if not job_id:
            raise ToolError("jobId required (id works too)")
        if not any(job["id"] == job_id for job in await self._jobs(context, disabled=True)):
            raise ToolError(f"unknown cron job id: {job_id[:80]}")
        return job_id

    async def _add(self, given: dict[str, Any], context: ToolContext) -> Job:
        raw = given.get("job")
        if not isinstance(raw, dict):
            # Some models put the fields of the job beside the action.
            fields = ("name", "schedule", "payload", "sessionTarget", "wakeMode", "delivery", "enabled", "description")
            raw = {name: given[name] for name in fields if name in given}
        if not raw:
            raise ToolError("job required")
        job = normalized(cast("Job", raw))
        if "agentId" not in job or job["agentId"] is None:
            job["agentId"] = context.agent_id
        await self._check(job, context)
        payload = job.get("payload")
        if isinstance(payload, dict) and payload.get("kind") == "systemEvent" and given.get("contextMessages"):
            payload = cast("Job", payload)
            payload["text"] = await self._with_context(str(payload.get("text") or ""), given, context)
        if isinstance(payload, dict) and payload.get("kind") == "agentTurn":
            job["delivery"] = await self._delivery(job.get("delivery"), context)
        return await self._cron.add(job, "" if await self._is_owners(context) else context.session_key)

    async def _update(self, given: dict[str, Any], context: ToolContext) -> Job:
        job_id = await self._own_job(given, context)
        if not isinstance(given.get("patch"), dict):
            raise ToolError("patch required")
        patch = normalized(cast("Job", given["patch"]))
        stored = await self._cron.get(job_id)
        await self._check({**(stored or {}), **patch}, context)
        if isinstance(delivery := patch.get("delivery"), dict) and not await self._is_owners_main(context):
            patch["delivery"] = await self._delivery(cast("Job", delivery), context)
        return await self._cron.update(job_id, patch)

    async def _run(self, given: dict[str, Any], context: ToolContext) -> Job:
        job_id = await self._own_job(given, context)
        await self._check(await self._cron.get(job_id) or {}, context)
        # The call does not wait for the job, because the job may wait for this very run to end.
        return await self._cron.run(job_id, wait=False)

    async def _wake(self, given: dict[str, Any], context: ToolContext) -> Job:
        text = str(given.get("text") or "").strip()
        if not text:
            raise ToolError("text required")
        if not await self._is_owners_main(context):
            raise ToolError("Only the main session can be woken, and only by itself.")
        now = given.get("mode") != "next-heartbeat"
        self._runtime.notes.put(context.session_key, text, wake=now)
        await self._runtime.notes.synced()
        if now:
            self._heartbeats.request(context.agent_id, "wake")
        return {"ok": True}

    async def _jobs(self, context: ToolContext, *, disabled: bool) -> list[Job]:
        jobs = await self._cron.jobs(disabled=disabled, agent_id=context.agent_id)
        if await self._is_owners(context):
            return jobs
        return [job for job in jobs if job.get(SCHEDULED_BY) == context.session_key]

    async def _is_owners(self, context: ToolContext) -> bool:
        """Whether only the owner can have caused the call."""
        row = await self._runtime.ledger.by_run(context.run_id) if context.run_id else None
        trace = row.body.trace if row is not None else None
        if row is not None and (row.body.guest or (trace is not None and trace.guest)):
            return False
        if kind_of(context.session_key) == "hook":
            return False
        return not await comes_from_group(self._runtime, context.agent_id, context.session_key)

    async def _is_owners_main(self, context: ToolContext) -> bool:
        """Whether the owner speaks in the main session, where a guest may speak as well."""
        session = self._runtime.config.current.session
        main = kind_of(context.session_key, main_key=session.main_key, scope=session.scope) == "main"
        return main and await self._is_owners(context)

    async def _check(self, job: Job, context: ToolContext) -> None:
        """Refuses what would give this session more than it has."""
        if job.get("agentId") not in (None, context.agent_id):
            raise ToolError("agentId: an agent schedules jobs for itself only.")
        payload = job.get("payload")
        kind = cast("Job", payload).get("kind") if isinstance(payload, dict) else None
        to_main = job.get("sessionTarget") == "main" or (kind == "systemEvent" and "sessionTarget" not in job)
        if to_main and not await self._is_owners_main(context):
            raise ToolError(
                'From this chat only jobs with sessionTarget "isolated" and payload.kind "agentTurn" can be scheduled; '
                "their answers come to this chat."
            )
        self._check_model(cast("Job", payload).get("model") if isinstance(payload, dict) else None, context.agent_id)

    def _check_model(self, name: Any, agent_id: str) -> None:
        catalogue = self._runtime.catalogue()
        try:
            model = catalogue.resolve(name) if isinstance(name, str) and name.strip() else None
        except ModelError:
            return  # The run of the job tells that there is no such model.
        if model is not None:
            try:
                catalogue.check_choice(model, agent_id)
            except ModelError as refused:
                raise ToolError(str(refused)) from None

    async def _delivery(self, wanted: Any, context: ToolContext) -> Job:
        """Where the answers of a job go: to this chat. In the main session the model may name another place."""
        delivery: Job = {"mode": "announce", **(cast("Job", wanted) if isinstance(wanted, dict) else {})}
        entry = await self._runtime.sessions.get(context.agent_id, context.session_key)
        here = normalize_route((entry or {}).get("deliveryContext"))
        owners = await self._is_owners_main(context)
        if owners and (delivery.get("to") or delivery.get("channel") or delivery["mode"] == "none"):
            return delivery
        if delivery["mode"] == "announce" and here.get("to"):
            delivery |= {name: here[name] for name in ("channel", "to", "accountId") if name in here}
        elif delivery["mode"] == "announce" and not owners:
            delivery = {"mode": "none"}
        return delivery

    async def _with_context(self, text: str, given: dict[str, Any], context: ToolContext) -> str:
        """The text of a reminder, with the last messages of the chat for whoever reads it later."""
        count = max(0, min(MOST_CONTEXT, int(given.get("contextMessages") or 0)))
        entry = await self._runtime.sessions.get(context.agent_id, context.session_key)
        transcript = None
        if entry is not None:
            transcript = await self._runtime.transcripts.open(transcript_ref(context.agent_id, entry), create=False)
        lines: list[str] = []
        for message in transcript.context().messages if transcript is not None else []:
            if isinstance(message, UserMessage) and not message.internal:
                lines.append(f"- User: {shortened(user_text(message), LONGEST_LINE)}")
            elif isinstance(message, AssistantMessage) and message.text.strip():
                lines.append(f"- Assistant: {shortened(message.text, LONGEST_LINE)}")
        return "\n".join([text, "", "Recent context:", *lines[-count:]]) if count and lines else text
