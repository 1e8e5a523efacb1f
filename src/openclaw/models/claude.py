"""What each generation of Claude accepts: a whole request is refused over one field that is out of date."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from openclaw.messages import ThinkingLevel
from openclaw.models.base import Model

DEFAULT_BASE_URL = "https://api.anthropic.com"
VENDOR_HOST = "api.anthropic.com"

OffStyle: TypeAlias = Literal["omit", "disabled", "between_tools", "low_effort"]
"""How thinking is switched off: say nothing, say so, all but notes between tool calls, or only as far as it goes."""

_ID = re.compile(r"claude-(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_EFFORT: dict[ThinkingLevel, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}


class ClaudeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults are those of Claude 4.5 and older, and of other vendors' models behind the same API."""

    adaptive: bool = False
    """Takes an effort instead of a budget of thinking tokens."""
    top_effort: str = "max"
    """The word for our highest level."""
    off: OffStyle = "omit"
    sampling: bool = True
    """Accepts a temperature."""
    forced_tools: bool = True
    """Accepts a tool choice that forces a call (never together with thinking)."""
    bound_thinking: bool = False
    """Thinking may only be sent back behind exactly the conversation that produced it."""


def facts_of(model: Model) -> ClaudeFacts:
    """By the model's id; ``compat`` overrides (``thinking``: ``adaptive`` or ``budget``, ``thinkingOff``)."""
    facts = _by_version(model.id.lower())
    style: Any = model.compat.get("thinking")
    if style in ("adaptive", "budget"):
        facts = msgspec.structs.replace(facts, adaptive=style == "adaptive")
    off: Any = model.compat.get("thinkingOff")
    if off in ("omit", "disabled", "between_tools", "low_effort"):
        facts = msgspec.structs.replace(facts, off=off)
    return facts


@lru_cache(256)
def _by_version(model_id: str) -> ClaudeFacts:
    if "mythos-preview" in model_id:
        return ClaudeFacts(adaptive=True, off="low_effort")
    match = _ID.search(model_id)
    if match is None:
        return ClaudeFacts()
    family, version = match.group(1), (int(match.group(2)), int(match.group(3) or 0))
    if version < (4, 6):
        return ClaudeFacts()
    if version < (4, 7):
        return ClaudeFacts(adaptive=True)
    if version < (5, 0):
        return ClaudeFacts(adaptive=True, top_effort="xhigh", sampling=False)
    # Families whose thinking cannot be switched off came with 5, the binding of thinking with 5.1 and 5.5.
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


def effort_of(level: ThinkingLevel, facts: ClaudeFacts) -> str:
    return _EFFORT.get(level, facts.top_effort)


def is_vendor(model: Model) -> bool:
    """Some fields only the vendor's own servers understand."""
    return urlsplit(model.base_url or DEFAULT_BASE_URL).hostname == VENDOR_HOST


def controls_binding(model: Model) -> bool:
    """Whether the server can be told to drop thinking that no longer fits; ``compat.blockBinding`` overrides."""
    return facts_of(model).bound_thinking and bool(model.compat.get("blockBinding", is_vendor(model)))
