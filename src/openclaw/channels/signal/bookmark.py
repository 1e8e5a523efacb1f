"""Up to where the daemon's events were taken, so that a new start asks for what came since."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from openclaw.paths import make_private_dir
from openclaw.storage import faults

log = logging.getLogger("openclaw.channels.signal")

MAX_BYTES = 200


class Bookmark:
    """Not synced to disk: an old bookmark only makes the daemon repeat itself, and repetitions are noticed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_id = ""

    async def load(self) -> None:
        self.last_id = await asyncio.to_thread(self._read)

    async def move_to(self, event_id: str) -> None:
        """Daemons that do not number their events give an empty id, which changes nothing."""
        if event_id and event_id != self.last_id and len(event_id) <= MAX_BYTES:
            self.last_id = event_id
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
