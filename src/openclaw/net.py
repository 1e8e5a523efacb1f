"""Reads network addresses, and tells whether one belongs to this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


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
    """Whether a host name or IP address is this machine's own loopback."""
    ip = plain_ip(host)
    return host == "localhost" or (bool(ip) and ipaddress.ip_address(ip).is_loopback)
