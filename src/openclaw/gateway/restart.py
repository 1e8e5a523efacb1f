"""A restart that the Gateway schedules itself, and the note that it leaves for the next process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

from openclaw.clock import Clock
from openclaw.config.store import write_private

log = logging.getLogger("openclaw.gateway.reload")

DEFAULT_DELAY_MS = 2000
MAX_DELAY_MS = 60_000
SENTINEL_NAME = "restart-sentinel.json"


class Restart:
    """Schedules a restart. ``requested`` is set once it is due, and the process waits for it."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._clock = clock
        self._path = Path(state_dir) / SENTINEL_NAME
        self._pending: asyncio.Task[None] | None = None
        self.requested = asyncio.Event()
        self.reason = ""

    @property
    def path(self) -> str:
        return str(self._path)

    def schedule(self, reason: str, delay_ms: int = DEFAULT_DELAY_MS) -> dict[str, Any]:
        """Ask for a restart in this process; a later request replaces an earlier one that is still waiting."""
        delay_ms = max(0, min(delay_ms, MAX_DELAY_MS))
        if self._pending is not None:
            self._pending.cancel()
        self.reason = reason
        self._pending = asyncio.create_task(self._after(delay_ms))
        log.info("restart in %d ms: %s", delay_ms, reason)
        return self.report(reason, delay_ms, "emit")

    @staticmethod
    def report(reason: str, delay_ms: int, mode: str) -> dict[str, Any]:
        """The ``restart`` block clients read; ``mode`` is ``emit`` for a restart and ``hot`` when none is needed."""
        facts: dict[str, Any] = {"ok": True, "pid": os.getpid(), "signal": "SIGUSR1", "delayMs": delay_ms}
        return {**facts, "reason": reason, "mode": mode}

    async def _after(self, delay_ms: int) -> None:
        await self._clock.sleep(delay_ms / 1000)
        self.requested.set()

    async def leave_note(self, payload: dict[str, Any]) -> None:
        text = json.dumps({"version": 1, "payload": payload}, indent=2, ensure_ascii=False) + "\n"
        await asyncio.to_thread(write_private, str(self._path), text)

    async def take_note(self) -> dict[str, Any] | None:
        """The note of the process before this one. It is removed when it is read."""

        def take() -> Any:
            note = json.loads(self._path.read_bytes())
            self._path.unlink()
            return note

        try:
            note = await asyncio.to_thread(take)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return None
        payload = note.get("payload") if isinstance(note, dict) else None
        return payload if isinstance(payload, dict) else None

    def stop(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
