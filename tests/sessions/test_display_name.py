from __future__ import annotations

import pytest

from openclaw.sessions.display_name import group_display_name


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
