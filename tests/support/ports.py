"""Ports for servers that a test stops and starts again.

The kernel gives a port that it chose itself to somebody else's connection as soon as its server is down.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_240
_CHANCE = random.SystemRandom()
"""Not the generator that tests seed: two workers would choose the same ports."""


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and that the kernel gives to nobody."""
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first_given = int(limits.read_text().split()[0]) if limits.exists() else 32_768
    for _ in range(1000):
        port = _CHANCE.randrange(LOWEST, max(first_given, LOWEST + 1000))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
