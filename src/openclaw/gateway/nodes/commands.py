"""Which commands the Gateway sends to a node: those that the node declares and that its platform may have.

A command that records its surroundings, or writes to people, is in no platform's set. ``gateway.nodes.allowCommands``
adds such commands, ``gateway.nodes.denyCommands`` takes commands away and wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

from openclaw.tools.node_calls import SYSTEM_RUN

RULES_GET = "system.execApprovals.get"
RULES_SET = "system.execApprovals.set"
OWN_METHODS = frozenset({RULES_GET, RULES_SET})
"""Commands that have methods of their own, which need more than ``node.invoke`` does."""
LONGEST_NAME = 200
MAX_DECLARED = 256

_SYSTEM = frozenset({SYSTEM_RUN, "system.which", "system.notify", RULES_GET, RULES_SET, "browser.proxy"})
_CANVAS = frozenset(
    f"canvas.{name}"
    for name in ("present", "hide", "navigate", "eval", "snapshot", "a2ui.push", "a2ui.pushJSONL", "a2ui.reset")
)
_HANDHELD = _CANVAS | {
    *("camera.list", "location.get", "device.info", "device.status", "contacts.search", "calendar.events"),
    *("reminders.list", "photos.latest", "motion.activity", "motion.pedometer"),
}
Platform: TypeAlias = Literal["ios", "android", "macos", "linux", "windows", "unknown"]
USUAL: dict[Platform, frozenset[str]] = {
    "ios": _HANDHELD | {"system.notify"},
    "android": _HANDHELD,
    "macos": _HANDHELD | _SYSTEM,
    "linux": _SYSTEM,
    "windows": _SYSTEM,
    "unknown": _CANVAS | _SYSTEM | {"camera.list", "location.get"},
}
"""What a node of each platform may be asked for without a setting."""
_PREFIXES: dict[str, Platform] = {
    "ios": "ios",
    "android": "android",
    "mac": "macos",
    "darwin": "macos",
    "win": "windows",
    "linux": "linux",
}
_FAMILIES: dict[str, Platform] = {"iphone": "ios", "ipad": "ios", **_PREFIXES}


def platform_of(platform: str, family: str | None = None) -> Platform:
    """The platform that a node names: by how its platform begins, else by its device family."""
    named, kind = platform.strip().lower(), (family or "").strip().lower()
    for prefix, meant in _PREFIXES.items():
        if named.startswith(prefix):
            return meant
    for word, meant in _FAMILIES.items():
        if word in kind:
            return meant
    return "unknown"


def permitted(platform: Platform, allow: Iterable[str], deny: Iterable[str]) -> frozenset[str]:
    """What a node of this platform may be asked for, under ``allowCommands`` and ``denyCommands``."""
    added = {name.strip() for name in allow}
    return (USUAL[platform] | added) - {name.strip() for name in deny} - {""}


def declared(commands: Iterable[str], may: Collection[str]) -> tuple[str, ...]:
    """The commands that a node says it has, as far as it may be asked for them."""
    names = dict.fromkeys(name.strip() for name in commands)
    return tuple(sorted(name for name in list(names)[:MAX_DECLARED] if name in may and len(name) <= LONGEST_NAME))


def refusal(command: str, has: Collection[str], may: Collection[str]) -> str | None:
    """Why a node is not asked for a command, or None."""
    if command not in may:
        return "command not allowlisted"
    if not has:
        return "node did not declare commands"
    return None if command in has else "command not declared by node"
