"""How long answers took, in few numbers: exact sums and extremes, and a percentile to within a few per cent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

LONGEST_MS = 12 * 3_600_000
"""What took longer was not waited for."""
_STEPS = 10
"""Buckets per power of e: neighbours are a tenth apart."""


class Latency(msgspec.Struct):
    count: int = 0
    total_ms: int = 0
    least_ms: int = LONGEST_MS
    most_ms: int = 0
    buckets: dict[int, int] = {}
    """How many answers took about as long, by the logarithm of the time."""

    def add(self, ms: int) -> None:
        if not 0 <= ms <= LONGEST_MS:
            return
        self.count += 1
        self.total_ms += ms
        self.least_ms, self.most_ms = min(self.least_ms, ms), max(self.most_ms, ms)
        place = math.ceil(math.log(max(ms, 1)) * _STEPS)
        self.buckets[place] = self.buckets.get(place, 0) + 1

    def join(self, other: Latency) -> None:
        self.count += other.count
        self.total_ms += other.total_ms
        self.least_ms, self.most_ms = min(self.least_ms, other.least_ms), max(self.most_ms, other.most_ms)
        for place, count in other.buckets.items():
            self.buckets[place] = self.buckets.get(place, 0) + count

    def percentile_ms(self, share: float) -> int:
        left = math.ceil(self.count * share)
        for place in sorted(self.buckets):
            left -= self.buckets[place]
            if left <= 0:
                return min(max(round(math.exp(place / _STEPS)), self.least_ms), self.most_ms)
        return self.most_ms

    def view(self) -> dict[str, Any]:
        average = round(self.total_ms / self.count)
        view = {"count": self.count, "avgMs": average, "p95Ms": self.percentile_ms(0.95)}
        return {**view, "minMs": self.least_ms, "maxMs": self.most_ms}


def together(parts: Iterable[Latency]) -> Latency | None:
    """None when nothing was measured."""
    whole = Latency()
    for part in parts:
        whole.join(part)
    return whole if whole.count else None
