"""How often one address may present a wrong secret."""

from __future__ import annotations

from collections import deque

from openclaw.clock import Clock

MAX_FAILURES = 10
WINDOW_S = 60.0
MAX_ADDRESSES = 4096


class FailedAuthLimiter:
    """Ten failures a minute for each address; what is remembered is bounded in addresses and in failures."""

    def __init__(self, clock: Clock, max_failures: int = MAX_FAILURES, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._max_failures = max_failures
        self._window_s = window_s
        self._failures: dict[str, deque[float]] = {}

    def failed(self, ip: str) -> None:
        failures = self._failures.pop(ip, None) or deque[float](maxlen=self._max_failures)
        failures.append(self._clock.monotonic())
        self._failures[ip] = failures
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def wait_ms(self, ip: str) -> int:
        """How long this address must wait before it is heard again; 0 when it need not."""
        failures = self._failures.get(ip)
        if failures is None or len(failures) < self._max_failures:
            return 0
        left = self._window_s - (self._clock.monotonic() - failures[0])
        return max(0, int(left * 1000))
