"""``skills.update``: switching a skill on or off, and giving it its key and variables."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.agent.skills.library import find_skills, skill_folders
from openclaw.config.agents import agent_ids
from openclaw.config.issues import ConfigInvalid
from openclaw.config.redact import redacted
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method


class SkillsUpdate(Params):
    skill_key: NonEmpty
    enabled: bool | None = None
    api_key: str | None = None
    """Empty: the key is removed."""
    env: dict[str, str] | None = None
    """Added to what is there; an empty value removes the variable."""


@method("skills.update", SkillsUpdate)
async def update(call: Call) -> Any:
    params: SkillsUpdate = call.params
    key = params.skill_key.strip()
    known = await asyncio.to_thread(_keys, call.gateway)
    if key not in known:
        raise MethodError(f'unknown skill "{key}"; skills.status lists the skills there are, by their skillKey')
    change: dict[str, Any] = {}
    if params.enabled is not None:
        change["enabled"] = params.enabled
    if params.api_key is not None:
        change["apiKey"] = params.api_key.strip() or None
    if params.env is not None:
        change["env"] = {name.strip(): value.strip() or None for name, value in params.env.items() if name.strip()}
    if change:
        await _write(call.gateway, {"skills": {"entries": {key: change}}})
    parsed: Any = call.gateway.config.snapshot.parsed
    shown: Any = redacted(parsed)
    for name in ("skills", "entries", key):
        shown = shown.get(name) or {}
    return {"ok": True, "skillKey": key, "config": shown}


def _keys(gateway: Gateway) -> set[str]:
    config = gateway.config.current
    every = [find_skills(skill_folders(config, gateway.state_dir, agent)).skills for agent in agent_ids(config)]
    return {skill.key for skills in every for skill in skills} | set(config.skills.entries)


async def _write(gateway: Gateway, patch: dict[str, Any]) -> None:
    store = gateway.config
    try:
        await asyncio.to_thread(store.merge_patch, patch, store.snapshot.hash)
    except ConfigInvalid as invalid:
        issues = [{"path": issue.path, "message": issue.message} for issue in invalid.issues]
        raise MethodError("invalid config", details={"issues": issues}) from None
    await store.reload()
