"""A request made from what is kept of the one before it is the same, byte for byte, as one made from nothing."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from openclaw.agent.window.history_cleaner import HistoryCleaner, Hygiene
from openclaw.agent.window.tokens import GrowingSum, prompt_tokens
from openclaw.messages import AssistantMessage, Message, TextBlock, UserMessage
from openclaw.models import anthropic, convert
from openclaw.models.base import Model, ModelError, ModelRequest
from openclaw.models.http import encode_body
from tests.models.histories import Happening, Life
from tests.models.streams import READ
from tests.models.test_valid_requests import HYGIENE, SONNET_4_5, SPEAKERS, TARGETS, first_speakers, happenings, levels

CASES = int(os.environ.get("OPENCLAW_GROWTH_CASES", "30"))


@pytest.fixture(autouse=True)
def keep_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MIN_FINISHED", 1)


def wire(build: Any, model: Model, messages: list[Message], level: Any, tools: bool, branch_cache: Any) -> bytes | str:
    request = ModelRequest(
        model=model,
        system="Be kind.",
        turn_facts="It is noon.",
        messages=messages,
        thinking=level,
        tools=[READ] if tools else [],
        session_id="s",
        branch_cache=branch_cache,
    )
    try:
        return encode_body(build(request))
    except ModelError as error:
        return str(error)


@settings(
    max_examples=CASES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example([("call", 5), ("switch", 3), ("crash", 1), ("abort", 6), ("condense", 2)], "high", 1)
@given(happenings, levels, first_speakers)
def test_what_is_kept_of_the_last_request_changes_nothing(lived: list[Happening], level: Any, first: int) -> None:
    history = Life(SPEAKERS, first).play([*lived, *lived[:3]])
    for model, build, _ in TARGETS:
        branch_cache: dict[Any, Any] = {}
        counted = GrowingSum()
        for size in range(1, len(history) + 1):
            messages = [*history[:size], UserMessage(content="and now?", timestamp=100_000)]
            growing = HistoryCleaner(HYGIENE, model, "growing", 1)
            growing.use_cache(branch_cache)
            shown = growing.clean(messages)
            assert shown == HistoryCleaner(Hygiene(), model, "anew", 1).clean(messages)
            assert counted.of(shown) == prompt_tokens(shown)
            for tools in (True, False):
                anew = wire(build, model, shown, level, tools, None)
                assert wire(build, model, shown, level, tools, branch_cache) == anew


@settings(
    max_examples=CASES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example([("call", 5), ("call", 3)], "high", 1)
@given(happenings, levels, first_speakers)
def test_the_facts_of_a_turn_change_nothing_before_them(lived: list[Happening], level: Any, first: int) -> None:
    """Nor in the next turn, which has other facts; models with bound thinking lose what they thought as well."""
    history = Life(SPEAKERS, first).play(lived)
    question, answer = UserMessage(content="and now?", timestamp=100_000), [TextBlock(text="Now.")]
    for model, build, _ in TARGETS:
        shown = HistoryCleaner(HYGIENE, model, "facts", 1).clean([*history, question])
        replied = AssistantMessage(content=[*answer], provider=model.provider, api=model.api, model=model.id)
        later = [*shown, replied, UserMessage(content="and then?", timestamp=100_001)]
        bodies = [
            encode_body(build(ModelRequest(model=model, system="", turn_facts=facts, messages=said, thinking=level)))
            for facts, said in (("", shown), ("It is noon.", shown), ("It is one.", shown), ("It is two.", later))
        ]
        without, noon, one, two = [without_marks(body) for body in bodies]
        asked = noon.index(b"and now?")
        assert noon[:asked] == without[:asked] == one[:asked] == two[:asked]
        assert b"It is" not in without and noon.count(b"It is noon.") == 1
        assert b"It is noon." not in two


def without_marks(body: bytes) -> bytes:
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"")


def said(count: int) -> list[Message]:
    return [
        message
        for number in range(count)
        for message in (
            UserMessage(content=[TextBlock(text=f"question {number}")]),
            AssistantMessage(content=[TextBlock(text=f"answer {number}")], provider="anthropic", model="other"),
        )
    ]


def test_only_the_current_turn_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = anthropic._messages

    def counting(history: list[Message], *args: Any, **more: Any) -> Any:
        made.append(len(history))
        return original(history, *args, **more)

    monkeypatch.setattr(anthropic, "_messages", counting)
    branch_cache: dict[Any, Any] = {}
    history = said(100)
    for turn in range(3):
        history += [UserMessage(content=[TextBlock(text=f"more {turn}")])]
        wire(anthropic.build_body, SONNET_4_5, history, "off", True, branch_cache)
        history += [AssistantMessage(content=[TextBlock(text="yes")])]
    assert made == [200, 1, 2, 1, 2, 1]


def test_another_branch_is_not_mistaken_for_the_one_before() -> None:
    branch_cache: dict[Any, Any] = {}
    question = UserMessage(content=[TextBlock(text="and now?")])
    wire(anthropic.build_body, SONNET_4_5, [*said(20), question], "off", True, branch_cache)
    for other in ([*said(3), question], [*said(20)[2:], question], [*said(30), question]):
        anew = wire(anthropic.build_body, SONNET_4_5, other, "off", True, None)
        assert wire(anthropic.build_body, SONNET_4_5, other, "off", True, branch_cache) == anew
