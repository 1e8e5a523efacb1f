"""What a message and its session say about commands, in the form the ``exec`` tool reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw.sessions.entry import SessionEntry
from openclaw.tools.exec.settings import ExecOverrides


def exec_wish(body: Mapping[str, Any], entry: SessionEntry | None, elevated_default: str) -> ExecOverrides | None:
    """The message's own words first, then the session's. None, as mostly: nobody said anything."""
    said: dict[str, str] = body.get("exec") or {}
    stored: Mapping[str, Any] = entry or {}
    elevated = body.get("elevated") or stored.get("elevatedLevel")
    if elevated is None and elevated_default != "on":
        # "on" is everyone's default; where there is no sandbox to leave it changes nothing.
        elevated = elevated_default
    wish: dict[str, Any] = {
        "host": said.get("host") or stored.get("execHost"),
        "security": said.get("security") or stored.get("execSecurity"),
        "ask": said.get("ask") or stored.get("execAsk"),
        "node": said.get("node") or stored.get("execNode"),
        "elevated": elevated,
    }
    allowed = bool(body.get("elevatedAllowed"))
    if not allowed and not any(wish.values()):
        return None
    return ExecOverrides(**wish, elevated_allowed=allowed)
