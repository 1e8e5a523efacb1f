"""A conversation is shortened to the model's window, in memory only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.continuation import CONTINUE
from openclaw.agent.window.tokens import PromptBudget, TokenMeasure, prompt_tokens
from openclaw.agent.window.window import (
    FORGOTTEN,
    FORGOTTEN_NOTE,
    DoesNotFit,
    PromptWindow,
    check_room,
    fit,
    open_turn,
)
from openclaw.clock import SystemClock
from openclaw.config.schema.agents import ContextPruning
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultMessage,
    UserMessage,
    user_text,
)
from openclaw.models.base import Model
from tests.agent.scripted import call, says


def user(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text)])


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


PINNED = "[Pinned by the user, keep in mind] rule " + "r" * 3000


def test_a_pin_stays_whole_among_far_denser_text() -> None:
    messages: list[Message] = [user(PINNED), says("ok"), user("x" * 20_000), says("yes"), user("and now?")]
    dense = PromptBudget(window=6000, output=0, overhead=0, density=4.0)
    fitted = fit(messages, dense).messages
    shown = [user_text(message) for message in fitted if isinstance(message, UserMessage)]
    assert "r" * 3000 in shown[0] and shown[-1] == "and now?"
    assert 1000 + prompt_tokens(fitted[1:]) * dense.density <= 6000


def test_a_pin_that_was_taken_off_may_go() -> None:
    off = user(PINNED.replace("Pinned by the user, keep in mind", "No longer pinned"))
    fitted = fit([user(PINNED), says("ok"), off, user("x" * 8000), user("now?")], budget(600)).messages
    assert not any("<pinned>" in user_text(message) for message in fitted if isinstance(message, UserMessage))


@pytest.mark.parametrize(
    ("kinds", "place"),
    [
        ("", 0),
        ("ua", 2),
        ("uau", 2),
        ("uaucr", 2),
        ("uaucre", 2),
        ("uaucreecr", 2),
        ("ueu", 2),
        ("uxu", 2),
        ("uau u", 2),
        ("ulg", 0),
        ("uaul", 4),
        ("uaulu", 4),
    ],
)
def test_a_turn_is_open_until_an_answer_that_calls_no_tool(kinds: str, place: int) -> None:
    """u: a person, a: an answer, c: a call, r: its result, e: an error, x: aborted, l: cut, g: asked to go on."""
    made: dict[str, Message] = {
        "u": user("hello"),
        "a": says("yes"),
        "c": says("", call("1")),
        "r": tool_output("done"),
        "e": AssistantMessage(content=[], stop_reason="error"),
        "x": AssistantMessage(content=[], stop_reason="aborted"),
        "l": AssistantMessage(content=[TextBlock(text="and")], stop_reason="length"),
        "g": user(f"{CONTINUE} go on"),
    }
    assert open_turn([made[kind] for kind in kinds.replace(" ", "")]) == place


def test_a_turn_that_is_too_long_keeps_its_question_and_its_last_steps() -> None:
    messages: list[Message] = [user("old"), says("yes"), user("QUESTION")]
    for number in range(60):
        messages += [says("", call(str(number), text="t" * 200))]
        messages += [ToolResultMessage(tool_call_id=str(number), tool_name="e", content=[TextBlock(text="r" * 3000)])]
        if number == 30:
            messages.append(user("STEERED"))
    fitted = fit(messages, budget(1000)).messages
    shown = [user_text(message) for message in fitted if isinstance(message, UserMessage)]
    assert shown == [FORGOTTEN, "QUESTION", "STEERED"]
    assert isinstance(last := fitted[-1], ToolResultMessage) and last.tool_call_id == "59"
    assert prompt_tokens(fitted) <= 1000


def long_window(room: int) -> PromptWindow:
    model = Model(provider="mock", id="m", context_window=room, max_tokens=1)
    return PromptWindow(model, 0, TokenMeasure(), SystemClock(), pruning=ContextPruning(mode="off"))


def conversation(turns: int, text: str) -> list[Message]:
    return [message for number in range(turns) for message in (user(f"{number} {text}"), says(f"{number} {text}"))]


@pytest.mark.parametrize(("text", "most"), [("ok", 6000), ("word " * 400, 60)])
def test_a_request_is_made_of_the_recent_turns_however_long_the_conversation_is(text: str, most: int) -> None:
    view, looked_at = long_window(4000), list[int]()
    for turns in (3000, 9000):
        messages: list[Message] = [*conversation(turns, text), user("now?")]
        recent = view.recent(messages)
        looked_at.append(len(recent))
        shown = view.of(recent)
        assert prompt_tokens(shown) <= 4000
        assert shown[-1] is messages[-1]
        assert FORGOTTEN_NOTE in shown
        # All that is not sent as it was counts as shortened or left out, whether the request looked at it or not.
        sent = {id(message) for message in shown}
        assert view.shortened == sum(id(message) not in sent for message in messages)
    assert max(looked_at) <= most


def test_pins_and_the_first_message_of_a_long_conversation_stay() -> None:
    pin = user("[Pinned by the user, keep in mind] the code is 4711")
    messages = [user("first of all"), says("yes"), pin, *conversation(3000, "ok"), user("now?")]
    view = long_window(4000)
    shown = view.of(view.recent(messages))
    texts = [user_text(message) for message in shown if isinstance(message, UserMessage)]
    assert any("the code is 4711" in text for text in texts)
    assert "first of all" in texts
    assert texts.count(FORGOTTEN) == 1


def test_successive_requests_begin_with_the_same_recent_turn() -> None:
    view, messages = long_window(4000), conversation(3000, "ok")
    firsts: set[int] = set()
    for number in range(20):
        messages += [user(f"question {number}"), says("answer")]
        view.recent(messages)
        firsts.add(view.first)
    assert len(firsts) == 1


def test_an_open_turn_larger_than_the_window_keeps_its_question() -> None:
    steps = [message for _ in range(500) for message in (says("", call("1", n=1)), tool_output("o" * 2000))]
    messages: list[Message] = [*conversation(100, "ok"), user("do it"), *steps]
    view = long_window(4000)
    shown = view.of(view.recent(messages))
    assert any(isinstance(message, UserMessage) and user_text(message) == "do it" for message in shown)
    assert prompt_tokens(shown) <= 4000
