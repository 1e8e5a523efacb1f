"""``gateway.tls``: the certificate that is made, shown, pinned and renewed, and the start that is refused."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import ssl
import stat
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from openclaw.cli import gateway_target, service
from openclaw.cli.client import GatewayClient, GatewayError
from openclaw.cli.command import UserError
from openclaw.cli.gateway import _status
from openclaw.config.schema.gateway import GatewayTls
from openclaw.gateway import tls as tls_module
from openclaw.gateway.main import CannotStart
from openclaw.gateway.tls import RENEW_DAYS, VALID_DAYS, ServerTls, TlsProblem
from tests.support.clock import HeldClock
from tests.support.gateway import TOKEN, GatewayProcess, model_config
from tests.support.gateway_in_process import InProcessGateway

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def settings(**more: Any) -> GatewayTls:
    return GatewayTls(enabled=True, **more)


def tls_config(**more: Any) -> dict[str, Any]:
    config = model_config("http://127.0.0.1:9")
    config["gateway"]["tls"] = {"enabled": True, **more}
    return config


def files(folder: Path) -> dict[str, str]:
    return {"cert_path": str(folder / "c.pem"), "key_path": str(folder / "k.pem")}


def given(tmp_path: Path, clock: HeldClock | None = None) -> dict[str, str]:
    """A certificate and its key, as an owner would bring them."""
    ServerTls(settings(**files(tmp_path)), str(tmp_path), clock or HeldClock(), [])
    return files(tmp_path)


def local_client(gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch) -> GatewayClient:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(gateway.state_dir))
    for name in ("OPENCLAW_GATEWAY_PORT", "OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    return GatewayClient(gateway_target.resolve())


async def test_the_gateway_serves_tls_and_nothing_else_on_its_port(tmp_path: Path) -> None:
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway, aiohttp.ClientSession() as http:
        assert gateway.gateway.tls is not None
        pin = aiohttp.Fingerprint(bytes.fromhex(gateway.gateway.tls.fingerprint))
        https = f"https://127.0.0.1:{gateway.port}"
        async with http.get(f"{https}/healthz", ssl=pin) as response:
            assert response.status == 200
        async with http.ws_connect(https, ssl=pin) as socket:
            assert (await socket.receive_json())["event"] == "connect.challenge"
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http://127.0.0.1:{gateway.port}/healthz")
        with pytest.raises(aiohttp.ServerFingerprintMismatch):
            await http.get(f"{https}/healthz", ssl=aiohttp.Fingerprint(bytes(32)))
        folder = gateway.state_dir / "gateway" / "tls"
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_the_command_line_pins_what_the_gateway_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway:
        client = local_client(gateway, monkeypatch)
        assert client.target.url == f"wss://127.0.0.1:{gateway.port}"
        assert (await asyncio.to_thread(client.call, "health"))["ok"]
        monkeypatch.setattr("openclaw.cli.gateway.from_args", lambda args, live: client)
        report = await asyncio.to_thread(_status, argparse.Namespace(no_probe=False))
        assert report["rpc"]["ok"]
        assert gateway.gateway.tls is not None
        assert report["gateway"]["tlsFingerprint"] == gateway.gateway.tls.fingerprint
        client.target.fingerprint = "0" * 64
        with pytest.raises(UserError, match="not the pinned one"):
            await asyncio.to_thread(client.call, "health")
        client.target.fingerprint = ""
        with pytest.raises(UserError, match="cannot be checked"):
            await asyncio.to_thread(client.call, "health")


async def test_a_remote_gateway_is_trusted_by_its_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway:
        assert gateway.gateway.tls is not None
        there, home = gateway.gateway.tls.fingerprint, tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("OPENCLAW_STATE_DIR", str(home))

        def remote(url: str, pin: str | None) -> GatewayClient:
            remote = {"url": url, "token": TOKEN, "tlsFingerprint": pin}
            (home / "openclaw.json").write_text(json.dumps({"gateway": {"mode": "remote", "remote": remote}}))
            return GatewayClient(gateway_target.resolve())

        url, spaced = f"wss://127.0.0.1:{gateway.port}", ":".join(there[i : i + 2] for i in range(0, 64, 2)).upper()
        for pin in (there, spaced, f"sha256:{there}"):
            assert (await asyncio.to_thread(remote(url, pin).call, "health"))["ok"]
        for pin in ("f" * 64, None):
            with pytest.raises(UserError, match=r"fingerprint|not trusted"):
                await asyncio.to_thread(remote(url, pin).call, "health")
        assert not remote(url, there).target.owner_key, "the key of this computer's Gateway goes to no other"
        with pytest.raises(UserError, match="not encrypted"):
            remote(f"ws://127.0.0.1:{gateway.port}", there)


async def test_clients_without_a_certificate_of_the_authority_are_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    authority, stranger = given(other), files(tmp_path)
    given(tmp_path)
    config = tls_config(caPath=authority["cert_path"])
    async with InProcessGateway(tmp_path / "state", config) as gateway, aiohttp.ClientSession() as http:

        async def get(certificate: dict[str, str] | None) -> int:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate:
                context.load_cert_chain(certificate["cert_path"], certificate["key_path"])
            async with http.get(f"https://127.0.0.1:{gateway.port}/healthz", ssl=context) as response:
                return response.status

        assert await get(authority) == 200
        for certificate in (None, stranger):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await get(certificate)
        assert (await asyncio.to_thread(local_client(gateway, monkeypatch).call, "health"))["ok"]
        with pytest.raises(GatewayError):
            await asyncio.to_thread(local_client(gateway, monkeypatch).call, "nope")


async def test_callers_that_never_finish_the_handshake_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "MAX_HANDSHAKES", 8)
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway:
        silent = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(20)]
        assert (await asyncio.to_thread(local_client(gateway, monkeypatch).call, "health"))["ok"]
        for reader, _ in silent[:12]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "the oldest were dropped"
        for _, writer in silent:
            writer.close()


def nothing(_: Path) -> dict[str, str]:
    return {}


def only_a_certificate(folder: Path) -> dict[str, str]:
    paths = given(folder)
    Path(paths["key_path"]).unlink()
    return paths


def keys_that_do_not_fit(folder: Path) -> dict[str, str]:
    paths = given(folder)
    (folder / "x").mkdir()
    Path(paths["key_path"]).write_bytes(Path(given(folder / "x")["key_path"]).read_bytes())
    return paths


def no_pem(folder: Path) -> dict[str, str]:
    paths = given(folder)
    Path(paths["cert_path"]).write_text("nonsense")
    return paths


@pytest.mark.parametrize(
    ("made", "more", "told"),
    [
        (nothing, {"autoGenerate": False}, "autoGenerate"),
        (nothing, {"certPath": "/nowhere/c.pem"}, "belong together"),
        (nothing, {"certPath": "/proc/c.pem", "keyPath": "/proc/k.pem"}, "cannot be written"),
        (nothing, {"caPath": "/nowhere/ca.pem"}, r"caPath /nowhere/ca\.pem"),
        (only_a_certificate, {}, "does not exist"),
        (keys_that_do_not_fit, {}, "cannot be used"),
        (no_pem, {}, "no certificate in PEM form"),
    ],
)
async def test_a_gateway_that_cannot_serve_tls_does_not_start(
    tmp_path: Path, made: Any, more: dict[str, Any], told: str
) -> None:
    paths = made(tmp_path)
    named = {"certPath": paths["cert_path"], "keyPath": paths["key_path"]} if paths else {}
    with pytest.raises(CannotStart, match=told):
        async with InProcessGateway(tmp_path / "state", tls_config(**named, **more)):
            pass


def test_a_certificate_made_here_is_renewed_before_it_ends_and_keeps_its_key(tmp_path: Path) -> None:
    clock = HeldClock()
    paths = given(tmp_path, clock)
    first = ServerTls(settings(**paths), str(tmp_path), clock, []).fingerprint
    key = Path(paths["key_path"]).read_bytes()
    clock.advance(timedelta(days=VALID_DAYS - RENEW_DAYS - 1).total_seconds())
    assert ServerTls(settings(**paths), str(tmp_path), clock, []).fingerprint == first
    clock.advance(timedelta(days=2).total_seconds())
    assert ServerTls(settings(**paths), str(tmp_path), clock, []).fingerprint != first
    assert Path(paths["key_path"]).read_bytes() == key


async def test_a_running_gateway_renews_tells_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway:
        tls = gateway.gateway.tls
        assert tls is not None
        before = tls.fingerprint
        await tls.refresh()
        assert tls.fingerprint == before
        monkeypatch.setattr(tls_module, "RENEW_DAYS", VALID_DAYS + 1)
        await tls.refresh()
        assert tls.fingerprint != before
        lock = json.loads((gateway.state_dir / "gateway.lock").read_text())
        assert lock["tlsFingerprint"] == tls.fingerprint
        assert tls.fingerprint in caplog.text
        assert (await asyncio.to_thread(local_client(gateway, monkeypatch).call, "health"))["ok"]


async def test_a_replaced_certificate_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    paths = given(tmp_path)
    tls = ServerTls(settings(**paths), str(tmp_path), HeldClock(), [])
    told: list[str] = []
    tls.changed = lambda: told.append(tls.fingerprint)
    (tmp_path / "new").mkdir()
    new = given(tmp_path / "new")
    for name in paths:
        os.replace(new[name], paths[name])
    await tls.refresh()
    der = ssl.PEM_cert_to_DER_cert(Path(paths["cert_path"]).read_text())
    assert told == [hashlib.sha256(der).hexdigest()]
    Path(paths["cert_path"]).write_text("half a certif")
    await tls.refresh()
    assert tls.fingerprint == told[0]


def test_an_owners_certificate_is_never_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from cryptography import x509

    clock, paths = HeldClock(), files(tmp_path)
    original = tls_module._name
    tls_module._name = lambda: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mine")])
    try:
        given(tmp_path, clock)
    finally:
        tls_module._name = original
    before = Path(paths["cert_path"]).read_bytes()
    clock.advance(timedelta(days=VALID_DAYS).total_seconds())
    ServerTls(settings(**paths), str(tmp_path), clock, [])
    assert Path(paths["cert_path"]).read_bytes() == before
    assert "replace it" in caplog.text


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    paths = given(tmp_path)
    key = load_pem_private_key(Path(paths["key_path"]).read_bytes(), None)
    Path(paths["key_path"]).write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(TlsProblem, match="without a password"):
        ServerTls(settings(**paths), str(tmp_path), HeldClock(), [])


async def test_the_process_says_its_address_and_fingerprint(tmp_path: Path) -> None:
    async with GatewayProcess(tmp_path / "state", tls_config(), {"OPENCLAW_GATEWAY_TOKEN": TOKEN}) as gateway:
        shown = await gateway.command("gateway", "status")
        assert shown.returncode == 0, shown.stderr
        lock = json.loads((gateway.state_dir / "gateway.lock").read_text())
        assert f"TLS fingerprint (SHA-256): {lock['tlsFingerprint']}" in shown.stdout
        assert f"wss://127.0.0.1:{gateway.port}" in shown.stdout
        assert lock["tlsFingerprint"] in gateway.errors(), "the log has it too"


async def test_the_command_that_starts_a_gateway_learns_of_a_certificate_that_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcessGateway(tmp_path / "state", tls_config()) as gateway:
        client = local_client(gateway, monkeypatch)
        known, client.target.fingerprint = client.target.fingerprint, ""  # As it is before the first start.
        monkeypatch.setattr(service, "_spawn", lambda extra: SimpleNamespace(poll=lambda: None, pid=1))
        await asyncio.to_thread(service.start, client)
        assert client.target.fingerprint == known != ""
