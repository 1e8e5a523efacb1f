"""People write to the agent on iMessage, through a BlueBubbles server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.bluebubbles_server import ANN, BOB, DIRECT, GROUP, PASSWORD, BlueBubblesServer
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import GatewayUnderTest, model_config, put_file
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


def configuration(models: ModelServer, server: BlueBubblesServer, channel: str, **section: Any) -> Any:
    settings = {**server.settings, "allowFrom": [ANN], **section}
    return model_config(models.base_url, models.api_key, channels={channel: settings})


async def reached(gateway: GatewayUnderTest, server: BlueBubblesServer, channel: str) -> None:
    server.webhook = f"{gateway.url}/bluebubbles-webhook"
    async with asyncio.timeout(60), gateway.client() as client:
        while True:
            (account,) = (await client.call("channels.status", {}))["channelAccounts"][channel]
            if account["connected"]:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("channel", ["imessage", "bluebubbles"])
async def test_direct_and_group_messages_are_answered_where_they_came_from(
    tmp_path: Path, models: ModelServer, channel: str
) -> None:
    async with BlueBubblesServer() as server:
        config = configuration(models, server, channel, groupPolicy="allowlist")
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            await reached(gateway, server, channel)
            await server.say("hello [[reply:Hi **Ann**]]")
            await server.wrote()
            await server.say("for all [[reply:hello all]]", chat=GROUP)
            await server.wrote(2)
            await server.say("a stranger", sender=BOB, chat=GROUP)
            forged = [await server.post(server.event(server.message("forged")), "wrong") for _ in range(12)]
            assert forged == [401] * 10 + [429] * 2
            await server.say("once more [[reply:still here]]")
            await server.wrote(3)
            async with gateway.client() as client:
                rows = (await client.call("sessions.list", {}))["sessions"]
                status = await client.call("channels.status", {"probe": True})
                shown = json.dumps([status, await client.call("config.get", {})]) + gateway.errors_path.read_text()
        assert [(sent["chats"][0]["guid"], sent["text"]) for sent in server.ours] == [
            (DIRECT, "Hi Ann"),
            (GROUP, "hello all"),
            (DIRECT, "still here"),
        ]
    assert {row["key"]: row["lastChannel"] for row in rows} == {
        "agent:main:main": channel,
        f"agent:main:{channel}:group:{GROUP.lower()}": channel,
    }
    assert PASSWORD not in shown
    assert len(models.requests) == 3


async def test_what_was_written_while_the_gateway_was_down_is_answered_once(
    tmp_path: Path, models: ModelServer
) -> None:
    async with BlueBubblesServer() as server:
        config = configuration(models, server, "imessage")
        async with ForkedGateway(tmp_path / "state", config) as gateway:
            await reached(gateway, server, "imessage")
            await server.say("first [[reply:one]]")
            await server.wrote()
            gateway.kill()
            server.keep(server.message("meanwhile [[reply:two]]"))
            await gateway.start()
            await reached(gateway, server, "imessage")
            await server.until(lambda: any("two" in sent["text"] for sent in server.ours))
        texts = [sent["text"].removeprefix("(possibly sent twice) ") for sent in server.ours]
    assert texts in (["one", "two"], ["one", "one", "two"])
    assert len(models.requests) == 2


async def test_a_file_of_the_workspace_follows_the_words(tmp_path: Path, models: ModelServer) -> None:
    models.queue(Reply(text="Here **it** is.\nMEDIA:./a.txt"))
    async with BlueBubblesServer() as server:
        async with InProcessGateway(tmp_path / "state", configuration(models, server, "imessage")) as gateway:
            await reached(gateway, server, "imessage")
            put_file(gateway, "a.txt", b"words")
            await server.say("send")
            await server.wrote(2)
        assert server.ours[0]["text"] == "Here it is."
        assert server.of("message/attachment") == [{"name": "a.txt", "data": b"words"}]
