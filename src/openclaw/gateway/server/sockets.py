"""Open sockets. A caller that has not shown who it is gets little time and gives way to newer ones.

So a flood of idle or slow sockets costs a bounded part of the Gateway, and never locks out its owner: who comes next
takes the place of a stranger, and those who are known have places of their own.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_network
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from openclaw.net import is_loopback, plain_ip

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

MAX_KNOWN = 1000
MAX_STRANGERS = 512
MAX_STRANGERS_OF_ADDRESS = 128
"""On loopback every caller has the same address, so there only the limit for all of them counts."""
HEAD_S = 10.0
"""The time for the first complete head of a request."""
ANSWER_S = 30.0
"""The time in which a stranger must have read its answer, or shown who it is."""
LINGER_S = 3.0
"""How long a body is read and thrown away after its request was refused, so that the sender sees the answer."""
IDLE_S = 15.0
KNOWN_IDLE_S = 300.0
"""The time until the next complete head. The answer before it is written within it, too."""


BODIES_BYTES = 32 * 1024 * 1024
FREE_BYTES = 64 * 1024
"""A body up to this size finds room in any case."""


class Socket:
    """One connection, from its acceptance to its end."""

    def __init__(self, transport: asyncio.Transport, address: str) -> None:
        self.transport = transport
        self.address = address
        self.known = False
        self.timer: asyncio.TimerHandle | None = None


@lru_cache(maxsize=64)
def network_of(address: str) -> str:
    """What one caller has: an IPv4 address, or a /64 of IPv6."""
    ip = plain_ip(address)
    return ip if ":" not in ip or is_loopback(ip) else str(ip_network((ip, 64), strict=False))


class StrangersBodies:
    """The room for long bodies of callers who are known only once their body is read, for all of them together.

    What platforms usually send is short, and always finds room.
    """

    def __init__(self) -> None:
        self.free = BODIES_BYTES

    @contextmanager
    def room(self) -> Generator[Callable[[int], bool]]:
        """Gives a function that takes room for so many bytes, and tells whether there was any, until the end."""
        taken = 0

        def take(size: int) -> bool:
            nonlocal taken
            wanted = max(0, size - FREE_BYTES) - taken
            if wanted > self.free:
                return False
            taken += wanted
            self.free -= wanted
            return True

        try:
            yield take
        finally:
            self.free += taken


class Sockets:
    """All connections of a server. A process with few file descriptors gets fewer of them."""

    def __init__(self) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.max_known = max(16, min(MAX_KNOWN, descriptors // 2))
        self.max_strangers = max(16, min(MAX_STRANGERS, descriptors // 4))
        self.known_count = 0
        self._open: dict[RequestHandler, Socket] = {}
        self._strangers: dict[Socket, None] = {}
        """In the order in which they came."""
        self.bodies = StrangersBodies()
        self.dropped = 0

    @property
    def stranger_count(self) -> int:
        return len(self._strangers)

    def came(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        socket = Socket(transport, network_of(str(peer[0])) if isinstance(peer, tuple) and peer else "")
        self._open[handler] = socket
        self._strangers[socket] = None
        self._allow(socket, HEAD_S)
        self._make_room(socket.address)

    def left(self, handler: RequestHandler) -> None:
        socket = self._open.pop(handler, None)
        if socket is not None:
            self._strangers.pop(socket, None)
            self.known_count -= socket.known
            self._allow(socket, None)

    def asks(self, handler: RequestHandler, address: str) -> None:
        """The head of a request is complete. ``address`` is the caller's own, also behind a proxy."""
        if socket := self._open.get(handler):
            self._allow(socket, None if socket.known else ANSWER_S)
            network = network_of(address)
            if socket.address != network and not socket.known:
                socket.address = network
                self._make_room(network)

    def answered(self, handler: RequestHandler) -> None:
        if socket := self._open.get(handler):
            self._allow(socket, KNOWN_IDLE_S if socket.known else IDLE_S)

    def recognise(self, handler: RequestHandler | None) -> bool:
        """The caller has shown who it is. False if there is no room for one more."""
        socket = None if handler is None else self._open.get(handler)
        if socket is None or socket.known:
            return True
        if self.known_count >= self.max_known:
            return False
        socket.known = True
        self.known_count += 1
        self._strangers.pop(socket, None)
        self._allow(socket, None)
        return True

    def _make_room(self, address: str) -> None:
        """Drops the oldest stranger of this address, or of all, when there are too many.

        An honest caller shows who it is within milliseconds, so it is never the oldest.
        """
        if not is_loopback(address):
            theirs = [socket for socket in self._strangers if socket.address == address]
            if len(theirs) > MAX_STRANGERS_OF_ADDRESS:
                self._drop(theirs[0])
        if len(self._strangers) > self.max_strangers:
            self._drop(next(iter(self._strangers)))

    def _drop(self, socket: Socket) -> None:
        self._strangers.pop(socket, None)
        self.dropped += 1
        self._allow(socket, None)
        socket.transport.abort()

    def _allow(self, socket: Socket, seconds: float | None) -> None:
        if socket.timer is not None:
            socket.timer.cancel()
            socket.timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            socket.timer = loop.call_later(seconds, self._time_is_up, socket)

    def _time_is_up(self, socket: Socket) -> None:
        self._strangers.pop(socket, None)
        socket.transport.abort()


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    """Leaves out the trace that the library logs for every request which is not HTTP. Strangers send many."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger("openclaw.gateway.http")
log.addFilter(_is_no_bad_request)


class GuardedServer(web.Server):
    """The HTTP server of the library, which tells ``Sockets`` of every connection."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], sockets: Sockets) -> None:
        # Bodies are not unpacked: nobody sends packed ones, and a small one may become gigabytes.
        super().__init__(
            handler,
            access_log=None,
            logger=log,
            handler_cancellation=True,
            auto_decompress=False,
            lingering_time=LINGER_S,
            keepalive_timeout=KNOWN_IDLE_S,
        )
        self._sockets = sockets

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._sockets.came(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._sockets.left(handler)
