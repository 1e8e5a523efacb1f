"""The one schema: every key of ``openclaw.json``, its type, its default and its documentation.

It reads, validates, and is the source of the JSON Schema. Sections we do not act on yet are open maps, so that an
existing file opens without complaint.
"""

from msgspec import field

from openclaw.config.schema.agents import (
    AgentCompaction,
    AgentConfig,
    AgentDefaults,
    Agents,
    AgentSubagents,
    Binding,
    BindingMatch,
    BindingPeer,
    BlockChunk,
    BlockCoalesce,
    Budget,
    ContextPruning,
    Heartbeat,
    HumanDelay,
    Identity,
    MemoryFlush,
    MemorySearch,
    ModelChoice,
    ModelSetting,
    ModelUse,
    Sandbox,
    SubagentDefaults,
)
from openclaw.config.schema.base import OpenMap, Record, Secret, SecretRef, Sensitive
from openclaw.config.schema.channels import (
    ChannelDefaults,
    Channels,
    DmPolicy,
    GroupPolicy,
    HeartbeatVisibility,
    SignalAccount,
    SignalConfig,
    SignalGroup,
)
from openclaw.config.schema.gateway import ControlUi, Gateway, GatewayAuth, GatewayReload, GatewayRemote, GatewayTls
from openclaw.config.schema.messages import (
    GroupChat,
    InboundDebounce,
    Messages,
    Queue,
    QueueDrop,
    QueueMode,
    ResetByType,
    SendMatch,
    SendPolicy,
    SendRule,
    Session,
    SessionReset,
)
from openclaw.config.schema.models import Auth, AuthProfile, ModelApi, ModelConfig, ModelCost, Models, ProviderConfig
from openclaw.config.schema.system import (
    BranchSummary,
    Broadcast,
    Browser,
    CanvasHost,
    Commands,
    Compaction,
    Cron,
    Diagnostics,
    Discovery,
    Env,
    FileMeta,
    HookMapping,
    Hooks,
    Logging,
    Memory,
    Plugins,
    Retry,
    ShellEnv,
    SkillEntry,
    Skills,
    Talk,
    Ui,
    Update,
    Web,
    Wizard,
)
from openclaw.config.schema.tools import AgentTools, Elevated, ExecConfig, ProviderToolPolicy, ToolPolicy, Tools


class Config(Record):
    """The whole configuration, defaults filled in."""

    schema_url: str | None = field(default=None, name="$schema")
    """Address of a schema for editors; ignored by the Gateway."""
    meta: FileMeta = FileMeta()
    """Who wrote the file last."""
    env: Env = Env()
    """Environment variables."""
    wizard: Wizard = Wizard()
    """What the setup did."""
    diagnostics: Diagnostics = Diagnostics()
    """Finding out what is going on."""
    logging: Logging = Logging()
    """Logs."""
    update: Update = Update()
    """New releases."""
    browser: Browser = Browser()
    """The browser tool."""
    ui: Ui = Ui()
    """Look of the interfaces."""
    auth: Auth = Auth()
    """Credentials for model providers."""
    models: Models = Models()
    """Model providers."""
    node_host: OpenMap = {}
    """This machine as a node of another Gateway."""
    agents: Agents = Agents()
    """The agents."""
    tools: Tools = Tools()
    """Tools of the agents."""
    bindings: list[Binding] = []
    """Which agent gets which messages."""
    broadcast: Broadcast = Broadcast()
    """Chats in which several agents answer."""
    audio: OpenMap = {}
    """Transcription of voice messages."""
    media: OpenMap = {}
    """Stored media: preserveFilenames."""
    messages: Messages = Messages()
    """Messages in and out."""
    commands: Commands = Commands()
    """Commands in chats."""
    approvals: OpenMap = {}
    """Where requests for approval are shown."""
    session: Session = Session()
    """Conversations."""
    cron: Cron = Cron()
    """Scheduled jobs."""
    hooks: Hooks = Hooks()
    """Webhooks and internal hooks."""
    web: Web = Web()
    """The WhatsApp Web connection."""
    channels: Channels = Channels()
    """Chat services."""
    discovery: Discovery = Discovery()
    """Being found on the network."""
    canvas_host: CanvasHost = CanvasHost()
    """The canvas."""
    talk: Talk = Talk()
    """Talking aloud."""
    gateway: Gateway = Gateway()
    """The server."""
    memory: Memory = Memory()
    """Remembering."""
    skills: Skills = Skills()
    """Skills."""
    plugins: Plugins = Plugins()
    """Plugins."""
    retry: Retry = Retry()
    """Repeating failed model calls."""
    compaction: Compaction = Compaction()
    """Summarising old history."""
    branch_summary: BranchSummary = BranchSummary()
    """Summarising a branch that is left."""
    secrets: OpenMap = {}
    """Secret stores of other versions; kept, not used."""
    acp: OpenMap = {}
    """Agent client protocol settings; kept, not used."""
    cli: OpenMap = {}
    """Settings of the command line."""
    mcp: OpenMap = {}
    """MCP servers."""


__all__ = [
    "AgentCompaction",
    "AgentConfig",
    "AgentDefaults",
    "AgentSubagents",
    "AgentTools",
    "Agents",
    "Auth",
    "AuthProfile",
    "Binding",
    "BindingMatch",
    "BindingPeer",
    "BlockChunk",
    "BlockCoalesce",
    "BranchSummary",
    "Broadcast",
    "Browser",
    "Budget",
    "CanvasHost",
    "ChannelDefaults",
    "Channels",
    "Commands",
    "Compaction",
    "Config",
    "ContextPruning",
    "ControlUi",
    "Cron",
    "Diagnostics",
    "Discovery",
    "DmPolicy",
    "Elevated",
    "Env",
    "ExecConfig",
    "FileMeta",
    "Gateway",
    "GatewayAuth",
    "GatewayReload",
    "GatewayRemote",
    "GatewayTls",
    "GroupChat",
    "GroupPolicy",
    "Heartbeat",
    "HeartbeatVisibility",
    "HookMapping",
    "Hooks",
    "HumanDelay",
    "Identity",
    "InboundDebounce",
    "Logging",
    "Memory",
    "MemoryFlush",
    "MemorySearch",
    "Messages",
    "ModelApi",
    "ModelChoice",
    "ModelConfig",
    "ModelCost",
    "ModelSetting",
    "ModelUse",
    "Models",
    "OpenMap",
    "Plugins",
    "ProviderConfig",
    "ProviderToolPolicy",
    "Queue",
    "QueueDrop",
    "QueueMode",
    "Record",
    "ResetByType",
    "Retry",
    "Sandbox",
    "Secret",
    "SecretRef",
    "SendMatch",
    "SendPolicy",
    "SendRule",
    "Sensitive",
    "Session",
    "SessionReset",
    "ShellEnv",
    "SignalAccount",
    "SignalConfig",
    "SignalGroup",
    "SkillEntry",
    "Skills",
    "SubagentDefaults",
    "Talk",
    "ToolPolicy",
    "Tools",
    "Ui",
    "Update",
    "Web",
    "Wizard",
]
