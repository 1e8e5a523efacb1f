"""People write to the agent on WhatsApp, through the Gateway's own port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import GatewayUnderTest, model_config, put_file
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.whatsapp_server import ANN, APP_SECRET, TOKEN, VERIFY, WhatsAppServer

Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def whatsapp() -> AsyncIterator[WhatsAppServer]:
    async with WhatsAppServer() as server:
        yield server


def configuration(models: ModelServer, whatsapp: WhatsAppServer, section: Any) -> Any:
    channel = {**whatsapp.settings, "allowFrom": [f"+{ANN}"], **section}
    return model_config(models.base_url, models.api_key, channels={"whatsapp": channel})


async def reached(gateway: GatewayUnderTest, whatsapp: WhatsAppServer) -> None:
    """Until the webhook is served. The platform tries again while it is not."""
    whatsapp.webhook = f"{gateway.url}/whatsapp/webhook"
    async with asyncio.timeout(60), gateway.client() as client:
        while True:
            (account,) = (await client.call("channels.status", {}))["channelAccounts"]["whatsapp"]
            if account["connected"]:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, whatsapp: WhatsAppServer) -> Start:
    @asynccontextmanager
    async def gateway(**section: Any) -> AsyncIterator[InProcessGateway]:
        async with InProcessGateway(tmp_path / "state", configuration(models, whatsapp, section)) as gateway:
            await reached(gateway, whatsapp)
            yield gateway

    return gateway


async def test_a_message_is_answered_and_seen_by_those_who_may_write(
    start: Start, whatsapp: WhatsAppServer, models: ModelServer
) -> None:
    async with start(messagePrefix="[claw]") as gateway:
        async with aiohttp.ClientSession() as http:
            query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY, "hub.challenge": "42"}
            async with http.get(whatsapp.webhook, params=query) as answer:
                assert (answer.status, await answer.text()) == (200, "42")
        await whatsapp.say("hello [[reply:Hi **Ann**]]")
        (reply,) = await whatsapp.wrote()
        body = whatsapp.body(whatsapp.message("forged"))
        forged = [await whatsapp.post(body, whatsapp.signed(body, "wrong")) for _ in range(12)]
        assert forged == [401] * 10 + [429] * 2, "strangers are slowed down, and WhatsApp is not"
        await whatsapp.say("/status")
        *_, status = await whatsapp.wrote(2)
        async with gateway.client() as client:
            (row,) = (await client.call("sessions.list", {}))["sessions"]
            shown = json.dumps(
                [await client.call("channels.status", {"probe": True}), await client.call("config.get", {})]
            )
        shown += gateway.errors_path.read_text()
    assert (reply["to"], reply["text"]["body"]) == (ANN, "Hi *Ann*")
    assert "mock/mock-1" in status["text"]["body"], "the prefix does not hide a command"
    assert (row["key"], row["lastTo"]) == ("agent:main:main", f"+{ANN}")
    assert "[claw] hello" in json.dumps(models.requests[0].body["messages"])
    for secret in (TOKEN, APP_SECRET, VERIFY):
        assert secret not in shown


async def test_a_short_run_shows_the_typing_sign(start: Start, whatsapp: WhatsAppServer) -> None:
    async with start(sendReadReceipts=False):
        said = await whatsapp.say("hello [[reply:Hi Ann]]")
        await whatsapp.wrote()
        await whatsapp.until(lambda: bool(whatsapp.read))
    assert [body["typing_indicator"] for body in whatsapp.read] == [{"type": "text"}], said


async def test_a_stranger_gets_a_code(start: Start, whatsapp: WhatsAppServer, models: ModelServer) -> None:
    async with start():
        await whatsapp.say("let me in", sender="15550000099", name="Eve")
        (offer,) = await whatsapp.wrote()
    assert offer["to"] == "15550000099"
    assert "pairing" in offer["text"]["body"]
    assert not models.requests and not whatsapp.read


async def test_files_of_a_stranger_are_not_fetched(tmp_path: Path, start: Start, whatsapp: WhatsAppServer) -> None:
    whatsapp.media["flood"] = (b"%PDF" + bytes(100_000), "application/pdf")
    document = {"id": "flood", "filename": "a.pdf", "mime_type": "application/pdf"}
    async with start():
        await whatsapp.say(type="document", document=document, sender="15550000099", name="Eve")
        (offer,) = await whatsapp.wrote()
        assert "pairing" in offer["text"]["body"], "a file alone asks to be let in as well"
        assert not whatsapp.media_tokens and not list((tmp_path / "state" / "blobs").glob("*"))
        await whatsapp.say(type="document", document=document)
        await whatsapp.wrote(2)
        assert whatsapp.media_tokens, "those of the owner are"


async def test_a_redelivery_after_a_kill_starts_nothing(
    tmp_path: Path, models: ModelServer, whatsapp: WhatsAppServer
) -> None:
    async with ForkedGateway(tmp_path / "state", configuration(models, whatsapp, {})) as gateway:
        await reached(gateway, whatsapp)
        value = await whatsapp.say("only once [[reply:one]]")
        await whatsapp.wrote()
        gateway.kill()
        await gateway.start()
        await reached(gateway, whatsapp)
        assert await whatsapp.post(whatsapp.body(value)) == 200
        await whatsapp.say("another [[reply:two]]")
        await whatsapp.until(lambda: any("two" in sent["text"]["body"] for sent in whatsapp.delivered))
    texts = [sent["text"]["body"].removeprefix("(possibly sent twice) ") for sent in whatsapp.delivered]
    assert texts in (["one", "two"], ["one", "one", "two"])
    assert len(models.requests) == 2


async def test_a_rate_limit_is_waited_out_and_a_closed_window_is_told(
    start: Start, whatsapp: WhatsAppServer, models: ModelServer
) -> None:
    async with start() as gateway:
        whatsapp.refuse_next(4, "(#4) Application request limit reached", 400, {"Retry-After": "1"})
        await whatsapp.say("hello [[reply:patience]]")
        (sent,) = await whatsapp.wrote()
        whatsapp.refuse_next(131047, "Re-engagement message")
        await whatsapp.say("too late [[reply:lost]]")
        await whatsapp.until(lambda: "Re-engagement message" in whatsapp.refused)
        async with gateway.client() as client:
            dead = ""
            async with asyncio.timeout(60):
                while "24 hours" not in dead:
                    await asyncio.sleep(0.01)
                    dead = json.dumps(await client.call("outbox.list", {"state": "dead"}))
    assert sent["text"]["body"] == "patience"
    assert "they must write first" in dead


async def test_a_file_of_the_workspace_goes_with_the_words(
    start: Start, whatsapp: WhatsAppServer, models: ModelServer
) -> None:
    models.queue(Reply(text="Here **it** is.\nMEDIA:./a.txt"))
    async with start() as gateway:
        put_file(gateway, "a.txt", b"words")
        await whatsapp.say("send")
        (sent,) = await whatsapp.wrote()
    assert (sent["type"], sent["document"]["caption"]) == ("document", "Here *it* is.")
    assert list(whatsapp.uploads.values()) == [("a.txt", b"words")]
