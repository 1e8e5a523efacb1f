"""The sandbox of one session as the configuration has it: where it is, what it sees, its limits and its tools.

A session that was spawned by a sandboxed one is sandboxed too, whatever its agent is. Its rights are never wider than
those of the session that spawned it. A tool without a row here is not offered to a sandboxed session, unless the
configuration allows it by its own name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from openclaw.config.agents import agent_config, sandbox_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Sandbox, SandboxDocker
from openclaw.tools.policy import GROUPS, ToolFilter, allowed_tools, allows, allows_some, expand, normalize_tool_name

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


Access: TypeAlias = Literal["none", "ro", "rw"]
Scope: TypeAlias = Literal["session", "agent", "shared"]

_ACCESS: tuple[Access, ...] = ("none", "ro", "rw")
_SCOPES: tuple[Scope, ...] = ("session", "agent", "shared")
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of one session. Sessions with the same ``folder`` share it."""

    agent_id: str
    session_key: str
    lineage: tuple[tuple[str, str], ...]
    """The sandboxed sessions whose rules count, as agent and key: this one, and those that it was spawned by."""
    mode: str
    scope: Scope
    scope_key: str
    """What shares the sandbox: a session key, ``agent:<id>`` or ``shared``."""
    backend: Literal["bubblewrap", "docker", "podman"]
    access: Access
    root: Path
    """The folder of all sandboxes."""
    own_folder: Path
    """The sandbox's own folder. Not used with access ``rw``."""
    workspace: Path
    """The agent's workspace."""
    state_dir: Path
    docker: SandboxDocker
    filters: tuple[ToolFilter, ...]

    @property
    def folder(self) -> Path:
        """The folder that commands and file tools work in."""
        return self.workspace if self.access == "rw" else self.own_folder

    @property
    def group_name(self) -> str:
        """The name of the sandbox's control groups. Other Gateways of this machine have others."""
        return group_name(self.own_folder)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for plans that are equal under one configuration, apart from the session."""
        agents = tuple(agent for agent, _ in self.lineage)
        return (self.agent_id, self.scope_key, self.access, agents)


def make_plan(
    config: Config, state_dir: Path, agent_id: str, session_key: str, lineage: Sequence[tuple[str, str]]
) -> SandboxPlan:
    """The plan for a session. ``lineage`` names the sandboxed sessions whose rules count, the eldest one last."""
    settings = [sandbox_config(config, agent) for agent in dict.fromkeys([agent_id, *(one for one, _ in lineage)])]
    if all(agent != agent_id for agent, _ in lineage):
        # The session's own agent has no sandbox. Only its ancestors' rules count.
        settings = settings[1:]
    eldest = sandbox_config(config, lineage[-1][0])
    access = _ACCESS[min(_ACCESS.index(one.workspace_access) for one in settings)]
    scope = _SCOPES[min(_SCOPES.index(scope_of(one)) for one in settings)]
    scope_key = {"session": session_key, "agent": f"agent:{agent_id}", "shared": "shared"}[scope]
    root = sandbox_root(eldest, state_dir)
    filters = [_filter(config, agent) for agent in dict.fromkeys(agent for agent, _ in lineage)]
    return SandboxPlan(
        agent_id=agent_id,
        session_key=session_key,
        lineage=tuple(lineage),
        mode=eldest.mode,
        scope=scope,
        scope_key=scope_key,
        backend=eldest.backend,
        access=access,
        root=root,
        own_folder=root / slug_of(scope_key),
        workspace=workspace_dir(config, state_dir, agent_id),
        state_dir=state_dir,
        docker=eldest.docker,
        filters=(*filters, *([READ_ONLY] if access == "ro" else [])),
    )


def _filter(config: Config, agent_id: str) -> ToolFilter:
    agent = agent_config(config, agent_id)
    own = agent.tools.sandbox if agent else None
    rules = (own or config.tools.sandbox).tools
    return sandbox_filter(rules.allow, rules.deny)


def scope_of(settings: Sandbox) -> Scope:
    if settings.per_session is None:
        return settings.scope
    return "session" if settings.per_session else "shared"


def sandbox_root(settings: Sandbox, state_dir: Path) -> Path:
    if settings.workspace_root == Sandbox().workspace_root:
        return state_dir / "sandboxes"
    return Path(settings.workspace_root).expanduser().absolute()


def slug_of(scope_key: str) -> str:
    """A name for a folder: readable, and different for different keys."""
    shown = _UNSAFE.sub("-", scope_key.strip().lower())[:32].strip("-.") or "session"
    return f"{shown}-{hashlib.sha256(scope_key.encode()).hexdigest()[:12]}"


def group_name(folder: Path) -> str:
    return f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def holds(folder: str | Path, inner: str | Path) -> bool:
    """Whether ``inner`` is ``folder`` or in it, with all links resolved."""
    outer, wanted = os.path.realpath(folder), os.path.realpath(inner)
    return wanted == outer or wanted.startswith(outer.rstrip("/") + "/")
