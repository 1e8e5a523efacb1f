"""A key gets a new session: when, with what, and with which line in the chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.sessions.carry_over import (
    CHAT_FIELDS,
    MOST_REMEMBERED,
    SESSION_FIELDS,
    previous_sessions,
    resumed_entry,
    rotated_entry,
)
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.lifecycle import MessageFacts, ensure_fresh, rotate

from .stores import AGENT, FileStores, file_stores

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
    from openclaw.sessions.lifecycle import transcript_ref

    return transcript_ref(AGENT, entry)
