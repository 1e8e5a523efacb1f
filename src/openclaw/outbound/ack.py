"""The reaction by which the agent shows that it has seen a message, before it answers."""

from __future__ import annotations

from openclaw.config.agents import agent_config
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.config.schema.channels.base import AckReaction

SEEN = "👀"


def ack_emoji(
    config: Config, channel: str, account_id: str | None, agent_id: str, *, direct: bool, mentioned: bool
) -> str:
    """The emoji for a message, or nothing if messages like this one are not acknowledged."""
    account = account_settings(config, channel, account_id)
    own = account.ack_reaction if account is not None else None
    if isinstance(own, AckReaction):
        in_group = own.group == "always" or (own.group == "mentions" and mentioned)
        return own.emoji.strip() if (own.direct if direct else in_group) else ""
    match config.messages.ack_reaction_scope:
        case "all":
            wanted = True
        case "direct":
            wanted = direct
        case "group-all":
            wanted = not direct
        case "group-mentions":
            wanted = not direct and mentioned
        case "off" | "none":
            wanted = False
    if not wanted:
        return ""
    chosen = own if own is not None else config.messages.ack_reaction
    if chosen is not None:
        return chosen.strip()
    agent = agent_config(config, agent_id)
    return (agent.identity.emoji if agent is not None else None) or SEEN
