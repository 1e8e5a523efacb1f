"""Tests whether the disk of the state directory accepts writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from openclaw.clock import Clock
from openclaw.storage import faults
from openclaw.storage.disk_errors import describe_failure

FRESH_S = 1.0
"""An answer is reused for this long. The probe needs no secret, so it must not be a way to wear out the disk."""
PATIENCE_S = 5.0
SIZE = 64 << 10
"""The number of bytes written as a test. It is what a message needs: some pages in several files."""


class DiskCheck:
    """Tests whether the disk of the state directory accepts writes."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._path = Path(state_dir) / ".write-check"
        self._clock = clock
        self._at = -FRESH_S
        self._trying: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """Return what is wrong with the disk and what to do, without paths, or an empty text if writes succeed."""
        if self._trying is None or (self._trying.done() and self._clock.monotonic() - self._at >= FRESH_S):
            self._trying = asyncio.create_task(self._try())
        done, _ = await asyncio.wait({self._trying}, timeout=PATIENCE_S)
        return self._trying.result() if done else "the Gateway's disk does not answer; check the disk"

    async def _try(self) -> str:
        try:
            await asyncio.to_thread(self._write)
            return ""
        except OSError as error:
            return describe_failure(OSError(error.errno, error.strerror))
        finally:
            self._at = self._clock.monotonic()

    def _write(self) -> None:
        faults.write(self._path)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = SIZE
            while left:
                left -= os.write(fd, bytes(left))
            os.fsync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._path.unlink()
