from __future__ import annotations

import pytest

from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model
from openclaw.models.thinking import (
    budget_and_limit,
    clamp,
    clamp_to_model,
    output_limit,
    parse_level,
    reasoning_effort,
    supported_levels,
)

BIG = Model(provider="anthropic", id="claude-sonnet-4-5", api="anthropic-messages", reasoning=True, max_tokens=64_000)


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("off", "off"), ("On", "low"), ("think", "minimal"), ("think-hard", "low"), ("think_hard", "low"),
        ("thinkharder", "medium"), ("mid", "medium"), ("ultra", "high"), ("ultrathink", "high"), ("MAX", "high"),
        ("highest", "high"), ("x-high", "xhigh"), ("extra high", "xhigh"), ("xhigh", "xhigh"), ("banana", None),
        ("", None),
    ],
)  # fmt: skip
def test_people_name_levels_in_many_words(word: str, level: str | None) -> None:
    assert parse_level(word) == level


@pytest.mark.parametrize(
    ("level", "supported", "expected"),
    [
        ("medium", ("low", "medium"), "medium"),
        ("minimal", ("low", "high"), "low"),
        ("medium", ("low", "high"), "high"),
        ("xhigh", ("low", "high"), "high"),
        ("high", ("off",), "off"),
    ],
)
def test_a_level_moves_to_the_next_higher_supported_one_else_lower(
    level: ThinkingLevel, supported: tuple[ThinkingLevel, ...], expected: str
) -> None:
    assert clamp(level, supported) == expected


def test_a_model_that_does_not_reason_is_never_asked_to() -> None:
    assert clamp_to_model("high", Model(provider="p", id="m")) == "off"


def test_off_stays_off_even_where_the_model_always_thinks() -> None:
    always = Model(provider="p", id="m", reasoning=True, compat={"thinkingLevels": ["low", "high"]})
    assert clamp_to_model("off", always) == "off"
    assert clamp_to_model("minimal", always) == "low"


@pytest.mark.parametrize(
    ("model_id", "level", "effort"),
    [
        ("gpt-5", "minimal", "minimal"), ("gpt-5", "xhigh", "high"), ("gpt-5", "off", None),
        ("gpt-5.1", "minimal", "low"), ("gpt-5.1", "xhigh", "high"), ("gpt-5.1", "off", "none"),
        ("gpt-5.1-codex-max", "xhigh", "xhigh"), ("gpt-5.2-codex", "off", None), ("gpt-5.4", "xhigh", "xhigh"),
        ("gpt-6.1-terra", "minimal", "low"), ("o3-mini", "minimal", "low"), ("some-model", "minimal", "minimal"),
        ("some-model", "xhigh", "high"),
    ],
)  # fmt: skip
def test_openais_words_for_a_level_differ_by_release(model_id: str, level: ThinkingLevel, effort: str | None) -> None:
    model = Model(provider="openai", id=model_id, reasoning=True)
    assert reasoning_effort(level, model, vendor=True) == effort


def test_the_highest_level_is_offered_only_where_known() -> None:
    assert "xhigh" not in supported_levels(BIG)
    assert "xhigh" in supported_levels(Model(provider="openai", id="gpt-5.2", reasoning=True))


@pytest.mark.parametrize(
    ("level", "limit"), [("minimal", 33024), ("low", 34048), ("medium", 40192), ("high", 48384), ("xhigh", 48384)]
)
def test_the_output_limit_grows_by_the_thinking_budget(level: ThinkingLevel, limit: int) -> None:
    assert budget_and_limit(level, BIG, None)[1] == limit


@pytest.mark.parametrize(
    ("max_tokens", "requested", "expected"),
    [(8192, None, (7168, 8192)), (2000, None, (0, 2000)), (64_000, 500, (16384, 16884)), (4096, 500, (3072, 4096))],
)
def test_thinking_always_leaves_room_for_the_answer(
    max_tokens: int, requested: int | None, expected: tuple[int, int]
) -> None:
    model = Model(provider="anthropic", id="m", reasoning=True, max_tokens=max_tokens)
    assert budget_and_limit("high", model, requested) == expected


@pytest.mark.parametrize(
    ("requested", "room", "answer", "thinking"),
    [
        (None, None, 32_000, (16_384, 48_384)),
        (None, 100_000, 32_000, (16_384, 48_384)),
        (None, 40_000, 32_000, (16_384, 40_000)),
        (500, 10_000, 500, (8976, 10_000)),
        (None, 2000, 2000, (0, 2000)),
        (None, 0, 1, (0, 1)),
    ],
)
def test_neither_answer_nor_thinking_exceeds_the_room_that_the_prompt_leaves(
    requested: int | None, room: int | None, answer: int, thinking: tuple[int, int]
) -> None:
    assert output_limit(BIG, requested, room) == answer
    assert budget_and_limit("high", BIG, requested, room) == thinking
