"""Scheduled jobs at work: the timer, one run for each due moment, what comes of it, and what a crash leaves.

The file of the jobs says which due moment is under way, and the run's id follows from the job and that moment. A
Gateway that dies in between goes on at the step it had reached: nothing is run or announced twice, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from openclaw.clock import duration_ms, wait_within
from openclaw.config.schema import Config
from openclaw.models.thinking import parse_level
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.jobs import (
    MOST_JOBS,
    SCHEDULED_BY,
    History,
    Job,
    JobError,
    JobStore,
    jobs_place,
    new_job,
    patched_job,
    shown,
    with_next_run,
)
from openclaw.scheduler.schedule import backoff_ms, next_run
from openclaw.scheduler.turns import ScheduledTurn, ScheduledTurns, Status, TurnOutcome, said_nothing
from openclaw.sessions.keys import SessionRef
from openclaw.storage import faults
from openclaw.storage.disk_errors import until_written
from openclaw.storage.documents import DocumentStore

log = logging.getLogger("openclaw.cron")

NAMESPACE = uuid.UUID("6f0f1b0e-7c51-4f0f-8d0c-6b1a0e3f9a11")
LONGEST_SLEEP_S = 60.0
"""The clock is looked at this often, because it may be set or the machine may have slept."""
JUMP_MS = 60_000
"""A clock that goes back by more than this was set."""
RUN_LIMIT_S = 600
RETENTION = "24h"
SILENT_NOTE = (
    "Your answer is delivered by itself, so do not send it with a tool. "
    "When there is nothing to tell, answer HEARTBEAT_OK."
)
Publish = Callable[[dict[str, Any]], None]
R = TypeVar("R")


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a job ended."""

    status: Status
    error: str = ""
    summary: str = ""
    session_id: str = ""
    session_key: str = ""


class Cron:
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
        place = jobs_place(documents, self._config.cron.store)
        self._store = JobStore(place.documents, place.jobs, self._now)
        self._history = History(place.documents, place.histories)
        self._active: dict[str, asyncio.Task[Finished]] = {}
        """The jobs under way, by id."""
        self.resumed: set[str] = set()
        """The ids of the runs that an earlier process had begun."""
        self._changed = asyncio.Event()
        self._slots: tuple[int, asyncio.Semaphore] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._last_look = 0

    @property
    def _config(self) -> Config:
        return self._turns.config

    @property
    def enabled(self) -> bool:
        return self._config.cron.enabled and not self._switched_off

    @property
    def history(self) -> History:
        return self._history

    def _now(self) -> int:
        return self._runtime.clock.now_ms()

    # Its life

    async def start(self) -> None:
        """Goes on with what the last Gateway left, then waits for due moments."""
        await self._look()
        if self.enabled:
            self._resume()
        self._loop = asyncio.create_task(self._keep_looking(), name="cron")

    def look_again(self) -> None:
        """Somebody else may have changed the jobs."""
        self._changed.set()

    async def stop(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._active.values(), *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._active.clear()
        self._loop = None

    async def _look(self) -> None:
        """Like ``_refresh``, for those who only look. A file that cannot be read leaves what is known."""
        try:
            await self._refresh()
        except (OSError, JobError) as problem:
            log.error("scheduled jobs are not read: %s", problem)

    async def _refresh(self) -> None:
        """Reads jobs that somebody wrote into the list, and works out when they are due.

        Raises ``JobError`` or ``OSError`` when it cannot be read, so that it is not written over.
        """
        await self._store.refresh()

    def _resume(self) -> None:
        for job_id, job in list(self._store.jobs.items()):
            state = job["state"]
            if isinstance(run_id := state.get("runId"), str) and "runningAtMs" in state:
                due = int(state.get("dueAtMs") or state["runningAtMs"])
                self.resumed.add(run_id)
                self._begin(job_id, due, run_id, began=int(state["runningAtMs"]))

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._run_due()
            except Exception:
                log.exception("scheduled jobs were not looked at; the next look is in a minute")
            now = self._now()
            dues = [due for job in self._store.jobs.values() if (due := self._due_at(job)) is not None]
            due = min(dues, default=now + 60_000) if self.enabled else now + 60_000
            pause = min(LONGEST_SLEEP_S, max(0, due - now) / 1000)
            if await wait_within(self._changed, max(pause, 0.01), self._runtime.clock):
                self._changed.clear()

    def _due_at(self, job: Job) -> int | None:
        """When the job is due by itself. None: it is switched off, under way or over."""
        if not job.get("enabled", True) or job["id"] in self._active or not _is_whole(job):
            return None
        due = job["state"].get("nextRunAtMs")
        return int(due) if isinstance(due, int | float) else None

    async def _run_due(self) -> None:
        if not self.enabled:
            return
        await self._look()
        now = self._now()
        if now < self._last_look - JUMP_MS:
            log.warning("the clock went back; the next runs of scheduled jobs are worked out anew")
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
            faults.point("cron.due")
            known = await self._history.of_run(job_id, run_id)
            if known is not None and job["state"].get("runId") != run_id:
                # The moment has been before: the clock was set back.
                upcoming = next_run(job["schedule"], max(self._now(), due + 1), created_ms=job.get("createdAtMs", 0))
                await self._note(job_id, nextRunAtMs=upcoming)
                return Finished(status="skipped", error="the moment has been before")
            if known is None:
                if began is None:
                    began = self._now()
                    await self._note(job_id, runningAtMs=began, dueAtMs=due, runId=run_id)
                    self._publish({"jobId": job_id, "action": "started", "runAtMs": began})
                faults.point("cron.marked")
                try:
                    finished = await until_written(lambda: self._execute(job, run_id), self._runtime.clock.sleep)
                except Exception as problem:
                    log.exception("job %s failed inside the Gateway", job_id)
                    finished = Finished(status="error", error=f"{type(problem).__name__}: {problem}")
                faults.point("cron.ended")
            else:
                finished = Finished(
                    status=known.get("status", "ok"),
                    error=str(known.get("error") or ""),
                    summary=str(known.get("summary") or ""),
                )
            await self._settle(job_id, due, run_id, began, finished, logged=known)
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
            self._tell_main(agent_id, run_id, outcome)
            await self._synced()
        failed = outcome.error or problem
        return Finished(
            status="error" if problem else outcome.status,
            error=failed,
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
        """Delivers the answer. Returns why it could not be, unless the job does not mind."""
        if outcome.status != "ok" or said_nothing(outcome):
            return ""
        target = await self._turns.target(
            agent_id, delivery.get("channel"), delivery.get("to"), delivery.get("accountId")
        )
        if target.problem:
            return "" if delivery.get("bestEffort") else f"cron {target.problem}"
        if not await self._turns.already_sent(outcome.row, target.route):
            await self._turns.announce(
                run_id, "announce", session, outcome.session_id, target.route, outcome.text, "cron", outcome.files
            )
        return ""

    def _tell_main(self, agent_id: str, run_id: str, outcome: TurnOutcome) -> None:
        main = self._turns.main_session(agent_id)
        failed = outcome.status == "error"
        text = f"Cron (error): {outcome.error}" if failed else f"Cron: {outcome.summary}"
        self._runtime.notes.put(main.key, text, id=str(uuid.uuid5(uuid.UUID(run_id), "told")))

    async def _execute_main(self, job: Job, agent_id: str, text: str, run_id: str) -> Finished:
        """Tells the agent's main session, and with ``wakeMode`` now lets it answer at once."""
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
        """Writes the history, then the job's state. Everybody is told once both are on disk."""
        now = self._now()
        began = began if began is not None else now
        job = self._store.jobs.get(job_id)
        after = _after_run(job, due, began, now, finished) if job is not None else None
        entry: dict[str, Any] = {"ts": now, "jobId": job_id, "action": "finished", "status": finished.status}
        told = {"error": finished.error, "summary": finished.summary}
        told |= {"sessionId": finished.session_id, "sessionKey": finished.session_key}
        entry |= {name: value for name, value in told.items() if value}
        entry |= {"runAtMs": began, "durationMs": max(0, now - began)}
        if after is not None and (upcoming := after["state"].get("nextRunAtMs")) is not None:
            entry["nextRunAtMs"] = upcoming
        if logged is None:
            line = {**entry, "runId": run_id}
            await until_written(lambda: self._history.add(job_id, line), self._runtime.clock.sleep)
        faults.point("cron.logged")

        def settle(jobs: dict[str, Job]) -> Job | None:
            # Somebody may have changed the job while the history was written.
            if (current := jobs.get(job_id)) is None:
                return None
            if (settled := _after_run(current, due, began, now, finished)) is None:
                del jobs[job_id]
            else:
                jobs[job_id] = settled
            return settled

        if job_id in self._store.jobs:
            after = await self._changed_jobs(settle)
        faults.point("cron.settled")
        self._publish({**{name: value for name, value in entry.items() if name != "ts"}})
        if job is not None and after is None:
            self._publish({"jobId": job_id, "action": "removed"})
        await self._drop_old_sessions(job_id)

    async def _note(self, job_id: str, **facts: Any) -> None:
        def note(jobs: dict[str, Job]) -> None:
            if (job := jobs.get(job_id)) is not None:
                state = {name: value for name, value in {**job["state"], **facts}.items() if value is not None}
                jobs[job_id] = {**job, "state": state}

        await self._changed_jobs(note)

    async def _changed_jobs(self, edit: Callable[[dict[str, Job]], R]) -> R:
        """Changes the jobs, and waits while the disk does not take it."""
        return await until_written(lambda: self._store.change(edit), self._runtime.clock.sleep)

    async def _drop_old_sessions(self, job_id: str) -> None:
        """Takes the sessions of runs of long ago off the list of sessions. Their transcripts stay."""
        kept = self._config.cron.session_retention
        if kept is False:
            return
        oldest = self._now() - duration_ms(kept or RETENTION, "d")
        for entry in await self._history.entries(job_id, 200):
            key = str(entry.get("sessionKey") or "")
            if int(entry.get("ts") or 0) < oldest and ":run:" in key:
                agent_id = key.split(":")[1]
                if await self._runtime.sessions.get(agent_id, key) is not None:
                    await self._runtime.sessions.update(agent_id, key, lambda _: None, durable=False)

    # What clients ask for

    async def jobs(self, *, disabled: bool = False, agent_id: str | None = None) -> list[Job]:
        """The jobs in the order in which they are due. ``agent_id``: only those of this agent."""
        await self._look()
        listed = [job for job in self._store.jobs.values() if disabled or job.get("enabled", True)]
        if agent_id is not None:
            listed = [job for job in listed if self._turns.agent(job.get("agentId")) == agent_id]
        never = float("inf")
        return [shown(job) for job in sorted(listed, key=lambda job: job["state"].get("nextRunAtMs") or never)]

    async def status(self) -> dict[str, Any]:
        await self._look()
        dues = [due for job in self._store.jobs.values() if (due := self._due_at(job)) is not None]
        return {
            "enabled": self.enabled,
            "storePath": self._store.place,
            "jobs": len(self._store.jobs),
            "nextWakeAtMs": min(dues, default=None) if self.enabled else None,
        }

    async def get(self, job_id: str) -> Job | None:
        await self._look()
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
        self._tell(job, "added")
        return shown(job)

    async def update(self, job_id: str, patch: dict[str, Any]) -> Job:
        def change(jobs: dict[str, Job]) -> Job:
            if (job := jobs.get(job_id)) is None:
                raise JobError(f"unknown cron job id: {job_id[:80]}")
            jobs[job_id] = patched_job(job, patch, self._now())
            return jobs[job_id]

        changed = await self._store.change(change)
        self._changed.set()
        self._tell(changed, "updated")
        return shown(changed)

    async def remove(self, job_id: str) -> bool:
        """Removes a job. A run of it that is under way goes on. False: there is no such job."""
        if await self._store.change(lambda jobs: jobs.pop(job_id, None)) is None:
            return False
        self._changed.set()
        self._publish({"jobId": job_id, "action": "removed"})
        return True

    async def run(self, job_id: str, mode: Literal["force", "due"] = "force", *, wait: bool = True) -> dict[str, Any]:
        """Runs a job now, or with ``due`` only if its moment has come. With ``wait`` it answers when that has ended."""
        await self._refresh()
        if (job := self._store.jobs.get(job_id)) is None:
            raise JobError(f"unknown cron job id: {job_id[:80]}")
        if not _is_whole(job):
            raise JobError(f"job {job_id[:80]} has no schedule or no payload; mend it in {self._store.place}")
        if job_id in self._active:
            return {"ok": True, "ran": False, "reason": "already-running"}
        if self._loop is None and not self._runtime.claims.alone:
            return await self._ask_owner(job_id)
        due, now = self._due_at(job), self._now()
        if due is not None and due <= now:
            run_id = run_id_of(job_id, str(due))
        elif mode == "due":
            return {"ok": True, "ran": False, "reason": "not-due"}
        else:
            due, run_id = now, run_id_of(job_id, f"by hand {uuid.uuid4()}")
        task = self._begin(job_id, due, run_id)
        if wait:
            await asyncio.shield(task)
        return {"ok": True, "ran": True}

    async def _ask_owner(self, job_id: str) -> dict[str, Any]:
        """Makes the job due, because another node runs the jobs and hears of it."""

        def make_due(jobs: dict[str, Job]) -> bool:
            if (job := jobs.get(job_id)) is None or not job.get("enabled", True) or "runId" in job["state"]:
                return False
            jobs[job_id] = {**job, "state": {**job["state"], "nextRunAtMs": self._now()}}
            return True

        if await self._store.change(make_due):
            return {"ok": True, "ran": True}
        return {"ok": True, "ran": False, "reason": "already-running-or-disabled"}

    def _tell(self, job: Job, action: str) -> None:
        event: dict[str, Any] = {"jobId": job["id"], "action": action}
        if (upcoming := job["state"].get("nextRunAtMs")) is not None:
            event["nextRunAtMs"] = upcoming
        self._publish(event)


def _is_whole(job: Job) -> bool:
    return isinstance(job.get("schedule"), dict) and isinstance(job.get("payload"), dict)


def run_id_of(job_id: str, moment: str) -> str:
    """The run id of a job's due moment. A Gateway that meets the moment twice makes the same id."""
    return str(uuid.uuid5(NAMESPACE, f"{job_id}|{moment}"))


def _after_run(job: Job, due: int, began: int, ended: int, finished: Finished) -> Job | None:
    """The job after a run, with the moment of its next one. None: the job is over and goes."""
    under_way = ("runningAtMs", "dueAtMs", "runId", "nextRunAtMs", "lastError")
    state = {name: value for name, value in job["state"].items() if name not in under_way}
    failures = int(state.get("consecutiveErrors") or 0) + 1 if finished.status == "error" else 0
    state |= {"lastRunAtMs": began, "lastStatus": finished.status, "lastDurationMs": max(0, ended - began)}
    state["consecutiveErrors"] = failures
    if finished.error:
        state["lastError"] = finished.error
    changed = {**job, "state": state}
    if job["schedule"].get("kind") == "at":
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
