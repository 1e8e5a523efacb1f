"""Fetches what others name by its address: a file of a request, a page for the agent. Private networks are shut.

The resolver checks the IP addresses that the connection then uses, so a name that resolves differently between check
and use gains nothing. Every redirect is checked in the same way.
"""

from __future__ import annotations

import ipaddress
import socket
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

_CHUNK = 64 * 1024
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity"}
_PACKED = {"gzip": zlib.MAX_WBITS | 32, "x-gzip": zlib.MAX_WBITS | 32, "deflate": zlib.MAX_WBITS | 32}
"""How a body may be packed although the server was asked not to → the form for ``zlib``."""


class FetchRefused(Exception):
    """Says to the person who asked why the file was not fetched."""


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int
    max_redirects: int = 3
    timeout_s: float = 10.0
    hosts: tuple[str, ...] | None = None
    """The allowed hosts. ``*.example.org`` allows every host below it. None allows any public host."""
    cut: bool = False
    """Whether the first ``max_bytes`` of a larger file are taken. Otherwise it is refused."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    url: str
    """Where it was found after all redirects."""
    status: int
    content_type: str
    cut: bool = False


def is_public(address: str) -> bool:
    """Return whether an address belongs to the open internet. Private, shared, local and multicast addresses do not."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        # Outside of this network nothing is global. The library's table lacks some forms, such as ::7f00:1 and fec0::1.
        if ip not in ipaddress.ip_network("2000::/3"):
            return False
    return ip.is_global and not ip.is_multicast


def host_allowed(host: str, allowed: tuple[str, ...] | None) -> bool:
    if allowed is None:
        return True
    name = host.lower().rstrip(".")
    return any(
        name == entry.lower() or (entry.startswith("*.") and name.endswith(entry[1:].lower())) for entry in allowed
    )


class PublicResolver(AbstractResolver):
    def __init__(self, inner: AbstractResolver, public: Callable[[str], bool] = is_public) -> None:
        self._inner = inner
        self._public = public

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        if not results or not all(self._public(result["host"]) for result in results):
            raise FetchRefused(f"{host} is not a public address")
        return results

    async def close(self) -> None:
        await self._inner.close()


async def fetch(address: str, limits: FetchLimits, public: Callable[[str], bool] = is_public) -> bytes:
    """Return the bytes of the file. Raises ``FetchRefused``."""
    return (await fetch_page(address, limits, public)).body


async def fetch_page(
    address: str,
    limits: FetchLimits,
    public: Callable[[str], bool] = is_public,
    headers: Mapping[str, str] = _HEADERS,
) -> Fetched:
    """Return what is at the address, and where it was found. Raises ``FetchRefused``."""
    resolver = PublicResolver(aiohttp.ThreadedResolver(), public)
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, limit=1)
    timeout = aiohttp.ClientTimeout(total=limits.timeout_s)
    options: dict[str, Any] = {"connector": connector, "timeout": timeout, "trust_env": False, "auto_decompress": False}
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), **options) as session:
            return await _follow(session, address, limits, public, {**_HEADERS, **headers})
    except TimeoutError:
        raise FetchRefused(f"it did not arrive within {limits.timeout_s:g} s") from None
    except aiohttp.ClientError as error:
        cause = error.__cause__
        if isinstance(cause, FetchRefused):
            raise cause from None
        raise FetchRefused(f"it could not be fetched ({type(error).__name__})") from None


async def _follow(
    session: aiohttp.ClientSession,
    address: str,
    limits: FetchLimits,
    public: Callable[[str], bool],
    headers: Mapping[str, str],
) -> Fetched:
    base: URL | None = None
    for _ in range(limits.max_redirects + 1):
        base = url = checked_url(address, limits, public, base)
        async with session.get(url, allow_redirects=False, headers=headers) as response:
            if response.status in (301, 302, 303, 307, 308) and (position := response.headers.get("location")):
                address = position
                continue
            if not 200 <= response.status < 300:
                raise FetchRefused(f"the server answered {response.status}")
            body, cut = await _read(response, limits)
            kind = response.headers.get("content-type", "")
            return Fetched(body=body, url=str(url), status=response.status, content_type=kind, cut=cut)
    raise FetchRefused(f"it redirects more than {limits.max_redirects} times")


def checked_url(
    address: str, limits: FetchLimits, public: Callable[[str], bool] = is_public, base: URL | None = None
) -> URL:
    """Make every check that needs no resolver and return the address as the client uses it.

    The host is read from the parsed URL, because parsing turns look-alike digits and dots into real ones. Numeric hosts
    never pass the resolver, so they are checked here.
    """
    try:
        url = base.join(URL(address)) if base is not None else URL(address)
        host = url.raw_host or ""
    except (ValueError, UnicodeError):
        raise FetchRefused("it is not a valid address") from None
    if url.scheme not in ("http", "https") or not host or url.user is not None:
        raise FetchRefused("only plain http(s) addresses can be fetched")
    if not host_allowed(host, limits.hosts):
        raise FetchRefused(f"{host} is not among the allowed hosts")
    if (":" in host or host.replace(".", "").isdigit()) and not public(host):
        raise FetchRefused(f"{host} is not a public address")
    return url


async def _read(response: aiohttp.ClientResponse, limits: FetchLimits) -> tuple[bytes, bool]:
    """Return the body, unpacked, and whether it was cut. No more is unpacked than the limit allows."""
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity") and packed not in _PACKED:
        raise FetchRefused("the server sent it packed in an unknown way, though it was asked not to")
    unpack = zlib.decompressobj(_PACKED[packed]) if packed in _PACKED else None
    limit = limits.max_bytes
    if not limits.cut and response.content_length is not None and response.content_length > limit:
        raise FetchRefused(f"it is larger than {limit} bytes")
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        if unpack is not None:
            try:
                chunk = unpack.decompress(chunk, limit - size + 1)
            except zlib.error:
                raise FetchRefused("it cannot be unpacked") from None
        size += len(chunk)
        parts.append(chunk)
        if size > limit:
            if not limits.cut:
                raise FetchRefused(f"it is larger than {limit} bytes")
            return b"".join(parts)[:limit], True
    return b"".join(parts), False
