"""Several accounts on one channel: which of them a reply or a nameless request means."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw.config.agents import default_agent_id
from openclaw.config.schema import Config
from openclaw.paths import normalize_agent_id
from openclaw.sessions.keys import normalize_account_id

DEFAULT = "default"


def default_account_id(config: Config, channel: str, ids: Iterable[str], wanted: str | None = None) -> str:
    """The configured one, else the one bound to the default agent, else ``default``, else the first by name."""
    known = sorted(ids)
    if wanted and normalize_account_id(wanted) in known:
        return normalize_account_id(wanted)
    agent = default_agent_id(config)
    for binding in config.bindings:
        bound = normalize_account_id(binding.match.account_id) if binding.match.account_id else None
        if binding.match.channel == channel and normalize_agent_id(binding.agent_id) == agent and bound in known:
            return bound
    return known[0] if known and DEFAULT not in known else DEFAULT
