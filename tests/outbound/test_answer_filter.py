"""However an answer is cut into deltas, people see the same of it, and never a token or a thought."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.events import Silent, Spoken, Unsaid
from openclaw.messages import AssistantMessage, Route, TextBlock, ThinkingBlock, ToolCall
from openclaw.outbound.answer_filter import AnswerText, ReplyTags, SpeechStream, speech_of, visible_message
from openclaw.outbound.chunking import Limits
from openclaw.outbound.reply import ReplyShape, parts_for

EXAMPLES = int(os.environ.get("OPENCLAW_FUZZ_EXAMPLES", "400"))

SCRAPS = [
    "NO_REPLY", "HEARTBEAT_OK", "NO", "_RE", "PLY", "N", "HEART", "<think>", "</think>", "< / thinking >", "<final>",
    "</final>", "<thi", "nk>", "`", "``", "```", "~~~", "\n", "\n```python\n", " ", "a", "word ", "*", "**", "_", '"',
    ".", "!", "-", "<", "é", "👍", "(", "[", "<thought foo>",
]  # fmt: skip


def show(deltas: list[str], **how: int | None) -> tuple[str, object]:
    stream = SpeechStream(**how)  # type: ignore[arg-type]
    pieces = [piece for delta in deltas for piece in stream.feed(delta)] + stream.close()
    return "".join(piece.text for piece in pieces if isinstance(piece, AnswerText)), stream.outcome


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=14), data=st.data(), ack=st.sampled_from([None, 5]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_how_a_text_is_cut_into_deltas_does_not_matter(scraps: list[str], data: st.DataObject, ack: int | None) -> None:
    text = "".join(scraps)
    deltas = data.draw(cut(text))
    assert show(deltas, ack_max_chars=ack) == show([text], ack_max_chars=ack)


WORDS = st.sampled_from(["fine", "so ", "is it. ", "\n\n", "- ", "`code`", "1 < 2 ", "NOW ", "HEAR ", "**b** "])
SECRET = st.lists(st.sampled_from(["Ω", " Ω\n", "`Ω", "```\nΩ", "NO_REPLY Ω", "<b>Ω"]), min_size=1, max_size=4)
THOUGHT = st.builds(
    lambda name, body: f"<{name}>{''.join(body)}</{name}>", st.sampled_from(["think", "Thinking", "thought"]), SECRET
)
ANSWER = st.lists(st.one_of(WORDS, WORDS, THOUGHT), max_size=10).map("".join)
END = st.sampled_from(["", " NO_REPLY", "\nNO_REPLY.", " HEARTBEAT_OK", " **NO_REPLY**", "<think>Ω"])
START = st.sampled_from(["", "", "", "NO_REPLY.", "NO_REPLY ", "HEARTBEAT_OK "])


@given(start=START, answer=ANSWER, end=END, data=st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_token_and_no_thought_is_ever_shown(start: str, answer: str, end: str, data: st.DataObject) -> None:
    stream = SpeechStream()
    for delta in data.draw(cut(start + answer + end)):
        stream.feed(delta)
        assert not any(part in stream.said for part in ("Ω", "NO_", "HEARTB", "<th", "<Th"))
    stream.close()
    assert not any(part in stream.said for part in ("Ω", "NO_", "HEARTB", "<th", "<Th"))


def test_what_is_heard_is_a_value() -> None:
    assert speech_of("<think>x</think> hello ") == Spoken("hello")
    assert speech_of("<think>x</think>NO_REPLY") == Silent("NO_REPLY")
    assert speech_of("<think>only this") == Unsaid()
    assert speech_of(" \n") == Unsaid()


def test_a_stored_message_is_shown_without_silence_and_reasoning() -> None:
    call = ToolCall(id="c", name="read", arguments={})

    def shown(*blocks: TextBlock | ThinkingBlock | ToolCall, with_reasoning: bool = False) -> object:
        message = visible_message(AssistantMessage(content=list(blocks)), with_reasoning=with_reasoning)
        return message.content if message else None

    thought, hello = ThinkingBlock(thinking="x"), TextBlock(text="hello")
    assert shown(TextBlock(text="NO_REPLY")) is None
    assert shown(TextBlock(text="NO_"), TextBlock(text="REPLY")) is None
    assert shown(TextBlock(text="NO_REPLY"), call) == [call]
    assert shown(thought, hello) == [hello]
    assert shown(thought, hello, with_reasoning=True) == [thought, hello]
    assert shown(TextBlock(text="<think>x</think>hello"), with_reasoning=True) == [thought, hello]
    assert shown(TextBlock(text="hello <think>x")) == [hello]
    assert shown() == []


VECTORS = [
    ("hi [[reply_to: 42 ]] there", "hi there", "42"),
    ("[[reply_to:1]] a [[reply_to:2]] b", "a b", "2"),
    ("[[reply_to_current]][[reply_to:9]]x", "x", "9"),
    ("[[reply_to:9]][[reply_to_current]]x", "x", "9"),
    ("a [[reply_to:]] b", "a [[reply_to:]] b", ""),
    ("a [[ reply_to: ]] b", "a [[ reply_to: ]] b", ""),
    ("[[REPLY_TO_CURRENT]]\nfoo bar", "foo bar", "current"),
    ("word[[reply_to_current]]word", "word word", "current"),
    ("[[ reply_to_current ]] Hello ", "Hello", "current"),
    ("[[audio_as_voice]] spoken", "spoken", ""),
    ("said [[ audio_as_voice ]][[reply_to:4]]", "said", "4"),
    ("a [[wiki link]] and [[1, 2], [3]]", "a [[wiki link]] and [[1, 2], [3]]", ""),
    ("write `[[reply_to_current]]` first", "write `[[reply_to_current]]` first", ""),
    ("x = [[reply_to\n:1]]", "x = [[reply_to\n:1]]", ""),
    ("ends with [[reply_to", "ends with [[reply_to", ""),
    ("the end [[reply_to:abc-1]]", "the end", "abc-1"),
]


@pytest.mark.parametrize(("text", "shown", "reply_to"), VECTORS)
def test_a_tag_is_read_and_not_shown(text: str, shown: str, reply_to: str) -> None:
    assert speech_of(text) == Spoken(shown, reply_to, voice="audio_as_voice" in text)


@given(st.sampled_from(VECTORS), st.lists(st.integers(0, 60), max_size=8))
def test_where_the_text_is_cut_makes_no_difference(vector: tuple[str, str, str], cuts: list[int]) -> None:
    text, shown, reply_to = vector
    stream = SpeechStream()
    begin = 0
    said: list[str] = []
    for cut in [*sorted(cuts), len(text)]:
        said += [piece.text for piece in stream.feed(text[begin:cut])]
        begin = max(begin, min(cut, len(text)))
        assert "[[reply_to_current" not in "".join(said).lower().replace("`[[reply_to_current]]`", "")
    stream.feed(text[begin:])
    stream.close()
    assert stream.outcome == Spoken(shown, reply_to, voice="audio_as_voice" in text)


def test_a_tag_does_not_hide_a_decision_to_be_silent() -> None:
    assert speech_of("[[reply_to_current]] NO_REPLY") == Silent("NO_REPLY")


def test_half_a_tag_of_a_text_that_was_cut_off_is_not_shown() -> None:
    assert speech_of("well [[reply_to_cur", complete=False) == Spoken("well")


def test_a_bracket_that_is_no_tag_is_not_held_for_ever() -> None:
    tags = ReplyTags()
    assert tags.feed("[[reply_to:" + "x" * 300) != ""


@pytest.mark.parametrize(("tag", "quoted"), [("current", "msg-7"), ("abc", "abc"), ("", None)])
def test_the_first_message_of_a_reply_quotes_what_was_named(tag: str, quoted: str | None) -> None:
    route = Route(channel="telegram", to="5", reply_to_id="msg-7")
    parts = parts_for(route, ["one", "two"], ReplyShape(limits=Limits()), reply_to=tag)
    assert [part.payload.get("replyToId") for part in parts] == [quoted, None]
