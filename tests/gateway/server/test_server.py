"""Where the Gateway listens, and when it had better not."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from openclaw.gateway.server import server
from openclaw.gateway.server.server import Server, StartRefused, bind_host, own_addresses
from openclaw.net import is_loopback
from tests.gateway.support import Running, running_gateway


@pytest.mark.parametrize(
    ("setting", "custom", "host"),
    [
        ("loopback", None, "localhost"),
        ("auto", None, "localhost"),
        ("lan", None, "0.0.0.0"),
        ("custom", "192.168.7.7", "192.168.7.7"),
        ("custom", "127.0.0.1", "127.0.0.1"),
        ("custom", " ::ffff:10.0.0.1 ", "10.0.0.1"),
        ("custom", "[2001:db8::1]", "2001:db8::1"),
        ("custom", "localhost", "127.0.0.1"),
        ("tailnet", None, "100.101.102.103"),
        ("nonsense", None, "localhost"),
    ],
)
def test_bind_settings(monkeypatch: pytest.MonkeyPatch, setting: str, custom: str | None, host: str) -> None:
    monkeypatch.setattr(server, "own_addresses", lambda: ["127.0.0.1", "10.0.0.1", "100.101.102.103"])
    assert bind_host(setting, custom) == host


def test_without_a_tailnet_the_gateway_stays_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "own_addresses", lambda: ["127.0.0.1", "10.0.0.1"])
    assert bind_host("tailnet") == "localhost"


@pytest.mark.parametrize("custom", [None, "", " ", "no-such-name.invalid", "10.0.0", "10.0.0.1/24", "a" * 300])
def test_a_custom_address_that_is_none_refuses_to_start_and_never_means_everywhere(
    monkeypatch: pytest.MonkeyPatch, custom: str | None
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise OSError("not known")

    monkeypatch.setattr(server.socket, "getaddrinfo", unknown)
    with pytest.raises(StartRefused, match=r"gateway\.customBindHost"):
        bind_host("custom", custom)


@pytest.mark.parametrize(
    ("host", "heard"),
    [
        ("localhost", {"127.0.0.1", "::1"}),
        ("127.0.0.1", {"127.0.0.1"}),
        ("127.0.0.7", {"127.0.0.7"}),
        ("0.0.0.0", {"0.0.0.0"}),
    ],
)
async def test_it_listens_there_and_nowhere_else(running: Running, host: str, heard: set[str]) -> None:
    listening = Server(running.gateway)
    await listening.start(host, 0)
    try:
        found = {socket.getsockname()[0] for listener in listening._listeners for socket in listener.sockets}
        assert found <= heard and heard - found <= {"::1"}
    finally:
        await listening.stop()


async def test_a_host_that_is_no_address_is_never_listened_on(running: Running) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        await Server(running.gateway).start("", 0)


def test_this_machine_has_a_loopback_address() -> None:
    assert "127.0.0.1" in own_addresses()
    assert is_loopback("::1") and not is_loopback("0.0.0.0")


async def test_a_gateway_with_a_weak_secret_does_not_listen_beyond_this_machine(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, config={"gateway": {"auth": {"token": "short"}}}) as running:
        with pytest.raises(StartRefused, match=r"gateway\.auth\.token is shorter than 16 characters"):
            await Server(running.gateway).start("0.0.0.0", 0)


async def test_loopback_is_served_over_ipv6_as_well(running: Running) -> None:
    try:
        async with running.http.get(f"http://[::1]:{running.server.port}/healthz") as response:
            assert response.status == 200
    except aiohttp.ClientConnectorError:
        pytest.skip("no IPv6 loopback here")
