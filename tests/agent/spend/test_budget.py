"""Limits on spending: each scope in tokens and in money."""

from __future__ import annotations

from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from openclaw.agent.spend.budget import (
    OVERRIDE,
    Spent,
    budget_of,
    end_of_day_ms,
    is_limited,
    limits,
    overridden,
    refusal,
)
from openclaw.agent.spend.spend import Totals
from openclaw.config.load import build
from openclaw.config.schema.agents import Budget
from openclaw.messages import Cost, Usage
from openclaw.sessions.entry import SessionEntry

SPENT = Spent(
    run=Usage(total_tokens=10, cost=Cost(total=0.1)),
    session=Totals(total_tokens=100, total_cost=1.0),
    day=Totals(total_tokens=1000, total_cost=10.0, missing_cost_entries=2),
)


@pytest.mark.parametrize(
    ("setting", "used"),
    [
        ({"run_tokens": 10}, 10),
        ({"run_usd": 0.1}, 0.1),
        ({"session_tokens": 100}, 100),
        ({"session_usd": 1.0}, 1.0),
        ({"day_tokens": 1000}, 1000),
        ({"day_usd": 10.0}, 10.0),
    ],
)
def test_each_limit_looks_at_its_own_sum_and_holds_from_the_moment_it_is_reached(
    setting: dict[str, Any], used: float
) -> None:
    (found,) = limits(Budget(**setting), SPENT)
    assert found.used == used and found.reached
    (name,) = setting
    (roomy,) = limits(Budget(**{name: setting[name] * 2}), SPENT)
    assert not roomy.reached and refusal([roomy]) is None


def test_the_notice_says_which_limit_and_what_an_owner_can_do() -> None:
    text = refusal(limits(Budget(session_tokens=1_000_000, day_usd=5.0), SPENT))
    assert text is not None
    assert text.startswith(
        "This agent has used up its budget today: $10.00 of $5.00 (2 calls of unknown price not counted)"
    )
    assert "agents.defaults.budget.dayUsd" in text and "/budget override" in text


def test_without_limits_nothing_is_looked_at() -> None:
    assert not is_limited(Budget())
    assert limits(Budget(), SPENT) == []


def test_an_agents_own_limits_stand_beside_the_default_ones() -> None:
    config = build(
        {
            "agents": {
                "defaults": {"budget": {"dayUsd": 5}},
                "list": [{"id": "main"}, {"id": "thrifty", "budget": {"runTokens": 9}}],
            }
        }
    )
    assert budget_of(config, "main") == Budget(day_usd=5)
    assert budget_of(config, "thrifty") == Budget(run_tokens=9, day_usd=5)


def test_an_override_ends_with_the_day_of_the_user() -> None:
    noon = 1_794_744_000_000  # 2026-11-15T12:00:00Z
    assert end_of_day_ms(noon, UTC) == noon + 12 * 3_600_000
    assert end_of_day_ms(noon, ZoneInfo("America/New_York")) == noon + 17 * 3_600_000
    entry: Any = SessionEntry(sessionId="s")
    assert not overridden(entry, noon)
    entry[OVERRIDE] = noon + 1
    assert overridden(entry, noon) and not overridden(entry, noon + 1)
