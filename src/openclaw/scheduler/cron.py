"""Scheduled jobs at work: the timer, one run for each due moment, what comes of it, and the ``cron`` tool.

The file of the jobs says which due moment is under way, and the run's id follows from the job and that moment. A
Gateway that dies in between goes on at the step it had reached: nothing is run or announced twice, and nothing is lost.

With the tool an agent schedules jobs and reminders, and wakes itself. It sees and changes its own jobs only. Outside
its main session it can neither speak as the system there nor send elsewhere than to the chat it is in, because others
write in that chat. What others than the owner may have caused, in a group or as a guest, sees and changes only the jobs
of that chat, and they run with no more rights than it has. In the session of a webhook it schedules nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from openclaw.agent.runtime import Runtime
from openclaw.clock import duration_ms, wait_within
from openclaw.cluster.claims import SCHEDULER
from openclaw.config.schema import Config
from openclaw.messages import AssistantMessage, UserMessage, user_text
from openclaw.models.base import ModelError
from openclaw.models.thinking import parse_level
from openclaw.protocol.result import Result
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.jobs import (
    MOST_JOBS,
    REWRITE_S,
    SCHEDULED_BY,
    History,
    Job,
    JobError,
    JobStore,
    jobs_place,
    new_job,
    normalized,
    patched_job,
    shown,
    with_next_run,
)
from openclaw.scheduler.schedule import BadSchedule, backoff_ms, next_run
from openclaw.scheduler.turns import ScheduledTurn, ScheduledTurns, Status, TurnOutcome, has_no_reply
from openclaw.sessions.entry import BLOCKED, last_route
from openclaw.sessions.keys import SessionRef, is_cron_run_alias, kind_of
from openclaw.sessions.reset import transcript_ref
from openclaw.storage import faults
from openclaw.storage.disk_errors import until_written
from openclaw.storage.documents import DocumentStore
from openclaw.storage.session_query import SessionQuery, in_pages
from openclaw.text import shortened
from openclaw.tools.arguments import Hidden, InvalidArguments, RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result

log = logging.getLogger("openclaw.cron")

NAMESPACE = uuid.UUID("6f0f1b0e-7c51-4f0f-8d0c-6b1a0e3f9a11")
LONGEST_SLEEP_S = 60.0
"""The clock is looked at this often, because it may be set or the machine may have slept."""
JUMP_MS = 60_000
"""A clock that goes back by more than this was set."""
SWEEP_S = 3600.0
RUN_LIMIT_S = 600
RETENTION = "24h"
SILENT_NOTE = (
    "Your answer is delivered by itself, so do not send it with a tool. "
    "When there is nothing to tell, answer HEARTBEAT_OK."
)


class SchedulerStatus(msgspec.Struct, kw_only=True, rename="camel"):
    enabled: bool
    store_path: str
    jobs: int
    next_wake_at_ms: int | None


class RunResponse(Result, kw_only=True):
    """The answer to a request to run a job."""

    ok: Literal[True]
    ran: bool
    reason: str = ""
    """Why it did not run."""


RAN = RunResponse(ok=True, ran=True)


class CronEvent(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A change of a job, as clients get it."""

    job_id: str
    action: Literal["added", "updated", "removed", "started", "finished"]
    status: str = ""
    error: str = ""
    summary: str = ""
    session_id: str = ""
    session_key: str = ""
    run_at_ms: int | None = None
    duration_ms: int | None = None
    next_run_at_ms: int | float | None = None


class RunLine(CronEvent, kw_only=True, rename="camel", omit_defaults=True):
    """A finished run as the history stores it."""

    ts: int
    run_id: str


Publish = Callable[[CronEvent], None]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a job ended."""

    status: Status
    error: str = ""
    summary: str = ""
    session_id: str = ""
    session_key: str = ""


class Cron:
    """Runs the scheduled jobs when they are due, and answer what clients ask about them."""

    def __init__(
        self,
        turns: ScheduledTurns,
        heartbeats: Heartbeats,
        publish: Publish,
        documents: DocumentStore,
        *,
        switched_off: bool = False,
    ) -> None:
        """``switched_off``: no job runs by itself, whatever the configuration says."""
        self._turns = turns
        self._heartbeats = heartbeats
        self._publish = publish
        self._runtime = turns.runtime
        self._switched_off = switched_off
        position = jobs_place(documents, self._config.cron.store)
        self._store = JobStore(position.documents, position.jobs, self._runtime.clock)
        self.history = History(position.documents, position.histories)
        self._active: dict[str, asyncio.Task[Finished]] = {}
        """The jobs under way, by id."""
        self.resumed: set[str] = set()
        """The ids of the runs that an earlier process had begun."""
        self._changed = asyncio.Event()
        self._slots: tuple[int, asyncio.Semaphore] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._last_look = 0
        self._next_sweep = 0.0

    @property
    def _config(self) -> Config:
        return self._turns.config

    @property
    def enabled(self) -> bool:
        return self._config.cron.enabled and not self._switched_off

    def _now(self) -> int:
        return self._runtime.clock.now_ms()

    # Start and stop

    async def start(self) -> None:
        """Resume what the last Gateway left, then wait for due moments."""
        await self._check()
        if self.enabled:
            self._resume()
        self._loop = asyncio.create_task(self._check_repeatedly(), name="cron")

    def recheck(self) -> None:
        """Somebody else may have changed the jobs."""
        self._changed.set()

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._active.values(), *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._loop is not None:
            try:
                await self._store.fold(at_once=True)
            except (OSError, JobError) as problem:
                log.warning("the steps of scheduled jobs stay in their journal: %s", problem)
        self._active.clear()
        self._loop = None

    async def _check(self) -> None:
        """Read jobs that somebody wrote into the list. If it cannot be read, what is known stays."""
        try:
            await self._store.refresh()
        except (OSError, JobError) as problem:
            log.error("scheduled jobs are not read: %s", problem)

    def _resume(self) -> None:
        for job_id, job in list(self._store.jobs.items()):
            state = job["state"]
            if isinstance(run_id := state.get("runId"), str) and "runningAtMs" in state:
                due = int(state.get("dueAtMs") or state["runningAtMs"])
                self.resumed.add(run_id)
                self._begin(job_id, due, run_id, began=int(state["runningAtMs"]))

    async def _check_repeatedly(self) -> None:
        while True:
            pause = LONGEST_SLEEP_S
            try:
                if self.enabled:
                    await self._run_due()
                    if await self._store.fold():
                        pause = REWRITE_S
                    dues = [due for job in self._store.jobs.values() if (due := self._due_at(job)) is not None]
                    pause = min(pause, max(0.01, (min(dues, default=float("inf")) - self._now()) / 1000))
                    await self._drop_old_sessions()
            except (OSError, JobError) as problem:
                log.error("scheduled jobs do not run for now: %s", problem)
            except Exception:
                log.exception("scheduled jobs were not looked at; the next look is in a minute")
            if await wait_within(self._changed, pause, self._runtime.clock):
                self._changed.clear()

    def _due_at(self, job: Job) -> int | None:
        """When the job is due by itself. None: it is switched off, under way or over."""
        if not job.get("enabled", True) or job["id"] in self._active or not _is_whole(job):
            return None
        return _next_moment(job)

    async def _run_due(self) -> None:
        """Begin the jobs that are due. None begins while the list cannot be read, because that could not be noted."""
        await self._store.refresh()
        now = self._now()
        if now < self._last_look - JUMP_MS:
            log.warning("the clock went back; the next runs of scheduled jobs are computed again")
            last_look = self._last_look
            await self._store.change(lambda jobs: self._recompute(jobs, now, last_look))
        self._last_look = now
        for job_id, job in list(self._store.jobs.items()):
            due = self._due_at(job)
            if due is not None and due <= now:
                self._begin(job_id, due, run_id_of(job_id, str(due)))

    def _recompute(self, jobs: dict[str, Job], now: int, last_look: int) -> None:
        """The clock was set back, so the next moments of repeated jobs may be far off."""
        for job_id, job in list(jobs.items()):
            if not _is_whole(job) or job["schedule"].get("kind") == "at" or job_id in self._active:
                continue
            schedule = job["schedule"]
            if schedule.get("kind") == "every" and now < schedule.get("anchorMs", 0) <= last_look:
                job = {**job, "schedule": {**schedule, "anchorMs": now}}
            with contextlib.suppress(ValueError, TypeError):
                jobs[job_id] = with_next_run(job, now)

    # One run

    def _begin(self, job_id: str, due: int, run_id: str, began: int | None = None) -> asyncio.Task[Finished]:
        task = asyncio.create_task(self._perform(job_id, due, run_id, began), name=f"cron {job_id}")
        self._active[job_id] = task

        def over(done: asyncio.Task[Finished]) -> None:
            if self._active.get(job_id) is done:
                del self._active[job_id]
            self._changed.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("job %s failed inside the Gateway: %s", job_id, error, exc_info=error)

        task.add_done_callback(over)
        return task

    async def _perform(self, job_id: str, due: int, run_id: str, began: int | None) -> Finished:
        """Runs one due moment. ``began``: an earlier process had begun it."""
        async with self._slot():
            job = self._store.jobs.get(job_id)
            if job is None:
                return Finished(status="skipped", error="the job was removed")
            if began is None and run_id == run_id_of(job_id, str(due)) and _next_moment(job) != due:
                # It waited for a slot meanwhile.
                return Finished(status="skipped", error="the job was switched off or put off")
            faults.point("cron.due")
            existing = await self.history.of_run(job_id, run_id)
            if existing is not None and job["state"].get("runId") != run_id:
                # The moment has been before: the clock was set back.
                upcoming = next_run(job["schedule"], max(self._now(), due + 1), created_ms=job.get("createdAtMs", 0))
                await self._note(job_id, nextRunAtMs=upcoming)
                return Finished(status="skipped", error="the moment has been before")
            if existing is None:
                if began is None:
                    began = self._now()
                    await self._note(job_id, runningAtMs=began, dueAtMs=due, runId=run_id)
                    self._publish(CronEvent(job_id=job_id, action="started", run_at_ms=began))
                faults.point("cron.marked")
                try:
                    finished = await until_written(lambda: self._execute(job, run_id), self._runtime.clock.sleep)
                except Exception as problem:
                    log.exception("job %s failed inside the Gateway", job_id)
                    finished = Finished(status="error", error=f"{type(problem).__name__}: {problem}")
                faults.point("cron.ended")
            else:
                finished = Finished(
                    status=existing.get("status", "ok"),
                    error=str(existing.get("error") or ""),
                    summary=str(existing.get("summary") or ""),
                )
            await self._settle(job_id, due, run_id, began, finished, logged=existing)
            return finished

    def _slot(self) -> asyncio.Semaphore:
        limit = self._config.cron.max_concurrent_runs
        if self._slots is None or self._slots[0] != limit:
            self._slots = (limit, asyncio.Semaphore(limit))
        return self._slots[1]

    async def _execute(self, job: Job, run_id: str) -> Finished:
        agent_id, payload = self._turns.agent(job.get("agentId")), job["payload"]
        if job.get("sessionTarget") == "main":
            return await self._execute_main(job, agent_id, str(payload.get("text") or ""), run_id)
        delivery = job.get("delivery") or {}
        announces, own = delivery.get("mode") == "announce", not job.get(SCHEDULED_BY)
        session = self._session_of(job, agent_id)
        prompt = f"[cron:{job['id']} {job.get('name', '')}] {payload.get('message', '')}\n{self._turns.current_time()}"
        level = payload.get("thinking")
        outcome = await self._turns.run(
            ScheduledTurn(
                run_id=run_id,
                session=session,
                source="cron",
                prompt=f"{prompt}\n\n{SILENT_NOTE}" if announces else prompt,
                label=f"Cron: {job.get('name') or job['id']}"[:64],
                model=payload.get("model") or None,
                thinking=parse_level(level) if isinstance(level, str) else None,
                timeout_seconds=payload.get("timeoutSeconds", RUN_LIMIT_S),
                scheduled_by=str(job.get(SCHEDULED_BY) or ""),
            )
        )
        problem = await self._announce(delivery, agent_id, session, run_id, outcome) if announces else ""
        if announces and own and (outcome.text or outcome.error):
            failed = outcome.status == "error"
            text = f"Cron (error): {outcome.error}" if failed else f"Cron: {outcome.summary}"
            told_id = str(uuid.uuid5(uuid.UUID(run_id), "told"))
            self._runtime.notes.put(self._turns.main_session(agent_id).key, text, id=told_id)
            await self._synced()
        return Finished(
            status="error" if problem else outcome.status,
            error=outcome.error or problem,
            summary=outcome.summary,
            session_id=outcome.session_id,
            session_key=f"{session.key}:run:{outcome.session_id}" if outcome.session_id and own else session.key,
        )

    def _session_of(self, job: Job, agent_id: str) -> SessionRef:
        """The session in which a job runs. That of a group's job bears the group's name, and so has its limits."""
        by = str(job.get(SCHEDULED_BY) or "")
        above = by if by and by != self._turns.main_session(agent_id).key else f"agent:{agent_id}"
        return SessionRef(agent_id, f"{above}:cron:{job['id'].lower()}")

    async def _announce(
        self, delivery: Job, agent_id: str, session: SessionRef, run_id: str, outcome: TurnOutcome
    ) -> str:
        """Deliver the answer. Returns why it could not be, unless the job does not mind."""
        if outcome.status != "ok" or has_no_reply(outcome):
            return ""
        target = await self._turns.target(
            agent_id, delivery.get("channel"), delivery.get("to"), delivery.get("accountId")
        )
        if target.problem:
            return "" if delivery.get("bestEffort") else f"cron {target.problem}"
        if await self._turns.already_sent(outcome.row, target.route) or await self._turns.announce(
            run_id, "announce", session, outcome.session_id, target.route, outcome.text, "cron", outcome.files
        ):
            return ""
        return "" if delivery.get("bestEffort") else BLOCKED

    async def _execute_main(self, job: Job, agent_id: str, text: str, run_id: str) -> Finished:
        """Notify the agent's main session, and with ``wakeMode`` now lets it answer at once."""
        main = self._turns.main_session(agent_id)
        self._runtime.notes.put(main.key, text, id=run_id, wake=job.get("wakeMode") != "next-heartbeat")
        await self._synced()
        faults.point("cron.told")
        if job.get("wakeMode") == "next-heartbeat":
            return Finished(status="ok", summary=text)
        beat = await self._heartbeats.run_when_idle(agent_id, f"cron:{job['id']}", run_id)
        match beat.status:
            case "ran":
                return Finished(status="ok", summary=text, session_key=main.key)
            case "skipped":
                return Finished(status="skipped", error=beat.reason, summary=text)
            case "failed":
                return Finished(status="error", error=beat.reason, summary=text)

    async def _synced(self) -> None:
        await until_written(self._runtime.notes.synced, self._runtime.clock.sleep)

    async def _settle(
        self, job_id: str, due: int, run_id: str, began: int | None, finished: Finished, logged: Job | None
    ) -> None:
        """Write the history, then the job's state. Clients are notified once both are on disk."""
        now = self._now()
        began = began if began is not None else now
        job = self._store.jobs.get(job_id)
        after = _after_run(job, due, began, now, finished) if job is not None else None
        event = CronEvent(
            job_id=job_id,
            action="finished",
            status=finished.status,
            error=finished.error,
            summary=finished.summary,
            session_id=finished.session_id,
            session_key=finished.session_key,
            run_at_ms=began,
            duration_ms=max(0, now - began),
            next_run_at_ms=after["state"].get("nextRunAtMs") if after is not None else None,
        )
        if logged is None:
            line = RunLine(ts=now, run_id=run_id, **msgspec.structs.asdict(event))
            await until_written(lambda: self.history.add(job_id, line), self._runtime.clock.sleep)
        faults.point("cron.logged")

        if job_id in self._store.jobs:
            # Somebody may have changed the job while the history was written.
            after = await self._step(job_id, lambda current: _after_run(current, due, began, now, finished))
        faults.point("cron.settled")
        self._publish(event)
        if job is not None and after is None:
            self._publish(CronEvent(job_id=job_id, action="removed"))

    async def _note(self, job_id: str, **facts: Any) -> None:
        def note(job: Job) -> Job:
            state = {name: value for name, value in {**job["state"], **facts}.items() if value is not None}
            return {**job, "state": state}

        await self._step(job_id, note)

    async def _step(self, job_id: str, edit: Callable[[Job], Job | None]) -> Job | None:
        """Change a job that is under way, and wait while the disk does not take it."""
        busy = len(self._active) > 1
        return await until_written(lambda: self._store.step(job_id, edit, busy=busy), self._runtime.clock.sleep)

    async def _drop_old_sessions(self) -> None:
        """Take the rows of single runs of long ago off the list of sessions, once an hour. Their transcripts stay.

        The job of such a run may be over or gone, so the rows are looked for, not the jobs.
        """
        remaining, sessions = self._config.cron.session_retention, self._runtime.stores.sessions
        if remaining is False or self._runtime.clock.monotonic() < self._next_sweep:
            return
        self._next_sweep = self._runtime.clock.monotonic() + SWEEP_S
        oldest = self._now() - duration_ms(remaining or RETENTION, "d")
        runs = SessionQuery(updated_before=oldest, text=":run:")
        for row in [row async for row in in_pages(sessions, runs) if is_cron_run_alias(row.key)]:
            await sessions.update(row.agent_id, row.key, lambda _: None, durable=False)

    # What clients ask for

    async def jobs(self, *, disabled: bool = False, agent_id: str | None = None) -> list[Job]:
        """Return the jobs in the order in which they are due. ``agent_id``: only those of this agent."""
        await self._check()
        listed = [job for job in self._store.jobs.values() if disabled or job.get("enabled", True)]
        if agent_id is not None:
            listed = [job for job in listed if self._turns.agent(job.get("agentId")) == agent_id]
        never = float("inf")
        return [shown(job) for job in sorted(listed, key=lambda job: _next_moment(job) or never)]

    async def status(self) -> SchedulerStatus:
        await self._check()
        dues = [due for job in self._store.jobs.values() if (due := self._due_at(job)) is not None]
        return SchedulerStatus(
            enabled=self.enabled,
            store_path=self._store.place,
            jobs=len(self._store.jobs),
            next_wake_at_ms=min(dues, default=None) if self.enabled else None,
        )

    async def get(self, job_id: str) -> Job | None:
        await self._check()
        return self._store.jobs.get(job_id)

    async def add(self, given: dict[str, Any], scheduled_by: str = "") -> Job:
        """``scheduled_by`` is a session in which others than the owner speak. Its jobs run with its rights."""
        job = new_job(given, self._now()) | ({SCHEDULED_BY: scheduled_by} if scheduled_by else {})

        def put(jobs: dict[str, Job]) -> None:
            if len(jobs) >= MOST_JOBS:
                raise JobError(f"there are {MOST_JOBS} jobs already; remove some first")
            jobs[job["id"]] = job

        await self._store.change(put)
        self._changed.set()
        self._notify(job, "added")
        return shown(job)

    async def update(self, job_id: str, patch: dict[str, Any]) -> Job:
        def change(jobs: dict[str, Job]) -> Job:
            if (job := jobs.get(job_id)) is None:
                raise JobError(f"unknown cron job id: {job_id[:80]}")
            jobs[job_id] = patched_job(job, patch, self._now())
            return jobs[job_id]

        changed = await self._store.change(change)
        self._changed.set()
        self._notify(changed, "updated")
        return shown(changed)

    async def remove(self, job_id: str) -> bool:
        """Remove a job. A run under way continues. Returns False if the job does not exist."""
        if await self._store.change(lambda jobs: jobs.pop(job_id, None)) is None:
            return False
        self._changed.set()
        self._publish(CronEvent(job_id=job_id, action="removed"))
        return True

    async def run(self, job_id: str, mode: Literal["force", "due"] = "force", *, wait: bool = True) -> RunResponse:
        """Runs a job now, or with ``due`` only if its moment has come. With ``wait`` it answers when that has ended."""
        await self._store.refresh()
        if (job := self._store.jobs.get(job_id)) is None:
            raise JobError(f"unknown cron job id: {job_id[:80]}")
        if not _is_whole(job):
            raise JobError(f"job {job_id[:80]} has no schedule or no payload; mend it in {self._store.place}")
        if job_id in self._active:
            return RunResponse(ok=True, ran=False, reason="already-running")
        if self._loop is None and not self._runtime.stores.claims.owns(SCHEDULER):
            return await self._ask_owner(job_id)
        due, now = self._due_at(job), self._now()
        if due is not None and due <= now:
            run_id = run_id_of(job_id, str(due))
        elif mode == "due":
            return RunResponse(ok=True, ran=False, reason="not-due")
        else:
            due, run_id = now, run_id_of(job_id, f"by hand {uuid.uuid4()}")
        task = self._begin(job_id, due, run_id)
        if wait:
            await asyncio.shield(task)
        return RAN

    async def _ask_owner(self, job_id: str) -> RunResponse:
        """Make the job due, because another node runs the jobs and hears of it."""

        def make_due(jobs: dict[str, Job]) -> bool:
            if (job := jobs.get(job_id)) is None or not job.get("enabled", True) or "runId" in job["state"]:
                return False
            jobs[job_id] = {**job, "state": {**job["state"], "nextRunAtMs": self._now()}}
            return True

        if await self._store.change(make_due):
            return RAN
        return RunResponse(ok=True, ran=False, reason="already-running-or-disabled")

    def _notify(self, job: Job, action: Literal["added", "updated"]) -> None:
        self._publish(CronEvent(job_id=job["id"], action=action, next_run_at_ms=job["state"].get("nextRunAtMs")))


def _next_moment(job: Job) -> int | None:
    """When the job is due next, as its state says. Somebody may have written something else there."""
    due = job["state"].get("nextRunAtMs")
    return int(due) if isinstance(due, int | float) else None


def _is_whole(job: Job) -> bool:
    return isinstance(job.get("schedule"), dict) and isinstance(job.get("payload"), dict)


def run_id_of(job_id: str, moment: str) -> str:
    """Return the run id of a job's due moment. A Gateway that meets the moment twice makes the same id."""
    return str(uuid.uuid5(NAMESPACE, f"{job_id}|{moment}"))


def _after_run(job: Job, due: int, began: int, ended: int, finished: Finished) -> Job | None:
    """Return the job after a run, with the moment of its next one. None: the job is over and goes."""
    under_way = ("runningAtMs", "dueAtMs", "runId", "nextRunAtMs", "lastError")
    state = {name: value for name, value in job["state"].items() if name not in under_way}
    failures = int(state.get("consecutiveErrors") or 0) + 1 if finished.status == "error" else 0
    state |= {"lastRunAtMs": began, "lastStatus": finished.status, "lastDurationMs": max(0, ended - began)}
    state["consecutiveErrors"] = failures
    if finished.error:
        state["lastError"] = finished.error
    changed = {**job, "state": state}
    if job["schedule"].get("kind") == "at":
        later = _next_moment(job)
        if later is not None and later > began and int(job.get("updatedAtMs") or 0) > began:
            # It was put off while it ran, perhaps by the agent itself.
            state["nextRunAtMs"] = later
            return changed
        if finished.status == "ok" and job.get("deleteAfterRun"):
            return None
        return {**changed, "enabled": False}
    if not job.get("enabled", True):
        return changed
    try:
        upcoming = next_run(job["schedule"], max(ended, due + 1), created_ms=job.get("createdAtMs", began))
    except (ValueError, TypeError) as problem:
        log.warning("job %s is switched off: %s", job["id"], problem)
        return {**changed, "enabled": False}
    if upcoming is not None:
        state["nextRunAtMs"] = max(upcoming, ended + backoff_ms(failures)) if failures else upcoming
    return changed


# The tool

CHANGES = frozenset({"add", "update", "remove", "run", "wake"})
MOST_CONTEXT = 10
LONGEST_LINE = 220
_DESCRIPTION = """Manages scheduled jobs (reminders, repeated tasks) and wake events.

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


class CronArguments(ToolArguments):
    action: Literal["status", "list", "add", "update", "remove", "run", "runs", "wake"]
    gateway_url: Hidden = None
    gateway_token: Hidden = None
    timeout_ms: Hidden = None
    include_disabled: bool = False
    job: dict[str, Any] | None = None
    job_id: str = ""
    id: str = ""
    patch: dict[str, Any] | None = None
    text: str = ""
    mode: Literal["now", "next-heartbeat"] = "now"
    context_messages: Annotated[float, Meta(ge=0, le=MOST_CONTEXT)] = 0
    # Some models put the fields of the job next to the action.
    name: Hidden = msgspec.UNSET
    schedule: Hidden = msgspec.UNSET
    payload: Hidden = msgspec.UNSET
    session_target: Hidden = msgspec.UNSET
    wake_mode: Hidden = msgspec.UNSET
    delivery: Hidden = msgspec.UNSET
    enabled: Hidden = msgspec.UNSET
    description: Hidden = msgspec.UNSET


_JOB_FIELDS = ("name", "schedule", "payload", "sessionTarget", "wakeMode", "delivery", "enabled", "description")


class CronTool(RecordTool[CronArguments]):
    """The ``cron`` tool. What a session may do with it is in the docstring of this file."""

    name = "cron"
    summary = "Manage scheduled jobs, reminders and wake events"
    description = _DESCRIPTION
    examples = (
        {
            "action": "add",
            "job": {
                "name": "Weather",
                "schedule": {"kind": "cron", "expr": "0 8 * * *", "tz": "Europe/Berlin"},
                "sessionTarget": "isolated",
                "payload": {"kind": "agentTurn", "message": "Tell me today's weather in Berlin."},
            },
        },
        {"action": "update", "jobId": "<id from list>", "patch": {"enabled": False}},
        *({"action": action, "jobId": "<id from list>"} for action in ("remove", "run", "runs")),
        {"action": "wake", "text": "Check the build again.", "mode": "now"},
        *({"action": action} for action in ("status", "list")),
    )

    def __init__(self, cron: Cron, heartbeats: Heartbeats, runtime: Runtime) -> None:
        self._cron = cron
        self._heartbeats = heartbeats
        self._runtime = runtime

    async def execute(self, arguments: CronArguments, context: ToolContext) -> ToolResult:
        if arguments.action in CHANGES and kind_of(context.session_key) == "hook":
            raise ToolError("In the session of a webhook nothing can be scheduled.")
        try:
            answer = msgspec.to_builtins(await self._answer(arguments, context))
        except (JobError, BadSchedule) as problem:
            raise InvalidArguments(str(problem)) from None
        return text_result(json.dumps(answer, indent=2, ensure_ascii=False), answer)

    async def _answer(self, arguments: CronArguments, context: ToolContext) -> Any:
        match arguments.action:
            case "status":
                return await self._cron.status()
            case "list":
                return {"jobs": await self._jobs(context, disabled=arguments.include_disabled)}
            case "add":
                return await self._add(arguments, context)
            case "update":
                return await self._update(arguments, context)
            case "remove":
                return {"ok": True, "removed": await self._cron.remove(await self._own_job(arguments, context))}
            case "run":
                return await self._run(arguments, context)
            case "runs":
                return {"entries": await self._cron.history.entries(await self._own_job(arguments, context), 50)}
            case "wake":
                return await self._wake(arguments, context)

    async def _own_job(self, arguments: CronArguments, context: ToolContext) -> str:
        """Return the id of the job that is meant. Jobs that this chat may not see do not exist for it."""
        job_id = (arguments.job_id or arguments.id).strip()
        if not job_id:
            raise InvalidArguments("jobId required (id works too)")
        if not any(job["id"] == job_id for job in await self._jobs(context, disabled=True)):
            raise ToolError(f"unknown cron job id: {job_id[:80]}")
        return job_id

    async def _add(self, arguments: CronArguments, context: ToolContext) -> Job:
        raw = arguments.job
        if raw is None:
            encoded = msgspec.to_builtins(arguments)
            raw = {name: encoded[name] for name in _JOB_FIELDS if name in encoded}
        if not raw:
            raise InvalidArguments("job required")
        job = normalized(raw)
        if "agentId" not in job or job["agentId"] is None:
            job["agentId"] = context.agent_id
        await self._check(job, context)
        payload = job.get("payload")
        if isinstance(payload, dict) and payload.get("kind") == "systemEvent" and arguments.context_messages:
            payload = cast("Job", payload)
            payload["text"] = await self._with_context(str(payload.get("text") or ""), arguments, context)
        if isinstance(payload, dict) and payload.get("kind") == "agentTurn":
            job["delivery"] = await self._delivery(job.get("delivery"), context)
        return await self._cron.add(job, "" if context.caller.may("owner tools") else context.session_key)

    async def _update(self, arguments: CronArguments, context: ToolContext) -> Job:
        job_id = await self._own_job(arguments, context)
        if arguments.patch is None:
            raise InvalidArguments("patch required")
        patch = normalized(arguments.patch)
        stored = await self._cron.get(job_id)
        await self._check({**(stored or {}), **patch}, context)
        if isinstance(delivery := patch.get("delivery"), dict) and not await self._is_owners_main(context):
            patch["delivery"] = await self._delivery(cast("Job", delivery), context)
        return await self._cron.update(job_id, patch)

    async def _run(self, arguments: CronArguments, context: ToolContext) -> RunResponse:
        job_id = await self._own_job(arguments, context)
        await self._check(await self._cron.get(job_id) or {}, context)
        # The call does not wait for the job, because the job may wait for this very run to end.
        return await self._cron.run(job_id, wait=False)

    async def _wake(self, arguments: CronArguments, context: ToolContext) -> Job:
        text = arguments.text.strip()
        if not text:
            raise InvalidArguments("text required")
        if not await self._is_owners_main(context):
            raise ToolError("Only the main session can be woken, and only by itself.")
        now = arguments.mode == "now"
        self._runtime.notes.put(context.session_key, text, wake=now)
        await self._runtime.notes.synced()
        if now:
            self._heartbeats.request(context.agent_id, "wake")
        return {"ok": True}

    async def _jobs(self, context: ToolContext, *, disabled: bool) -> list[Job]:
        jobs = await self._cron.jobs(disabled=disabled, agent_id=context.agent_id)
        if context.caller.may("owner tools"):
            return jobs
        return [job for job in jobs if job.get(SCHEDULED_BY) == context.session_key]

    async def _is_owners_main(self, context: ToolContext) -> bool:
        """Return whether the owner speaks in the main session, where a guest may speak as well."""
        session = self._runtime.config.current.session
        main = kind_of(context.session_key, main_key=session.main_key, scope=session.scope) == "main"
        return main and context.caller.may("owner tools")

    async def _check(self, job: Job, context: ToolContext) -> None:
        """Refuse what would give this session more than it has."""
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
        name: Any = cast("Job", payload).get("model") if isinstance(payload, dict) else None
        catalogue = self._runtime.models.catalogue()
        try:
            model = catalogue.resolve(name) if isinstance(name, str) and name.strip() else None
        except ModelError:
            return  # The run of the job reports the unknown model.
        try:
            if model is not None:
                catalogue.check_choice(model, context.agent_id)
        except ModelError as refused:
            raise ToolError(str(refused)) from None

    async def _delivery(self, wanted: Any, context: ToolContext) -> Job:
        """Where the answers of a job go: to this chat. In the main session the model may name another place."""
        delivery: Job = {"mode": "announce", **(cast("Job", wanted) if isinstance(wanted, dict) else {})}
        entry = await self._runtime.stores.sessions.get(context.agent_id, context.session_key)
        here = last_route(entry)
        owners = await self._is_owners_main(context)
        if owners and (delivery.get("to") or delivery.get("channel") or delivery["mode"] == "none"):
            return delivery
        if delivery["mode"] == "announce" and here.to:
            destination = {"channel": here.channel, "to": here.to, "accountId": here.account_id}
            delivery |= {name: value for name, value in destination.items() if value}
        elif delivery["mode"] == "announce" and not owners:
            delivery = {"mode": "none"}
        return delivery

    async def _with_context(self, text: str, arguments: CronArguments, context: ToolContext) -> str:
        """Return the text of a reminder, with the last messages of the chat for whoever reads it later."""
        count = int(arguments.context_messages)
        entry = await self._runtime.stores.sessions.get(context.agent_id, context.session_key)
        transcript = None
        if entry is not None:
            transcript = await self._runtime.stores.transcripts.open(
                transcript_ref(context.agent_id, entry), create=False
            )
        lines: list[str] = []
        for message in transcript.context().messages if transcript is not None else []:
            if isinstance(message, UserMessage) and not message.internal:
                lines.append(f"- User: {shortened(user_text(message), LONGEST_LINE)}")
            elif isinstance(message, AssistantMessage) and message.text.strip():
                lines.append(f"- Assistant: {shortened(message.text, LONGEST_LINE)}")
        return "\n".join([text, "", "Recent context:", *lines[-count:]]) if count and lines else text
