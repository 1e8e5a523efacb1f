"""When a session ends: the rules of the configuration and the clock on the wall."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openclaw.config.schema.messages import ResetByType, Session, SessionReset
from openclaw.sessions.freshness import (
    Policy,
    activity_at,
    expires,
    expiry,
    is_fresh,
    just_spoken,
    last_boundary,
    next_boundary,
    reset_policy,
    session_type,
    touched,
    why_stale,
)

DAILY = Policy("daily", 4, None)
MINUTE = 60_000
ZONES = (
    "UTC",
    "Etc/GMT+12",
    "Pacific/Kiritimati",
    "America/Los_Angeles",
    "America/St_Johns",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
)


def ms(text: str, zone: tzinfo = UTC) -> int:
    """``01-18 03:00`` of 2026, or with its own year."""
    full = text if text.count("-") == 2 else f"2026-{text}"
    return round(datetime.fromisoformat(full).replace(tzinfo=zone).timestamp() * 1000)


def rule(**fields: Any) -> SessionReset:
    return SessionReset(**fields)


# Which rule


@pytest.mark.parametrize(
    ("session", "kind", "channel", "wanted"),
    [
        ({}, "direct", None, ("daily", 4, None)),
        ({"idle_minutes": 240}, "direct", None, ("idle", 4, 240)),
        (
            {"idle_minutes": 240, "reset_by_type": ResetByType(thread=rule(mode="idle", idle_minutes=180))},
            "direct",
            None,
            ("daily", 4, 240),
        ),
        ({"reset": rule(), "idle_minutes": 240}, "direct", None, ("daily", 4, 240)),
        (
            {
                "reset": rule(mode="idle", idle_minutes=30),
                "reset_by_type": ResetByType(group=rule(at_hour=6)),
            },
            "group",
            None,
            ("idle", 6, 30),
        ),
        ({"reset_by_type": ResetByType(dm=rule(mode="idle", idle_minutes=10))}, "direct", None, ("idle", 4, 10)),
        (
            {"reset_by_type": ResetByType(dm=rule(idle_minutes=10), direct=rule(idle_minutes=20))},
            "direct",
            None,
            ("daily", 4, 20),
        ),
        (
            {
                "idle_minutes": 60,
                "reset": rule(mode="daily", at_hour=9, idle_minutes=5),
                "reset_by_type": ResetByType(direct=rule(mode="daily", at_hour=7)),
                "reset_by_channel": {"Discord": rule(mode="idle")},
            },
            "direct",
            " discord ",
            ("idle", 4, 60),
        ),
        ({"idle_minutes": 9, "reset_by_channel": {"signal": rule()}}, "direct", "signal", ("daily", 4, None)),
        ({"idle_minutes": 9, "reset_by_channel": {"signal": rule()}}, "direct", "discord", ("idle", 4, 9)),
        ({"reset": rule(at_hour=99)}, "direct", None, ("daily", 23, None)),
        ({"reset": rule(at_hour=-3)}, "direct", None, ("daily", 0, None)),
        ({"reset": rule(at_hour=5.9)}, "direct", None, ("daily", 5, None)),
        ({"reset": rule(at_hour="nine")}, "direct", None, ("daily", 4, None)),
        ({"reset": rule(mode="idle", idle_minutes=0)}, "direct", None, ("idle", 4, 1)),
        ({"reset": rule(mode="idle")}, "direct", None, ("idle", 4, 60)),
        ({"reset": rule(at_hour=0)}, "direct", None, ("daily", 0, None)),
    ],
)
def test_the_rule_for_a_session_is_found_in_the_configuration(
    session: dict[str, Any], kind: Any, channel: str | None, wanted: tuple[Any, ...]
) -> None:
    assert reset_policy(Session(**session), kind, channel) == Policy(*wanted)


@pytest.mark.parametrize(
    ("key", "facts", "wanted"),
    [
        ("agent:main:main", {}, "direct"),
        ("agent:group:main", {}, "direct"),
        ("agent:main:telegram:direct:42", {"chat_type": "dm"}, "direct"),
        ("agent:main:main", {"chat_type": "group"}, "group"),
        ("agent:main:whatsapp:group:1@g.us", {}, "group"),
        ("agent:main:discord:channel:9", {}, "group"),
        ("agent:main:matrix:room:!x", {}, "group"),
        ("agent:main:discord:channel:9:thread:3", {}, "thread"),
        ("agent:main:telegram:group:9:topic:3", {"chat_type": "group"}, "thread"),
        ("agent:main:main", {"thread": True}, "thread"),
    ],
)
def test_the_kind_of_a_session_follows_from_its_key_and_message(key: str, facts: dict[str, Any], wanted: str) -> None:
    assert session_type(key, **facts) == wanted


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("agent:main:main", True),
        ("agent:cron:main", True),
        ("agent:main:subagent:1", False),
        ("agent:main:cron:job", False),
        ("agent:main:hook:abc", False),
        ("agent:main:acp:x", False),
    ],
)
def test_sessions_of_one_task_do_not_end_with_the_day(key: str, wanted: bool) -> None:
    assert expires(key) is wanted


# What the clock says


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Asia/Kolkata"), ZoneInfo("America/Los_Angeles")])
@pytest.mark.parametrize(
    ("policy", "updated", "now", "fresh"),
    [
        (DAILY, "01-18 03:00", "01-18 05:00", False),
        (DAILY, "01-17 03:30", "01-18 03:00", False),
        (DAILY, "01-17 04:30", "01-18 03:59", True),
        (DAILY, "01-18 04:00:00.000", "01-18 05:00", True),
        (DAILY, "01-18 03:59:59.999", "01-18 04:00:00.000", False),
        (DAILY, "01-18 03:59:59.998", "01-18 03:59:59.999", True),
        (Policy("daily", 4, 30), "01-18 04:45", "01-18 05:30", False),
        (Policy("daily", 4, 30), "01-18 03:50", "01-18 04:10", False),
        (Policy("idle", 4, 60), "01-18 03:30", "01-18 04:30", True),
        (Policy("idle", 4, 60), "01-18 03:30", "01-18 04:30:00.001", False),
        (Policy("idle", 4, 180), "01-18 03:00", "01-18 05:00", True),
        (Policy("idle", 4, 240), "01-18 03:30", "01-18 05:00", True),
        (Policy("daily", 0, None), "01-17 23:59", "01-18 00:00", False),
        (Policy("daily", 23, None), "01-17 22:59", "01-18 22:59", False),
        (DAILY, "01-19 12:00", "01-18 05:00", True),
    ],
)
def test_freshness(policy: Policy, updated: str, now: str, fresh: bool, zone: tzinfo) -> None:
    assert is_fresh(ms(updated, zone), policy, ms(now, zone), zone) is fresh


def test_a_channel_with_a_week_of_patience_keeps_its_session() -> None:
    session = Session(
        idle_minutes=60,
        reset_by_type=ResetByType(dm=rule(mode="idle", idle_minutes=10)),
        reset_by_channel={"discord": rule(mode="idle", idle_minutes=10080)},
    )
    policy, now = reset_policy(session, "direct", "discord"), ms("01-18 05:00")
    assert is_fresh(now - 10079 * MINUTE, policy, now, UTC)
    assert not is_fresh(now - 10081 * MINUTE, policy, now, UTC)


@pytest.mark.parametrize(
    ("zone", "hour", "now", "boundary"),
    [
        # Los Angeles, 8 March 2026: 02:00 becomes 03:00; 1 November: 02:00 becomes 01:00.
        ("America/Los_Angeles", 4, "2026-03-08T12:00Z", "2026-03-08T11:00Z"),
        ("America/Los_Angeles", 4, "2026-03-08T10:30Z", "2026-03-07T12:00Z"),
        ("America/Los_Angeles", 4, "2026-03-09T10:59Z", "2026-03-08T11:00Z"),
        ("America/Los_Angeles", 2, "2026-03-08T10:00Z", "2026-03-08T10:00Z"),
        ("America/Los_Angeles", 4, "2026-11-01T11:59Z", "2026-10-31T11:00Z"),
        ("America/Los_Angeles", 4, "2026-11-01T12:00Z", "2026-11-01T12:00Z"),
        ("America/Los_Angeles", 1, "2026-11-01T09:30Z", "2026-11-01T08:00Z"),
        ("Europe/Berlin", 4, "2026-03-29T02:00Z", "2026-03-29T02:00Z"),
        ("Europe/Berlin", 4, "2026-03-29T01:59Z", "2026-03-28T03:00Z"),
        ("Europe/Berlin", 4, "2026-10-25T02:59Z", "2026-10-24T02:00Z"),
        # Half and quarter hours, half an hour of daylight saving, both ends of the calendar.
        ("Asia/Kolkata", 4, "2026-01-18T00:00Z", "2026-01-17T22:30Z"),
        ("Asia/Kathmandu", 4, "2026-01-18T00:00Z", "2026-01-17T22:15Z"),
        ("Australia/Lord_Howe", 4, "2026-04-05T00:00Z", "2026-04-04T17:30Z"),
        ("Pacific/Kiritimati", 4, "2026-01-18T00:00Z", "2026-01-17T14:00Z"),
        ("Etc/GMT+12", 4, "2026-01-18T00:00Z", "2026-01-17T16:00Z"),
    ],
)
def test_the_boundary_is_a_time_on_the_local_calendar(zone: str, hour: int, now: str, boundary: str) -> None:
    moment, wanted = (int(datetime.fromisoformat(text).timestamp() * 1000) for text in (now, boundary))
    assert last_boundary(hour, moment, ZoneInfo(zone)) == wanted


@pytest.fixture
def los_angeles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("day", ["2026-03-08", "2026-06-01", "2026-11-01"])
def test_without_a_zone_the_host_clock_counts(los_angeles: None, day: str) -> None:
    zone = ZoneInfo("America/Los_Angeles")
    for hour in range(24):
        now = ms(f"{day} {hour:02d}:30", zone)
        for at_hour in (0, 2, 4, 23):
            assert last_boundary(at_hour, now) == last_boundary(at_hour, now, zone)


moments = st.integers(ms("2000-01-01 00:00"), ms("2037-01-01 00:00"))


@given(moments, st.integers(0, 23), st.sampled_from(ZONES))
@example(ms("2011-12-31 03:00", ZoneInfo("Pacific/Apia")), 4, "Pacific/Apia")
def test_boundaries_are_a_day_apart_and_now_lies_between_them(now: int, hour: int, zone: str) -> None:
    before, after = last_boundary(hour, now, ZoneInfo(zone)), next_boundary(hour, now, ZoneInfo(zone))
    assert before <= now < after
    # A calendar day may lose or gain some hours; Samoa once left out a whole one.
    assert 23 * 60 * MINUTE <= after - before <= 49 * 60 * MINUTE


@given(moments, st.integers(0, 30 * 24 * 60), st.integers(0, 23), st.sampled_from(ZONES))
def test_a_daily_session_ends_exactly_when_a_boundary_has_passed(
    updated: int, minutes: int, hour: int, zone: str
) -> None:
    now = updated + minutes * MINUTE
    passed = next_boundary(hour, updated, ZoneInfo(zone)) <= now
    assert is_fresh(updated, Policy("daily", hour, None), now, ZoneInfo(zone)) is not passed


@given(moments, st.integers(-1, 90_000), st.integers(0, 23), st.integers(1, 5), st.sampled_from(ZONES))
@example(ms("2026-11-15 04:00", ZoneInfo("Asia/Kathmandu")) - 1, 1, 4, 5, "Asia/Kathmandu")
@example(ms("2026-11-15 04:00", ZoneInfo("Australia/Lord_Howe")) - 30_000, 60_000, 4, 5, "Australia/Lord_Howe")
def test_no_rule_ends_a_session_in_which_somebody_has_just_spoken(
    updated: int, passed: int, hour: int, idle: int, zone: str
) -> None:
    now = updated + passed
    if just_spoken(updated, now):
        assert is_fresh(updated, Policy("daily", hour, idle), now, ZoneInfo(zone))


@given(moments, moments, st.integers(0, 23), st.integers(1, 100_000), st.sampled_from(("daily", "idle")))
def test_both_rules_together_end_a_session_when_either_would(
    updated: int, now: int, hour: int, idle: int, mode: Any
) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    alone = [is_fresh(updated, Policy("idle", hour, idle), now, zone)]
    if mode == "daily":
        alone.append(is_fresh(updated, Policy("daily", hour, None), now, zone))
    assert is_fresh(updated, Policy(mode, hour, idle), now, zone) is all(alone)


# In words


@pytest.mark.parametrize(
    ("policy", "updated", "now", "ended_by", "words"),
    [
        (DAILY, "01-18 03:00", "01-18 05:00", "daily", "daily reset at 04:00"),
        (Policy("daily", 0, None), "01-17 03:00", "01-18 05:00", "daily", "daily reset at 00:00"),
        (Policy("idle", 4, 60), "01-18 03:00", "01-18 05:00", "idle", "nothing was said for 1 hour"),
        (Policy("idle", 4, 45), "01-18 03:00", "01-18 05:00", "idle", "nothing was said for 45 minutes"),
        (Policy("idle", 4, 2880), "01-08 03:00", "01-18 05:00", "idle", "nothing was said for 2 days"),
        (Policy("daily", 4, 90), "01-18 03:00", "01-18 08:00", "daily", "daily reset at 04:00"),
        (Policy("daily", 4, 30), "01-18 03:00", "01-18 08:00", "idle", "nothing was said for 30 minutes"),
        (DAILY, "01-18 04:00", "01-18 05:00", None, None),
    ],
)
def test_the_reason_is_told_in_words_and_names_what_came_first(
    policy: Policy, updated: str, now: str, ended_by: str | None, words: str | None
) -> None:
    assert expiry(ms(updated), policy, ms(now), UTC) == ended_by
    assert why_stale(ms(updated), policy, ms(now), UTC) == words


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [(None, None), ({}, None), ({"updatedAt": 5}, 5), ({"updatedAt": 5.7}, 5), ({"updatedAt": "yesterday"}, None)],
)
def test_activity_is_what_the_entry_says_or_unknown(entry: Any, wanted: int | None) -> None:
    assert activity_at(entry) == wanted


@pytest.mark.parametrize(
    ("stored", "source", "wanted"),
    [
        ({"updatedAt": 5}, "webchat", 9),
        ({"updatedAt": 5}, "heartbeat", 5),
        ({"updatedAt": 20}, "signal", 20),
        ({}, "heartbeat", 9),
    ],
)
def test_people_keep_a_session_alive_and_heartbeats_do_not(stored: dict[str, Any], source: str, wanted: int) -> None:
    assert touched(stored, 9, source) == wanted


def test_a_session_of_unknown_age_goes_on() -> None:
    assert is_fresh(None, Policy("idle", 4, 1), ms("01-18 05:00"), UTC)
