"""Decides whether messages may be sent to a session: by rules on channel, chat type and key, or by its own setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw.config.schema.messages import Decision, SendMatch, SendPolicy, SendRule
from openclaw.sessions.keys import channel_of, rest_of


def is_blocked(
    policy: SendPolicy | None,
    key: str,
    entry: Mapping[str, Any] | None,
    *,
    channel: str | None = None,
    chat_type: str | None = None,
) -> bool:
    rules, default = (policy.rules, policy.default) if policy else ((), None)
    return send_decision(key, entry, rules, default, channel=channel, chat_type=chat_type) == "deny"


def send_decision(
    key: str,
    entry: Mapping[str, Any] | None,
    rules: Sequence[SendRule],
    default: str | None,
    *,
    channel: str | None = None,
    chat_type: str | None = None,
) -> Decision:
    """The session's own setting counts first, then a matching deny, then a matching allow, then the default."""
    override = (entry or {}).get("sendPolicy")
    if override in ("allow", "deny"):
        return override
    if not rules:
        return "deny" if default == "deny" else "allow"
    where = (channel or str((entry or {}).get("channel") or "") or channel_of(entry, key)).strip().lower()
    kind = _chat_type(chat_type or (entry or {}).get("chatType") or _chat_type_of(key))
    allowed = False
    for rule in rules:
        if not _matches(rule.match, key, where, kind):
            continue
        if rule.action == "deny":
            return "deny"
        allowed = True
    return "allow" if allowed or default != "deny" else "deny"


def _matches(match: SendMatch, key: str, channel: str, chat_type: str) -> bool:
    if match.channel and match.channel.strip().lower() != channel:
        return False
    if match.chat_type and _chat_type(match.chat_type) != chat_type:
        return False
    prefix = (match.key_prefix or "").strip().lower()
    return not prefix or key.startswith(prefix) or rest_of(key).startswith(prefix)


def _chat_type(value: Any) -> str:
    text = str(value or "").strip().lower()
    return {"dm": "direct", "room": "channel"}.get(text, text)


def _chat_type_of(key: str) -> str:
    marked = f":{rest_of(key)}"
    if ":group:" in marked:
        return "group"
    if ":channel:" in marked or ":room:" in marked:
        return "channel"
    return "direct"
