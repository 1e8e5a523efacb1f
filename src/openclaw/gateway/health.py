"""The health of the Gateway. It is computed regularly, cached, and published to all clients."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from openclaw.clock import Clock
from openclaw.config.agents import agent_config, default_agent_id, heartbeat_config, heartbeat_ms
from openclaw.gateway.channels import by_channel, summary_of
from openclaw.gateway.session_views import most_recent
from openclaw.protocol.health import AgentReport, HealthReport, HeartbeatSummary, SessionStoreSummary, UsedSession
from openclaw.scheduler.heartbeat import PROMPT
from openclaw.sessions.keys import shown_key

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.channels.manager import ChannelManager
    from openclaw.config.schema import Config
    from openclaw.gateway.disk_check import DiskCheck
    from openclaw.gateway.presence import Presence
    from openclaw.gateway.server.events import Broadcaster
    from openclaw.gateway.session_directory import SessionDirectory
    from openclaw.runs.runs import Runs
    from openclaw.scheduler.heartbeat import Heartbeats
    from openclaw.storage.files.newer_state import StateWatch

log = logging.getLogger("openclaw.gateway.health")

MAX_AGE_MS = 60_000
RECENT_SESSIONS = 5


class HealthSources(msgspec.Struct, kw_only=True, frozen=True):
    """The parts whose state makes up the health of the Gateway."""

    runtime: Runtime
    directory: SessionDirectory
    channels: ChannelManager
    heartbeats: Heartbeats
    runs: Runs
    state_watch: StateWatch


class Health:
    """The last health object, its version, and the one refresh that may be under way."""

    def __init__(
        self,
        clock: Clock,
        disk: DiskCheck,
        sources: HealthSources,
        broadcaster: Broadcaster,
        presence: Presence,
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._sources = sources
        self._broadcaster = broadcaster
        self._presence = presence
        self.cached: HealthReport | None = None
        self.version = 1
        self._refreshing: asyncio.Task[HealthReport] | None = None

    async def current(self, *, probe: bool = False) -> HealthReport:
        """The health computed now. It is also published when the last publication is a minute old."""
        if probe:
            problem = await self._disk.problem()
            report = await self.refresh()
            return msgspec.structs.replace(report, ok=False, problem=problem) if problem else report
        cached = self.cached
        if cached is None or self._clock.now_ms() - cached.ts >= MAX_AGE_MS:
            return await self.refresh()
        return await build_health(self._sources)

    async def refresh(self) -> HealthReport:
        return await asyncio.shield(self.refresh_soon())

    def refresh_soon(self) -> asyncio.Task[HealthReport]:
        """Start a refresh unless one runs, so that many clients that connect together cause one."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_log_failure)
        return self._refreshing

    async def _refresh(self) -> HealthReport:
        self.cached = await build_health(self._sources)
        self.version += 1
        version = {"presence": self._presence.version, "health": self.version}
        self._broadcaster.publish("health", self.cached, state_version=version)
        return self.cached

    def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()


def _log_failure(task: asyncio.Task[HealthReport]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("health could not be computed: %s", error, exc_info=error)


async def build_health(sources: HealthSources) -> HealthReport:
    config = sources.runtime.config.current
    began, now = sources.runtime.clock.monotonic(), sources.runtime.clock.now_ms()
    default = default_agent_id(config)
    channels = by_channel(sources.channels)
    agents: list[AgentReport] = []
    for agent_id in sources.directory.agent_ids():
        listed = agent_config(config, agent_id)
        agents.append(
            AgentReport(
                agent_id=agent_id,
                name=(listed.name or None) if listed is not None else None,
                is_default=agent_id == default,
                heartbeat=heartbeat_summary(config, agent_id, enabled=sources.heartbeats.enabled),
                sessions=await session_summary(sources.runtime, agent_id, now),
            )
        )
    critical = [finding.text for finding in sources.state_watch.problems if finding.severity == "critical"]
    return HealthReport(
        ok=not critical,
        problem="; ".join(critical),
        waits_for_storage=list(sources.runs.storage_problems()),
        ts=now,
        duration_ms=int((sources.runtime.clock.monotonic() - began) * 1000),
        channels={name: summary_of([one.status for one in accounts]) for name, accounts in channels.items()},
        channel_order=list(channels),
        channel_labels={name: accounts[0].kind.label for name, accounts in channels.items()},
        heartbeat_seconds=heartbeat_ms(config, default) // 1000,
        default_agent_id=default,
        agents=agents,
        sessions=next(agent.sessions for agent in agents if agent.is_default),
    )


def heartbeat_summary(config: Config, agent_id: str, *, enabled: bool) -> HeartbeatSummary:
    """Describe the agent's heartbeat. ``enabled`` tells whether heartbeats run at all."""
    beat, every = heartbeat_config(config, agent_id), heartbeat_ms(config, agent_id)
    return HeartbeatSummary(
        enabled=bool(every) and enabled,
        every=str(beat.every) if every else "disabled",
        every_ms=every or None,
        prompt=beat.prompt or PROMPT,
        target=beat.target,
        model=beat.model or None,
        ack_max_chars=beat.ack_max_chars,
    )


async def session_summary(runtime: Runtime, agent_id: str, now: int) -> SessionStoreSummary:
    scope = runtime.config.current.session.scope
    listed = await most_recent(runtime.stores.sessions, agent_id, RECENT_SESSIONS, scope=scope)
    recent: list[UsedSession] = []
    for row in listed.rows:
        updated = row.entry.get("updatedAt")
        recent.append(UsedSession(key=shown_key(row.key), updated_at=updated, age=now - (updated or now)))
    return SessionStoreSummary(path=runtime.stores.sessions.path(agent_id), count=listed.total, recent=recent)
