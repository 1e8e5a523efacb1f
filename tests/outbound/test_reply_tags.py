"""Tags that name the message an answer is for: read, kept from people, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.events import Silent, Spoken
from openclaw.outbound.limits import Limits
from openclaw.outbound.reply import parts_for
from openclaw.outbound.reply_tags import ReplyTags
from openclaw.outbound.visible import SpeechStream, heard

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
    ("a [[wiki link]] and [[1, 2], [3]]", "a [[wiki link]] and [[1, 2], [3]]", ""),
    ("write `[[reply_to_current]]` first", "write `[[reply_to_current]]` first", ""),
    ("x = [[reply_to\n:1]]", "x = [[reply_to\n:1]]", ""),
    ("ends with [[reply_to", "ends with [[reply_to", ""),
    ("the end [[reply_to:abc-1]]", "the end", "abc-1"),
]


@pytest.mark.parametrize(("text", "shown", "reply_to"), VECTORS)
def test_a_tag_is_read_and_not_shown(text: str, shown: str, reply_to: str) -> None:
    assert heard(text) == Spoken(shown, reply_to)


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
    assert stream.outcome == Spoken(shown, reply_to)


def test_a_tag_does_not_hide_a_decision_to_be_silent() -> None:
    assert heard("[[reply_to_current]] NO_REPLY") == Silent("NO_REPLY")


def test_half_a_tag_of_a_text_that_was_cut_off_is_not_shown() -> None:
    assert heard("well [[reply_to_cur", complete=False) == Spoken("well")


def test_a_bracket_that_is_no_tag_is_not_held_for_ever() -> None:
    tags = ReplyTags()
    assert tags.feed("[[reply_to:" + "x" * 300) != ""


@pytest.mark.parametrize(("tag", "quoted"), [("current", "msg-7"), ("abc", "abc"), ("", None)])
def test_the_first_message_of_a_reply_quotes_what_was_named(tag: str, quoted: str | None) -> None:
    route = {"channel": "telegram", "to": "5", "replyToId": "msg-7"}
    parts = parts_for(route, ["one", "two"], Limits(), reply_to=tag)
    assert [part.payload.get("replyToId") for part in parts] == [quoted, None]
