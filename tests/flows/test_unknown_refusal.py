"""A provider refuses a request with words that nobody knows. If the prompt is large, a smaller one is tried once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import FEW_TOOLS, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Recorded, Reply

GOOD = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"
WORDS = "the flux capacitor must be <= 2"
LONG = "word " * 9000
MakeGateway = Callable[..., InProcessGateway]


@pytest.fixture
def make(tmp_path: Path, models: ModelServer) -> MakeGateway:
    def made(fallbacks: tuple[str, ...] = ()) -> InProcessGateway:
        config: dict[str, Any] = model_config(models.base_url, models.api_key)
        provider = config["models"]["providers"]["mock"]
        provider["models"][0] |= {"contextWindow": 60_000, "maxTokens": 8192}
        provider["models"].append({**provider["models"][0], "id": "mock-2", "name": "Second"})
        config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
        config["tools"] = FEW_TOOLS
        defaults = config["agents"]["defaults"]
        defaults["compaction"] = {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}
        if fallbacks:
            defaults["model"] = {"primary": "mock/mock-1", "fallbacks": list(fallbacks)}
        return InProcessGateway(tmp_path / "state", config)

    return made


def is_summary(request: Recorded) -> bool:
    return b"<conversation>" in request.raw


async def fill(client: WireClient, models: ModelServer) -> int:
    """Make the conversation large. Returns how many requests that took."""
    for number in range(2):
        models.reply(f"reply {number}")
        assert (await client.chat(f"message {number}: {LONG}"))["state"] == "final"
    return len(models.requests)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_large_prompt_is_made_smaller_and_the_question_is_answered(
    make: MakeGateway, models: ModelServer, status: int
) -> None:
    async with make() as gateway, gateway.client() as client:
        before = await fill(client, models)
        refusals = [Reply(status=status, message=WORDS)] * (1 if status == 413 else 2)
        models.queue(*refusals, Reply(text=GOOD), Reply(text="fine"))
        answer = await client.chat("and now?")
        assert text_of(answer) == "fine"
        kinds = [is_summary(models.requests[number]) for number in range(before, len(models.requests))]
        assert kinds == [*[False] * len(refusals), True, False]
        last = models.requests[-1]
        assert len(last.raw) < len(models.requests[before].raw) and b"and now?" in last.raw
        models.reply("still here")
        assert text_of(await client.chat("more?")) == "still here"


async def test_a_prompt_that_is_refused_again_is_reported_with_the_providers_words(
    make: MakeGateway, models: ModelServer
) -> None:
    async with make() as gateway, gateway.client() as client:
        before = await fill(client, models)
        models.queue(*[Reply(status=400, message=WORDS)] * 2, Reply(text=GOOD), Reply(status=400, message=WORDS))
        answer = await client.chat("and now?")
        assert answer["state"] == "error" and WORDS in answer["errorMessage"]
        assert len(models.requests) == before + 4
        for number in range(3):
            models.reply(f"later {number}")
            assert text_of(await client.chat(f"more? {LONG}")) == f"later {number}"
        sent = [models.requests[-number] for number in (1, 2, 3)]
        assert not any(is_summary(request) or b"characters left out here" in request.raw for request in sent)


async def test_a_small_prompt_is_reported_without_a_compaction(make: MakeGateway, models: ModelServer) -> None:
    async with make() as gateway, gateway.client() as client:
        models.queue(*[Reply(status=400, message=WORDS)] * 2)
        answer = await client.chat("hello")
        assert answer["state"] == "error" and WORDS in answer["errorMessage"]
        assert len(models.requests) == 2


async def test_the_smaller_prompt_is_tried_before_another_model(make: MakeGateway, models: ModelServer) -> None:
    async with make(("mock/mock-2",)) as gateway, gateway.client() as client:
        await fill(client, models)
        models.queue(*[Reply(status=400, message=WORDS)] * 2, Reply(text=GOOD), Reply(text="fine"))
        assert text_of(await client.chat("and now?")) == "fine"
        assert {request.body["model"] for request in models.requests} == {"mock-1"}
