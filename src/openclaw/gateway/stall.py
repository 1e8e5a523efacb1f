"""How late the event loop is: a task that wakes at a steady pace and notes by how much it overslept.

Whatever blocks the loop (a long computation, a synchronous read) delays every client alike, and shows here first.
"""

from __future__ import annotations

from collections import deque

from openclaw.clock import Clock
from openclaw.gateway.meter import Histogram

INTERVAL_S = 0.05
WINDOW = 1200
"""Samples the percentiles are taken from: the last minute."""
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class StallMonitor:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.lag = Histogram(LAG_SECONDS)
        """Everything since the start, in seconds."""
        self.worst = 0.0

    async def watch(self) -> None:
        while True:
            due = self._clock.monotonic() + INTERVAL_S
            await self._clock.sleep(INTERVAL_S)
            self.note(max(0.0, self._clock.monotonic() - due))

    def note(self, lag_s: float) -> None:
        self._recent.append(lag_s)
        self.lag.add(lag_s)
        self.worst = max(self.worst, lag_s)

    def percentile(self, share: float) -> float:
        """Of the last minute, in seconds; 0 while there are no samples."""
        if not self._recent:
            return 0.0
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
