"""Guessing the secret is slow from everywhere, and keeps out nobody who has it and is known."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openclaw.gateway.http.common import OWNER_HEADER
from tests.gateway.auth.test_devices import Device
from tests.gateway.support import TOKEN, Running, connect_params, running_gateway
from tests.support.clock import HeldClock, MovableClock

LAN = {"X-Forwarded-For": "203.0.113.9"}


async def guess(running: Running, count: int, **headers: str) -> list[int]:
    return [(await running.rpc("health", token=f"guess-{n}", **headers))[0] for n in range(count)]


@pytest.mark.parametrize("headers", [{}, LAN, {"Origin": "http://localhost:5173"}], ids=["local", "proxied", "page"])
async def test_wrong_secrets_are_slowed_down_and_the_right_one_always_passes(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """Behind a tunnel the owner and a stranger who guesses have the same address."""
    strict = {"gateway": {"auth": {"rateLimit": {"exemptLoopback": False, "lockoutMs": 300_000}}}}
    async with running_gateway(tmp_path, config=strict, clock=HeldClock()) as running:
        assert await guess(running, 60, **headers) == [401] * 10 + [429] * 50
        status, answer = await running.rpc("health", token="wrong", **headers)
        assert (status, answer["error"]["code"]) == (429, "RATE_LIMITED")
        assert answer["error"]["retryAfterMs"] > 0
        assert (await running.rpc("health", **headers))[0] == 200
        async with running.socket(**headers) as socket:
            refused = await socket.call("connect", connect_params(token="wrong"))
            assert refused["error"]["message"].startswith("unauthorized: too many failed attempts; try again in")
        async with running.socket(**headers) as socket:
            answer = await socket.call("connect", connect_params())
            assert answer["ok"], answer
        assert await guess(running, 1, **headers) == [429], "a right secret forgives no wrong ones"


async def test_this_machine_is_slowed_down_to_one_look_a_second_and_not_locked_out(tmp_path: Path) -> None:
    clock, strict = HeldClock(), {"gateway": {"auth": {"rateLimit": {"lockoutMs": 300_000}}}}
    async with running_gateway(tmp_path, config=strict, clock=clock) as running:
        await guess(running, 11)
        clock.advance(1)
        assert (await guess(running, 2)) == [401, 429]
        assert (await running.rpc("health"))[0] == 200


@pytest.mark.parametrize("address", ["127.0.0.2", "127.99.1.1", "::1"])
async def test_other_loopback_addresses_are_the_same_caller(tmp_path: Path, address: str) -> None:
    async with running_gateway(tmp_path, clock=HeldClock()) as running:
        await guess(running, 11)
        local = aiohttp.TCPConnector(local_addr=(address, 0))
        host = "[::1]" if ":" in address else "127.0.0.1"
        async with aiohttp.ClientSession(connector=local) as http:
            url, headers = f"http://{host}:{running.server.port}/metrics", {"Authorization": "Bearer wrong"}
            try:
                async with http.get(url, headers=headers) as response:
                    assert response.status == 429
            except aiohttp.ClientConnectorError:
                pytest.skip("no IPv6 loopback here")


async def test_loopback_may_be_treated_like_everyone(tmp_path: Path) -> None:
    clock, strict = HeldClock(), {"gateway": {"auth": {"rateLimit": {"exemptLoopback": False, "maxAttempts": 3}}}}
    async with running_gateway(tmp_path, config=strict, clock=clock) as running:
        assert await guess(running, 4) == [401] * 3 + [429]
        clock.advance(59)
        assert await guess(running, 1) == [429]
        clock.advance(1)
        assert await guess(running, 1) == [401]


async def test_a_paired_device_and_an_open_connection_are_not_kept_out(tmp_path: Path) -> None:
    strict = {"gateway": {"auth": {"rateLimit": {"exemptLoopback": False}}}}
    async with running_gateway(tmp_path, config=strict) as running, running.client() as connected:
        device = Device()
        async with running.socket() as socket:
            token = (await socket.call("connect", device.connect()))["payload"]["auth"]["deviceToken"]
        await guess(running, 11)
        assert (await connected.call("health"))["ok"]
        for secret in (token, TOKEN):
            async with running.socket() as socket:
                assert (await socket.call("connect", device.connect(token=secret)))["ok"]
        async with running.socket() as socket:
            refused = await socket.call("connect", Device().connect(token="guess"))
            assert refused["error"]["message"].startswith("unauthorized: too many"), "a stranger's device waits"


async def test_a_device_that_guesses_is_slowed_down_itself(tmp_path: Path) -> None:
    clock = MovableClock()
    async with running_gateway(tmp_path, clock=clock) as running:
        device, seen = Device(), []
        async with running.socket() as socket:
            assert (await socket.call("connect", device.connect()))["ok"]
        for n in range(11):
            async with running.socket() as socket:
                seen.append((await socket.call("connect", device.connect(token=f"guess-{n}")))["error"]["message"])
        assert "too many" not in seen[9] and "too many" in seen[10]
        assert (await running.rpc("health"))[0] == 200


async def test_many_guesses_at_once_are_counted_one_by_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, clock=HeldClock()) as running:

        async def over_socket(n: int) -> Any:
            async with running.socket() as socket:
                return (await socket.call("connect", connect_params(token=f"guess-{n}")))["error"]["message"]

        answers = await asyncio.gather(*(over_socket(n) for n in range(40)))
        assert sum("mismatch" in answer for answer in answers) == 10


async def test_the_owners_own_commands_are_not_slowed_down_by_others(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, clock=HeldClock()) as running:
        running.gateway.owner_key = "k" * 32
        await guess(running, 11)
        owner = {OWNER_HEADER: "k" * 32}
        assert await guess(running, 1, **owner) == [401], "it is counted apart"
        assert await guess(running, 1, **{OWNER_HEADER: "j" * 32}) == [429]
        assert await guess(running, 11, **owner) == [401] * 9 + [429] * 2, "the key replaces no secret"


async def test_bytes_that_are_no_text_are_a_wrong_secret_like_any_other(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, clock=HeldClock()) as running:

        async def status(head: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + head + b"\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.split(b" ", 2)[1]

        seen = [await status(b"Authorization: Bearer \xff\xfe\xed\xa0\x80") for _ in range(11)]
        assert seen == [b"401"] * 10 + [b"429"]
        assert await status(b"X-OpenClaw-Owner: \xff\xfe") == b"429"
        assert await status(b"Origin: \xff\xfe") == b"403"
        assert await status(b"X-Forwarded-For: \xff\xfe") == b"401"
        async with running.socket() as socket:
            answer = await socket.call("connect", connect_params(token="\ud800"))
            assert "too many" in answer["error"]["message"]


async def test_changed_limits_count_without_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, config={"gateway": {"reload": {"mode": "hot"}}}) as running:
        path = tmp_path / "openclaw.json"
        config = json.loads(path.read_text())
        config["gateway"]["auth"]["rateLimit"] = {"maxAttempts": 2}
        path.write_text(json.dumps(config))
        await running.gateway.runtime.config.reload()
        assert await guess(running, 3) == [401, 401, 429]
