from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.sessions.send_policy import send_decision


class Match(msgspec.Struct, frozen=True):
    channel: str | None = None
    chat_type: str | None = None
    key_prefix: str | None = None


class Rule(msgspec.Struct, frozen=True):
    action: str
    match: Match | None = None


DISCORD_GROUPS = Rule("deny", Match(channel="discord", chat_type="group"))
CRON = Rule("deny", Match(key_prefix="cron:"))
DISCORD_GROUP: dict[str, Any] = {"channel": "discord", "chatType": "group"}


@pytest.mark.parametrize(
    ("rules", "default", "key", "entry", "decision"),
    [
        ([], None, "agent:main:main", None, "allow"),
        ([], "deny", "agent:main:main", None, "deny"),
        ([DISCORD_GROUPS], None, "agent:main:x", DISCORD_GROUP, "deny"),
        ([DISCORD_GROUPS], None, "agent:main:discord:group:dev", None, "deny"),
        ([DISCORD_GROUPS], None, "discord:group:dev", None, "deny"),
        ([DISCORD_GROUPS], None, "agent:main:main", {"lastChannel": "discord", "chatType": "direct"}, "allow"),
        ([DISCORD_GROUPS], None, "agent:main:telegram:group:1", {"channel": "telegram", "chatType": "group"}, "allow"),
        ([CRON], None, "cron:job-1", None, "deny"),
        ([CRON], None, "agent:main:cron:job-1", None, "deny"),
        ([Rule("allow", Match(channel="slack")), Rule("deny")], None, "k", {"channel": "slack"}, "deny"),
        ([Rule("allow", Match(channel="slack"))], "deny", "k", {"channel": "slack"}, "allow"),
        ([Rule("allow", Match(channel="slack"))], "deny", "k", {"channel": "discord"}, "deny"),
        ([Rule("deny")], None, "k", {"sendPolicy": "allow"}, "allow"),
        ([], None, "k", {"sendPolicy": "deny"}, "deny"),
        ([Rule("deny", Match(chat_type="dm"))], None, "k", {"chatType": "direct"}, "deny"),
        ([Rule("deny", Match(chat_type="room"))], None, "k", {"chatType": "direct"}, "allow"),
        ([Rule("deny", Match(chat_type="room"))], None, "agent:main:slack:room:r1", None, "deny"),
    ],
)
def test_who_may_be_sent_to(
    rules: list[Rule], default: str | None, key: str, entry: dict[str, Any] | None, decision: str
) -> None:
    assert send_decision(key, entry, rules, default) == decision
