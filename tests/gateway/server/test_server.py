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
        ("loopback", None, "127.0.0.1"),
        ("auto", None, "127.0.0.1"),
        ("lan", None, "0.0.0.0"),
        ("custom", "192.168.7.7", "192.168.7.7"),
        ("custom", "nonsense", "127.0.0.1"),
        ("tailnet", None, "100.101.102.103"),
        ("nonsense", None, "127.0.0.1"),
    ],
)
def test_bind_settings(monkeypatch: pytest.MonkeyPatch, setting: str, custom: str | None, host: str) -> None:
    monkeypatch.setattr(server, "own_addresses", lambda: ["127.0.0.1", "10.0.0.1", "100.101.102.103"])
    assert bind_host(setting, custom) == host


def test_without_a_tailnet_the_gateway_stays_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "own_addresses", lambda: ["127.0.0.1", "10.0.0.1"])
    assert bind_host("tailnet") == "127.0.0.1"


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
