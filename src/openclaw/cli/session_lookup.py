"""Finds the session or agent that a person names: a session by its key, id or label, in every command alike."""

from __future__ import annotations

from openclaw.cli.client import GatewayClient, GatewayError
from openclaw.cli.command import UserError
from openclaw.paths import normalize_agent_id

KEYS = ("main", "global")
"""Names that are session keys already."""


def find_session(client: GatewayClient, name: str, agent: str | None) -> str | None:
    """Return the key of the session with this key, id or label, or None if there is none."""
    scope = {"agentId": agent} if agent else {}
    for field in ("key", "sessionId", "label"):
        try:
            return str(client.call("sessions.resolve", {field: name, **scope})["key"])
        except GatewayError as error:
            if error.detail_code != "SESSION_NOT_FOUND":
                raise
    return None


def resolve_key(client: GatewayClient, name: str, agent: str | None = None) -> str:
    """Return the key of the session that a person named, or the name itself if no session has it."""
    if name in KEYS or name.startswith("agent:"):
        return name
    return find_session(client, name, agent) or name


def session_key(client: GatewayClient, name: str, agent: str | None) -> tuple[str, bool]:
    """Return the key of the session that a person named, and whether its first message will create it."""
    answer = client.call("sessions.resolve", {"name": name, **({"agentId": agent} if agent else {})})
    return str(answer["key"]), bool(answer["new"])


def check_agent(client: GatewayClient, agent: str) -> None:
    """Raise ``UserError`` if no such agent is configured, so that a typo does not create one."""
    ids = {str(row.get("id")) for row in client.call("agents.list").get("agents") or []}
    if normalize_agent_id(agent) not in ids:
        raise UserError(f'Unknown agent id "{agent}". Use "openclaw agents list" to see configured agents.')
