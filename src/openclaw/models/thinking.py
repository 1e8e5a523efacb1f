"""What each model and server accepts: thinking levels, quirks of OpenAI-compatible servers, generations of Claude.

Servers refuse a request because of one field that they do not know. The model's ``compat`` settings override what is
guessed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model, ModelError
from openclaw.models.keys import is_local_url

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
        levels: tuple[ThinkingLevel, ...] = tuple(level for level in LEVELS if level in declared)
        return levels if levels else ("off",)
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
    """Anthropic's thinking budget and ``max_tokens``. A budget of 0 leaves no room to think."""
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


# Quirks of servers, and what Claude accepts

OPENAI_BASE_URL = "https://api.openai.com/v1"
_MISTRAL_MODELS = ("mistral", "mixtral", "codestral", "pixtral", "devstral", "ministral", "magistral")
_LOCAL_PROVIDERS = ("ollama", "vllm", "llamacpp", "llama.cpp", "lmstudio", "local", "sglang")
_TAG_PROVIDERS = ("ollama", "google-gemini-cli", "google-generative-ai")
ANTHROPIC_BASE_URL = "https://api.anthropic.com"

OffStyle: TypeAlias = Literal["omit", "disabled", "between_tools", "low_effort"]
"""How thinking is switched off: omit the field, disable it, allow it only between tool calls, or use low effort."""

_CLAUDE_ID = re.compile(r"claude-(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_CLAUDE_EFFORT: dict[ThinkingLevel, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}


class Quirks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Each field can be set in a model's ``compat`` under its camelCase name."""

    supports_developer_role: bool = True
    supports_reasoning_effort: bool = True
    supports_usage_in_streaming: bool = True
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    requires_tool_result_name: bool = False
    requires_thinking_as_text: bool = False
    requires_mistral_tool_ids: bool = False
    requires_assistant_after_tool_result: bool = False
    """Roles must alternate, and an assistant message must stand between tool results and the user."""
    thinking_format: Literal["openai", "zai", "qwen"] = "openai"
    is_openai: bool = False
    """The server is OpenAI itself: call ids of at most 40 characters, no empty list of tools, a prompt cache key."""
    is_openrouter: bool = False


def quirks_of(model: Model) -> Quirks:
    guessed = msgspec.to_builtins(_guess(model))
    quirks = {name: value for name, value in model.compat.items() if name in guessed}
    try:
        return msgspec.convert({**guessed, **quirks}, Quirks)
    except msgspec.ValidationError as error:
        raise ModelError(f"The compat settings of {model.ref} are wrong: {error}.", kind="format") from None


def reasons_in_tags(model: Model) -> bool | Literal["if_begun"]:
    """Whether the model is asked to write its reasoning in ``<think>`` and its answer in ``<final>``.

    ``compat.finalTag`` overrides this. Small models without tools are not asked. Many of Ollama's models ignore the
    request: ``if_begun`` means that an answer which does not begin with a tag is shown as it is.
    """
    declared = model.compat.get("finalTag")
    if isinstance(declared, bool):
        return declared
    provider = model.provider.lower()
    by_provider = provider in _TAG_PROVIDERS or "google-antigravity" in provider or "minimax" in provider
    if not by_provider or not model.tools:
        return False
    return "if_begun" if provider == "ollama" else True


def _guess(model: Model) -> Quirks:
    provider = model.provider.lower()
    host = urlsplit(model.base_url or OPENAI_BASE_URL).hostname or ""
    model_id = model.id.lower()

    def served_by(name: str, domain: str) -> bool:
        return provider == name or host == domain or host.endswith(f".{domain}")

    mistral = served_by("mistral", "mistral.ai")
    mistral_model = any(name in model_id for name in _MISTRAL_MODELS)
    zai = served_by("zai", "z.ai")
    xai = served_by("xai", "x.ai")
    local = provider in _LOCAL_PROVIDERS or is_local_url(model.base_url) or host == "0.0.0.0"
    picky = (
        local or mistral or zai or xai or served_by("cerebras", "cerebras.ai") or served_by("deepseek", "deepseek.com")
        or served_by("chutes", "chutes.ai") or provider == "opencode"
    )  # fmt: skip
    old_limit = local or mistral or served_by("chutes", "chutes.ai")
    return Quirks(
        supports_developer_role=not picky,
        supports_reasoning_effort=not (xai or zai or mistral),
        max_tokens_field="max_tokens" if old_limit else "max_completion_tokens",
        requires_tool_result_name=mistral,
        requires_thinking_as_text=mistral,
        requires_mistral_tool_ids=mistral or (not local and mistral_model),
        requires_assistant_after_tool_result=mistral or mistral_model,
        thinking_format="zai" if zai else "openai",
        is_openai=provider == "openai" or host == "api.openai.com",
        is_openrouter=served_by("openrouter", "openrouter.ai"),
    )


class ClaudeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a Claude model accepts. The defaults fit Claude 4.5 and older, and other vendors' models behind this API."""

    adaptive: bool = False
    """Takes an effort instead of a budget of thinking tokens."""
    top_effort: str = "max"
    """The effort for our highest thinking level."""
    off: OffStyle = "omit"
    sampling: bool = True
    """Accepts a temperature."""
    forced_tools: bool = True
    """Accepts a tool choice that forces a call. No model accepts it together with thinking."""
    bound_thinking: bool = False
    """Thinking may be sent back only after exactly the conversation that produced it."""


def claude_facts(model: Model) -> ClaudeFacts:
    """The facts for the model's id. ``compat.thinking`` (``adaptive``, ``budget``) and ``thinkingOff`` override."""
    facts = _claude_facts_by_id(model.id.lower())
    style: Any = model.compat.get("thinking")
    if style in ("adaptive", "budget"):
        facts = msgspec.structs.replace(facts, adaptive=style == "adaptive")
    off: Any = model.compat.get("thinkingOff")
    if off in ("omit", "disabled", "between_tools", "low_effort"):
        facts = msgspec.structs.replace(facts, off=off)
    return facts


@lru_cache(256)
def _claude_facts_by_id(model_id: str) -> ClaudeFacts:
    if "mythos-preview" in model_id:
        return ClaudeFacts(adaptive=True, off="low_effort")
    match = _CLAUDE_ID.search(model_id)
    if match is None:
        return ClaudeFacts()
    family, version = match.group(1), (int(match.group(2)), int(match.group(3) or 0))
    if version < (4, 6):
        return ClaudeFacts()
    if version < (4, 7):
        return ClaudeFacts(adaptive=True)
    if version < (5, 0):
        return ClaudeFacts(adaptive=True, top_effort="xhigh", sampling=False)
    # Version 5 brought families that always think. Versions 5.1 and 5.5 brought bound thinking.
    always_thinks = family in ("fable", "mythos")
    off: OffStyle = "low_effort"
    if not always_thinks and version < (5, 5):
        off = "disabled"
    elif version == (5, 5) and family in ("sonnet", "haiku"):
        off = "between_tools" if family == "sonnet" else "disabled"
    bound = version >= ((5, 1) if always_thinks else (5, 5))
    return ClaudeFacts(
        adaptive=True,
        top_effort="xhigh",
        off=off,
        sampling=False,
        forced_tools=not bound or off == "disabled",
        bound_thinking=bound,
    )


def claude_effort(level: ThinkingLevel, facts: ClaudeFacts) -> str:
    return _CLAUDE_EFFORT.get(level, facts.top_effort)


def is_anthropic(model: Model) -> bool:
    """Whether the server is Anthropic's own. Some fields are understood only there."""
    return urlsplit(model.base_url or ANTHROPIC_BASE_URL).hostname == "api.anthropic.com"


def controls_binding(model: Model) -> bool:
    """Whether the server can drop thinking that no longer fits its conversation. ``compat.blockBinding`` overrides."""
    return claude_facts(model).bound_thinking and bool(model.compat.get("blockBinding", is_anthropic(model)))
