"""Delays before the next attempt."""

from __future__ import annotations

import pytest

from openclaw.clock import Backoff, retry_delay_s


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (2000, 10)])
def test_reconnect_delays_double_up_to_their_limit(attempt: int, seconds: float) -> None:
    assert Backoff(initial_s=1, max_s=10).delay_s(attempt, lambda: 0.0) == seconds


def test_reconnect_jitter_only_adds() -> None:
    assert Backoff(initial_s=1, max_s=10, jitter=0.2).delay_s(1, lambda: 0.5) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("attempt", "asked", "seconds"),
    [(1, None, 0.4), (2, None, 0.8), (1, 60, 30), (1, 2, 2), (9, None, 30), (1, 0.1, 0.4)],
)
def test_a_retry_waits_for_what_the_server_asked_within_bounds(
    attempt: int, asked: float | None, seconds: float
) -> None:
    policy = Backoff(initial_s=0.4, max_s=30, jitter=0)
    assert retry_delay_s(policy, attempt, asked, lambda: 0.9) == pytest.approx(seconds)
