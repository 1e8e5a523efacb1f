"""Small things about the network: addresses, and the body of an answer, read up to a limit."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


@lru_cache(maxsize=64)
def plain_ip(text: str) -> str:
    """``::ffff:10.0.0.1`` as ``10.0.0.1``; anything that is not an address becomes empty."""
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is this machine's own loopback."""
    ip = plain_ip(host)
    return host == "localhost" or (bool(ip) and ipaddress.ip_address(ip).is_loopback)


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the first ``limit`` bytes at most. ``content.read`` would return whatever has arrived so far."""
    body = bytearray()
    while len(body) < limit and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit])
