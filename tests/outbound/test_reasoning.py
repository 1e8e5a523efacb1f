"""Reasoning in tags is told apart from the answer."""

from __future__ import annotations

from typing import Literal

import pytest

from openclaw.messages import AssistantMessage, TextBlock, ThinkingBlock
from openclaw.outbound.answer_filter import AnswerText, ReasoningText, TagStream, framed, reasoning_message, typed


def sort(*deltas: str, only_final: bool | Literal["if_begun"] = False, complete: bool = True) -> tuple[str, str]:
    stream = TagStream(only_final=only_final)
    pieces = [piece for delta in deltas for piece in stream.feed(delta)] + stream.close(complete=complete)
    said = "".join(piece.text for piece in pieces if isinstance(piece, AnswerText))
    return said, "".join(piece.text for piece in pieces if isinstance(piece, ReasoningText))


@pytest.mark.parametrize(
    ("text", "said", "thought"),
    [
        ("<think>x</think>hello", "hello", "x"),
        ("a <think>b", "a ", "b"),
        ("x</think>y", "xy", ""),
        ("<final>ok</final>", "ok", ""),
        ("< THINKING >x< / Thinking>y", "y", "x"),
        ("<antthinking>x</antthinking><thought>z</thought>y", "y", "xz"),
        ("<think>a < b <thin c</think>d", "d", "a < b <thin c"),
        ("<think>one `</think>two", "two", "one `"),
        ("<thinker>x</thinker>", "<thinker>x</thinker>", ""),
        ("1 < 2 <thi", "1 < 2 <thi", ""),
        ("`<think>` is a tag", "`<think>` is a tag", ""),
        ("``a ` <think>`` and ` <think>x", "``a ` <think>`` and ` ", "x"),
        ("an ` alone\n<think>x</think>y", "an ` alone\ny", "x"),
        ("```\n<think>x</think>\n```\n<think>y</think>z", "```\n<think>x</think>\n```\nz", "y"),
        ("~~~xml\n<think>\n```\n</think>\n~~~", "~~~xml\n<think>\n```\n</think>\n~~~", ""),
    ],
)
def test_tags_are_taken_out_except_in_code(text: str, said: str, thought: str) -> None:
    assert sort(text) == (said, thought)
    assert sort(*text) == (said, thought)


def test_the_tag_and_what_follows_never_appear_while_streaming() -> None:
    stream = TagStream()
    shown = [stream.feed(delta) for delta in ("<think>se", "cret</think>", "Hello ", "world")]
    assert shown == [[ReasoningText("se")], [ReasoningText("cret")], [AnswerText("Hello ")], [AnswerText("world")]]


@pytest.mark.parametrize(
    ("text", "said"),
    [("plan <final>yes</final> done", "yes"), ("no tag at all", "no tag at all"), ("<think>x</think>plain", "plain")],
)
def test_where_only_final_counts_the_rest_is_said_only_for_want_of_it(text: str, said: str) -> None:
    assert sort(*text, only_final=True)[0] == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain words <final>and</final> more", "plain words and more"),
        ("\n<think>x</think>\nplain", "\n\nplain"),
        ("<think>x</think><final>ok</final> junk", "ok"),
        (" <final>ok</final> junk", "ok"),
    ],
)
def test_a_model_that_begins_without_the_tag_is_not_held_to_it(text: str, said: str) -> None:
    assert sort(*text, only_final="if_begun")[0] == said
    stream = TagStream(only_final="if_begun")
    assert stream.feed("plain ") == [AnswerText("plain ")], "shown while it comes"


def test_a_model_that_begins_with_the_tag_is_held_to_it_also_in_what_is_stored() -> None:
    assert sort("", "<final>ok</final>", " junk", only_final="if_begun")[0] == "ok"
    answer = message(TextBlock(text="plan<final>no"), TextBlock(text="</final>"))
    assert framed(answer, "", thinking=False, only_final="if_begun") is answer
    answer = message(TextBlock(text="<think>plan</think><final>Hello</final>"))
    stored = framed(answer, "", thinking=False, only_final="if_begun")
    assert stored.content == [ThinkingBlock(thinking="plan"), TextBlock(text="Hello")]


def test_half_a_tag_of_an_answer_that_was_broken_off_stays_unsaid() -> None:
    assert sort("Well <thi", complete=False) == ("Well ", "")


def message(*blocks: TextBlock | ThinkingBlock) -> AssistantMessage:
    return AssistantMessage(content=list(blocks))


def test_closed_reasoning_at_the_beginning_is_stored_as_a_block_of_its_own() -> None:
    stored = typed(message(TextBlock(text="<think>secret</think>\n\nHello")))
    assert stored.content == [ThinkingBlock(thinking="secret"), TextBlock(text="Hello")]


def test_reasoning_that_the_output_limit_cut_in_two_is_stored_as_reasoning_on_both_sides() -> None:
    first = AssistantMessage(content=[TextBlock(text="<think>the se")], stop_reason="length")
    assert typed(first).content == [ThinkingBlock(thinking="the se")]
    second = typed(message(TextBlock(text="cret</think>Hello")), thinking=True)
    assert second.content == [ThinkingBlock(thinking="cret"), TextBlock(text="Hello")]


@pytest.mark.parametrize(
    "as_it_is",
    [
        message(TextBlock(text="<think>never closed")),
        message(TextBlock(text="Hello <think>x</think>")),
        message(ThinkingBlock(thinking="a"), TextBlock(text="<think>x</think>b")),
        message(TextBlock(text="<final>x</final>")),
        message(),
    ],
)
def test_other_messages_are_stored_as_they_came(as_it_is: AssistantMessage) -> None:
    assert typed(as_it_is) is as_it_is


def test_reasoning_as_a_message_has_a_title_and_underscored_lines() -> None:
    assert reasoning_message("one\n\n two \n") == "Reasoning:\n_one_\n\n_two_"
    assert reasoning_message(" \n ") == ""
