"""A model with a window of 8,192 tokens: its tools, and the room for a conversation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.asyncio


async def test_a_small_model_has_few_tools_and_says_which_were_left_out(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    (provider,) = config["models"]["providers"].values()
    provider["models"][0] |= {"contextWindow": 8192, "maxTokens": 1024}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for number in range(12):
            await client.chat(f"question {number} [[reply:answer {number}]]", "main")
        body = models.requests[-1].body
        names = {tool["name"] for tool in body["tools"]}
        assert "read" in names and "exec" in names and not names & {"browser", "cron", "message", "nodes"}
        assert len(msgspec.json.encode(body["tools"])) // 4 <= 8192 // 4
        said = msgspec.json.encode(body["messages"]).decode()
        assert "question 8" in said and "answer 10" in said
        for command in ("/status", "/context list"):
            assert "left out of a window of 8,192 tokens: " in text_of(await client.chat(command)), command
            assert "cron" in text_of(await client.chat(command))
