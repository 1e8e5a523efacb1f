"""``plugins.list``, ``mcp.*`` and ``skills.*``: what was added to the agents, how it does, and what it lacks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import (
    BUNDLED,
    Skill,
    SkillNeeds,
    SkillVerdict,
    find_skills,
    judged_skills,
    managed_dir,
    skill_folders,
)
from openclaw.config.agents import agent_ids, default_agent_id, workspace_dir
from openclaw.config.secrets import redacted
from openclaw.extensions.points import find_extensions
from openclaw.gateway.methods.config import patch_config
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable
from openclaw.paths import normalize_agent_id

methods = MethodTable()


@methods.add("plugins.list", NoParams)
async def list_plugins(call: MethodCall) -> Any:
    """The extensions, whether each is loaded, and what it adds."""
    runtime = call.gateway.runtime
    loaded = {one.id: one for one in runtime.extensions.extensions}
    # What was installed after the start is listed too. It is not loaded before a restart.
    found = await asyncio.to_thread(find_extensions, runtime.config.current, str(runtime.state_dir))
    for one in found:
        loaded.setdefault(one.loaded.id, one.loaded)
    rows = [msgspec.to_builtins(one) for one in loaded.values()]
    return {"plugins": [{"lastFailure": row.pop("last_failure"), **row} for row in rows]}


@methods.add("mcp.status", NoParams)
async def mcp_status(call: MethodCall) -> Any:
    """The MCP servers and how each is."""
    return {"servers": call.gateway.mcp.status()}


class McpTest(Params):
    name: NonEmpty


@methods.add("mcp.test", McpTest)
async def test_mcp(call: MethodCall, params: McpTest) -> Any:
    """Starts a server, if it is not running, and says how it is."""
    try:
        return await call.gateway.mcp.test(params.name)
    except LookupError:
        names = ", ".join(row["name"] for row in call.gateway.mcp.status() if row["enabled"]) or "none"
        raise MethodError(f"there is no MCP server {params.name[:80]!r} to use; there are: {names}") from None


class SkillsStatus(Params):
    agent_id: str | None = None


@methods.add("skills.status", SkillsStatus)
async def skills_status(call: MethodCall, params: SkillsStatus) -> Any:
    """The skills of an agent, and what each lacks."""
    gateway = call.gateway
    config = gateway.runtime.config.current
    agent_id = normalize_agent_id(params.agent_id) if params.agent_id else default_agent_id(config)
    if agent_id not in agent_ids(config):
        raise MethodError(f'unknown agent id "{params.agent_id}"; agents.list names the agents there are')
    verdicts, problems = await asyncio.to_thread(
        judged_skills, config, str(gateway.runtime.state_dir), agent_id, gateway.environ
    )
    return {
        "workspaceDir": str(workspace_dir(config, gateway.runtime.state_dir, agent_id)),
        "managedSkillsDir": str(managed_dir(str(gateway.runtime.state_dir))),
        "skills": [skill_row(verdict) for verdict in verdicts],
        "problems": [{"path": problem.path, "reason": problem.reason} for problem in problems],
    }


def skill_row(verdict: SkillVerdict) -> dict[str, Any]:
    skill = verdict.skill
    row: dict[str, Any] = {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "bundled": skill.source == BUNDLED,
        "filePath": skill.path,
        "baseDir": str(Path(skill.path).parent),
        "skillKey": skill.key,
        "always": skill.always,
        "disabled": verdict.disabled,
        "blockedByAllowlist": verdict.blocked,
        "eligible": verdict.eligible,
        "modelInvocable": not skill.hidden,
        "requirements": _needs(skill.needs),
        "missing": _needs(verdict.missing),
        "configChecks": [
            {"path": path, "satisfied": path not in verdict.missing.config} for path in skill.needs.config
        ],
        "install": list(skill.install),
    }
    given = {"emoji": skill.emoji, "homepage": skill.homepage, "primaryEnv": skill.primary_env}
    return {**row, **{name: value for name, value in given.items() if value}}


def _needs(needs: SkillNeeds) -> dict[str, list[str]]:
    return {
        "bins": list(needs.bins),
        "anyBins": list(needs.any_bins),
        "env": list(needs.env),
        "config": list(needs.config),
        "os": list(needs.os),
    }


class SkillsUpdate(Params):
    skill_key: NonEmpty
    enabled: bool | None = None
    api_key: str | None = None
    """The key of the skill's service. An empty key removes the stored one."""
    env: dict[str, str] | None = None
    """Variables to add. An empty value removes the variable."""


@methods.add("skills.update", SkillsUpdate)
async def update(call: MethodCall, params: SkillsUpdate) -> Any:
    """Switches a skill on or off, or gives it a key."""
    key = params.skill_key.strip()
    entries = call.gateway.runtime.config.current.skills.entries
    if key not in entries and all(
        skill.key != key for skill in await asyncio.to_thread(_every_skill, call.gateway.runtime)
    ):
        raise MethodError(f'unknown skill "{key}"; skills.status lists the skills there are, by their skillKey')
    change: dict[str, Any] = {}
    if params.enabled is not None:
        change["enabled"] = params.enabled
    if params.api_key is not None:
        change["apiKey"] = params.api_key.strip() or None
    if params.env is not None:
        change["env"] = {name.strip(): value.strip() or None for name, value in params.env.items() if name.strip()}
    if change:
        await patch_config(call.gateway.runtime.config, {"skills": {"entries": {key: change}}})
    parsed: Any = call.gateway.runtime.config.snapshot.parsed
    shown: Any = redacted(parsed)
    for name in ("skills", "entries", key):
        shown = shown.get(name) or {}
    return {"ok": True, "skillKey": key, "config": shown}


def _every_skill(runtime: Runtime) -> list[Skill]:
    """The skills in the folders of all agents."""
    config, state_dir = runtime.config.current, str(runtime.state_dir)
    folders = [skill_folders(config, state_dir, agent_id) for agent_id in agent_ids(config)]
    return [skill for each in folders for skill in find_skills(each).skills]


@methods.add("skills.bins", NoParams)
async def skills_bins(call: MethodCall) -> Any:
    """The programs that the agents' skills need, whether they are installed or not."""
    needs = [skill.needs for skill in await asyncio.to_thread(_every_skill, call.gateway.runtime)]
    return {"bins": sorted({name for need in needs for name in (*need.bins, *need.any_bins)})}
