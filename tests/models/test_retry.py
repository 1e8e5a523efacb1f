from __future__ import annotations

import pytest

from openclaw.config.schema.system import Retry
from openclaw.models.base import ModelError
from openclaw.models.errors import next_retry_ms

FAST = Retry(base_delay_ms=5)
BUSY = ModelError("529", kind="overloaded", retryable=True)


@pytest.mark.parametrize(("attempt", "expected"), [(0, None), (1, 5), (2, 10), (3, 20), (4, None)])
def test_the_wait_doubles_and_ends_after_the_last_retry(attempt: int, expected: int | None) -> None:
    assert next_retry_ms(BUSY, attempt, FAST) == expected


@pytest.mark.parametrize(
    ("asked_s", "expected"),
    [(None, 2000), (0, 2000), (0.5, 2000), (7.5, 7500), (60, 60_000), (3600, 60_000)],
)
def test_a_wait_the_server_asks_for_is_honoured_up_to_the_maximum(asked_s: float | None, expected: int) -> None:
    error = ModelError("429", kind="rate_limit", retryable=True, retry_after_s=asked_s)
    assert next_retry_ms(error, 1, Retry()) == expected


def test_our_own_wait_is_capped_too() -> None:
    assert next_retry_ms(BUSY, 900, Retry(max_retries=1000)) == 60_000


def test_nothing_is_retried_when_switched_off() -> None:
    assert next_retry_ms(BUSY, 1, Retry(enabled=False)) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModelError("529", kind="overloaded", retryable=True), 5),
        (ModelError("429", kind="rate_limit", retryable=True, retry_after_s=1), 1000),
        (ModelError("bad key", kind="auth"), None),
        (ModelError("too long", kind="overflow", retryable=True), None),
    ],
)
def test_only_failures_that_pass_are_retried(error: ModelError, expected: int | None) -> None:
    assert next_retry_ms(error, 1, FAST) == expected
