"""Which messages are acknowledged with a reaction, and with which."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.config.load import parse_config
from openclaw.gateway.channels import ack_emoji


@pytest.mark.parametrize(
    ("settings", "direct", "mentioned", "emoji"),
    [
        ({}, True, True, ""),
        ({}, False, True, "👀"),
        ({}, False, False, ""),
        ({"messages": {"ackReactionScope": "group-all"}}, False, False, "👀"),
        ({"messages": {"ackReactionScope": "direct"}}, True, True, "👀"),
        ({"messages": {"ackReactionScope": "direct"}}, False, True, ""),
        ({"messages": {"ackReactionScope": "off"}}, False, True, ""),
        ({"messages": {"ackReactionScope": "all", "ackReaction": "🦞"}}, True, True, "🦞"),
        ({"messages": {"ackReactionScope": "all", "ackReaction": ""}}, True, True, ""),
        ({"agents": {"list": [{"id": "main", "identity": {"emoji": "🐙"}}]}}, False, True, "🐙"),
        ({"messages": {"ackReaction": "🦞"}, "channels": {"signal": {"ackReaction": "✅"}}}, False, True, "✅"),
        ({"messages": {"ackReaction": "🦞"}, "channels": {"signal": {"ackReaction": ""}}}, False, True, ""),
        ({"channels": {"signal": {"ackReaction": {"emoji": "✅"}}}}, True, True, "✅"),
        ({"channels": {"signal": {"ackReaction": {"emoji": "✅", "direct": False}}}}, True, True, ""),
        ({"channels": {"signal": {"ackReaction": {"emoji": "✅"}}}}, False, False, ""),
        ({"channels": {"signal": {"ackReaction": {"emoji": "✅", "group": "always"}}}}, False, False, "✅"),
    ],
)
def test_a_message_is_acknowledged_as_configured(
    settings: dict[str, Any], direct: bool, mentioned: bool, emoji: str
) -> None:
    loaded = parse_config("openclaw.json", msgspec.json.encode(settings).decode(), {})
    assert loaded.valid, loaded.issues
    assert ack_emoji(loaded.config, "signal", None, "main", direct=direct, mentioned=mentioned) == emoji
