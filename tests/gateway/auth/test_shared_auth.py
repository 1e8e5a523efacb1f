"""The Gateway's own secret."""

import pytest

from openclaw.config.schema.gateway import RateLimit
from openclaw.gateway.auth.shared_auth import (
    MAX_ADDRESSES,
    FailedAuthLimiter,
    SharedSecret,
    check,
    refusal_text,
    start_problem,
)
from tests.support.clock import HeldClock

TOKEN = SharedSecret(mode="token", token="s" * 24)


@pytest.mark.parametrize(
    ("token", "password", "reason"),
    [("s" * 24, None, ""), ("s" * 23, None, "mismatch"), (None, "s" * 24, "missing"), ("", None, "missing")],
)
def test_token_mode_looks_at_the_token_only(token: str | None, password: str | None, reason: str) -> None:
    assert check(TOKEN, token, password).reason == reason


def test_a_bearer_counts_as_whatever_this_gateway_uses() -> None:
    assert check(SharedSecret(mode="password", password="pässwörd"), "pässwörd", "pässwörd").ok
    assert check(TOKEN, "s" * 24, "s" * 24).ok


def test_without_a_configured_secret_nobody_gets_in() -> None:
    assert check(SharedSecret(mode="token"), "", None).reason == "unset"
    assert "set gateway.auth.token" in refusal_text("token", "unset", "cli", "cli")


@pytest.mark.parametrize(
    ("secret", "exposed", "starts"),
    [
        ("a-long-enough-test-token", True, True),
        ("short", False, True),
        ("short", True, False),
        ("", False, True),
        ("", True, False),
        ("undefined", False, False),
        ("null", False, False),
        ("[object Object]", False, False),
        ("changeme", True, False),
    ],
)
def test_weak_and_placeholder_secrets_do_not_start_a_gateway(secret: str, exposed: bool, starts: bool) -> None:
    assert (start_problem(SharedSecret(mode="token", token=secret), exposed=exposed) is None) is starts


def test_ten_failures_a_minute_and_no_more() -> None:
    clock = HeldClock()
    limiter = FailedAuthLimiter(clock, RateLimit())
    for _ in range(9):
        limiter.failed("a")
    assert limiter.wait_ms("a") == 0
    clock.advance(30)
    limiter.failed("a")
    assert limiter.wait_ms("a") == 30_000
    assert limiter.wait_ms("b") == 0
    clock.advance(30)
    assert limiter.wait_ms("a") == 0


def test_the_configured_limits_count() -> None:
    clock = HeldClock()
    limiter = FailedAuthLimiter(clock, RateLimit(max_attempts=2, window_ms=10_000, lockout_ms=300_000))
    limiter.failed("a")
    clock.advance(11)
    limiter.failed("a")
    assert limiter.wait_ms("a") == 0
    clock.advance(1)
    limiter.failed("a")
    assert limiter.wait_ms("a") == 300_000
    clock.advance(300)
    assert limiter.wait_ms("a") == 0
    assert limiter.exempts(local=True) and not limiter.exempts(local=False)
    assert not FailedAuthLimiter(clock, RateLimit(exempt_loopback=False)).exempts(local=True)


def test_what_the_limiter_remembers_is_bounded() -> None:
    limiter = FailedAuthLimiter(HeldClock(), RateLimit())
    for number in range(MAX_ADDRESSES + 50):
        limiter.failed(str(number))
    assert len(limiter._failures) == MAX_ADDRESSES
