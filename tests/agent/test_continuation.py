"""Parts of one answer, joined without loss and without repetition."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.agent.continuation import (
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
from openclaw.outbound.answer_filter import SpeechRules

CODE = "Here it is:\n```python\ndef area(width, height):\n    return wid"
DATA = '[\n  {"name": "first", "value": 1},\n  {"name": "sec'
LONG = " ".join(f"Sentence number {number} of a long answer." for number in range(100))


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
        ("Oh, I love you more than words\n", "I love you more than words\nEnd", "Oh, I love you more than words\nEnd"),
        ('[{"a":1,"b":"xyz"},', '{"a":1,"b":"xyz"},{"a":2}]', '[{"a":1,"b":"xyz"},{"a":2}]'),
        (
            '{"a": [\n  1,\n  22222222222222222,\n  ',
            "22222222222222222,\n  3]",
            '{"a": [\n  1,\n  22222222222222222,\n  3]',
        ),
        ("```py\nfor a in b:\n    return", "return a", "```py\nfor a in b:\n    return a"),
        ("So:\n\n```py\nload(", "\n```py\nload(path)", "So:\n\n```py\nload(path)"),
        # The whole answer from its beginning.
        (LONG[:1500], LONG, LONG),
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
                ("Slowly now. The old bell rings. ", "The old bell rings. Then silence."),
                ("Slowly now. The old bell rings.", " The old bell rings. Then silence."),
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


PYTHON = """Here is the function:

```python
def load(path, *, retries=3):
    \'\'\'Read the file, and try again if it is locked.\'\'\'
    for attempt in range(retries):
        try:
            with open(path) as handle:
                return json.load(handle)
        except OSError as error:
            if attempt == retries - 1:
                raise
            time.sleep(0.1 * attempt)
    return None


def store(path, value):
    with open(path, "w") as handle:
        json.dump(value, handle, indent=2)
        handle.write("\\n")
```

That is all.
"""
ITEMS = [
    {"id": number, "name": f"item {number}", "price": number * 10 + 5, "tags": ["new", "sale"], "stock": {"here": 7}}
    for number in range(7)
]
PROSE = """The old harbour lies east of the town. Boats come in at dawn, and the fishermen sort their catch on the quay.

By noon the market is over. What is left goes to the inn, where soup is cooked from it. "It is the best soup of the
coast," says the cook. Nobody contradicts her.

- Bring warm clothes, because the wind is cold.
- Bring cash, because nobody takes cards.
"""
TEXTS = {"python": PYTHON, "json": json.dumps(ITEMS, indent=2), "one line": json.dumps(ITEMS), "prose": PROSE}


def beginnings(before: str) -> set[int]:
    """Where a model may begin again after a break: some characters or words back, or at one of the last lines."""
    lines = [found.end() for found in re.finditer(r"^[ ]*", before, re.MULTILINE)][-3:]
    margins = [found.start() for found in re.finditer(r"^", before, re.MULTILINE)][-3:]
    words = [found.start() for found in re.finditer(r"\S+", before)][-12:]
    return {*(len(before) - back for back in (16, 20, 30, 40, 60, 80, 100, 200)), *lines, *margins, *words, 0}


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether the text in between is whole lines or whole sentences, or nothing but space."""
    again = text[start:end]
    begins_line = start == 0 or text[start - 1] == "\n"
    lines = (begins_line and again.endswith("\n")) or (again.startswith("\n") and text[end : end + 1] in ("", "\n"))
    sentence_before = begins_line or bool(re.search(r"[.!?]\W*\Z", text[:start]))
    sentences = sentence_before and bool(re.search(r"[.!?]\W*\Z", again))
    return lines or sentences or not again.strip()


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_cut_at_any_place_is_not_doubled_and_loses_nothing(name: str) -> None:
    text, doubled, cuts = TEXTS[name], [], 0
    for end in range(1, len(text)):
        before = text[:end]
        assert join(before, text[end:]) == text
        for start in beginnings(before):
            if start < 0 or end - start < 16 or is_whole(text, start, end):
                continue
            cuts += 1
            if join(before, text[start:]) != text:
                doubled.append((before[-40:], text[start : start + 40]))
    assert cuts > 1000 and doubled == []


@given(st.sampled_from(sorted(TEXTS)), st.data())
@settings(max_examples=300, deadline=None)
def test_a_repetition_is_removed_however_it_arrives(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    end = data.draw(st.integers(1, len(text)))
    start = data.draw(st.sampled_from(sorted(start for start in beginnings(text[:end]) if start >= 0)))
    overlap, shown, after = OverlapRemover(text[:end]), "", text[start:]
    while after:
        size = data.draw(st.integers(1, 60))
        shown, after = shown + overlap.feed(after[:size]), after[size:]
    assert text[:end] + shown + overlap.close() == join(text[:end], text[start:])


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
    reply = GrowingAnswer(SpeechRules(), 9)
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
    resumed = GrowingAnswer.resumed(history[:3], SpeechRules(), 3)
    assert (resumed.parts, resumed.speech_so_far()) == (1, Spoken("one two"))
    assert GrowingAnswer.resumed(history[:2], SpeechRules(), 3).parts == 1
    assert GrowingAnswer.resumed(history, SpeechRules(), 3).parts == 0
