"""Which tools a session has: those of the Gateway and of MCP servers, as far as every policy allows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.sandbox import MOST_ANCESTORS, comes_from_group
from openclaw.agent.skills import skill_folders
from openclaw.config.agents import agent_config, default_agent_id, main_key
from openclaw.config.schema import Config
from openclaw.config.schema.tools import AgentTools, Tools
from openclaw.models.base import Model
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import agent_of, is_subagent, kind_of
from openclaw.storage.base import MessageBody
from openclaw.tools.base import Tool
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.memory import memory_tools
from openclaw.tools.nodes import NodesTool
from openclaw.tools.policy import (
    ToolFilter,
    ToolSettings,
    allowed_tools,
    allows_some,
    built_in_tools,
    profile,
    subagent_filter,
)
from openclaw.tools.sandbox.boundary import Boundary
from openclaw.tools.sandbox.plan import names_some, tools_inside

OWNER_KINDS = ("main", "other", "cron")
"""The kinds of sessions in which nobody but the owner, or what the owner set up, speaks to the agent."""


def tools_for(
    agent_id: str,
    model: Model,
    workspace: Path,
    config: Config,
    runtime: Runtime,
    *,
    sandbox: Boundary | None,
    subagent: bool = False,
    foreign: tuple[Tool, ...] = (),
) -> list[Tool]:
    """The agent's tools. The list is empty for a model that cannot call tools. Runs share it.

    ``sandbox`` is the session's, see ``sandbox_of``. ``subagent``: for a session that was spawned. It has fewer tools.
    ``foreign`` are the tools of MCP servers, see ``foreign_tools``. The policies count for them, too.
    """
    if not model.takes_tools:
        return []
    key = ("tools", agent_id, model.provider, model.id, subagent, sandbox and sandbox.plan.key, foreign)
    key += (runtime.has_nodes(),)
    make = partial(_make, agent_id, model, workspace, config, runtime, subagent, sandbox, foreign)
    return runtime.derived.of(config, key, make)


def _make(
    agent_id: str,
    model: Model,
    workspace: Path,
    config: Config,
    runtime: Runtime,
    subagent: bool,
    sandbox: Boundary | None,
    foreign: tuple[Tool, ...],
) -> list[Tool]:
    agent = agent_config(config, agent_id)
    own = agent.tools if agent else None
    policies = policies_of(agent_id, model, config, sandbox=sandbox, subagent=subagent)
    fs = own.fs if own and own.fs else config.tools.fs
    exec_config = own.exec if own and own.exec else config.tools.exec
    # Unset keys keep the tool's own defaults.
    given = {name: value for name, value in msgspec.to_builtins(exec_config).items() if value is not None}
    exec_settings = msgspec.convert(given, ExecSettings, strict=False).with_environment(os.environ)
    exec_settings.allow_background = bool(allowed_tools(["process"], policies))
    skills = [place.folder for place in skill_folders(config, str(runtime.state_dir), agent_id)]
    roots = [runtime.state_dir / "blobs", *skills]
    settings = ToolSettings(confine=fs.workspace_only, extra_roots=roots, exec=exec_settings)
    tools = built_in_tools(
        workspace=workspace,
        settings=settings,
        processes=runtime.processes,
        rules=runtime.approval_rules,
        approvals=runtime.approvals,
        sandbox=sandbox,
        nodes=runtime.nodes,
    )
    search = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    beside_store = Path(runtime.transcripts.folder(agent_id))
    folders = list(dict.fromkeys([beside_store, Path(sessions_dir(str(runtime.state_dir), agent_id))]))

    async def search_transcripts(query: str, limit: int) -> list[dict[str, Any]]:
        found = await runtime.search.search(query, {agent_id: folders}, limit=limit)
        return [msgspec.to_builtins(hit) for hit in found.results]

    notes = runtime.memories.of(agent_id, workspace, search, config)
    tools += memory_tools(notes, workspace, search, config.memory.citations, search_transcripts)
    tools += [*runtime.team_tools(), *foreign]
    if runtime.nodes is not None and runtime.has_nodes():
        # Commands on nodes are commands. A sandboxed session has its sandbox for them.
        runs = sandbox is None and bool(allowed_tools(["exec"], policies))
        exec_tool = next((tool for tool in tools if runs and isinstance(tool, ExecTool)), None)
        tools.append(NodesTool(runtime.nodes, exec_tool, partial(comes_from_group, runtime)))
    names = set(allowed_tools([tool.spec.name for tool in tools], policies))
    if sandbox is not None:
        names &= set(tools_inside(names, sandbox.plan.filters))
    return [tool for tool in tools if tool.spec.name in names]


def policies_of(
    agent_id: str, model: Model, config: Config, *, sandbox: Boundary | None, subagent: bool
) -> list[ToolFilter]:
    """The filters that decide on the tools of such a session. Each of them must allow a tool."""
    agent = agent_config(config, agent_id)
    own = agent.tools if agent else None
    policies = [*_policies(config.tools, model), *(_policies(own, model) if own else ())]
    if subagent:
        rules = config.tools.subagents.tools
        policies.append(subagent_filter(tuple(rules.allow), tuple(rules.deny)))
    return [*policies, *(sandbox.plan.filters if sandbox else ())]


def _policies(section: Tools | AgentTools, model: Model) -> Iterator[ToolFilter]:
    """The filters of one section in their order: the profile, the provider's, then allow and deny."""
    if section.profile:
        yield profile(section.profile, section.also_allow)
    for name in (model.provider, model.ref):
        by_provider = section.by_provider.get(name)
        if by_provider is None:
            continue
        if by_provider.profile:
            yield profile(by_provider.profile, by_provider.also_allow)
        yield ToolFilter(allow=tuple(by_provider.allow), deny=tuple(by_provider.deny))
    yield ToolFilter(allow=tuple(section.allow), deny=tuple(section.deny))


class ToolAsker(msgspec.Struct, frozen=True, kw_only=True):
    """The session that wants tools, and the message that it works on."""

    agent_id: str
    session_key: str
    entry: SessionEntry | None
    body: MessageBody


async def foreign_tools(
    asker: ToolAsker, model: Model, config: Config, runtime: Runtime, *, sandbox: Boundary | None
) -> tuple[Tool, ...]:
    """The tools of extensions, and of the MCP servers that the session may use. No other server is started for it."""
    servers, owner = runtime.foreign_tools, await is_owners(asker, config, runtime)
    own = runtime.extensions.tools_for(owner=owner)
    if servers is None or not config.mcp.servers:
        return own
    candidates = servers.candidates(asker.agent_id, owner=owner)
    subagent = is_subagent(asker.session_key)
    policies = policies_of(asker.agent_id, model, config, sandbox=sandbox, subagent=subagent)
    usable = [
        name
        for name, prefix in candidates.items()
        if all(allows_some(policy, prefix) for policy in policies)
        and (sandbox is None or names_some(prefix, sandbox.plan.filters))
    ]
    return (*own, *(await servers.tools(usable) if usable else ()))


async def is_owners(asker: ToolAsker, config: Config, runtime: Runtime) -> bool:
    """Whether only the owner can have caused the run: not a guest, a group or a webhook, and not through others."""
    body, trace = asker.body, asker.body.trace
    if body.guest or (trace is not None and trace.guest):
        return False
    key, entry, known = asker.session_key, asker.entry, 0
    keys = [*(trace.visited if trace is not None else ())]
    while is_subagent(key) and known < MOST_ANCESTORS:
        known += 1
        key = (entry or {}).get("spawnedBy") or ""
        entry = await runtime.sessions.get(agent_of(key, default_agent=default_agent_id(config)), key) if key else None
    scope = config.session.scope
    if not key or kind_of(key, entry, main_key=main_key(config), scope=scope) not in OWNER_KINDS:
        return False
    others = (kind_of(key, main_key=main_key(config), scope=scope) for key in keys)
    return all(kind in OWNER_KINDS for kind in others)
