"""Decides whether messages may be sent to a session: by rules on channel, chat type and key, or by its own setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw.config.schema.messages import SendMatch, SendPolicy
from openclaw.sessions.keys import channel_of, rest_of


def is_blocked(
    policy: SendPolicy | None,
    key: str,
    entry: Mapping[str, Any] | None,
    *,
    channel: str | None = None,
    chat_type: str | None = None,
) -> bool:
    """The session's own setting counts first, then a matching deny, then a matching allow, then the default."""
    override = (entry or {}).get("sendPolicy")
    if override in ("allow", "deny"):
        return override == "deny"
    if policy is None:
        return False
    where = (channel or str((entry or {}).get("channel") or "") or channel_of(entry, key)).strip().lower()
    kind = _chat_type(chat_type or (entry or {}).get("chatType") or _chat_type_of(key))
    actions = [rule.action for rule in policy.rules if _matches(rule.match, key, where, kind)]
    return "deny" in actions or (not actions and policy.default == "deny")


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
