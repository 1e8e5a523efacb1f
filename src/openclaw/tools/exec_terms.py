"""On which terms a command runs: where, what may run, and whether a person is asked. Pure decisions.

Four voices count: the configuration, the session or the message (``/exec``, ``/elevated``), the rules file of this
machine, and the call's own arguments. A call can tie its own hands, never untie them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.tools.base import ToolError
from openclaw.tools.exec_settings import (
    Ask,
    ExecSettings,
    Host,
    Security,
    effective_ask,
    effective_security,
)

ElevatedLevel: TypeAlias = Literal["off", "on", "ask", "full"]
Fallback: TypeAlias = Security
"""What counts when nobody answered in time."""


class ExecWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the person set with ``/exec`` and ``/elevated``, for the session or for one message."""

    host: Host | None = None
    security: Security | None = None
    ask: Ask | None = None
    node: str | None = None
    elevated: ElevatedLevel | None = None
    """None: nobody said anything."""
    elevated_allowed: bool = False
    """Whether the writer of this message may have elevated commands at all."""


class HostRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules file says for one agent."""

    security: Security | None = None
    ask: Ask | None = None
    ask_fallback: Fallback = "deny"
    allowlist: tuple[str, ...] = ()


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    host: Host
    security: Security
    ask: Ask

    def asks_first(self, *, listed: bool) -> bool:
        """Whether a person decides. ``listed``: every program of the command is on the allowlist."""
        return self.ask == "always" or (self.ask == "on-miss" and self.security == "allowlist" and not listed)


def agent_settings(settings: ExecSettings, wish: ExecWish, rules: HostRules, arguments: Mapping[str, Any]) -> Terms:
    """Raises ``ToolError`` when the command may not run at all."""
    mode = _elevated_mode(wish, arguments.get("elevated"))
    host = _host(settings, wish, arguments.get("host"), elevated=mode != "off")
    if wish.security == "deny":
        raise ToolError("exec is denied (security=deny) in this session; the owner can change that with /exec")
    if mode == "full":
        return Terms(host=host, security="full", ask="off")
    configured = wish.security or settings.security or ("allowlist" if host == "gateway" else "full")
    security = effective_security(effective_security(configured, arguments.get("security")), rules.security)
    if security == "deny":
        raise ToolError("exec is denied (security=deny)")
    ask = effective_ask(effective_ask(wish.ask or settings.ask, arguments.get("ask")), rules.ask)
    return Terms(host=host, security=security, ask=ask)


def _elevated_mode(wish: ExecWish, requested: bool | None) -> Literal["off", "ask", "full"]:
    if requested is False or (requested is None and not wish.elevated_allowed):
        return "off"
    if requested is None:
        modes: dict[str | None, Literal["ask", "full"]] = {"on": "ask", "ask": "ask", "full": "full"}
        return modes.get(wish.elevated, "off")
    if not wish.elevated_allowed or wish.elevated == "off":
        closed = "the level, which /elevated set to off" if wish.elevated_allowed else "the sender"
        raise ToolError(
            f"elevated is not available right now (runtime=direct). Closed by: {closed}. It needs "
            "tools.elevated.enabled, the sender in tools.elevated.allowFrom.<channel>, and a level other than off. "
            "Leave elevated out to run the command without it."
        )
    return "full" if wish.elevated == "full" else "ask"


def _host(settings: ExecSettings, wish: ExecWish, requested: Host | None, *, elevated: bool) -> Host:
    configured = wish.host or settings.host
    if elevated:
        return "gateway"
    if requested and requested != configured:
        raise ToolError(
            f"exec host {requested} is not allowed: the host is {configured}. Leave host out, or have the owner "
            f"change it with /exec host={requested} or tools.exec.host"
        )
    if configured == "node":
        node = wish.node or settings.node
        named = f' "{node}"' if node else ""
        raise ToolError(f"exec host node: no node{named} is connected to this Gateway")
    return configured
