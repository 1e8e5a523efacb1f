"""Parts of one answer, joined without loss and without repetition."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.agent.loop import (
    GrowingAnswer,
    OverlapRemover,
    cut_call,
    is_request,
    join,
    open_fence,
    parts_at_end,
    replies,
    unfinished,
)
from openclaw.events import Spoken
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage, user_text
from openclaw.outbound.visible import SpeechStream

CODE = "Here it is:\n```python\ndef area(width, height):\n    return wid"
DATA = '[\n  {"name": "first", "value": 1},\n  {"name": "sec'


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        ("hel", "lo", "hello"),
        ("one two", " three", "one two three"),
        (CODE, "th * height\n```", CODE + "th * height\n```"),
        (CODE, "    return width * height\n```", CODE + "th * height\n```"),
        (CODE, "```python\n    return width * height\n```", CODE + "th * height\n```"),
        (CODE, "```python\nth * height\n```", CODE + "th * height\n```"),
        (DATA, 'ond"}]', DATA + 'ond"}]'),
        (DATA, '  {"name": "second"}]', DATA + 'ond"}]'),
        (DATA, '{"name": "first", "value": 1},\n  {"name": "second"}]', DATA + 'ond"}]'),
        ("x\n```\ncode\n", "```\nafter", "x\n```\ncode\n```\nafter"),
        ("```\na\n```\nThe end", "```python\nb", "```\na\n```\nThe end```python\nb"),
        ("0, 0, 0, 0, 0, 0, 0, 0, ", "0, 0, 0, 0, 0, 0, 0, 0, 1", "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1"),
        ("the same row\nthe same row\n", "the same row\nlast", "the same row\nthe same row\nthe same row\nlast"),
        ("She said: ha", "ha, no", "She said: haha, no"),
        # A break inside a word or sentence: what comes again is an overlap.
        (
            "The quick brown fox jumps over the la",
            "fox jumps over the lazy dog",
            "The quick brown fox jumps over the lazy dog",
        ),
        ("He said\nwe would go to the ", "we would go to the market", "He said\nwe would go to the market"),
        ("It ends here.", "It ends here. And more", "It ends here. And more"),
        (
            "我们今天去市场买菜然后一起回家做饭吃",
            "我们今天去市场买菜然后一起回家做饭吃了",
            "我们今天去市场买菜然后一起回家做饭吃了",
        ),
        (
            "first point: eggs\nsecond point: mi",
            "first point: eggs\nsecond point: milk",
            "first point: eggs\nsecond point: milk",
        ),
        # A break between lines or sentences: what comes again may be meant.
        *(
            (before, after, before + after)
            for before, after in [
                ("One.\nAnd so we sing along the shore\n", "And so we sing along the shore\nTwo."),
                ("One.\nAnd so we sing along the shore", "\nAnd so we sing along the shore\nTwo."),
                ("And so we sing along the shore\n", "And so we sing along the shore\n"),
                ("A\nfirst line of it\nsecond line of it\n", "first line of it\nsecond line of it\nB"),
                ("- [ ] buy one litre of milk\n- [ ] buy one", " litre of milk\n- [ ] buy one litre of milk\n"),
                ("```py\nself.assertEqual(a, b)\nse", "lf.assertEqual(a, b)\nself.assertEqual(a, b)\n```"),
                ("```py\nself.assertEqual(a, b)\n", "self.assertEqual(a, b)\nself.assertEqual(a, b)\n```"),
                ("x\nline one is here\nline two is here\nline o", "ne is here\nline two is here\nline one is here\n"),
                ("Oh, I love you more than words\n", "I love you more than words\n"),
                ("Slowly now. The old bell rings. ", "The old bell rings. Then silence."),
                ("Slowly now. The old bell rings.", " The old bell rings. Then silence."),
                ('[{"a":1,"b":"xyz"},', '{"a":1,"b":"xyz"},{"a":2}]'),
                ("床前明月光疑是地上霜举头望明月。", "床前明月光疑是地上霜举头望明月。低头"),
            ]
        ),
        ("", "all of it", "all of it"),
        ("all of it", "", "all of it"),
    ],
)
def test_parts_are_joined_without_loss_and_without_repetition(before: str, after: str, whole: str) -> None:
    assert join(before, after) == whole
    overlap = OverlapRemover(before)
    assert before + "".join(map(overlap.feed, after)) + overlap.close() == whole


WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "{", "}", "\n", "```", "1, ", '"key": ']), max_size=60)


@given(st.lists(st.uuids().map(str), min_size=2, max_size=30), st.data())
@settings(max_examples=150, deadline=None)
def test_a_text_cut_anywhere_and_repeated_a_little_comes_out_whole(words: list[str], data: st.DataObject) -> None:
    """The model begins again with a word or a line, unless the break is between two of them."""
    text = json.dumps(words, indent=1)
    place = data.draw(st.integers(0, len(text)))
    starts = [found.start() for found in re.finditer(r"\w+", text[: max(0, place - 20)]) if place - found.start() < 400]
    inside = 0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()
    again = data.draw(st.sampled_from([place, *starts])) if inside else place
    assert join(text[:place], text[again:]) == text


LINES = st.lists(
    st.sampled_from(["la la la la la", "- one litre of milk", "    total += price", "", "The end."]), max_size=8
)


@given(LINES, st.data())
@settings(max_examples=300, deadline=None)
def test_a_text_of_equal_lines_that_goes_on_exactly_loses_nothing(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    place = data.draw(st.integers(0, len(text)))
    assert join(text[:place], text[place:]) == text


@given(WORDS.map("".join), WORDS.map("".join), st.data())
@settings(max_examples=150, deadline=None)
def test_how_a_continuation_is_cut_into_deltas_does_not_matter(before: str, after: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(after)))
    overlap = OverlapRemover(before)
    assert before + overlap.feed(after[:place]) + overlap.feed(after[place:]) + overlap.close() == join(before, after)


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("a\n```py\nb", ("`", "py")),
        ("a\n```py\nb\n```", None),
        ("~~~~\n```\n~~~", ("~", "")),
        ("no code", None),
    ],
)
def test_an_open_code_block_is_known(text: str, fence: tuple[str, str] | None) -> None:
    assert open_fence(text) == fence


def says(text: str, stop: str = "length", note: str | None = None) -> AssistantMessage:
    message = AssistantMessage(content=[TextBlock(text=text)] if text else [], stop_reason=stop)  # type: ignore[arg-type]
    if note:
        message.error_message = note
    return message


def request_after(*parts: AssistantMessage) -> UserMessage:
    reply = GrowingAnswer(SpeechStream, 9)
    for message in parts:
        part = reply.begin()
        part.feed(message.text)
        part.pause()
        reply.add(part)
    return reply.request(parts[-1], 0)


def test_the_model_is_told_where_it_stopped_and_which_call_was_not_run() -> None:
    asked = request_after(says('the "last" words'))
    assert is_request(asked)
    assert r"the \"last\" words" in user_text(asked)
    cut = says("", note="The call of `write` was cut before its arguments were complete: left out.")
    assert cut_call(cut) is not None
    assert "`write`" in str(request_after(cut).content)


@pytest.mark.parametrize(
    ("last", "limit", "more"),
    [
        (says("half"), 3, True),
        (says("half"), 0, False),
        (says("whole", "stop"), 3, False),
        (says(""), 3, False),
        (says("", note="cut call"), 3, True),
    ],
)
def test_only_an_answer_with_something_to_go_on_from_is_continued(
    last: AssistantMessage, limit: int, more: bool
) -> None:
    assert unfinished([UserMessage(content="hi"), last], limit) is more


def test_after_a_restart_the_parts_of_an_answer_are_found_again() -> None:
    one, two = says("one two "), says("three ", "stop")
    history: list[Message] = [UserMessage(content="hi"), one, request_after(one), two]
    assert parts_at_end(history) == [one, two]
    assert replies([one, two, says("next", "stop")]) == ["one two three ", "next"]
    resumed = GrowingAnswer.resumed(history[:3], SpeechStream, 3)
    assert (resumed.parts, resumed.speech_so_far()) == (1, Spoken("one two"))
    assert GrowingAnswer.resumed(history[:2], SpeechStream, 3).parts == 1
    assert GrowingAnswer.resumed(history, SpeechStream, 3).parts == 0
