"""Which addresses the browser may reach, and the proxy that holds it to them.

The browser gets no network of its own. It is started with a SOCKS5 proxy of ours for everything, loopback included, and
with a rule that no name resolves inside it. So every connection of a page comes here by its name: of navigations,
redirects, frames, sub-requests, WebSockets, workers and prefetches. The proxy resolves the name, checks every address
that was found, and connects to one of those itself. A name that resolves differently the second time gains nothing,
because nobody resolves it a second time. Interception inside the browser (``Fetch``) would leave gaps: it does not see
WebSockets, sees service workers only when attached to each, and checks a name that the browser then resolves again.
SOCKS rather than an HTTP proxy, because a connection is bound to one host and port: no request can be slipped in for
another host, and nothing has to be parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from yarl import URL

from openclaw.config.schema.system import BrowserSsrfPolicy
from openclaw.public_fetch import FetchRefused, PublicResolver, host_allowed, is_public

MOST_CONNECTIONS = 512
CONNECT_S = 15.0
HANDSHAKE_S = 15.0
LAST_BYTES_S = 30.0
"""How long the browser may go on sending after the far side has ended."""
MOST_REFUSALS = 100
BLANK = "about:blank"
_CHUNK = 64 * 1024
_OK, _NOT_ALLOWED, _UNREACHABLE, _BAD_COMMAND, _BAD_ADDRESS = 0, 2, 4, 7, 8


class AddressRefused(Exception):
    """An address is not opened. The text says why."""


class NetworkRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for hosts, as the owner set them."""

    private: bool = False
    """Whether private networks are open."""
    exempt: tuple[str, ...] = ()
    """Hosts that may be reached wherever they are."""
    only: tuple[str, ...] | None = None
    """The only hosts that may be reached. None: any."""

    @classmethod
    def of(cls, policy: BrowserSsrfPolicy) -> NetworkRules:
        return cls(
            private=policy.dangerously_allow_private_network,
            exempt=tuple(policy.allowed_hostnames),
            only=tuple(policy.hostname_allowlist) or None,
        )

    def may_be_private(self, host: str) -> bool:
        return self.private or host_allowed(host, self.exempt)


class ConnectionRefused(NamedTuple):
    """A connection that was not made."""

    host: str
    port: int
    why: str


def checked_address(address: str, rules: NetworkRules) -> str:
    """The address as the browser gets it, if it may be opened by name. Raises ``AddressRefused``.

    Where the name leads is not known yet: the proxy checks that.
    """
    text = address.strip()
    if text == BLANK:
        return text
    try:
        url = URL(text)
        host = (url.raw_host or "").rstrip(".")
    except (ValueError, UnicodeError):
        raise AddressRefused("it is not a valid address") from None
    if url.scheme not in ("http", "https") or not host:
        raise AddressRefused("only http and https addresses are opened")
    check_host(host, rules)
    return str(url)


def check_host(host: str, rules: NetworkRules) -> None:
    """Makes the checks that need no resolver. Raises ``AddressRefused``."""
    if rules.only is not None and not host_allowed(host, (*rules.only, *rules.exempt)):
        raise AddressRefused(f"{host} is not in browser.ssrfPolicy.hostnameAllowlist")
    if rules.may_be_private(host):
        return
    if host == "localhost" or host.endswith(".localhost"):
        raise _private(host)
    if _is_numeric(host) and not is_public(host.strip("[]")):
        raise _private(host)


def _is_numeric(host: str) -> bool:
    if ":" in host:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Browsers also read 127.1 and 0x7f000001 as addresses.
        return host.rpartition(".")[2][:1].isdigit()
    return True


def _private(host: str) -> AddressRefused:
    return AddressRefused(
        f"{host} is not a public address; the owner can open it with browser.ssrfPolicy.allowedHostnames"
    )


class Resolver(Protocol):
    """Finds the addresses that a connection to a host may use. Raises ``AddressRefused`` or ``OSError``."""

    async def __call__(self, host: str, port: int, rules: NetworkRules) -> Sequence[str]: ...


def checked_resolver(make: Callable[[], AbstractResolver] = aiohttp.ThreadedResolver) -> Resolver:
    """A resolver that refuses a host with a single address that is not public, unless the rules exempt it."""

    async def resolve(host: str, port: int, rules: NetworkRules) -> Sequence[str]:
        check_host(host, rules)
        private = rules.may_be_private(host)
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        resolver = PublicResolver(make(), (lambda _: True) if private else is_public)
        try:
            answers = await resolver.resolve(host, port, socket.AF_UNSPEC)
        except FetchRefused:
            raise _private(host) from None
        finally:
            await resolver.close()
        return [result["host"] for result in answers]

    return resolve


class GuardProxy:
    """A SOCKS5 proxy on loopback. It connects where the rules of this moment allow, and notes what it refused."""

    def __init__(self, rules: Callable[[], NetworkRules], resolve: Resolver) -> None:
        self._rules = rules
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[str, Sequence[str]]] = {}
        """The connections, with the host that each leads to and its addresses."""
        self.port = 0
        self.refused: deque[ConnectionRefused] = deque(maxlen=MOST_REFUSALS)
        self.refusals = 0
        """How many connections were refused so far. It tells which of ``refused`` are new."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._server = None

    def recheck(self) -> None:
        """Ends the connections that the rules no longer allow. The browser would go on using them."""
        rules = self._rules()
        for task, (host, addresses) in list(self._open.items()):
            try:
                check_host(host, rules)
                if not rules.may_be_private(host) and not all(map(is_public, addresses)):
                    raise _private(host)
            except AddressRefused:
                task.cancel()

    def refused_since(self, count: int) -> list[ConnectionRefused]:
        fresh = min(self.refusals - count, len(self.refused))
        return list(self.refused)[len(self.refused) - fresh :]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._open) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open[task] = "", ()
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # One side is gone. The browser tells its page.
        except asyncio.CancelledError:
            pass  # The proxy stops.
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            version, methods = await reader.readexactly(2)
            if version != 5 or 0 not in await reader.readexactly(methods):
                return
            writer.write(b"\x05\x00")
            _, command, _, kind = await reader.readexactly(4)
            host = await _host(reader, kind)
            (port,) = struct.unpack("!H", await reader.readexactly(2))
        if command != 1 or not host:
            writer.write(_reply(_BAD_COMMAND if host else _BAD_ADDRESS))
            return
        try:
            addresses = await self._resolve(host.rstrip("."), port, self._rules())
        except AddressRefused as refused:
            self.refusals += 1
            self.refused.append(ConnectionRefused(host, port, str(refused)))
            writer.write(_reply(_NOT_ALLOWED))
            return
        except OSError:
            writer.write(_reply(_UNREACHABLE))
            return
        connection = await _connect(addresses, port)
        if connection is None:
            writer.write(_reply(_UNREACHABLE))
            return
        writer.write(_reply(_OK))
        far_reader, far_writer = connection
        if (task := asyncio.current_task()) is not None:
            self._open[task] = host.rstrip("."), addresses
        try:
            await _both_ways((reader, writer), (far_reader, far_writer))
        finally:
            far_writer.close()


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _host(reader: asyncio.StreamReader, kind: int) -> str:
    if kind == 1:
        return socket.inet_ntop(socket.AF_INET, await reader.readexactly(4))
    if kind == 4:
        return socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
    if kind != 3:
        return ""
    (length,) = await reader.readexactly(1)
    return (await reader.readexactly(length)).decode("ascii", "replace").lower()


def _reply(code: int) -> bytes:
    return bytes((5, code, 0, 1)) + bytes(6)


async def _connect(addresses: Sequence[str], port: int) -> _Side | None:
    """Connects to one of the addresses that were checked."""
    for address in addresses[:4]:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(address, port)
    return None


async def _both_ways(near: _Side, far: _Side) -> None:
    """Passes bytes on until the browser has closed its side. It closes soon after the far side has."""
    up, down = asyncio.create_task(_pass_on(near[0], far[1])), asyncio.create_task(_pass_on(far[0], near[1]))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            await asyncio.wait({up}, timeout=LAST_BYTES_S)
    finally:
        for task in (up, down):
            task.cancel()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
