"""The origin of a request: its address, whether it is this machine, and which web page sent it.

A page in a browser and a reverse proxy also connect from 127.0.0.1, so a loopback address alone is not trusted. A peer
is local only when it also names a loopback host, and neither is a proxy nor forwards another caller.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec
from multidict import MultiMapping

from openclaw.net import is_loopback, plain_ip

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# fmt: off
_FORWARDED = frozenset((
    "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "cf-connecting-ip",
    "x-envoy-external-address", "true-client-ip", "fastly-client-ip", "tailscale-user-login",
))
# fmt: on
"""Headers that proxies add, besides all that begin with ``x-forwarded``."""
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


def peer_of(socket_ip: str, headers: MultiMapping[str], trusted_proxies: Sequence[str]) -> PeerAddress:
    """Describes the caller. ``headers`` must look names up without regard to case.

    A header that came twice is joined, so that no second one is overlooked.
    """
    direct = plain_ip(socket_ip)
    through_proxy = is_proxy(direct, tuple(trusted_proxies))
    host = _header(headers, "host") or ""
    named = parse_host(host)
    local_name = named is not None and (named.host in LOOPBACK_NAMES or named.host.endswith(".ts.net"))
    return PeerAddress(
        ip=_forwarded_ip(direct, headers, tuple(trusted_proxies)) if through_proxy else direct,
        is_local=is_loopback(direct) and local_name and not through_proxy and not any(map(_is_forwarding, headers)),
        host=host,
        origin=_header(headers, "origin"),
        user_agent=headers.get("user-agent"),
    )


def _header(headers: MultiMapping[str], name: str) -> str | None:
    values = headers.getall(name, None)
    return None if values is None else ", ".join(values)


@lru_cache(maxsize=4 * _KNOWN)
def _is_forwarding(name: str) -> bool:
    name = name.lower()
    return name.startswith("x-forwarded") or name in _FORWARDED


def _forwarded_ip(direct: str, headers: MultiMapping[str], trusted_proxies: tuple[str, ...]) -> str:
    """Return the last hop that is not a trusted proxy. The caller itself may have written the hops left of it."""
    hops = (_header(headers, "x-forwarded-for") or _header(headers, "x-real-ip") or "").split(",")
    ip = direct
    for hop in reversed(hops):
        address = plain_ip(_without_port(hop))
        if not address:
            break
        ip = address
        if not is_proxy(ip, trusted_proxies):
            break
    return ip


def last_hop(headers: MultiMapping[str]) -> str:
    """The address that the nearest proxy reports, whether it is trusted or not. Empty if there is none."""
    return plain_ip(_without_port((_header(headers, "x-forwarded-for") or "").rpartition(",")[2]))


def _without_port(hop: str) -> str:
    """Some proxies append the port: ``192.0.2.1:5000`` or ``[2001:db8::1]:5000``."""
    hop = hop.strip().strip('"')
    if hop.startswith("["):
        return hop.partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


@lru_cache(maxsize=_KNOWN)
def is_proxy(ip: str, trusted_proxies: tuple[str, ...]) -> bool:
    """Whether the address is one of ``gateway.trustedProxies``, which are addresses and networks."""
    return bool(ip) and any(ipaddress.ip_address(ip) in network for network in _networks(trusted_proxies))


@lru_cache(maxsize=4)
def _networks(entries: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for entry in entries:
        try:
            found.append(ipaddress.ip_network(plain_ip(entry) or entry.strip(), strict=False))
        except ValueError:
            continue  # ``config validate`` names it. Nobody is trusted for it.
    return found


def caller_key(peer: PeerAddress) -> str:
    """What wrong secrets of this caller are counted under: everything that one caller can send from.

    These are all addresses of loopback, one IPv4 address, and a whole /64 of IPv6. What a proxy of this machine sends
    on is counted apart from this machine's own callers.
    """
    if peer.is_local:
        return "this machine"
    if not peer.ip or is_loopback(peer.ip):
        return "proxied by this machine"
    address = ipaddress.ip_address(peer.ip)
    return peer.ip if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def site_refusal(peer: PeerAddress, allowed_origins: Sequence[str], *, is_page: bool = False) -> str | None:
    """Why a web page with this Origin, under this Host, may not talk to the Gateway. None for everybody else.

    Browsers send an Origin that a page cannot change, so it is believed whatever the client calls itself. A hostile
    page can make its own name resolve to this machine (DNS rebinding). Origin and Host then agree, and the Host is not
    one of ours. ``is_page`` is a client that says it is a page, and so must have an Origin.
    """
    if peer.origin is None and not is_page:
        return None
    if refused := origin_refusal(peer, allowed_origins):
        hint = "open the Control UI from this Gateway or add its origin to gateway.controlUi.allowedOrigins"
        return f"origin not allowed ({refused}; {hint})"
    if refused := host_refusal(peer, allowed_origins):
        return f"origin not allowed ({refused})"
    return None


def origin_refusal(peer: PeerAddress, allowed_origins: Sequence[str]) -> str | None:
    """Why a page with this Origin may not act as Control UI or web chat, or None.

    The Origin is parsed and compared exactly. A prefix test would accept ``http://127.0.0.1.evil.example`` as loopback.
    """
    parsed = parse_origin(peer.origin)
    if parsed is None:
        # Apps have origins such as ``app://desk``. ``null`` is any sandboxed page of any site, and is never allowed.
        named = (peer.origin or "").strip().lower()
        listed = "://" in named and any(named == allowed.strip().lower() for allowed in allowed_origins)
        return None if listed else "origin missing or invalid"
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
