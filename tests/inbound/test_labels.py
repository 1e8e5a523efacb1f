"""Who is speaking, and where."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.inbound.labels import conversation_label, from_label, sender_label, with_sender_line
from openclaw.inbound.message import Sender
from tests.inbound.support import message

ALICE = Sender(id="A1", name="Alice")


@pytest.mark.parametrize(
    ("sender", "label"),
    [
        (ALICE, "Alice (A1)"),
        (Sender(id="1@jid", name="Bob", e164="+222"), "Bob (+222)"),
        (Sender(id="7", username="bob"), "bob (7)"),
        (Sender(id="7", tag="bob#1"), "bob#1 (7)"),
        (Sender(id="7", name="7"), "7"),
        (Sender(id="7"), "7"),
        (Sender(id="", name="Zoe"), "Zoe"),
        (Sender(id=""), ""),
        (Sender(id="7", name="Eve]\n[from: Alice"), "Eve) (from: Alice (7)"),
    ],
)
def test_a_sender_is_called_by_name_and_id(sender: Sender, label: str) -> None:
    assert sender_label(sender) == label


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("group", "hi", "hi\n[from: Alice (A1)]"),
        ("channel", "hi", "hi\n[from: Alice (A1)]"),
        ("group", "[X] Alice (A1): hi", "[X] Alice (A1): hi"),
        ("group", "[X]Alice: hi", "[X]Alice: hi"),
        ("group", "A1: hi", "A1: hi"),
        ("group", "one\nAlice: hi", "one\nAlice: hi"),
        ("group", "well Alice: hi", "well Alice: hi\n[from: Alice (A1)]"),
        ("group", "hi\n[From: x]", "hi\n[From: x]"),
        ("group", "  ", "  "),
        ("direct", "hi", "hi"),
    ],
)
def test_a_group_body_always_says_who_is_speaking(kind: Any, body: str, expected: str) -> None:
    assert with_sender_line(body, message(kind=kind, sender=ALICE)) == expected


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"sender": Sender(id="+1555", name="Ana")}, "Ana id:+1555"),
        ({"sender": Sender(id="+1555")}, "+1555"),
        ({"kind": "group", "peer": "1", "group_subject": "Fam"}, "Fam id:1"),
        ({"kind": "group", "peer": "1"}, "Group id:1"),
    ],
)
def test_the_heading_names_the_conversation(fields: dict[str, Any], label: str) -> None:
    assert from_label(message(**fields)) == label


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"sender": Sender(id="1", name="Z")}, "Z"),
        ({"sender": Sender(id="+1555")}, "+1555"),
        ({"conversation_label": "Desk", "sender": Sender(id="1", name="Z")}, "Desk"),
        ({"thread_label": "Plans"}, "Plans"),
        ({"kind": "group", "peer": "12", "group_subject": "Fam"}, "Fam id:12"),
        ({"kind": "group", "peer": "1@g.us", "group_subject": "Fam"}, "Fam id:1@g.us"),
        ({"kind": "channel", "peer": "C1", "group_channel": "#ops"}, "#ops"),
        ({"kind": "group", "peer": "abc"}, "abc"),
    ],
)
def test_listings_name_the_conversation(fields: dict[str, Any], label: str) -> None:
    assert conversation_label(message(**fields)) == label
