"""``plugins.list``, ``mcp.*`` and ``skills.*``: what was added to the agents, how it does, and what it lacks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

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
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.paths import normalize_agent_id
from openclaw.protocol.result import Result

methods = MethodTable()


class PluginView(Result):
    last_failure: str
    id: str
    source: str
    """The package with its version, or the path of the file."""
    state: Literal["loaded", "failed", "off"]
    problem: str
    """Why it failed or is off."""
    adds: list[str]
    failures: int
    """How often it failed since the start."""


class PluginList(Result):
    plugins: list[PluginView]


@methods.add("plugins.list", NoParams)
async def list_plugins(call: MethodCall) -> PluginList:
    """The extensions, whether each is loaded, and what it adds."""
    runtime = call.gateway.runtime
    loaded = {extension.id: extension for extension in runtime.extensions.extensions}
    # Extensions installed after the start are listed as well. They are not loaded before a restart.
    for extension in await asyncio.to_thread(find_extensions, runtime.config.current, str(runtime.state_dir)):
        loaded.setdefault(extension.loaded.id, extension.loaded)
    return PluginList([PluginView(**msgspec.structs.asdict(extension)) for extension in loaded.values()])


class McpServerList(Result):
    servers: list[OpenObject]


@methods.add("mcp.status", NoParams)
async def mcp_status(call: MethodCall) -> McpServerList:
    """The MCP servers and the state of each."""
    return McpServerList(call.gateway.mcp.status())


class McpTest(Params):
    name: NonEmpty


@methods.add("mcp.test", McpTest)
async def test_mcp(call: MethodCall, params: McpTest) -> OpenObject:
    """Starts a server, if it is not running, and reports its state."""
    try:
        return await call.gateway.mcp.test(params.name)
    except LookupError:
        names = ", ".join(row["name"] for row in call.gateway.mcp.status() if row["enabled"]) or "none"
        raise MethodError(f"there is no MCP server {params.name[:80]!r} to use; there are: {names}") from None


class SkillsStatus(Params):
    agent_id: str | None = None


class SkillRequirements(Result):
    bins: list[str]
    any_bins: list[str]
    env: list[str]
    config: list[str]
    os: list[str]


class SkillConfigCheck(Result):
    path: str
    satisfied: bool


class SkillView(Result):
    name: str
    description: str
    source: str
    bundled: bool
    file_path: str
    base_dir: str
    skill_key: str
    always: bool
    disabled: bool
    blocked_by_allowlist: bool
    eligible: bool
    model_invocable: bool
    requirements: SkillRequirements
    missing: SkillRequirements
    config_checks: list[SkillConfigCheck]
    install: list[Any]
    emoji: str = ""
    homepage: str = ""
    primary_env: str = ""


class SkillProblemRow(Result):
    path: str
    reason: str


class SkillsState(Result):
    workspace_dir: str
    managed_skills_dir: str
    skills: list[SkillView]
    problems: list[SkillProblemRow]


@methods.add("skills.status", SkillsStatus)
async def skills_status(call: MethodCall, params: SkillsStatus) -> SkillsState:
    """The skills of an agent, and what each lacks."""
    gateway = call.gateway
    config = gateway.runtime.config.current
    agent_id = normalize_agent_id(params.agent_id) if params.agent_id else default_agent_id(config)
    if agent_id not in agent_ids(config):
        raise MethodError(f'unknown agent id "{params.agent_id}"; agents.list names the agents there are')
    verdicts, problems = await asyncio.to_thread(
        judged_skills, config, str(gateway.runtime.state_dir), agent_id, gateway.environ
    )
    return SkillsState(
        workspace_dir=str(workspace_dir(config, gateway.runtime.state_dir, agent_id)),
        managed_skills_dir=str(managed_dir(str(gateway.runtime.state_dir))),
        skills=[_skill_view(verdict) for verdict in verdicts],
        problems=[SkillProblemRow(problem.path, problem.reason) for problem in problems],
    )


def _skill_view(verdict: SkillVerdict) -> SkillView:
    skill = verdict.skill
    return SkillView(
        name=skill.name,
        description=skill.description,
        source=skill.source,
        bundled=skill.source == BUNDLED,
        file_path=skill.path,
        base_dir=str(Path(skill.path).parent),
        skill_key=skill.key,
        always=skill.always,
        disabled=verdict.disabled,
        blocked_by_allowlist=verdict.blocked,
        eligible=verdict.eligible,
        model_invocable=not skill.hidden,
        requirements=_requirements(skill.needs),
        missing=_requirements(verdict.missing),
        config_checks=[SkillConfigCheck(path, path not in verdict.missing.config) for path in skill.needs.config],
        install=list(skill.install),
        emoji=skill.emoji or "",
        homepage=skill.homepage or "",
        primary_env=skill.primary_env or "",
    )


def _requirements(needs: SkillNeeds) -> SkillRequirements:
    return SkillRequirements(
        list(needs.bins), list(needs.any_bins), list(needs.env), list(needs.config), list(needs.os)
    )


class SkillUpdated(Result):
    ok: bool
    skill_key: str
    config: OpenObject
    """The configured entry of the skill, without secrets."""


class SkillsUpdate(Params):
    skill_key: NonEmpty
    enabled: bool | None = None
    api_key: str | None = None
    """The key of the skill's service. An empty key removes the stored one."""
    env: dict[str, str] | None = None
    """Variables to add. An empty value removes the variable."""


@methods.add("skills.update", SkillsUpdate)
async def update(call: MethodCall, params: SkillsUpdate) -> SkillUpdated:
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
    return SkillUpdated(True, key, shown)


def _every_skill(runtime: Runtime) -> list[Skill]:
    """The skills in the folders of all agents."""
    config, state_dir = runtime.config.current, str(runtime.state_dir)
    folders = [skill_folders(config, state_dir, agent_id) for agent_id in agent_ids(config)]
    return [skill for each in folders for skill in find_skills(each).skills]


class SkillBins(Result):
    bins: list[str]


@methods.add("skills.bins", NoParams)
async def skills_bins(call: MethodCall) -> SkillBins:
    """The programs that the agents' skills need, whether they are installed or not."""
    needs = [skill.needs for skill in await asyncio.to_thread(_every_skill, call.gateway.runtime)]
    return SkillBins(sorted({name for need in needs for name in (*need.bins, *need.any_bins)}))
