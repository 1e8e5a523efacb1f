"""Thinking, verbosity and visible reasoning: what people say, what the model is asked, what they then see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


def config_of(models: ModelServer) -> dict[str, Any]:
    """A model that thinks, one that does not, and one that takes every level."""
    config = model_config(models.base_url, models.api_key)
    rows = config["models"]["providers"]["mock"]["models"]
    rows[0] |= {"reasoning": True, "maxTokens": 64_000}
    rows.append({**rows[0], "id": "plain-1", "reasoning": False})
    rows.append({**rows[0], "id": "deep-1", "compat": {"xhigh": True}})
    return config


LEVELS = {
    "off": None, "minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "on": 2048,
    "think-hard": 2048, "think-harder": 8192, "ultrathink": 16384, "max": 16384,
}  # fmt: skip


async def test_every_level_reaches_the_model(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models)) as gateway, gateway.client() as client:
        await client.chat("hello")
        assert models.requests[-1].body["thinking"]["budget_tokens"] == 2048, "a model that thinks does so a little"
        for word, budget in LEVELS.items():
            reply = text_of(await client.chat(f"/think {word}"))
            assert reply.startswith("Thinking level set to ") or (budget is None and reply == "Thinking disabled.")
            await client.chat("hello")
            body = models.requests[-1].body
            assert (body.get("thinking") or {}).get("budget_tokens") == budget, word
            assert models.requests[-1].error is None
        assert text_of(await client.chat("/think")).startswith("Current thinking level: high.")


async def test_a_level_inside_a_message_is_for_that_message(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models)) as gateway, gateway.client() as client:
        await client.chat("/think off")
        await client.chat("/think high please solve it")
        body = models.requests[-1].body
        assert body["thinking"]["budget_tokens"] == 16384
        assert "/think" not in json.dumps(body["messages"])
        await client.chat("and now?")
        assert "thinking" not in models.requests[-1].body


async def test_a_level_the_model_does_not_have_is_named_or_lowered(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models)) as gateway, gateway.client() as client:
        refused = text_of(await client.chat("/think xhigh"))
        assert "xhigh" in refused
        assert "thinkingLevel" not in await entry(client)
        assert "Valid levels: off, minimal, low, medium, high." in text_of(await client.chat("/think enormous"))
        await client.chat("/model mock/deep-1")
        assert text_of(await client.chat("/think xhigh")) == "Thinking level set to xhigh."
        await client.chat("/model mock/mock-1")
        await client.chat("hello")
        assert models.requests[-1].body["thinking"]["budget_tokens"] == 16384, "as much as this one can"
        await client.chat("/model mock/plain-1")
        await client.chat("hello")
        assert "thinking" not in models.requests[-1].body
        assert "thinking=off" in models.requests[-1].body["messages"][-1]["content"][-1]["text"]
        assert not [request.error for request in models.requests if request.error]


async def entry(client: WireClient) -> dict[str, Any]:
    return (await client.call("sessions.list", {}))["sessions"][0]


async def test_verbosity_decides_how_much_of_tools_is_shown(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:

        async def tools(number: int) -> list[dict[str, Any]]:
            models.queue(Reply(calls=[Call("read", {"path": "AGENTS.md"})]), Reply(text="Done."))
            await client.chat("look", run_id=f"run-{number}")
            frames = [frame["payload"] for frame in client.of_run(f"run-{number}")]
            return [payload["data"] for payload in frames if payload.get("stream") == "tool"]

        assert await tools(1) == []
        await client.chat("/verbose on")
        shown = await tools(2)
        assert [data["phase"] for data in shown] == ["start", "result"]
        assert "result" not in shown[-1]
        await client.chat("/verbose full")
        assert "result" in (await tools(3))[-1]
        await client.chat("/verbose off")
        assert await tools(4) == []
        assert text_of(await client.chat("/verbose loud")).startswith('Unrecognized verbose level "loud".')


async def test_reasoning_is_hidden_shown_or_streamed_as_the_session_wishes(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models)) as gateway, gateway.client() as client:

        async def answer(number: int) -> tuple[list[str], int]:
            models.queue(Reply(thinking="two and two", text="Four.", delay_ms=1))
            final = await client.chat("how much?", run_id=f"run-{number}")
            streams = [frame["payload"].get("stream") for frame in client.of_run(f"run-{number}")]
            kinds = [block["type"] for block in final["message"]["content"]]
            return kinds, streams.count("thinking")

        assert await answer(1) == (["text"], 0)
        await client.chat("/reasoning on")
        kinds, streamed = await answer(2)
        assert kinds == ["thinking", "text"] and streamed <= 1
        await client.chat("/reasoning stream")
        kinds, streamed = await answer(3)
        assert kinds == ["text"] and streamed >= 1
        await client.chat("/reasoning off")
        assert await answer(4) == (["text"], 0)
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "two and two" not in json.dumps(history["messages"])
        assert history["messages"][-1]["usage"]["output"] > 1, "what was thought is counted"
