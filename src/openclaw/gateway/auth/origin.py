"""The origin of a request: its address, whether it is this machine, and which web page sent it.

A page in a browser and a reverse proxy also connect from 127.0.0.1, so a loopback address alone is not trusted. A peer
is local only when it also names a loopback host and forwards no other caller.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from openclaw.net import is_loopback

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FORWARDED = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "forwarded")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KNOWN = 64
"""The size of the caches. Nearly all requests come from the same address to the same host."""


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    ip: str
    """The client's own address: that of the socket, or the one that a trusted proxy reports."""
    is_local: bool
    host: str
    """The Host header as sent."""
    origin: str | None = None
    user_agent: str | None = None


class Authority(msgspec.Struct, frozen=True):
    """The host and port of a URL or of a Host header. Without a port the scheme's own is meant."""

    host: str
    port: int | None


@lru_cache(maxsize=_KNOWN)
def plain_ip(text: str) -> str:
    """``::ffff:10.0.0.1`` as ``10.0.0.1``; anything that is not an address becomes empty."""
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


@lru_cache(maxsize=_KNOWN)
def parse_host(header: str) -> Authority | None:
    """A Host header, or None when it is not one."""
    if not header or any(mark in header for mark in "/@?#\\ "):
        return None
    try:
        parts = urlsplit(f"//{header}")
        port = parts.port
    except ValueError:
        return None
    return Authority(parts.hostname, port) if parts.hostname else None


def parse_origin(origin: str | None) -> tuple[str, Authority] | None:
    """Scheme and authority of an Origin header; ``null``, other schemes and anything with a path are None."""
    if not origin:
        return None
    try:
        parts = urlsplit(origin.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path or parts.query or parts.username:
        return None
    return parts.scheme, Authority(parts.hostname, port or _DEFAULT_PORTS[parts.scheme])


def peer_of(socket_ip: str, headers: Mapping[str, str], trusted_proxies: Sequence[str]) -> PeerAddress:
    """Describes the caller. ``headers`` must look names up without regard to case."""
    direct = plain_ip(socket_ip)
    through_proxy = direct in {plain_ip(proxy) for proxy in trusted_proxies} - {""}
    ip = direct
    if through_proxy:
        first = headers.get("x-forwarded-for", "").partition(",")[0]
        ip = plain_ip(first) or plain_ip(headers.get("x-real-ip", "")) or direct
    host = headers.get("host", "")
    named = parse_host(host)
    local_name = named is not None and (named.host in LOOPBACK_NAMES or named.host.endswith(".ts.net"))
    forwarded = any(name in headers for name in _FORWARDED)
    return PeerAddress(
        ip=ip,
        is_local=is_loopback(ip) and local_name and (through_proxy or not forwarded),
        host=host,
        origin=headers.get("origin"),
        user_agent=headers.get("user-agent"),
    )


def origin_refusal(peer: PeerAddress, allowed_origins: Iterable[str]) -> str | None:
    """Why a page with this Origin may not act as Control UI or web chat, or None.

    The Origin is parsed and compared exactly. A prefix test would accept ``http://127.0.0.1.evil.example`` as loopback.
    """
    parsed = parse_origin(peer.origin)
    if parsed is None:
        return "origin missing or invalid"
    if any(parse_origin(allowed.lower()) == parsed for allowed in allowed_origins):
        return None
    scheme, authority = parsed
    host = parse_host(peer.host)
    if host is not None:
        if host.host == authority.host and (host.port or _DEFAULT_PORTS[scheme]) == authority.port:
            return None
        if host.host in LOOPBACK_NAMES and authority.host in LOOPBACK_NAMES:
            return None
    return "origin not allowed"


def host_refusal(peer: PeerAddress, allowed_origins: Iterable[str]) -> str | None:
    """Why a plain HTTP call may not be served under this Host, or None.

    A hostile page can make its own name resolve to 127.0.0.1; its requests then carry that name as Host.
    """
    host = parse_host(peer.host)
    if host is None:
        return "the Host header is missing or malformed"
    name = host.host.rstrip(".")
    own = socket.gethostname().lower()
    short = own.partition(".")[0]
    if name in LOOPBACK_NAMES or plain_ip(name) or name.endswith(".ts.net") or name in (own, short, f"{short}.local"):
        return None
    configured = (parse_origin(allowed.lower()) for allowed in allowed_origins)
    if any(parsed and parsed[1].host == name for parsed in configured):
        return None
    return (
        f"the Host {name[:80]!r} is not one of this Gateway's names; "
        "add its origin to gateway.controlUi.allowedOrigins if it should be"
    )
