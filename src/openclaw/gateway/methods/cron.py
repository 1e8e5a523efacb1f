"""``cron.*``: scheduled jobs. ``wake``, ``last-heartbeat`` and ``set-heartbeats``: the agent's heartbeats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from openclaw.config.agents import default_agent_id
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params, problems
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.result import Result, Success
from openclaw.scheduler.cron import RunResponse
from openclaw.scheduler.heartbeat import HeartbeatReport
from openclaw.scheduler.jobs import JobError, JobShape
from openclaw.scheduler.schedule import BadSchedule

methods = MethodTable()


class ListParams(Params):
    include_disabled: bool = False


class JobParams(Params):
    """A job by its id or its name. Older clients call the parameter ``jobId``."""

    id: NonEmpty | None = None
    job_id: NonEmpty | None = None


class UpdateParams(JobParams, kw_only=True):
    patch: dict[str, Any]


class RunParams(JobParams):
    mode: Literal["force", "due"] = "force"


class RunsParams(JobParams):
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 200


class WakeParams(Params):
    mode: Literal["now", "next-heartbeat"]
    text: NonEmpty


class SetHeartbeats(Params):
    enabled: bool


async def _job_id(call: MethodCall, params: JobParams) -> str:
    """Return the id of the job, which may be named by its id or by a name that no other job has."""
    if not (named := params.id or params.job_id):
        raise MethodError(f"invalid {call.method} params: missing id")
    jobs = await call.gateway.cron.jobs(disabled=True)
    if any(job["id"] == named for job in jobs):
        return named
    same = [job["id"] for job in jobs if str(job.get("name")).strip().casefold() == named.strip().casefold()]
    if len(same) > 1:
        raise MethodError(f'{len(same)} jobs are called "{named[:80]}"; use an id: {", ".join(same[:5])}')
    return same[0] if same else named


class CronJobs(Result):
    jobs: list[OpenObject]
    timezone: str | None
    """The zone in which people read times. Null is that of their own machine."""


@methods.add("cron.list", ListParams)
async def list_jobs(call: MethodCall, params: ListParams) -> CronJobs:
    """The scheduled jobs."""
    return CronJobs(await call.gateway.cron.jobs(disabled=params.include_disabled), _zone(call))


def _zone(call: MethodCall) -> str | None:
    return call.gateway.runtime.config.current.agents.defaults.user_timezone


class CronState(Result):
    enabled: bool
    store_path: str
    jobs: int
    next_wake_at_ms: int | None
    timezone: str | None


@methods.add("cron.status", NoParams)
async def status(call: MethodCall) -> CronState:
    """Whether jobs run, how many there are, and when the next is due."""
    state = await call.gateway.cron.status()
    return CronState(state.enabled, state.store_path, state.jobs, state.next_wake_at_ms, _zone(call))


@methods.add("cron.add", dict[str, Any])
async def add(call: MethodCall, params: dict[str, Any]) -> OpenObject:
    """Adds a job."""
    try:
        return await call.gateway.cron.add(params)
    except JobError as problem:
        raise _invalid(call, problem) from None
    except BadSchedule as problem:
        raise MethodError(str(problem)) from None


def _invalid(call: MethodCall, problem: JobError) -> MethodError:
    """Report invalid parameters in the format of every other method."""
    texts = problems(problem.job, JobShape) if problem.job is not None else []
    return MethodError(f"invalid {call.method} params: {'; '.join(texts) or problem}")


@methods.add("cron.update", UpdateParams)
async def update(call: MethodCall, params: UpdateParams) -> OpenObject:
    """Changes a job."""
    try:
        return await call.gateway.cron.update(await _job_id(call, params), params.patch)
    except JobError as problem:
        raise _invalid(call, problem) from None
    except BadSchedule as problem:
        raise MethodError(str(problem)) from None


class CronRemoved(Result):
    ok: bool
    removed: bool


@methods.add("cron.remove", JobParams)
async def remove(call: MethodCall, params: JobParams) -> CronRemoved:
    """Removes a job."""
    return CronRemoved(True, await call.gateway.cron.remove(await _job_id(call, params)))


@methods.add("cron.run", RunParams)
async def run(call: MethodCall, params: RunParams) -> RunResponse:
    """Runs a job now, or only if it is due."""
    try:
        return await call.gateway.cron.run(await _job_id(call, params), params.mode)
    except JobError as problem:
        raise MethodError(str(problem)) from None


class CronHistory(Result):
    entries: list[OpenObject]
    timezone: str | None


@methods.add("cron.runs", RunsParams)
async def runs(call: MethodCall, params: RunsParams) -> CronHistory:
    """The history of a job's last runs."""
    entries = await call.gateway.cron.history.entries(await _job_id(call, params), params.limit)
    return CronHistory(entries, _zone(call))


@methods.add("wake", WakeParams)
async def wake(call: MethodCall, params: WakeParams) -> Success:
    """Leaves a note for the main session. It is on disk when this answers; with ``now`` the agent gets it soon."""
    if not params.text.strip():
        raise MethodError("text required")
    gateway = call.gateway
    now = params.mode == "now"
    gateway.runtime.notes.put(gateway.main_session_key(), params.text, wake=now)
    await gateway.runtime.notes.synced()
    if now:
        gateway.heartbeats.request(default_agent_id(gateway.runtime.config.current), "wake")
    return Success(True)


@methods.add("last-heartbeat", NoParams)
async def last_heartbeat(call: MethodCall) -> HeartbeatReport | None:
    """How the last heartbeat ended."""
    return call.gateway.heartbeats.last


class HeartbeatsSwitched(Result):
    ok: bool
    enabled: bool


@methods.add("set-heartbeats", SetHeartbeats)
async def set_heartbeats(call: MethodCall, params: SetHeartbeats) -> HeartbeatsSwitched:
    """Switches heartbeats on or off."""
    await call.gateway.heartbeats.enable(params.enabled)
    return HeartbeatsSwitched(True, params.enabled)
