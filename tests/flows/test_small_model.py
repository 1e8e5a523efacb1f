"""A model that is too small for tools: it gets what people typed, is not asked for more, and says that it is a demo."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw.models.catalogue_data import DEMO_MODEL
from tests.support.clock import until
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


def notices(client: WireClient) -> list[str]:
    said = [frame["payload"] for frame in client.events if frame["event"] == "chat"]
    return [text_of(payload) for payload in said if payload["runId"].startswith("notice-")]


async def test_the_demo_model_says_once_what_it_is_and_reads_only_what_was_typed(tmp_path: Path) -> None:
    async with ModelServer() as server:
        config = model_config(server.base_url, server.api_key)
        small = {"id": DEMO_MODEL, "name": "Tiny", "contextWindow": 8192, "maxTokens": 512, "tools": False}
        config["models"]["providers"]["local"] = {**config["models"]["providers"]["mock"], "models": [small]}
        config["agents"]["defaults"]["model"] = f"local/{DEMO_MODEL}"
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            server.queue(Reply(text="Hello to", stop="length"))
            assert text_of(await client.chat("good morning")) == "Hello to"
            assert len(server.requests) == 1, "it is not asked to go on"
            await until(lambda: bool(notices(client)))
            (notice,) = notices(client)
            assert notice.startswith("Tiny answers: a demo") and "openclaw onboard" in notice
            server.queue(Reply(text="Fine"))
            assert text_of(await client.chat("and how are you?")) == "Fine"
            asked = server.requests[-1].body
            typed = [turn["content"] for turn in asked["messages"] if turn["role"] == "user"]
            assert "good morning" in json.dumps(typed[0]) and "UTC" not in json.dumps(typed)
            assert not asked.get("tools")
            assert len(notices(client)) == 1
            assert "Turn facts" not in (await gateway.command("context")).stdout, "it gets none"
