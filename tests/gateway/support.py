"""A real Gateway on a real port, and a raw client that sees every frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import (
    close_gateway,
    open_gateway,
)
from openclaw.gateway.auth.authorise import METHOD_RIGHTS
from openclaw.gateway.gateway import Gateway
from openclaw.gateway.server.server import Server, serve
from openclaw.gateway.services import Services
from openclaw.rights import Right

TOKEN = "a-long-enough-test-token"


class Running:
    """The Gateway under test and how to reach it."""

    def __init__(self, gateway: Gateway, server: Server, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.server = server
        self.http = http
        self.url = f"http://127.0.0.1:{server.port}"

    @asynccontextmanager
    async def socket(self, **headers: str) -> AsyncIterator[Socket]:
        """A connection that has not said anything yet; its challenge has been read."""
        async with self.http.ws_connect(self.url, headers=headers or None, max_msg_size=0) as ws:
            socket = Socket(ws)
            challenge = await socket.event("connect.challenge")
            socket.nonce = challenge["payload"]["nonce"]
            yield socket

    @asynccontextmanager
    async def client(self, **connect: Any) -> AsyncIterator[Socket]:
        """A connection that has been let in."""
        async with self.socket() as socket:
            answer = await socket.call("connect", connect_params(**connect))
            assert answer["ok"], answer
            socket.hello = answer["payload"]
            yield socket

    async def rpc(self, method: str, params: Any = None, *, token: str | None = TOKEN, **headers: str) -> Any:
        body = {"method": method} if params is None else {"method": method, "params": params}
        async with self.http.post(
            f"{self.url}/__openclaw__/rpc", json=body, headers=with_token(token, headers)
        ) as response:
            return response.status, await response.json()


def allow_test_methods(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Gives methods of a test a right, without which they cannot be registered."""
    for name in names:
        monkeypatch.setitem(cast("dict[str, Right]", METHOD_RIGHTS), name, "admin")


def with_token(token: str | None, headers: dict[str, str] | None = None) -> dict[str, str]:
    return {**({} if token is None else {"Authorization": f"Bearer {token}"}), **(headers or {})}


class Socket:
    """Sends frames, keeps what arrives."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.nonce = ""
        self.hello: dict[str, Any] = {}
        self.unread: list[dict[str, Any]] = []
        self._ids = 0

    async def send(self, frame: Any) -> None:
        await self.ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def frame(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            message = await self.ws.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, (message, self.ws.close_code)
        return json.loads(message.data)

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for index, frame in enumerate(self.unread):
            if wanted(frame):
                return self.unread.pop(index)
        while True:
            frame = await self.frame()
            if wanted(frame):
                return frame
            self.unread.append(frame)

    async def event(self, name: str) -> dict[str, Any]:
        return await self.until(lambda frame: frame.get("event") == name)

    async def answer(self, id: str) -> dict[str, Any]:
        return await self.until(lambda frame: frame["type"] == "res" and frame["id"] == id)

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        self._ids += 1
        id = f"r{self._ids}"
        frame: dict[str, Any] = {"type": "req", "id": id, "method": method}
        await self.send(frame if params is None else {**frame, "params": params})
        return await self.answer(id)

    async def closed(self) -> tuple[int | None, str]:
        """The code and reason the server closed with; frames before that are kept."""
        while True:
            async with asyncio.timeout(60):
                message = await self.ws.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                self.unread.append(json.loads(message.data))
            elif message.type is aiohttp.WSMsgType.CLOSE:
                return message.data, message.extra or ""
            else:
                return self.ws.close_code, ""


def connect_params(
    *,
    token: str | None = TOKEN,
    client_id: str = "test",
    mode: str = "test",
    protocol: tuple[int, int] = (3, 3),
    **more: Any,
) -> dict[str, Any]:
    client = {"id": client_id, "version": "1.0.0", "platform": "linux", "mode": mode}
    params: dict[str, Any] = {"minProtocol": protocol[0], "maxProtocol": protocol[1], "client": client}
    if token is not None:
        params["auth"] = {"token": token}
    return {**params, **more}


@asynccontextmanager
async def running_gateway(
    state: Path,
    *,
    config: dict[str, Any] | None = None,
    clock: Any = None,
    handshake_timeout_s: float = 10.0,
    services: bool = True,
) -> AsyncIterator[Running]:
    clock = clock or SystemClock()
    path = state / "openclaw.json"
    if not path.exists():
        base: dict[str, Any] = {"gateway": {"mode": "local", "auth": {"mode": "token", "token": TOKEN}}}
        path.write_text(json.dumps(merged(base, config or {}), indent=2))
    environ: dict[str, str] = {}
    store = ConfigStore(str(path), clock, environ)
    store.load_or_create()
    gateway = await open_gateway(str(state), store, clock, environ)
    background = Services(gateway)
    if services:
        await background.start()
    server = await serve(gateway, "localhost", 0, handshake_timeout_s=handshake_timeout_s)
    try:
        async with aiohttp.ClientSession() as http:
            yield Running(gateway, server, http)
    finally:
        await server.stop()
        await background.stop()
        await close_gateway(gateway)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in more.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result
