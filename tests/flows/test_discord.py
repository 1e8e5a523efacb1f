"""People write to the agent on Discord: who is heard, what reaches the model, where the answer goes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.discord_server import ANN, DM, TOKEN, DiscordServer
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, discord: DiscordServer) -> Start:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **channel: Any) -> AsyncIterator[InProcessGateway]:
        section = {"token": TOKEN, "apiRoot": discord.url, **channel}
        config = model_config(models.base_url, models.api_key, channels={"discord": section}, **(more or {}))
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            await discord.connected()
            yield gateway

    return gateway


def prompts(models: ModelServer, request: int = -1) -> str:
    return json.dumps(models.requests[request].body["messages"], ensure_ascii=False)


async def test_a_known_person_is_answered_where_they_wrote(
    start: Start, discord: DiscordServer, models: ModelServer
) -> None:
    async with start(dm={"allowFrom": [ANN]}) as gateway:
        await discord.say("hello [[reply:Hi **Ann**]]")
        (sent,) = await discord.called(f"POST /channels/{DM}/messages")
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    assert (sent["content"], sent["enforce_nonce"], len(sent["nonce"])) == ("Hi **Ann**", True, 25)
    assert (row["key"], row["lastChannel"], row["lastTo"]) == ("agent:main:main", "discord", f"user:{ANN}")
    assert f"[Discord Ann id:{ANN}" in prompts(models)
