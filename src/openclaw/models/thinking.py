"""Thinking levels: their names, which of them a model supports, and what they mean to each provider."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model
from openclaw.models.compat import claude_facts

LEVELS: tuple[ThinkingLevel, ...] = ("off", "minimal", "low", "medium", "high", "xhigh")

_BY_NAME: dict[str, ThinkingLevel] = {
    **{level: level for level in LEVELS},
    "none": "off", "disable": "off", "disabled": "off", "false": "off", "0": "off",
    "on": "low", "enable": "low", "enabled": "low", "true": "low",
    "think": "minimal", "min": "minimal",
    "thinkhard": "low",
    "thinkharder": "medium", "harder": "medium", "mid": "medium", "med": "medium",
    "ultra": "high", "ultrathink": "high", "max": "high", "highest": "high", "thinkhardest": "high",
    "extrahigh": "xhigh",
}  # fmt: skip

BUDGETS: dict[ThinkingLevel, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 16384}
"""Thinking tokens per level, for Claude models that take a budget."""

MAX_OUTPUT_TOKENS = 32_000
"""The limit of the answer. Thinking tokens are added to it."""
MIN_BUDGET = 1024
_GPT = re.compile(r"gpt-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)")
_O_SERIES = re.compile(r"(?:^|/)o\d")


def parse_level(text: str) -> ThinkingLevel | None:
    """The level that a word means, or None."""
    return _BY_NAME.get("".join(char for char in text.strip().lower() if char not in " -_"))


def supported_levels(model: Model) -> tuple[ThinkingLevel, ...]:
    """The levels that the model accepts. ``compat.thinkingLevels`` overrides what is known."""
    if not model.reasoning:
        return ("off",)
    declared: Any = model.compat.get("thinkingLevels")
    if isinstance(declared, list | tuple):
        known: tuple[ThinkingLevel, ...] = tuple(level for level in LEVELS if level in declared)
        return known if known else ("off",)
    if model.compat.get("xhigh") or claude_facts(model).adaptive:
        return LEVELS
    model_id = model.id.lower()
    version = gpt_version(model)
    if _O_SERIES.search(model_id):
        return ("off", "low", "medium", "high")
    if version is not None and version >= (5, 1):
        highest: tuple[ThinkingLevel, ...] = ("xhigh",) if version >= (5, 2) or "codex-max" in model_id else ()
        return ("off", "low", "medium", "high", *highest)
    return LEVELS[:-1]


def gpt_version(model: Model) -> tuple[int, int] | None:
    """The version in an OpenAI model's id. It decides which levels the model accepts."""
    match = _GPT.search(model.id.lower())
    return None if match is None else (int(match.group(1)), int(match.group(2) or 0))


def clamp(level: ThinkingLevel, supported: Sequence[ThinkingLevel]) -> ThinkingLevel:
    """The level itself when supported, else the next higher one, else the next lower one."""
    if level in supported:
        return level
    position = LEVELS.index(level)
    for candidate in (*LEVELS[position + 1 :], *reversed(LEVELS[:position])):
        if candidate in supported:
            return candidate
    return "off"


def clamp_to_model(level: ThinkingLevel, model: Model) -> ThinkingLevel:
    """The nearest level that the model supports. ``off`` stays ``off``."""
    return "off" if level == "off" or not model.reasoning else clamp(level, supported_levels(model))


def level_unless_set(model: Model, configured: str | None) -> ThinkingLevel:
    """The level of a session that has none. ``configured`` is ``agents.defaults.thinkingDefault``."""
    level = parse_level(configured) if configured else None
    # A model in this process reasons slowly, so it does so only when it is asked to.
    reasons = model.reasoning and model.api != "local"
    return clamp_to_model(level or ("low" if reasons else "off"), model)


def output_limit(model: Model, requested: int | None, room: int | None = None) -> int:
    """The most tokens of the answer, without thinking. It is never above ``room``, which the prompt leaves."""
    return max(1, min(requested or MAX_OUTPUT_TOKENS, model.max_tokens, model.max_tokens if room is None else room))


def budget_and_limit(
    level: ThinkingLevel, model: Model, requested: int | None, room: int | None = None
) -> tuple[int, int]:
    """Anthropic's thinking budget and ``max_tokens``. A budget of 0 means that there is no room to think."""
    answer = output_limit(model, requested, room)
    budget = BUDGETS.get(level, 0)
    limit = output_limit(model, answer + budget, room)
    if budget >= limit:
        # Some room must stay for the answer itself.
        budget = limit - MIN_BUDGET
    if budget < MIN_BUDGET:
        return 0, answer
    return budget, limit


def reasoning_effort(level: ThinkingLevel, model: Model, *, vendor: bool = False) -> str | None:
    """OpenAI's name for the level, or None to leave the field out. Only OpenAI itself has a name for ``off``."""
    chosen = clamp_to_model(level, model)
    if chosen != "off":
        return chosen
    version = gpt_version(model)
    quiet = version is not None and version >= (5, 1) and not any(name in model.id for name in ("codex", "pro"))
    return "none" if vendor and model.reasoning and quiet else None


def binds_thinking(model: Model, level: ThinkingLevel) -> bool:
    """Whether the model thinks now, and its thinking may be sent back only after exactly the same conversation."""
    facts = claude_facts(model)
    return facts.bound_thinking and (clamp_to_model(level, model) != "off" or facts.off == "low_effort")
