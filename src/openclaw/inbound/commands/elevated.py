"""Who may run commands outside the sandbox: every gate must be open."""

from __future__ import annotations

from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.config.schema.tools import Elevated
from openclaw.inbound.access import normal_id
from openclaw.inbound.commands.context import Facts


def closed_gates(config: Config, facts: Facts) -> list[str]:
    """The key paths that stand in the way; empty means allowed."""
    agent = agent_config(config, facts.session.agent_id)
    own = agent.tools.elevated if agent and agent.tools else None
    closed = _closed("tools.elevated", config.tools.elevated, facts, list_required=True)
    if own is not None:
        closed += _closed(f"agents.list[{facts.session.agent_id}].tools.elevated", own, facts, list_required=False)
    return closed


def allowed(config: Config, facts: Facts) -> bool:
    """Asked with every message; nearly always answered by the first look: nobody is listed."""
    return bool(config.tools.elevated.allow_from) and not closed_gates(config, facts)


def _closed(path: str, settings: Elevated, facts: Facts, *, list_required: bool) -> list[str]:
    if not settings.enabled:
        return [f"{path}.enabled"]
    listed = settings.allow_from.get(facts.channel)
    if listed is None and not list_required:
        return []
    known = {normal_id(facts.channel, str(entry)) for entry in listed or ()}
    allowed = "*" in known or not known.isdisjoint(facts.sender_ids)
    return [] if allowed else [f"{path}.allowFrom.{facts.channel}"]


def refusal(runtime: str, gates: list[str]) -> str:
    return (
        f"elevated is not available right now (runtime={runtime}).\n"
        f"Closed by: {', '.join(gates)}. Change these keys of the configuration to allow it."
    )


def effective_level(config: Config, facts: Facts, stored: str | None) -> str:
    if closed_gates(config, facts):
        return "off"
    return stored or config.agents.defaults.elevated_default
