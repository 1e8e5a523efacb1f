"""Server-sent events as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from openclaw.gateway.server import frames

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
"""A comment line this often keeps proxies from cutting a stream while a tool runs."""
DONE = b"data: [DONE]\n\n"


def sse_event(data: Any, name: str | None = None) -> bytes:
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + frames.encode(data) + b"\n\n"


class SseResponse:
    """A write waits until the caller reads. Who hangs up ends the request's task, never the run."""

    def __init__(self) -> None:
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self, request: web.BaseRequest) -> None:
        self._response.enable_chunked_encoding()
        writer = await self._response.prepare(request)
        assert writer is not None
        writer.send_headers()

    async def write(self, *events: bytes) -> None:
        await self._response.write(b"".join(events))

    async def close(self) -> web.StreamResponse:
        await self._response.write(DONE)
        await self._response.write_eof()
        return self._response

    def cut(self, request: web.BaseRequest) -> web.StreamResponse:
        """Breaks the connection, so that the caller cannot take what it has for the whole."""
        if request.transport is not None:
            request.transport.abort()
        return self._response
