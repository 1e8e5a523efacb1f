"""The protocol of the blob store."""

from __future__ import annotations

from typing import Protocol


class BlobStore(Protocol):
    """Large tool output and media. Each content is stored once, under its SHA-256."""

    async def put(self, data: bytes) -> str: ...

    async def get(self, digest: str) -> bytes | None: ...
