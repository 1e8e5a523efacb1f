"""People write to the agent through a real Matrix server: who is heard, what reaches the model, where answers go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.synapse import Human, Synapse, shared_synapse
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def server() -> Synapse:
    return shared_synapse()


def configuration(models: ModelServer, bot: Human, url: str, **channel: Any) -> dict[str, Any]:
    section = {"homeserver": url, "userId": bot.user_id, "password": bot.password, **channel}
    return model_config(models.base_url, models.api_key, channels={"matrix": section})


async def connected(client: WireClient) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            (account,) = (await client.call("channels.status", {}))["channelAccounts"]["matrix"]
            if account["connected"]:
                return account
            await asyncio.sleep(0.02)


async def test_people_are_answered_directly_in_rooms_and_in_threads(
    tmp_path: Path, models: ModelServer, server: Synapse
) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot, Human(server, "cat") as cat:
        config = configuration(
            models, bot, server.url, dm={"policy": "allowlist", "allowFrom": [ann.user_id]}, groups={"*": {}}
        )
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            await connected(client)
            direct = await ann.create_room(bot.user_id, is_direct=True)
            await ann.joined(direct, bot.user_id)
            room = await ann.create_room(bot.user_id, cat.user_id)
            await cat.call("POST", f"/join/{room}", {})
            await ann.joined(room, bot.user_id)
            await ann.send(direct, "hello [[reply:Hi **Ann**]]")
            (hello,) = await ann.saw(direct, bot.user_id)
            await ann.send(room, "not for you")
            named = {"m.mentions": {"user_ids": [bot.user_id]}}
            root = await ann.send(room, {"msgtype": "m.text", "body": "here? [[reply:here]]", **named})
            await ann.saw(room, bot.user_id)
            relation = {"rel_type": "m.thread", "event_id": root}
            inside = {"msgtype": "m.text", "body": "and here? [[reply:in the thread]]", "m.relates_to": relation}
            await ann.send(room, {**inside, **named})
            _, threaded = await ann.saw(room, bot.user_id, 2)
            rows = (await client.call("sessions.list", {}))["sessions"]
            shown = json.dumps(await client.call("config.get", {})) + json.dumps(
                await client.call("channels.status", {})
            )
    assert (hello["content"]["body"], hello["content"]["formatted_body"]) == (
        "Hi Ann",
        "<p>Hi <strong>Ann</strong></p>",
    )
    assert threaded["content"]["m.relates_to"]["event_id"] == root
    base = f"agent:main:matrix:channel:{room.lower()}"
    assert {row["key"] for row in rows} == {"agent:main:main", base, f"{base}:thread:{root.lower()}"}
    assert "not for you" in json.dumps(models.requests[1].body["messages"])
    assert bot.password not in shown


async def typing_people(human: Human, room: str) -> list[str]:
    joined = (await human.call("GET", "/sync"))["rooms"]["join"]
    events = joined.get(room, {}).get("ephemeral", {}).get("events", [])
    return next((event["content"]["user_ids"] for event in events if event["type"] == "m.typing"), [])


async def test_the_typing_sign_is_removed_after_the_reply(tmp_path: Path, models: ModelServer, server: Synapse) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot:
        config = configuration(models, bot, server.url, dm={"policy": "allowlist", "allowFrom": [ann.user_id]})
        # A renewal would hide that the sign was never removed.
        config["session"] = {**config.get("session", {}), "typingIntervalSeconds": 3600}
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            await connected(client)
            direct = await ann.create_room(bot.user_id, is_direct=True)
            await ann.joined(direct, bot.user_id)
            held = asyncio.Event()
            models.queue(Reply("Hi Ann", hold=held, hold_after=0))
            await ann.send(direct, "hello")
            async with asyncio.timeout(20):
                while await typing_people(ann, direct) != [bot.user_id]:
                    await asyncio.sleep(0.05)
                held.set()
                await ann.saw(direct, bot.user_id)
                while await typing_people(ann, direct):
                    await asyncio.sleep(0.05)


async def test_a_stranger_gets_a_code(tmp_path: Path, models: ModelServer, server: Synapse) -> None:
    async with Human(server, "bob") as bob, Human(server, "bot") as bot:
        config = configuration(models, bot, server.url)
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            await connected(client)
            direct = await bob.create_room(bot.user_id, is_direct=True)
            await bob.send(direct, "let me in")
            (offered,) = await bob.saw(direct, bot.user_id)
            (asked,) = (await client.call("pairing.list", {}))["requests"]
    assert asked["code"] in offered["content"]["body"] and not models.requests


async def test_a_reply_on_its_way_when_the_gateway_is_killed_arrives_once(
    tmp_path: Path, models: ModelServer, server: Synapse
) -> None:
    async with Human(server, "ann") as ann, Human(server, "bot") as bot, TcpProxy(server.port) as proxy:
        config = configuration(models, bot, f"http://127.0.0.1:{proxy.port}", allowFrom=[ann.user_id])
        async with ForkedGateway(tmp_path / "state", config) as gateway:
            async with gateway.client() as client:
                await connected(client)
            direct = await ann.create_room(bot.user_id, is_direct=True)
            await ann.joined(direct, bot.user_id)
            proxy.deaf_after = b"only once"
            await ann.send(direct, "hello [[reply:only once, please]]")
            await ann.saw(direct, bot.user_id)
            gateway.kill()
            proxy.deaf_after = b""
            await gateway.start()
            async with gateway.client() as client:
                await connected(client)
            await ann.send(direct, "again [[reply:second]]")
            sent = await ann.saw(direct, bot.user_id, 2)
    assert [one["content"]["body"] for one in sent] == ["only once, please", "second"]
    assert len(models.requests) == 2
