"""The tools one run may use: the built-in ones, narrowed by the configuration's policies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.skills import places
from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.config.schema.tools import AgentTools, ExecConfig, Tools
from openclaw.models.base import Model
from openclaw.outbound.visible import visible_text
from openclaw.paths import sessions_dir
from openclaw.sessions.search import SearchIndex
from openclaw.tools.base import Tool
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.memory import memory_tools
from openclaw.tools.policy import ToolFilter, ToolSettings, allowed_tools, built_in_tools, profile


def tools_for(agent_id: str, model: Model, workspace: Path, config: Config, runtime: Runtime) -> list[Tool]:
    """None at all for models that cannot call tools. The same list from turn to turn: they keep nothing of a run."""
    if not model.tools:
        return []
    key = ("tools", agent_id, model.provider, model.id)
    return runtime.derived.of(config, key, lambda: _make(agent_id, model, workspace, config, runtime))


def _make(agent_id: str, model: Model, workspace: Path, config: Config, runtime: Runtime) -> list[Tool]:
    agent = agent_config(config, agent_id)
    own = agent.tools if agent else None
    policies = [*_policies(config.tools, model), *(_policies(own, model) if own else ())]
    fs = own.fs if own and own.fs else config.tools.fs
    exec_config = own.exec if own and own.exec else config.tools.exec
    exec_settings = msgspec.convert(_given(exec_config), ExecSettings, strict=False)
    exec_settings.allow_background = bool(allowed_tools(["process"], policies))
    skills = [place.folder for place in places(config, str(runtime.state_dir), agent_id)]
    roots = [runtime.state_dir / "blobs", *skills]
    settings = ToolSettings(confine=fs.workspace_only, extra_roots=roots, exec=exec_settings)
    tools = built_in_tools(
        workspace=workspace,
        settings=settings,
        processes=runtime.processes,
        rules=runtime.approval_rules,
        approvals=runtime.approvals,
    )
    search = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    said = partial(
        _said_before, SearchIndex(str(runtime.state_dir), visible_text), _transcript_folders(agent_id, runtime)
    )
    notes = runtime.memories.of(agent_id, workspace, search, config)
    tools += memory_tools(notes, workspace, search, config.memory.citations, said)
    names = set(allowed_tools([tool.spec.name for tool in tools], policies))
    return [tool for tool in tools if tool.spec.name in names]


def _given(config: ExecConfig) -> dict[str, Any]:
    """What was said; keys left open keep the tool's own defaults."""
    return {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}


def _transcript_folders(agent_id: str, runtime: Runtime) -> dict[str, list[Path]]:
    beside_store = Path(runtime.sessions.path(agent_id)).parent
    return {agent_id: list(dict.fromkeys([beside_store, Path(sessions_dir(str(runtime.state_dir), agent_id))]))}


def _said_before(index: SearchIndex, folders: dict[str, list[Path]], query: str, limit: int) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(found) for found in index.search(query, folders, limit=limit).results]


def _policies(section: Tools | AgentTools, model: Model) -> Iterator[ToolFilter]:
    """In their order: the profile, the provider's own, then allow and deny."""
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
