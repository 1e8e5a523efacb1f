"""Collects the facts that the system prompt contains: workspace files, skills, people, the channel."""

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
"""``minimal`` is for sub-agents: it has no persona, people or channels. ``none`` is one sentence."""


class PromptFacts(msgspec.Struct, kw_only=True):
    """The facts that the system prompt contains. Two runs with equal facts have the same prompt."""

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
    """The model writes its reasoning into the answer and must separate the two by tags."""
    repo_root: str | None = None
    default_model: str | None = None
    channel: str | None = None
    capabilities: Sequence[str] = ()
    reasoning: str = "off"
    user_timezone: str | None = None
    time_format: Literal["auto", "12", "24"] = "auto"
    max_file_chars: int = 0
    """The most characters of one workspace file in the prompt. Only the report uses it."""
    sandbox_mode: str = "off"
    """The agent's ``sandbox.mode``. Only the report uses it."""


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
    """The facts for one run. ``kind`` is the session's kind, as ``kind_of`` names it."""
    defaults, model, key = config.agents.defaults, settings.model, session_key
    agent = agent_config(config, agent_id)
    identity = agent.identity if agent else None
    facts = PromptFacts(
        agent_id=agent_id,
        agent_name=(identity.name if identity else None) or (agent.name if agent else None) or DEFAULT_AGENT_NAME,
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
        return facts  # The prompt of such a model has only a few sentences.
    private, channel = is_private(kind, key), channel_of(entry, key, kind=kind)
    facts.files = snapshot.files
    facts.skills = snapshot.skills
    facts.aliases = model_aliases(config)
    # In a group everybody could ask the model for the owner's numbers.
    facts.owners = [str(owner) for owner in config.commands.owner_allow_from if str(owner) != "*"] if private else []
    facts.citations = config.memory.citations == "on" or (config.memory.citations == "auto" and private)
    heartbeat = agent.heartbeat if agent and agent.heartbeat else defaults.heartbeat
    facts.heartbeat_prompt = (heartbeat.prompt or "").strip()
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
    """The ``capabilities`` in the channel's section of the configuration."""
    signal = config.channels.signal
    if channel == "signal":
        return signal.capabilities if signal else []
    named: Any = config.channels.others.get(channel, {}).get("capabilities")
    names = cast("list[Any]", named) if isinstance(named, list) else []
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]
