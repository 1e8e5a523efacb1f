from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.sessions.entry import group_display_name, normalize_entry

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
