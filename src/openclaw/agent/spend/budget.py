"""Hard limits on what agents may spend, looked at before every model call of every run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import Days, FileSpend, PriceOf, Totals, total_of
from openclaw.config.agents import agent_config, user_zone
from openclaw.config.schema import Budget, Config
from openclaw.messages import Usage
from openclaw.models.base import ModelError, Price
from openclaw.models.catalogue import UnknownModel
from openclaw.outbound.usage_text import money, token_count
from openclaw.sessions.entry import SessionEntry
from openclaw.storage.base import SessionRow, TranscriptRef

OVERRIDE = "budgetOverrideUntil"
"""The field of a session's entry that lets it go on past every limit until that moment."""
_SCOPES = (("run", "This run"), ("session", "This session"), ("day", "This agent"))


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    run: Usage | None = None
    session: Totals
    day: Totals


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and how far it is used up."""

    key: str
    """Its name under ``agents.defaults.budget``."""
    used: float
    most: float
    in_money: bool
    unpriced: int = 0
    """Calls whose price is unknown and which a limit in money therefore does not see."""

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
    """Those that are set, in the order run, session, day."""
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
    """The one notice, for the first limit that is reached."""
    reached = next((limit for limit in found if limit.reached), None)
    if reached is None:
        return None
    who = next(words for scope, words in _SCOPES if reached.key.startswith(scope))
    today = " today" if reached.key.startswith("day") else ""
    return (
        f"{who} has used up its budget{today}: {reached.text} (agents.defaults.budget.{reached.key}). Nothing more was "
        "asked of the model. An owner can send /budget override to go on in this session for today, or raise the limit."
    )


# Looking


def today(now_ms: int, zone: tzinfo | None) -> Days:
    day = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone).date().isoformat()
    return Days(day, day, zone)


def end_of_day_ms(now_ms: int, zone: tzinfo | None) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp() * 1000)


async def family_of(runtime: Runtime, session_key: str) -> list[SessionRow]:
    """The session a person talks to and the sub-agents it sent out, whichever of them asks: they share its limits."""
    rows = {row.key: row for row in await runtime.sessions.rows()}
    own = rows.get(session_key)
    head = own.entry.get("spawnedBy", session_key) if own is not None else session_key
    return [row for key, row in rows.items() if key == head or row.entry.get("spawnedBy") == head]


async def spent_so_far(
    runtime: Runtime, transcript: Path, family: Sequence[SessionRow] = (), run: Usage | None = None
) -> Spent:
    """Read from the transcripts: what every run of the agent has stored by now, also those at work."""
    config, now = runtime.config.current, runtime.clock.now_ms()
    days, price_of = today(now, user_zone(config)), _prices(runtime)
    together = {transcript, *(path for row in family if (path := _path_of(runtime, row)) is not None)}

    def add_up(found: dict[Path, FileSpend]) -> Spent:
        session = total_of((found[path] for path in together if path in found), price_of)
        agents = [spend for path, spend in found.items() if path == transcript or path.parent == transcript.parent]
        return Spent(run=run, session=session, day=total_of(agents, price_of, days))

    return await runtime.spending.reckon(add_up, [*together, transcript.parent], now - 2 * 86_400_000)


def _path_of(runtime: Runtime, row: SessionRow) -> Path | None:
    ref = TranscriptRef(agent_id=row.agent_id, session_id=row.entry["sessionId"], file=row.entry.get("sessionFile"))
    found = runtime.transcripts.locate(ref)
    return Path(found) if found else None


def _prices(runtime: Runtime) -> PriceOf:
    catalogue = runtime.catalogue()

    def price_of(provider: str, model: str) -> Price | None:
        try:
            return catalogue.resolve(f"{provider}/{model}").cost
        except UnknownModel:
            return None

    return price_of


def overridden(entry: SessionEntry | None, now_ms: int) -> bool:
    fields: dict[str, Any] = dict(entry or {})
    until = fields.get(OVERRIDE)
    return isinstance(until, int) and now_ms < until


async def check_budget(runtime: Runtime, agent_id: str, session_key: str, transcript: Path, run: Usage | None) -> None:
    """Raises ``ModelError`` when nothing more may be asked of a model."""
    budget = budget_of(runtime.config.current, agent_id)
    family = await family_of(runtime, session_key)
    if not any(overridden(row.entry, runtime.clock.now_ms()) for row in family):
        problem = refusal(limits(budget, await spent_so_far(runtime, transcript, family, run)))
        if problem is not None:
            raise ModelError(problem, kind="billing")
