"""Providers cache a prompt up to the first byte that changed: how much of each prompt they need not read again."""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_left
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_refused import three_apis
from tests.support.clock import MovableClock, until
from tests.support.gateway import WireClient
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Recorded, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
TURNS = 20
LEVELS = ("high", "off", "low", "medium")
BOUND = "claude-opus-5-5"
FACTS = r"<openclaw-facts>\nAdded by"
"""How the facts of a turn begin in JSON text."""


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


def configuration(models: ModelServer, signal: SignalDaemon) -> dict[str, Any]:
    config = three_apis(models)
    bound = {**config["models"]["providers"]["mock"]["models"][0], "id": BOUND, "reasoning": True}
    config["models"]["providers"]["mock"]["models"].append(bound)
    config["channels"] = {
        "signal": {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    }
    config["session"] = {"reset": {"mode": "idle", "idleMinutes": 100_000}}
    return config


def cacheable(request: Recorded) -> str:
    """What the provider reads, in the order in which it reads it, without the marks that say how far to cache it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if name != "cache_control"}
        return [plain(item) for item in value] if isinstance(value, list) else value

    parts = (request.body.get(name) for name in ("tools", "system", "messages", "input"))
    return "".join(json.dumps(plain(part), ensure_ascii=False) for part in parts if part is not None)


def shared(before: str, after: str) -> int:
    """The number of characters with which both begin."""
    places = range(min(len(before), len(after)))
    return bisect_left(places, True, key=lambda place: before[: place + 1] != after[: place + 1])


class Chat:
    """One session that a person uses on Signal and in the browser, while hours pass and settings change."""

    def __init__(self, client: WireClient, models: ModelServer, signal: SignalDaemon, clock: MovableClock) -> None:
        self._client, self._models, self._signal, self._clock = client, models, signal, clock

    async def turn(self, number: int, *, tools: bool) -> None:
        self._clock.advance(16 * 60)
        await self._client.chat(f"/think {LEVELS[number % len(LEVELS)]}")
        if number % 5 == 0:
            await self._client.chat("/status")
        if tools:
            self._models.queue(Reply(thinking="hm", calls=[Call("exec", {"command": "seq 1 2000"})]))
        self._models.reply(f"Answer {number}.")
        if number % 2:
            sent = len(await self._signal.called("send", 0))
            await self._signal.say(f"question {number}", sender=ANN, name="Ann")
            await self._signal.called("send", sent + 1)
        else:
            await self._client.chat(f"question {number}")


@pytest.mark.parametrize("tools", [False, True], ids=["words", "tools"])
@pytest.mark.parametrize("model", ["mock/mock-1", "chat/mock-1", "resp/mock-1"])
async def test_time_thinking_level_and_channel_cost_nothing_of_the_prompt_cache(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon, model: str, tools: bool
) -> None:
    clock = MovableClock()
    process = InProcessGateway(tmp_path / "state", configuration(models, signal), clock=clock)
    async with process as gateway, gateway.client() as client:
        await signal.connected()
        await client.call("sessions.patch", {"key": "main", "model": model})
        chat = Chat(client, models, signal, clock)
        for number in range(TURNS):
            await chat.turn(number, tools=tools)
        await until(lambda: models.active == 0)
    prompts = [cacheable(request) for request in models.requests]
    assert len(prompts) == TURNS * (2 if tools else 1)
    assert not [request.error for request in models.requests if request.error]
    read_again = 0
    for before, after in itertools.pairwise(prompts):
        kept = shared(before, after)
        assert kept / len(before) >= 0.95, before[kept - 200 : kept + 200]
        read_again += len(before) - kept
    assert 1 - read_again / sum(map(len, prompts)) >= 0.98
    told = [prompt[prompt.index(FACTS) :] for prompt in prompts if FACTS in prompt]
    assert len(told) == TURNS, "in every turn the model is told how things stand"
    assert len({text.partition("UTC: ")[2][:30] for text in told}) == TURNS
    for fact in ("channel=signal", "channel=webchat", "thinking=high", "thinking=off"):
        assert sum(fact in text for text in told) >= TURNS // 4, fact
    assert "🦞" not in prompts[-1], "what a command answered is not sent as the model's words"


async def test_thinking_that_is_bound_to_the_conversation_before_it_stays_valid_in_a_tool_loop(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon
) -> None:
    process = InProcessGateway(tmp_path / "state", configuration(models, signal))
    async with process as gateway, gateway.client() as client:
        await client.call("sessions.patch", {"key": "main", "model": f"mock/{BOUND}", "thinkingLevel": "high"})
        for number in range(3):
            look = Reply(thinking="hm", calls=[Call("exec", {"command": "seq 1 9"})])
            models.queue(look, look, Reply(text=f"Answer {number}."))
            await client.chat(f"question {number}")
    prompts = [cacheable(request) for request in models.requests]
    assert models.dropped_thinking == 0
    for place, (before, after) in enumerate(itertools.pairwise(prompts)):
        kept = shared(before, after)
        if place % 3 == 2:
            assert before[kept:].index(FACTS) < 100, "the next turn differs from the facts of this one on"
        else:
            assert kept == len(before) - 1, "in a turn each prompt goes on from the one before"


async def test_a_step_with_many_calls_is_found_in_the_cache_of_the_step_before(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon
) -> None:
    """Anthropic looks for what it cached within twenty blocks before a mark, and takes four marks at most."""
    process = InProcessGateway(tmp_path / "state", configuration(models, signal))
    async with process as gateway, gateway.client() as client:
        many = [Call("read", {"path": f"none-{number}"}) for number in range(15)]
        models.queue(Reply(calls=many), Reply(calls=many[:2]), Reply(text="Done."))
        await client.chat("look everywhere")
    marked = [marks(request.body["messages"]) for request in models.requests]
    assert marked == [[(0, 0)], [(0, 0), (2, 14)], [(4, 1)]]
    assert not [request.error for request in models.requests if request.error]


async def test_after_a_long_tool_loop_with_bound_thinking_the_question_before_it_is_marked(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon
) -> None:
    process = InProcessGateway(tmp_path / "state", configuration(models, signal))
    async with process as gateway, gateway.client() as client:
        await client.call("sessions.patch", {"key": "main", "model": f"mock/{BOUND}", "thinkingLevel": "high"})
        for number in range(7):
            look = Reply(thinking="hm", calls=[Call("read", {"path": "none"})])
            models.queue(look, look, Reply(text=f"Answer {number}."))
            await client.chat(f"question {number}")
    for place, request in enumerate(models.requests):
        turn, step = divmod(place, 3)
        messages = request.body["messages"]
        marked = [messages[at]["content"][block].get("text", "a result") for at, block in marks(messages)]
        asked = [f"question {number}" for number in (turn - 1, turn) if number >= 0]
        told = [re.sub(r"^.*(question \d+).*$", r"\1", text, flags=re.DOTALL) for text in marked]
        assert told == (asked if step == 0 else [f"question {turn}", "a result"]), (turn, step)


def marks(messages: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Message and block of each mark."""
    return [
        (place, number)
        for place, message in enumerate(messages)
        for number, block in enumerate(message["content"])
        if "cache_control" in block
    ]
