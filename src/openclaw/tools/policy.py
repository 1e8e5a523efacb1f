"""The built-in tools, and the policies that decide which tools an agent gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw.path_opener import PathOpener
from openclaw.tools.base import Tool
from openclaw.tools.edit import EditTool
from openclaw.tools.exec.approvals import ApprovalRules
from openclaw.tools.exec.settings import ExecSettings
from openclaw.tools.exec.tool import ExecTool, OutputStore
from openclaw.tools.files import ReadTool, WriteTool
from openclaw.tools.nodes import NodeCalls
from openclaw.tools.patch import ApplyPatchTool
from openclaw.tools.process import ProcessRegistry, ProcessTool
from openclaw.tools.search import SearchTool, installed_ripgrep

if TYPE_CHECKING:
    from openclaw.questions.desk import QuestionDesk
    from openclaw.tools.sandbox.boundary import Boundary

ALIASES = {"bash": "exec", "apply-patch": "apply_patch"}
_SESSION_TOOLS = (
    *("sessions_list", "sessions_history", "sessions_search", "sessions_send", "sessions_spawn"),
    "session_status",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "group:fs": ("read", "search", "write", "edit", "apply_patch"),
    "group:runtime": ("exec", "process"),
    "group:sessions": _SESSION_TOOLS,
    "group:memory": ("memory_search", "memory_get"),
    "group:web": ("web_search", "web_fetch"),
    "group:ui": ("browser", "canvas"),
    "group:automation": ("cron", "gateway"),
    "group:messaging": ("message",),
    "group:nodes": ("nodes",),
    "group:mcp": ("*__*",),
    "group:openclaw": (
        *("browser", "canvas", "nodes", "cron", "message", "gateway", "agents_list"),
        *_SESSION_TOOLS,
        *("plan", "memory_search", "memory_get", "web_search", "web_fetch", "image"),
    ),
}


class ToolFilter(msgspec.Struct, frozen=True, kw_only=True):
    """An allow list and a deny list. Deny wins; an empty allow list allows everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


PROFILES: dict[str, ToolFilter] = {
    "minimal": ToolFilter(allow=("session_status",)),
    "coding": ToolFilter(allow=("group:fs", "group:runtime", "group:sessions", "group:memory", "plan", "image")),
    "messaging": ToolFilter(
        allow=(
            *("group:messaging", "sessions_list", "sessions_history", "sessions_search", "sessions_send"),
            "session_status",
        )
    ),
    "full": ToolFilter(),
}


def profile(name: str, also_allow: Sequence[str] = ()) -> ToolFilter:
    """The policy of a named profile, extended by ``alsoAllow``."""
    try:
        chosen = PROFILES[name]
    except KeyError:
        raise ValueError(f'Unknown tool profile "{name}"; use one of {", ".join(PROFILES)}') from None
    return ToolFilter(allow=(*chosen.allow, *also_allow)) if chosen.allow else chosen


def subagent_filter(allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> ToolFilter:
    """The filter for sub-agents: all tools but those for sessions, unless the configuration allows these by name."""
    allowed = set(expand(allow))
    return ToolFilter(
        allow=allow, deny=(*deny, *(name for name in (*_SESSION_TOOLS, "agents_list", "cron") if name not in allowed))
    )


def allowed_tools(names: Iterable[str], policies: Iterable[ToolFilter | None]) -> list[str]:
    """The names that every policy allows, in their order. A policy that is None allows everything."""
    applied = [policy for policy in policies if policy is not None]
    return [name for name in names if all(allows(policy, name) for policy in applied)]


def allows(policy: ToolFilter, name: str) -> bool:
    name = normalize_tool_name(name)
    if _matches(policy.deny, name):
        return False
    # A command can write what a patch can write, so whoever may use exec may use apply_patch.
    same_power = name == "apply_patch" and _matches(policy.allow, "exec")
    return not policy.allow or _matches(policy.allow, name) or same_power


def allows_some(policy: ToolFilter, prefix: str) -> bool:
    """Whether the policy can allow a tool whose name begins with ``prefix``, whatever its name is."""
    anything = f"{prefix}\0"  # No name has this character, so only a pattern matches it.
    if _matches(policy.deny, anything):
        return False
    return (
        not policy.allow
        or _matches(policy.allow, anything)
        or any(entry.startswith(prefix) for entry in expand(policy.allow))
    )


def normalize_tool_name(name: str) -> str:
    lowered = name.strip().lower()
    return ALIASES.get(lowered, lowered)


def expand(entries: Iterable[str]) -> list[str]:
    """The names and patterns, with groups replaced by their members."""
    expanded: list[str] = []
    for entry in entries:
        name = normalize_tool_name(entry)
        expanded.extend(GROUPS.get(name, (name,) if name else ()))
    return expanded


def _matches(entries: tuple[str, ...], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in _patterns(entries))


@lru_cache(maxsize=256)
def _patterns(entries: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(".*".join(map(re.escape, entry.split("*"))), re.DOTALL) for entry in expand(entries))


class ToolSettings(msgspec.Struct, kw_only=True):
    confine: bool = False
    """Confines the file tools to the workspace. They may also read ``extra_roots``."""
    extra_roots: list[Path] = []
    patch_confined: bool | None = None
    """Offers ``apply_patch``, and says whether it is confined to the workspace. None does not offer it."""
    exec: ExecSettings = msgspec.field(default_factory=ExecSettings)


def built_in_tools(
    *,
    workspace: Path,
    settings: ToolSettings,
    processes: ProcessRegistry,
    rules: ApprovalRules | None = None,
    questions: QuestionDesk | None = None,
    sandbox: Boundary | None = None,
    nodes: NodeCalls | None = None,
    outputs: OutputStore | None = None,
) -> list[Tool]:
    """The tools for files and commands. With a ``sandbox``, all of them work in it."""
    if sandbox is not None:
        opener = sandbox.opener
    else:
        opener = PathOpener(workspace, confine=settings.confine, extra_roots=settings.extra_roots)
    patch: list[Tool] = []
    if settings.patch_confined is not None:
        confined = settings.patch_confined and sandbox is None
        patch = [ApplyPatchTool(PathOpener(workspace, confine=True) if confined else opener)]
    return [
        ReadTool(opener),
        SearchTool(opener, installed_ripgrep()),
        WriteTool(opener),
        EditTool(opener),
        *patch,
        ExecTool(settings.exec, processes, rules, questions, sandbox, nodes, outputs),
        ProcessTool(processes),
    ]
