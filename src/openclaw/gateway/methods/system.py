"""Methods about the Gateway itself: health, status, its cluster, presence, logs, missed events and models."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Annotated

import msgspec

from openclaw import __version__
from openclaw.config.agents import default_agent_id
from openclaw.gateway.channels import summary_lines
from openclaw.gateway.health import heartbeat_summary
from openclaw.gateway.logs import DAILY_NAME, log_path
from openclaw.gateway.server.events import LET_GO, ReplayResult, Resumption, catch_up, resume
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.gateway.session_views import model_defaults, most_recent, row_view
from openclaw.protocol.health import (
    AgentSessionsStatus,
    GatewayStatus,
    HealthReport,
    HeartbeatInterval,
    HeartbeatsStatus,
    SessionsStatus,
    StatusDefaults,
    StatusRow,
)
from openclaw.protocol.result import Result, Success
from openclaw.protocol.sessions import ModelDefaults, SessionRowView
from openclaw.storage.sessions import SessionRow

methods = MethodTable()

RECENT_ROWS = 10


class HealthParams(Params):
    probe: bool = False


@methods.add("health", HealthParams)
async def health(call: MethodCall, params: HealthParams) -> HealthReport:
    """Whether the Gateway, its disk and its channels are well."""
    return await call.gateway.health.current(probe=params.probe)


@methods.add("status", NoParams)
async def status(call: MethodCall) -> GatewayStatus:
    """The Gateway, its sessions and their tokens on one page."""
    gateway = call.gateway
    config = gateway.runtime.config.current
    agents: list[HeartbeatInterval] = []
    by_agent: list[AgentSessionsStatus] = []
    for agent_id in gateway.directory.agent_ids():
        beat = heartbeat_summary(config, agent_id, enabled=gateway.heartbeats.enabled)
        agents.append(HeartbeatInterval(agent_id, beat.enabled, beat.every, beat.every_ms))
        listed = await most_recent(gateway.runtime.stores.sessions, agent_id, RECENT_ROWS, scope=config.session.scope)
        defaults = model_defaults(gateway.runtime, agent_id)
        recent = [status_row(row, defaults, gateway.runtime.clock.now_ms()) for row in listed.rows]
        path = gateway.runtime.stores.sessions.path(agent_id)
        by_agent.append(AgentSessionsStatus(agent_id, path, listed.total, recent))
    newest = sorted((row for agent in by_agent for row in agent.recent), key=lambda row: -(row.updated_at or 0))
    defaults = model_defaults(gateway.runtime)
    return GatewayStatus(
        runtime_version=__version__,
        heartbeat=HeartbeatsStatus(default_agent_id(config), agents),
        channel_summary=summary_lines(gateway.channel_services.channels),
        queued_system_events=list(gateway.runtime.notes.peek(gateway.main_session_key())),
        sessions=SessionsStatus(
            paths=[agent.path for agent in by_agent],
            count=sum(agent.count for agent in by_agent),
            defaults=StatusDefaults(defaults.model, defaults.context_tokens),
            recent=newest[:RECENT_ROWS],
            by_agent=by_agent,
        ),
    )


def status_row(row: SessionRow, defaults: ModelDefaults, now: int) -> StatusRow:
    """Describe a session and how full its context is."""
    view = row_view(row, defaults)
    total, window = view.total_tokens, view.context_tokens or None
    remaining = percent = None
    if isinstance(total, int) and isinstance(window, int) and window > 0:
        remaining, percent = max(0, window - total), min(999, math.floor(100 * total / window + 0.5))
    return StatusRow(
        agent_id=row.agent_id,
        key=view.key,
        kind=view.kind,
        session_id=view.session_id,
        updated_at=view.updated_at,
        age=now - view.updated_at if view.updated_at else None,
        thinking_level=view.thinking_level,
        verbose_level=view.verbose_level,
        reasoning_level=view.reasoning_level,
        elevated_level=view.elevated_level,
        system_sent=view.system_sent,
        aborted_last_run=view.aborted_last_run,
        compaction_count=view.compaction_count,
        input_tokens=view.input_tokens,
        output_tokens=view.output_tokens,
        total_tokens=total,
        remaining_tokens=remaining,
        percent_used=percent,
        model=view.model or None,
        context_tokens=window,
        flags=_flags(view),
    )


def _flags(view: SessionRowView) -> list[str]:
    levels = (("think", view.thinking_level), ("verbose", view.verbose_level), ("reasoning", view.reasoning_level))
    flags = [f"{name}:{level}" for name, level in levels if level]
    if view.system_sent:
        flags.append("system")
    if view.aborted_last_run:
        flags.append("aborted")
    if view.session_id:
        flags.append(f"id:{view.session_id}")
    return flags


class SystemEvent(Params):
    text: str
    session_key: NonEmpty | None = None
    device_id: str | None = None
    instance_id: str | None = None
    host: str | None = None
    ip: str | None = None
    mode: str | None = None
    version: str | None = None
    platform: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    last_input_seconds: float | None = None
    reason: str | None = None
    roles: list[str] | None = None
    scopes: list[str] | None = None
    tags: list[str] | None = None


@methods.add("system-presence", NoParams)
async def presence(call: MethodCall) -> list[OpenObject]:
    """The connected clients and the instances that announced themselves."""
    return call.gateway.presence.listing()


@methods.add("system-event", SystemEvent)
async def system_event(call: MethodCall, params: SystemEvent) -> Success:
    """Takes a line of the form ``Node: …`` as presence. Another text waits for the session's next run."""
    text = params.text.strip()
    if not text:
        raise MethodError("text required")
    gateway = call.gateway
    facts = {name: value for name, value in msgspec.to_builtins(params).items() if name not in ("text", "sessionKey")}
    if not gateway.presence.announce(text, facts):
        gateway.runtime.notes.add(gateway.canonical_key(params.session_key), text)
        await gateway.runtime.notes.synced()
    gateway.publish_presence()
    return Success(True)


class LogsTail(Params):
    cursor: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=5000)] = 500
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 250_000


class LogTail(Result):
    file: str
    cursor: int
    """Where the next call continues."""
    size: int
    lines: list[str]
    truncated: bool
    """Earlier lines were left out."""
    reset: bool
    """The cursor no longer fits the file."""


@methods.add("logs.tail", LogsTail)
async def tail(call: MethodCall, params: LogsTail) -> LogTail:
    """The log from a cursor on."""
    path = log_path(call.gateway.runtime.state_dir, call.gateway.runtime.config.current.logging.file)
    return await asyncio.to_thread(read_tail, path, params.cursor, params.limit, params.max_bytes)


def read_tail(path: Path, cursor: int | None, limit: int, max_bytes: int) -> LogTail:
    """Return the lines from ``cursor`` on."""
    if not path.exists() and path.parent.is_dir():
        # Just after midnight today's file may not exist yet, so the newest daily file is read.
        names = [(match, each) for each in path.parent.iterdir() if (match := DAILY_NAME.fullmatch(each.name))]
        path = max((each for match, each in names if not match[2]), key=lambda each: each.name, default=path)
    if not path.exists():
        return LogTail(str(path), 0, 0, [], False, bool(cursor))
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start, reset, truncated = _range(cursor, size, max_bytes)
        before = b"\n"
        if start > 0:
            file.seek(start - 1)
            before = file.read(1)
        file.seek(start)
        data = file.read(size - start)
    # A line still being written is left for the next call.
    whole, newline, _rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if before != b"\n":
        lines = lines[1:]
    shown = [line.decode("utf-8", "replace") for line in lines[-limit:]]
    end = start + len(whole) + len(newline) if newline else (start if cursor is not None else size)
    return LogTail(str(path), end, size, shown, truncated or len(lines) > limit, reset)


def _range(cursor: int | None, size: int, max_bytes: int) -> tuple[int, bool, bool]:
    """Where reading starts, whether the cursor no longer fits, and whether earlier lines are left out."""
    earliest = max(0, size - max_bytes)
    if cursor is not None and earliest <= cursor <= size:
        return cursor, False, False
    return earliest, cursor is not None, earliest > 0


class EventsReplay(Params):
    after_seq: Annotated[int, msgspec.Meta(ge=0)]
    """The last sequence number the client has dealt with."""
    epoch: NonEmpty | None = None
    """The epoch in the ``hello-ok`` of the connection that the number came from. Without it a restart may be missed."""


@methods.add("events.replay", EventsReplay)
async def replay(call: MethodCall, params: EventsReplay) -> ReplayResult:
    """Sends every broadcast after that number, then the answer.

    ``gap`` says that some broadcasts are no longer kept. The client must then load its state again.
    """
    client, broadcaster = call.client, call.gateway.broadcaster
    if broadcaster.clients.get(client.conn_id) is not client:
        raise MethodError("events.replay needs a connection that receives events, such as a WebSocket")
    if client.catching_up:
        raise MethodError("a replay is already under way on this connection", code="UNAVAILABLE", retryable=True)
    resumption = resume(broadcaster, params.after_seq, params.epoch)
    sent = await catch_up(broadcaster, client, resumption.after)
    if sent is None:  # The client reads more slowly than events are published.
        resumption = Resumption(broadcaster.seq, LET_GO)
    return resumption.view(broadcaster, sent or 0)


@methods.add("cluster.status", NoParams)
async def cluster_status(call: MethodCall) -> OpenObject:
    """The nodes of the cluster: how they do, what they own, and how far behind they are."""
    return await call.gateway.cluster.status()
