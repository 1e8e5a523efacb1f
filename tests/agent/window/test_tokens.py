"""Sizes: what is estimated, what is reported, and how the one learns from the other."""

from __future__ import annotations

import msgspec
import pytest

from openclaw.agent.compaction.compaction import should_compact
from openclaw.agent.window.tokens import (
    GrowingSum,
    PromptBudget,
    Scale,
    Scales,
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
    assert should_compact(tokens, 200_000, 20_000) is due


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


def test_estimates_learn_from_reports_at_once_upwards_and_slowly_downwards() -> None:
    scale = Scale()
    assert scale.value == 1.0
    scale.learn(1000, 1500)
    assert scale.value == 1.5
    scale.learn(1000, 1000)
    assert 1.0 < scale.value < 1.5
    scale.learn(10, 1000)
    assert scale.value < 1.5, "a tiny prompt says nothing"


def test_the_first_report_counts_at_once_also_downwards() -> None:
    scale = Scale()
    scale.learn(1000, 800)
    assert scale.value == 0.8


def test_a_refused_prompt_makes_the_next_estimate_larger_than_the_window() -> None:
    scale = Scale()
    scale.too_large(150_000, 200_000)
    assert 150_000 * scale.value > 200_000


def test_what_one_run_learns_of_a_model_the_next_one_knows() -> None:
    scales = Scales()
    scales.of(MODEL).learn(1000, 1500)
    assert scales.of(MODEL).value == 1.5
    assert scales.of(msgspec.structs.replace(MODEL, id="other")).value == 1.0


def test_the_budget_keeps_room_for_the_answer_and_the_fixed_part() -> None:
    budget = prompt_budget(MODEL, overhead=1000)
    assert budget.room == 200_000 - 8192 - 1000
    assert prompt_budget(MODEL, 1000, 2.0).room == (200_000 - 8192) // 2 - 1000
    assert PromptBudget(window=100, output=10, overhead=200).room < 0


def test_a_prompt_is_learnt_from_as_it_was_shown_not_as_it_was_said() -> None:
    said: list[Message] = [UserMessage(content="x" * 4000)]
    shown: list[Message] = [UserMessage(content="x" * 8000)]
    answer = AssistantMessage(content=[], usage=Usage(input=4000))
    for size in (said, shown):
        scale = Scale()
        view = PromptWindow(MODEL, 0, scale, SystemClock(), pruning=ContextPruning())
        assert view.fits(said)
        view.of(size)
        view.learn(answer)
        assert scale.value == 4000 / prompt_tokens(size)


def test_counting_on_needs_the_same_beginning() -> None:
    first, other, last = (UserMessage(content=text * 40) for text in "abc")
    counted = GrowingSum()
    assert counted.of([first]) == 10
    assert counted.further([other, last]) is None
    assert counted.further([first, last]) == 20
    assert counted.of([other]) == 10
