"""Whatever a session has been through, no vendor refuses what we send.

The full count of 100,000 requests: ``OPENCLAW_REQUEST_CASES=100000 pytest tests/models/test_valid_requests.py``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openclaw.agent.window.history_cleaner import HistoryCleaner, Hygiene
from openclaw.agent.window.tokens import PromptBudget
from openclaw.agent.window.window import fit
from openclaw.messages import UserMessage
from openclaw.models import anthropic, google, openai_chat, openai_responses
from openclaw.models.base import Model, ModelRequest
from openclaw.models.http import encode_body
from tests.models.histories import KINDS, Happening, Life
from tests.models.streams import READ
from tests.support.model_rules import check_anthropic, check_binding, check_generation, check_images
from tests.support.model_rules_google import check_gemini_3, check_google
from tests.support.model_rules_openai import check_chat, check_mistral, check_responses

SEES = ("text", "image")
ANTHROPIC: dict[str, Any] = {"provider": "anthropic", "api": "anthropic-messages", "reasoning": True, "input": SEES}
SONNET_4_5 = Model(id="claude-sonnet-4-5", max_tokens=64_000, **ANTHROPIC)
OPUS_4_6 = Model(id="claude-opus-4-6", max_tokens=64_000, **ANTHROPIC)
SONNET_5_5 = Model(id="claude-sonnet-5-5", max_tokens=64_000, **ANTHROPIC)
GPT = Model(provider="openai", id="gpt-5", api="openai-responses", reasoning=True, input=SEES)
GPT_CHAT = Model(provider="openai", id="gpt-5", reasoning=True, input=SEES)
ROUTED = Model(provider="someone", id="gpt-x", base_url="https://models.example.com/v1", reasoning=True, input=SEES)
MISTRAL = Model(provider="mistral", id="mistral-large", base_url="https://api.mistral.ai/v1", input=SEES)
GEMINI = Model(provider="google", id="gemini-2.5-pro", api="google-generative-ai", reasoning=True, input=SEES)
GEMINI_3 = Model(provider="google", id="gemini-3-pro", api="google-generative-ai", reasoning=True, input=SEES)
BLIND = Model(provider="ollama", id="qwen3", base_url="http://localhost:11434", reasoning=True)


def check_claude(body: dict[str, Any]) -> None:
    check_anthropic(body)
    check_generation(body, version="2023-06-01", betas=anthropic.BINDING_BETA)
    roles = [message["role"] for message in body["messages"]]
    assert all(one != other for one, other in itertools.pairwise(roles)), "roles must take turns"


Target = tuple[Model, Callable[[ModelRequest], dict[str, Any]], Callable[[Any], None]]
TARGETS: list[Target] = [
    (SONNET_4_5, anthropic.build_body, check_claude),
    (OPUS_4_6, anthropic.build_body, check_claude),
    (SONNET_5_5, anthropic.build_body, check_claude),
    (GPT, openai_responses.build_body, check_responses),
    (GPT_CHAT, openai_chat.build_body, check_chat),
    (ROUTED, openai_chat.build_body, check_chat),
    (MISTRAL, openai_chat.build_body, check_mistral),
    (BLIND, openai_chat.build_body, check_chat),
    (GEMINI, google.build_body, check_google),
    (GEMINI_3, google.build_body, check_gemini_3),
]
SPEAKERS = [SONNET_4_5, GPT, ROUTED, SONNET_5_5, GPT_CHAT, MISTRAL, OPUS_4_6, GPT, SONNET_4_5, GEMINI, GEMINI_3]
CASES = int(os.environ.get("OPENCLAW_REQUEST_CASES", "1600"))
HYGIENE = Hygiene()
"""Shared: the few pictures are worked on once."""

happenings = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4095)), max_size=14)
levels = st.sampled_from(["off", "low", "high", "xhigh"])
choices = st.sampled_from([None, None, "auto", "none", "required", {"name": "read"}])
rooms = st.sampled_from([1_000_000, 1_000_000, 400, 200])
limits = st.sampled_from([0, 0, 1, 3])
plain = st.sampled_from([-1, -1, -1, 0, 5, 20, 10_000])
first_speakers = st.integers(0, len(SPEAKERS) - 1)


@settings(
    max_examples=CASES // len(TARGETS), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@example([("call", 5)], "high", None, True, 1_000_000, 0, -1, 1)
@example(
    [("call", 5), ("switch", 3), ("crash", 1), ("abort", 6), ("condense", 2)], "high", None, True, 1_000_000, 0, -1, 1
)
@given(happenings, levels, choices, st.booleans(), rooms, limits, plain, first_speakers)
def test_no_vendor_refuses_a_request_whatever_the_session_has_been_through(
    lived: list[Happening], level: Any, choice: Any, tools: bool, room: int, limit: int, plain_until: int, first: int
) -> None:
    history = [*Life(SPEAKERS, first).play(lived), UserMessage(content="and now?", timestamp=100_000)]
    stored = [encoded(message) for message in history]
    for model, build, check in TARGETS:
        hygiene = HYGIENE
        if plain_until >= 0:
            hygiene.note_refusal("s", model, plain_until)
        else:
            hygiene.forget_refusal("s", model)
        cleaner = HistoryCleaner(hygiene, model, "s", 1, history_limit=limit)
        shown = fit(cleaner.clean(history), PromptBudget(window=room, output=0, overhead=0)).messages
        request = ModelRequest(
            model=model, system="Be kind.", system_suffix="Be brief.", turn_facts="It is noon.", messages=shown,
            thinking=level, tools=[READ] if tools else [], tool_choice=choice if tools else None, session_id="s",
        )  # fmt: skip
        body = msgspec.json.decode(encode_body(build(request)))
        check(body)
        check_binding(body, model)
        check_images(body)
    assert [encoded(message) for message in history] == stored, "what is stored must not be changed"


def encoded(message: Any) -> Any:
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return repr(message)
