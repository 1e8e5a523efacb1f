"""``agents.create/update/delete/bind``: adding agents, changing them, and saying who gets which messages."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import iso_utc
from openclaw.config.agents import agent_ids, default_agent_id, workspace_dir
from openclaw.config.issues import ConfigInvalid
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.paths import agent_dir, make_private_dir, normalize_agent_id

RESERVED = "main"


class AgentsCreate(Params):
    name: NonEmpty
    workspace: NonEmpty | None = None
    emoji: str | None = None
    avatar: str | None = None
    model: NonEmpty | None = None


@method("agents.create", AgentsCreate)
async def create(call: Call) -> Any:
    params: AgentsCreate = call.params
    gateway = call.gateway
    agent_id = normalize_agent_id(params.name)
    if agent_id == RESERVED:
        raise MethodError('"main" is reserved')
    config = gateway.config.current
    if agent_id in agent_ids(config):
        raise MethodError(f'agent "{agent_id}" already exists')
    fields: dict[str, Any] = {"id": agent_id, "name": params.name.strip()}
    if params.workspace:
        fields["workspace"] = params.workspace
    if params.model:
        fields["model"] = params.model
    identity = {name: value for name, value in (("emoji", params.emoji), ("avatar", params.avatar)) if value}
    if identity:
        fields["identity"] = identity
    listed = _listed(gateway)
    # The first entry of a list is the default agent: the one there was must stay that.
    listed = listed or [{"id": default_agent_id(config)}]
    await _write(gateway, {"agents": {"list": [*listed, fields]}})
    workspace = workspace_dir(gateway.config.current, gateway.state_dir, agent_id)
    await asyncio.to_thread(_introduce, workspace, params)
    return {"ok": True, "agentId": agent_id, "name": params.name.strip(), "workspace": str(workspace)}


def _introduce(workspace: Path, params: AgentsCreate) -> None:
    """Tells the agent its name where it looks for it."""
    make_private_dir(str(workspace))
    lines = [f"- Name: {params.name.strip()}"]
    if params.emoji:
        lines.append(f"- Emoji: {params.emoji}")
    if params.avatar:
        lines.append(f"- Avatar: {params.avatar}")
    with (workspace / "IDENTITY.md").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", *lines, ""]) if file.tell() else "\n".join([*lines, ""]))


class AgentsUpdate(Params):
    agent_id: NonEmpty
    name: NonEmpty | None = None
    workspace: NonEmpty | None = None
    model: NonEmpty | None = None
    avatar: NonEmpty | None = None


@method("agents.update", AgentsUpdate)
async def update(call: Call) -> Any:
    params: AgentsUpdate = call.params
    gateway = call.gateway
    agent_id = _known(gateway, params.agent_id)
    listed = _listed(gateway) or [{"id": agent_id}]
    changes = {
        name: value
        for name, value in (("name", params.name), ("workspace", params.workspace), ("model", params.model))
        if value
    }
    for entry in listed:
        if normalize_agent_id(str(entry.get("id"))) == agent_id:
            entry.update(changes)
            if params.avatar:
                entry["identity"] = {**entry.get("identity", {}), "avatar": params.avatar}
    await _write(gateway, {"agents": {"list": listed}})
    return {"ok": True, "agentId": agent_id}


class AgentsDelete(Params):
    agent_id: NonEmpty
    delete_files: bool = True


@method("agents.delete", AgentsDelete)
async def delete(call: Call) -> Any:
    """Takes an agent out of the configuration; its files go to the trash folder, from where they can be fetched."""
    params: AgentsDelete = call.params
    gateway = call.gateway
    agent_id = _known(gateway, params.agent_id)
    if agent_id == RESERVED:
        raise MethodError('"main" cannot be deleted')
    parsed = gateway.config.snapshot.parsed
    listed = [entry for entry in _listed(gateway) if normalize_agent_id(str(entry.get("id"))) != agent_id]
    bindings: list[Any] = list(parsed.get("bindings") or [])
    kept = [one for one in bindings if normalize_agent_id(str(one.get("agentId"))) != agent_id]
    workspace = workspace_dir(gateway.config.current, gateway.state_dir, agent_id)
    await _write(gateway, {"agents": {"list": listed}, **({"bindings": kept} if kept != bindings else {})})
    if params.delete_files:
        stamp = iso_utc(gateway.clock.now_ms()).replace(":", "-")
        trash = Path(gateway.state_dir) / "trash" / f"{agent_id}-{stamp}"
        own = [path for path in (workspace, Path(agent_dir(gateway.state_dir, agent_id))) if _is_ours(gateway, path)]
        await asyncio.to_thread(_throw_away, own, trash)
    return {"ok": True, "agentId": agent_id, "removedBindings": len(bindings) - len(kept)}


def _is_ours(gateway: Gateway, path: Path) -> bool:
    """Only folders inside the state directory are moved; a project folder used as a workspace is left alone."""
    state = os.path.realpath(gateway.state_dir)
    return os.path.realpath(path).startswith(state + os.sep)


def _throw_away(paths: list[Path], trash: Path) -> None:
    for path in paths:
        if path.exists():
            make_private_dir(str(trash))
            shutil.move(path, trash / path.name)


class AgentsBind(Params):
    agent_id: NonEmpty
    channel: NonEmpty
    account_id: NonEmpty | None = None
    peer_kind: NonEmpty | None = None
    peer_id: NonEmpty | None = None


@method("agents.bind", AgentsBind, access="admin")
async def bind(call: Call) -> Any:
    """Messages of this channel (account, chat) go to this agent."""
    params: AgentsBind = call.params
    gateway = call.gateway
    agent_id = _known(gateway, params.agent_id)
    match: dict[str, Any] = {"channel": params.channel.strip().lower()}
    if params.account_id:
        match["accountId"] = params.account_id
    if params.peer_id:
        match["peer"] = {"kind": params.peer_kind or "direct", "id": params.peer_id}
    binding = {"agentId": agent_id, "match": match}
    bindings: list[Any] = list(gateway.config.snapshot.parsed.get("bindings") or [])
    if binding in bindings:
        return {"ok": True, "agentId": agent_id, "binding": binding, "added": False}
    await _write(gateway, {"bindings": [*bindings, binding]})
    return {"ok": True, "agentId": agent_id, "binding": binding, "added": True}


def _known(gateway: Gateway, name: str) -> str:
    agent_id = normalize_agent_id(name)
    if agent_id not in agent_ids(gateway.config.current):
        raise MethodError(f'unknown agent id "{agent_id}"')
    return agent_id


def _listed(gateway: Gateway) -> list[dict[str, Any]]:
    agents = gateway.config.snapshot.parsed.get("agents") or {}
    return [dict(entry) for entry in agents.get("list") or [] if isinstance(entry, dict)]


async def _write(gateway: Gateway, patch: dict[str, Any]) -> None:
    store = gateway.config
    try:
        await asyncio.to_thread(store.merge_patch, msgspec.to_builtins(patch), store.snapshot.hash)
    except ConfigInvalid as invalid:
        issues = [{"path": issue.path, "message": issue.message} for issue in invalid.issues]
        raise MethodError("invalid config", details={"issues": issues}) from None
    await store.reload()
