from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.models.http import SseParser, SseTooLarge

STREAM = (
    b": hello\n\nevent: a\ndata: {\"n\":1}\n\ndata: x\ndata: y\n\nid: 7\nretry: 5\ndata:no space\n\n"
    b"event: named only\n\ndata\n\ndata:\ndata: after empty\n\n\n\ndata: last\n\n"
)  # fmt: skip
EVENTS = [b'{"n":1}', b"x\ny", b"no space", b"", b"\nafter empty", b"last"]


def parse(raw: bytes, cuts: list[int]) -> list[bytes]:
    parser = SseParser()
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    events: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        events += parser.feed(raw[start:end])
    return events


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_events_are_the_same_for_every_line_ending_and_with_a_byte_order_mark(newline: bytes, mark: bytes) -> None:
    assert parse(mark + STREAM.replace(b"\n", newline), []) == EVENTS


@given(
    st.lists(st.integers(0, 10_000), max_size=30),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_any_split_of_the_bytes_gives_the_same_events(cuts: list[int], newline: bytes, mark: bytes) -> None:
    assert parse(mark + STREAM.replace(b"\n", newline), cuts) == EVENTS


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5))
def test_data_comes_out_as_it_went_in(texts: list[str]) -> None:
    raw = "".join(f"event: e\ndata: {text}\n\n" for text in texts).encode()
    assert parse(raw, []) == [text.encode() for text in texts]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_byte_alone_gives_the_same_events(newline: bytes, mark: bytes) -> None:
    raw = mark + STREAM.replace(b"\n", newline)
    assert parse(raw, list(range(len(raw)))) == EVENTS


def test_an_event_is_delivered_as_soon_as_its_blank_line_has_come() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n\n") == [b"b"]


def test_the_last_event_may_lack_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: [DONE]") == [b"a"]
    assert parser.finish() == b"[DONE]"
    assert parser.finish() is None


@pytest.mark.parametrize("ending", [b"", b"\n\n", b"\ndata: more\n\n"])
def test_an_event_that_never_ends_is_refused(ending: bytes) -> None:
    parser = SseParser(max_event_bytes=1000)
    with pytest.raises(SseTooLarge, match="1000 bytes"):
        parser.feed(b"data: " + b"x" * 2000 + ending)


def test_many_small_events_may_together_be_larger_than_one_may_be() -> None:
    assert len(SseParser(max_event_bytes=100).feed(b"data: 0123456789\n\n" * 1000)) == 1000
