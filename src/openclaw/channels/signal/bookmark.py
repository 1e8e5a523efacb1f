"""Up to where the daemon's events were taken, so that a new start asks for what came since."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from openclaw.clock import Clock
from openclaw.paths import make_private_dir
from openclaw.storage import faults

log = logging.getLogger("openclaw.channels.signal")

MAX_BYTES = 200
PAUSE_S = 0.2


class Bookmark:
    """Not synced to disk: an old bookmark only makes the daemon repeat itself, and repetitions are noticed.

    For the same reason a burst of events is written down once, a moment later.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._writer: asyncio.Task[None] | None = None
        self._written = ""
        self.last_id = ""

    async def load(self) -> None:
        self.last_id = self._written = await asyncio.to_thread(self._read)

    def move_to(self, event_id: str) -> None:
        """Daemons that do not number their events give an empty id, which changes nothing."""
        if event_id and event_id != self.last_id and len(event_id) <= MAX_BYTES:
            self.last_id = event_id
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        if self.last_id != self._written:
            await self._put(self.last_id)

    async def _keep_up(self) -> None:
        while self.last_id != self._written:
            event_id = self.last_id
            await self._put(event_id)
            await self._clock.sleep(PAUSE_S)

    async def _put(self, event_id: str) -> None:
        self._written = event_id
        try:
            await asyncio.to_thread(self._write, event_id)
        except OSError as error:
            log.warning("%s stays where it was: %s", self._path, error)

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES).decode("ascii", "ignore").strip()
        except FileNotFoundError:
            return ""

    def _write(self, event_id: str) -> None:
        faults.write(self._path)
        make_private_dir(str(self._path.parent))
        beside = self._path.with_name(f"{self._path.name}.new")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(event_id.encode("ascii", "ignore"))
        beside.replace(self._path)
