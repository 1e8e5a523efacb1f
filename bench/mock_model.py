"""A model server that costs next to nothing: Anthropic Messages streams, put together beforehand, over bare asyncio.

The newest user message says how to answer: ``[[bench tokens=5000 latency=200]]``.

- ``tokens``: text deltas to send (1);
- ``latency``: milliseconds before the first byte;
- ``rate``: deltas per second (as fast as the socket takes them);
- ``stamp``: the first delta is the time it was written, in nanoseconds of the monotonic clock;
- ``hold``: the first request that carries this very directive is never answered, later ones are.

``python -m bench.mock_model`` prints its port and serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

DIRECTIVE = b"[[bench "
BATCH = 10
"""Deltas in one write, at full speed."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(kind: bytes, data: bytes) -> bytes:
    body = b"event: " + kind + b"\ndata: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(body), body)


_START = _event(
    b"message_start",
    b'{"type":"message_start","message":{"id":"msg_bench","type":"message","role":"assistant","model":"mock-1",'
    b'"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":100,"output_tokens":1}}}',
) + _event(
    b"content_block_start",
    b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
)
_END = (
    _event(b"content_block_stop", b'{"type":"content_block_stop","index":0}')
    + _event(
        b"message_delta",
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":9}}',
    )
    + _event(b"message_stop", b'{"type":"message_stop"}')
    + b"0\r\n\r\n"
)


def _delta(text: bytes) -> bytes:
    start = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
    return _event(b"content_block_delta", start + text + b'"}}')


_TOKEN = _delta(b"token ")


class Model(asyncio.Protocol):
    held: set[bytes] = set()

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answer: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        if self._answer is not None:
            self._answer.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            end = head_end + 4 + _content_length(bytes(self._buffer[:head_end]).lower())
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[head_end + 4 : end])
            del self._buffer[:end]
            self._answer = asyncio.create_task(self._reply(body))

    async def _reply(self, body: bytes) -> None:
        directive, wishes = _wishes(body)
        if "hold" in wishes and directive not in self.held:
            self.held.add(directive)
            return
        if wishes.get("latency"):
            await asyncio.sleep(wishes["latency"] / 1000)
        tokens = wishes.get("tokens", 1)
        first = _delta(b"%d" % time.monotonic_ns()) if "stamp" in wishes else _TOKEN
        if tokens == 1:
            self._transport.write(_HEAD + _START + first + _END)
            return
        self._transport.write(_HEAD + _START + first)
        await self._stream(tokens - 1, wishes.get("rate", 0))
        self._transport.write(_END)

    async def _stream(self, tokens: int, rate: int) -> None:
        began, sent = time.monotonic(), 0
        while sent < tokens:
            count = min(BATCH if not rate else max(1, rate // 100), tokens - sent)
            self._transport.write(_TOKEN * count)
            sent += count
            await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()) if rate else 0)
            await self._room.wait()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def _wishes(body: bytes) -> tuple[bytes, dict[str, int]]:
    start = body.rfind(DIRECTIVE)
    if start < 0:
        return b"", {}
    directive = body[start + len(DIRECTIVE) : body.index(b"]]", start)]
    pairs = [word.partition("=") for word in directive.decode().split()]
    return directive, {name: int(value or 1) for name, _, value in pairs}


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main())
    else:
        uvloop.run(_main())
