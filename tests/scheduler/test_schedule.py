"""When jobs are due: intervals without drift, cron expressions on their zone's clock, the pause after failures."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.scheduler.schedule import BadSchedule, backoff_ms, check_new, next_run

NOW = 1_794_767_288_898


def local(text: str, zone: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def test_a_cron_expression_counts_on_the_clock_of_its_zone() -> None:
    assert next_run({"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Madrid"}, NOW) == 1_794_808_800_000


@pytest.mark.parametrize(("now", "due"), [(1000, 61_000), (61_000, 61_000), (61_001, 121_000)])
def test_an_interval_counts_from_its_anchor(now: int, due: int) -> None:
    assert next_run({"kind": "every", "everyMs": 60_000, "anchorMs": 1000}, now) == due


@given(st.integers(0, 10**13), st.integers(1, 10**9), st.integers(0, 10**13))
def test_an_interval_never_drifts(anchor: int, every: int, now: int) -> None:
    due = next_run({"kind": "every", "everyMs": every, "anchorMs": anchor}, now)
    assert due is not None and due >= now and (due - anchor) % every == 0


@pytest.mark.parametrize(
    ("expr", "zone", "now", "due"),
    [
        # Madrid, 29 March 2026: there is no 02:30. The job runs once, as soon as the hour is over.
        ("30 2 * * *", "Europe/Madrid", "2026-03-29T00:00", "2026-03-29T03:00"),
        # Madrid, 25 October 2026: 02:30 comes twice. The job runs at the first.
        ("30 2 * * *", "Europe/Madrid", "2026-10-25T00:00", "2026-10-25T02:30"),
        ("0 9 * * 1-5", "America/New_York", "2026-11-13T10:00", "2026-11-16T09:00"),
        ("*/15 * * * *", "UTC", "2026-11-13T10:01", "2026-11-13T10:15"),
        ("@daily", "UTC", "2026-11-13T10:01", "2026-11-14T00:00"),
        ("30 0 0 1 1 * 2030", "UTC", "2026-11-13T10:01", "2030-01-01T00:00:30"),
    ],
)
def test_cron_expressions(expr: str, zone: str, now: str, due: str) -> None:
    assert next_run({"kind": "cron", "expr": expr, "tz": zone}, local(now, zone)) == local(due, zone)


def test_an_hour_that_comes_twice_runs_a_daily_job_once() -> None:
    zone, schedule = "Europe/Madrid", {"kind": "cron", "expr": "30 2 * * *", "tz": "Europe/Madrid"}
    first = next_run(schedule, local("2026-10-25T00:00", zone))
    assert first is not None
    assert next_run(schedule, first + 1) == local("2026-10-26T02:30", zone)


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ({"kind": "cron", "expr": "61 * * * *"}, "is not a cron expression"),
        ({"kind": "cron", "expr": "* * *"}, "is not a cron expression"),
        ({"kind": "cron", "expr": "0 0 30 2 *", "tz": "UTC"}, "cron"),
        ({"kind": "cron", "expr": "* * * * *", "tz": "Mars/Base"}, "is not a time zone"),
        ({"kind": "every", "everyMs": 0}, "1 or more"),
        ({"kind": "at", "at": "tomorrow"}, "is not a time"),
        ({"kind": "at", "at": str(NOW - 61_000)}, "in the past"),
        ({"kind": "at", "at": "2099-01-01T00:00:00Z"}, "too far in the future"),
        ({"kind": "never"}, "must be at, every or cron"),
    ],
)
def test_a_schedule_that_cannot_be_says_why(schedule: dict[str, object], problem: str) -> None:
    with pytest.raises(BadSchedule, match=problem):
        check_new(schedule, NOW)


def test_a_moment_that_is_just_over_is_taken() -> None:
    check_new({"kind": "at", "at": str(NOW - 30_000)}, NOW)


def test_failures_in_a_row_wait_longer_and_longer() -> None:
    assert [backoff_ms(count) // 1000 for count in range(8)] == [0, 30, 60, 300, 900, 3600, 3600, 3600]
