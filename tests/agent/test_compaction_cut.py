"""What is kept word for word, and what a compaction condenses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.compaction_cut import Cut, compaction_settings, find_cut
from openclaw.config.load import build
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolResultMessage, UserMessage
from tests.agent.scripted import call, says


def user(tokens: int) -> UserMessage:
    return UserMessage(content=[TextBlock(text="u" * tokens * 4)])


def result(tokens: int) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="1", tool_name="exec", content=[TextBlock(text="r" * tokens * 4)])


def answer(tokens: int) -> AssistantMessage:
    return says("a" * tokens * 4)


TURNS: list[Message] = [
    user(100),
    answer(100),
    user(100),
    says("", call("1", "exec", command="ls")),
    result(1000),
    says("done"),
]


@pytest.mark.parametrize(
    ("keep", "cut"),
    [
        *((keep, Cut(5, 2)) for keep in (1, 500, 1001)),
        *((keep, Cut(3, 2)) for keep in (1002, 1006)),
        *((keep, Cut(2)) for keep in (1007, 1106)),
        *((keep, Cut(1, 0)) for keep in (1107, 1206)),
        *((keep, Cut(0)) for keep in (1207, 5000)),
    ],
)
def test_the_cut_keeps_the_wanted_tokens_and_never_starts_with_a_tool_result(keep: int, cut: Cut) -> None:
    assert find_cut(TURNS, keep) == cut


def test_results_at_the_very_end_are_kept_with_the_message_that_asked_for_them() -> None:
    messages: list[Message] = [user(10), answer(10), user(10), says("", call("1", "exec", command="ls")), result(5000)]
    assert find_cut(messages, 100) == Cut(3, 2)


def test_an_earlier_summary_is_never_part_of_what_is_cut() -> None:
    messages: list[Message] = [user(5000), user(10), answer(10)]
    assert find_cut(messages, 10_000, start=1) == Cut(1)


@given(
    st.lists(st.sampled_from(["user", "answer", "call", "result"]), min_size=1, max_size=30),
    st.integers(1, 400),
    st.data(),
)
def test_no_history_is_ever_cut_between_a_call_and_its_result(kinds: list[str], keep: int, data: st.DataObject) -> None:
    makers = {"user": user, "answer": answer, "result": result}
    messages: list[Message] = [
        says("", call("1", "exec", n=1)) if kind == "call" else makers[kind](data.draw(st.integers(0, 60)))
        for kind in kinds
    ]
    cut = find_cut(messages, keep)
    assert 0 <= cut.index < len(messages)
    if any(not isinstance(message, ToolResultMessage) for message in messages):
        assert not isinstance(messages[cut.index], ToolResultMessage)
    if cut.turn_start is not None:
        assert isinstance(messages[cut.turn_start], UserMessage)
        assert cut.turn_start < cut.index


# Settings


def test_out_of_the_box_twenty_thousand_tokens_stay_free_and_as_many_are_kept() -> None:
    settings = compaction_settings(build({}), 200_000)
    assert (settings.reserve, settings.keep, settings.limit, settings.enabled) == (20_000, 20_000, 180_000, True)


@pytest.mark.parametrize(
    ("compaction", "agent", "reserve"),
    [
        ({}, {"reserveTokensFloor": 0}, 16_384),
        ({"reserveTokens": 30_000}, {}, 30_000),
        ({"reserveTokens": 1000}, {"reserveTokensFloor": 5000}, 5000),
        ({"reserveTokens": 1000}, {"reserveTokens": 25_000}, 25_000),
    ],
)
def test_the_floor_raises_the_reserve_and_zero_switches_it_off(
    compaction: dict[str, int], agent: dict[str, int], reserve: int
) -> None:
    config = build({"compaction": compaction, "agents": {"defaults": {"compaction": agent}}})
    assert compaction_settings(config, 200_000).reserve == reserve


def test_a_reserve_larger_than_half_the_window_is_bounded_and_said() -> None:
    settings = compaction_settings(build({}), 8192)
    assert settings.reserve == 4096
    assert "half" in settings.warning
    assert settings.keep <= 2048, "what is kept must leave room for the summary"


def test_the_fixed_part_of_the_prompt_leaves_less_to_keep() -> None:
    assert compaction_settings(build({}), 60_000, overhead=30_000).keep == 5000


def test_with_safeguard_only_a_share_of_the_window_is_kept() -> None:
    wish = {"agents": {"defaults": {"compaction": {"mode": "safeguard", "reserveTokensFloor": 0}}}}
    config = build({**wish, "compaction": {"reserveTokens": 100}})
    settings = compaction_settings(config, 2000)
    assert (settings.safeguard, settings.keep, settings.most_kept) == (True, 950, 1200)
    messages: list[Message] = [UserMessage(content="x" * 4000)] * 4
    assert find_cut(messages, settings.keep).index == 3
    assert compaction_settings(build({}), 200_000).safeguard is False
