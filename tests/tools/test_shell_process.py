from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.tools.shell_process import CommandOutput, clean


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        ("\x1bPq#0\x1b\\done", "done"),
        ("\x1b(Bplain\x1b7", "plain"),
        ("a\x00b\x07c\x08\x7f\x9bd", "abcd"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r50%\r100%\nok", "100%\nok"),
        ("tab\tkept", "tab\tkept"),
        ("grüße 🎉", "grüße 🎉"),
    ],
)
def test_only_what_a_person_would_see_is_kept(raw: str, expected: str) -> None:
    assert clean(raw) == expected


def test_long_output_keeps_its_end_in_bounded_memory() -> None:
    output = CommandOutput(1000)
    for n in range(50_000):
        output.feed(b"line %d\n" % n)
    assert output.text().endswith("line 49998\nline 49999\n")
    assert len(output.text()) == 1000
    assert output.truncated
    assert output.total_bytes == sum(len(f"line {n}\n") for n in range(50_000))
    assert len(output._raw) <= 4 * 1000


def test_a_cut_inside_a_character_leaves_no_rubbish() -> None:
    output = CommandOutput(1000)
    output.feed("é".encode() * 5000 + b"!")
    assert set(output.text()) == {"é", "!"}


def test_draining_says_when_something_was_lost() -> None:
    output = CommandOutput(1000)
    output.feed(b"seen")
    assert output.drain() == "seen"
    output.feed(b"x" * 10_000)
    assert output.drain() == "[Output cut here: more came than is kept]\n" + "x" * 1000
    assert output.drain() == ""


text = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufff9\ufffa\ufffb\ufffe\uffff"))


@given(st.lists(st.one_of(text, st.sampled_from(["\x1b[1;31m", "\x1b[0m", "\x1b]0;t\x07"]))), st.data())
def test_draining_in_pieces_gives_the_same_as_at_once(parts: list[str], data: st.DataObject) -> None:
    raw = "".join(parts).encode()
    output = CommandOutput(100_000)
    drained = ""
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        output.feed(raw[:size])
        raw = raw[size:]
        drained += output.drain()
    drained += output.drain(final=True)
    assert drained == clean("".join(parts)) == output.text()
