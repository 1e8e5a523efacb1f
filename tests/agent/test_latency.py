"""A few numbers tell how long answers took."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.latency import LONGEST_MS, Latency, together


@given(st.lists(st.integers(0, LONGEST_MS), min_size=1, max_size=200), st.integers(0, 200))
def test_sums_and_extremes_are_exact_and_the_percentile_is_near(times: list[int], split: int) -> None:
    parts = [Latency(), Latency()]
    for place, ms in enumerate(times):
        parts[place < split].add(ms)
    whole = together(parts)
    assert whole is not None
    view = whole.view()
    assert (view["count"], view["minMs"], view["maxMs"]) == (len(times), min(times), max(times))
    assert view["avgMs"] == round(sum(times) / len(times))
    exact = sorted(times)[math.ceil(len(times) * 0.95) - 1]
    assert exact * 0.99 - 1 <= view["p95Ms"] <= exact * 1.11 + 1


def test_what_nobody_waited_for_is_left_out() -> None:
    seen = Latency()
    seen.add(-1)
    seen.add(LONGEST_MS + 1)
    assert together([seen]) is None
