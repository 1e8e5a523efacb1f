"""Hard limits on what agents may spend. No call is made that could exceed one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import (
    DAY_MS,
    EXPECTED_OUTPUT,
    LEAST_OUTPUT,
    CallEstimate,
    FileSpend,
    Reservation,
    Totals,
    agent_bill,
    last_days,
    prices,
    sum_of,
    total_of,
    transcript_path,
)
from openclaw.config.agents import agent_config, user_zone
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Budget
from openclaw.messages import Usage
from openclaw.models.base import ModelError, added
from openclaw.outbound.reply import money, token_count
from openclaw.paths import sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.base import SessionRow
from openclaw.storage.session_query import SessionQuery

OVERRIDE = "budgetOverrideUntil"
"""The field of a session's entry that suspends all limits until the time it holds."""
MOST_LOOKS = 4
"""How often the sums are read again because a call ended meanwhile."""
_SCOPES = (("run", "This run"), ("session", "This session"), ("day", "This agent"))
"""The scopes in the order in which they are checked, each with the words for it in a refusal."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent in each of the three scopes."""

    run: Usage | None = None
    session: Totals
    """The session and its sub-agents."""
    day: Totals
    """All sessions of the agent today."""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What calls under way may cost in the scopes that several calls share."""

    session: Sequence[Reservation] = ()
    day: Sequence[Reservation] = ()


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and how far it is used up."""

    key: str
    """The name of its field in ``agents.defaults.budget``."""
    used: float
    most: float
    in_money: bool
    unpriced: int = 0
    """The number of calls whose price is unknown. A limit in money does not count them."""
    reserved: float = 0
    """What calls that are under way may cost."""
    under_way: int = 0
    """The number of these calls."""

    @property
    def left(self) -> float:
        return self.most - self.used - self.reserved

    @property
    def reached(self) -> bool:
        return self.used >= self.most

    @property
    def text(self) -> str:
        unseen = f" ({self.unpriced} calls of unknown price not counted)" if self.unpriced else ""
        calls = "1 call" if self.under_way == 1 else f"{self.under_way} calls"
        waiting = f", {self.show(self.reserved)} reserved by {calls} under way" if self.under_way else ""
        return f"{self.show(self.used)} of {self.show(self.most)}{unseen}{waiting}"

    def show(self, amount: float) -> str:
        return money(amount) if self.in_money else token_count(int(amount))

    def output_left(self, call: CallEstimate) -> float:
        """How many tokens of an answer the limit leaves after the prompt of the call."""
        if not self.in_money:
            return self.left - call.prompt
        left, price = self.left - call.prompt_usd, call.output_usd
        return left / price if price > 0 else math.inf if left >= 0 else -1


def budget_of(config: Config, agent_id: str) -> Budget:
    agent = agent_config(config, agent_id)
    return agent.budget if agent and agent.budget else config.agents.defaults.budget


def is_limited(config: Config, agent_id: str) -> bool:
    """Whether the agent has any limit."""
    budget = budget_of(config, agent_id)
    return any(getattr(budget, name) is not None for name in budget.__struct_fields__)


def limits(budget: Budget, spent: Spent, reserved: Reserved | None = None) -> list[Limit]:
    """The limits that are set, in the order run, session, day."""
    run, under_way = spent.run or Usage(), reserved or Reserved()
    used = {
        "run": (run.total_tokens, run.cost.total, 0),
        "session": (spent.session.total_tokens, spent.session.total_cost, spent.session.missing_cost_entries),
        "day": (spent.day.total_tokens, spent.day.total_cost, spent.day.missing_cost_entries),
    }
    waiting = {"run": sum_of(()), "session": sum_of(under_way.session), "day": sum_of(under_way.day)}
    found: list[Limit] = []
    for scope, _ in _SCOPES:
        (tokens, dollars, unpriced), (more_tokens, more_dollars, calls) = used[scope], waiting[scope]
        if (most := getattr(budget, f"{scope}_tokens")) is not None:
            limit = Limit(key=f"{scope}Tokens", used=tokens, most=most, in_money=False)
            found.append(msgspec.structs.replace(limit, reserved=more_tokens, under_way=calls))
        if (most := getattr(budget, f"{scope}_usd")) is not None:
            limit = Limit(key=f"{scope}Usd", used=dollars, most=most, in_money=True, unpriced=unpriced)
            found.append(msgspec.structs.replace(limit, reserved=more_dollars, under_way=calls))
    return found


def affordable_output(found: Sequence[Limit], call: CallEstimate) -> tuple[int, Limit | None]:
    """How many output tokens the call may reserve, and the limit that allows the fewest."""
    if not found:
        return call.output, None
    tightest = min(found, key=lambda limit: limit.output_left(call))
    left = tightest.output_left(call)
    return int(min(call.output, left, max(EXPECTED_OUTPUT, left / 4))), tightest


def refusal(limit: Limit, call: CallEstimate, resets: str) -> str:
    """The notice for a call that the limit does not allow. ``resets`` says when the limit holds anew."""
    who = next(words for scope, words in _SCOPES if limit.key.startswith(scope))
    today = " today" if limit.key.startswith("day") else ""
    least = min(call.output, LEAST_OUTPUT)
    needs = call.prompt_usd + least * call.output_usd if limit.in_money else call.prompt + least
    head = "has used up its budget" if limit.reached else "has too little left of its budget"
    return (
        f"{who} {head}{today}: {limit.text} (agents.defaults.budget.{limit.key}); this call needs at least "
        f"{limit.show(needs)}. Nothing was asked of the model. {resets} An owner can send /budget override to go on in "
        "this session for today, or raise the limit."
    )


def reset_text(key: str, now_ms: int, zone: tzinfo | None) -> str:
    """When a limit holds anew, for people."""
    if key.startswith("day"):
        midnight = datetime.fromtimestamp(end_of_day_ms(now_ms, zone) / 1000, UTC).astimezone(zone)
        return f"It counts anew from {midnight:%Y-%m-%d %H:%M} ({midnight.tzname()})."
    return "It counts anew with a new session (/new)." if key.startswith("session") else "The next message counts anew."


def end_of_day_ms(now_ms: int, zone: tzinfo | None) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp() * 1000)


async def family_of(runtime: Runtime, session_key: str) -> tuple[str, list[SessionRow]]:
    """The key of the session that a person talks to, with its row and those of its sub-agents. They share limits."""
    select = runtime.sessions.select
    own = (await select(SessionQuery(key=session_key, limit=1))).rows
    head = own[0].entry.get("spawnedBy", session_key) if own else session_key
    heads = own if head == session_key else (await select(SessionQuery(key=head, limit=1))).rows
    return head, [*heads, *(await select(SessionQuery(spawned_by=head))).rows]


async def spent_so_far(
    runtime: Runtime, transcript: Path, family: Sequence[SessionRow] = (), run: Usage | None = None
) -> Spent:
    """What the transcripts say by now. This includes the finished calls of runs that are still going on."""
    now = runtime.clock.now_ms()
    days = last_days(now, 1, user_zone(runtime.config.current))
    price_of = prices(runtime.catalogue())
    paths = [await transcript_path(runtime, SessionRef(row.agent_id, row.key), row.entry) for row in family]
    together = {transcript, *(path for path in paths if path is not None)}
    folder = transcript.parent
    bill = agent_bill(folder)

    def add_up(found: dict[Path, FileSpend]) -> Spent:
        session = total_of((found[path] for path in together if path in found), price_of)
        agents = [spend for path, spend in found.items() if path in (transcript, bill) or path.parent == folder]
        return Spent(run=run, session=session, day=total_of(agents, price_of, days))

    return await runtime.spending.compute(add_up, [*together, folder, bill], now - 2 * DAY_MS)


async def limits_of(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> list[Limit]:
    """The limits of the session's agent and how far they are used up. Empty: none are set."""
    if not is_limited(runtime.config.current, session.agent_id):
        return []
    # The folder of the transcript tells which agent's day is added up, also when there is no transcript yet.
    nothing = Path(sessions_dir(str(runtime.state_dir), session.agent_id), "none.jsonl")
    transcript = await transcript_path(runtime, session, entry) or nothing
    head, family = await family_of(runtime, session.key)
    reserved = _reserved(runtime.spending.reservations.held(), session.agent_id, head)
    budget = budget_of(runtime.config.current, session.agent_id)
    return limits(budget, await spent_so_far(runtime, transcript, family), reserved)


def overridden(entry: SessionEntry | None, now_ms: int) -> bool:
    fields: dict[str, Any] = dict(entry or {})
    until = fields.get(OVERRIDE)
    return isinstance(until, int) and now_ms < until


class RunBill:
    """What the model calls of one run used together, also those for summaries, notes and embeddings."""

    def __init__(self) -> None:
        self.spent: Usage | None = None

    def add(self, usage: Usage) -> None:
        self.spent = added(self.spent, usage)


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays for a call."""

    agent_id: str
    session_key: str
    transcript: Path
    bill: RunBill = msgspec.field(default_factory=RunBill)
    """That of the run. It stays empty for calls that belong to no run."""


async def reserve(runtime: Runtime, payer: Payer, call: CallEstimate) -> tuple[Reservation, CallEstimate]:
    """Reserves the cost of a call, with fewer output tokens than asked for if no more can be afforded.

    Raises ``ModelError`` of the kind ``budget`` if the call could exceed a limit and the session has no override.
    """
    config, book, now = runtime.config.current, runtime.spending.reservations, runtime.clock.now_ms()
    head, family = await family_of(runtime, payer.session_key)
    free = any(overridden(row.entry, now) for row in family)
    budget = Budget() if free else budget_of(config, payer.agent_id)
    looks = 0
    while True:
        looks += 1
        before, released = book.held(), book.released
        spent = await spent_so_far(runtime, payer.transcript, family, payer.bill.spent)
        # What was released during the look may be missing in both sums, so it still counts.
        held = list(dict.fromkeys([*before, *book.held()]))
        output, limit = affordable_output(limits(budget, spent, _reserved(held, payer.agent_id, head)), call)
        if output >= min(call.output, LEAST_OUTPUT):
            break
        if limit is not None and (book.released == released or looks == MOST_LOOKS):
            problem = refusal(limit, call, reset_text(limit.key, now, user_zone(config)))
            raise ModelError(problem, kind="budget")
    call = msgspec.structs.replace(call, output=output)
    usd = call.prompt_usd + output * call.output_usd
    reservation = Reservation(agent_id=payer.agent_id, family=head, tokens=call.prompt + output, usd=usd)
    book.hold(reservation)
    return reservation, call


def _reserved(held: Sequence[Reservation], agent_id: str, family: str) -> Reserved:
    return Reserved(
        session=[one for one in held if one.family == family], day=[one for one in held if one.agent_id == agent_id]
    )
