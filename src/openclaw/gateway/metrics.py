"""The Gateway's counters, in fixed memory, for ``/metrics``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from openclaw.events import AssistantEnded, Event
from openclaw.runs.endings import ending_of
from openclaw.runs.queue import RunRecord

TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")
TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Counts per bucket. A value belongs to the first bucket whose bound it does not exceed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """One count for each bound, and one for values beyond the last bound."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """What has been counted since the start."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        """The number of messages by their end state."""
        self.tokens: Counter[str] = Counter()
        self.model_errors: Counter[str] = Counter()
        """The number of failed model calls by the kind of error."""
        self.turns = Histogram(TURN_SECONDS)


class RunMetrics:
    """Observes a run and counts it."""

    def __init__(self, record: RunRecord, metrics: Metrics) -> None:
        self._record = record
        self._metrics = metrics

    def started(self) -> None:
        pass

    def event(self, event: Event) -> None:
        if isinstance(event, AssistantEnded):
            usage = event.message.usage
            for kind in TOKEN_KINDS:
                self._metrics.tokens[kind] += getattr(usage, kind)

    def aborted(self, reason: str) -> None:
        pass

    def absorbed(self, by: str) -> None:
        self._metrics.messages["superseded"] += 1

    def finished(self) -> None:
        record = self._record
        if record.result is not None:
            self._metrics.messages[ending_of(record.result).state] += 1
        if record.started_at is not None and record.ended_at is not None:
            self._metrics.turns.add((record.ended_at - record.started_at) / 1000)
