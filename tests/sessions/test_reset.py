"""When a session ends, what is carried over, and how the next one begins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openclaw.config.schema.messages import ResetByType, Session, SessionReset
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.reset import (
    CHAT_FIELDS,
    MOST_REMEMBERED,
    SESSION_FIELDS,
    MessageFacts,
    ResetPolicy,
    activity_at,
    ensure_fresh,
    expires,
    expiry,
    expiry_text,
    last_boundary,
    next_boundary,
    previous_sessions,
    reset_policy,
    resumed_entry,
    rotate,
    rotated_entry,
    session_type,
    touched,
    transcript_ref,
)

from .stores import AGENT, FileStores, file_stores

DAILY = ResetPolicy("daily", 4, None)
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


def is_fresh(updated_at: int | None, policy: ResetPolicy, now_ms: int, zone: tzinfo) -> bool:
    return expiry(updated_at, policy, now_ms, zone) is None


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
    assert reset_policy(Session(**session), kind, channel) == ResetPolicy(*wanted)


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
        (ResetPolicy("daily", 4, 30), "01-18 04:45", "01-18 05:30", False),
        (ResetPolicy("daily", 4, 30), "01-18 03:50", "01-18 04:10", False),
        (ResetPolicy("idle", 4, 60), "01-18 03:30", "01-18 04:30", True),
        (ResetPolicy("idle", 4, 60), "01-18 03:30", "01-18 04:30:00.001", False),
        (ResetPolicy("idle", 4, 180), "01-18 03:00", "01-18 05:00", True),
        (ResetPolicy("idle", 4, 240), "01-18 03:30", "01-18 05:00", True),
        (ResetPolicy("daily", 0, None), "01-17 23:59", "01-18 00:00", False),
        (ResetPolicy("daily", 23, None), "01-17 22:59", "01-18 22:59", False),
        (DAILY, "01-19 12:00", "01-18 05:00", True),
    ],
)
def test_freshness(policy: ResetPolicy, updated: str, now: str, fresh: bool, zone: tzinfo) -> None:
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
    assert is_fresh(updated, ResetPolicy("daily", hour, None), now, ZoneInfo(zone)) is not passed


@given(moments, moments, st.integers(0, 23), st.integers(1, 100_000), st.sampled_from(("daily", "idle")))
def test_both_rules_together_end_a_session_when_either_would(
    updated: int, now: int, hour: int, idle: int, mode: Any
) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    alone = [is_fresh(updated, ResetPolicy("idle", hour, idle), now, zone)]
    if mode == "daily":
        alone.append(is_fresh(updated, ResetPolicy("daily", hour, None), now, zone))
    assert is_fresh(updated, ResetPolicy(mode, hour, idle), now, zone) is all(alone)


# In words


@pytest.mark.parametrize(
    ("policy", "updated", "now", "ended_by", "words"),
    [
        (DAILY, "01-18 03:00", "01-18 05:00", "daily", "daily reset at 04:00"),
        (ResetPolicy("daily", 0, None), "01-17 03:00", "01-18 05:00", "daily", "daily reset at 00:00"),
        (ResetPolicy("idle", 4, 60), "01-18 03:00", "01-18 05:00", "idle", "nothing was said for 1 hour"),
        (ResetPolicy("idle", 4, 45), "01-18 03:00", "01-18 05:00", "idle", "nothing was said for 45 minutes"),
        (ResetPolicy("idle", 4, 2880), "01-08 03:00", "01-18 05:00", "idle", "nothing was said for 2 days"),
        (ResetPolicy("daily", 4, 90), "01-18 03:00", "01-18 08:00", "daily", "daily reset at 04:00"),
        (ResetPolicy("daily", 4, 30), "01-18 03:00", "01-18 08:00", "idle", "nothing was said for 30 minutes"),
        (DAILY, "01-18 04:00", "01-18 05:00", None, None),
    ],
)
def test_the_reason_is_told_in_words_and_names_what_came_first(
    policy: ResetPolicy, updated: str, now: str, ended_by: str | None, words: str | None
) -> None:
    reason = expiry(ms(updated), policy, ms(now), UTC)
    assert reason == ended_by
    assert (expiry_text(reason, policy) if reason else None) == words


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
    assert is_fresh(None, ResetPolicy("idle", 4, 1), ms("01-18 05:00"), UTC)


KEY = "agent:main:main"
THREAD = "agent:main:discord:channel:9:thread:3"
FACTS = MessageFacts(channel="webchat")
BEFORE, AFTER = (int(datetime(2026, 1, 18, hour, tzinfo=UTC).timestamp() * 1000) for hour in (3, 5))
FULL: dict[str, Any] = {
    **{name: f"some {name}" for name in (*CHAT_FIELDS, *SESSION_FIELDS)},
    "sessionId": "old",
    "sessionFile": "/somewhere/old.jsonl",
    "updatedAt": BEFORE,
    "inputTokens": 9,
    "outputTokens": 9,
    "totalTokens": 9,
    "compactionCount": 2,
    "systemSent": True,
    "abortedLastRun": True,
    "cliSessionIds": {"claude": "x"},
    "systemPromptReport": {"big": True},
}


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[FileStores]:
    async with file_stores(tmp_path) as opened:
        yield opened


def entry_with(**fields: Any) -> SessionEntry:
    return cast("SessionEntry", fields)


# What stays


def test_a_rotation_keeps_the_chat_and_clears_the_session() -> None:
    new: dict[str, Any] = dict(rotated_entry(entry_with(**FULL), AFTER, "daily"))
    assert new.pop("sessionId") != "old"
    [previous] = new.pop("previousSessions")
    assert new == {
        **{name: FULL[name] for name in CHAT_FIELDS},
        "updatedAt": AFTER,
        "systemSent": False,
        "abortedLastRun": False,
        "compactionCount": 0,
        "inputTokens": 0,
        "outputTokens": 0,
        "totalTokens": 0,
    }
    assert (previous["sessionId"], previous["sessionFile"]) == ("old", "/somewhere/old.jsonl")
    assert (previous["endedAt"], previous["reason"]) == (AFTER, "daily")
    assert previous["state"] == {name: FULL[name] for name in SESSION_FIELDS}


def test_unknown_fields_survive_every_new_session_and_every_way_back() -> None:
    unknown = {"myNote": {"deep": [1, None]}, "starredAt": 3, "": "x"}
    new = rotated_entry(entry_with(sessionId="old", updatedAt=1, **unknown), AFTER, "daily")
    assert {name: dict(new)[name] for name in unknown} == unknown
    back = resumed_entry(new, previous_sessions(new)[0], AFTER)
    assert back["sessionId"] == "old" and {name: dict(back)[name] for name in unknown} == unknown


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("sendPolicy", "deny", True),
        ("sendPolicy", "allow", True),
        ("groupActivation", "always", True),
        ("elevatedLevel", "off", True),
        ("elevatedLevel", "full", False),
        ("execSecurity", "deny", True),
        ("execSecurity", "full", False),
        ("execAsk", "always", True),
        ("execAsk", "off", False),
        ("execHost", "sandbox", True),
        ("execHost", "gateway", False),
    ],
)
def test_restrictions_survive_the_night_and_permissions_do_not(field: str, value: str, kept: bool) -> None:
    new = rotated_entry(entry_with(sessionId="old", updatedAt=1, **{field: value}), AFTER)
    assert (field in new) is kept


@pytest.mark.parametrize(("override", "known"), [(None, "mock-1"), ("mock-2", None)])
def test_the_model_last_used_is_known_still_unless_it_was_chosen_for_the_old_session(
    override: str | None, known: str | None
) -> None:
    chosen = {"modelOverride": override, "providerOverride": "mock"} if override else {}
    new = rotated_entry(entry_with(sessionId="old", model="mock-1", modelProvider="mock", **chosen), AFTER)
    assert new.get("model") == known
    assert "modelOverride" not in new


def test_a_key_without_a_session_gets_a_first_one() -> None:
    new = rotated_entry(None, AFTER)
    assert new["sessionId"] and new.get("updatedAt") == AFTER
    assert "previousSessions" not in new


def test_activity_never_goes_back() -> None:
    assert rotated_entry(entry_with(sessionId="old", updatedAt=AFTER + 9), AFTER).get("updatedAt") == AFTER + 9


def test_a_hand_edited_list_of_previous_sessions_does_no_harm() -> None:
    listed = [None, 7, {"sessionId": 5}, {"sessionId": ""}, {"sessionId": "a"}, {"sessionId": "a", "reason": "new"}]
    assert [previous.session_id for previous in previous_sessions({"previousSessions": listed})] == ["a"]
    for junk in (None, "x", {}, 3):
        assert previous_sessions({"previousSessions": junk}) == []
    kept = rotated_entry(entry_with(sessionId="b", updatedAt=1, previousSessions=cast(Any, listed)), AFTER)
    assert [previous.session_id for previous in previous_sessions(kept)] == ["b", "a"]


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=60))
def test_however_often_one_goes_back_and_forth_no_recent_session_is_lost(steps: list[int | None]) -> None:
    """None rotates, a number resumes that one of the list."""
    entry = rotated_entry(None, 0)
    recent = [entry["sessionId"]]
    for now, step in enumerate(steps, start=1):
        listed = previous_sessions(entry)
        if step is None or not listed:
            entry = rotated_entry(entry, now, "new")
        else:
            entry = resumed_entry(entry, listed[step % len(listed)], now)
        current = entry["sessionId"]
        recent = [current, *(known for known in recent if known != current)][: MOST_REMEMBERED + 1]
        assert [current, *(previous.session_id for previous in previous_sessions(entry))] == recent


# When


async def test_the_first_message_after_four_starts_a_new_session_with_a_marker(stores: FileStores) -> None:
    old = await stores.put(KEY, BEFORE, sendPolicy="deny")
    await stores.say(old, "hello")
    entry, rotation = await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC)
    assert rotation is not None
    assert (rotation.reason, rotation.old, rotation.new) == ("daily", old, entry)
    assert rotation.marker_text == "New session (daily reset at 04:00). /resume brings the old one back."
    assert entry["sessionId"] != old["sessionId"] and entry.get("sendPolicy") == "deny"
    assert await stores.markers(entry) == [rotation.marker_text]
    assert await stores.heard(entry) == []
    assert await stores.heard(old) == ["hello"]
    assert await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER + 1, zone=UTC) == (entry, None)


async def test_the_marker_is_on_disk_and_not_for_the_model(stores: FileStores) -> None:
    await stores.say(await stores.put(KEY, BEFORE), "hello")
    entry, _ = await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC)
    await stores.say(entry, "good morning")
    lines = (stores.state_dir / "agents/main/sessions" / f"{entry['sessionId']}.jsonl").read_text().splitlines()
    header, marker, _ = (json.loads(line) for line in lines)
    assert header["cwd"].endswith("workspace")
    assert (marker["type"], marker["customType"], marker["data"]["reason"]) == ("custom", "session", "daily")
    assert await stores.heard(entry) == ["good morning"]


async def test_a_message_while_a_run_is_active_belongs_to_the_current_session(stores: FileStores) -> None:
    old = await stores.put(KEY, BEFORE)
    assert await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, busy=lambda: True, zone=UTC) == (old, None)


async def test_a_run_that_begins_meanwhile_keeps_its_session(stores: FileStores) -> None:
    old = await stores.put(KEY, BEFORE)
    answers = iter([False, True])
    entry, rotation = await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, busy=lambda: next(answers), zone=UTC)
    assert (entry, rotation) == (old, None)


async def test_messages_that_come_together_start_one_new_session(stores: FileStores) -> None:
    await stores.say(await stores.put(KEY, BEFORE), "hello")
    results = await asyncio.gather(*(ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC) for _ in range(8)))
    assert len({entry["sessionId"] for entry, _ in results}) == 1
    assert sum(rotation is not None for _, rotation in results) == 1
    assert len(previous_sessions(results[0][0])) == 1


async def test_what_is_noted_about_a_session_is_not_activity(stores: FileStores) -> None:
    await stores.put(KEY, BEFORE)
    note: Any = {"deliveryContext": {"channel": "signal"}, "lastHeartbeatSentAt": AFTER - 1}
    await stores.sessions.update(AGENT, KEY, lambda entry: cast(Any, {**cast(Any, entry), **note}))
    _, rotation = await ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC)
    assert rotation is not None and rotation.reason == "daily"


async def test_the_rules_of_the_channel_and_the_kind_of_chat_apply(tmp_path: Path) -> None:
    rules = {
        "resetByType": {"thread": {"mode": "idle", "idleMinutes": 180}},
        "resetByChannel": {"signal": {"mode": "idle", "idleMinutes": 30}},
    }
    async with file_stores(tmp_path, rules) as stores:
        for key in (KEY, THREAD):
            await stores.put(key, BEFORE)
        _, in_thread = await ensure_fresh(stores, AGENT, THREAD, MessageFacts(channel="discord"), AFTER, zone=UTC)
        assert in_thread is None
        _, threaded = await ensure_fresh(stores, AGENT, KEY, MessageFacts(thread=True), AFTER, zone=UTC)
        assert threaded is None
        _, rotation = await ensure_fresh(stores, AGENT, KEY, MessageFacts(channel="signal"), AFTER, zone=UTC)
    assert rotation is not None and rotation.reason == "idle"
    assert rotation.marker_text.startswith("New session (nothing was said for 30 minutes).")


async def test_the_session_of_a_task_goes_on(stores: FileStores) -> None:
    old = await stores.put("agent:main:subagent:x", BEFORE)
    assert await ensure_fresh(stores, AGENT, "agent:main:subagent:x", FACTS, AFTER, zone=UTC) == (old, None)


async def test_the_first_message_of_a_key_starts_its_first_session_without_a_marker(stores: FileStores) -> None:
    results = await asyncio.gather(*(ensure_fresh(stores, AGENT, KEY, FACTS, AFTER, zone=UTC) for _ in range(4)))
    assert len({entry["sessionId"] for entry, _ in results}) == 1
    assert {rotation for _, rotation in results} == {None}
    assert await stores.markers(results[0][0]) == []


# On request


async def test_asking_for_a_new_session_rotates_a_fresh_one(stores: FileStores) -> None:
    old = await stores.put(KEY, AFTER)
    await stores.say(old, "hello")
    rotation = await rotate(stores, AGENT, KEY, "new", AFTER)
    assert rotation.marker_text == "New session (as asked with /new). /resume brings the old one back."
    assert [previous.session_id for previous in previous_sessions(rotation.new)] == [old["sessionId"]]
    assert await stores.sessions.get(AGENT, KEY) == rotation.new


async def test_a_session_in_which_nothing_was_said_is_not_remembered(stores: FileStores) -> None:
    old = await stores.put(KEY, AFTER)
    await stores.say(old, "hello")
    rotations = [await rotate(stores, AGENT, KEY, "new", AFTER) for _ in range(3)]
    assert [previous.session_id for previous in previous_sessions(rotations[-1].new)] == [old["sessionId"]]


async def test_a_rotation_with_nothing_to_go_back_to_promises_no_way_back(stores: FileStores) -> None:
    await stores.put(KEY, AFTER)
    rotation = await rotate(stores, AGENT, KEY, "reset", AFTER)
    assert rotation.marker_text == "New session (as asked with a reset)."


# Threads


async def test_a_thread_begins_with_what_was_said_where_it_branched_off(stores: FileStores) -> None:
    parent = await stores.put(KEY, AFTER, modelOverride="mock-2", providerOverride="mock")
    await stores.say(parent, "shall we?")
    facts = MessageFacts(channel="discord", thread=True, thread_label="Plans", parent_key=KEY)
    entry, rotation = await ensure_fresh(stores, AGENT, THREAD, facts, AFTER, zone=UTC)
    assert rotation is None
    await stores.say(entry, "yes")
    assert await stores.heard(entry) == ["shall we?", "yes"]
    assert await stores.heard(parent) == ["shall we?"]
    assert (entry.get("displayName"), entry.get("modelOverride")) == ("Plans", "mock-2")
    header = json.loads(Path(stores.transcripts.default_path(ref_of(entry))).read_text().splitlines()[0])
    assert header["parentSession"].endswith(f"{parent['sessionId']}.jsonl")


@pytest.mark.parametrize("parent_key", [THREAD, "agent:main:nowhere", KEY])
async def test_a_thread_without_a_parent_to_copy_begins_empty(stores: FileStores, parent_key: str) -> None:
    await stores.put(KEY, AFTER)
    facts = MessageFacts(thread=True, parent_key=parent_key)
    entry, rotation = await ensure_fresh(stores, AGENT, THREAD, facts, AFTER, zone=UTC)
    assert (await stores.heard(entry), rotation) == ([], None)


async def test_a_thread_whose_parent_cannot_be_read_begins_empty(stores: FileStores) -> None:
    parent = await stores.put(KEY, AFTER)
    Path(stores.transcripts.default_path(ref_of(parent))).mkdir(parents=True)
    entry, _ = await ensure_fresh(stores, AGENT, THREAD, MessageFacts(thread=True, parent_key=KEY), AFTER, zone=UTC)
    assert await stores.heard(entry) == []


def ref_of(entry: SessionEntry) -> Any:
    return transcript_ref(AGENT, entry)
