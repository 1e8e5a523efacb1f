"""Files by address: public ones only, whatever the name resolves to and wherever it redirects."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from openclaw.public_fetch import (
    FetchLimits,
    FetchRefused,
    PublicResolver,
    checked_url,
    fetch,
    host_allowed,
    is_public,
)

LIMITS = FetchLimits(max_bytes=1000, max_redirects=2, timeout_s=60)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::7f00:1", False),
        ("::ffff:0:7f00:1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("127.1", False),
        ("not an address", False),
    ],
)
def test_only_addresses_of_the_open_internet_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/a",
        "file:///etc/passwd",
        "http://user:pass@example.com/a",
        "http:///nothing",
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://127.1/",
        "http://127。0。0。1/",
        "http://１２７.0.0.1/",
        "http://[::1]:80/",
        "http://[::ffff:10.0.0.1]/",
        "//example.com/a",
        "nonsense",
    ],
)
def test_addresses_that_can_be_refused_at_sight_are(url: str) -> None:
    with pytest.raises(FetchRefused):
        checked_url(url, LIMITS)


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("a.example", None, True),
        ("a.example", (), False),
        ("A.Example.", ("a.example",), True),
        ("b.a.example", ("a.example",), False),
        ("b.a.example", ("*.a.example",), True),
        ("a.example", ("*.a.example",), False),
        ("evila.example", ("*.a.example",), False),
    ],
)
def test_an_allow_list_names_hosts(host: str, allowed: tuple[str, ...] | None, expected: bool) -> None:
    assert host_allowed(host, allowed) is expected


class Fixed(AbstractResolver):
    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        kind = int(socket.AF_INET)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


async def test_a_name_with_any_private_address_is_refused() -> None:
    assert len(await PublicResolver(Fixed("8.8.8.8", "1.1.1.1")).resolve("ok.example", 80)) == 2
    with pytest.raises(FetchRefused, match=r"mixed\.example is not a public address"):
        await PublicResolver(Fixed("8.8.8.8", "10.0.0.1")).resolve("mixed.example", 80)
    with pytest.raises(FetchRefused):
        await PublicResolver(Fixed()).resolve("empty.example", 80)


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """A web site on loopback; the tests that reach it declare loopback public."""

    async def page(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/small":
                return web.Response(body=b"hello")
            case "/large":
                return web.Response(body=b"x" * 2000)
            case "/endless":
                response = web.StreamResponse()
                await response.prepare(request)
                for _ in range(100):
                    await response.write(b"x" * 100)
                return response
            case "/once":
                raise web.HTTPFound("/small")
            case "/round":
                raise web.HTTPFound("/round")
            case "/inside":
                raise web.HTTPFound("http://10.0.0.1/secret")
            case _:
                raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def loopback_is_public(address: str) -> bool:
    return address in ("127.0.0.1", "::1")


@pytest.mark.parametrize("path", ["/small", "/once"])
async def test_a_public_file_is_fetched(path: str) -> None:
    async with site() as base:
        assert await fetch(base + path, LIMITS, loopback_is_public) == b"hello"
        by_name = base.replace("127.0.0.1", "localhost")
        assert await fetch(by_name + path, LIMITS, loopback_is_public) == b"hello"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/large", "larger than 1000 bytes"),
        ("/endless", "larger than 1000 bytes"),
        ("/round", "redirects more than 2 times"),
        ("/inside", r"10\.0\.0\.1 is not a public address"),
        ("/none", "the server answered 404"),
    ],
)
async def test_a_file_beyond_the_limits_is_refused(path: str, why: str) -> None:
    async with site() as base:
        with pytest.raises(FetchRefused, match=why):
            await fetch(base + path, LIMITS, loopback_is_public)


async def test_a_name_that_resolves_to_this_machine_is_refused() -> None:
    async with site() as base:
        with pytest.raises(FetchRefused, match="localhost is not a public address"):
            await fetch(base.replace("127.0.0.1", "localhost") + "/small", LIMITS)
