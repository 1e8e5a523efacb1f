"""Collects what the system prompt speaks of: the workspace's files, the skills, who is there and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from openclaw.agent.prompt.sections import RequestedSandbox
from openclaw.agent.prompt.workspace_files import BootstrapFile, effective_max_chars
from openclaw.agent.prompt.workspace_snapshot import WorkspaceSnapshot
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
from openclaw.sessions.keys import SessionKind, channel_of, is_subagent
from openclaw.tools.base import Tool

if TYPE_CHECKING:
    from openclaw.agent.run_settings import RunSettings
    from openclaw.storage.base import MessageBody

DEFAULT_AGENT_NAME = "OpenClaw"
_NO_CHANNEL = ("unknown", "internal")


PromptMode: TypeAlias = Literal["full", "minimal", "none"]
"""``minimal`` is for sub-agents: no persona, no people, no channels. ``none`` is one sentence."""


class PromptFacts(msgspec.Struct, kw_only=True):
    """What the system prompt speaks of. Two runs with equal facts have the same prompt."""

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
    aliases: Mapping[str, str] = {}
    owners: Sequence[str] = ()
    citations: bool = False
    heartbeat_prompt: str = ""
    sandbox: RequestedSandbox | None = None
    tagged_reasoning: bool = False
    """The model writes its reasoning into the answer and must tell the two apart by tags."""
    repo_root: str | None = None
    default_model: str | None = None
    channel: str | None = None
    capabilities: Sequence[str] = ()
    reasoning: str = "off"
    user_timezone: str | None = None
    time_format: Literal["auto", "12", "24"] = "auto"
    max_file_chars: int = 0
    """How much of one workspace file the prompt holds at most. For the report only."""
    sandbox_mode: str = "off"
    """The agent's ``sandbox.mode``. For the report only."""


def gather_facts(
    *,
    agent_id: str,
    session_key: str,
    entry: SessionEntry,
    body: MessageBody,
    config: Config,
    settings: RunSettings,
    thinking: str,
    tools: list[Tool],
    snapshot: WorkspaceSnapshot,
    kind: SessionKind,
) -> PromptFacts:
    """Everything the prompt of one run tells. ``kind``: the session's, as ``kind_of`` names it."""
    defaults, model, key = config.agents.defaults, settings.model, session_key
    facts = PromptFacts(
        agent_id=agent_id,
        agent_name=agent_name(config, agent_id),
        workspace=str(settings.agent.workspace),
        model=model,
        thinking=thinking,
        tools=tools,
        files=[],
        mode="minimal" if is_subagent(key) else "full",
        extra=body.extra_system_prompt,
        user_timezone=defaults.user_timezone,
        time_format=defaults.time_format,
        reasoning=body.reasoning or entry.get("reasoningLevel") or "off",
        max_file_chars=effective_max_chars(defaults.bootstrap_max_chars, model.context_window),
        sandbox_mode=settings.agent.sandbox_mode,
    )
    if not model.tools:
        return facts  # Its prompt is a few sentences: nothing else is told.
    private, channel = is_private(kind, key), channel_of(entry, key, kind=kind)
    facts.files = snapshot.files
    facts.skills = snapshot.skills
    facts.aliases = model_aliases(config)
    # In a group the owner's numbers would be one question away from everybody.
    facts.owners = [str(owner) for owner in config.commands.owner_allow_from if str(owner) != "*"] if private else []
    facts.citations = config.memory.citations == "on" or (config.memory.citations == "auto" and private)
    facts.heartbeat_prompt = _heartbeat_prompt(config, agent_id)
    facts.repo_root = snapshot.repo_root
    facts.default_model = primary_model(config, agent_id)
    facts.channel = None if channel in _NO_CHANNEL else channel
    facts.capabilities = _capabilities(config, channel)
    if facts.sandbox_mode != "off" and wants_sandbox(config, agent_id, key):
        sandbox = sandbox_config(config, agent_id)
        facts.sandbox = RequestedSandbox(sandbox.mode, sandbox.workspace_access)
    facts.tagged_reasoning = reasons_in_tags(model) is not False
    return facts


def is_private(kind: SessionKind, session_key: str) -> bool:
    """Whether only the owner takes part in the conversation."""
    return kind in ("main", "other") and not is_subagent(session_key)


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
