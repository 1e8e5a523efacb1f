"""The listening server: one port, WebSocket on any path and HTTP for the rest.

A caller that has not shown who it is gets little time and gives way to newer ones (``Sockets``). So a flood of idle or
slow sockets costs a bounded part of the Gateway, and never locks out its owner: a new caller replaces a stranger, and
authenticated callers have a limit of their own.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_network
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from openclaw.config.schema import Config
from openclaw.gateway.auth.authorise import start_problem
from openclaw.gateway.auth.connect import ClientGate
from openclaw.gateway.auth.origin import PeerAddress, peer_of, site_refusal
from openclaw.gateway.http.common import CallerCheck, HttpHandler, RoutePath, not_found
from openclaw.gateway.http.routes import http_routes
from openclaw.gateway.http.webhooks import ChannelWebhooks
from openclaw.gateway.server.connection import CLOSE_GRACE_S, HANDSHAKE_TIMEOUT_S, Connection
from openclaw.net import is_loopback, plain_ip
from openclaw.storage.disk_errors import kind_of, refusal_text

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.tls import TlsListener


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    """Leaves out the trace that the library logs for every request which is not HTTP. Strangers send many."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


log = logging.getLogger("openclaw.gateway")
http_log = logging.getLogger("openclaw.gateway.http")
http_log.addFilter(_is_no_bad_request)
LOOPBACK = "localhost"
"""Both loopback addresses, 127.0.0.1 and ::1."""
EVERYWHERE = "0.0.0.0"
_TAILNET = ipaddress.ip_network("100.64.0.0/10")
_SIOCGIFADDR = 0x8915
STOP_LIMIT_S = 5.0
CALLS_LIMIT_S = 1.0
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
"""The time until the next complete head. It includes writing the answer before."""
BODIES_BYTES = 32 * 1024 * 1024
FREE_BYTES = 64 * 1024
"""A body up to this size finds room in any case."""
_JSON_PATHS = ("/v1/", "/tools/", "/__openclaw__/")


class StartRefused(Exception):
    """Raised when it would not be safe to listen. The text says what to change."""


class Server:
    """Listens for a Gateway and serves WebSockets and the Gateway's HTTP routes."""

    def __init__(self, gateway: Gateway, *, handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S) -> None:
        self.gateway = gateway
        self.routes = http_routes(gateway)
        self.port = 0
        self._callers = CallerCheck(
            gateway.runtime.config, gateway.auth_limiter, gateway.sockets, gateway.secret, gateway.is_owner_process
        )
        self._gate = ClientGate(
            gateway.runtime.config,
            gateway.runtime.clock,
            gateway.auth_limiter,
            gateway.secret,
            gateway.devices,
            gateway.nodes.connected,
            gateway.broadcaster,
        )
        self._webhooks = ChannelWebhooks(
            gateway.channel_services.channels, gateway.auth_limiter, gateway.sockets.bodies
        )
        self._handshake_timeout_s = handshake_timeout_s
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._web: web.Server | None = None
        self._stopping = False

    async def start(self, host: str, port: int) -> int:
        """Begins to listen and returns the port. It listens on ``host`` and nowhere else.

        ``LOOPBACK`` is 127.0.0.1, and ``::1`` if the machine has it. Raises ``StartRefused`` when the secret is missing
        or too weak for where it would listen.
        """
        secret = self.gateway.secret()
        if problem := start_problem(secret, exposed=not is_loopback(host)):
            raise StartRefused(problem)
        self._web = GuardedServer(self._handle, self.gateway.sockets)
        listener = await self._listen("127.0.0.1" if host == LOOPBACK else str(ipaddress.ip_address(host)), port)
        self.port = self.gateway.port = listener.sockets[0].getsockname()[1]
        if host == LOOPBACK:
            try:
                await self._listen("::1", self.port)
            except OSError as error:
                log.debug("not listening on ::1: %s", error)
        log.info("listening on %s", self.url(host))
        if self.gateway.tls is not None:
            log.info("the certificate's fingerprint is sha256 %s", self.gateway.tls.fingerprint)
        return self.port

    async def _listen(self, address: str, port: int) -> asyncio.Server | TlsListener:
        assert self._web is not None
        if self.gateway.tls is not None:
            listener = self.gateway.tls.listen(address, port, self._web)
        else:
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(self._web, address, port, reuse_address=True)
        self._listeners.append(listener)
        return listener

    def url(self, host: str = "") -> str:
        scheme, name = "https" if self.gateway.tls else "http", reachable_host(host)
        return f"{scheme}://{f'[{name}]' if ':' in name else name}:{self.port}"

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        settings = self.gateway.runtime.config.current.gateway
        peer = peer_of(request.remote or "", request.headers, settings.trusted_proxies)
        self.gateway.sockets.asks(request.protocol, peer.ip)
        try:
            if (link := await self.gateway.cluster.open_link(request, self.gateway.sockets)) is not None:
                return link
            if request.headers.get("upgrade", "").lower().strip() == "websocket":
                return await self._handle_websocket(request, peer)
            return await self._handle_http(request, peer)
        except ConnectionError:
            return web.Response(status=400)  # The caller has gone. The library would log an error with its trace.
        finally:
            self.gateway.sockets.answered(request.protocol)

    async def _handle_http(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        settings = self.gateway.runtime.config.current.gateway
        foreign_site = site_refusal(peer, settings.control_ui.allowed_origins)
        if self._webhooks.is_at(request.path):
            if foreign_site:
                return web.Response(status=403, text=foreign_site)
            return await self._answer(self._webhooks.serve, request, peer)
        allowed: list[str] = []
        match: RoutePath | None = None
        for verb, path, handler, refuse in self.routes:
            if not _is_at(path, request.path, self.gateway.runtime.config.current):
                continue
            match = path if match is None else match
            if path != match:
                continue  # The first path that fits decides, even if it does not accept the verb.
            if verb not in (request.method, "*"):
                allowed.append(verb)
                continue
            if refuse not in ("open", "own"):
                if refused := self._callers.refusal(request, peer):
                    return refuse(refused)
            elif foreign_site:
                return web.Response(status=403, text=foreign_site)
            return await self._answer(handler, request, peer)
        if foreign_site:
            return web.Response(status=403, text=foreign_site)
        if allowed:
            return web.Response(status=405, text="Method Not Allowed", headers={"Allow": ", ".join(sorted(allowed))})
        return not_found(request.path)

    async def _answer(self, handler: HttpHandler, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        try:
            return await handler(request, peer)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:
            if request.writer.output_size:
                raise  # The answer has begun, so it can only be broken off.
            log.exception("%s %s failed", request.method, request.path[:200])
            return failure_response(request.path, error)

    async def _handle_websocket(self, request: web.BaseRequest, peer: PeerAddress) -> web.StreamResponse:
        if self._stopping:
            text = "Service Unavailable: the Gateway is stopping"
            return web.Response(status=503, text=text, headers={"Retry-After": "1"})
        return await Connection(self.gateway, self._gate, peer, self._handshake_timeout_s).serve(request)

    async def stop(self, reason: str = "gateway stopping", restart_expected_ms: int | None = None) -> None:
        """Notify every client and close its connection, after some seconds by force."""
        self._stopping = True
        self.gateway.leaving.set()
        for listener in self._listeners:
            listener.close()
        payload = {"reason": reason, "restartExpectedMs": restart_expected_ms}
        self.gateway.broadcaster.publish("shutdown", payload)
        clients = list(self.gateway.broadcaster.clients.values())
        for client in clients:
            client.closing = True
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await asyncio.gather(*(client.sink.closed(1012, "service restart") for client in clients))
        except TimeoutError:
            log.debug("some clients did not close in %g s and are cut off", STOP_LIMIT_S)
        if self.gateway.calls:
            # Calls at work get a moment. Most of the others wait for a run, which the next start resumes.
            await asyncio.wait(set(self.gateway.calls), timeout=CALLS_LIMIT_S)
        for call in list(self.gateway.calls):
            call.cancel()
        # The server would wait for these connections as for any other, and their nodes do not close them.
        await self.gateway.cluster.close_accepted(CALLS_LIMIT_S)
        if self._web is not None:
            self._web.pre_shutdown()
            await self._web.shutdown(CLOSE_GRACE_S / 5)
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()


async def serve(gateway: Gateway, host: str, port: int, *, handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Server:
    """Starts a listening server for this Gateway."""
    server = Server(gateway, handshake_timeout_s=handshake_timeout_s)
    await server.start(host, port)
    return server


def _is_at(path: RoutePath, request_path: str, config: Config) -> bool:
    if isinstance(path, str):
        return path == request_path or (path.endswith("*") and request_path.startswith(path[:-1]))
    base = path(config)
    return base is not None and (request_path == base or request_path.startswith(f"{base}/"))


def failure_response(path: str, error: Exception) -> web.Response:
    """The answer to a request whose handler failed: 507 or 503 when the disk refuses writes, 500 otherwise."""
    status, message, code = 500, "internal error (see logs)", "internal_error"
    if isinstance(error, OSError) and (refusal := refusal_text(error)) is not None:
        code = f"disk_{kind_of(error)}"
        status = 507 if code == "disk_full" else 503
        message = refusal
    if path.startswith(_JSON_PATHS):
        return web.json_response({"error": {"message": message, "type": "api_error", "code": code}}, status=status)
    return web.Response(status=status, text="Internal Server Error" if status == 500 else message)


# Addresses


def bind_host(bind: str, custom: str | None = None) -> str:
    """The address for ``gateway.bind``. Loopback when this machine has no address of a tailnet.

    ``custom`` is the address itself, or that of a name. Raises ``StartRefused`` when there is none.
    """
    match bind:
        case "lan":
            return EVERYWHERE
        case "tailnet":
            return next((ip for ip in own_addresses() if ipaddress.ip_address(ip) in _TAILNET), LOOPBACK)
        case "custom":
            return _address_of((custom or "").strip())
        case _:
            return LOOPBACK


def _address_of(host: str) -> str:
    if not host:
        raise StartRefused('gateway.bind is "custom"; set gateway.customBindHost to an address of this machine')
    if ip := plain_ip(host):
        return ip
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"gateway.customBindHost {host!r} is neither an address nor a known name: {error}") from None
    return plain_ip(str(addresses[0][4][0]))


def reachable_host(host: str) -> str:
    """The address under which programs of this machine reach a Gateway that listens on ``host``."""
    everywhere = {LOOPBACK: "127.0.0.1", EVERYWHERE: "127.0.0.1", "": "127.0.0.1", "::": "::1"}
    return everywhere.get(host, host)


def own_address(host: str) -> str:
    """The address under which programs of other machines reach a Gateway that listens on ``host``."""
    if host not in (EVERYWHERE, "", "::"):
        return host
    return next((ip for ip in own_addresses() if not is_loopback(ip)), host)


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


# Sockets


class GuardedServer(web.Server):
    """The HTTP server of the library, which tells ``Sockets`` of every connection."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], sockets: Sockets) -> None:
        # Bodies are not unpacked: nobody sends packed ones, and a small one may become gigabytes.
        super().__init__(
            handler,
            access_log=None,
            logger=http_log,
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
        """Mark the caller as authenticated. Returns False if the table is full."""
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
            more = max(0, size - FREE_BYTES) - taken
            if more > self.free:
                return False
            taken += more
            self.free -= more
            return True

        try:
            yield take
        finally:
            self.free += taken
