"""Old tool results leave the prompt, in memory only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.window.tokens import PromptBudget, prompt_tokens
from openclaw.agent.window.window import (
    FORGOTTEN,
    DoesNotFit,
    Pruner,
    cache_filled_at,
    check_room,
    effective,
    fit,
    has_cache,
    prune,
    ttl_ms,
)
from openclaw.config.schema.agents import ContextPruning
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultMessage,
    Usage,
    UserMessage,
    user_text,
)
from openclaw.models.base import Model
from tests.agent.scripted import call, says

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


def budget(window: int, overhead: int = 0) -> PromptBudget:
    return PromptBudget(window=window, output=0, overhead=overhead)


def tool_output(text: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="1", tool_name="exec", content=[TextBlock(text=text)])


def test_what_fits_is_the_very_same_list() -> None:
    messages: list[Message] = [user("hello"), says("hi")]
    assert fit(messages, budget(1000)).messages is messages


def test_old_tool_output_gives_way_before_anything_a_person_said() -> None:
    messages: list[Message] = [user("q" * 4000), says("", call("1", n=1)), tool_output("o" * 40_000)]
    messages += [says("a" * 4000), user("w" * 4000), says("b" * 400), user("now")]
    fitted = fit(messages, budget(4500))
    assert prompt_tokens(fitted.messages) <= 4500
    assert fitted.messages[0] is messages[0]
    assert fitted.messages[2] is not messages[2]
    assert fitted.shortened == 1


def test_one_message_larger_than_the_window_keeps_its_beginning_and_end() -> None:
    huge = user("BEGIN" + "x" * 400_000 + "END")
    fitted = fit([user("before"), says("yes"), huge], budget(2000))
    text = user_text(fitted.messages[-1])  # type: ignore[arg-type]
    assert prompt_tokens(fitted.messages) <= 2000
    assert text.startswith("BEGIN")
    assert text.endswith("END")
    assert "left out here" in text


def test_ten_windows_of_talk_leave_the_newest_turns_and_a_word_about_the_rest() -> None:
    messages: list[Message] = []
    for number in range(2000):
        messages += [user(f"question {number}"), says(f"answer {number}")]
    fitted = fit(messages, budget(1000))
    assert prompt_tokens(fitted.messages) <= 1000
    assert fitted.messages[-1] is messages[-1]
    assert any(isinstance(message, UserMessage) and FORGOTTEN in user_text(message) for message in fitted.messages)


def test_a_fixed_part_larger_than_the_window_is_told_in_one_sentence_with_numbers() -> None:
    with pytest.raises(DoesNotFit, match=r"about 9000 tokens of the model's window of 8000"):
        check_room(budget(8000, overhead=9000))
    check_room(budget(8000, overhead=7000))


_sizes = st.integers(0, 3000)
_steps = st.lists(st.tuples(st.sampled_from(["user", "answer", "tool", "image"]), _sizes), min_size=1, max_size=40)


@given(_steps, st.integers(200, 2000))
def test_any_history_fits_any_window_and_no_result_loses_its_call(steps: list[tuple[str, int]], window: int) -> None:
    messages: list[Message] = [user("first")]
    for number, (kind, size) in enumerate(steps):
        match kind:
            case "user":
                messages.append(user("u" * size))
            case "answer":
                messages.append(says("a" * size))
            case "image":
                messages.append(UserMessage(content=[ImageBlock(data="aGk=", mime_type="image/png")]))
            case _:
                messages.append(says("", call(str(number), text="t" * (size // 10))))
                messages.append(
                    ToolResultMessage(tool_call_id=str(number), tool_name="echo", content=[TextBlock(text="r" * size)])
                )
    fitted = fit(messages, budget(window)).messages
    assert prompt_tokens(fitted) <= window
    called: set[str] = set()
    for message in fitted:
        if isinstance(message, ToolResultMessage):
            assert message.tool_call_id in called
        elif not isinstance(message, UserMessage):
            called |= {each.id for each in message.tool_calls}
