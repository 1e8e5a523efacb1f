"""What a node may ask."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.agent.skills.library import find_skills, skill_folders
from openclaw.config.agents import agent_ids
from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method


class SkillsBins(Params):
    pass


@method("skills.bins", SkillsBins)
async def skills_bins(call: Call) -> Any:
    """Programs that the agents' skills ask for, whether installed here or not."""
    gateway = call.gateway
    config = gateway.config.current
    bins: set[str] = set()
    for agent_id in agent_ids(config):
        library = await asyncio.to_thread(find_skills, skill_folders(config, gateway.state_dir, agent_id))
        for skill in library.skills:
            bins.update(skill.needs.bins, skill.needs.any_bins)
    return {"bins": sorted(bins)}
