"""Strangers get little time and little room, and never lock out those whom the Gateway knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.server import server
from openclaw.gateway.server.connection import MAX_FIRST_BYTES
from openclaw.gateway.server.server import MAX_STRANGERS, MAX_STRANGERS_OF_ADDRESS, Sockets
from tests.gateway.support import Running, connect_params, running_gateway

FLOOD = 1050
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
BEGINNINGS = {
    "silent": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "upgraded and silent": UPGRADE,
    "half a frame": UPGRADE + b"\x81\xfe\xff\xff\x00\x00\x00\x00half",
    "half a body": b"POST /__openclaw__/rpc HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000000\r\n\r\n{",
}


@contextlib.asynccontextmanager
async def flood(running: Running, beginning: bytes, count: int = FLOOD) -> AsyncIterator[list[Any]]:
    """This many connections that send only ``beginning``."""
    opened = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
            writer.write(beginning)
            opened.append((reader, writer))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.parametrize("kind", BEGINNINGS)
async def test_a_thousand_sockets_of_strangers_do_not_lock_the_owner_out(tmp_path: Path, kind: str) -> None:
    async with running_gateway(tmp_path, handshake_timeout_s=60) as running, running.client() as early:
        most, count = (MAX_STRANGERS, FLOOD) if kind == "upgraded and silent" else (50, 150)
        running.gateway.sockets.max_strangers = most
        async with flood(running, BEGINNINGS[kind], count):
            async with running.client() as late:
                assert (await late.call("health"))["ok"]
            assert (await early.call("health"))["ok"]
            status, answer = await running.rpc("health")
            assert status == 200 and answer["ok"]
            assert running.gateway.sockets.stranger_count <= most
            assert running.gateway.sockets.dropped >= count - most
        assert running.gateway.sockets.known_count >= 1


@pytest.mark.parametrize("kind", ["silent", "half a head"])
async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.05)
    async with running_gateway(tmp_path) as running, flood(running, BEGINNINGS[kind], 1) as opened:
        assert await ended(opened[0][0])


async def test_dripping_a_head_byte_by_byte_gains_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.1)
    async with running_gateway(tmp_path) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        reading = asyncio.create_task(ended(reader))
        while not reading.done():
            writer.write(b"x")
            await asyncio.wait([reading], timeout=0.02)
        assert await reading
        writer.close()


async def test_the_next_head_on_a_kept_connection_has_a_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.05)
    async with running_gateway(tmp_path) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /healthz HTT")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await ended(reader)
        writer.close()


async def test_a_stranger_who_does_not_take_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ANSWER_S", 0.05)
    async with running_gateway(tmp_path, handshake_timeout_s=60) as running, flood(running, UPGRADE, 1) as opened:
        assert await ended(opened[0][0])


async def test_who_is_known_may_be_silent_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "ANSWER_S", "IDLE_S"):
        monkeypatch.setattr(server, name, 0.2)
    async with running_gateway(tmp_path) as running, running.client() as client:
        async with flood(running, b"", 1) as opened:
            assert await ended(opened[0][0])  # Meanwhile the client's time would have been up, too.
        assert (await client.call("health"))["ok"]


async def test_known_callers_have_a_limit_and_are_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as running, running.client():
        running.gateway.sockets.max_known = 1
        async with running.socket() as second:
            refused = await second.call("connect", connect_params())
            assert (refused["ok"], refused["error"]["code"]) == (False, "UNAVAILABLE")
            assert refused["error"]["retryAfterMs"]
        status, answer = await running.rpc("health")
        assert (status, answer["error"]["code"]) == (503, "UNAVAILABLE")


@pytest.mark.parametrize("fragment", [MAX_FIRST_BYTES + 1000, 1000])
async def test_a_stranger_cannot_send_much(tmp_path: Path, fragment: int) -> None:
    """Also not as a frame that never ends, in small fragments."""
    async with running_gateway(tmp_path) as running, running.socket() as socket:
        writer = socket.ws._writer  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError, RuntimeError):  # The loop refuses writes to a closed socket.
            for _ in range(0, 4 * MAX_FIRST_BYTES, fragment):
                writer.transport.write(b"\x01\xff" + fragment.to_bytes(8, "big") + bytes(4) + b"x" * fragment)
                await asyncio.sleep(0)
        code, _ = await socket.closed()
        assert code in (1009, 1002, 1006)


async def test_who_is_let_in_may_send_large_frames(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as running, running.client() as client:
        answer = await client.call("health", {"x": "y" * (4 * MAX_FIRST_BYTES)})
        assert "unexpected property 'x'" in answer["error"]["message"]


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
    return True


class Wire:
    """The transport of a connection from some address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.aborted = False

    def get_extra_info(self, _name: str) -> Any:
        return (self.address, 1)

    def abort(self) -> None:
        self.aborted = True


def opened(all: Sockets, address: str) -> tuple[Any, Wire]:
    handler, wire = object(), Wire(address)
    all.came(handler, wire)  # type: ignore[arg-type]
    return handler, wire


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::{:x}", "2001:db8:0:0:{:x}::1"])
async def test_one_address_cannot_take_the_room_of_the_others(address: str) -> None:
    all = Sockets()
    other = opened(all, "192.0.2.7")[1]
    greedy = [opened(all, address.format(number))[1] for number in range(MAX_STRANGERS_OF_ADDRESS + 10)]
    assert [wire.aborted for wire in greedy] == [True] * 10 + [False] * MAX_STRANGERS_OF_ADDRESS
    assert not other.aborted


async def test_the_first_to_go_is_the_oldest_stranger() -> None:
    all = Sockets()
    all.max_strangers = 3
    known, first = opened(all, "127.0.0.1")
    assert all.recognise(known)
    wires = [opened(all, "127.0.0.1")[1] for _ in range(5)]
    assert [wire.aborted for wire in wires] == [True, True, False, False, False] and not first.aborted


async def test_behind_a_proxy_the_caller_s_own_address_counts() -> None:
    all = Sockets()
    wires = []
    for number in range(MAX_STRANGERS_OF_ADDRESS + 5):
        handler, wire = opened(all, "127.0.0.1")
        all.asks(handler, "192.0.2.1" if number else "192.0.2.2")
        wires.append(wire)
    assert sum(wire.aborted for wire in wires) == 4 and not wires[0].aborted


async def test_nothing_is_kept_of_connections_that_are_over() -> None:
    all = Sockets()
    for number in range(100):
        handler, _ = opened(all, f"192.0.2.{number}")
        if number % 2:
            all.recognise(handler)
        all.asks(handler, "192.0.2.1")
        all.answered(handler)
        all.left(handler)
    assert (all.known_count, all.stranger_count, all._open) == (0, 0, {})
