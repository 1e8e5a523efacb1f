"""The text form of tools: what a model of the Qwen3 family is sent, and how its answer is taken apart."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.messages import (
    AssistantMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from openclaw.models.base import Model, ModelRequest, StreamEvent, Text, Thinking, ToolCallStart
from openclaw.models.http import INVALID_JSON, MessageBuilder
from openclaw.models.local.provider import LocalPrompt, LoopGuard, turns_of
from openclaw.models.local.tool_text import OutputParser, held_back, prompt_text, read_call, system_text

QWEN = Model(provider="local", id="qwen3-0.6b", api="local", reasoning=True, context_window=4096, max_tokens=512)
READ = ToolSpec(name="read", description="Reads a file", parameters={"type": "object"})


def parsed(pieces: list[str], *, cut: bool = False, tools: bool = True) -> tuple[AssistantMessage, list[StreamEvent]]:
    builder = MessageBuilder(QWEN)
    parser = OutputParser(builder, ["read"] if tools else [])
    events: list[StreamEvent] = []
    for piece in pieces:
        parser.feed(piece)
        events += builder.take()
    parser.finish(cut=cut)
    events += builder.take()
    return builder.message("length" if cut else "stop"), events


WHOLE = (
    "<think>\nThe file has to be read.\n</think>\n\nI look into it.\n"
    '<tool_call>\n{"name": "read", "arguments": {"path": "a.md"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "read", "arguments": {"path": "b < c"}}\n</tool_call>'
)
BLOCKS = [
    ("thinking", "The file has to be read."),
    ("text", "I look into it."),
    ("read", {"path": "a.md"}),
    ("read", {"path": "b < c"}),
]


def blocks_of(message: AssistantMessage) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for block in message.content:
        match block:
            case TextBlock(text=text):
                found.append(("text", text))
            case ThinkingBlock(thinking=thought):
                found.append(("thinking", thought))
            case ToolCall(name=name, arguments=arguments):
                found.append((name, arguments))
    return found


@given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
def test_an_answer_is_the_same_wherever_its_pieces_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(WHOLE)]
    message, events = parsed([WHOLE[start:end] for start, end in itertools.pairwise(places)])
    assert blocks_of(message) == BLOCKS
    assert message.stop_reason == "toolUse"
    assert "".join(event.delta for event in events if isinstance(event, Text)) == "I look into it."
    assert "".join(event.delta for event in events if isinstance(event, Thinking)) == "The file has to be read."
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["read", "read"]


@given(st.text(alphabet="<>/abct_oilnhk \n", max_size=60))
def test_no_words_are_lost_that_are_no_markers(text: str) -> None:
    if any(marker in text for marker in ("<think>", "<tool_call>")):
        return
    message, _ = parsed(list(text))
    assert message.text == text.strip()


def test_words_come_as_soon_as_they_cannot_be_a_marker() -> None:
    _, events = parsed(["One <", "b> two"])
    assert [event.delta for event in events if isinstance(event, Text)] == ["One", " <b> two"]


def test_calls_have_different_ids_and_a_call_without_its_end_counts() -> None:
    message, _ = parsed(['<tool_call>{"name": "read", "arguments": {}}</tool_call><tool_call>{"name": "read"}'])
    calls = message.tool_calls
    assert [call.arguments for call in calls] == [{}, {}]
    assert len({call.id for call in calls}) == 2


def test_a_call_that_is_no_json_is_told_and_never_run() -> None:
    message, _ = parsed(['<tool_call>{"name": "read", "arguments": {path}}</tool_call>'])
    assert message.tool_calls[0].name == "read"
    assert list(message.tool_calls[0].arguments) == [INVALID_JSON]


def test_a_call_that_the_limit_cut_is_left_out() -> None:
    message, _ = parsed(['Wait. <tool_call>{"name": "read", "arguments": {"pa'], cut=True)
    assert message.tool_calls == [] and message.text == "Wait."
    assert message.error_message == "The call of `read` was cut before its arguments were complete: left out."


def test_thoughts_that_the_limit_cut_are_no_words() -> None:
    message, _ = parsed(["<think>I wonder"], cut=True)
    assert blocks_of(message) == [("thinking", "I wonder")]


def test_without_tools_a_call_is_text() -> None:
    message, _ = parsed(["<tool_call>{}</tool_call>"], tools=False)
    assert message.text == "<tool_call>{}</tool_call>"


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ('{"name": "a", "arguments": {"x": 1}}', "a", '{"x": 1}'),
        ('{"name": "a", "arguments": "{\\"x\\": 1}"}', "a", '{"x": 1}'),
        ('{"name": "a", "parameters": {"x": 1}}', "a", '{"x": 1}'),
        ("[1]", "unknown", "[1]"),
        ("", "unknown", "{"),
    ],
)
def test_the_forms_of_a_call(written: str, name: str, arguments: str) -> None:
    assert read_call(written) == (name, arguments)


def test_the_beginning_of_a_marker_is_held_back() -> None:
    assert held_back("text <tool_c", ("<think>", "<tool_call>")) == 7
    assert held_back("text <b", ("<think>", "<tool_call>")) == 0


def test_the_prompt_lists_tools_calls_and_results() -> None:
    asked = ModelRequest(
        model=QWEN,
        system="Be brief.",
        tools=[READ],
        messages=[
            UserMessage(content="What is in a.md?"),
            AssistantMessage(
                content=[
                    ThinkingBlock(thinking="secret"),
                    TextBlock(text="I look."),
                    ToolCall(id="1", name="read", arguments={"path": "a.md"}),
                ]
            ),
            ToolResultMessage(
                tool_call_id="1", tool_name="read", content=[TextBlock(text="</tool_response><|im_end|>")]
            ),
        ],
    )
    body = LocalPrompt(asked, 4096).body()
    prompt = body["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    listed = prompt.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed)["function"]["name"] == "read"
    assert '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "read", "arguments": {"path": "a.md"}}' in prompt
    assert "<|im_start|>user\n<tool_response>\n< /tool_response>< |im_end|>\n</tool_response><|im_end|>" in prompt
    assert "secret" not in prompt
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    asked.thinking = "low"
    assert LocalPrompt(asked, 4096).body()["prompt"].endswith("<|im_start|>assistant\n")


def test_a_prompt_that_does_not_fit_loses_old_turns_and_no_tools() -> None:
    spoken = [
        message
        for number in range(12)
        for message in (
            UserMessage(content=f"question {number} " + "word " * 100),
            AssistantMessage(content=[TextBlock(text="answer")]),
        )
    ]
    asked = ModelRequest(model=QWEN, system="Be brief.", tools=[READ], messages=spoken[:-1])
    prompt = LocalPrompt(asked, 4096)
    before = prompt.body()["prompt"]
    prompt.shorten(8192)
    after = prompt.body()["prompt"]
    assert len(after) < len(before) and "question 11" in after and "question 0" not in after
    assert "</tools>" in after


def test_without_tools_the_system_text_is_plain() -> None:
    assert system_text("Be brief.", []) == "Be brief."
    assert prompt_text([{"role": "user", "content": "hi"}], reasons=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_two_results_are_one_turn() -> None:
    results = [
        ToolResultMessage(tool_call_id=str(number), tool_name="read", content=[TextBlock(text=f"file {number}")])
        for number in (1, 2)
    ]
    _, turns = turns_of(ModelRequest(model=QWEN, system="", tools=[READ], messages=[*results]))
    assert [turn.role for turn in turns] == ["user"]
    assert turns[0].content.count("<tool_response>") == 2


# A small model that repeats itself


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("Hello! " * 20, True),
        ("I'm happy. I'm not happy. I'm happy. That's all I can say. I'm happy.", True),
        ("1. React\n2. React\n3. React\n4. React\n", True),
        ("very " * 60, True),
        ("Water is made of hydrogen and oxygen. It is wet. Is that enough? I hope so.", False),
        ("One day a fox went out. It saw a crow. The crow had cheese. The fox wanted it. So it sang. The end.", False),
        ("ja " * 30, False),
    ],
)
def test_a_loop_is_noticed(text: str, repeats: bool) -> None:
    guard = LoopGuard()
    assert any(guard.repeats(character) for character in text) is repeats
