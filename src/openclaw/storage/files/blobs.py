"""``BlobStore`` on files: each content is one file, named by its SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from pathlib import Path

from openclaw.storage.files.disk import atomic_replace

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")


class FileBlobStore:
    def __init__(self, state_dir: str) -> None:
        self._folder = Path(state_dir) / "blobs"

    async def put(self, data: bytes) -> str:
        """Stores the bytes, unless they are stored already, and returns their digest."""
        return await asyncio.to_thread(self._put, data)

    async def get(self, digest: str) -> bytes | None:
        return await asyncio.to_thread(self._get, digest)

    def path(self, digest: str) -> Path | None:
        """Returns where a blob is, for callers that read only a part of it. None for a text that is no digest."""
        return self._folder / digest if _DIGEST.fullmatch(digest) else None

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self._folder / digest
        try:
            kept = path.stat().st_size == len(data)
        except FileNotFoundError:
            kept = False
        if not kept:
            atomic_replace(path, data)
        return digest

    def _get(self, digest: str) -> bytes | None:
        path = self.path(digest)
        try:
            data = path.read_bytes() if path else None
        except FileNotFoundError:
            return None
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            log.error("blob %s does not hold what its name says; it is not used", path)
            return None
        return data
