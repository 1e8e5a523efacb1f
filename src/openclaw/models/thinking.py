"""Thinking levels: their names, what a model supports, and what a level means to each provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model

LEVELS: tuple[ThinkingLevel, ...] = ("off", "minimal", "low", "medium", "high", "xhigh")

_ALIASES: dict[str, ThinkingLevel] = {
    "none": "off", "disable": "off", "disabled": "off", "false": "off", "0": "off",
    "on": "low", "enable": "low", "enabled": "low", "true": "low",
    "think": "minimal", "min": "minimal",
    "thinkhard": "low",
    "thinkharder": "medium", "harder": "medium", "mid": "medium", "med": "medium",
    "ultra": "high", "ultrathink": "high", "max": "high", "highest": "high", "thinkhardest": "high",
    "extrahigh": "xhigh",
}  # fmt: skip

BUDGETS: dict[ThinkingLevel, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 16384}
"""Anthropic's thinking tokens per level, for models that take a budget."""

ADAPTIVE_EFFORT: dict[ThinkingLevel, str] = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "max",
}  # fmt: skip
"""The effort of models that decide for themselves how long to think."""

MAX_OUTPUT_TOKENS = 32_000
"""The answer's part of the output limit, before thinking is added."""
MIN_BUDGET = 1024
_XHIGH_MODELS = ("gpt-5.1-codex-max", "gpt-5.2", "gpt-5.3", "gpt-5.4", "opus-4-6", "opus-4.6")
_ADAPTIVE_MODELS = ("opus-4-6", "opus-4.6", "sonnet-4-6", "sonnet-4.6")


def parse_level(text: str) -> ThinkingLevel | None:
    """The level a person meant, or None when the word is not one."""
    key = "".join(char for char in text.strip().lower() if char not in " -_")
    for level in LEVELS:
        if key == level:
            return level
    return _ALIASES.get(key)


def supported_levels(model: Model) -> tuple[ThinkingLevel, ...]:
    """What the model can be asked for; ``compat.thinkingLevels`` of the catalogue decides where it is given."""
    if not model.reasoning:
        return ("off",)
    declared: Any = model.compat.get("thinkingLevels")
    if isinstance(declared, list | tuple):
        known: tuple[ThinkingLevel, ...] = tuple(level for level in LEVELS if level in declared)
        return known if known else ("off",)
    model_id = model.id.lower()
    if model.compat.get("xhigh") or any(name in model_id for name in _XHIGH_MODELS):
        return LEVELS
    return LEVELS[:-1]


def clamp(level: ThinkingLevel, supported: Sequence[ThinkingLevel]) -> ThinkingLevel:
    """The level itself when supported, else the next higher one that is, else the next lower one."""
    if level in supported:
        return level
    position = LEVELS.index(level)
    for candidate in (*LEVELS[position + 1 :], *reversed(LEVELS[:position])):
        if candidate in supported:
            return candidate
    return "off"


def clamp_to_model(level: ThinkingLevel, model: Model) -> ThinkingLevel:
    """Off stays off: a person who switched thinking off does not get it back."""
    return "off" if level == "off" or not model.reasoning else clamp(level, supported_levels(model))


def is_adaptive(model: Model) -> bool:
    """Whether the Anthropic model takes an effort instead of a budget of thinking tokens."""
    style = model.compat.get("thinking")
    if style in ("adaptive", "budget"):
        return style == "adaptive"
    model_id = model.id.lower()
    return any(name in model_id for name in _ADAPTIVE_MODELS)


def output_limit(model: Model, requested: int | None) -> int:
    """Tokens the answer may take, thinking not counted."""
    return max(1, min(requested or MAX_OUTPUT_TOKENS, model.max_tokens))


def budget_and_limit(level: ThinkingLevel, model: Model, requested: int | None) -> tuple[int, int]:
    """Anthropic's (thinking budget, max_tokens). A budget of 0 means there is no room to think."""
    answer = output_limit(model, requested)
    budget = BUDGETS.get(level, 0)
    limit = min(answer + budget, model.max_tokens)
    if budget >= limit:
        # Some room must stay for the answer itself.
        budget = limit - MIN_BUDGET
    if budget < MIN_BUDGET:
        return 0, answer
    return budget, limit


def reasoning_effort(level: ThinkingLevel, model: Model) -> str | None:
    """OpenAI's word for the level, or None when the model should not be asked to reason."""
    chosen = clamp_to_model(level, model)
    return None if chosen == "off" else chosen
