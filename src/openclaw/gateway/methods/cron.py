"""``cron.*``: scheduled jobs. ``wake``, ``last-heartbeat`` and ``set-heartbeats``: the agent's heartbeats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from openclaw.config.agents import default_agent_id
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params, problems
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.scheduler.jobs import JobError, JobShape
from openclaw.scheduler.schedule import BadSchedule

methods = MethodTable()


class ListParams(Params):
    include_disabled: bool = False


class JobParams(Params):
    """A job by its id, which older clients call ``jobId``."""

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


def _job_id(call: MethodCall, params: JobParams) -> str:
    if not (job_id := params.id or params.job_id):
        raise MethodError(f"invalid {call.method} params: missing id")
    return job_id


@methods.add("cron.list", ListParams)
async def list_jobs(call: MethodCall, params: ListParams) -> Any:
    """The scheduled jobs."""
    return {"jobs": await call.gateway.cron.jobs(disabled=params.include_disabled), "timezone": _zone(call)}


def _zone(call: MethodCall) -> str | None:
    """The time zone in which people read times. None is that of their own machine."""
    return call.gateway.runtime.config.current.agents.defaults.user_timezone


@methods.add("cron.status", NoParams)
async def status(call: MethodCall) -> Any:
    """Whether jobs run, how many there are, and when the next is due."""
    return {**msgspec.to_builtins(await call.gateway.cron.status()), "timezone": _zone(call)}


@methods.add("cron.add", dict[str, Any])
async def add(call: MethodCall, params: dict[str, Any]) -> Any:
    """Adds a job."""
    try:
        return await call.gateway.cron.add(params)
    except JobError as problem:
        raise _invalid(call, problem) from None
    except BadSchedule as problem:
        raise MethodError(str(problem)) from None


def _invalid(call: MethodCall, problem: JobError) -> MethodError:
    """Says what is wrong in the words of every other method."""
    found = problems(problem.job, JobShape) if problem.job is not None else []
    return MethodError(f"invalid {call.method} params: {'; '.join(found) or problem}")


@methods.add("cron.update", UpdateParams)
async def update(call: MethodCall, params: UpdateParams) -> Any:
    """Changes a job."""
    try:
        return await call.gateway.cron.update(_job_id(call, params), params.patch)
    except JobError as problem:
        raise _invalid(call, problem) from None
    except BadSchedule as problem:
        raise MethodError(str(problem)) from None


@methods.add("cron.remove", JobParams)
async def remove(call: MethodCall, params: JobParams) -> Any:
    """Removes a job."""
    return {"ok": True, "removed": await call.gateway.cron.remove(_job_id(call, params))}


@methods.add("cron.run", RunParams)
async def run(call: MethodCall, params: RunParams) -> Any:
    """Runs a job now, or only if it is due."""
    try:
        return await call.gateway.cron.run(_job_id(call, params), params.mode)
    except JobError as problem:
        raise MethodError(str(problem)) from None


@methods.add("cron.runs", RunsParams)
async def runs(call: MethodCall, params: RunsParams) -> Any:
    """How the last runs of a job went."""
    entries = await call.gateway.cron.history.entries(_job_id(call, params), params.limit)
    return {"entries": entries, "timezone": _zone(call)}


@methods.add("wake", WakeParams)
async def wake(call: MethodCall, params: WakeParams) -> Any:
    """Tells the main session something. It is on disk when this answers; with ``now`` the agent hears of it soon."""
    if not params.text.strip():
        raise MethodError("text required")
    gateway = call.gateway
    now = params.mode == "now"
    gateway.runtime.notes.put(gateway.main_session_key(), params.text, wake=now)
    await gateway.runtime.notes.synced()
    if now:
        gateway.heartbeats.request(default_agent_id(gateway.runtime.config.current), "wake")
    return {"ok": True}


@methods.add("last-heartbeat", NoParams)
async def last_heartbeat(call: MethodCall) -> Any:
    """How the last heartbeat ended."""
    return call.gateway.heartbeats.last


@methods.add("set-heartbeats", SetHeartbeats)
async def set_heartbeats(call: MethodCall, params: SetHeartbeats) -> Any:
    """Switches heartbeats on or off."""
    await call.gateway.heartbeats.enable(params.enabled)
    return {"ok": True, "enabled": params.enabled}
