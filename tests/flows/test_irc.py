"""People write to the agent on a real IRC server: who is heard, what reaches the model, where the answer goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.outbound.reply import REPEAT_MARK
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.support.ngircd import Ngircd, Person
from tests.support.tcp_proxy import TcpProxy

ROOM, ANN = "#room", "ann!~ann@127.0.0.1"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Ngircd]:
    async with Ngircd(tmp_path) as ngircd:
        yield ngircd


def configuration(models: ModelServer, port: int, channel: dict[str, Any]) -> dict[str, Any]:
    section = {"host": "127.0.0.1", "port": port, "tls": False, "nick": "claw", "channels": [ROOM], **channel}
    return model_config(models.base_url, models.api_key, channels={"irc": section})


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, server: Ngircd) -> Start:
    @asynccontextmanager
    async def gateway(**channel: Any) -> AsyncIterator[InProcessGateway]:
        config = configuration(models, server.port, channel)
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            await joined(client)
            yield gateway

    return gateway


async def joined(client: WireClient) -> None:
    async with asyncio.timeout(60):
        while True:
            status = await client.call("channels.status", {"probe": True})
            (account,) = status["channelAccounts"]["irc"]
            if account["probe"].get("channels") == [ROOM]:
                return
            await asyncio.sleep(0.02)


async def test_a_known_person_is_answered_directly_and_in_the_channel_when_they_name_the_agent(
    start: Start, server: Ngircd, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN], groups={"#Room": {}}) as gateway, Person(server.port, "ann", ROOM) as ann:
        ann.say("claw", "hello [[reply:Hi **Ann**]]")
        assert await ann.heard(1) == ["Hi \x02Ann\x02"]
        ann.say(ROOM, "this is not for you")
        ann.say(ROOM, "claw: and here? [[reply:here too]]")
        assert await ann.heard(2) == ["Hi \x02Ann\x02", "here too"]
        async with gateway.client() as client:
            rows = (await client.call("sessions.list", {}))["sessions"]
    assert {row["key"] for row in rows} == {"agent:main:main", f"agent:main:irc:group:{ROOM}"}
    assert len(models.requests) == 2
    assert "this is not for you" in json.dumps(models.requests[-1].body["messages"])


async def test_a_nickname_alone_lets_nobody_in(start: Start, server: Ngircd, models: ModelServer) -> None:
    async with start(allowFrom=["ann", "ann!~other@127.0.0.1"]), Person(server.port, "ann") as ann:
        ann.say("claw", "let me in")
        offered = (await ann.got("PRIVMSG", text=ANN)).param(1)
        assert ANN in offered and not models.requests


async def test_a_nickname_counts_when_the_owner_says_so(start: Start, server: Ngircd) -> None:
    async with start(allowFrom=["ann"], dangerouslyAllowNameMatching=True), Person(server.port, "Ann") as ann:
        ann.say("claw", "hello [[reply:welcome]]")
        assert await ann.heard(1) == ["welcome"]


async def test_a_long_reply_arrives_whole_and_in_order(start: Start, server: Ngircd) -> None:
    words = " ".join(f"word-{number}" for number in range(120))
    async with start(allowFrom=[ANN]), Person(server.port, "ann") as ann:
        ann.say("claw", f"go {words[:300]}")
        await ann.heard(1)
        ann.lines.clear()
        ann.say("claw", "[[reply:" + " ".join(f"w{number}" for number in range(90)) + "]]")
        async with asyncio.timeout(60):
            while " ".join(await ann.heard(1)) != " ".join(f"w{number}" for number in range(90)):
                await asyncio.sleep(0.02)


async def test_a_reply_on_its_way_when_the_gateway_is_killed_comes_again_with_the_mark(
    tmp_path: Path, models: ModelServer, server: Ngircd
) -> None:
    async with TcpProxy(server.port) as proxy, Person(server.port, "ann", ROOM) as ann:
        config = configuration(models, proxy.port, {"allowFrom": [ANN], "groups": {ROOM: {}}})
        async with ForkedGateway(tmp_path / "state", config) as gateway:
            async with gateway.client() as client:
                await joined(client)
            proxy.deaf_after = b"only once, please"
            ann.say(ROOM, "claw: hello [[reply:only once, please]]")
            assert await ann.heard(1) == ["only once, please"]
            gateway.kill()
            proxy.deaf_after = b""
            await gateway.start()
            texts = await ann.heard(2)
    assert texts == ["only once, please", f"{REPEAT_MARK} only once, please"] and len(models.requests) == 1
