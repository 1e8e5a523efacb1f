"""The rules for addresses, and the proxy that keeps them, without a browser."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from openclaw.config.schema.system import BrowserSsrfPolicy
from openclaw.tools.browser.guard import AddressRefused, GuardProxy, NetworkRules, checked_address, checked_resolver
from tests.tools.browser.support import Names

CLOSED = NetworkRules()


@pytest.mark.parametrize(
    ("address", "rules", "opened"),
    [
        ("https://example.org/a?b#c", {}, True),
        ("about:blank", {}, True),
        ("http://93.184.215.14/", {}, True),
        ("http://[2606:4700::1111]/", {}, True),
        ("http://10.0.0.1/", {}, False),
        ("http://169.254.169.254/latest/meta-data", {}, False),
        ("http://[::ffff:127.0.0.1]/", {}, False),
        ("http://[fd00::1]/", {}, False),
        ("http://127.1/", {}, False),
        ("http://0/", {}, False),
        ("http://１２７.0.0.1/", {}, False),
        ("http://app.localhost/", {}, False),
        ("file:///etc/passwd", {"dangerously_allow_private_network": True}, False),
        ("http://10.0.0.1/", {"dangerously_allow_private_network": True}, True),
        ("http://10.0.0.1/", {"allowed_hostnames": ["10.0.0.1"]}, True),
        ("http://10.0.0.2/", {"allowed_hostnames": ["10.0.0.1"]}, False),
        ("http://nas.home/", {"allowed_hostnames": ["*.home"]}, True),
        ("https://example.org/", {"hostname_allowlist": ["example.org"]}, True),
        ("https://www.example.org/", {"hostname_allowlist": ["example.org"]}, False),
        ("https://www.example.org/", {"hostname_allowlist": ["*.example.org"]}, True),
        ("http://nas.home/", {"hostname_allowlist": ["example.org"], "allowed_hostnames": ["nas.home"]}, True),
    ],
)
def test_which_addresses_are_opened(address: str, rules: dict[str, object], opened: bool) -> None:
    made = NetworkRules.of(BrowserSsrfPolicy(**rules))  # pyright: ignore[reportArgumentType]
    if opened:
        assert checked_address(address, made)
    else:
        with pytest.raises(AddressRefused):
            checked_address(address, made)


@pytest.fixture
async def far() -> AsyncIterator[int]:
    """A server on loopback that answers with what it is sent."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def asked(proxy: GuardProxy, request: bytes, then: bytes = b"") -> tuple[int, bytes]:
    """The code of the proxy's reply, and what comes back through it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"\x05\x01\x00" + request)
    reply = await asyncio.wait_for(reader.read(2), 30)
    if reply != b"\x05\x00":
        writer.close()
        return -1, b""
    code = (await asyncio.wait_for(reader.readexactly(10), 30))[1]
    answer = b""
    if then:
        writer.write(then)
        answer = await asyncio.wait_for(reader.readexactly(len(then)), 30)
    writer.close()
    return code, answer


def connect(host: str, port: int) -> bytes:
    return b"\x05\x01\x00\x03" + bytes((len(host),)) + host.encode() + struct.pack("!H", port)


async def test_the_proxy_connects_by_name_and_refuses_what_is_private(far: int) -> None:
    names = Names(open_test=["127.0.0.1"], inside_test=["127.0.0.1"])
    rules = [NetworkRules(exempt=("open.test",))]
    proxy = GuardProxy(lambda: rules[0], checked_resolver(lambda: names))
    await proxy.start()
    try:
        assert await asked(proxy, connect("open.test", far), b"hello") == (0, b"hello")
        assert (await asked(proxy, connect("OPEN.test.", far), b"x"))[0] == 0
        assert (await asked(proxy, connect("inside.test", far)))[0] == 2
        assert (await asked(proxy, connect("127.0.0.1", far)))[0] == 2
        assert (await asked(proxy, b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack("!H", far)))[0] == 2
        assert (await asked(proxy, b"\x05\x01\x00\x04" + bytes(15) + b"\x01" + struct.pack("!H", far)))[0] == 2
        assert (await asked(proxy, connect("nowhere.test", far)))[0] == 4
        assert (await asked(proxy, b"\x05\x02" + connect("open.test", far)[2:]))[0] == 7, "no listening, no datagrams"
        assert [one.host for one in proxy.refused] == ["inside.test", "127.0.0.1", "127.0.0.1", "::1"]
        assert [one.host for one in proxy.refused_since(3)] == ["::1"]
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"\x05\x01\x00" + connect("open.test", far) + b"kept")
        assert (await asyncio.wait_for(reader.readexactly(16), 30)).endswith(b"kept")
        rules[0] = CLOSED
        proxy.recheck()
        assert await asyncio.wait_for(reader.read(), 30) == b"", "what is no longer allowed is ended"
        writer.close()
    finally:
        await proxy.stop()


async def test_what_is_no_socks_gets_no_answer(far: int) -> None:
    proxy = GuardProxy(lambda: NetworkRules(private=True), checked_resolver(Names))
    await proxy.start()
    try:
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x04\x01\x00\x50", b"\x05\x01\x02"):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(words)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
    finally:
        await proxy.stop()
