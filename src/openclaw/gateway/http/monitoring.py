"""How the Gateway does: ``/metrics`` in the text format of Prometheus, ``/healthz``, ``/readyz``, and its health.

The counters need fixed memory. The health is computed regularly, cached, and published to all clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.config.agents import agent_config, default_agent_id, heartbeat_config, heartbeat_ms
from openclaw.events import AssistantEnded, Event
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.channels import by_channel, summary_of
from openclaw.gateway.http.common import OPEN, refusal_response
from openclaw.gateway.views import most_recent
from openclaw.runs.endings import ending_of
from openclaw.runs.queue import RunRecord
from openclaw.scheduler.heartbeat import PROMPT
from openclaw.sessions.keys import shown_key
from openclaw.storage import faults
from openclaw.storage.base import END_STATES, AbortReason
from openclaw.storage.disk_errors import in_words

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Route

log = logging.getLogger("openclaw.gateway.http.monitoring")
TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")
TURN_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_AGE_MS = 60_000
RECENT_SESSIONS = 5
FRESH_S = 1.0
"""An answer is reused for this long. The probe needs no secret, so it must not be a way to wear out the disk."""
PATIENCE_S = 5.0
SIZE = 64 << 10
"""The number of bytes written as a test. It is what a message needs: some pages in several files."""


# Counters


class Metrics:
    """What has been counted since the start."""

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

    def aborted(self, reason: AbortReason) -> None:
        pass

    def absorbed(self, by: str) -> None:
        self._metrics.messages["superseded"] += 1

    def finished(self) -> None:
        record = self._record
        if record.result is not None:
            self._metrics.messages[ending_of(record.result).state] += 1
        if record.started_at is not None and record.ended_at is not None:
            self._metrics.turns.add((record.ended_at - record.started_at) / 1000)


# The page of the counters


async def metrics(_request: web.BaseRequest, gateway: Gateway, _peer: PeerAddress) -> web.StreamResponse:
    page = await render(gateway)
    return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


async def render(gateway: Gateway) -> str:
    counted, lag, dispatcher = gateway.metrics, gateway.loop_lag, gateway.dispatcher
    page = MetricsPage()
    page.values("openclaw_info", "The version that runs.", "gauge", "version", {__version__: 1})
    uptime = max(0, gateway.runtime.clock.now_ms() - gateway.started_at) / 1000
    page.gauge("openclaw_uptime_seconds", "Since the Gateway started.", uptime)
    ready = gateway.ready and not await gateway.disk.problem()
    page.gauge("openclaw_ready", "1 when traffic may be sent here.", int(ready))
    ended = {state: counted.messages[state] for state in sorted(END_STATES)}
    page.values("openclaw_messages_total", "Messages that ended, by how.", "counter", "state", ended)
    page.gauge("openclaw_runs_active", "Runs under way.", dispatcher.busy())
    page.gauge("openclaw_runs_queued", "Messages waiting behind a run of their session.", dispatcher.queued())
    page.histogram("openclaw_turn_duration_seconds", "From a run's start to its end.", counted.turns)
    tokens = {kind: counted.tokens[kind] for kind in TOKEN_KINDS}
    page.values("openclaw_tokens_total", "Tokens of model calls, by kind.", "counter", "kind", tokens)
    errors = "openclaw_model_errors_total"
    page.values(errors, "Model calls that failed, by kind.", "counter", "kind", counted.model_errors)
    page.gauge("openclaw_clients", "Connected clients.", len(gateway.broadcaster.clients))
    waiting = await gateway.runtime.ledger.outbox_depth()
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


# Probes


async def alive(_request: web.BaseRequest, _gateway: Gateway, _peer: PeerAddress) -> web.StreamResponse:
    return web.json_response({"ok": True})


async def ready(_request: web.BaseRequest, gateway: Gateway, _peer: PeerAddress) -> web.StreamResponse:
    """Not ready while the Gateway starts or stops, and while its disk refuses writes."""
    problem = await gateway.disk.problem() if gateway.ready else "the Gateway is starting or stopping"
    if problem:
        return web.json_response({"ok": False, "problem": problem}, status=503)
    return web.json_response({"ok": True})


class DiskCheck:
    """Tests whether the disk of the state directory accepts writes."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._path = Path(state_dir) / ".write-check"
        self._clock = clock
        self._at = -FRESH_S
        self._trying: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """What is wrong with the disk and what to do, without paths. It is empty when writes succeed."""
        if self._trying is None or (self._trying.done() and self._clock.monotonic() - self._at >= FRESH_S):
            self._trying = asyncio.create_task(self._try())
        done, _ = await asyncio.wait({self._trying}, timeout=PATIENCE_S)
        return self._trying.result() if done else "the Gateway's disk does not answer; check the disk"

    async def _try(self) -> str:
        try:
            await asyncio.to_thread(self._write)
            return ""
        except OSError as error:
            return in_words(OSError(error.errno, error.strerror))
        finally:
            self._at = self._clock.monotonic()

    def _write(self) -> None:
        faults.write(self._path)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = SIZE
            while left:
                left -= os.write(fd, bytes(left))
            os.fsync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._path.unlink()


# Health


class Health:
    """The last health object, its version, and the one refresh that may be under way."""

    def __init__(
        self,
        clock: Clock,
        disk: DiskCheck,
        build: Callable[[], Awaitable[dict[str, Any]]],
        publish: Callable[[dict[str, Any]], None],
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._build = build
        self._publish = publish
        self.cached: dict[str, Any] | None = None
        self.version = 1
        self._refreshing: asyncio.Task[dict[str, Any]] | None = None

    async def current(self, *, probe: bool = False) -> dict[str, Any]:
        """The health computed now. It is also published when the last publication is a minute old."""
        if probe:
            problem = await self._disk.problem()
            return {**await self.refresh(), **({"ok": False, "problem": problem} if problem else {})}
        cached = self.cached
        if cached is None or self._clock.now_ms() - cached["ts"] >= MAX_AGE_MS:
            return await self.refresh()
        return await self._build()

    async def refresh(self) -> dict[str, Any]:
        return await asyncio.shield(self.refresh_soon())

    def refresh_soon(self) -> asyncio.Task[dict[str, Any]]:
        """Starts a refresh unless one runs, so that many clients that connect together cause one."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_log_failure)
        return self._refreshing

    async def _refresh(self) -> dict[str, Any]:
        self.cached = await self._build()
        self.version += 1
        self._publish(self.cached)
        return self.cached

    def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()


def _log_failure(task: asyncio.Task[dict[str, Any]]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("health could not be computed: %s", error, exc_info=error)


async def build_health(gateway: Gateway) -> dict[str, Any]:
    config = gateway.runtime.config.current
    began, now = gateway.runtime.clock.monotonic(), gateway.runtime.clock.now_ms()
    default = default_agent_id(config)
    channels = by_channel(gateway.channel_services.channels)
    agents: list[dict[str, Any]] = []
    for agent_id in gateway.agent_ids():
        listed = agent_config(config, agent_id)
        agent: dict[str, Any] = {"agentId": agent_id}
        if listed is not None and listed.name:
            agent["name"] = listed.name
        agent["isDefault"] = agent_id == default
        agent["heartbeat"] = heartbeat_summary(gateway, agent_id)
        agent["sessions"] = await session_summary(gateway, agent_id, now)
        agents.append(agent)
    sessions = next(agent["sessions"] for agent in agents if agent["isDefault"])
    problems = gateway.state_watch.problems
    return {
        "ok": not problems,
        **({"problem": "; ".join(problems)} if problems else {}),
        "ts": now,
        "durationMs": int((gateway.runtime.clock.monotonic() - began) * 1000),
        "channels": {name: summary_of([one.status.view() for one in accounts]) for name, accounts in channels.items()},
        "channelOrder": list(channels),
        "channelLabels": {name: accounts[0].kind.label for name, accounts in channels.items()},
        "heartbeatSeconds": heartbeat_ms(config, default) // 1000,
        "defaultAgentId": default,
        "agents": agents,
        "sessions": sessions,
    }


def heartbeat_summary(gateway: Gateway, agent_id: str) -> dict[str, Any]:
    """The agent's heartbeat, and whether there is one."""
    config = gateway.runtime.config.current
    beat, every = heartbeat_config(config, agent_id), heartbeat_ms(config, agent_id)
    enabled = bool(every) and gateway.heartbeats.enabled
    summary: dict[str, Any] = {"enabled": enabled, "every": str(beat.every) if every else "disabled"}
    summary |= {"everyMs": every or None, "prompt": beat.prompt or PROMPT, "target": beat.target}
    if beat.model:
        summary["model"] = beat.model
    return {**summary, "ackMaxChars": beat.ack_max_chars}


async def session_summary(gateway: Gateway, agent_id: str, now: int) -> dict[str, Any]:
    listed = await most_recent(gateway, agent_id, RECENT_SESSIONS)
    recent = [
        {
            "key": shown_key(row.key),
            "updatedAt": row.entry.get("updatedAt"),
            "age": now - (row.entry.get("updatedAt") or now),
        }
        for row in listed.rows
    ]
    return {"path": gateway.runtime.sessions.path(agent_id), "count": listed.total, "recent": recent}


ROUTES: list[Route] = [
    *((verb, "/healthz", alive, OPEN) for verb in ("GET", "HEAD")),
    *((verb, "/readyz", ready, OPEN) for verb in ("GET", "HEAD")),
    ("GET", "/metrics", metrics, refusal_response),
]
