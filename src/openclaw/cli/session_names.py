"""Names of sessions as people give them: a key, an id or a label means the same in every command."""

from __future__ import annotations

from openclaw.cli.client import GatewayClient, GatewayError
from openclaw.cli.command import UserError
from openclaw.paths import normalize_agent_id

ID_LENGTH, ID_DASHES = 36, 4
"""The shape of a session id, which is a UUID."""
KEYS = ("main", "global")
"""Names that are keys already."""


def find_session(client: GatewayClient, name: str, agent: str | None) -> str | None:
    """Returns the key of the session with this key, id or label; None when there is none."""
    scope = {"agentId": agent} if agent else {}
    for field in ("key", "sessionId", "label"):
        try:
            return str(client.call("sessions.resolve", {field: name, **scope})["key"])
        except GatewayError as error:
            if error.detail_code != "SESSION_NOT_FOUND":
                raise
    return None


def given_key(client: GatewayClient, name: str, agent: str | None = None) -> str:
    """The key of the session that a person names. What no session is called is passed on as it is."""
    if name in KEYS or name.startswith("agent:"):
        return name
    return find_session(client, name, agent) or name


def session_key(client: GatewayClient, name: str, agent: str | None) -> tuple[str, bool]:
    """The key of the session that a person names by its key, id or label, and whether the first message begins it.

    An id is never a name of something new: a session that has gone is not begun again under its id.
    """
    if found := find_session(client, name, agent):
        return found, False
    if len(name) == ID_LENGTH and name.count("-") == ID_DASHES:
        raise UserError(f"No session found: {name}")
    if name.startswith("agent:"):
        return name, True
    owner = agent or client.call("agents.list").get("defaultId") or "main"
    return f"agent:{normalize_agent_id(str(owner))}:{name}", True


def check_agent(client: GatewayClient, agent: str) -> None:
    """Refuses the id of an agent that is not configured, so that a typo makes no new agent."""
    known = {str(row.get("id")) for row in client.call("agents.list").get("agents") or []}
    if normalize_agent_id(agent) not in known:
        raise UserError(f'Unknown agent id "{agent}". Use "openclaw agents list" to see configured agents.')
