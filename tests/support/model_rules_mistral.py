"""What Mistral's API refuses on top of OpenAI's rules: the order of roles, the form of ids, fields it does not know."""

from __future__ import annotations

import re
from typing import Any

from tests.support.model_rules import check
from tests.support.model_rules_openai import check_chat

ID = re.compile(r"[a-zA-Z0-9]{9}")
_FIELDS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_MAY_FOLLOW = {
    None: {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user"},
    "calls": {"tool"},
    "tool": {"tool", "assistant"},
}


def check_mistral(body: Any) -> None:
    check_chat(body)
    check("max_completion_tokens" not in body, "max_completion_tokens: Extra inputs are not permitted")
    before: str | None = None
    waiting = 0
    for index, message in enumerate(body["messages"]):
        role = message["role"]
        check(role in _FIELDS, f"Input should be a known role, not '{role}'")
        extra = set(message) - _FIELDS[role]
        check(not extra, f"messages.{index}.{role}.{'/'.join(sorted(extra))}: Extra inputs are not permitted")
        check(role in _MAY_FOLLOW[before], f"Unexpected role '{role}' after role '{before}'")
        check(before != "tool" or role == "tool" or not waiting, "Not the same number of function calls and responses")
        calls = message.get("tool_calls") or []
        if role == "assistant":
            check(message.get("content") or calls, "Assistant message must have either content or tool_calls, not none")
            waiting = len(calls)
        elif role == "tool":
            waiting -= 1
        for call in calls:
            check(ID.fullmatch(call["id"]), f"Tool call id was {call['id']} but must be 9 letters or digits.")
        before = "calls" if calls else role
    check(before in ("user", "tool"), f"Expected last role User or Tool for serving but got {before}")
