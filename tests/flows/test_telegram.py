"""People write to the agent on Telegram: who is heard, what reaches the model, where the answer goes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.support.telegram_server import ANN, TOKEN, TelegramServer

Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, telegram: TelegramServer) -> Start:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **channel: Any) -> AsyncIterator[InProcessGateway]:
        section = {"botToken": TOKEN, "apiRoot": telegram.url, **channel}
        config = model_config(models.base_url, models.api_key, channels={"telegram": section}, **(more or {}))
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            if "webhookUrl" not in section:
                await telegram.polling()
            yield gateway

    return gateway


def prompts(models: ModelServer, request: int = -1) -> str:
    return json.dumps(models.requests[request].body["messages"], ensure_ascii=False)


async def test_a_known_person_is_answered_where_they_wrote(
    start: Start, telegram: TelegramServer, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN]) as gateway:
        await telegram.say("hello [[reply:Hi **Ann**]]")
        await telegram.called("sendMessage")
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    (sent,) = telegram.of("sendMessage")
    assert (sent["chat_id"], sent["text"], sent["parse_mode"]) == (ANN, "Hi <b>Ann</b>", "HTML")
    assert (row["key"], row["lastChannel"], row["lastTo"]) == ("agent:main:main", "telegram", f"telegram:{ANN}")
    assert "[Telegram Ann id:4242" in prompts(models)
    assert telegram.of("sendChatAction")[0] == {"chat_id": ANN, "action": "typing"}
