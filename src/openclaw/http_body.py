"""Reads the body of an answer whole, up to a limit, however its bytes arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The first ``limit`` bytes at most. ``content.read`` would return whatever has arrived so far."""
    body = bytearray()
    while len(body) < limit and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit])
