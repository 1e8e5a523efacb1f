"""The Gateway's counters and the lag of its event loop, in fixed memory, for ``/metrics``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from openclaw.clock import Clock
from openclaw.events import AssistantEnded, Event
from openclaw.runs.dispatcher import ending_of
from openclaw.runs.queue import Observer, RunRecord

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


class MeteredRun:
    """Counts the events of a run and passes them on to the inner observer."""

    def __init__(self, record: RunRecord, inner: Observer, metrics: Metrics) -> None:
        self._record = record
        self._inner = inner
        self._metrics = metrics

    def started(self) -> None:
        self._inner.started()

    def event(self, event: Event) -> None:
        if isinstance(event, AssistantEnded):
            usage = event.message.usage
            for kind in ("input", "output", "cache_read", "cache_write"):
                self._metrics.tokens[kind] += getattr(usage, kind)
        self._inner.event(event)

    def aborted(self, reason: str) -> None:
        self._inner.aborted(reason)

    def absorbed(self, by: str) -> None:
        self._metrics.messages["superseded"] += 1
        self._inner.absorbed(by)

    def finished(self) -> None:
        record = self._record
        if record.result is not None:
            self._metrics.messages[ending_of(record.result).state] += 1
        if record.started_at is not None and record.ended_at is not None:
            self._metrics.turns.add((record.ended_at - record.started_at) / 1000)
        self._inner.finished()


INTERVAL_S = 0.05
WINDOW = 1200
"""The number of samples for the percentiles: one minute."""
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """Measures how late the event loop wakes a task that sleeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.histogram = Histogram(LAG_SECONDS)
        """All samples since the start, in seconds."""
        self.worst = 0.0

    async def watch(self) -> None:
        while True:
            due = self._clock.monotonic() + INTERVAL_S
            await self._clock.sleep(INTERVAL_S)
            self.note(max(0.0, self._clock.monotonic() - due))

    def note(self, lag_s: float) -> None:
        self._recent.append(lag_s)
        self.histogram.add(lag_s)
        self.worst = max(self.worst, lag_s)

    def percentile(self, share: float) -> float:
        """The percentile of the last minute in seconds; 0 without samples."""
        if not self._recent:
            return 0.0
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
