"""The plan of a session: where it is stored, and how every turn shows it to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw.sessions.entry import SessionEntry
from openclaw.storage.sessions import SessionStore
from openclaw.tools.plan import PlanStep, is_finished, plan_lines, plan_summary, read_steps

PLAN_TITLE = "Your plan"


class SessionPlans:
    """Keeps the plan in the session's entry, where neither a compaction nor a restart loses it."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def save(self, agent_id: str, session_key: str, steps: Sequence[PlanStep]) -> bool:
        def change(entry: SessionEntry | None) -> SessionEntry | None:
            if entry is None:
                return None
            fields: dict[str, Any] = {name: value for name, value in entry.items() if name != "plan"}
            return SessionEntry(**fields, **({"plan": msgspec.to_builtins(list(steps))} if steps else {}))

        return await self._sessions.update(agent_id, session_key, change) is not None


def plan_of_entry(entry: Mapping[str, Any] | None) -> list[PlanStep]:
    return read_steps((entry or {}).get("plan"))


def plan_facts(entry: Mapping[str, Any] | None) -> list[str]:
    """The lines of the turn facts that show the plan. Empty if there is none, or nothing is left to do."""
    steps = plan_of_entry(entry)
    if not steps or is_finished(steps):
        return []
    return [f"{PLAN_TITLE} ({plan_summary(steps)}); update it with the plan tool:", *plan_lines(steps)]


def renewed_facts(facts: str, entry: Mapping[str, Any] | None, end: str) -> str:
    """Return the turn facts with the plan as it is now. ``end`` is the line that ends them."""
    if not facts.endswith(end):
        return facts
    lines = facts.removesuffix(end).splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith(f"{PLAN_TITLE} (")), len(lines))
    return "\n".join([*lines[:first], *plan_facts(entry), end])
