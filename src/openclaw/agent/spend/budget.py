"""Hard limits on what agents may spend. They are checked before every model call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.report import DAY_MS, last_days, prices, transcript_path
from openclaw.agent.spend.spend import FileSpend, Totals, total_of
from openclaw.config.agents import agent_config, user_zone
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Budget
from openclaw.messages import Usage
from openclaw.models.base import ModelError
from openclaw.outbound.usage_text import money, token_count
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.base import SessionRow

OVERRIDE = "budgetOverrideUntil"
"""The field of a session's entry that suspends all limits until the time it holds."""
_SCOPES = (("run", "This run"), ("session", "This session"), ("day", "This agent"))
"""The scopes in the order in which they are checked, each with the words for it in a refusal."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent in each of the three scopes."""

    run: Usage | None = None
    session: Totals
    """The session and its sub-agents."""
    day: Totals
    """All sessions of the agent today."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and how far it is used up."""

    key: str
    """The name of its field in ``agents.defaults.budget``."""
    used: float
    most: float
    in_money: bool
    unpriced: int = 0
    """The number of calls whose price is unknown. A limit in money does not count them."""

    @property
    def reached(self) -> bool:
        return self.used >= self.most

    @property
    def text(self) -> str:
        show = money if self.in_money else lambda count: token_count(int(count))
        unseen = f" ({self.unpriced} calls of unknown price not counted)" if self.unpriced else ""
        return f"{show(self.used)} of {show(self.most)}{unseen}"


def budget_of(config: Config, agent_id: str) -> Budget:
    agent = agent_config(config, agent_id)
    return agent.budget if agent and agent.budget else config.agents.defaults.budget


def is_limited(budget: Budget) -> bool:
    return any(getattr(budget, name) is not None for name in budget.__struct_fields__)


def limits(budget: Budget, spent: Spent) -> list[Limit]:
    """The limits that are set, in the order run, session, day."""
    run = spent.run or Usage()
    used = {
        "run": (run.total_tokens, run.cost.total, 0),
        "session": (spent.session.total_tokens, spent.session.total_cost, spent.session.missing_cost_entries),
        "day": (spent.day.total_tokens, spent.day.total_cost, spent.day.missing_cost_entries),
    }
    found: list[Limit] = []
    for scope, _ in _SCOPES:
        tokens, dollars, unpriced = used[scope]
        if (most := getattr(budget, f"{scope}_tokens")) is not None:
            found.append(Limit(key=f"{scope}Tokens", used=tokens, most=most, in_money=False))
        if (most := getattr(budget, f"{scope}_usd")) is not None:
            found.append(Limit(key=f"{scope}Usd", used=dollars, most=most, in_money=True, unpriced=unpriced))
    return found


def refusal(found: list[Limit]) -> str | None:
    """The notice for the first limit that is reached; None if none is."""
    reached = next((limit for limit in found if limit.reached), None)
    if reached is None:
        return None
    who = next(words for scope, words in _SCOPES if reached.key.startswith(scope))
    today = " today" if reached.key.startswith("day") else ""
    return (
        f"{who} has used up its budget{today}: {reached.text} (agents.defaults.budget.{reached.key}). Nothing more was "
        "asked of the model. An owner can send /budget override to go on in this session for today, or raise the limit."
    )


def end_of_day_ms(now_ms: int, zone: tzinfo | None) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp() * 1000)


async def family_of(runtime: Runtime, session_key: str) -> list[SessionRow]:
    """The session that a person talks to and its sub-agents, given any of them. They share the limits."""
    rows = {row.key: row for row in await runtime.sessions.rows()}
    own = rows.get(session_key)
    head = own.entry.get("spawnedBy", session_key) if own is not None else session_key
    return [row for key, row in rows.items() if key == head or row.entry.get("spawnedBy") == head]


async def spent_so_far(
    runtime: Runtime, transcript: Path, family: Sequence[SessionRow] = (), run: Usage | None = None
) -> Spent:
    """What the transcripts say by now. This includes the finished calls of runs that are still going on."""
    now = runtime.clock.now_ms()
    days = last_days(now, 1, user_zone(runtime.config.current))
    price_of = prices(runtime.catalogue())
    paths = (transcript_path(runtime, SessionRef(row.agent_id, row.key), row.entry) for row in family)
    together = {transcript, *(path for path in paths if path is not None)}

    def add_up(found: dict[Path, FileSpend]) -> Spent:
        session = total_of((found[path] for path in together if path in found), price_of)
        agents = [spend for path, spend in found.items() if path == transcript or path.parent == transcript.parent]
        return Spent(run=run, session=session, day=total_of(agents, price_of, days))

    return await runtime.spending.compute(add_up, [*together, transcript.parent], now - 2 * DAY_MS)


async def limits_of(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> list[Limit]:
    """The limits of the session's agent and how far they are used up. Empty: none are set."""
    budget = budget_of(runtime.config.current, session.agent_id)
    if not is_limited(budget):
        return []
    # The folder of the transcript tells which agent's day is added up, also when there is no transcript yet.
    nothing = Path(sessions_dir(str(runtime.state_dir), session.agent_id), "none.jsonl")
    transcript = transcript_path(runtime, session, entry) or nothing
    return limits(budget, await spent_so_far(runtime, transcript, await family_of(runtime, session.key)))


def overridden(entry: SessionEntry | None, now_ms: int) -> bool:
    fields: dict[str, Any] = dict(entry or {})
    until = fields.get(OVERRIDE)
    return isinstance(until, int) and now_ms < until


async def check_budget(runtime: Runtime, agent_id: str, session_key: str, transcript: Path, run: Usage | None) -> None:
    """Raises ``ModelError`` if a limit is reached and the session has no override."""
    budget = budget_of(runtime.config.current, agent_id)
    family = await family_of(runtime, session_key)
    if not any(overridden(row.entry, runtime.clock.now_ms()) for row in family):
        problem = refusal(limits(budget, await spent_so_far(runtime, transcript, family, run)))
        if problem is not None:
            raise ModelError(problem, kind="budget")
