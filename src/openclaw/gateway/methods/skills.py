"""``skills.status``: the skills an agent has, and what those that cannot be used lack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from openclaw.agent.skills.library import BUNDLED, SkillVerdict, judged_skills, managed_dir
from openclaw.agent.skills.skill_file import SkillNeeds
from openclaw.config.agents import agent_ids, default_agent_id, workspace_dir
from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, MethodError, method
from openclaw.paths import normalize_agent_id


class SkillsStatus(Params):
    agent_id: str | None = None


@method("skills.status", SkillsStatus)
async def status(call: Call) -> Any:
    params: SkillsStatus = call.params
    gateway = call.gateway
    config = gateway.config.current
    agent_id = normalize_agent_id(params.agent_id) if params.agent_id else default_agent_id(config)
    if agent_id not in agent_ids(config):
        raise MethodError(f'unknown agent id "{params.agent_id}"; agents.list names the agents there are')
    verdicts, problems = await asyncio.to_thread(judged_skills, config, gateway.state_dir, agent_id, gateway.environ)
    return {
        "workspaceDir": str(workspace_dir(config, gateway.state_dir, agent_id)),
        "managedSkillsDir": str(managed_dir(gateway.state_dir)),
        "skills": [skill_row(verdict) for verdict in verdicts],
        "problems": [{"path": problem.path, "reason": problem.reason} for problem in problems],
    }


def skill_row(verdict: SkillVerdict) -> dict[str, Any]:
    skill = verdict.skill
    row: dict[str, Any] = {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "bundled": skill.source == BUNDLED,
        "filePath": skill.path,
        "baseDir": str(Path(skill.path).parent),
        "skillKey": skill.key,
        "always": skill.always,
        "disabled": verdict.disabled,
        "blockedByAllowlist": verdict.blocked,
        "eligible": verdict.eligible,
        "modelInvocable": not skill.hidden,
        "requirements": _needs(skill.needs),
        "missing": _needs(verdict.missing),
        "configChecks": [
            {"path": path, "satisfied": path not in verdict.missing.config} for path in skill.needs.config
        ],
        "install": list(skill.install),
    }
    given = {"emoji": skill.emoji, "homepage": skill.homepage, "primaryEnv": skill.primary_env}
    return {**row, **{name: value for name, value in given.items() if value}}


def _needs(needs: SkillNeeds) -> dict[str, list[str]]:
    return {
        "bins": list(needs.bins),
        "anyBins": list(needs.any_bins),
        "env": list(needs.env),
        "config": list(needs.config),
        "os": list(needs.os),
    }
