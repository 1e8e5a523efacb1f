"""An answer as nearly every model server streams it: a plain 200, events, in chunks.

Such an answer is read here as it comes off the connection: aiohttp's reader spends a dozen calls on each chunk, and a
chunk is a few words (a short call took 228 µs with it and takes 184 without, a long answer a sixth less). An answer of
any other form is given to aiohttp, from its first byte.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler

MOST_BUFFERED = 512 * 1024
"""Bytes nobody has read yet; with more of them the server is not read from."""
LONGEST_FRAMING = 8 * 1024
"""Of what stands between two chunks, or after the last."""
PLAIN_HEADERS = {"content-type": "text/event-stream"}
_TYPE = b"\r\ncontent-type: text/event-stream"
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
_KEPT_ALIVE = b"\r\nconnection: keep-alive\r\n"
_OTHERWISE = re.compile(rb"\r\n(?:[ \t]|content-encoding:|content-length:|upgrade:)")
_chunk_begins = re.compile(rb"\r\n([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n").match


class Body(Protocol):
    """What is left to read of an answer; aiohttp's own reader is one too."""

    async def readany(self) -> bytes:
        """What has come; empty at the end."""
        ...

    def at_eof(self) -> bool: ...


class StreamedAnswer:
    """Stands in for aiohttp's reader on a connection until the answer has ended or turns out to be of another form."""

    def __init__(self, protocol: ResponseHandler, quiet: QuietWatch) -> None:
        self._protocol = protocol
        self._quiet = quiet
        self.plain: asyncio.Future[bool] = quiet.loop.create_future()
        """Done when the head has come. False: aiohttp reads the answer."""
        self._begun = False
        self._ended = False
        self._left = 0
        """Bytes to come of the chunk that has begun."""
        self._framing = b""
        """Between two chunks: what has come of it."""
        self._parts: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        protocol.read_timeout = None  # The watch sees to it.
        protocol.set_parser(self, None)
        quiet.begin(self)

    async def readany(self) -> bytes:
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._waiter = self._quiet.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        parts, self._parts, self._buffered = self._parts, [], 0
        if self._paused:
            self._resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def at_eof(self) -> bool:
        return self._ended and not self._parts

    def _resume(self) -> None:
        transport = self._protocol.transport
        if transport is not None and not transport.is_closing():
            self._paused = False
            transport.resume_reading()
            self._quiet.begin(self)

    # Called by the connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self._begun:
            self._quiet.begin(self)
            self._take(data)
            self._wake()
        else:
            self._begin(data)
        return False, b""

    def feed_eof(self) -> None:
        """The connection is gone."""
        if not self._ended:
            self.fail(aiohttp.ClientPayloadError("the answer is not complete"))

    def fail(self, error: Exception) -> None:
        self._quiet.end(self)
        self._error = self._error or error
        if not self.plain.done():
            self.plain.set_exception(error)
            self.plain.exception()  # Nobody may be waiting any more.
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _begin(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        self._begun = end >= 0 and is_plain_head(data[: end + 2])
        if not self.plain.done():
            self.plain.set_result(self._begun)
        if self._begun:
            self._quiet.begin(self)
            self._take(data, end + 2)
        else:
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        """To aiohttp; also a head that comes in pieces, which is rare."""
        self._quiet.end(self)
        protocol = self._protocol
        protocol.set_parser(None, None)
        protocol.set_response_params(read_until_eof=True, read_timeout=self._quiet.limit_s)
        protocol.data_received(data)

    def _take(self, data: bytes, at: int = 0) -> None:
        """Takes the chunks out of the bytes. The line break that ends one counts as the beginning of the next."""
        if self._framing:
            data, self._framing = self._framing + data, b""
        size, stop = len(data), at + self._left
        if self._left:
            self._parts.append(data[:stop])
        while stop < size and (begins := _chunk_begins(data, stop)) is not None:
            at = begins.end()
            stop = at + int(begins[1], 16)
            if stop == at:
                self._left = 0
                self._end(data, at)
                return
            if at < size:
                self._parts.append(data[at:stop])
        self._left = max(0, stop - size)
        self._buffered += size
        if self._buffered > MOST_BUFFERED and not self._paused:
            self._pause()
        self._framing = data[stop:]
        if self._framing and not _may_begin_chunk(self._framing):
            self._give_up()

    def _pause(self) -> None:
        transport = self._protocol.transport
        if transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()
            self._quiet.end(self)  # The server is not silent while it is not listened to.

    def _end(self, data: bytes, at: int) -> None:
        """After the last chunk fields may follow, which nobody needs, and a blank line."""
        ended = data.find(b"\r\n\r\n", at - 2)
        if ended < 0:
            self._framing = b"\r\n0" + data[at - 2 :]
            if len(self._framing) > LONGEST_FRAMING:
                self._give_up()
            return
        self._ended = True
        self._quiet.end(self)
        if ended + 4 != len(data):
            self._protocol.force_close()  # More than was asked for.
        self._protocol.set_parser(None, None)

    def _give_up(self) -> None:
        self.fail(aiohttp.ClientPayloadError("the answer's chunks cannot be told apart"))
        self._protocol.force_close()
        if self._protocol.transport is not None:
            self._protocol.transport.close()


def is_plain_head(head: bytes) -> bool:
    """Whether this head, up to and with its last line break, announces events in chunks and nothing out of the way."""
    head = head.lower()
    return (
        head.startswith((b"http/1.1 200 ", b"http/1.1 200\r"))
        and _TYPE in head
        and _CHUNKED in head
        and head.count(b"\r\ntransfer-encoding:") == 1
        and (b"\r\nconnection:" not in head or _KEPT_ALIVE in head)
        and _OTHERWISE.search(head) is None
    )


def _may_begin_chunk(framing: bytes) -> bool:
    return b"\r\n".startswith(framing[:2]) and b"\n" not in framing[2:] and len(framing) <= LONGEST_FRAMING


class QuietWatch:
    """Ends the answers whose server has been silent for too long: one timer for all of an endpoint's answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self.loop = loop
        self.limit_s = limit_s
        self._heard: dict[StreamedAnswer, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, answer: StreamedAnswer) -> None:
        """From now on, or from now on again."""
        self._heard[answer] = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.limit_s, self._look)

    def end(self, answer: StreamedAnswer) -> None:
        self._heard.pop(answer, None)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        for answer, heard in list(self._heard.items()):
            if heard + self.limit_s <= now:
                answer.fail(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))
        if self._heard:
            due = min(self._heard.values()) + self.limit_s
            self._timer = self.loop.call_at(due, self._look)
