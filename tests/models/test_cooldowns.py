"""Rests of credentials: their lengths, whom they concern, and what the file keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.config.schema.models import AuthCooldowns
from openclaw.models.base import Credential, ErrorKind, ModelError
from openclaw.models.keys import Cooldowns, CredentialStats, after_failure
from tests.support.clock import HeldClock

MINUTE = 60_000
HOUR = 3_600_000
NOW = 1_800_000_000_000


def failed(stats: CredentialStats, kind: ErrorKind, now: int = NOW, model: str = "p/m", **more: Any) -> CredentialStats:
    settings = more.pop("settings", AuthCooldowns())
    return after_failure(stats, ModelError("no", kind=kind, **more), "p", model, now, settings)


def rests(kind: ErrorKind, count: int, **more: Any) -> list[int]:
    """The rests after so many failures, each right after the rest before."""
    stats, now, found = CredentialStats(), NOW, list[int]()
    for _ in range(count):
        stats = failed(stats, kind, now, **more)
        found.append(stats.latest_cooldown_end() - now)
        now = stats.latest_cooldown_end() + 1
    return found


@pytest.mark.parametrize("kind", ["auth", "rate_limit", "overloaded", "timeout", "network", "other"])
def test_a_rest_grows_fivefold_up_to_an_hour(kind: ErrorKind) -> None:
    assert rests(kind, 5) == [MINUTE, 5 * MINUTE, 25 * MINUTE, HOUR, HOUR]


def test_an_empty_account_rests_for_hours() -> None:
    assert rests("billing", 4) == [5 * HOUR, 10 * HOUR, 20 * HOUR, 24 * HOUR]
    own = AuthCooldowns(billing_backoff_hours_by_provider={"p": 1}, billing_max_hours=3)
    assert rests("billing", 4, settings=own) == [HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR]


def test_a_wait_that_the_server_asks_for_is_kept_up_to_an_hour() -> None:
    assert rests("rate_limit", 1, retry_after_s=600) == [10 * MINUTE]
    assert rests("rate_limit", 1, retry_after_s=1e6) == [HOUR]


def test_failures_of_calls_that_ran_together_count_once() -> None:
    first = failed(CredentialStats(), "rate_limit")
    assert failed(first, "rate_limit", NOW + 5) is first


def test_old_failures_are_forgotten() -> None:
    first = failed(CredentialStats(), "rate_limit")
    again = failed(first, "rate_limit", NOW + 25 * HOUR)
    assert (again.error_count, again.failure_counts) == (1, {"rate_limit": 1})


@pytest.mark.parametrize(
    ("kind", "others"), [("rate_limit", False), ("overloaded", False), ("auth", True), ("billing", True)]
)
def test_a_failure_concerns_the_model_or_the_whole_account(kind: ErrorKind, others: bool) -> None:
    stats = failed(CredentialStats(), kind)
    assert stats.cooldown_end("p/m") > NOW
    assert (stats.cooldown_end("p/other") > NOW) is others


def test_a_second_model_that_fails_shows_that_it_is_the_account() -> None:
    stats = failed(failed(CredentialStats(), "rate_limit"), "rate_limit", NOW + 5, "p/other")
    assert stats.cooldown_end("p/third") > NOW


async def test_a_success_ends_the_rest_unless_it_began_before_the_failure(tmp_path: Path) -> None:
    clock = HeldClock()
    known, key = Cooldowns(clock), Credential("p:a", str(tmp_path / "auth-profiles.json"))
    began = clock.now_ms()
    clock.advance(1)
    known.failed(key, ModelError("no", kind="auth"), "p", "p/m", AuthCooldowns())
    known.succeeded(key, "p", began)
    assert known.cooldown_end(key, "p/m")
    known.succeeded(key, "p", clock.now_ms())
    assert not known.cooldown_end(key, "p/m")
    await known.close()


async def test_the_file_of_others_keeps_what_we_do_not_know(tmp_path: Path) -> None:
    path = tmp_path / "auth-profiles.json"
    theirs = {"lastUsed": 5, "errorCount": 3, "cooldownUntil": 7, "theirs": [1]}
    path.write_text(
        json.dumps({"version": 1, "profiles": {"p:a": {}}, "usageStats": {"p:a": theirs, "p:b": theirs}, "x": 1})
    )
    clock = HeldClock()
    known = Cooldowns(clock)
    known.take(str(path), {"p:a": msgspec.convert(theirs, CredentialStats)})
    known.succeeded(Credential("p:a", str(path)), "p", clock.now_ms())
    await known.close()
    stored = json.loads(path.read_text())
    assert stored["usageStats"] == {"p:a": {"lastUsed": clock.now_ms(), "theirs": [1]}, "p:b": theirs}
    assert (stored["x"], stored["lastGood"]) == (1, {"p": "p:a"})


async def test_a_damaged_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "auth-profiles.json"
    path.write_text("{broken")
    known = Cooldowns(HeldClock())
    known.failed(Credential("p:a", str(path)), ModelError("no", kind="auth"), "p", "p/m", AuthCooldowns())
    await known.close()
    assert path.read_text() == "{broken" and "cannot be read" in caplog.text
