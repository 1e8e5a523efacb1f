"""Results of ``health`` and ``status``."""

from __future__ import annotations

from openclaw.protocol.result import Result


class ChannelSummary(Result):
    """The flags of one channel, those of its best account."""

    enabled: bool
    configured: bool
    running: bool
    connected: bool
    last_error: str | None = None


class HeartbeatSummary(Result, kw_only=True):
    """The heartbeat of an agent."""

    enabled: bool
    every: str
    """The configured interval, or ``disabled``."""
    every_ms: int | None
    prompt: str
    target: str
    model: str | None = None
    ack_max_chars: int


class UsedSession(Result):
    """A session that was used lately."""

    key: str
    updated_at: int | None
    age: int


class SessionStoreSummary(Result):
    """The store of an agent's sessions, and its newest sessions."""

    path: str
    count: int
    recent: list[UsedSession]


class AgentReport(Result, kw_only=True):
    """An agent, its heartbeat and its sessions."""

    agent_id: str
    name: str | None = None
    is_default: bool
    heartbeat: HeartbeatSummary
    sessions: SessionStoreSummary


class HealthReport(Result, kw_only=True):
    """The health of the Gateway. Only a critical finding makes it unhealthy."""

    ok: bool
    problem: str = ""
    waits_for_storage: list[str] = []
    ts: int
    duration_ms: int
    channels: dict[str, ChannelSummary]
    channel_order: list[str]
    channel_labels: dict[str, str]
    heartbeat_seconds: int
    default_agent_id: str
    agents: list[AgentReport]
    sessions: SessionStoreSummary
    """The sessions of the default agent."""


class HeartbeatInterval(Result):
    """Whether an agent has heartbeats, and how often."""

    agent_id: str
    enabled: bool
    every: str
    every_ms: int | None


class HeartbeatsStatus(Result):
    """The heartbeats of all agents."""

    default_agent_id: str
    agents: list[HeartbeatInterval]


class StatusRow(Result, kw_only=True):
    """A session and how full its context is. Unknown numbers are null."""

    agent_id: str
    key: str
    kind: str
    session_id: str | None
    updated_at: int | float | None
    age: int | float | None
    thinking_level: str | None = None
    verbose_level: str | None = None
    reasoning_level: str | None = None
    elevated_level: str | None = None
    system_sent: bool | None = None
    aborted_last_run: bool | None = None
    compaction_count: int | float | None = None
    input_tokens: int | float | None
    output_tokens: int | float | None
    total_tokens: int | float | None
    remaining_tokens: int | None
    percent_used: int | None
    model: str | None
    context_tokens: int | float | None
    flags: list[str]


class AgentSessionsStatus(Result):
    """The newest sessions of an agent."""

    agent_id: str
    path: str
    count: int
    recent: list[StatusRow]


class StatusDefaults(Result):
    """The model of sessions that chose none."""

    model: str | None
    context_tokens: int | None


class SessionsStatus(Result):
    """The sessions of all agents, newest first."""

    paths: list[str]
    count: int
    defaults: StatusDefaults
    recent: list[StatusRow]
    by_agent: list[AgentSessionsStatus]


class GatewayStatus(Result):
    """The Gateway on one page."""

    runtime_version: str
    heartbeat: HeartbeatsStatus
    channel_summary: list[str]
    queued_system_events: list[str]
    """Texts that wait for the next run of the main session."""
    sessions: SessionsStatus
