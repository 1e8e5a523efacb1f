"""Collects what the system prompt speaks of: the workspace's files, the skills, who is there and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from openclaw.agent.ground import Grounds, View
from openclaw.agent.prompt import PromptFacts
from openclaw.agent.prompt_sections import SandboxWish
from openclaw.agent.runtime import Turn
from openclaw.config.agents import (
    agent_config,
    main_key,
    model_aliases,
    primary_model,
    sandbox_config,
    wants_sandbox,
)
from openclaw.config.schema import Config
from openclaw.models.base import Model
from openclaw.models.compat import reasons_in_tags
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import channel_of, is_subagent, kind_of
from openclaw.tools.base import Tool

DEFAULT_AGENT_NAME = "OpenClaw"
_NO_CHANNEL = ("unknown", "internal")


async def gather_facts(
    turn: Turn,
    entry: SessionEntry,
    config: Config,
    *,
    model: Model,
    thinking: str,
    tools: list[Tool],
    workspace: Path,
    grounds: Grounds,
) -> PromptFacts:
    defaults = config.agents.defaults
    kind = kind_of(turn.session_key, entry, main_key=main_key(config), scope=config.session.scope)
    subagent = is_subagent(turn.session_key)
    private = kind in ("main", "other") and not subagent
    ground = await grounds.of(turn.agent_id, config, workspace, View(model.context_window, private, subagent))
    facts = PromptFacts(
        agent_id=turn.agent_id,
        agent_name=agent_name(config, turn.agent_id),
        workspace=str(workspace),
        model=model,
        thinking=thinking,
        tools=tools,
        files=[],
        mode="minimal" if subagent else "full",
        extra=turn.extra_system_prompt,
        user_timezone=defaults.user_timezone,
        time_format=defaults.time_format,
        reasoning=turn.reasoning or entry.get("reasoningLevel") or "off",
    )
    if not model.tools:
        return facts  # Its prompt is a few sentences: nothing else is told.
    facts.files = ground.files
    facts.skills = ground.skills
    facts.skill_env = ground.skill_env
    facts.aliases = model_aliases(config)
    # In a group the owner's numbers would be one question away from everybody.
    facts.owners = [str(owner) for owner in config.commands.owner_allow_from if str(owner) != "*"] if private else []
    facts.citations = config.memory.citations == "on" or (config.memory.citations == "auto" and private)
    facts.heartbeat_prompt = _heartbeat_prompt(config, turn.agent_id)
    facts.repo_root = ground.repo_root
    facts.default_model = primary_model(config, turn.agent_id)
    channel = channel_of(entry, turn.session_key, main_key=main_key(config))
    facts.channel = None if channel in _NO_CHANNEL else channel
    facts.capabilities = _capabilities(config, channel)
    facts.sandbox = _sandbox(config, turn)
    facts.tagged_reasoning = reasons_in_tags(model) is not False
    return facts


def _sandbox(config: Config, turn: Turn) -> SandboxWish | None:
    if not wants_sandbox(config, turn.agent_id, turn.session_key):
        return None
    sandbox = sandbox_config(config, turn.agent_id)
    return SandboxWish(sandbox.mode, sandbox.workspace_access)


def _capabilities(config: Config, channel: str) -> list[str]:
    """What the channel's section names beside the obvious."""
    signal = config.channels.signal
    if channel == "signal":
        return signal.capabilities if signal else []
    named: Any = config.channels.others.get(channel, {}).get("capabilities")
    names = cast("list[Any]", named) if isinstance(named, list) else []
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]


def agent_name(config: Config, agent_id: str) -> str:
    agent = agent_config(config, agent_id)
    identity = agent.identity if agent else None
    return (identity.name if identity else None) or (agent.name if agent else None) or DEFAULT_AGENT_NAME


def _heartbeat_prompt(config: Config, agent_id: str) -> str:
    agent = agent_config(config, agent_id)
    beat = agent.heartbeat if agent and agent.heartbeat else config.agents.defaults.heartbeat
    return (beat.prompt or "").strip()
