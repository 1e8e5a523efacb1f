"""Collects what the system prompt speaks of: the workspace's files, the skills, who is there and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from openclaw.agent.prompt.sections import SandboxWish
from openclaw.agent.prompt.workspace_files import BootstrapFile
from openclaw.agent.prompt.workspace_snapshot import View, WorkspaceSnapshot
from openclaw.agent.skills.library import SkillsPrompt
from openclaw.config.agents import (
    agent_config,
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

if TYPE_CHECKING:
    from openclaw.agent.run_settings import AgentSettings
    from openclaw.agent.runtime import Turn

DEFAULT_AGENT_NAME = "OpenClaw"
_NO_CHANNEL = ("unknown", "internal")


PromptMode: TypeAlias = Literal["full", "minimal", "none"]
"""``minimal`` is for sub-agents: no persona, no people, no channels. ``none`` is one sentence."""


class PromptFacts(msgspec.Struct, kw_only=True):
    agent_id: str
    agent_name: str
    workspace: str
    model: Model
    thinking: str
    tools: list[Tool]
    files: list[BootstrapFile]
    mode: PromptMode = "full"
    extra: str = ""
    skills: SkillsPrompt = SkillsPrompt()
    skill_env: Mapping[str, str] = {}
    """Not told to the model: for the environment of its commands."""
    aliases: Mapping[str, str] = {}
    owners: Sequence[str] = ()
    citations: bool = False
    heartbeat_prompt: str = ""
    sandbox: SandboxWish | None = None
    tagged_reasoning: bool = False
    """The model writes its reasoning into the answer and must tell the two apart by tags."""
    repo_root: str | None = None
    default_model: str | None = None
    channel: str | None = None
    capabilities: Sequence[str] = ()
    reasoning: str = "off"
    user_timezone: str | None = None
    time_format: Literal["auto", "12", "24"] = "auto"


class Occasion(msgspec.Struct, frozen=True):
    """What of a turn and its session the prompt depends on: two turns on the same occasion are told the same."""

    agent_id: str
    model: str
    thinking: str
    reasoning: str
    channel: str
    private: bool
    subagent: bool
    sandboxed: bool
    extra: str

    def view(self, window: int) -> View:
        return View(window, self.private, self.subagent)


class Means(msgspec.Struct, frozen=True):
    """What a prompt is made of besides its occasion; all of it comes from the configuration and the disk."""

    config: Config
    ground: WorkspaceSnapshot
    model: Model
    tools: list[Tool]
    workspace: Path

    def same_as(self, other: Means) -> bool:
        """By identity where that says enough: a change of the configuration or the disk makes a new object."""
        return (
            self.config is other.config
            and self.ground is other.ground
            and self.model == other.model
            and self.tools == other.tools
        )


def occasion_of(
    turn: Turn, entry: SessionEntry, config: Config, terms: AgentSettings, *, model: Model, thinking: str
) -> Occasion:
    key = turn.session_key
    subagent = is_subagent(key)
    kind = kind_of(key, entry, main_key=terms.main_key, scope=config.session.scope)
    return Occasion(
        agent_id=turn.agent_id,
        model=model.ref,
        thinking=thinking,
        reasoning=turn.reasoning or entry.get("reasoningLevel") or "off",
        channel=channel_of(entry, key, kind=kind),
        private=kind in ("main", "other") and not subagent,
        subagent=subagent,
        sandboxed=terms.sandboxes and wants_sandbox(config, turn.agent_id, key),
        extra=turn.extra_system_prompt,
    )


def facts_for(occasion: Occasion, means: Means) -> PromptFacts:
    config, ground, model = means.config, means.ground, means.model
    defaults, agent_id, private = config.agents.defaults, occasion.agent_id, occasion.private
    facts = PromptFacts(
        agent_id=agent_id,
        agent_name=agent_name(config, agent_id),
        workspace=str(means.workspace),
        model=model,
        thinking=occasion.thinking,
        tools=means.tools,
        files=[],
        mode="minimal" if occasion.subagent else "full",
        extra=occasion.extra,
        user_timezone=defaults.user_timezone,
        time_format=defaults.time_format,
        reasoning=occasion.reasoning,
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
    facts.heartbeat_prompt = _heartbeat_prompt(config, agent_id)
    facts.repo_root = ground.repo_root
    facts.default_model = primary_model(config, agent_id)
    facts.channel = None if occasion.channel in _NO_CHANNEL else occasion.channel
    facts.capabilities = _capabilities(config, occasion.channel)
    facts.sandbox = _sandbox(config, agent_id) if occasion.sandboxed else None
    facts.tagged_reasoning = reasons_in_tags(model) is not False
    return facts


def _sandbox(config: Config, agent_id: str) -> SandboxWish:
    sandbox = sandbox_config(config, agent_id)
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
