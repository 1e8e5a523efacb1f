"""Which tools a sandboxed session has, and where each of them acts.

A tool without a row here is not offered to a sandboxed session, unless the configuration allows it by its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from openclaw.tools.policy import (
    GROUPS,
    ToolFilter,
    allowed_tools,
    allows,
    allows_some,
    expand,
    normalize_tool_name,
)

Place: TypeAlias = Literal["inside", "host"]

PLACES: dict[str, Place] = {
    # These see and change only what the sandbox sees.
    **dict.fromkeys(("read", "write", "edit", "apply_patch", "exec", "process", "image"), "inside"),
    # These are carried out by the Gateway. They start no program that the call names, and open a file that it names
    # only with the opener of ``ToolContext.sandbox``. Sessions are guarded by teamwork/visibility.py, and the rest have
    # rules of their own. Most are not offered by default.
    **dict.fromkeys(GROUPS["group:sessions"], "host"),
    **dict.fromkeys(("agents_list", "subagents", "memory_search", "memory_get", "memory_pins"), "host"),
    **dict.fromkeys(("message", "web_search", "web_fetch"), "host"),
    **dict.fromkeys(("browser", "canvas", "nodes", "cron", "gateway"), "host"),
}
DEFAULT_ALLOW = ("exec", "process", "read", "write", "edit", "apply_patch", "image", *GROUPS["group:sessions"])
CHANNEL_TOOLS = ("telegram", "whatsapp", "discord", "irc", "googlechat", "slack", "signal", "imessage")
DEFAULT_DENY = ("browser", "canvas", "nodes", "cron", "gateway", *CHANNEL_TOOLS)
READ_ONLY = ToolFilter(deny=("write", "edit", "apply_patch"))
"""The filter of a sandbox with ``workspaceAccess: ro``."""


def sandbox_filter(allow: Sequence[str] | None, deny: Sequence[str] | None) -> ToolFilter:
    """The filter for what ``tools.sandbox.tools`` says. None: the usual list."""
    return ToolFilter(
        allow=DEFAULT_ALLOW if allow is None else tuple(allow),
        deny=DEFAULT_DENY if deny is None else tuple(deny),
    )


def tools_inside(names: Iterable[str], filters: Sequence[ToolFilter]) -> list[str]:
    """The tools that a sandboxed session has. Every filter must allow a tool, and it must have a place."""
    named = {normalize_tool_name(entry) for rules in filters for entry in rules.allow}
    foreign = ToolFilter(allow=_naming_servers(filters))
    return [
        name
        for name in allowed_tools(names, filters)
        if name in PLACES or name in named or (foreign.allow and allows(foreign, name))
    ]


def names_some(prefix: str, filters: Sequence[ToolFilter]) -> bool:
    """Whether the configuration names tools that begin with ``prefix``, those of one MCP server, for the sandbox."""
    named = _naming_servers(filters)
    return bool(named) and allows_some(ToolFilter(allow=named), prefix)


def _naming_servers(filters: Sequence[ToolFilter]) -> tuple[str, ...]:
    """The entries of the allow lists that name tools of MCP servers: ``docs__search``, ``docs__*``, ``group:mcp``."""
    return tuple(entry for rules in filters for entry in expand(rules.allow) if "__" in entry)


def blocked_text(name: str, filters: Sequence[ToolFilter], *, agent_id: str, mode: str, access: str) -> str | None:
    """Says why a sandboxed session does not have a tool, and which keys change that. None: the sandbox allows it."""
    if tools_inside([name], filters):
        return None
    if access == "ro" and not allows(READ_ONLY, name):
        return (
            f'Tool "{name}" is not there: this session runs in a sandbox that may only read the workspace (/agent). '
            "Write with exec in /workspace, or have the owner set agents.defaults.sandbox.workspaceAccess to rw."
        )
    return (
        f'Tool "{name}" is blocked by the sandbox of this session (mode {mode}). The owner can add it to '
        f"tools.sandbox.tools.allow (for one agent: agents.list[].tools.sandbox.tools.allow), take it from "
        f"tools.sandbox.tools.deny, or set agents.defaults.sandbox.mode to off. "
        f"`openclaw sandbox explain --agent {agent_id}` shows what counts."
    )
