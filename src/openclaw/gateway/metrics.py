"""Counters of the running Gateway. They use a fixed amount of memory; ``http/monitoring.py`` serves them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from openclaw.events import AssistantEnded
from openclaw.runs.endings import ending_of
from openclaw.runs.run import Run, RunAbsorbed, RunEvent, RunFinished

TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")
TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """Counters since the start of the process."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        """The number of messages by their end state."""
        self.tokens: Counter[str] = Counter()
        self.model_errors: Counter[str] = Counter()
        """The number of failed model calls by the kind of error."""
        self.turns = Histogram(TURN_SECONDS)


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


class RunMetrics:
    """Follows a run and counts it."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self._run = run
        self._metrics = metrics

    def event(self, event: RunEvent) -> None:
        match event:
            case AssistantEnded():
                usage = event.message.usage
                for kind in TOKEN_KINDS:
                    self._metrics.tokens[kind] += getattr(usage, kind)
            case RunAbsorbed():
                self._metrics.messages["superseded"] += 1
            case RunFinished():
                self._finished()
            case _:
                pass

    def _finished(self) -> None:
        run = self._run
        if run.result is not None:
            self._metrics.messages[ending_of(run.result).state] += 1
        if run.started_at is not None and run.ended_at is not None:
            self._metrics.turns.add((run.ended_at - run.started_at) / 1000)
