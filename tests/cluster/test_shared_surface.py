"""Clients and people of two Gateways on one database: what is asked of either holds at both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import aiohttp
import pytest

from openclaw.channels.base import ChannelKinds, WebhookAnswer, WebhookRequest
from openclaw.gateway import assemble
from openclaw.gateway.cluster.service import ClusterService
from openclaw.gateway.gateway import Gateway
from tests.gateway.auth.test_devices import Device
from tests.support.gateway import TOKEN, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.loopback_channel import Loopback
from tests.support.model_server import ModelServer, Reply
from tests.support.postgres import storage_for

PATIENCE_S = 60
HOOK_TOKEN = "a-secret-for-webhooks-of-these-tests"
CHANNELS = {"loopback": {"enabled": True, "dmPolicy": "open", "allowFrom": ["*"]}}


class Two(NamedTuple):
    """Two Gateways. The first has the account of the channel and runs scheduled work."""

    first: InProcessGateway
    second: InProcessGateway
    phone: Loopback

    @property
    def parts(self) -> tuple[Gateway, Gateway]:
        return self.first.gateway, self.second.gateway


@pytest.fixture
async def two(tmp_path: Path, models: ModelServer) -> AsyncIterator[Two]:
    phone, storage = Loopback(), storage_for(tmp_path / "state")
    kinds = ChannelKinds({}, {phone.id: phone})
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.object(assemble, "ChannelKinds", lambda _: kinds))
        made: list[InProcessGateway] = []
        for name in ("a", "b"):
            config = model_config(models.base_url, models.api_key, storage=storage, channels=CHANNELS)
            config["hooks"] = {"enabled": True, "token": HOOK_TOKEN}
            made.append(await stack.enter_async_context(InProcessGateway(tmp_path / name / "state", config)))
            await phone.until(lambda: "default" in phone.lives)
        for gateway in made:
            assert isinstance(gateway.gateway.cluster, ClusterService)
            async with asyncio.timeout(PATIENCE_S):
                while not gateway.gateway.cluster.links.all():
                    await asyncio.sleep(0.01)
        yield Two(made[0], made[1], phone)


async def test_a_person_and_a_device_let_in_at_one_node_are_let_in_at_the_other(two: Two) -> None:
    here, there = two.parts
    asked = await here.pairing.ask("signal", "+1")
    assert asked is not None
    async with two.second.client() as client:
        (request,) = (await client.call("pairing.list"))["requests"]
        assert request["id"] == "+1"
        await client.call("pairing.approve", {"code": asked.code})
    assert await here.pairing.allowed("signal") == {"+1"}

    device, scopes = Device(), ["operator.read"]
    async with two.first.client(**_connect(device, scopes)) as client:
        token = client.hello["auth"]["deviceToken"]
    async with two.second.client(**_connect(device, scopes, token)) as client:
        assert client.hello["auth"]["deviceToken"] == token
        await there.devices.load()
        await here.devices.remove(device.id)
        async with asyncio.timeout(PATIENCE_S):
            while not client.socket.closed:
                await asyncio.sleep(0.01)


def _connect(device: Device, scopes: list[str], token: str = TOKEN) -> dict[str, Any]:
    return {"token": token, "device": device.connect(scopes=scopes, token=token)["device"], "scopes": scopes}


async def test_jobs_are_listed_changed_and_run_at_any_node(two: Two, models: ModelServer) -> None:
    job = {
        "name": "Brief",
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "payload": {"kind": "agentTurn", "message": "brief me [[reply:All quiet.]]"},
        "delivery": {"mode": "none"},
    }
    async with two.first.client() as here, two.second.client() as there:
        added = await there.call("cron.add", job)
        assert [one["id"] for one in (await here.call("cron.list"))["jobs"]] == [added["id"]]
        assert await there.call("cron.run", {"id": added["id"]}) == {"ok": True, "ran": True}
        for client in (here, there):
            (entry,) = (await client.call("cron.runs", {"id": added["id"]}))["entries"]
            assert (entry["status"], entry["summary"]) == ("ok", "All quiet.")
        await there.call("cron.remove", {"id": added["id"]})
        assert (await here.call("cron.list"))["jobs"] == []
    assert len(models.requests) == 1


async def test_any_node_tells_which_node_has_an_account_and_how_it_is(two: Two) -> None:
    node = two.first.gateway.runtime.stores.claims.node
    for gateway in (two.first, two.second):
        async with gateway.client() as client:
            status = await client.call("channels.status", {"probe": True})
            (account,) = status["channelAccounts"]["loopback"]
            assert (account["node"], account["connected"], account["probe"]["ok"]) == (node, True, True)
            assert "lastError" not in account
            assert status["channels"]["loopback"]["connected"]


async def test_a_chat_whose_session_another_node_has_is_answered_and_sees_that_the_agent_types(
    two: Two, models: ModelServer
) -> None:
    async with two.second.client() as client:
        assert text_of(await client.chat("hello [[reply:Hi.]]", run_id="r1")) == "Hi."
    held = asyncio.Event()
    models.queue(Reply("Hello Ann.", hold=held, hold_after=0))
    await two.phone.say("are you there")
    await two.phone.until(lambda: bool(two.phone.typing))
    held.set()
    assert [part.text for part in await two.phone.got(1)] == ["Hello Ann."]
    assert two.second.gateway.runtime.stores.claims.owns("session:main:agent:main:main")
    assert two.phone.opened == 1


async def test_a_platform_may_call_any_node(two: Two) -> None:
    asked: list[WebhookRequest] = []

    async def answer(request: WebhookRequest) -> WebhookAnswer:
        asked.append(request)
        return WebhookAnswer(status=202, text="taken")

    two.phone.lives["default"].context.serve("/platform", answer)
    channels = two.second.gateway.channel_services.channels
    async with asyncio.timeout(PATIENCE_S):
        while channels.webhook("/platform/x") is None:
            await asyncio.sleep(0.01)
    async with aiohttp.ClientSession() as http:
        for gateway in (two.first, two.second):
            async with http.post(f"{gateway.url}/platform/x?a=1", data=b"\x00body") as response:
                assert (response.status, await response.text()) == (202, "taken")
    assert [(one.path, one.query, one.body) for one in asked] == [("x", {"a": "1"}, b"\x00body")] * 2


async def test_a_webhook_that_comes_to_any_node_is_answered_and_told_once(two: Two, models: ModelServer) -> None:
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {HOOK_TOKEN}"}) as http:
        body = {
            "message": "the door opened [[reply:Noted.]]",
            "name": "Door",
            "deliver": False,
            "wakeMode": "next-heartbeat",
        }
        async with http.post(f"{two.second.url}/hooks/agent", json=body) as response:
            assert response.status in (200, 202), await response.text()
    notes = two.first.gateway.runtime.notes
    async with asyncio.timeout(PATIENCE_S):
        while not notes.peek("agent:main:main"):
            await asyncio.sleep(0.01)
    assert notes.peek("agent:main:main") == ["Hook Door: Noted."]
    assert len(models.requests) == 1
