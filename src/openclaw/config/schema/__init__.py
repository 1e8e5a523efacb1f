"""The schema of ``openclaw.json``: every key with its type, its default and its documentation.

Reading, validation and the JSON Schema are made from it. Keys that nothing acts on yet are listed in
``config/unsupported.py``.
"""

from msgspec import field

from openclaw.config.schema import system
from openclaw.config.schema.agents import Agents, RouteBinding
from openclaw.config.schema.base import OpenMap, Record
from openclaw.config.schema.channels import Channels
from openclaw.config.schema.gateway import GatewayConfig
from openclaw.config.schema.messages import Messages, Session
from openclaw.config.schema.models import Auth, Models
from openclaw.config.schema.tools import Mcp, Tools


class Config(Record):
    """The whole configuration, defaults filled in."""

    schema_url: str | None = field(default=None, name="$schema")
    """Address of a schema for editors; ignored by the Gateway."""
    meta: system.FileMeta = system.FileMeta()
    """Who wrote the file last."""
    env: system.Env = system.Env()
    """Environment variables."""
    wizard: system.Wizard = system.Wizard()
    """What the setup did."""
    diagnostics: system.Diagnostics = system.Diagnostics()
    """Finding out what is going on."""
    logging: system.Logging = system.Logging()
    """Logs."""
    update: system.UpdateConfig = system.UpdateConfig()
    """New releases."""
    browser: system.Browser = system.Browser()
    """The browser tool."""
    ui: system.Ui = system.Ui()
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
    bindings: list[RouteBinding] = []
    """Which agent gets which messages."""
    broadcast: system.Broadcast = system.Broadcast()
    """Chats in which several agents answer."""
    audio: system.Audio = system.Audio()
    """Transcription of voice messages, as older configurations have it; see tools.media.audio."""
    media: OpenMap = {}
    """Stored media: preserveFilenames."""
    messages: Messages = Messages()
    """Messages in and out."""
    commands: system.Commands = system.Commands()
    """Commands in chats."""
    approvals: OpenMap = {}
    """Where requests for approval are shown."""
    session: Session = Session()
    """Conversations."""
    storage: system.StorageConfig = system.StorageConfig()
    """Where sessions, transcripts, messages and files of messages are kept."""
    cluster: system.ClusterConfig = system.ClusterConfig()
    """Several Gateways on one database."""
    cron: system.CronConfig = system.CronConfig()
    """Scheduled jobs."""
    hooks: system.Hooks = system.Hooks()
    """Webhooks and internal hooks."""
    web: system.Web = system.Web()
    """The WhatsApp Web connection."""
    channels: Channels = Channels()
    """Chat services."""
    discovery: system.Discovery = system.Discovery()
    """Being found on the network."""
    canvas_host: system.CanvasHost = system.CanvasHost()
    """The canvas."""
    talk: system.Talk = system.Talk()
    """Talking aloud."""
    gateway: GatewayConfig = GatewayConfig()
    """The server."""
    memory: system.Memory = system.Memory()
    """Remembering."""
    skills: system.Skills = system.Skills()
    """Skills."""
    plugins: system.Plugins = system.Plugins()
    """Plugins."""
    retry: system.Retry = system.Retry()
    """Repeating failed model calls."""
    compaction: system.Compaction = system.Compaction()
    """Summarising old history."""
    branch_summary: system.BranchSummary = system.BranchSummary()
    """Summarising a branch that is left."""
    secrets: OpenMap = {}
    """Secret stores of other versions; kept, not used."""
    acp: OpenMap = {}
    """Agent client protocol settings; kept, not used."""
    cli: OpenMap = {}
    """Settings of the command line."""
    mcp: Mcp = Mcp()
    """MCP servers."""
