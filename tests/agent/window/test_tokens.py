"""Sizes: what is estimated, what is reported, and how the one learns from the other."""

from __future__ import annotations

import msgspec
import pytest

from openclaw.agent.compaction.compaction import CompactionSettings
from openclaw.agent.window.tokens import (
    GrowingSum,
    PromptBudget,
    TokenMeasure,
    TokenMeasures,
    context_estimate,
    context_tokens,
    message_tokens,
    prompt_budget,
    prompt_tokens,
    reported_prompt,
    text_tokens,
    u16len,
)
from openclaw.agent.window.window import PromptWindow
from openclaw.clock import SystemClock
from openclaw.config.schema.agents import ContextPruning
from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ToolResultMessage, Usage, UserMessage
from openclaw.models.errors import NamedCounts
from tests.agent.scripted import MODEL, call, says

IMAGE = ImageBlock(data="aGk=", mime_type="image/png")


def user(text: str, at: int = 0) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)], timestamp=at)


def answered(total: int, at: int = 0, **fields: object) -> AssistantMessage:
    return AssistantMessage(content=[], usage=Usage(total_tokens=total), timestamp=at, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (user("abc"), 1),
        (user("abcde"), 2),
        (UserMessage(content="abcde"), 2),
        (says("", call("1", "read", path="a.txt")), 5),
        (ToolResultMessage(tool_call_id="1", tool_name="x", content=[IMAGE]), 1200),
        (UserMessage(content=[IMAGE]), 0),
    ],
)
def test_a_message_is_estimated_at_four_characters_per_token(message: Message, tokens: int) -> None:
    assert message_tokens(message) == tokens


def test_a_picture_of_the_user_counts_in_the_prompt_though_not_in_what_is_kept() -> None:
    message = UserMessage(content=[IMAGE])
    assert (message_tokens(message), prompt_tokens([message])) == (0, 1200)


def test_lengths_are_counted_in_utf16_units() -> None:
    assert u16len("a😀") == 3
    assert u16len("\ud800x") == 2
    assert text_tokens("😀😀😀") == 2


@pytest.mark.parametrize(("tokens", "due"), [(180_001, True), (180_000, False)])
def test_compaction_is_due_only_beyond_the_window_less_the_reserve(tokens: int, due: bool) -> None:
    assert (tokens > CompactionSettings(window=200_000, reserve=20_000, keep=1).limit) is due


def test_the_fullness_of_the_window_is_prompt_and_answer() -> None:
    assert context_tokens(Usage(input=1000, output=500, cache_read=200, cache_write=100)) == 1800
    assert context_tokens(Usage(input=1, total_tokens=7)) == 7


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        (Usage(input=100, cache_read=50, cache_write=10, output=999), 160),
        (Usage(input=300, cache_read=50), 200),
        (Usage(output=5, total_tokens=7), 7),
    ],
)
def test_the_size_of_a_prompt_is_what_the_provider_counted_without_the_answer(usage: Usage, shown: int) -> None:
    assert reported_prompt(usage, 200) == shown


def test_the_context_is_the_last_report_and_estimates_of_what_came_after() -> None:
    messages: list[Message] = [user("x" * 4000), answered(777, at=5), user("abcd")]
    assert context_estimate(messages) == 778


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_failed_answers_are_no_measure(reason: str) -> None:
    assert context_estimate([answered(100), user("abcd"), answered(9000, stop_reason=reason)]) == 101


def test_an_answer_from_before_the_compaction_is_no_measure_of_what_is_left() -> None:
    messages: list[Message] = [user("s" * 40, at=10), answered(180_000, at=5), user("abcd", at=20)]
    assert context_estimate(messages, since_ms=10) == 11


def test_a_counted_prompt_has_exactly_that_size_also_when_a_later_count_is_lower() -> None:
    measure = TokenMeasure()
    for counted in (9000, 4000):
        measure.learn(1000, 2000, counted)
        assert prompt_budget(MODEL, 1000, measure).size_of(2000) == counted
    measure.learn(10, 20, 5000)
    assert prompt_budget(MODEL, 1000, measure).size_of(2000) == 4000, "a tiny prompt says nothing"


def test_dense_messages_do_not_make_the_fixed_part_of_the_prompt_larger() -> None:
    measure = TokenMeasure()
    measure.learn(8000, 10, 8800)
    assert prompt_budget(MODEL, 8000, measure).overhead == 8790
    measure.learn(8000, 12_000, 8790 + 60_000)
    budget = prompt_budget(MODEL, 8000, measure)
    assert (budget.overhead, round(budget.density, 2)) == (8790, 5.0)


NO_COUNTS = NamedCounts()


def test_a_refused_prompt_is_larger_than_the_window_afterwards() -> None:
    measure = TokenMeasure()
    measure.refuse(10_000, 140_000, 200_000, NO_COUNTS)
    first = measure.density
    assert prompt_budget(MODEL, 10_000, measure).size_of(140_000) > 200_000
    measure.refuse(10_000, 100_000, 200_000, NO_COUNTS)
    assert measure.density > first


def test_the_count_and_the_limit_that_a_refusal_names_are_believed() -> None:
    measure = TokenMeasure()
    measure.refuse(10_000, 20_000, 200_000, NamedCounts(110_000, 100_000))
    budget = prompt_budget(MODEL, 10_000, measure)
    assert (budget.window, budget.size_of(20_000)) == (100_000, 110_000)
    measure.refuse(10_000, 20_000, 200_000, NamedCounts(90_000, 100_000))
    assert prompt_budget(MODEL, 10_000, measure).size_of(20_000) == 90_000, "only the answer had no room"
    measure.learn(10_000, 20_000, 150_000)
    assert prompt_budget(MODEL, 10_000, measure).window == MODEL.context_window, "the provider took more than it said"


def test_what_one_session_learns_no_other_session_knows() -> None:
    measures = TokenMeasures()
    measures.of("one", MODEL).learn(100, 1000, 4100)
    assert measures.of("one", MODEL).density == 4.0
    assert measures.of("two", MODEL).density == 1.0
    assert measures.of("one", msgspec.structs.replace(MODEL, id="other")).density == 1.0


def test_after_a_restart_the_last_count_in_the_transcript_is_known() -> None:
    said: list[Message] = [user("x" * 4000, at=1), answered(5000, at=2), user("now", at=3)]
    for since, density in ((-1, 5.0), (2, 1.0)):
        measure = TokenMeasure()
        sums = GrowingSum()
        sums.of([*said])
        measure.recall(0, said, msgspec.structs.replace(MODEL, provider="", id=""), since, sums)
        assert measure.density == density
    other = TokenMeasure()
    other.recall(0, said, MODEL, -1, GrowingSum())
    assert other.density == 1.0, "another model counts otherwise"


def test_the_budget_keeps_room_for_the_answer_and_the_fixed_part() -> None:
    measure = TokenMeasure()
    assert prompt_budget(MODEL, 1000, measure).room == 200_000 - 8192 - 1000
    measure.density = 2.0
    assert prompt_budget(MODEL, 1000, measure).room == (200_000 - 8192 - 1000) // 2
    assert PromptBudget(window=100, output=10, overhead=200).room < 0


@pytest.mark.parametrize(("prompt", "room"), [(1000, None), (193_000, 6125), (199_900, 88), (250_000, 10)])
def test_the_answer_gets_what_the_prompt_leaves(prompt: int, room: int | None) -> None:
    found = PromptBudget(window=200_000, output=10, overhead=1000).output_room(prompt - 1000)
    assert (found if found < MODEL.max_tokens else None) == room


def test_a_prompt_is_learnt_from_as_it_was_shown_not_as_it_was_said() -> None:
    said: list[Message] = [UserMessage(content="x" * 4000)]
    shown: list[Message] = [UserMessage(content="x" * 8000)]
    answer = AssistantMessage(content=[], usage=Usage(input=4000))
    for size in (said, shown):
        measure = TokenMeasure()
        view = PromptWindow(MODEL, 0, measure, SystemClock(), pruning=ContextPruning())
        assert view.fits(said)
        view.of(size)
        view.learn(answer)
        assert measure.density == 4000 / prompt_tokens(size)


def test_counting_on_needs_the_same_beginning() -> None:
    first, other, last = (UserMessage(content=text * 40) for text in "abc")
    counted = GrowingSum()
    assert counted.of([first]) == 10
    assert counted.further([other, last]) is None
    assert counted.further([first, last]) == 20
    assert counted.of([other]) == 10
