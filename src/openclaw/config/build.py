"""Turns checked values into the typed configuration, with inheritance applied.

After this, an agent's or an account's section is complete: nobody else has to know where a key came from.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.config.schema import Config

_AGENT_SECTIONS = ("sandbox", "heartbeat", "memorySearch", "humanDelay", "budget")
_AGENT_TOOL_SECTIONS = ("exec", "elevated", "fs", "sandbox")
_NOT_INHERITED = ("accounts", "defaultAccount", "name")


def build(values: dict[str, Any]) -> Config:
    values = dict(values)
    if agents := values.get("agents"):
        values["agents"] = _with_inherited_agents(agents, values.get("tools") or {})
    if channels := values.get("channels"):
        values["channels"] = _with_inherited_accounts(channels)
    return msgspec.convert(values, Config)


def _with_inherited_agents(agents: dict[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = agents.get("defaults") or {}
    filled: list[dict[str, Any]] = []
    for agent in agents.get("list") or []:
        own = {**agent, **_filled(agent, defaults, _AGENT_SECTIONS)}
        if "tools" in agent:
            own["tools"] = {**agent["tools"], **_filled(agent["tools"], tools, _AGENT_TOOL_SECTIONS)}
        filled.append(own)
    return {**agents, "list": filled}


def _filled(own: dict[str, Any], defaults: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    return {name: overlay(defaults.get(name) or {}, own[name]) for name in sections if name in own}


def _with_inherited_accounts(channels: dict[str, Any]) -> dict[str, Any]:
    signal: dict[str, Any] | None = channels.get("signal")
    if signal is None:
        return channels
    policy = (channels.get("defaults") or {}).get("groupPolicy")
    base = {"groupPolicy": policy, **signal} if policy else signal
    inherited = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    accounts = {name: {**inherited, **account} for name, account in (signal.get("accounts") or {}).items()}
    return {**channels, "signal": {**base, "accounts": accounts} if accounts else base}


def overlay(below: Any, above: Any) -> Any:
    """Key by key; lists and plain values of the one above replace those below."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: overlay(below.get(key), value) for key, value in above.items()}}
    return above
