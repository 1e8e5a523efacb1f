"""The schema of ``openclaw.json``: every key with its type, its default and its documentation.

Reading, validation and the JSON Schema are made from it. Keys that nothing acts on yet are listed in
``config/unsupported.py``.
"""

from msgspec import field

from openclaw.config.schema.agents import Agents, Binding
from openclaw.config.schema.base import OpenMap, Record
from openclaw.config.schema.channels import Channels
from openclaw.config.schema.gateway import Gateway
from openclaw.config.schema.messages import Messages, Session
from openclaw.config.schema.models import Auth, Models
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
    Hooks,
    Logging,
    Memory,
    Plugins,
    Retry,
    Skills,
    Talk,
    Ui,
    Update,
    Web,
    Wizard,
)
from openclaw.config.schema.tools import Tools


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
