"""Where the Gateway listens: this machine only, unless it was told otherwise."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
_TAILNET = ipaddress.ip_network("100.64.0.0/10")
_SIOCGIFADDR = 0x8915


def bind_host(bind: str, custom: str | None = None) -> str:
    """The address for ``gateway.bind``. What cannot be had falls back to loopback, never to something wider.

    ``custom`` is the exception the setting asks for: an address that is not IPv4 means everywhere.
    """
    match bind:
        case "lan":
            return EVERYWHERE
        case "tailnet":
            return next((ip for ip in own_addresses() if ipaddress.ip_address(ip) in _TAILNET), LOOPBACK)
        case "custom":
            return custom if custom and _is_ipv4(custom) else EVERYWHERE
        case _:
            return LOOPBACK


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
