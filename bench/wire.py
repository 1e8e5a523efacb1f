"""A small, cheap client of the Gateway's WebSocket protocol: most frames are told apart without being decoded."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import Any

import aiohttp
import msgspec

TOKEN = "bench-token-0123456789abcdef0123456789abcdef"
WAIT_S = 120

_END_STATES = (b'"state":"final"', b'"state":"error"', b'"state":"aborted"')


class Failed(Exception):
    """The Gateway answered a call with an error, or a run did not end well."""


class Wire:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._ends: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.bytes_received = 0
        self.frames = 0
        self.first_delta: bytes | None = None
        """The first frame with text of the assistant, and when it came; set to None to wait for another."""
        self.first_delta_ns = 0
        self.stamped_ms: list[float] | None = None
        """How long each delta took that names the time when the model wrote it. None: nobody asks."""

    async def connect(self, caps: tuple[str, ...]) -> None:
        await self._socket.receive()  # the challenge
        self._reader = asyncio.create_task(self._read())
        client = {"id": "test", "version": "1.0.0", "platform": "linux", "mode": "test"}
        params = {"minProtocol": 3, "maxProtocol": 3, "client": client, "caps": list(caps), "auth": {"token": TOKEN}}
        await self.call("connect", params)

    async def call(self, method: str, params: Any) -> Any:
        number = str(next(self._numbers))
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        frame = {"type": "req", "id": number, "method": method, "params": params}
        await self._socket.send_bytes(msgspec.json.encode(frame))
        return await asyncio.wait_for(answer, WAIT_S)

    async def send(self, text: str, session_key: str = "main") -> str:
        """Sends a message and returns its run id once the Gateway has acknowledged it."""
        run_id = str(uuid.uuid4())
        self._ends[run_id] = asyncio.get_running_loop().create_future()
        # A session that does not exist is begun by its name, not by its full key.
        name = session_key.removeprefix("agent:main:")
        await self.call("chat.send", {"sessionKey": name, "message": text, "idempotencyKey": run_id})
        return run_id

    async def end(self, run_id: str) -> dict[str, Any]:
        """The last chat event of a run; raises ``Failed`` unless it is an answer."""
        waiting = self._ends.setdefault(run_id, asyncio.get_running_loop().create_future())
        try:
            payload = await asyncio.wait_for(waiting, WAIT_S)
        finally:
            self._ends.pop(run_id, None)
        if payload["state"] != "final":
            raise Failed(str(payload.get("errorMessage") or payload["state"]))
        return payload

    async def chat(self, text: str, session_key: str = "main") -> dict[str, Any]:
        return await self.end(await self.send(text, session_key))

    async def close(self) -> None:
        await self._socket.close()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=5)

    async def _read(self) -> None:
        async for message in self._socket:
            data: bytes = message.data
            self.bytes_received += len(data)
            self.frames += 1
            if data.startswith(b'{"type":"res"'):
                self._answered(msgspec.json.decode(data))
            elif self.stamped_ms is not None and b'"delta":"' in data:
                stamp = data.partition(b'"delta":"')[2].partition(b'"')[0]
                if stamp.isdigit():
                    self.stamped_ms.append((time.monotonic_ns() - int(stamp)) / 1e6)
            elif self.first_delta is None and b'"delta"' in data:
                self.first_delta_ns = time.monotonic_ns()
                self.first_delta = data
            elif any(state in data for state in _END_STATES):
                self._ended(msgspec.json.decode(data))
        for future in [*self._answers.values(), *self._ends.values()]:
            if not future.done():
                future.set_exception(ConnectionError("the Gateway closed the connection"))
                future.exception()  # Seen: after a kill nobody may be left who waits for it.

    def _answered(self, frame: dict[str, Any]) -> None:
        future = self._answers.pop(frame["id"], None)
        if future is None or future.done():
            return
        if frame["ok"]:
            future.set_result(frame.get("payload"))
        else:
            future.set_exception(Failed(frame["error"]["message"]))

    def _ended(self, frame: dict[str, Any]) -> None:
        payload = frame.get("payload") or {}
        future = self._ends.get(payload.get("runId", ""))
        if frame.get("event") == "chat" and future is not None and not future.done():
            future.set_result(payload)
