"""A node for tests: the reference node in the test's own event loop, or a bare connection that acts as one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp

from openclaw.clock import SystemClock
from openclaw.node import host as node_host
from openclaw.node.host import GatewayAddress, NodeCommands, NodeHost, NodeIdentity
from openclaw.tools.exec.settings import ExecSettings
from tests.support.gateway import TOKEN, GatewayUnderTest

LIMIT_S = 60
EVERYTHING = {"version": 1, "defaults": {"security": "full", "ask": "off"}, "agents": {}}
"""The rules of a node that runs every command."""


class NodeUnderTest:
    """``folder`` is the node's home and state folder. Without ``rules`` it is as strict as a new node."""

    def __init__(self, gateway: GatewayUnderTest, folder: Path, *, rules: Any = EVERYTHING, **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if rules is not None:
            (folder / "exec-approvals.json").write_text(json.dumps(rules))
        clock = SystemClock()
        address = {"url": gateway.url.replace("http", "ws"), "token": TOKEN, **more}
        self.name = str(address.pop("name", "attic"))
        self.identity = NodeIdentity(str(folder), clock)
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        commands = NodeCommands(str(folder), ExecSettings(), clock, environ)
        self.host = NodeHost(
            GatewayAddress(**address), self.identity, commands, clock, display_name=self.name, platform="linux"
        )

    @property
    def id(self) -> str:
        return self.identity.id

    async def connected(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.host.connected.wait()

    async def cut_off(self) -> None:
        """Ends the connection under the node's feet; it connects again by itself."""
        assert self.host._socket is not None  # pyright: ignore[reportPrivateUsage]
        await self.host._socket.close()  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def serving(node: NodeUnderTest, *, connects: bool = True) -> AsyncGenerator[NodeUnderTest]:
    """Runs the node until the end of the ``with``."""
    with patch.multiple(node_host, FIRST_PAUSE_S=0.05, PAIRING_PAUSE_S=0.05, LONGEST_PAUSE_S=1.0):
        task = asyncio.create_task(node.host.run())
        try:
            if connects:
                await node.connected()
            yield node
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits for a state."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = holds()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(0.02)


class BareNode:
    """A connection with the role ``node``, whose frames a test writes itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, identity: NodeIdentity) -> None:
        self.socket = socket
        self.id = identity.id
        self.hello: dict[str, Any] = {}
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def read(self) -> None:
        async for message in self.socket:
            frame = json.loads(message.data)
            if frame["type"] == "res":
                self._answers[frame["id"]].set_result(frame)
            elif frame["event"].startswith("node."):
                self.events.put_nowait(frame)

    async def call(self, method: str, params: Any) -> dict[str, Any]:
        id = str(len(self._answers) + 1)
        self._answers[id] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"type": "req", "id": id, "method": method, "params": params})
        return await asyncio.wait_for(self._answers[id], LIMIT_S)

    async def asked(self) -> dict[str, Any]:
        """The next request or cancellation that the Gateway sends."""
        return (await asyncio.wait_for(self.events.get(), LIMIT_S))["payload"]

    async def answer(self, request: dict[str, Any], **result: Any) -> dict[str, Any]:
        return await self.call("node.invoke.result", {"id": request["id"], "nodeId": self.id, **result})

    async def tell(self, event: str, **payload: Any) -> dict[str, Any]:
        return await self.call("node.event", {"event": event, "payloadJSON": json.dumps(payload)})


@asynccontextmanager
async def bare_node(
    gateway: GatewayUnderTest, folder: Path, *, commands: tuple[str, ...] = ("system.run",), **client: Any
) -> AsyncGenerator[BareNode]:
    identity = NodeIdentity(str(folder), SystemClock())
    async with aiohttp.ClientSession() as http, http.ws_connect(gateway.url.replace("http", "ws")) as socket:
        nonce = (await socket.receive_json())["payload"]["nonce"]
        node = BareNode(socket, identity)
        reading = asyncio.create_task(node.read())
        info = {"id": "node-host", "version": "1", "platform": "linux", "mode": "node", **client}
        connect = {"minProtocol": 3, "maxProtocol": 3, "client": info, "role": "node", "scopes": []}
        connect |= {"caps": ["system"], "commands": list(commands), "auth": {"token": TOKEN}}
        answer = await node.call("connect", {**connect, "device": identity.proof(nonce=nonce, token=TOKEN)})
        assert answer["ok"], answer
        node.hello = answer["payload"]
        try:
            yield node
        finally:
            await socket.close()
            reading.cancel()
