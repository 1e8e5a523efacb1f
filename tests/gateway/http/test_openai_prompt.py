"""What a session is told of a conversation it may already hold."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.http.openai_prompt import NoMessage, Said, compose, public_call_id, run_of, runs_named
from openclaw.messages import AssistantMessage, Message, TextBlock, ToolCall, ToolResultMessage, UserMessage

RUN = "3d0a9f6e-6f0c-4a5e-9c55-8a5a4d5b7c11"


def user(text: str, **more: Any) -> Said:
    return Said(role="user", text=text, **more)


def assistant(text: str, **more: Any) -> Said:
    return Said(role="assistant", text=text, **more)


def tool(text: str, call_id: str = "", name: str = "") -> Said:
    return Said(role="tool", text=text, call_id=call_id, name=name)


def answered(text: str, *calls: ToolCall, stop: Any = "stop") -> AssistantMessage:
    return AssistantMessage(content=[TextBlock(text=text), *calls], stop_reason=stop)


def call(id: str = "toolu_1", name: str = "look") -> ToolCall:
    return ToolCall(id=id, name=name, arguments={})


def wrapped(*lines: str) -> str:
    *history, current = lines
    parts = ["[Chat messages since your last reply - for context]", *history, "", "[Current message - respond to this]"]
    return "\n".join([*parts, current])


SAID = UserMessage(content="hello")


@pytest.mark.parametrize(
    ("said", "known", "text"),
    [
        ([user("hi")], [], "hi"),
        ([user("a"), user("b")], [], wrapped("User: a", "User: b")),
        ([user("a"), assistant("b"), user("c")], [], wrapped("User: a", "Assistant: b", "User: c")),
        ([user("a"), assistant("b"), user("c")], [SAID, answered("b")], "c"),
        ([user("a"), assistant("b"), user("c")], [SAID, answered(" b\n")], "c"),
        ([user("a"), assistant("x\n\nb"), user("c")], [SAID, answered("x", call()), answered("b")], "c"),
        ([user("a"), assistant("b"), user("c")], [SAID, answered("d")], wrapped("User: a", "Assistant: b", "User: c")),
        ([user("a"), assistant("b"), user("c"), user("d")], [SAID, answered("b")], wrapped("User: c", "User: d")),
        ([user("a"), assistant("started an ans")], [], "a"),
        ([user("a"), tool("42", name="sum")], [], wrapped("User: a", "Tool:sum: 42")),
        ([user("a"), tool("42", "call_9")], [], wrapped("User: a", "Tool:call_9: 42")),
        ([user(""), user("a")], [], "a"),
    ],
)
def test_only_what_the_session_does_not_hold_is_said(said: list[Said], known: list[Message], text: str) -> None:
    assert compose(said, known, 0).text == text


@pytest.mark.parametrize("said", [[], [assistant("x")], [user(" ")], [assistant("x"), user("")]])
def test_a_conversation_without_a_question_has_no_prompt(said: list[Said]) -> None:
    with pytest.raises(NoMessage):
        compose(said, [], 0)


def test_an_output_goes_to_the_call_that_waits_for_it() -> None:
    known: list[Message] = [SAID, answered("", call("toolu_1", "look"), call("toolu_2", "peek"))]
    said = [
        user("hello"),
        assistant("[called look()]", calls=["x"]),
        tool("seen", public_call_id(RUN, "toolu_1")),
        tool("peeked", "toolu_2"),
    ]
    prompt = compose(said, known, 7)
    assert (prompt.text, prompt.continues) == ("", True)
    assert [(one.tool_call_id, one.tool_name, one.text) for one in prompt.tool_outputs] == [
        ("toolu_1", "look", "seen"),
        ("toolu_2", "peek", "peeked"),
    ]


def test_words_of_the_user_may_come_with_an_output() -> None:
    known: list[Message] = [SAID, answered("", call())]
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_1"), user("and hurry")], known, 0)
    assert prompt.text == "and hurry"
    assert len(prompt.tool_outputs) == 1


def test_an_output_that_was_already_written_down_is_not_written_twice() -> None:
    result = ToolResultMessage(tool_call_id="toolu_1", tool_name="look", content=[TextBlock(text="seen")])
    known: list[Message] = [SAID, answered("", call()), result, answered("", stop="error")]
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_1")], known, 0)
    assert prompt.continues
    assert (prompt.text, prompt.tool_outputs) == ("", [])


def test_an_output_nobody_waits_for_is_told_in_words() -> None:
    prompt = compose([user("hello"), assistant("-"), tool("seen", "toolu_9", "look")], [SAID, answered("done")], 0)
    assert prompt.tool_outputs == []
    assert prompt.text.endswith("Tool:look: seen")


def test_pictures_of_everything_that_is_said_come_along_in_order() -> None:
    prompt = compose([user("see", images=["one"]), assistant("ok"), user("and", images=["two", "three"])], [], 0)
    assert prompt.images == ["one", "two", "three"]
    assert "User: see [image attached]" in prompt.text
    assert prompt.text.endswith("User: and [image 2 attached]")


@given(st.uuids(), st.text())
def test_a_call_id_leads_back_to_its_run(run: uuid.UUID, call_id: str) -> None:
    public = public_call_id(str(run), call_id)
    assert run_of(public) == str(run)
    assert len(public) <= 40
    assert public.isascii()


@given(st.text())
def test_foreign_ids_name_no_run(text: str) -> None:
    assert run_of(text) is None or text.startswith("call_")


def test_runs_are_named_newest_first_and_once() -> None:
    other = str(uuid.uuid4())
    said = [
        assistant("", calls=[public_call_id(other, "a")]),
        tool("", public_call_id(other, "a")),
        assistant("", calls=[public_call_id(RUN, "b")]),
    ]
    assert runs_named(said) == [RUN, other]
