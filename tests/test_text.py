from __future__ import annotations

import pytest

from openclaw.text import age, clipped, duration, short_duration, shortened


@pytest.mark.parametrize(
    ("text", "limit", "clipped_to", "shortened_to"),
    [
        ("short", 5, "short", "short"),
        ("longer", 5, "long…", "long…"),
        ("one  two", 5, "one …", "one…"),
        ("a\nb", 10, "a\nb", "a b"),
    ],
)
def test_a_text_is_cut_at_its_limit(text: str, limit: int, clipped_to: str, shortened_to: str) -> None:
    assert (clipped(text, limit), shortened(text, limit)) == (clipped_to, shortened_to)


@pytest.mark.parametrize(
    ("ms", "long", "short"),
    [
        (-5, "0 ms", "0s"),
        (450, "450 ms", "0s"),
        (3_250, "3.2 s", "3s"),
        (41_900, "41 s", "41s"),
        (303_000, "5 min 3 s", "5m03s"),
        (7_500_000, "2 h 5 min", "2h05m"),
        (273_600_000, "3 d 4 h", "76h00m"),
    ],
)
def test_durations_in_two_lengths(ms: int, long: str, short: str) -> None:
    assert (duration(ms), short_duration(ms)) == (long, short)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (None, "unknown"),
        (0.5, "just now"),
        (16, "16m ago"),
        (5 * 60, "5h ago"),
        (47 * 60, "47h ago"),
        (72 * 60, "3d ago"),
    ],
)
def test_an_age_has_one_unit(minutes: float | None, words: str) -> None:
    assert age(None if minutes is None else minutes * 60_000) == words
