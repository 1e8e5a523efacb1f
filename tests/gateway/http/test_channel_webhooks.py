"""The paths on which platforms call: what strangers can do there."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from openclaw.channels.base import WebhookAnswer, WebhookRequest
from openclaw.channels.submit import secrets_equal
from openclaw.gateway.server import server
from tests.support.clock import MovableClock
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway

SECRET = "the platform's own secret"
MB = 1024 * 1024


class Platform:
    """A channel that is called under ``/platform``, with a signature of the body."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    async def answer(self, request: WebhookRequest) -> WebhookAnswer:
        if not secrets_equal(request.headers.get("x-signature", ""), signature(request.body)):
            return WebhookAnswer(status=401, text="the signature is wrong")
        self.heard.append(len(request.body))
        return WebhookAnswer(text="ok")


def signature(body: bytes) -> str:
    return hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


@pytest.fixture
async def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def gateway(tmp_path: Path, clock: MovableClock) -> AsyncIterator[InProcessGateway]:
    async with InProcessGateway(tmp_path / "state", model_config("http://127.0.0.1:9"), clock=clock) as running:
        yield running


@pytest.fixture
async def platform(gateway: InProcessGateway) -> Platform:
    made = Platform()
    gateway.gateway.channel_services.channels.serve("/platform", made.answer)
    return made


async def post(gateway: InProcessGateway, body: bytes = b"{}", given: str | None = None, **headers: str) -> int:
    headers["X-Signature"] = signature(body) if given is None else given
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/platform", data=body, headers=headers) as response,
    ):
        return response.status


@pytest.mark.parametrize("tunnel", [{}, {"X-Forwarded-For": "203.0.113.9"}], ids=["direct", "tunnel"])
async def test_wrong_secrets_are_slowed_down_and_a_right_one_always_passes(
    gateway: InProcessGateway, platform: Platform, tunnel: dict[str, str]
) -> None:
    guesses = [await post(gateway, given=f"guess-{number}", **tunnel) for number in range(14)]
    assert guesses == [401] * 10 + [429] * 4
    assert [await post(gateway, **tunnel) for _ in range(5)] == [200] * 5
    assert await post(gateway, given="guess", **tunnel) == 429, "a right one forgives no wrong ones"
    assert platform.heard == [2] * 5


async def test_a_stranger_behind_a_tunnel_does_not_keep_the_platform_out(
    gateway: InProcessGateway, platform: Platform, clock: MovableClock
) -> None:
    eve, platforms = {"X-Forwarded-For": "8.8.8.8, 203.0.113.9"}, {"X-Forwarded-For": "198.51.100.7"}
    assert [await post(gateway, given="x", **eve) for _ in range(12)] == [401] * 10 + [429] * 2
    clock.advance(2)
    assert await post(gateway, given="x", **eve) == 429, "the stranger is locked out"
    assert await post(gateway, **platforms) == 200
    # Claiming another address each time does not help: all are counted together as well.
    others = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(20, 40)]
    assert 429 in [await post(gateway, given="x", **other) for other in others]


@pytest.mark.parametrize("given", [b"\xff\xfe", b"\xed\xa0\x80", b""])
async def test_bytes_that_are_no_text_are_a_wrong_secret(
    gateway: InProcessGateway, platform: Platform, given: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = b"POST /platform HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\nX-Signature: "
    writer.write(head + given + b"\r\n\r\n{}")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_long_bodies_of_strangers_have_little_room_together(
    gateway: InProcessGateway, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = gateway.gateway.sockets.bodies
    monkeypatch.setattr(bodies, "free", 2 * MB)
    room = bodies.free
    async with AsyncExitStack() as stack:
        # Each stops one byte before its end and stays.
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            stack.callback(writer.close)
            writer.write(b"POST /platform HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % MB)
            writer.write(bytes(MB - 1))
            await writer.drain()
        async with asyncio.timeout(60):
            while bodies.free > room - 2 * (MB - 1 - server.FREE_BYTES):
                await asyncio.sleep(0.01)
        assert await post(gateway, bytes(MB)) == 503
        assert await post(gateway, bytes(1000)) == 200, "what platforms usually send is short"
    async with asyncio.timeout(60):
        while bodies.free < room:
            await asyncio.sleep(0.01)
    assert await post(gateway, bytes(MB)) == 200
    assert platform.heard == [1000, MB]
