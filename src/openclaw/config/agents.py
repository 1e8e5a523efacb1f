"""What the configuration says about an agent: its workspace, model, sandbox and main session."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path

from openclaw.clock import duration_ms, named_zone
from openclaw.config.schema import Config
from openclaw.config.schema.agents import AgentConfig, Heartbeat, ModelChoice, ModelSetting, Sandbox
from openclaw.paths import normalize_agent_id


def default_agent_id(config: Config) -> str:
    """The first agent marked default, else the first, else ``main``."""
    agents = config.agents.list
    chosen = next((agent for agent in agents if agent.default), agents[0] if agents else None)
    return normalize_agent_id(chosen.id) if chosen else "main"


def agent_ids(config: Config) -> list[str]:
    """The ids in the order of the file, each once; ``main`` when no agent is listed."""
    return list(dict.fromkeys(normalize_agent_id(agent.id) for agent in config.agents.list)) or ["main"]


def agent_config(config: Config, agent_id: str) -> AgentConfig | None:
    wanted = normalize_agent_id(agent_id)
    return next((agent for agent in config.agents.list if normalize_agent_id(agent.id) == wanted), None)


def workspace_dir(config: Config, state_dir: str | Path, agent_id: str) -> Path:
    """The agent's own folder, else the configured or built-in one of the default agent, else ``workspace-<id>``."""
    identity = normalize_agent_id(agent_id)
    agent = agent_config(config, identity)
    if agent and agent.workspace and agent.workspace.strip():
        return _expanded(agent.workspace)
    if identity != default_agent_id(config):
        return Path(state_dir) / f"workspace-{identity}"
    shared = config.agents.defaults.workspace
    return _expanded(shared) if shared and shared.strip() else Path(state_dir) / "workspace"


def user_zone(config: Config) -> tzinfo | None:
    """The time zone that people read times in; None is the machine's own."""
    return named_zone(config.agents.defaults.user_timezone)


def main_key(config: Config) -> str:
    return config.session.main_key.strip().lower() or "main"


def main_session_key(config: Config, agent_id: str) -> str:
    return f"agent:{normalize_agent_id(agent_id)}:{main_key(config)}"


def sandbox_config(config: Config, agent_id: str) -> Sandbox:
    agent = agent_config(config, agent_id)
    return agent.sandbox if agent and agent.sandbox else config.agents.defaults.sandbox


def heartbeat_config(config: Config, agent_id: str) -> Heartbeat:
    agent = agent_config(config, agent_id)
    return agent.heartbeat if agent and agent.heartbeat else config.agents.defaults.heartbeat


def heartbeat_agents(config: Config) -> list[str]:
    """The agents that have heartbeats: those that configure one, else the default agent."""
    own = [normalize_agent_id(agent.id) for agent in config.agents.list if agent.heartbeat is not None]
    return list(dict.fromkeys(own)) or [default_agent_id(config)]


def heartbeat_ms(config: Config, agent_id: str) -> int:
    """The time between two heartbeats of an agent. 0: it has none."""
    if agent_id not in heartbeat_agents(config):
        return 0
    try:
        return duration_ms(heartbeat_config(config, agent_id).every, "m")
    except ValueError:
        return 0


def wants_sandbox(config: Config, agent_id: str, session_key: str) -> bool:
    """Whether the configuration asks for this session's tools to run in a sandbox."""
    mode = sandbox_config(config, agent_id).mode
    main = "global" if config.session.scope == "global" else main_session_key(config, agent_id)
    return mode == "all" or (mode == "non-main" and session_key != main)


def primary_model(config: Config, agent_id: str) -> str | None:
    """The agent's model, else the default one, as ``provider/model`` or an alias; None when none is configured."""
    agent = agent_config(config, agent_id)
    return _primary(agent.model if agent else None) or _primary(config.agents.defaults.model)


def fallback_models(config: Config, agent_id: str) -> list[str]:
    """The agent's own fallbacks if it has such a list, also an empty one, else the default ones."""
    agent = agent_config(config, agent_id)
    own = _fallbacks(agent.model if agent else None)
    primary = primary_model(config, agent_id)
    found = own if own is not None else _fallbacks(config.agents.defaults.model) or []
    return [model for model in found if model != primary]


def may_fall_back(config: Config, agent_id: str) -> bool:
    """False for an agent that has an empty list of fallbacks of its own."""
    agent = agent_config(config, agent_id)
    return _fallbacks(agent.model if agent else None) != []


def image_models(config: Config) -> list[str]:
    """The models for messages with pictures that the agent's model cannot see, the preferred one first."""
    setting = config.agents.defaults.image_model
    primary = _primary(setting)
    return list(dict.fromkeys([*([primary] if primary else []), *(_fallbacks(setting) or [])]))


def named_models(config: Config) -> list[str]:
    """Return every model that the configuration of the agents names, as ``provider/model`` or an alias, each once."""
    defaults = config.agents.defaults
    settings = [defaults.model, defaults.image_model, defaults.subagents.model, defaults.heartbeat.model]
    for agent in config.agents.list:
        settings += [agent.model, agent.subagents.model, agent.heartbeat.model if agent.heartbeat else None]
    names = [name for setting in settings for name in (_primary(setting), *(_fallbacks(setting) or ())) if name]
    return list(dict.fromkeys([*defaults.models, *names]))


def _fallbacks(setting: ModelSetting | None) -> list[str] | None:
    """The fallbacks of a setting, each once. None: it says nothing about them."""
    if not isinstance(setting, ModelChoice) or setting.fallbacks is None:
        return None
    return [name for name in dict.fromkeys(name.strip() for name in setting.fallbacks) if name]


def model_aliases(config: Config) -> dict[str, str]:
    """The aliases in lower case, each with its ``provider/model``. Of equal aliases the first counts."""
    aliases: dict[str, str] = {}
    for model, use in config.agents.defaults.models.items():
        if use.alias and use.alias.strip():
            aliases.setdefault(use.alias.strip().lower(), model)
    return aliases


def _primary(setting: ModelSetting | None) -> str | None:
    name = setting.primary if isinstance(setting, ModelChoice) else setting
    return (name or "").strip() or None


def _expanded(path: str) -> Path:
    return Path(path.strip()).expanduser().absolute()
