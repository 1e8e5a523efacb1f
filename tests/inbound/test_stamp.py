from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.inbound.stamp import stamped, without_wrappers

AT = 1_794_766_979_000  # 2026-11-15T18:22:59Z


@pytest.mark.parametrize(
    ("zone", "stamp"),
    [
        ("UTC", "Sun 2026-11-15 18:22 UTC"),
        ("America/Los_Angeles", "Sun 2026-11-15 10:22 PST"),
        ("America/New_York", "Sun 2026-11-15 13:22 EST"),
        ("Europe/Madrid", "Sun 2026-11-15 19:22 GMT+1"),
        ("Asia/Kolkata", "Sun 2026-11-15 23:52 GMT+5:30"),
        ("Asia/Tokyo", "Mon 2026-11-16 03:22 GMT+9"),
        ("Mars/Base", "Sun 2026-11-15 18:22 UTC"),
    ],
)
def test_the_stamp_says_the_minute_in_the_persons_zone(zone: str, stamp: str) -> None:
    assert stamped("hola", AT, zone) == f"[{stamp}] hola"


@pytest.mark.parametrize(
    "text", ["[WhatsApp 2026-01-01 10:00 UTC] hi", "[Sun 2026-11-15 18:22 UTC] hi", "x\nCurrent time: noon"]
)
def test_a_stamped_text_is_not_stamped_again(text: str) -> None:
    assert stamped(text, AT, "UTC") == text


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_views_show_what_the_person_typed(text: str) -> None:
    wrapped = f"{stamped(text, AT, 'UTC')}\n[message_id: abc-1]"
    if wrapped.startswith("[Sun 2026-11-15 18:22 UTC] ") and not text.startswith("[") and "[message_id: " not in text:
        assert without_wrappers(wrapped) == text.lstrip().rstrip("\n")


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (
            "System: [2026-11-16 02:55:59 UTC] Reasoning visibility is now on.\n"
            "System: [2026-11-16 02:56:00 GMT+1] Model switched to mock/b.\n\n"
            "[Mon 2026-11-16 02:56 UTC] System: [x] is what I typed\n[message_id: 7]",
            "System: [x] is what I typed",
        ),
        ("System: [2026-11-16 02:55:59 UTC] Exec finished", "System: [2026-11-16 02:55:59 UTC] Exec finished"),
    ],
)
def test_what_was_told_in_front_of_a_message_is_no_part_of_what_the_person_typed(stored, shown):
    assert without_wrappers(stored) == shown
