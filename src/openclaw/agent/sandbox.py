"""Whether a session runs in a sandbox, and in which one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import skill_folders
from openclaw.config.agents import default_agent_id, sandbox_config, wants_sandbox, workspace_dir
from openclaw.opener import PathOpener
from openclaw.sessions.keys import agent_of, kind_of
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.plan import SandboxPlan, make_plan

MOST_ANCESTORS = 8


async def sandbox_of(
    runtime: Runtime, agent_id: str, session_key: str, entry: Mapping[str, Any] | None
) -> Boundary | None:
    """The sandbox of a session, or None if it has none. ``entry`` is the session's."""
    plan = await plan_of(runtime, agent_id, session_key, entry)
    if plan is None:
        return None
    config = runtime.config.current

    def make() -> Boundary:
        folders = [place.folder for place in skill_folders(config, str(runtime.state_dir), agent_id)]
        return Boundary(plan, folders, sandbox_config(config, plan.lineage[-1][0]).prune, runtime.clock)

    return runtime.derived.of(config, ("sandbox", *plan.key), make)


async def opener_of(runtime: Runtime, agent_id: str, session_key: str, entry: Mapping[str, Any] | None) -> PathOpener:
    """Opens the files of the folder that a session's tools work in: the agent's workspace, or that of its sandbox.

    It follows no link out of that folder, since the agent may have made one.
    """
    sandbox = await sandbox_of(runtime, agent_id, session_key, entry)
    if sandbox is not None:
        return sandbox.opener
    return PathOpener(workspace_dir(runtime.config.current, str(runtime.state_dir), agent_id), confine=True)


async def plan_of(
    runtime: Runtime, agent_id: str, session_key: str, entry: Mapping[str, Any] | None
) -> SandboxPlan | None:
    """The plan of a session's sandbox. A session that a sandboxed one spawned is sandboxed, whatever its agent is."""
    config = runtime.config.current
    lineage = [(agent_id, session_key)] if wants_sandbox(config, agent_id, session_key) else []
    async for parent, key, _ in _ancestors(runtime, session_key, entry):
        if wants_sandbox(config, parent, key):
            lineage.append((parent, key))
    return make_plan(config, runtime.state_dir, agent_id, session_key, lineage) if lineage else None


async def comes_from_group(runtime: Runtime, agent_id: str, session_key: str) -> bool:
    """Whether a session is a group chat, or was spawned by one."""
    entry = await runtime.sessions.get(agent_id, session_key)
    if kind_of(session_key, entry) == "group":
        return True
    async for _, key, above in _ancestors(runtime, session_key, entry):
        if kind_of(key, above) == "group":
            return True
    return False


async def _ancestors(
    runtime: Runtime, session_key: str, entry: Mapping[str, Any] | None
) -> AsyncIterator[tuple[str, str, Mapping[str, Any] | None]]:
    """The sessions that spawned this one, the nearest first: their agents, keys and entries."""
    default = default_agent_id(runtime.config.current)
    spawned_by, seen = (entry or {}).get("spawnedBy"), {session_key}
    while spawned_by and spawned_by not in seen and len(seen) <= MOST_ANCESTORS:
        seen.add(spawned_by)
        parent = agent_of(spawned_by, default_agent=default)
        above = await runtime.sessions.get(parent, spawned_by)
        yield parent, spawned_by, above
        spawned_by = above.get("spawnedBy") if above else None
