"""The limits of channels, and how longer texts are cut."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.load import parse_config
from openclaw.outbound.limits import Limits, chunk_paragraphs, chunk_text, limits_for, utf16_length

TEXTS = st.text(st.sampled_from("ab (()\n\t😀é漢x `") | st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        ("hello world foo", 11, ["hello", "world foo"]),
        ("line one\nline two is long", 12, ["line one", "line two is", "long"]),
        ("see (a b c d e) tail", 12, ["see", "(a b c d e)", "tail"]),
        ("abcdefghijkl", 5, ["abcde", "fghij", "kl"]),
        ("a (unclosed b c d e f", 10, ["a", "(unclosed", "b c d e f"]),
        ("😀😀😀", 3, ["😀", "😀", "😀"]),
        ("😀", 1, ["😀"]),
        ("", 10, []),
        ("any length", 0, ["any length"]),
        ("any length", -1, ["any length"]),
        ("short", 5, ["short"]),
        ("one\r\ntwo", 5, ["one", "two"]),
    ],
)
def test_plain_text_is_cut_at_lines_then_words_then_anywhere(text: str, limit: int, chunks: list[str]) -> None:
    assert chunk_text(text, limit) == chunks


@given(TEXTS, st.integers(1, 30))
def test_nothing_but_white_space_is_lost_and_every_piece_fits(text: str, limit: int) -> None:
    chunks = chunk_text(text, limit)
    assert re.sub(r"\s", "", "".join(chunks)) == re.sub(r"\s", "", text)
    assert all(utf16_length(chunk) <= limit or len(chunk) == 1 for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        ("A one\n\nB two\n \nC three", 100, ["A one", "B two", "C three"]),
        ("- a\n- b\n- c", 100, ["- a\n- b\n- c"]),
        ("```\nx\n\ny\n```\n\nend", 100, ["```\nx\n\ny\n```", "end"]),
        ("long paragraph\n\nb", 5, ["long", "parag", "raph", "b"]),
        ("  \n\n ", 5, []),
    ],
)
def test_by_paragraph_each_paragraph_is_a_message(text: str, limit: int, chunks: list[str]) -> None:
    assert chunk_paragraphs(text, limit) == chunks


@given(TEXTS, st.integers(1, 30))
def test_by_paragraph_nothing_is_lost_either(text: str, limit: int) -> None:
    joined = "".join(chunk_paragraphs(text, limit))
    assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", text)


def config(channels: dict[str, Any]) -> Any:
    loaded = parse_config("openclaw.json", msgspec.json.encode({"channels": channels}).decode(), {})
    assert loaded.valid, loaded.issues
    return loaded.config


@pytest.mark.parametrize(
    ("channels", "channel", "account", "limits"),
    [
        ({}, "signal", None, Limits(4000)),
        ({"signal": {"account": "+15550000001", "textChunkLimit": 100}}, "signal", None, Limits(100)),
        (
            {"signal": {"textChunkLimit": 100, "accounts": {"Work": {"textChunkLimit": 50, "chunkMode": "newline"}}}},
            "signal",
            "work",
            Limits(50, "newline"),
        ),
        ({"signal": {"textChunkLimit": 100, "accounts": {"work": {}}}}, "signal", "work", Limits(100)),
        ({"discord": {"textChunkLimit": 9000}}, "discord", None, Limits(2000)),
        ({"zalo": {"allowFrom": []}}, "zalo", None, Limits(2000)),
        ({"irc": {"accounts": {"a": {"textChunkLimit": 300}}}}, "irc", "A", Limits(300)),
        ({}, "unheard-of", None, Limits(4000)),
    ],
)
def test_a_limit_is_the_accounts_then_the_channels_then_the_built_in_one(
    channels: dict[str, Any], channel: str, account: str | None, limits: Limits
) -> None:
    assert limits_for(config(channels), channel, account) == limits
