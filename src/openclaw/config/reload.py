"""What a changed configuration asks of a running Gateway."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from openclaw.config.keypath import KeyPath, format_path, parse_path

ReloadAction: TypeAlias = Literal["none", "hot", "restart"]

# fmt: off
# Read at every use, so a change needs no action.
_READ_LIVE = frozenset((
    "$schema", "acp", "agents", "approvals", "audio", "auth", "bindings", "branchSummary", "broadcast", "commands",
    "compaction", "logging", "media", "memory", "messages", "meta", "models", "retry", "secrets", "session", "skills",
    "talk", "tools", "ui", "update", "wizard",
))
# fmt: on
_RESTARTED_IN_PLACE = frozenset({"hooks", "cron", "browser", "channels", "web"})
_LIVE_GATEWAY = ("gateway.remote", "gateway.reload")
_HEARTBEAT = re.compile(r"agents\.(defaults\.heartbeat|list)(\.|\[|$)")


def reload_action(changed_paths: Iterable[str]) -> ReloadAction:
    """The strongest action any of the changes needs. A key nobody knows needs a restart."""
    actions = {_action(path) for path in changed_paths}
    return "restart" if "restart" in actions else "hot" if "hot" in actions else "none"


def _action(path: str) -> ReloadAction:
    if path.startswith(_LIVE_GATEWAY):
        return "none"
    if _HEARTBEAT.match(path):
        return "hot"
    section = str(parse_path(path)[0])
    if section in _READ_LIVE:
        return "none"
    return "hot" if section in _RESTARTED_IN_PLACE else "restart"


def changed_paths(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Key paths whose values differ, deepest objects first named; a list counts as one value."""
    return [format_path(path) for path in _changes(old, new, ())]


def _changes(old: Any, new: Any, path: KeyPath) -> list[KeyPath]:
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[KeyPath] = []
        for key in dict.fromkeys([*old, *new]):
            found += _changes(old.get(key), new.get(key), (*path, key))
        return found
    return [] if old == new else [path]
