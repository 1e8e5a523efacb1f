"""Which tools an agent gets: allow and deny lists with groups, wildcards and profiles, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

ALIASES = {"bash": "exec", "apply-patch": "apply_patch"}
_SESSION_TOOLS = ("sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "session_status")
GROUPS: dict[str, tuple[str, ...]] = {
    "group:fs": ("read", "write", "edit", "apply_patch"),
    "group:runtime": ("exec", "process"),
    "group:sessions": _SESSION_TOOLS,
    "group:memory": ("memory_search", "memory_get"),
    "group:web": ("web_search", "web_fetch"),
    "group:ui": ("browser", "canvas"),
    "group:automation": ("cron", "gateway"),
    "group:messaging": ("message",),
    "group:nodes": ("nodes",),
    "group:openclaw": (
        *("browser", "canvas", "nodes", "cron", "message", "gateway", "agents_list"),
        *_SESSION_TOOLS,
        *("memory_search", "memory_get", "web_search", "web_fetch", "image"),
    ),
}


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One list of the pipeline. Deny wins; an empty allow list allows everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


PROFILES: dict[str, ToolPolicy] = {
    "minimal": ToolPolicy(allow=("session_status",)),
    "coding": ToolPolicy(allow=("group:fs", "group:runtime", "group:sessions", "group:memory", "image")),
    "messaging": ToolPolicy(
        allow=("group:messaging", "sessions_list", "sessions_history", "sessions_send", "session_status")
    ),
    "full": ToolPolicy(),
}


def profile(name: str, also_allow: Sequence[str] = ()) -> ToolPolicy:
    """A named starting point, widened by ``alsoAllow``."""
    try:
        chosen = PROFILES[name]
    except KeyError:
        raise ValueError(f'Unknown tool profile "{name}"; use one of {", ".join(PROFILES)}') from None
    return ToolPolicy(allow=(*chosen.allow, *also_allow)) if chosen.allow else chosen


def allowed_tools(names: Iterable[str], policies: Iterable[ToolPolicy | None]) -> list[str]:
    """The names that pass every policy, in their order; a policy that is None says nothing."""
    applied = [policy for policy in policies if policy is not None]
    return [name for name in names if all(allows(policy, name) for policy in applied)]


def allows(policy: ToolPolicy, name: str) -> bool:
    name = normalize_tool_name(name)
    if _matches(policy.deny, name):
        return False
    # A patch is one way to write what a command could write anyway.
    same_power = name == "apply_patch" and _matches(policy.allow, "exec")
    return not policy.allow or _matches(policy.allow, name) or same_power


def normalize_tool_name(name: str) -> str:
    lowered = name.strip().lower()
    return ALIASES.get(lowered, lowered)


def expand(entries: Iterable[str]) -> list[str]:
    """Names and patterns, with groups replaced by their members."""
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
