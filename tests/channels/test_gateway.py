"""A whole Gateway with channels: from a person's message to the reply on the person's phone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest

from openclaw.channels.base import ChannelKinds
from openclaw.channels.manager import ChannelManager
from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway import assemble
from openclaw.gateway.channels import ChannelServices
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.server.server import serve
from openclaw.gateway.services import Services
from openclaw.inbound.message import Inbound
from openclaw.messages import Route
from openclaw.outbound.reply import SendFailed
from openclaw.routing import resolve_route
from openclaw.sessions.keys import SessionRef
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.loopback_channel import Loopback, everybody
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon
from tests.support.submit import submit

ME, ANN = "+15550000001", "+15550000042"


class House:
    """The Gateway under test, a client of it, and the world outside."""

    def __init__(self, gateway: Gateway, client: WireClient, world: Loopback, server: ModelServer) -> None:
        self.gateway = gateway
        self.client = client
        self.world = world
        self.server = server

    @property
    def services(self) -> ChannelServices:
        return self.gateway.channel_services


async def take(gateway: Gateway, inbound: Inbound) -> None:
    """The shortest way in: no rules, one run per message."""
    resolved = resolve_route(gateway.runtime.config.current, inbound)
    route = Route(channel=inbound.channel, to=inbound.to, account_id=inbound.account_id)
    session = SessionRef(resolved.agent_id, resolved.session_key)
    run_id = f"{inbound.channel}-{inbound.message_id}"
    await submit(gateway, inbound.text, run_id, session=session, source=inbound.channel, route=route)


@asynccontextmanager
async def house(
    tmp_path: Path, server: ModelServer, world: Loopback, channels: dict[str, Any]
) -> AsyncGenerator[House]:
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    (state / "openclaw.json").write_text(json.dumps(model_config(server.base_url, server.api_key, channels=channels)))
    clock = SystemClock()
    config = ConfigStore(str(state / "openclaw.json"), clock, {})
    config.load_or_create()
    opened: list[Gateway] = []

    def manager(**parts: Any) -> ChannelManager:
        """The manager without the pipeline: every message of the channel gets a run."""
        own = {name: parts[name] for name in ("config", "clock", "state_dir", "blobs", "documents", "claims")}
        return ChannelManager(
            **own,
            kinds=ChannelKinds({}, {world.id: world}),
            receive=lambda inbound: take(opened[0], inbound),
            admits=everybody,
        )

    with patch.object(assemble, "ChannelManager", manager):
        gateway = await assemble.open_gateway(str(state), config, clock, {})
    opened.append(gateway)
    services = Services(gateway)
    http = await serve(gateway, "127.0.0.1", 0)
    try:
        await services.start()
        await gateway.runs.find_unfinished()
        gateway.runs.start_unfinished()
        await gateway.channel_services.start()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{http.port}", max_msg_size=0) as socket,
        ):
            client = WireClient(socket)
            await client.connect()
            yield House(gateway, client, world, server)
            await client.close()
    finally:
        await http.stop()
        await services.stop()
        await assemble.close_gateway(gateway)


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
def world() -> Loopback:
    return Loopback()


async def test_a_signal_message_is_answered_on_signal(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with (
        SignalDaemon(ME) as daemon,
        house(tmp_path, server, world, {"signal": {"account": ME, "httpUrl": daemon.url}}) as home,
    ):
        await daemon.connected()
        await daemon.say("hello [[reply:Hi from signal]]")
        sent = await daemon.called("send")
        assert sent == [{"message": "Hi from signal", "account": ME, "recipient": [ANN]}]
        assert daemon.of("sendTyping") == [{"recipient": [ANN], "account": ME}]
        status = await home.client.call("channels.status", {"probe": True})
        (account,) = status["channelAccounts"]["signal"]
        assert (account["connected"], account["probe"]["ok"]) == (True, True)
        assert (await home.client.call("status"))["channelSummary"] == ["Signal: connected"]
        assert status["channels"]["signal"]["connected"] and status["channelLabels"] == {"signal": "Signal"}
        assert (await home.client.call("health", {"probe": True}))["channels"]["signal"]["running"]


async def test_a_long_reply_arrives_in_parts_in_order(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {"textChunkLimit": 12}}) as home:
        await world.say("go [[reply:one two three four five six]]")
        await world.got(3)
        assert " ".join(part.text for part in world.delivered) == "one two three four five six"
        assert await home.gateway.runtime.stores.ledger.outbox_depth() == 0


async def test_two_people_get_their_own_replies(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}):
        await asyncio.gather(
            world.say("[[reply:for ann]]", sender="ann"),
            world.say("[[reply:for the group]]", sender="bob", group="g1"),
        )
        await world.got(2)
        assert {(part.to, part.text) for part in world.delivered} == {
            ("loopback:ann", "for ann"),
            ("group:g1", "for the group"),
        }


async def test_silence_sends_nothing_and_takes_the_sign_down(
    tmp_path: Path, server: ModelServer, world: Loopback
) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        # The Gateway disarms a token of silence in a channel's text, so it cannot be a directive there.
        server.reply("NO_REPLY")
        inbound = await world.say("hm")
        await home.gateway.runs.index.wait(f"loopback-{inbound.message_id}", 10)
        await world.until(lambda: ("loopback:ann", False) in world.typing)
        assert world.delivered == []


async def test_a_failed_run_gives_one_notice(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}):
        await world.say("[[error:400 bad request]]")
        (notice,) = await world.got(1)
        assert notice.text.startswith("⚠️ ")


async def test_a_reply_finished_while_the_channel_was_away_is_sent_after_a_restart(
    tmp_path: Path, server: ModelServer, world: Loopback
) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        await world.until(lambda: bool(world.lives))
        inbound = await world.say("[[sleep:50]][[reply:kept]]")
        world.disconnect()
        await home.gateway.runs.index.wait(f"loopback-{inbound.message_id}", 10)
    assert world.delivered == []
    async with house(tmp_path, server, world, {"loopback": {}}):
        (reply,) = await world.got(1)
        assert (reply.text, reply.to, reply.possibly_duplicate) == ("kept", "loopback:ann", False)


async def test_channels_follow_the_configuration(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        await world.until(lambda: set(world.lives) == {"default"})
        home.gateway.runtime.config.set_path("channels.loopback.enabled", False)
        await home.gateway.runtime.config.reload()
        await world.until(lambda: not world.lives)
        (account,) = (await home.client.call("channels.status"))["channelAccounts"]["loopback"]
        assert (account["enabled"], account["running"]) == (False, False)


def sending(**more: Any) -> dict[str, Any]:
    return {"to": "ann", "message": "ping", "idempotencyKey": "k1", **more}


async def test_send_delivers_once_per_key_and_the_session_knows_of_it(
    tmp_path: Path, server: ModelServer, world: Loopback
) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        first = await home.client.call("send", sending())
        again = await home.client.call("send", sending(message="something else"))
        assert first == again == {"runId": "k1", "channel": "loopback", "messageId": "out-1"}
        assert [(part.to, part.text) for part in world.delivered] == [("ann", "ping")]
        history = await home.client.call("chat.history", {"sessionKey": "main"})
        assert [block["text"] for message in history["messages"] for block in message["content"]] == ["ping"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (sending(channel="telegram"), "unsupported channel: telegram"),
        (sending(accountId="nope"), 'unknown account "nope" of channel loopback; known: default'),
        (sending(to="no body"), "'no body' is nobody here"),
        (sending(message=" "), "message or mediaUrl required"),
        (sending(mediaUrl="http://127.0.0.1:1/x.png"), "127.0.0.1 is not a public address"),
        (sending(mediaUrl="file:///etc/passwd"), "only plain http(s) addresses"),
    ],
)
async def test_send_refuses_what_it_cannot_deliver(
    tmp_path: Path, server: ModelServer, world: Loopback, params: dict[str, Any], message: str
) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        await world.until(lambda: bool(world.lives))
        with pytest.raises(RequestFailed) as refused:
            await home.client.call("send", params)
        assert message in str(refused.value)
        assert world.delivered == []


async def test_send_says_what_the_platform_said(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        world.failures = [SendFailed("blocked by ann", permanent=True)]
        with pytest.raises(RequestFailed, match="blocked by ann") as refused:
            await home.client.call("send", sending())
        assert refused.value.code == "UNAVAILABLE"


async def test_without_a_channel_send_names_the_one_it_would_need(
    tmp_path: Path, server: ModelServer, world: Loopback
) -> None:
    async with house(tmp_path, server, world, {}) as home:
        with pytest.raises(RequestFailed, match="unsupported channel: whatsapp"):
            await home.client.call("send", sending())
        assert (await home.client.call("channels.status"))["channelOrder"] == []


async def test_logout_is_refused_with_what_to_do_instead(tmp_path: Path, server: ModelServer, world: Loopback) -> None:
    async with house(tmp_path, server, world, {"loopback": {}}) as home:
        with pytest.raises(RequestFailed, match=r"channels\.loopback\.enabled"):
            await home.client.call("channels.logout", {"channel": "loopback"})
