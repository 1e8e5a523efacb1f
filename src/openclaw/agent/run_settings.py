"""The settings and tools of a run that follow from the configuration, the agent and the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.skills.library import skill_folders
from openclaw.agent.spend.budget import budget_of, is_limited
from openclaw.agent.window.tokens import Scale
from openclaw.config.agents import agent_config, main_key, sandbox_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.schema.tools import AgentTools, Tools
from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model
from openclaw.models.retry import RetrySettings
from openclaw.models.thinking import level_unless_set
from openclaw.outbound.visible import visible_text
from openclaw.paths import sessions_dir
from openclaw.sessions.search import SearchIndex
from openclaw.tools.base import Tool
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.memory import memory_tools
from openclaw.tools.policy import ToolFilter, ToolSettings, allowed_tools, built_in_tools, profile

_RETENTION = ("none", "short", "long")
_OLD_RETENTION = {"5m": "short", "1h": "long"}


class ModelParams(msgspec.Struct, frozen=True):
    """``agents.defaults.models["provider/model"].params`` of one model."""

    temperature: float | None = None
    max_tokens: int | None = None
    cache_retention: str | None = None
    """``none``, ``short`` or ``long``. The old key ``cacheControlTtl`` says ``5m`` or ``1h`` instead."""


NONE = ModelParams()


def params_of(config: Config, model: Model) -> ModelParams:
    """The parameters of a model. Values of the wrong type count as not given."""
    use = config.agents.defaults.models.get(model.ref)
    if use is None or not use.params:
        return NONE
    given = use.params
    temperature: Any = given.get("temperature")
    max_tokens: Any = given.get("maxTokens")
    retention: Any = given.get("cacheRetention") or _OLD_RETENTION.get(str(given.get("cacheControlTtl")))
    return ModelParams(
        temperature=float(temperature) if type(temperature) in (int, float) else None,
        max_tokens=max_tokens if type(max_tokens) is int and max_tokens > 0 else None,
        cache_retention=retention if retention in _RETENTION else None,
    )


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one agent."""

    workspace: Path
    cwd: str
    """The workspace as a string, as transcripts name it."""
    main_key: str
    sandbox_mode: str
    """``off``, or which of the agent's sessions the configuration wants in a sandbox."""
    retry: RetrySettings
    limited: bool
    """Whether the agent has a budget."""


def agent_settings(agent_id: str, runtime: Runtime) -> AgentSettings:
    config = runtime.config.current
    return runtime.derived.of(
        config, ("agent settings", agent_id), lambda: _agent_settings(config, agent_id, str(runtime.state_dir))
    )


def _agent_settings(config: Config, agent_id: str, state_dir: str) -> AgentSettings:
    workspace = workspace_dir(config, state_dir, agent_id)
    return AgentSettings(
        workspace=workspace,
        cwd=str(workspace),
        main_key=main_key(config),
        sandbox_mode=sandbox_config(config, agent_id).mode,
        retry=RetrySettings(
            enabled=config.retry.enabled,
            max_retries=config.retry.max_retries,
            base_delay_ms=config.retry.base_delay_ms,
            max_delay_ms=config.retry.max_delay_ms,
        ),
        limited=is_limited(budget_of(config, agent_id)),
    )


def tools_for(agent_id: str, model: Model, workspace: Path, config: Config, runtime: Runtime) -> list[Tool]:
    """The agent's tools. The list is empty for a model that cannot call tools. Runs share it."""
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
    )
    search = agent.memory_search if agent and agent.memory_search else config.agents.defaults.memory_search
    index = SearchIndex(str(runtime.state_dir), visible_text)
    beside_store = Path(runtime.sessions.path(agent_id)).parent
    folders = list(dict.fromkeys([beside_store, Path(sessions_dir(str(runtime.state_dir), agent_id))]))

    def search_transcripts(query: str, limit: int) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(found) for found in index.search(query, {agent_id: folders}, limit=limit).results]

    notes = runtime.memories.of(agent_id, workspace, search, config)
    tools += memory_tools(notes, workspace, search, config.memory.citations, search_transcripts)
    names = set(allowed_tools([tool.spec.name for tool in tools], policies))
    return [tool for tool in tools if tool.spec.name in names]


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


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run with one agent and one model uses."""

    chosen: Model
    """The model as the catalogue has it."""
    model: Model
    """The model with the cache retention of the configuration."""
    params: ModelParams
    agent: AgentSettings
    tools: list[Tool]
    """Runs share it. Never mutate it."""
    thinking: ThinkingLevel
    """The thinking level of sessions that have none of their own."""
    scale: Scale


def run_settings_of(agent_id: str, chosen: Model, config: Config, runtime: Runtime) -> RunSettings:
    """The settings of runs with this agent and model. They are kept until the configuration changes."""

    def make() -> RunSettings:
        params, agent, model = params_of(config, chosen), agent_settings(agent_id, runtime), chosen
        if params.cache_retention is not None:
            compat = {**model.compat, "cacheRetention": params.cache_retention}
            model = msgspec.structs.replace(model, compat=compat)
        return RunSettings(
            chosen=chosen,
            model=model,
            params=params,
            agent=agent,
            tools=tools_for(agent_id, model, agent.workspace, config, runtime),
            thinking=level_unless_set(model, config.agents.defaults.thinking_default),
            scale=runtime.scales.of(model),
        )

    key = ("run settings", agent_id, chosen.provider, chosen.id, chosen.auth_profile)
    known = runtime.derived.of(config, key, make)
    # The catalogue can change without the configuration, e.g. when a local server is found.
    return known if known.chosen is chosen or known.chosen == chosen else make()
