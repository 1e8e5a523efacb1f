"""The Gateway's answers and the reports of commands, as the commands read them. Type checkers alone import this module.

Commands print answers as they are and read few of their fields. Decoding them into records would import msgspec, which
takes as long as everything else that a command does. A key of a class that is not total may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, Required, TypedDict

# Sessions and their messages


class SessionAnswer(TypedDict, total=False):
    """A row of ``sessions.list`` and of ``status``."""

    key: Required[str]
    kind: str
    label: str
    channel: str
    updatedAt: float | None
    age: float | None
    ageMs: float | None
    sessionId: str
    systemSent: bool
    abortedLastRun: bool
    totalTokens: float | None
    contextTokens: float | None
    model: str | None
    compactionCount: int


class SessionsAnswer(TypedDict, total=False):
    ts: int
    path: str
    paths: list[str]
    sessions: list[SessionAnswer]


class SessionsReport(TypedDict):
    path: str
    paths: list[str]
    count: int
    activeMinutes: int | None
    sessions: list[SessionAnswer]


class ContentBlock(TypedDict, total=False):
    type: str
    text: str
    name: str
    arguments: object
    input: object


class EntryMark(TypedDict, total=False):
    id: str


class MessageAnswer(TypedDict("_Marked", {"__openclaw": EntryMark}, total=False), total=False):
    role: str
    content: str | list[ContentBlock]
    model: str
    mediaUrls: list[str]
    stopReason: str
    errorMessage: str
    isError: bool
    toolName: str


class PersonsMessage(TypedDict, total=False):
    """The message that a run answers, or one that waits."""

    id: str
    text: str


class AnsweringRun(TypedDict, total=False):
    said: PersonsMessage


class ConversationAnswer(TypedDict, total=False):
    """The answer of ``chat.view``."""

    messages: list[MessageAnswer]
    run: AnsweringRun | None
    waiting: list[PersonsMessage]
    asked: str


class SessionReport(SessionAnswer):
    running: AnsweringRun | None
    waiting: list[PersonsMessage]
    messages: list[MessageAnswer]


class ErrorAnswer(TypedDict, total=False):
    code: str
    message: str


class StreamData(TypedDict, total=False):
    """What an ``agent`` event says of a run; ``phase`` and the stream tell which fields it has."""

    phase: str
    text: str
    delta: str
    error: str
    delayMs: int
    attempt: int
    name: str
    questionId: str
    args: object
    meta: str
    result: object
    isError: bool


class StreamPayload(TypedDict, total=False):
    """The payload of an answer to ``chat.send`` or ``agent``, or of an event of the run."""

    runId: str
    sessionKey: str
    stream: str
    data: StreamData
    state: str
    status: str
    summary: str
    queued: bool
    message: MessageAnswer
    errorMessage: str
    result: object


class StreamFrame(TypedDict, total=False):
    """A response or an event of a stream."""

    type: str
    event: str
    ok: bool
    seq: int
    payload: StreamPayload
    error: ErrorAnswer


# Channels


class ProbeAnswer(TypedDict, total=False):
    ok: bool
    error: str
    version: str


class ChannelAccountAnswer(TypedDict, total=False):
    accountId: str
    name: str | None
    enabled: bool
    configured: bool
    running: bool
    connected: bool
    node: str
    lastError: str | None
    lastInboundAt: float | None
    lastOutboundAt: float | None
    resolvedNames: dict[str, str]
    probe: ProbeAnswer


class ChannelsStatusAnswer(TypedDict, total=False):
    ts: int
    channelLabels: dict[str, str]
    channelAccounts: dict[str, list[ChannelAccountAnswer]]
    channelCapabilities: dict[str, dict[str, bool | list[str]]]


# Skills, MCP servers, extensions


class InstallStep(TypedDict, total=False):
    label: str


class SkillRow(TypedDict):
    name: str
    skillKey: str
    description: str
    source: str
    filePath: str
    eligible: bool
    disabled: bool
    blockedByAllowlist: bool
    requirements: dict[str, list[str]]
    missing: dict[str, list[str]]
    install: list[InstallStep]
    emoji: NotRequired[str]
    homepage: NotRequired[str]
    modelInvocable: NotRequired[bool]


class SkillProblemAnswer(TypedDict):
    path: str
    reason: str


class SkillsStatusAnswer(TypedDict):
    skills: list[SkillRow]
    workspaceDir: str
    managedSkillsDir: str
    problems: NotRequired[list[SkillProblemAnswer]]


class ServerTool(TypedDict):
    name: str


class McpServerAnswer(TypedDict):
    name: str
    state: str
    sessions: str
    transport: str
    ask: str
    problem: str | None
    tools: list[ServerTool]
    version: NotRequired[str]
    leftOut: NotRequired[list[str]]


class McpServersAnswer(TypedDict):
    servers: list[McpServerAnswer]


class PluginRow(TypedDict):
    id: str
    state: str
    source: str
    failures: int
    problem: str
    lastFailure: str
    adds: list[str]


class PluginsAnswer(TypedDict):
    plugins: list[PluginRow]


# Scheduled jobs


class Schedule(TypedDict, total=False):
    kind: str
    at: str
    everyMs: int
    expr: str
    tz: str


class JobState(TypedDict, total=False):
    runningAtMs: int
    lastStatus: str
    nextRunAtMs: int
    lastRunAtMs: int


class Job(TypedDict, total=False):
    id: str
    name: str
    enabled: bool
    agentId: str
    sessionTarget: str
    schedule: Schedule
    state: JobState


class JobsAnswer(TypedDict, total=False):
    jobs: list[Job]
    timezone: str | None


class CronStatus(TypedDict, total=False):
    enabled: bool
    jobs: int
    storePath: str
    nextWakeAtMs: int | None
    timezone: str | None


class JobRun(TypedDict, total=False):
    runAtMs: int
    status: str
    durationMs: int
    error: str
    summary: str


class JobRuns(TypedDict, total=False):
    entries: list[JobRun]
    timezone: str | None


# Memory


class EmbeddingFallback(TypedDict("_From", {"from": str}), total=False):
    reason: str


class MemoryStatusAnswer(TypedDict, total=False):
    agentId: str
    enabled: bool
    mode: str
    sources: list[str]
    workspace: str
    index: str
    files: int
    bytes: int
    chunks: int
    embedded: int
    waiting: int
    provider: str | None
    model: str | None
    embeddingsWork: bool | None
    fallback: EmbeddingFallback | None


class Passage(TypedDict, total=False):
    path: str
    startLine: int
    endLine: int
    score: float
    snippet: str


class Passages(TypedDict, total=False):
    results: list[Passage]
    fallback: EmbeddingFallback | None


# Rules for commands


class AllowedProgram(TypedDict):
    pattern: str
    cwd: NotRequired[str]
    files: NotRequired[object]


class ExecRules(TypedDict, total=False):
    security: str
    ask: str
    askFallback: str
    allowlist: list[AllowedProgram]


class RulesFileAnswer(TypedDict, total=False):
    version: int
    defaults: ExecRules
    agents: dict[str, ExecRules]


class RulesAnswer(TypedDict):
    path: str
    exists: bool
    hash: str
    file: RulesFileAnswer


# Pairing and nodes


class PairingRequestAnswer(TypedDict):
    id: str
    code: str
    channel: str
    createdAt: str
    meta: NotRequired[dict[str, str]]


class PairingRequests(TypedDict, total=False):
    requests: list[PairingRequestAnswer]


class ApprovedPerson(TypedDict):
    id: str
    channel: str
    notified: NotRequired[bool]
    notifyError: NotRequired[str]


class Device(TypedDict, total=False):
    deviceId: str
    requestId: str
    displayName: str
    clientId: str
    platform: str
    remoteIp: str
    role: str
    roles: list[str]
    ts: int
    approvedAtMs: int


class DevicesAnswer(TypedDict, total=False):
    pending: list[Device]
    paired: list[Device]


class ListedNode(TypedDict, total=False):
    nodeId: str
    displayName: str
    platform: str
    connected: bool
    connectedAtMs: int
    paired: bool
    commands: list[str]


class NodesAnswer(TypedDict):
    nodes: list[ListedNode]


class PendingNodes(TypedDict):
    pending: list[Device]


class CommandResult(TypedDict, total=False):
    """What a node answers to ``system.run``."""

    stdout: str
    stderr: str
    error: str
    exitCode: int
    timedOut: bool


class NodeGateway(TypedDict, total=False):
    url: str
    tlsFingerprint: str


class NodeSettings(TypedDict, total=False):
    """``node.json``: how the node was last started."""

    version: int
    displayName: str
    gateway: NodeGateway | None


class ServiceUnit(TypedDict):
    label: str
    installed: bool


class NodeStatus(TypedDict):
    nodeId: str | None
    displayName: str | None
    gateway: NodeGateway | None
    hasToken: bool
    rules: str
    service: ServiceUnit


# The agent's browser


class PageImage(TypedDict):
    data: str


class AriaNode(TypedDict, total=False):
    depth: int
    role: str
    name: str
    ref: str


class BrowserTab(TypedDict, total=False):
    targetId: str
    title: str
    url: str


class BrowserProfileAnswer(TypedDict, total=False):
    name: str
    running: bool
    isDefault: bool
    isRemote: bool


class ConsoleMessage(TypedDict, total=False):
    type: str
    text: str
    location: str


class BrowserAnswer(BrowserTab, total=False):
    """The fields of all answers to ``browser.request``."""

    profile: str
    running: bool
    enabled: bool
    headless: bool
    pageError: str
    result: object
    profiles: list[BrowserProfileAnswer]
    tabs: list[BrowserTab]
    snapshot: str
    nodes: list[AriaNode]
    messages: list[ConsoleMessage]
    path: str
    file: str
    image: PageImage


# Models


class ModelEntry(TypedDict, total=False):
    provider: str
    id: str
    name: str
    input: list[str]
    contextWindow: int
    reasoning: bool
    available: bool


class ModelRow(TypedDict):
    key: str
    name: str | None
    input: list[str]
    contextWindow: int | None
    local: bool
    available: bool | None
    tags: list[str]
    missing: bool
    tools: NotRequired[object]
    size: NotRequired[int]
    about: NotRequired[str]


class ModelRows(TypedDict):
    count: int
    models: list[ModelRow]


class ProviderKey(TypedDict):
    id: NotRequired[str]
    source: str
    where: NotRequired[str]


class ProviderKeys(TypedDict):
    provider: str
    label: str
    keys: list[ProviderKey]


class ModelsStatusAnswer(TypedDict, total=False):
    defaultModel: str | None
    why: str
    providers: list[ProviderKeys]
    variables: list[str]


class ProbedModel(TypedDict):
    ok: bool
    model: str
    key: ProviderKey
    durationMs: NotRequired[int]
    error: NotRequired[str]
    kind: NotRequired[str]


class KeyOffer(TypedDict):
    """A key of this terminal that the Gateway lacks."""

    provider: str
    label: str
    variable: str


class StoredProfile(TypedDict):
    id: str
    provider: str
    type: str
    expires: int | None


class CoolingKey(TypedDict):
    profileId: str
    provider: str
    kind: str
    reason: object
    failure: str
    model: str
    until: int
    remainingMs: int


class AuthReport(TypedDict):
    storePath: str
    providers: list[str]
    profiles: list[StoredProfile]
    order: object
    unusableProfiles: list[CoolingKey]
    check: int


class ModelReport(TypedDict):
    configPath: str
    agentDir: str
    defaultModel: str | None
    resolvedDefault: str
    why: str
    fallbacks: list[str]
    imageModel: str | None
    imageFallbacks: list[str]
    allowed: list[str]
    auth: AuthReport
    aliases: dict[str, str]
    localInstalled: bool
    gateway: NotRequired[ModelsStatusAnswer | None]
    notInGateway: NotRequired[list[KeyOffer]]
    probe: NotRequired[list[ProbedModel]]


# Status, health, usage, logs


class RecentSession(TypedDict, total=False):
    key: str
    updatedAt: int | None
    age: float | None


class SessionsSummary(TypedDict, total=False):
    path: str
    count: int
    recent: list[RecentSession]


class AgentHealth(TypedDict, total=False):
    agentId: str
    name: str
    sessions: SessionsSummary


class ChannelHealth(TypedDict, total=False):
    configured: bool
    connected: bool
    lastError: str | None


class HealthAnswer(TypedDict, total=False):
    ok: bool
    problem: str
    waitsForStorage: list[str]
    channels: dict[str, ChannelHealth]
    channelOrder: list[str]
    channelLabels: dict[str, str]
    defaultAgentId: str
    agents: list[AgentHealth]
    sessions: SessionsSummary


class AgentHeartbeat(TypedDict, total=False):
    agentId: str
    enabled: bool
    every: str


class HeartbeatsAnswer(TypedDict, total=False):
    agents: list[AgentHeartbeat]


class SessionDefaults(TypedDict, total=False):
    model: str | None
    modelProvider: str | None
    contextTokens: int | None


class StatusSessions(TypedDict, total=False):
    count: int
    paths: list[str]
    defaults: SessionDefaults
    recent: list[SessionAnswer]


class StatusAnswer(TypedDict, total=False):
    runtimeVersion: str
    heartbeat: HeartbeatsAnswer
    channelSummary: list[str]
    queuedSystemEvents: list[str]
    sessions: StatusSessions


class AgentSessions(TypedDict):
    id: str | None
    name: str | None
    sessionsPath: str | None
    sessionsCount: int
    lastUpdatedAt: int | None
    lastActiveAgeMs: float | None


class AgentsSummary(TypedDict):
    defaultId: str | None
    agents: list[AgentSessions]
    totalSessions: int


class QuotaWindow(TypedDict, total=False):
    label: str
    usedPercent: float


class ProviderQuota(TypedDict, total=False):
    displayName: str
    error: str
    windows: list[QuotaWindow]


class UsageStatusAnswer(TypedDict, total=False):
    providers: list[ProviderQuota]


class CostTotals(TypedDict):
    totalTokens: int
    totalCost: float
    missingCostEntries: int


class DayCostAnswer(CostTotals):
    date: str


class UsageCostAnswer(TypedDict):
    days: int
    totals: CostTotals
    daily: list[DayCostAnswer]


class HeartbeatEvent(TypedDict, total=False):
    ts: float
    status: str
    reason: str
    channel: str
    to: str
    preview: str


class PresenceEntry(TypedDict, total=False):
    ts: float
    host: str
    text: str
    ip: str
    platform: str
    mode: str
    version: str


class LogPage(TypedDict, total=False):
    file: str
    cursor: int
    size: int
    lines: list[str]
    reset: bool
    truncated: bool


class LogLine(TypedDict):
    time: object
    level: str
    message: str
    subsystem: NotRequired[str]
    fields: NotRequired[dict[str, object]]


# The cluster


class ClusterNode(TypedDict):
    id: str
    state: str
    url: str | None
    host: str
    pid: int
    version: str
    startedAt: int
    endedAt: NotRequired[int | None]
    connected: bool
    sessions: int
    runs: int
    queued: int
    clients: int
    leaseMs: float
    relayLagMs: float
    databaseMs: float


class ClusterStatus(TypedDict):
    ts: int
    clustered: bool
    node: str
    storage: str
    problem: NotRequired[str]
    nodes: list[ClusterNode]
    holds: dict[str, str]
    unowned: int


# This computer's Gateway and its service


class InstalledService(TypedDict):
    ok: bool
    path: str
    enabled: bool
    variables: NotRequired[list[str]]
    run: NotRequired[list[str]]


class ProcessState(TypedDict):
    status: str
    detail: str
    pid: NotRequired[int]


class DashboardReport(TypedDict):
    url: str
    wsUrl: str
    running: bool
    signInUrl: NotRequired[str]
    expiresInMs: NotRequired[int]


class UnitCheck(TypedDict):
    ok: bool
    issues: list[str]


class UnitReport(TypedDict):
    label: str
    loaded: bool
    command: list[str]
    runtime: ProcessState
    configAudit: UnitCheck


class ConfigFile(TypedDict):
    path: str
    exists: bool


class ConfigFiles(TypedDict):
    cli: ConfigFile
    daemon: ConfigFile


class Listener(TypedDict):
    pid: int


class PortReport(TypedDict):
    port: int
    status: str
    listeners: list[Listener]
    hints: list[str]


class ListenAddress(TypedDict):
    bindMode: str
    bindHost: str
    port: int
    portSource: str
    probeUrl: str
    tlsFingerprint: NotRequired[str]


class GatewayAnswers(TypedDict):
    ok: bool
    url: str
    error: NotRequired[str]


class GatewayReport(TypedDict):
    service: UnitReport
    config: ConfigFiles
    gateway: ListenAddress
    port: PortReport
    rpc: GatewayAnswers | None
    extraServices: list[str]


class GatewayLockFile(TypedDict, total=False):
    """What a running Gateway writes into its lock file."""

    pid: Required[int]
    port: int
    portGiven: bool
    host: str
    configPath: str
    tlsFingerprint: str
    ownerKey: str


class BackupFacts(TypedDict):
    id: str
    createdAt: str
    version: str
    files: int
    bytes: int


class BackupList(TypedDict):
    folder: str
    encrypted: bool
    backups: list[BackupFacts]


class VerifiedBackup(BackupFacts):
    ok: bool
    problems: list[str]


# Sandboxes


class SandboxToolsAnswer(TypedDict):
    allow: list[str]
    deny: list[str]
    offered: list[str]


class SandboxFactsAnswer(TypedDict, total=False):
    mode: Required[str]
    scope: Required[str]
    backend: Required[str]
    workspaceAccess: Required[str]
    workspaceRoot: Required[str]
    sessionIsSandboxed: Required[bool]
    problem: Required[str | None]
    inheritedFrom: str | None
    folder: str
    workdir: str
    network: str
    limits: Mapping[str, object]
    mounts: list[str]
    tools: SandboxToolsAnswer


class ElevatedFacts(TypedDict):
    enabled: bool
    allowFrom: dict[str, list[str]]


class SandboxExplanation(TypedDict):
    agentId: str
    sessionKey: str
    mainSessionKey: str
    sandbox: SandboxFactsAnswer
    elevated: ElevatedFacts
    fixIt: list[str]


# Additional libraries


class ExtraRow(TypedDict):
    name: str
    installed: bool
    libraries: list[str]


class Extras(TypedDict):
    extras: list[ExtraRow]
