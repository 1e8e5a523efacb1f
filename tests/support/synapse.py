"""A real Synapse on loopback, and people who talk through it."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.support.ports import KeptPort
from tests.support.shared_servers import shared_server

SERVER = "test"
PATIENCE_S = 60
START_S = 120
_SHARED_SECRET = "registration-secret"


class Synapse:
    """A server that runs on this port. It starts slowly, so all tests share one: ``shared_synapse``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._admin = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def register(self, name: str, password: str, *, admin: bool = False) -> dict[str, Any]:
        """Makes an account. The answer holds its token."""
        path = f"{self.url}/_synapse/admin/v1/register"
        async with aiohttp.ClientSession() as http:
            async with http.get(path) as answer:
                nonce = (await answer.json())["nonce"]
            proof = hmac.new(_SHARED_SECRET.encode(), digestmod=hashlib.sha1)
            proof.update("\0".join((nonce, name, password, "admin" if admin else "notadmin")).encode())
            body = {"nonce": nonce, "username": name, "password": password, "admin": admin, "mac": proof.hexdigest()}
            async with http.post(path, json=body) as answer:
                made = await answer.json()
                assert answer.status == 200, made
        return made

    async def slow_down(self, user_id: str, per_second: int, burst: int) -> None:
        """Limits how fast somebody may write."""
        if not self._admin:
            self._admin = (await self.register(f"admin-{secrets.token_hex(4)}", "admin", admin=True))["access_token"]
        path = f"{self.url}/_synapse/admin/v1/users/{quote(user_id)}/override_ratelimit"
        headers = {"Authorization": f"Bearer {self._admin}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(path, json={"messages_per_second": per_second, "burst_count": burst}) as answer,
        ):
            assert answer.status == 200, await answer.text()


@functools.cache
def shared_synapse() -> Synapse:
    """The server of the run. Skips the test where Synapse is missing; with ``OPENCLAW_TEST_REQUIRE_ALL`` it fails."""
    if importlib.util.find_spec("synapse") is None or importlib.util.find_spec("nio") is None:
        why = "Synapse or matrix-nio is not installed (make setup-dev)"
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            pytest.fail(why)
        pytest.skip(why)
    return Synapse(shared_server("synapse", _start)["port"])


_started: list[subprocess.Popen[bytes]] = []
"""It outlives the test process, so nothing waits for it here."""


def _start() -> dict[str, Any]:
    """Starts a server and waits until it answers."""
    folder = Path(tempfile.mkdtemp(prefix="openclaw-synapse-"))
    port = KeptPort()
    command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(_write_config(folder, port.number))]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    _started.append(process)
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/_matrix/client/versions", timeout=5):
                return {"folder": str(folder), "pid": process.pid, "port": port.number}
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(f"Synapse does not start: {(folder / 'output').read_text()[-2000:]}")


def _write_config(folder: Path, port: int) -> Path:
    key = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    (folder / "signing.key").write_text(f"ed25519 a_test {key}\n")
    (folder / "log.yaml").write_text(
        "version: 1\nhandlers: {console: {class: logging.StreamHandler}}\nroot: {level: WARNING, handlers: [console]}\n"
    )
    fast = "{per_second: 10000, burst_count: 10000}"
    config = folder / "homeserver.yaml"
    config.write_text(
        f"server_name: {SERVER}\n"
        f"pid_file: {folder}/pid\n"
        f"public_baseurl: http://127.0.0.1:{port}/\n"
        f"listeners: [{{port: {port}, type: http, bind_addresses: ['127.0.0.1'],"
        " resources: [{names: [client], compress: false}]}]\n"
        f"database: {{name: sqlite3, args: {{database: '{folder}/db'}}}}\n"
        f"log_config: {folder}/log.yaml\n"
        f"media_store_path: {folder}/media\n"
        f"signing_key_path: {folder}/signing.key\n"
        f"registration_shared_secret: {_SHARED_SECRET}\n"
        "macaroon_secret_key: test\nform_secret: test\n"
        "report_stats: false\nbcrypt_rounds: 4\ntrusted_key_servers: []\nsuppress_key_server_warning: true\n"
        "enable_metrics: false\npresence: {enabled: false}\nfederation_domain_whitelist: []\n"
        "caches: {sync_response_cache_duration: 0s}\n"
        f"rc_message: {fast}\nrc_registration: {fast}\n"
        f"rc_login: {{address: {fast}, account: {fast}, failed_attempts: {fast}}}\n"
        f"rc_joins: {{local: {fast}, remote: {fast}}}\nrc_joins_per_room: {fast}\n"
        f"rc_invites: {{per_room: {fast}, per_user: {fast}, per_issuer: {fast}}}\nrc_room_creation: {fast}\n"
    )
    return config


class Human:
    """Somebody with an account: ``async with Human(server, "ann") as ann``. Names are made unique."""

    def __init__(self, server: Synapse, name: str) -> None:
        self._server = server
        self.name = f"{name}-{secrets.token_hex(4)}"
        self.password = f"password-of-{self.name}"
        self.user_id = self.token = self.device_id = ""

    async def __aenter__(self) -> Human:
        made = await self._server.register(self.name, self.password)
        self.user_id, self.token, self.device_id = made["user_id"], made["access_token"], made["device_id"]
        self._http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.token}"})
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"{self._server.url}/_matrix/client/v3{path}"
        async with self._http.request(method, url, json=body) as answer:
            content = await answer.json()
            assert answer.status == 200, (path, content)
            return content

    async def create_room(self, *invited: str, **more: Any) -> str:
        body = {"invite": list(invited), "preset": "private_chat", **more}
        return (await self.call("POST", "/createRoom", body))["room_id"]

    async def send(self, room: str, content: dict[str, Any] | str, kind: str = "m.room.message") -> str:
        body = {"msgtype": "m.text", "body": content} if isinstance(content, str) else content
        path = f"/rooms/{quote(room)}/send/{kind}/{secrets.token_hex(8)}"
        return (await self.call("PUT", path, body))["event_id"]

    async def redact(self, room: str, event_id: str) -> None:
        await self.call("PUT", f"/rooms/{quote(room)}/redact/{quote(event_id)}/{secrets.token_hex(8)}", {})

    async def upload(self, data: bytes, mime_type: str) -> str:
        url = f"{self._server.url}/_matrix/media/v3/upload"
        async with self._http.post(url, data=data, headers={"Content-Type": mime_type}) as answer:
            return (await answer.json())["content_uri"]

    async def download(self, mxc: str) -> bytes:
        url = f"{self._server.url}/_matrix/client/v1/media/download/{mxc.removeprefix('mxc://')}"
        async with self._http.get(url) as answer:
            assert answer.status == 200
            return await answer.read()

    async def events(self, room: str, sender: str = "", kind: str = "m.room.message") -> list[dict[str, Any]]:
        """All events of a room, oldest first."""
        found = await self.call("GET", f"/rooms/{quote(room)}/messages?dir=f&limit=1000")
        return [one for one in found["chunk"] if one["type"] == kind and sender in ("", one["sender"])]

    async def saw(self, room: str, sender: str, count: int = 1, kind: str = "m.room.message") -> list[dict[str, Any]]:
        """The events of somebody in a room, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await self.events(room, sender, kind)) < count:
                await asyncio.sleep(0.05)
        return found

    async def joined(self, room: str, user_id: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while user_id not in (await self.call("GET", f"/rooms/{quote(room)}/joined_members"))["joined"]:
                await asyncio.sleep(0.05)
