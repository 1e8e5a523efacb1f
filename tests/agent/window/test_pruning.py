"""Old tool results leave the prompt, in memory only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.agent.window.window import Pruner, cache_filled_at, effective, has_cache, prune, ttl_ms
from openclaw.config.schema.agents import ContextPruning
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from openclaw.models.base import Model

CLAUDE = Model(provider="anthropic", id="claude", context_window=10_000)


def settings(**fields: Any) -> ContextPruning:
    return msgspec.convert(fields, ContextPruning)


def user(text: str = "u") -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)])


def answer(at: int = 0) -> AssistantMessage:
    return AssistantMessage(
        content=[TextBlock(text="a")],
        provider="anthropic",
        model="claude",
        usage=Usage(input=1, total_tokens=1),
        timestamp=at,
    )


def result(chars: int, call_id: str = "t", tool: str = "exec") -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=call_id, tool_name=tool, content=[TextBlock(text="x" * chars)])


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolResultMessage)]


LONG: list[Message] = [
    user(),
    answer(),
    result(10_000, "t1"),
    answer(),
    result(10_000, "t2"),
    answer(),
    result(3000, "t3"),
    answer(),
    answer(),
]


def test_long_results_before_the_last_three_answers_are_trimmed() -> None:
    pruned = prune(LONG, settings(), 10_000)
    assert [len(text) for text in texts(pruned)] == [3087, 3087, 3000]
    assert texts(pruned)[0].endswith("[Tool result trimmed: kept first 1500 chars and last 1500 chars of 10000 chars.]")
    assert texts(LONG)[0] == "x" * 10_000, "the messages themselves are never changed"


def test_a_window_that_is_not_full_leaves_the_very_same_list() -> None:
    assert prune(LONG, settings(), 100_000) is LONG


def test_blocks_are_joined_before_they_are_trimmed() -> None:
    message = ToolResultMessage(
        tool_call_id="t", tool_name="exec", content=[TextBlock(text="AAAAA"), TextBlock(text="BBBBB")]
    )
    wish = settings(softTrim={"maxChars": 5, "headChars": 7, "tailChars": 3}, keepLastAssistants=0, softTrimRatio=0)
    (text,) = texts(prune([user(), message], wish, 10_000))
    assert text == ("AAAAA\nB\n...\nBBB\n\n[Tool result trimmed: kept first 7 chars and last 3 chars of 11 chars.]")


@pytest.mark.parametrize(("least", "cleared"), [(50_000, 0), (1000, 1)])
def test_results_are_cleared_oldest_first_until_the_window_is_half_empty(least: int, cleared: int) -> None:
    messages: list[Message] = [user(), *(result(3900, f"t{n}") for n in range(3))]
    wish = settings(minPrunableToolChars=least, keepLastAssistants=0)
    pruned = texts(prune(messages, wish, 4000))
    assert pruned.count("[Old tool result content cleared]") == cleared
    if cleared:
        assert pruned[0].startswith("[Old")


def test_results_after_the_last_answers_are_kept() -> None:
    messages: list[Message] = [user()]
    for number in range(4):
        messages += [answer(), result(100, f"t{number}")]
    wish = settings(softTrimRatio=0, hardClearRatio=0, minPrunableToolChars=0)
    assert [text.startswith("[Old") for text in texts(prune(messages, wish, 10_000))] == [True, False, False, False]


def test_deny_wins_over_allow_and_names_may_hold_stars() -> None:
    messages: list[Message] = [user(), result(9000, "a", "Exec"), result(9000, "b", "Browser")]
    wish = settings(tools={"allow": ["ex*"], "deny": ["exec"]}, softTrimRatio=0, keepLastAssistants=0)
    assert prune(messages, wish, 100) is messages
    allowed = settings(tools={"allow": ["ex*"]}, softTrimRatio=0, keepLastAssistants=0, hardClear={"enabled": False})
    assert [len(text) for text in texts(prune(messages, allowed, 100))] == [3086, 9000]


def test_nothing_before_the_first_user_message_and_no_picture_is_touched() -> None:
    picture = ToolResultMessage(
        tool_call_id="p",
        tool_name="browser",
        content=[ImageBlock(data="aGk=", mime_type="image/png"), TextBlock(text="x" * 9000)],
    )
    messages: list[Message] = [result(9000), user(), picture]
    assert prune(messages, settings(softTrimRatio=0, hardClearRatio=0, keepLastAssistants=0), 100) is messages


@pytest.mark.parametrize(
    ("written", "ms"),
    [("5m", 300_000), ("1h", 3_600_000), ("30", 1_800_000), ("90s", 90_000), ("bad", 300_000), ("0", 0)],
)
def test_the_age_of_the_cache_is_read_in_minutes_unless_a_unit_is_given(written: str, ms: int) -> None:
    assert ttl_ms(written) == ms


@pytest.mark.parametrize(
    ("provider", "model", "eligible"),
    [
        ("anthropic", "claude", True),
        ("openrouter", "anthropic/claude", True),
        ("openrouter", "openai/x", False),
        ("mock", "x", False),
    ],
)
def test_only_providers_whose_cache_expires_by_time_are_eligible(provider: str, model: str, eligible: bool) -> None:
    assert has_cache(Model(provider=provider, id=model)) is eligible


def due(messages: list[Message], now: int, **wish: Any) -> list[Message]:
    pruner = Pruner(settings(**{"mode": "cache-ttl", **wish}), CLAUDE, cache_filled_at(messages, CLAUDE))
    return pruner.apply(messages, now)


def test_a_cache_that_is_still_warm_is_left_alone() -> None:
    messages = [*LONG[:-1], answer(at=1_000)]
    assert due(messages, 1_000 + 299_999) is messages
    assert due(messages, 1_000 + 300_000) is not messages
    assert due(messages, 10**9, ttl="0") is messages
    assert due(messages, 10**9, mode="off") is messages
    assert due([user(), result(90_000)], 10**9) is not None


def test_what_one_call_of_a_run_took_out_stays_out_in_the_next() -> None:
    messages = [*LONG[:-1], answer(at=1_000)]
    pruner = Pruner(settings(mode="cache-ttl"), CLAUDE, cache_filled_at(messages, CLAUDE))
    first = pruner.apply(messages, 10**9)
    second = pruner.apply([*messages, user("more"), result(9000, "t9"), answer(10**9)], 10**9)
    assert texts(second)[:3] == texts(first)
    assert len(texts(second)[3]) == 9000
    assert pruner.count == 2


def test_what_one_run_took_out_stays_out_in_the_next_runs_of_the_branch() -> None:
    """Until the cache expires again nothing more is taken out, and what is out does not come back."""
    kept: dict[str, Any] = {}

    def run(messages: list[Message], now: int) -> list[str]:
        pruner = Pruner(settings(mode="cache-ttl"), CLAUDE, cache_filled_at(messages, CLAUDE), kept)
        return texts(pruner.apply(messages, now))

    messages = [*LONG[:-1], answer(at=1_000)]
    first = run(messages, 10**9)
    assert [len(text) for text in first[:2]] == [3087, 3087]
    messages += [user("more"), result(9000, "t9"), *(answer(at=10**9) for _ in range(4)), user("and?")]
    warm = run(messages, 10**9 + 60_000)
    assert warm[:3] == first and len(warm[3]) == 9000
    cold = run(messages, 10**9 + 10**6)
    assert cold[:3] == first and len(cold[3]) == 3086
    other: list[Message] = [user(), answer(), result(9_999, "t1"), *messages[3:]]
    assert len(run(other, 10**9 + 60_000)[0]) == 9_999, "another result with the same call id"


def test_always_prunes_at_every_call_whatever_the_provider() -> None:
    pruner = Pruner(settings(mode="always"), Model(provider="mock", id="m", context_window=10_000), None)
    assert len(texts(pruner.apply(LONG, 0))[0]) == 3087


@pytest.mark.parametrize(
    ("wish", "provider", "mode", "ttl"),
    [
        ({}, "anthropic", "cache-ttl", "1h"),
        ({"ttl": "10m"}, "anthropic", "cache-ttl", "10m"),
        ({}, "mock", "off", "1h"),
        ({"mode": "off"}, "anthropic", "off", "5m"),
        ({"mode": "cache-ttl"}, "anthropic", "cache-ttl", "5m"),
    ],
)
def test_unset_it_is_on_for_anthropic_alone_and_patient(wish: Any, provider: str, mode: str, ttl: str) -> None:
    found = effective(settings(**wish), Model(provider=provider, id="claude"))
    assert (found.mode, found.ttl) == (mode, ttl)
