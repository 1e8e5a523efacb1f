"""Conversations under pressure: what the provider counts and refuses, and what the person gets all the same."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.gateway import FEW_TOOLS, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Recorded, Reply

WINDOW = 60_000
GOOD = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"
APIS = ["anthropic-messages", "openai-completions", "openai-responses"]
MakeGateway = Callable[..., InProcessGateway]


def dense(text: str) -> int:
    """As a tokenizer counts: a token for each Chinese character, else for four characters."""
    plain = sum(character.isascii() for character in text)
    return plain // 4 + len(text) - plain


@pytest.fixture
def make(tmp_path: Path, models: ModelServer) -> MakeGateway:
    """A Gateway whose model has a window of 60,000 tokens, 20,000 of it kept free."""

    def made(
        api: str = "anthropic-messages", window: int = WINDOW, max_tokens: int = 8192, *, reasoning: bool = False
    ) -> InProcessGateway:
        config: dict[str, Any] = model_config(models.base_url, models.api_key)
        provider = config["models"]["providers"]["mock"]
        provider["api"] = api
        if api != "anthropic-messages":
            provider["baseUrl"] += "/v1"
        provider["models"][0] |= {"contextWindow": window, "maxTokens": max_tokens, "reasoning": reasoning}
        config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
        config["tools"] = FEW_TOOLS
        config["agents"]["defaults"]["compaction"] = {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}}
        return InProcessGateway(tmp_path / "state", config)

    return made


def is_summary(request: Recorded) -> bool:
    return b"<conversation>" in request.raw


def output_limit(request: Recorded) -> int:
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return next(request.body[name] for name in names if name in request.body)


async def ask(client: WireClient, text: str, key: str = "main") -> str:
    answer = await client.chat(text, key)
    assert answer["state"] == "final", answer.get("errorMessage")
    return text_of(answer)


async def test_an_overflow_between_tool_calls_keeps_the_question_and_the_calls_with_their_results(
    make: MakeGateway, models: ModelServer
) -> None:
    models.window = WINDOW
    async with make(window=200_000) as gateway, gateway.client() as client:
        workspace = gateway.state_dir / "workspace"
        workspace.mkdir(exist_ok=True)
        for name in ("first", "second"):
            (workspace / f"{name}.txt").write_text(f"{name} file " + "line " * 6000)
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 9000)
        models.queue(
            Reply(text="Reading.", calls=[Call("read", {"path": "first.txt"})]),
            Reply(text="And the other.", calls=[Call("read", {"path": "second.txt"})]),
            Reply(text=GOOD),
            Reply(text="Both are long."),
        )
        assert await ask(client, "Compare the two files, please.") == "Both are long."
        summaries = [number for number, request in enumerate(models.requests) if is_summary(request)]
        assert len(summaries) == 1
        sent = models.requests[-1].body["messages"]
        kinds = [(block["type"], message["role"]) for message in sent for block in message["content"]]
        assert kinds[-5:] == [
            ("tool_use", "assistant"),
            ("tool_result", "user"),
            ("text", "assistant"),
            ("tool_use", "assistant"),
            ("tool_result", "user"),
        ]
        shown = msgspec.json.encode(sent).decode()
        for words in ("Build the shed.", "Compare the two files, please.", "first file", "second file"):
            assert words in shown
        assert "message 0" not in shown


@pytest.mark.parametrize("api", APIS)
async def test_the_output_limit_never_exceeds_the_room_that_the_prompt_leaves(
    api: str, make: MakeGateway, models: ModelServer
) -> None:
    models.window = WINDOW
    async with make(api, max_tokens=32_000) as gateway, gateway.client() as client:
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 8000)
        assert [request.error for request in models.requests] == [None] * 3
        assert output_limit(models.requests[0]) == 32_000
        assert output_limit(models.requests[-1]) < 32_000


async def test_thinking_does_not_exceed_the_room_either(make: MakeGateway, models: ModelServer) -> None:
    models.window = WINDOW
    async with make(max_tokens=64_000, reasoning=True) as gateway, gateway.client() as client:
        await client.chat("/think high")
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 8000)
        assert [request.error for request in models.requests] == [None] * 3
        assert models.requests[0].body["thinking"]["budget_tokens"] == 16_384


@pytest.mark.parametrize("api", APIS[:2])
async def test_a_limit_that_left_no_room_is_lowered_and_nothing_is_condensed(
    api: str, make: MakeGateway, models: ModelServer
) -> None:
    """The configuration believes in a larger window than the model has."""
    models.window = 40_000
    async with make(api, window=200_000, max_tokens=32_000) as gateway, gateway.client() as client:
        models.queue(Reply(text="There is room for this."))
        assert await ask(client, "word " * 5000) == "There is room for this."
        refused, answered = models.requests
        assert refused.error is not None and output_limit(answered) < output_limit(refused)


async def test_anthropics_words_for_a_limit_without_room_are_an_overflow(
    make: MakeGateway, models: ModelServer
) -> None:
    async with make() as gateway, gateway.client() as client:
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 8000)
        words = "input length and `max_tokens` exceed context limit: 198411 + 8192 > 200000, decrease input length"
        models.queue(Reply(status=400, message=words), Reply(text=GOOD), Reply(text="recovered"))
        assert await ask(client, "does it fit?") == "recovered"
        assert is_summary(models.requests[-2])


async def test_dense_text_and_a_refusal_in_one_session_leave_the_others_alone(
    make: MakeGateway, models: ModelServer
) -> None:
    models.window, models.count = WINDOW, dense
    async with make() as gateway, gateway.client() as client:
        for number in range(2):
            await ask(client, f"message {number}: " + "word " * 9000, "english")
        await ask(client, "汉" * 70_000, "chinese")
        assert any("prompt is too long" in (request.error or "") for request in models.requests)
        before = len(models.requests)
        await ask(client, "and now? " + "word " * 9000, "english")
        assert len(models.requests) == before + 1, "the other session was condensed"
        # The system prompt has these words too.
        assert "left out" not in str(models.requests[-1].body["messages"])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["chinese", "base64"])
async def test_a_first_message_that_is_far_denser_than_it_looks_is_answered(
    api: str, kind: str, make: MakeGateway, models: ModelServer
) -> None:
    models.window, models.count = WINDOW, (dense if kind == "chinese" else lambda text: len(text) // 2)
    noise = base64.b64encode(random.Random(7).randbytes(90_000)).decode()
    async with make(api) as gateway, gateway.client() as client:
        models.reply("That was dense.")
        text = "BEGIN " + ("汉字" * 40_000 if kind == "chinese" else noise) + " END"
        assert await ask(client, text) == "That was dense."
        shown = models.requests[-1].raw.decode()
        assert "BEGIN" in shown and "END" in shown
        assert models.requests[0].error is not None
        models.reply("Still here.")
        already = len(models.requests)
        models.queue(Reply(text="Still here."))
        await ask(client, "hello?")
        assert all(request.error is None for request in list(models.requests)[already:])


async def test_a_conversation_that_the_provider_counts_above_the_threshold_is_condensed(
    make: MakeGateway, models: ModelServer
) -> None:
    """By four characters to a token everything is recent."""
    models.window, models.count = WINDOW, dense
    async with make() as gateway, gateway.client() as client:
        for number in range(6):
            await ask(client, f"message {number}: " + "汉字" * 2000)
        assert not any(is_summary(request) for request in models.requests)
        models.queue(Reply(text="the last straw"), Reply(text=GOOD))
        await ask(client, "message 6: " + "汉字" * 8000)
        await client.event(lambda event, payload: payload.get("data") == {"phase": "end", "willRetry": False})
        models.reply("going on")
        await ask(client, "and now?")
        shown = models.requests[-1].raw.decode()
        assert "Build the shed." in shown and "message 0" not in shown and "message 6" in shown
        assert dense(shown) < WINDOW - 20_000


async def test_short_texts_with_a_large_count_are_condensed(make: MakeGateway, models: ModelServer) -> None:
    async with make() as gateway, gateway.client() as client:
        for number in range(6):
            await ask(client, f"message {number}: a few words only")
        models.queue(Reply(text="counted", usage={"input": 45_000}), Reply(text=GOOD))
        await ask(client, "message 6: the last")
        await client.event(lambda event, payload: payload.get("data") == {"phase": "end", "willRetry": False})
        await ask(client, "and now?")
        shown = models.requests[-1].raw.decode()
        assert "Build the shed." in shown and "message 0" not in shown and "message 6" in shown


async def test_a_provider_that_never_takes_the_prompt_is_explained_after_few_calls(
    make: MakeGateway, models: ModelServer
) -> None:
    async with make() as gateway, gateway.client() as client:
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 8000)
        already = len(models.requests)
        models.queue(*[Reply(status=400, message="context_length_exceeded")] * 20)
        answer = await client.chat("does it fit?")
        assert answer["state"] == "error" and "/new" in answer["errorMessage"]
        sent = list(models.requests)[already:]
        assert len([request for request in sent if is_summary(request)]) <= 3
        assert len(sent) <= 7
        assert all(b"does it fit?" in request.raw for request in sent if not is_summary(request))


async def test_a_pin_stays_whole_when_everything_else_is_shortened(make: MakeGateway, models: ModelServer) -> None:
    models.window = WINDOW
    pinned = "PIN " + "".join(f"rule {number}; " for number in range(1500)) + "END OF PIN"
    async with make() as gateway, gateway.client() as client:
        assert "Pinned" in await ask(client, f"/pin {pinned}")
        models.reply("that was long")
        await ask(client, "word " * 70_000)
        assert pinned in models.requests[-1].raw.decode()
        models.queue(Reply(text=GOOD), Reply(text="long again"))
        await ask(client, "word " * 70_000)
        assert pinned in models.requests[-1].raw.decode()
        refusal = await ask(client, "/pin " + "x" * 100_000)
        assert "too long to pin" in refusal and "room for about" in refusal
        assert "x" * 50 not in await ask(client, "/pins")


async def test_facts_survive_a_summariser_that_says_one_word_each_time(make: MakeGateway, models: ModelServer) -> None:
    facts = ["The gate opens with the blue lever.", "We decided to paint the door green.", "Mia keeps the spare wheel."]
    async with make() as gateway, gateway.client() as client:
        for fact in facts:
            await ask(client, fact)
        for number in range(3):
            for turn in range(4):
                await ask(client, f"round {number}.{turn} " + "word " * 500)
            models.queue(*[Reply(text="ok")] * 3)
            assert "Compacted (" in await ask(client, "/compact")
            models.forget()
            await ask(client, "still there?")
            shown = models.requests[-1].raw.decode()
            assert [fact for fact in facts if fact in shown] == facts, f"after compaction {number + 1}"


async def test_a_compaction_within_a_run_and_one_beside_it_never_overlap(
    make: MakeGateway, models: ModelServer
) -> None:
    models.window = WINDOW
    async with make() as gateway, gateway.client() as client:
        for number in range(3):
            models.reply(f"reply {number}")
            await ask(client, f"message {number}: " + "word " * 8000)
        hold = asyncio.Event()
        models.queue(Reply(text="the last straw"), Reply(text=GOOD, hold=hold))
        await ask(client, "message 3: " + "word " * 8000)
        await models.wait_for_requests(5)
        assert is_summary(models.requests[-1]) and models.active == 1
        models.queue(Reply(text="one at a time"))
        client.events.clear()
        answer = asyncio.create_task(ask(client, "message 4: " + "word " * 14_000))
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "lifecycle")
        hold.set()
        assert await answer == "one at a time"
        assert (models.disconnects, len(models.requests)) == (0, 6), "the run waited for the summary beside it"
        shown = models.requests[-1].raw.decode()
        assert "Build the shed." in shown and "message 4" in shown
        (row,) = (await client.call("sessions.list", {}))["sessions"]
        assert row["compactionCount"] == 1
