"""Limits on spending: each scope in tokens and in money."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.agent.spend.budget import (
    OVERRIDE,
    Reserved,
    Spent,
    affordable_output,
    budget_of,
    end_of_day_ms,
    is_limited,
    limits,
    overridden,
    refusal,
    reset_text,
)
from openclaw.agent.spend.spend import CallEstimate, Reservation, Reservations, Totals, most_output
from openclaw.config.load import build
from openclaw.config.schema.agents import Budget
from openclaw.messages import (
    AssistantMessage,
    Cost,
    Message,
    TextBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from openclaw.models.base import Model, ModelRequest, Price
from openclaw.models.calls import wire_body
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
def test_each_limit_looks_at_its_own_sum(setting: dict[str, Any], used: float) -> None:
    (found,) = limits(Budget(**setting), SPENT)
    assert found.used == used and found.reached
    (name,) = setting
    (roomy,) = limits(Budget(**{name: setting[name] * 2}), SPENT)
    assert not roomy.reached


CALL = CallEstimate(prompt=1000, output=8000, price=Price(input=10, output=100))
"""A prompt for 1 cent and an answer of up to 80 cents."""


@pytest.mark.parametrize(
    ("budget", "output"),
    [
        (Budget(), 8000),
        (Budget(day_usd=100), 8000),
        (Budget(day_usd=10 + 0.41), 4000),  # What is left after the prompt: 40 cents.
        (Budget(day_usd=10 + 0.81), 4096),  # The whole would fit, and would leave nothing for others.
        (Budget(day_usd=10 + 2.01), 5000),  # A quarter of what is left.
        (Budget(day_usd=10 + 0.01), 0),
        (Budget(day_usd=5), -50_100),
        (Budget(session_tokens=100 + 1300), 300),
        (Budget(run_tokens=10 + 1300, session_tokens=100 + 1500), 300),
        (Budget(day_tokens=1_000_000, session_usd=1 + 0.04), 300),
    ],
)
def test_a_call_gets_as_much_output_as_every_limit_leaves_and_no_more_than_its_share(
    budget: Budget, output: int
) -> None:
    assert affordable_output(limits(budget, SPENT), CALL)[0] == pytest.approx(output, abs=1)


def test_calls_under_way_count_in_their_scopes() -> None:
    mine = Reservation(agent_id="main", family="s", tokens=500, usd=1.0)
    other = Reservation(agent_id="main", family="t", tokens=70, usd=2.0)
    session, day = limits(Budget(session_usd=5, day_tokens=5000), SPENT, Reserved(session=[mine], day=[mine, other]))
    assert (session.used, session.reserved, session.under_way, session.left) == (1.0, 1.0, 1, 3.0)
    assert (day.used, day.reserved, day.under_way, day.left) == (1000, 570, 2, 3430)


def test_the_notice_says_which_limit_what_is_used_and_reserved_and_when_it_counts_anew() -> None:
    reserved = Reserved(day=[Reservation(agent_id="main", family="t", tokens=70, usd=0.2)])
    (limit,) = limits(Budget(day_usd=10.2), SPENT, reserved)
    text = refusal(limit, CALL, reset_text(limit.key, 1_794_744_000_000, UTC))
    assert text.startswith(
        "This agent has too little left of its budget today: $10.00 of $10.20 (2 calls of unknown price not counted), "
        "$0.20 reserved by 1 call under way (agents.defaults.budget.dayUsd); this call needs at least $0.04. Nothing "
        "was asked of the model. It resets at 2026-11-16 00:00 (UTC)."
    )
    assert "/budget override" in text
    (limit,) = limits(Budget(session_tokens=100), SPENT)
    assert refusal(limit, CALL, "").startswith("This session has used up its budget: 100 of 100 (")


def test_an_estimate_that_was_too_low_is_corrected_for_the_session_and_for_new_ones() -> None:
    book, model = Reservations(), Model(provider="acme", id="m", cost=Price(input=10, output=100, cache_write=20))
    request = ModelRequest(model=model, system="x" * 4000, messages=[UserMessage(content="y" * 400)])
    first = book.estimate(request, "a")
    assert 1100 < first.prompt < 1300 and first.output == 8192
    assert first.prompt_usd == pytest.approx(first.prompt * 20 / 1e6)  # Writing to the cache costs more than reading.
    book.learn(model, "a", first, Usage(input=first.prompt, cache_read=first.prompt))
    twice = 2 * first.prompt
    assert (book.estimate(request, "a").prompt, book.estimate(request, "b").prompt) == (twice, twice)
    book.learn(model, "b", first, Usage(input=first.prompt))
    assert book.estimate(request, "a").prompt == twice > book.estimate(request, "b").prompt


@given(st.lists(st.text(alphabet='ab \n"\\é漢🦞', max_size=300), min_size=1, max_size=8), st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_a_prompt_is_never_estimated_below_its_size_on_the_wire(said: list[str], system: str) -> None:
    model = Model(provider="acme", id="m", api="anthropic-messages")
    messages: list[Message] = []
    for number, text in enumerate(said):
        messages.append(UserMessage(content=[TextBlock(text=text or ".")]))
        call = ToolCall(id=f"toolu_{number}", name="read", arguments={"path": text})
        messages.append(AssistantMessage(content=[TextBlock(text="Yes."), call], stop_reason="toolUse"))
        messages.append(ToolResultMessage(tool_call_id=call.id, tool_name="read", content=[TextBlock(text=text)]))
    tools = [ToolSpec(name="read", description="Reads.", parameters={"type": "object", "properties": {}})]
    request = ModelRequest(model=model, system=system or ".", messages=messages, tools=tools)
    wire = wire_body(request)
    assert wire is not None and Reservations().estimate(request, "a").prompt >= len(wire) // 4


@pytest.mark.parametrize("api", ["anthropic-messages", "openai-completions", "openai-responses"])
@pytest.mark.parametrize("thinking", ["off", "high"])
def test_the_output_limit_of_a_capped_request_holds_on_every_wire(api: str, thinking: Any) -> None:
    model = Model(provider="acme", id="m", api=api, reasoning=True, max_tokens=64_000)
    request = ModelRequest(
        model=model, system="s", messages=[UserMessage(content=[TextBlock(text="hi")])], thinking=thinking
    )
    for wanted, most in ((request, most_output(request)), (msgspec.structs.replace(request, output_room=5000), 5000)):
        body = json.loads(wire_body(wanted) or b"{}")
        sent = [body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body]
        assert sent == [most]


def test_without_limits_nothing_is_looked_at() -> None:
    assert not is_limited(build({}), "main")
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
