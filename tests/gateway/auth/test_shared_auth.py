"""The Gateway's own secret."""

import msgspec
import pytest

from openclaw.config.schema.gateway import RateLimit
from openclaw.gateway.auth.authorise import (
    MAX_CALLERS,
    FailedAuthLimiter,
    SecretCheck,
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


class Guesser:
    """Sends secrets under one name."""

    def __init__(self, clock: HeldClock, limits: RateLimit) -> None:
        self.limiter = FailedAuthLimiter(clock, lambda: limits)

    def send(self, secret: str, caller: str = "a", *, gently: bool = False) -> SecretCheck:
        return self.limiter.guard(caller, lambda: check(TOKEN, secret, None), gently=gently)


def test_ten_failures_a_minute_and_no_more() -> None:
    clock = HeldClock()
    guesser = Guesser(clock, RateLimit())
    for _ in range(9):
        guesser.send("wrong")
    clock.advance(30)
    assert guesser.send("wrong").reason == "mismatch"
    assert guesser.send("wrong") == SecretCheck(False, "limited", 30_000)
    assert guesser.send(TOKEN.token).ok, "the right one always passes"
    assert guesser.send("wrong").reason == "limited", "and does not end the wait"
    assert guesser.send("wrong", "b").reason == "mismatch"
    clock.advance(30)
    assert guesser.send("wrong").reason == "mismatch"


def test_the_configured_limits_count() -> None:
    clock = HeldClock()
    guesser = Guesser(clock, RateLimit(max_attempts=2, window_ms=10_000, lockout_ms=300_000))
    guesser.send("wrong")
    clock.advance(11)
    assert guesser.send("wrong").reason == "mismatch"
    clock.advance(1)
    assert guesser.send("wrong").reason == "mismatch"
    assert guesser.send("wrong").wait_ms == 300_000
    clock.advance(299)
    assert guesser.send("wrong").wait_ms == 1000, "asking again does not make it longer"
    clock.advance(1)
    assert guesser.send("wrong").reason == "mismatch"


def test_a_caller_that_is_treated_gently_waits_a_second() -> None:
    clock = HeldClock()
    guesser = Guesser(clock, RateLimit(max_attempts=3, lockout_ms=300_000))
    for _ in range(3):
        guesser.send("wrong", gently=True)
    for _ in range(50):
        assert guesser.send("wrong", gently=True).wait_ms == 1000
    clock.advance(1)
    assert guesser.send("wrong", gently=True).reason == "mismatch"
    assert guesser.send("wrong", gently=True).reason == "limited"
    assert guesser.send(TOKEN.token, gently=True).ok


def test_sending_nothing_is_no_guess() -> None:
    guesser = Guesser(HeldClock(), RateLimit(max_attempts=1))
    for _ in range(20):
        assert guesser.send("").reason == "missing"
    assert guesser.send(TOKEN.token).ok


def test_what_the_limiter_remembers_is_bounded() -> None:
    guesser = Guesser(HeldClock(), RateLimit())
    for number in range(MAX_CALLERS + 50):
        guesser.send("wrong", str(number))
    assert len(guesser.limiter._failures) == MAX_CALLERS


@pytest.mark.parametrize("limits", [{"maxAttempts": 0}, {"maxAttempts": 1001}, {"windowMs": 10}, {"lockoutMs": 0}])
def test_the_limit_cannot_be_set_away(limits: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(limits, RateLimit)
