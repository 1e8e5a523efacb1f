from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.sessions.entry import SessionEntry, damaged_fields, group_display_name, normalize_entry, repair_entry

ROUTE = {"channel": "telegram", "to": "1", "threadId": 7}
OLD = {"deliveryContext": ROUTE, "lastChannel": "telegram", "lastTo": "1", "lastThreadId": 7}


def test_route_is_trimmed_and_kept_in_both_spellings():
    entry = normalize_entry({"lastChannel": " WhatsApp ", "lastTo": " +1555 ", "lastAccountId": " acct-1 "})
    assert entry == {
        "lastChannel": "whatsapp",
        "lastTo": "+1555",
        "lastAccountId": "acct-1",
        "deliveryContext": {"channel": "whatsapp", "to": "+1555", "accountId": "acct-1"},
    }


def test_older_field_names_are_read():
    entry = normalize_entry({"provider": "slack", "lastProvider": "telegram", "room": "#general"})
    assert entry["channel"] == "slack"
    assert entry["lastChannel"] == "telegram"
    assert entry["groupChannel"] == "#general"
    assert not {"provider", "lastProvider", "room"} & set(entry)


def test_newer_field_name_wins_over_the_older_one():
    assert normalize_entry({"provider": "slack", "channel": "discord"}) == {
        "channel": "discord",
        "deliveryContext": {"channel": "discord"},
        "lastChannel": "discord",
    }


@pytest.mark.parametrize(
    ("change", "route"),
    [
        ({"deliveryContext": {"channel": "telegram", "to": " 12345  "}}, {"channel": "telegram", "to": "12345"}),
        ({"lastTo": "2", "lastThreadId": None}, {"channel": "telegram", "to": "2"}),
        ({"lastChannel": "imsg", "lastTo": "x"}, {"channel": "imessage", "to": "x", "threadId": 7}),
        (
            {"deliveryContext": {"channel": "signal", "to": "3"}, "lastChannel": "signal", "lastTo": "3"},
            {"channel": "signal", "to": "3"},
        ),
        ({"thinkingLevel": "low"}, ROUTE),
    ],
)
def test_changed_spelling_says_the_whole_route(change, route):
    entry = normalize_entry({**OLD, **change}, OLD)
    assert entry["deliveryContext"] == route
    assert entry.get("lastThreadId") == route.get("threadId")
    assert entry["lastTo"] == route["to"]


def test_thread_id_is_a_whole_number_or_text():
    assert normalize_entry({"lastThreadId": 4.9})["deliveryContext"] == {"threadId": 4}
    assert normalize_entry({"lastThreadId": "1699.01"})["deliveryContext"] == {"threadId": "1699.01"}
    assert "deliveryContext" not in normalize_entry({"lastThreadId": True})


@given(
    st.dictionaries(
        st.sampled_from(
            ["channel", "lastChannel", "lastTo", "lastAccountId", "lastThreadId", "deliveryContext", "provider", "x"]
        ),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dictionaries(st.text(), st.text()),
    )
)
def test_normalising_twice_changes_nothing_and_loses_no_unknown_field(entry):
    once = normalize_entry(entry)
    again = normalize_entry(once)
    assert normalize_entry({**once, "updatedAt": 5}, once) == {**once, "updatedAt": 5}
    assert repr(again) == repr(once)
    assert repr(once.get("x")) == repr(entry.get("x"))


@pytest.mark.parametrize(
    ("channel", "facts", "name"),
    [
        (
            "discord",
            {"id": "1", "group_channel": "#general", "space": "friends-of-clawd"},
            "discord:friends-of-clawd#general",
        ),
        ("whatsapp", {"id": "1@g.us", "subject": "My Family Group!"}, "whatsapp:g-my-family-group"),
        ("telegram", {"id": "-1001234567890:topic:4"}, "telegram:g-1001234567890-topic-4"),
        ("signal", {"id": "grp1==", "subject": "Test Group"}, "signal:g-test-group"),
        ("slack", {"id": "C1", "group_channel": "#ops"}, "slack:#ops"),
    ],
)
def test_groups_are_listed_under_a_name_people_recognise(channel: str, facts: dict[str, str], name: str) -> None:
    assert group_display_name(channel, **facts) == name


# Repair

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DAMAGED = st.dictionaries(st.sampled_from(sorted(SessionEntry.__annotations__)) | st.text(max_size=3), VALUES)


@given(st.text(), DAMAGED)
def test_whatever_an_entry_holds_it_is_usable_after_its_repair(key, entry):
    repaired = repair_entry(key, entry, now_ms=7)
    assert repaired["sessionId"].strip() and ("updatedAt" in repaired) == ("updatedAt" in entry)
    assert not damaged_fields(repaired)
    assert repair_entry(key, repaired) == repaired
    assert repair_entry(key, entry, now_ms=7) == repaired or repr(entry).count("nan"), "every reader sees the same"
    normal = normalize_entry(repaired)
    assert not damaged_fields(normal)
    for name in entry.keys() - SessionEntry.__annotations__.keys():
        assert repr(normal.get(name)) == repr(entry[name]) or name == "lastProvider"


@given(DAMAGED, st.integers(0, 2**40))
def test_an_edit_that_loses_the_session_keeps_the_one_that_was_there(entry, at):
    entry = {name: value for name, value in entry.items() if name not in ("sessionId", "updatedAt")}
    known = {"sessionId": "s1", "updatedAt": at, "label": "x"}
    repaired = repair_entry("k", entry, now_ms=7, known=known)
    assert (repaired["sessionId"], repaired["updatedAt"]) == ("s1", at)


@pytest.mark.parametrize(
    ("file", "session"),
    [
        ("/a/b/3f2b.jsonl", "3f2b"),
        ("3f2b-topic-12.jsonl", "3f2b"),
        ("3f2b.jsonl.zst", "3f2b"),
        ("/etc/passwd", None),
        (".jsonl", None),
        ("../..jsonl", None),
        ("", None),
    ],
)
def test_a_lost_session_is_found_by_its_transcript(file, session):
    found = repair_entry("k", {"sessionFile": file})["sessionId"]
    assert found == session if session else len(found) == 36


def test_numbers_lose_their_fraction_and_impossible_values_go():
    entry = {"sessionId": "s", "updatedAt": 12.5, "inputTokens": -1, "queueCap": True, "sendPolicy": "dney", "label": 5}
    assert repair_entry("k", entry) == {"sessionId": "s", "updatedAt": 12}
