"""What a run tells its model besides the conversation: prompt, tools and their sizes, made once and kept.

Rebuilt for every run means: from what holds at that moment. As long as nothing it is made of has changed, the same
briefing is what a rebuild would yield, byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeAlias

import msgspec

from openclaw.agent.prompt import QUARTER_MS, PromptFacts, SystemPrompt, build_system_prompt
from openclaw.agent.prompt_report import shared_report
from openclaw.agent.tokens import overhead_tokens
from openclaw.config.schema import Config
from openclaw.models.base import ToolSpec

MOST_KEPT = 64
_Key: TypeAlias = tuple[Any, ...]


class Briefing(msgspec.Struct, frozen=True, kw_only=True):
    facts: PromptFacts
    prompt: SystemPrompt
    specs: list[ToolSpec]
    """Ours, then the caller's. Never mutate it."""
    overhead: int
    """Estimated tokens of all this in every prompt."""
    report: dict[str, Any]
    """The sizes, without what belongs to one run."""


class Briefings:
    def __init__(self) -> None:
        self._known: OrderedDict[_Key, tuple[Config, int, Briefing]] = OrderedDict()

    def of(self, facts: PromptFacts, config: Config, now_ms: int, client_tools: list[ToolSpec]) -> Briefing:
        if client_tools:
            return _brief(facts, config, now_ms, client_tools)
        key = (facts.agent_id, facts.model.ref, facts.mode, facts.channel, facts.thinking, facts.reasoning, facts.extra)
        quarter = now_ms // QUARTER_MS
        known = self._known.get(key)
        if known is not None and known[0] is config and known[1] == quarter and known[2].facts == facts:
            return known[2]
        briefing = _brief(facts, config, now_ms, [])
        self._known[key] = (config, quarter, briefing)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return briefing


def _brief(facts: PromptFacts, config: Config, now_ms: int, client_tools: list[ToolSpec]) -> Briefing:
    prompt = build_system_prompt(facts, now_ms)
    specs = [*(tool.spec for tool in facts.tools), *client_tools]
    return Briefing(
        facts=facts,
        prompt=prompt,
        specs=specs,
        overhead=overhead_tokens(prompt.text, prompt.suffix, specs),
        report=shared_report(facts, prompt, config),
    )
