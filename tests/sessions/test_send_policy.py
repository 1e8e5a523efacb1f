from __future__ import annotations

from typing import Any

import pytest

from openclaw.config.schema.messages import Decision, SendMatch, SendPolicy, SendRule
from openclaw.sessions.entry import is_blocked

DISCORD_GROUPS = SendRule(action="deny", match=SendMatch(channel="discord", chat_type="group"))
CRON = SendRule(action="deny", match=SendMatch(key_prefix="cron:"))
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
        (
            [SendRule(action="allow", match=SendMatch(channel="slack")), SendRule(action="deny")],
            None,
            "k",
            {"channel": "slack"},
            "deny",
        ),
        ([SendRule(action="allow", match=SendMatch(channel="slack"))], "deny", "k", {"channel": "slack"}, "allow"),
        ([SendRule(action="allow", match=SendMatch(channel="slack"))], "deny", "k", {"channel": "discord"}, "deny"),
        ([SendRule(action="deny")], None, "k", {"sendPolicy": "allow"}, "allow"),
        ([], None, "k", {"sendPolicy": "deny"}, "deny"),
        ([SendRule(action="deny", match=SendMatch(chat_type="dm"))], None, "k", {"chatType": "direct"}, "deny"),
        ([SendRule(action="deny", match=SendMatch(chat_type="room"))], None, "k", {"chatType": "direct"}, "allow"),
        ([SendRule(action="deny", match=SendMatch(chat_type="room"))], None, "agent:main:slack:room:r1", None, "deny"),
    ],
)
def test_who_may_be_sent_to(
    rules: list[SendRule], default: Decision | None, key: str, entry: dict[str, Any] | None, decision: str
) -> None:
    policies: list[SendPolicy | None] = [SendPolicy(rules=rules, default=default or "allow")]
    if not rules and default is None:
        policies.append(None)
    assert [is_blocked(policy, key, entry) for policy in policies] == [decision == "deny"] * len(policies)
