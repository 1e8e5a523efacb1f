"""``/context`` and ``/budget`` as commands."""

from __future__ import annotations

import pytest

from openclaw.inbound.incoming import Handled
from tests.inbound.commands.desk import Desk, MakeDesk


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
    assert (await desk.reply(text) or "").splitlines()[0] == first


async def test_a_window_nobody_stored_is_that_of_the_model(desk: Desk) -> None:
    assert (await desk.reply("/context list") or "").endswith("Session tokens (cached): unknown / ctx=100,000")


async def test_the_budget_is_the_owners(desk: Desk) -> None:
    assert await desk.say("/budget override", owner=False, chat_type="group") == Handled()
    assert await desk.stored() == {}


async def test_without_limits_the_budget_says_so(desk: Desk) -> None:
    assert await desk.reply("/budget") == "💰 No limits are set (agents.defaults.budget)."


async def test_limits_are_shown_lifted_and_put_back(make_desk: MakeDesk) -> None:
    desk = await make_desk({"agents": {"defaults": {"model": "acme/swift-1", "budget": {"dayUsd": 5}}}})
    await desk.spend(6.0)
    assert await desk.reply("/budget") == "💰 Budget\ndayUsd: $6.00 of $5.00 — used up"
    await desk.reply("/budget override")
    assert (await desk.stored())["budgetOverrideUntil"] > desk.clock.now_ms()
    assert "may go on" in (await desk.reply("/budget") or "")
    await desk.reply("/budget enforce")
    assert await desk.stored() == {}
    assert await desk.reply("/budget never") == "⚙️ Usage: /budget [override|enforce]"
