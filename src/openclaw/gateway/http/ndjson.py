"""Frames as lines of a chunked HTTP response: the second kind of client, with the same bounds as the first."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
from aiohttp import web

from openclaw.gateway import frames
from openclaw.gateway.broadcast import Client, field_of

_ENDS = frozenset({"final", "error", "aborted"})
MAX_FOLLOWED = 64


class NullSink:
    """For a call whose only interest is its last answer."""

    buffered = 0

    @staticmethod
    def pack(frame: bytes) -> bytes:
        return frame

    def write(self, packed: bytes) -> None:
        pass

    def write_now(self, packed: bytes) -> None:
        pass

    async def room(self) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        pass

    async def closed(self, code: int, reason: str) -> None:
        pass


class NdjsonSink:
    """Lines wait here for the one task that writes them; several go out together."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self._headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store", **(headers or {})}
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    @property
    def buffered(self) -> int:
        return self._size

    @staticmethod
    def pack(frame: bytes) -> bytes:
        return frame + b"\n"

    def write(self, packed: bytes) -> None:
        self._lines.append(packed)
        self._size += len(packed)
        self._wake.set()

    def write_now(self, packed: bytes) -> None:
        self.write(packed)

    async def room(self) -> None:
        if not self._ended:
            self._room.clear()
            await self._room.wait()

    def close(self, code: int, reason: str) -> None:
        """Ends the stream after what is already queued."""
        self._ended = True
        self._wake.set()

    async def closed(self, code: int, reason: str) -> None:
        self.close(code, reason)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Writes lines until the stream is closed; the server cancels it when the caller hangs up."""
        response = web.StreamResponse(headers=self._headers)
        response.enable_chunked_encoding()
        writer = await response.prepare(request)
        assert writer is not None
        writer.send_headers()
        try:
            while self._lines or not self._ended:
                await self._wake.wait()
                self._wake.clear()
                lines = b"".join(self._lines)
                self._lines.clear()
                if lines:
                    await response.write(lines)
                self._size -= len(lines)
                self._room.set()
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            self._ended = True
            self._room.set()
        return response


class RunStream(Client):
    """Shows the answers of one call and the events of the runs it started, and ends with them."""

    def __init__(self, sink: NdjsonSink, **identity: Any) -> None:
        super().__init__(sink, **identity)
        self.event_filter = self._belongs
        self._followed: set[str] = set()
        self._ended: set[str] = set()
        self._finish_run: str | None = None
        self._answered = False

    def follow_named(self, raw: msgspec.Raw) -> None:
        """A call's idempotency key is the id of the run it starts; known before its first event."""
        try:
            params = frames.decode_any(bytes(raw)) if bytes(raw).strip() else None
        except frames.NotJson:
            return
        if isinstance(params, dict) and isinstance(run_id := params.get("idempotencyKey"), str):
            self.follow_run(run_id)

    def follow_run(self, run_id: str) -> None:
        if len(self._followed) < MAX_FOLLOWED:
            self._followed.add(run_id)

    def note_answer(self, payload: Any) -> None:
        if isinstance(run_id := field_of(payload, "runId"), str):
            self.follow_run(run_id)

    def finish_after(self, run_id: str) -> None:
        self.follow_run(run_id)
        self._finish_run = run_id
        self._finish_if_done()

    def answered(self, ok: bool) -> None:
        """The last answer is out. A failed call has no run to wait for."""
        self._answered = True
        if not ok:
            self._finish_run = None
        self._finish_if_done()

    def _belongs(self, event: str, payload: Any) -> bool:
        if event == "shutdown":
            return True
        run_id = field_of(payload, "runId")
        if not isinstance(run_id, str) or run_id not in self._followed:
            return False
        if event == "chat" and field_of(payload, "state") in _ENDS:
            self._ended.add(run_id)
            asyncio.get_running_loop().call_soon(self._finish_if_done)
        return True

    def _finish_if_done(self) -> None:
        if self._answered and (self._finish_run is None or self._finish_run in self._ended):
            self.sink.close(1000, "")
