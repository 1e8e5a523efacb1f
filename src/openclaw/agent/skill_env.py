"""The variables that ``skills.entries`` gives to skills: commands of the agent find them in their environment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from openclaw.agent.skill_gate import Verdict
from openclaw.config.schema import Config
from openclaw.config.secrets import SecretUnavailable, resolve_secret

log = logging.getLogger("openclaw.agents.skills")


def skill_environment(verdicts: Iterable[Verdict], config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """``env`` and ``apiKey`` of every skill that can be used. What the Gateway's own environment says counts more.

    Blocking: a key may be in a file or come from a program.
    """
    given: dict[str, str] = {}
    for verdict in verdicts:
        settings = config.skills.entries.get(verdict.skill.key)
        if settings is None or not verdict.eligible:
            continue
        for name, value in settings.env.items():
            if value and not environ.get(name):
                given.setdefault(name, value)
        name = verdict.skill.primary_env
        if not name or settings.api_key is None or environ.get(name) or name in given:
            continue
        try:
            if key := resolve_secret(settings.api_key, environ, f"skills.entries.{verdict.skill.key}.apiKey"):
                given[name] = key
        except SecretUnavailable as problem:
            log.warning("%s", problem)
    return given
