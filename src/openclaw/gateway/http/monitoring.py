"""The endpoints for monitoring: ``/metrics`` in the text format of Prometheus, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.disk_check import DiskCheck
from openclaw.gateway.event_loop import LoopLag
from openclaw.gateway.http.common import HttpRoute, refusal_response
from openclaw.gateway.metrics import TOKEN_KINDS, Histogram, Metrics
from openclaw.gateway.server.events import Broadcaster
from openclaw.runs.runs import Runs
from openclaw.storage.message_ledger import END_STATES, Ledger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


PROBES = ("/healthz", "/readyz")


class Monitoring:
    """Answers the probes, and renders the counters for Prometheus."""

    def __init__(
        self,
        metrics: Metrics,
        loop_lag: LoopLag,
        runs: Runs,
        broadcaster: Broadcaster,
        ledger: Ledger,
        disk: DiskCheck,
        clock: Clock,
        started_at: int,
        is_ready: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._loop_lag = loop_lag
        self._runs = runs
        self._broadcaster = broadcaster
        self._ledger = ledger
        self._disk = disk
        self._clock = clock
        self._started_at = started_at
        self._is_ready = is_ready

    def routes(self) -> list[HttpRoute]:
        probes = zip(PROBES, (self.alive, self.ready), strict=True)
        return [
            *(HttpRoute(verb, path, probe, "open") for path, probe in probes for verb in ("GET", "HEAD")),
            HttpRoute("GET", "/metrics", self.metrics, refusal_response),
        ]

    async def alive(self, _request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        return web.json_response({"ok": True})

    async def ready(self, _request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        """Not ready while the Gateway starts or stops, and while its disk refuses writes."""
        problem = await self._disk.problem() if self._is_ready() else "the Gateway is starting or stopping"
        if problem:
            return web.json_response({"ok": False, "problem": problem}, status=503)
        return web.json_response({"ok": True})

    async def metrics(self, _request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        page = await self.render()
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    async def render(self) -> str:
        counted, lag, runs = self._metrics, self._loop_lag, self._runs
        page = MetricsPage()
        page.values("openclaw_info", "The version that runs.", "gauge", "version", {__version__: 1})
        uptime = max(0, self._clock.now_ms() - self._started_at) / 1000
        page.gauge("openclaw_uptime_seconds", "Since the Gateway started.", uptime)
        ready = self._is_ready() and not await self._disk.problem()
        page.gauge("openclaw_ready", "1 when traffic may be sent here.", int(ready))
        ended = {state: counted.messages[state] for state in sorted(END_STATES)}
        page.values("openclaw_messages_total", "Messages that ended, by how.", "counter", "state", ended)
        page.gauge("openclaw_runs_active", "Runs under way.", runs.busy())
        page.gauge("openclaw_runs_queued", "Messages waiting behind a run of their session.", runs.queued())
        page.histogram("openclaw_turn_duration_seconds", "From a run's start to its end.", counted.turns)
        tokens = {kind: counted.tokens[kind] for kind in TOKEN_KINDS}
        page.values("openclaw_tokens_total", "Tokens of model calls, by kind.", "counter", "kind", tokens)
        errors = "openclaw_model_errors_total"
        page.values(errors, "Model calls that failed, by kind.", "counter", "kind", counted.model_errors)
        page.gauge("openclaw_clients", "Connected clients.", len(self._broadcaster.clients))
        waiting = await self._ledger.outbox_depth()
        page.gauge("openclaw_outbox_depth", "Parts of answers not delivered yet.", waiting)
        page.histogram("openclaw_event_loop_lag_seconds", "How late the event loop woke.", lag.histogram)
        shares = {"0.5": lag.percentile(0.5), "0.99": lag.percentile(0.99)}
        recent = "openclaw_event_loop_lag_recent_seconds"
        page.values(recent, "The same over the last minute.", "gauge", "quantile", shares)
        page.gauge("openclaw_event_loop_lag_worst_seconds", "The worst since the start.", lag.worst)
        page.gauge("process_resident_memory_bytes", "Memory in use.", resident_bytes())
        cpu = {"": time.process_time()}
        page.values("process_cpu_seconds_total", "Processor time used.", "counter", "", cpu)
        return page.text()


class MetricsPage:
    """The lines of the exposition format. Each metric has its help and type before its samples."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, help: str, value: float) -> None:
        self.values(name, help, "gauge", "", {"": value})

    def values(self, name: str, help: str, kind: str, label: str, values: Mapping[str, float]) -> None:
        """Adds one sample for each value of the label."""
        self._head(name, help, kind)
        for key, value in values.items():
            self._sample(name, {label: key} if label else {}, value)

    def histogram(self, name: str, help: str, histogram: Histogram) -> None:
        self._head(name, help, "histogram")
        total = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            total += count
            self._sample(f"{name}_bucket", {"le": number(bound)}, total)
        self._sample(f"{name}_sum", {}, histogram.sum)
        self._sample(f"{name}_count", {}, total)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _head(self, name: str, help: str, kind: str) -> None:
        self._lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        marks = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
        shown = ",".join(f'{key}="{text.translate(marks)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{shown}}} {number(value)}" if shown else f"{name} {number(value)}")


def number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def resident_bytes() -> int:
    """The memory in use now on Linux; on other systems the peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        # The import is here because Windows has no such module.
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
