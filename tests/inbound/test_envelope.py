"""The heading of a message: channel, sender, time since the last one, time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.inbound.envelope import EnvelopeOptions, channel_name, elapsed, envelope, envelope_options, stamp
from tests.inbound.support import configured

AT = 1_768_724_340_000  # 2026-01-18T08:19Z
JULY = 1_784_500_000_000  # 2026-07-19T22:26Z
SILENT = EnvelopeOptions(timestamp=False)


@pytest.mark.parametrize(
    ("channel", "sender", "zone", "expected"),
    [
        ("whatsapp", "+1555", "utc", "[WhatsApp +1555 Sun 2026-01-18T08:19Z] hello"),
        ("whatsapp", "+1555", "GMT", "[WhatsApp +1555 Sun 2026-01-18T08:19Z] hello"),
        ("whatsapp", "+1555", "America/Los_Angeles", "[WhatsApp +1555 Sun 2026-01-18 00:19 PST] hello"),
        ("x", "", "Mars/Base", "[X Sun 2026-01-18T08:19Z] hello"),
        ("", "A", "utc", "[Channel A Sun 2026-01-18T08:19Z] hello"),
    ],
)
def test_the_heading_says_where_and_when(channel: str, sender: str, zone: str, expected: str) -> None:
    assert envelope(channel, "hello", EnvelopeOptions(zone=zone), sender=sender, timestamp_ms=AT) == expected


@pytest.mark.parametrize(
    ("zone", "winter", "summer"),
    [
        ("Europe/Madrid", "GMT+1", "GMT+2"),
        ("Europe/London", "GMT", "GMT+1"),
        ("America/New_York", "EST", "EDT"),
        ("America/St_Johns", "GMT-3:30", "GMT-2:30"),
        ("Asia/Kolkata", "GMT+5:30", "GMT+5:30"),
        ("Asia/Shanghai", "GMT+8", "GMT+8"),
        ("Asia/Manila", "GMT+8", "GMT+8"),
        ("America/Havana", "GMT-5", "GMT-4"),
        ("Pacific/Kiritimati", "GMT+14", "GMT+14"),
        ("Etc/UTC", "UTC", "UTC"),
    ],
)
def test_zones_are_named_as_english_readers_know_them(zone: str, winter: str, summer: str) -> None:
    assert stamp(AT, zone).endswith(f" {winter}") and stamp(JULY, zone).endswith(f" {summer}")


def test_the_machines_own_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        for name in ("local", "host", ""):
            assert stamp(AT, name) == "Sun 2026-01-18 17:19 GMT+9"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0s"),
        (29_000, "29s"),
        (29_600, "1m"),
        (30_000, "1m"),
        (90_000, "2m"),
        (3_569_000, "59m"),
        (3_600_000, "1h"),
        (36 * 3_600_000, "36h"),
        (72 * 3_600_000, "3d"),
    ],
)
def test_time_since_the_last_activity(ms: int, shown: str) -> None:
    assert elapsed(ms) == shown
    assert envelope("x", "hi", SILENT, sender="A", timestamp_ms=AT, previous_ms=AT - ms) == f"[X A +{shown}] hi"


def test_no_elapsed_time_without_a_past() -> None:
    assert envelope("x", "hi", SILENT, sender="A", timestamp_ms=AT, previous_ms=AT + 1) == "[X A] hi"
    assert envelope("x", "hi", SILENT, sender="A", timestamp_ms=AT) == "[X A] hi"
    off = EnvelopeOptions(timestamp=False, elapsed=False)
    assert envelope("x", "hi", off, sender="A", timestamp_ms=AT, previous_ms=AT) == "[X A] hi"


def test_host_and_address_stand_before_the_time() -> None:
    options = EnvelopeOptions(zone="utc")
    shown = envelope("x", "hi", options, sender="A", timestamp_ms=AT, previous_ms=AT, host="mac", ip="10.0.0.1")
    assert shown == "[X A +0s mac 10.0.0.1 Sun 2026-01-18T08:19Z] hi"


@pytest.mark.parametrize(
    ("defaults", "options"),
    [
        ({}, EnvelopeOptions()),
        ({"envelopeTimezone": "user", "userTimezone": "Asia/Tokyo"}, EnvelopeOptions(zone="Asia/Tokyo")),
        ({"envelopeTimezone": "user"}, EnvelopeOptions(zone="local")),
        ({"envelopeTimezone": "utc", "envelopeElapsed": "off"}, EnvelopeOptions(zone="utc", elapsed=False)),
        ({"envelopeTimestamp": "off"}, EnvelopeOptions(timestamp=False)),
    ],
)
def test_the_configuration_chooses_zone_time_and_elapsed(defaults: dict[str, Any], options: EnvelopeOptions) -> None:
    assert envelope_options(configured({"agents": {"defaults": defaults}})) == options


@pytest.mark.parametrize(("channel", "shown"), [("signal", "Signal"), ("imessage", "iMessage"), ("MyNet", "MyNet")])
def test_channels_are_called_by_their_names(channel: str, shown: str) -> None:
    assert channel_name(channel) == shown


@given(st.text(max_size=40))
def test_no_name_can_end_the_heading_or_begin_a_line(name: str) -> None:
    heading, _, body = envelope("signal", "BODY", SILENT, sender=name).rpartition("] ")
    assert body == "BODY" and heading.count("[") == 1 and "]" not in heading and len(heading.splitlines()) == 1
