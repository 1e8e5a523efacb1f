"""What a run tells its model besides the conversation: prompt, tools and their sizes, made once and kept.

Rebuilt for every run means: from what holds at that moment. As long as nothing it is made of has changed, the same
briefing is what a rebuild would yield, byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from openclaw.agent.prompt import QUARTER_MS, PromptFacts, SystemPrompt, build_system_prompt
from openclaw.agent.prompt_facts import Means, Occasion, facts_for
from openclaw.agent.prompt_report import shared_report
from openclaw.agent.tokens import overhead_tokens
from openclaw.messages import ToolSpec
from openclaw.models.compat import reasons_in_tags
from openclaw.outbound.reasoning import Framing
from openclaw.tools.base import Tool

MOST_KEPT = 64


class Briefing(msgspec.Struct, frozen=True, kw_only=True):
    facts: PromptFacts
    prompt: SystemPrompt
    tools: dict[str, Tool]
    """Ours, by name. Never mutate it."""
    specs: list[ToolSpec]
    """Ours, then the caller's. Never mutate it."""
    overhead: int
    """Estimated tokens of all this in every prompt."""
    framing: Framing
    """Where the model's answer stands among what it writes."""
    report: dict[str, Any]
    """The sizes, without what belongs to one run."""


class Briefings:
    def __init__(self) -> None:
        self._known: OrderedDict[Occasion, tuple[Means, int, Briefing]] = OrderedDict()

    def of(self, occasion: Occasion, means: Means, now_ms: int, client_tools: list[ToolSpec]) -> Briefing:
        if client_tools:
            return _brief(occasion, means, now_ms, client_tools)
        quarter = now_ms // QUARTER_MS
        known = self._known.get(occasion)
        if known is not None and known[1] == quarter and known[0].same_as(means):
            return known[2]
        briefing = _brief(occasion, means, now_ms, [])
        self._known[occasion] = (means, quarter, briefing)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return briefing


def _brief(occasion: Occasion, means: Means, now_ms: int, client_tools: list[ToolSpec]) -> Briefing:
    facts = facts_for(occasion, means)
    prompt = build_system_prompt(facts, now_ms)
    specs = [*(tool.spec for tool in facts.tools), *client_tools]
    return Briefing(
        facts=facts,
        prompt=prompt,
        tools={tool.spec.name: tool for tool in facts.tools},
        specs=specs,
        overhead=overhead_tokens(prompt.text, prompt.suffix, specs),
        framing=reasons_in_tags(means.model),
        report=shared_report(facts, prompt, means.config),
    )
