"""Which tools a session has, and in which sandbox they work.

A session has the tools of the Gateway, of extensions and of MCP servers, as far as every policy allows them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.caller import NO_MESSAGE, ancestors
from openclaw.agent.plan import SessionPlans
from openclaw.agent.runtime import Runtime
from openclaw.agent.session_access import SessionAccess
from openclaw.agent.session_search import search_sessions
from openclaw.agent.skills import skill_folders
from openclaw.config.agents import (
    agent_config,
    sandbox_config,
    wants_sandbox,
    workspace_dir,
)
from openclaw.config.schema import Config
from openclaw.config.schema.tools import AgentTools, ApplyPatch, Tools
from openclaw.models.base import Model
from openclaw.path_opener import PathOpener
from openclaw.rights import Caller
from openclaw.sessions.keys import SessionRef, is_subagent
from openclaw.storage.blobs import BlobStore
from openclaw.storage.message_ledger import MessageBody
from openclaw.tools.base import Tool, ToolContext
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.memory import TranscriptMatch, memory_tools
from openclaw.tools.nodes import NodesTool
from openclaw.tools.plan import PlanTool
from openclaw.tools.policy import (
    ToolFilter,
    ToolSettings,
    allowed_tools,
    allows_some,
    built_in_tools,
    profile,
    subagent_filter,
)
from openclaw.tools.sandbox.boundary import OUTPUTS, Boundary
from openclaw.tools.sandbox.launch import SandboxPlan, make_plan, names_some, tools_inside


async def tools_for(
    runtime: Runtime,
    session: SessionRef,
    model: Model,
    *,
    caller: Caller,
    sandbox: Boundary | None,
    body: MessageBody = NO_MESSAGE,
) -> list[Tool]:
    """The tools of a session, for the message ``body``. Runs share the list, so it must not be changed.

    It is empty for a model that cannot call tools. A sub-agent has fewer tools. ``sandbox`` is the session's, see
    ``sandbox_of``.
    """
    if not model.takes_tools:
        return []
    config, agent_id, subagent = runtime.config.current, session.agent_id, is_subagent(session.key)
    policies = policies_of(agent_id, model, config, sandbox=sandbox, subagent=subagent)
    foreign: tuple[Tool, ...] = ()
    # A forced choice is among the caller's own tools, so that no server is started for it.
    if (config.mcp.servers or runtime.extensions.tools) and body.tool_choice is None:
        owner = caller.may("owner tools")
        servers = await _mcp_tools(runtime, agent_id, owner, policies, sandbox)
        foreign = (*runtime.extensions.tools_for(owner=owner), *servers)
    key = ("tools", agent_id, model.provider, model.id, subagent, sandbox and sandbox.plan.key, foreign)
    make = partial(_make, runtime, agent_id, model, policies, sandbox, foreign)
    return runtime.prompting.derived.of(config, (*key, runtime.tools.nodes.any), make)


async def _mcp_tools(
    runtime: Runtime, agent_id: str, owner: bool, policies: Sequence[ToolFilter], sandbox: Boundary | None
) -> tuple[Tool, ...]:
    """The tools of the MCP servers that the session may use. No other server is started for it."""
    servers = runtime.tools.mcp
    if not runtime.config.current.mcp.servers:
        return ()
    usable = [
        name
        for name, prefix in servers.candidates(agent_id, owner=owner).items()
        if all(allows_some(policy, prefix) for policy in policies)
        and (sandbox is None or names_some(prefix, sandbox.plan.filters))
    ]
    return await servers.tools(usable) if usable else ()


def _make(
    runtime: Runtime,
    agent_id: str,
    model: Model,
    policies: Sequence[ToolFilter],
    sandbox: Boundary | None,
    foreign: tuple[Tool, ...],
) -> list[Tool]:
    config = runtime.config.current
    workspace = workspace_dir(config, runtime.state_dir, agent_id)
    agent = agent_config(config, agent_id)
    own = agent.tools if agent else None
    fs = own.fs if own and own.fs else config.tools.fs
    exec_config = own.exec if own and own.exec else config.tools.exec
    # Unset keys keep the tool's own defaults.
    settings_given = {name: value for name, value in msgspec.to_builtins(exec_config).items() if value is not None}
    exec_settings = msgspec.convert(settings_given, ExecSettings, strict=False).with_environment(os.environ)
    exec_settings.allow_background = bool(allowed_tools(["process"], policies))
    skills = [source.folder for source in skill_folders(config, str(runtime.state_dir), agent_id)]
    roots = [runtime.state_dir / "blobs", *skills]
    settings = ToolSettings(
        confine=fs.workspace_only,
        extra_roots=roots,
        exec=exec_settings,
        patch_confined=exec_config.apply_patch.workspace_only
        if _takes_patches(exec_config.apply_patch, model)
        else None,
    )
    tools = built_in_tools(
        workspace=workspace,
        settings=settings,
        processes=runtime.tools.processes,
        rules=runtime.tools.approval_rules,
        questions=runtime.tools.questions,
        sandbox=sandbox,
        nodes=runtime.tools.nodes,
        outputs=SandboxOutputs(sandbox.opener) if sandbox else BlobOutputs(runtime.stores.blobs, runtime.state_dir),
    )
    search = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search

    async def search_transcripts(query: str, limit: int, context: ToolContext) -> list[TranscriptMatch]:
        requester = SessionRef(context.agent_id, context.session_key)
        access = SessionAccess(runtime.config.current, runtime.stores.sessions, requester, context.caller)
        found = await search_sessions(runtime, access, query, limit, agents=[agent_id])
        return [msgspec.convert(match.hit, TranscriptMatch, from_attributes=True) for match in found.matches]

    notes = runtime.tools.memories.of(agent_id, workspace, search, config)
    tools += memory_tools(notes, workspace, search, config.memory.citations, search_transcripts)
    tools.append(PlanTool(SessionPlans(runtime.stores.sessions)))
    tools += [*runtime.tools.added.make(), *foreign]
    if runtime.tools.nodes.any:
        # Commands on nodes are commands. A sandboxed session has its sandbox for them.
        runs = sandbox is None and bool(allowed_tools(["exec"], policies))
        exec_tool = next((tool for tool in tools if runs and isinstance(tool, ExecTool)), None)
        tools.append(NodesTool(runtime.tools.nodes, exec_tool))
    names = set(allowed_tools([tool.spec.name for tool in tools], policies))
    if sandbox is not None:
        names &= set(tools_inside(names, sandbox.plan.filters))
    return [tool for tool in tools if tool.spec.name in names]


class BlobOutputs(msgspec.Struct, frozen=True):
    """``OutputStore`` for sessions without a sandbox. Their ``read`` opens blobs."""

    blobs: BlobStore
    state_dir: Path

    async def store(self, data: bytes, name: str) -> str:
        return str(self.state_dir / "blobs" / await self.blobs.put(data))


class SandboxOutputs(msgspec.Struct, frozen=True):
    """``OutputStore`` for a sandbox: a folder in it, which its commands and its ``read`` open."""

    opener: PathOpener

    async def store(self, data: bytes, name: str) -> str:
        return await asyncio.to_thread(self._store, data, f"{OUTPUTS}/{name}.txt")

    def _store(self, data: bytes, path: str) -> str:
        with self.opener.open_write_atomic(path) as file:
            file.write(data)
        return self.opener.resolve(path)


def _takes_patches(settings: ApplyPatch, model: Model) -> bool:
    if settings.enabled is None:
        return model.provider.startswith("openai")
    return settings.enabled and (not settings.allow_models or bool({model.id, model.ref} & set(settings.allow_models)))


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


# The sandbox


async def sandbox_of(
    runtime: Runtime, agent_id: str, session_key: str, entry: Mapping[str, Any] | None
) -> Boundary | None:
    """The sandbox of a session, or None if it has none. ``entry`` is the session's."""
    plan = await plan_of(runtime, agent_id, session_key, entry)
    if plan is None:
        return None
    config = runtime.config.current

    def make() -> Boundary:
        folders = [source.folder for source in skill_folders(config, str(runtime.state_dir), agent_id)]
        return Boundary(plan, folders, sandbox_config(config, plan.lineage[-1][0]).prune, runtime.clock)

    return runtime.prompting.derived.of(config, ("sandbox", *plan.key), make)


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
    async for parent, key, _ in ancestors(runtime, session_key, entry):
        if wants_sandbox(config, parent, key):
            lineage.append((parent, key))
    return make_plan(config, runtime.state_dir, agent_id, session_key, lineage) if lineage else None
