"""Stopping runs that take longer than they may."""

from __future__ import annotations

import asyncio
import math

from openclaw.agent.abort import AbortReason, AbortSignal


class Deadlines:
    """One timer for all runs: nearly every run ends long before its time is up, and one of its own would cost more."""

    def __init__(self) -> None:
        self._due: dict[AbortSignal, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def set(self, signal: AbortSignal, seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        self._due[signal] = due
        if due < self._wakes_at:
            self._wake_at(due)

    def clear(self, signal: AbortSignal) -> None:
        """The timer stays as it is; it finds out by itself that nobody is late."""
        self._due.pop(signal, None)

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_at = asyncio.get_running_loop().call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        now = asyncio.get_running_loop().time()
        for signal in [signal for signal, due in self._due.items() if due <= now]:
            del self._due[signal]
            signal.abort(AbortReason.TIMEOUT)
        if self._due:
            self._wake_at(min(self._due.values()))
