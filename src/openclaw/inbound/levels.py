"""The words people use for a session's levels, and the value each means."""

from __future__ import annotations

from typing import Literal, TypeAlias

from openclaw.models.thinking import LEVELS, parse_level

LevelKind: TypeAlias = Literal["think", "verbose", "reasoning", "elevated"]

_WORDS: dict[LevelKind, dict[str, tuple[str, ...]]] = {
    "verbose": {
        "off": ("off", "false", "no"),
        "on": ("on", "minimal", "true", "yes"),
        "full": ("full", "all", "everything"),
    },
    "reasoning": {
        "on": ("on", "true", "yes", "show", "visible", "enable", "enabled"),
        "off": ("off", "false", "no", "hide", "hidden", "disable", "disabled"),
        "stream": ("stream", "streaming", "draft", "live"),
    },
    "elevated": {
        "on": ("on", "true", "yes"),
        "off": ("off", "false", "no"),
        "ask": ("ask", "prompt", "approval", "approve"),
        "full": ("full", "auto", "auto-approve", "autoapprove"),
    },
}
_MEANING = {kind: {word: value for value, words in values.items() for word in words} for kind, values in _WORDS.items()}
_USAGE = {"off": "off", "on": "tokens", "true": "tokens", "tokens": "tokens", "full": "full", "session": "full"}

ENTRY_FIELD: dict[LevelKind, str] = {
    "think": "thinkingLevel",
    "verbose": "verboseLevel",
    "reasoning": "reasoningLevel",
    "elevated": "elevatedLevel",
}
OFF_IS_ABSENCE: frozenset[str] = frozenset({"thinkingLevel", "reasoningLevel"})
"""Here "off" removes the field, unless it would be on without it. Elsewhere it is stored, to win over a default."""


def read_level(kind: LevelKind, word: str) -> str | None:
    """The value a word stands for, or None when it is none of them."""
    return parse_level(word) if kind == "think" else _MEANING[kind].get(word.lower())


def level_values(kind: LevelKind) -> tuple[str, ...]:
    return LEVELS if kind == "think" else tuple(_WORDS[kind])


def stored(field: str, value: str, unset: str = "off") -> str | None:
    """What the entry holds for a value; None removes the field. ``unset``: what counts without it."""
    return None if value == "off" == unset and field in OFF_IS_ABSENCE else value


def read_usage(word: str) -> str | None:
    """``off``, ``tokens`` or ``full``."""
    return _USAGE.get(word.strip().lower())


def read_send_policy(word: str) -> Literal["on", "off", "inherit"] | None:
    match word.strip().lower():
        case "on" | "allow":
            return "on"
        case "off" | "deny":
            return "off"
        case "inherit" | "default" | "reset":
            return "inherit"
        case _:
            return None
