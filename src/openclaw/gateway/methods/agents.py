"""``agents.list`` and ``agent.identity.get``: which agents there are and how they present themselves."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw.config.agents import agent_config, agent_ids, default_agent_id, main_key, workspace_dir
from openclaw.config.schema.agents import BindingMatch
from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.gateway.session_rows import model_defaults
from openclaw.paths import agent_dir, normalize_agent_id
from openclaw.sessions.keys import agent_of

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

DEFAULT_NAME = "Assistant"
DEFAULT_AVATAR = "A"
MAX_IDENTITY_BYTES = 64 * 1024
_IDENTITY_LINE = re.compile(r"^\W*(name|emoji|avatar)\W*?:\W*?\s+(.+?)\s*$", re.IGNORECASE | re.MULTILINE)


class AgentsList(Params):
    details: bool = False
    """Also where each one lives, its model and what is bound to it."""


class IdentityGet(Params):
    agent_id: str | None = None
    session_key: str | None = None


@method("agents.list", AgentsList)
async def list_agents(call: Call) -> Any:
    config = call.gateway.config.current
    agents: list[dict[str, Any]] = []
    for agent_id in agent_ids(config):
        listed = agent_config(config, agent_id)
        agent: dict[str, Any] = {"id": agent_id}
        if listed is not None and listed.name:
            agent["name"] = listed.name
        if listed is not None and (identity := _given(listed.identity)):
            agent["identity"] = identity
        agents.append({**agent, **_details(call.gateway, agent_id)} if call.params.details else agent)
    return {
        "defaultId": default_agent_id(config),
        "mainKey": main_key(config),
        "scope": config.session.scope,
        "agents": agents,
    }


def _details(gateway: Gateway, agent_id: str) -> dict[str, Any]:
    config = gateway.config.current
    listed = agent_config(config, agent_id)
    given = listed.agent_dir if listed is not None else None
    bound = [one.match for one in config.bindings if normalize_agent_id(one.agent_id) == agent_id]
    chosen = model_defaults(gateway, agent_id)
    return {
        "workspace": str(workspace_dir(config, gateway.state_dir, agent_id)),
        "agentDir": str(Path(given).expanduser() if given else Path(agent_dir(gateway.state_dir, agent_id), "agent")),
        "model": f"{chosen['modelProvider']}/{chosen['model']}" if chosen["model"] else None,
        "bindings": len(bound),
        "routes": [_route(match) for match in bound],
    }


def _route(match: BindingMatch) -> str:
    """In a few words: ``signal:work group:123``."""
    where = f"{match.channel}:{match.account_id}" if match.account_id else match.channel
    narrower = [f"{match.peer.kind}:{match.peer.id}"] if match.peer else []
    narrower += [f"{name}:{value}" for name, value in (("guild", match.guild_id), ("team", match.team_id)) if value]
    return " ".join([where, *narrower])


@method("agent.identity.get", IdentityGet)
async def identity(call: Call) -> Any:
    """The Control UI's own setting first, then the agent's, then what the agent wrote in its IDENTITY.md."""
    config = call.gateway.config.current
    agent_id = _agent_meant(call)
    listed = agent_config(config, agent_id)
    workspace = workspace_dir(config, call.gateway.state_dir, agent_id)
    written = await asyncio.to_thread(read_identity, workspace / "IDENTITY.md")
    configured = _given(listed.identity) if listed is not None else {}
    assistant = config.ui.assistant
    chosen = {"name": _unless(assistant.name, DEFAULT_NAME), "avatar": _unless(assistant.avatar, DEFAULT_AVATAR)}
    answer: dict[str, Any] = {"agentId": agent_id}
    listed_name = listed.name if listed is not None else None
    answer["name"] = chosen["name"] or configured.get("name") or listed_name or written.get("name") or DEFAULT_NAME
    emoji = configured.get("emoji") or written.get("emoji")
    answer["avatar"] = chosen["avatar"] or configured.get("avatar") or written.get("avatar") or emoji or DEFAULT_AVATAR
    if emoji:
        answer["emoji"] = emoji
    return answer


def _agent_meant(call: Call) -> str:
    params: IdentityGet = call.params
    default = default_agent_id(call.gateway.config.current)
    named = normalize_agent_id(params.agent_id) if params.agent_id else None
    of_key = agent_of(call.gateway.canonical_key(params.session_key), default_agent=default)
    if named and params.session_key and named != of_key:
        raise MethodError(f'agent "{named}" does not match session key agent "{of_key}"')
    return named or (of_key if params.session_key else default)


def _unless(value: str, default: str) -> str | None:
    return value if value and value != default else None


def _given(record: Any) -> dict[str, str]:
    values = {name: getattr(record, name, None) for name in ("name", "theme", "emoji", "avatar")}
    return {name: value for name, value in values.items() if value}


def read_identity(path: Path) -> dict[str, str]:
    """Name, emoji and avatar lines of the file; placeholders in parentheses or brackets count as not filled in."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_IDENTITY_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for name, value in _IDENTITY_LINE.findall(text):
        cleaned = value.strip("*_` ")
        if cleaned and not cleaned.startswith(("(", "[", "<", "_(")):
            found.setdefault(name.lower(), cleaned[:200])
    return found
