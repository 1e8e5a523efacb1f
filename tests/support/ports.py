"""Ports for servers that are stopped and started again, and for servers that must not be there."""

from __future__ import annotations

import socket
import weakref


class KeptPort:
    """A port on loopback that the machine gives to nobody else as long as this object lives.

    A server that is told the number can listen there, again and again. While none does, connections are refused. A
    port that is only remembered between two starts can be some other test's by then.
    """

    def __init__(self) -> None:
        holder = socket.socket()
        # It never listens, so others who set this option may bind the port too, but only if they ask for its number.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.number: int = holder.getsockname()[1]
        weakref.finalize(self, holder.close)
