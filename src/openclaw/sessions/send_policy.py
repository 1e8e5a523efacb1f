"""May this session be sent to? Rules by channel, chat type and key, with an override on the session itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from openclaw.sessions.keys import channel_of, rest_of

Decision = Literal["allow", "deny"]


class Match(Protocol):
    @property
    def channel(self) -> str | None: ...
    @property
    def chat_type(self) -> str | None: ...
    @property
    def key_prefix(self) -> str | None: ...


class Rule(Protocol):
    @property
    def action(self) -> str: ...
    @property
    def match(self) -> Match | None: ...


def send_decision(
    key: str,
    entry: Mapping[str, Any] | None,
    rules: Sequence[Rule],
    default: str | None,
    *,
    channel: str | None = None,
    chat_type: str | None = None,
) -> Decision:
    """The session's own setting first; then any matching deny; then any matching allow; then the default."""
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


def _matches(match: Match | None, key: str, channel: str, chat_type: str) -> bool:
    if match is None:
        return True
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
