"""``/context`` and ``/budget`` as commands."""

from __future__ import annotations

import pytest

from openclaw.agent.spend.budget import Limit
from openclaw.inbound.commands.context import Handled
from tests.agent.prompt.test_report import report
from tests.inbound.commands.desk import Desk


@pytest.mark.parametrize("text", ["/context", "/context help"])
async def test_context_alone_says_what_it_can_do(desk: Desk, text: str) -> None:
    assert "/context detail" in (await desk.reply(text) or "")


@pytest.mark.parametrize(("text", "first"), [
    ("/context list", "🧠 Context breakdown"),
    ("/context show", "🧠 Context breakdown"),
    ("/context: list", "🧠 Context breakdown"),
    ("/context DETAIL", "🧠 Context breakdown (detailed)"),
    ("/context deep", "🧠 Context breakdown (detailed)"),
    ("/context json", "{"),
])  # fmt: skip
async def test_each_view_has_its_names(desk: Desk, text: str, first: str) -> None:
    desk.report = report()
    assert (await desk.reply(text) or "").splitlines()[0] == first


async def test_a_window_nobody_stored_is_that_of_the_model(desk: Desk) -> None:
    desk.report = report()
    assert (await desk.reply("/context list") or "").endswith("Session tokens (cached): unknown / ctx=200,000")


async def test_the_budget_is_the_owners(desk: Desk) -> None:
    assert await desk.say("/budget override", owner=False) == Handled()
    assert await desk.stored() == {}


async def test_limits_are_shown_lifted_and_put_back(desk: Desk) -> None:
    assert await desk.reply("/budget") == "💰 No limits are set (agents.defaults.budget)."
    desk.limited = [Limit(key="dayUsd", used=6.0, most=5.0, in_money=True)]
    assert await desk.reply("/budget") == "💰 Budget\ndayUsd: $6.00 of $5.00 — used up"
    await desk.reply("/budget override")
    assert (await desk.stored())["budgetOverrideUntil"] > desk.clock.now_ms()
    assert "may go on" in (await desk.reply("/budget") or "")
    await desk.reply("/budget enforce")
    assert await desk.stored() == {}
    assert await desk.reply("/budget never") == "⚙️ Usage: /budget [override|enforce]"
