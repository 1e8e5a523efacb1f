"""``tools`` and ``mcp``: which tools the agent may use, how they behave, and the MCP servers that add some."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from openclaw.config.schema.base import Count, Name, OpenMap, Positive, Record, Secret, Sender

ToolProfile: TypeAlias = Literal["minimal", "coding", "messaging", "full"]


class ToolPolicy(Record):
    allow: list[str] = []
    """Tools or groups allowed; empty means all."""
    also_allow: list[str] = []
    """Tools added to what the profile allows."""
    deny: list[str] = []
    """Tools or groups refused; wins over allow."""


class ProviderToolPolicy(ToolPolicy):
    profile: ToolProfile | None = None
    """A ready-made set to start from."""


class LayeredToolPolicy(ProviderToolPolicy):
    by_provider: dict[str, ProviderToolPolicy] = {}
    """Policies for a provider or provider/model."""


class ApplyPatch(Record):
    enabled: bool | None = None
    """Offer the apply_patch tool; unset: to models of OpenAI, which were trained on it."""
    workspace_only: bool = True
    """Keep patches inside the workspace."""
    allow_models: list[str] = []
    """Only for these models; empty means all."""


class ExecConfig(Record):
    host: Literal["sandbox", "gateway", "node"] = "sandbox"
    """Where commands run. In a session without a sandbox, "sandbox" is this machine itself, as the Gateway's user."""
    security: Literal["deny", "allowlist", "full"] | None = None
    """Commands that can run; unset: all on "sandbox", the allowlist on host "gateway", a node's rules on a node."""
    ask: Literal["off", "on-miss", "always"] = "on-miss"
    """When a person is asked first: on-miss for what is not on the allowlist, where security is allowlist."""
    node: str | None = None
    """Node for host "node", by name or id; unset: the only one that is connected."""
    path_prepend: list[str] = []
    """Folders put in front of PATH."""
    safe_bins: list[str] | None = None
    """Which of cut, grep, head, sort, tail, tr, uniq and wc may filter input without being listed; unset: all."""
    background_ms: Positive = 10_000
    """A command running longer than this goes to the background."""
    timeout_sec: Positive = 1800
    """A command is stopped after this."""
    cleanup_ms: Positive = 1_800_000
    """How long a finished background command can be asked about."""
    notify_on_exit: bool = True
    """Tell the session when a background command ends."""
    notify_on_exit_empty_success: bool = False
    """Also when it succeeded without output."""
    approval_running_notice_ms: Count = 10_000
    """Say that an approved command is still running after this; 0 is never."""
    max_output_chars: Positive | None = None
    """Characters of an output that the agent reads, a fifth of them from its beginning; unset: 30000."""
    parallel: bool = False
    """Run the commands of one message at the same time."""
    apply_patch: ApplyPatch = ApplyPatch()
    """The apply_patch tool."""


class FsConfig(Record):
    workspace_only: bool = True
    """Keep file tools inside the workspace; false lets them open any file of the user."""


class Elevated(Record):
    enabled: bool = True
    """Allow commands outside the sandbox for trusted senders."""
    allow_from: dict[str, list[Sender]] = {}
    """Trusted senders per channel."""


class AgentToAgentAccess(Record):
    enabled: bool = False
    """Let agents see and message each other's sessions."""
    allow: list[str] = []
    """Agent ids (patterns) that take part."""


class NestedTools(Record):
    tools: ToolPolicy = ToolPolicy()
    """Tools allowed there."""


class SandboxToolPolicy(Record):
    allow: list[str] | None = None
    """Tools or groups allowed; unset means commands, files and the session tools, empty means all."""
    deny: list[str] | None = None
    """Tools or groups refused; unset means browser, canvas, nodes, cron, gateway and the channels' own."""


class SandboxTools(Record):
    tools: SandboxToolPolicy = SandboxToolPolicy()
    """Tools allowed there."""


class CrossContext(Record):
    allow_within_provider: bool = True
    """Send to another chat of the same channel."""
    allow_across_providers: bool = False
    """Send to another channel."""
    marker: OpenMap = {}
    """Text put around such messages: enabled, prefix, suffix."""


class MessageTool(Record):
    allow_cross_context_send: bool = False
    """Old name for allowing both kinds of sending elsewhere."""
    cross_context: CrossContext = CrossContext()
    """Sending to other chats than the current one."""
    broadcast: OpenMap = {}
    """Sending to several targets: enabled."""


class SessionsTools(Record):
    visibility: Literal["self", "tree", "agent", "all"] | None = None
    """Which sessions the session tools can see; unset means all, in groups only its own and those it spawned."""


class RepetitionLimits(Record):
    warning_threshold: Positive | None = None
    """After this many identical calls with identical results the agent reads a sentence about it."""
    critical_threshold: Positive | None = None
    """After this many without anything new in between, the run ends with a notice."""


class LoopDetection(Record):
    enabled: bool = True
    """Notice an agent that makes the same call with the same result again and again."""
    warning_threshold: Positive = 3
    """After this many identical calls with identical results in a run, the agent reads a sentence about it."""
    critical_threshold: Positive = 6
    """After this many without anything new in between, the run ends with a notice."""
    by_tool: dict[str, RepetitionLimits] = {}
    """Other limits for single tools, by name; what they leave out is as above."""
    history_size: Positive | None = None
    """How many calls are remembered."""
    global_circuit_breaker_threshold: Positive | None = None
    """A limit over all calls."""
    detectors: OpenMap = {}
    """Detectors to use."""


class AgentTools(LayeredToolPolicy):
    """Per agent; narrows what the top level allows."""

    elevated: Elevated | None = None
    """Elevated commands; unset means as at the top level."""
    exec: ExecConfig | None = None
    """The exec tool; keys left out are as at the top level."""
    fs: FsConfig | None = None
    """File tools; unset means as at the top level."""
    sandbox: SandboxTools | None = None
    """Tools inside the sandbox; unset means as at the top level."""
    loop_detection: LoopDetection | None = None
    """Detection of repeated calls; unset means as at the top level."""


class WebFetch(Record):
    enabled: bool = True
    """Offer the web_fetch tool."""
    max_chars: Positive = 50_000
    """Characters of a page that are returned; longer ones are cut."""
    max_chars_cap: Positive = 50_000
    """The most characters that the agent can ask for."""
    max_response_bytes: Positive = 2_000_000
    """Bytes of a page that are read; the rest is left."""
    timeout_seconds: Positive = 30
    """A page that takes longer is given up."""
    cache_ttl_minutes: Count = 15
    """How long a page is remembered; 0 is never."""
    max_redirects: Count = 3
    """Redirects that are followed; each is checked like the first address."""
    user_agent: str | None = None
    """What the web sees as the browser."""
    readability: bool = True
    """Leave out menus, footers and what else stands around the main part."""
    firecrawl: OpenMap = {}
    """A service that fetches pages."""


class PerplexitySearch(Record):
    api_key: Secret | None = None
    """Key; unset means PERPLEXITY_API_KEY or OPENROUTER_API_KEY of the environment."""
    base_url: str | None = None
    """Address of the service; unset means Perplexity's, or OpenRouter's for a key of OpenRouter."""
    model: Name = "perplexity/sonar-pro"
    """Model that searches and answers."""


class SearxngSearch(Record):
    base_url: str | None = None
    """Address of your SearXNG. Its settings must allow the format json."""


class WebSearch(Record):
    enabled: bool = True
    """Offer the web_search tool."""
    provider: Literal["brave", "perplexity", "searxng", "grok", "gemini", "kimi"] = "brave"
    """The service that is asked."""
    api_key: Secret | None = None
    """Key for Brave; unset means BRAVE_API_KEY of the environment."""
    max_results: Annotated[int, Meta(ge=1, le=10)] = 5
    """Results unless the agent asks for another number."""
    timeout_seconds: Positive = 30
    """A search that takes longer is given up."""
    cache_ttl_minutes: Count = 15
    """How long results are remembered; 0 is never."""
    perplexity: PerplexitySearch = PerplexitySearch()
    """Perplexity, directly or through OpenRouter."""
    searxng: SearxngSearch = SearxngSearch()
    """A search engine of your own."""


class WebTools(Record):
    search: WebSearch = WebSearch()
    """The web_search tool."""
    fetch: WebFetch = WebFetch()
    """The web_fetch tool."""


class TranscriptionModel(Record):
    """One way to write sound down: a program, or a service that speaks OpenAI's protocol."""

    type: Literal["provider", "cli"] = "provider"
    """A service or a program."""
    provider: str | None = None
    """The service: openai, groq, mistral, or one of models.providers; unset means openai."""
    model: str | None = None
    """Model of the service; unset means its usual one."""
    base_url: str | None = None
    """Address of the service; unset means that of the provider."""
    command: str | None = None
    """Program to start; its output, or a text file in {{OutputDir}}, is the transcript."""
    args: list[str] = []
    """Arguments of the program; {{MediaPath}} is the file, {{OutputDir}} and {{OutputBase}} where it may write."""
    language: str | None = None
    """Language of the sound; unset means tools.media.audio.language."""
    prompt: str | None = None
    """Hint for the service; unset means tools.media.audio.prompt."""
    timeout_seconds: Positive | None = None
    """Longest time; unset means tools.media.audio.timeoutSeconds."""
    max_bytes: Positive | None = None
    """Largest file; unset means tools.media.audio.maxBytes."""
    max_chars: Positive | None = None
    """Longest transcript; unset means tools.media.audio.maxChars."""
    capabilities: list[str] = []
    """Kinds of media that the entry is for."""
    profile: str | None = None
    """Credential to use."""
    preferred_profile: str | None = None
    """Credential to try first."""


class AudioMedia(Record):
    enabled: bool | None = None
    """Transcribe voice messages; unset means if there are models."""
    models: list[TranscriptionModel] = []
    """Ways to do it, tried in order; empty means openai if enabled."""
    max_bytes: Positive = 20 * 1024 * 1024
    """Largest file."""
    max_chars: Positive | None = None
    """Longest transcript."""
    timeout_seconds: Positive = 60
    """Longest time for one file."""
    language: str | None = None
    """Language of the sound, such as en; unset lets the model find out."""
    prompt: str | None = None
    """Hint for the model."""
    scope: OpenMap = {}
    """Conversations whose sound is transcribed."""
    attachments: OpenMap = {}
    """Which of several files are transcribed."""


class MediaTools(Record):
    audio: AudioMedia = AudioMedia()
    """Transcription of voice messages."""
    image: OpenMap = {}
    """Description of pictures."""
    video: OpenMap = {}
    """Description of films."""
    models: list[OpenMap] = []
    """Models that serve several kinds."""
    concurrency: Positive | None = None
    """Files at the same time."""


class Tools(LayeredToolPolicy):
    exec: ExecConfig = ExecConfig()
    """Running commands."""
    fs: FsConfig = FsConfig()
    """Reading and writing files."""
    elevated: Elevated = Elevated()
    """Commands outside the sandbox."""
    agent_to_agent: AgentToAgentAccess = AgentToAgentAccess()
    """Sessions of other agents."""
    subagents: NestedTools = NestedTools()
    """Tools of sub-agents; the built-in refusals stay unless allowed here."""
    sandbox: SandboxTools = SandboxTools()
    """Tools inside the sandbox."""
    message: MessageTool = MessageTool()
    """The message tool."""
    sessions: SessionsTools = SessionsTools()
    """The session tools."""
    web: WebTools = WebTools()
    """Web search and fetch."""
    media: MediaTools = MediaTools()
    """Understanding of images, audio and video."""
    links: OpenMap = {}
    """Understanding of links."""
    loop_detection: LoopDetection = LoopDetection()
    """Detection of repeated calls."""


class McpToolNames(Record):
    allow: list[str] = []
    """The server's tools that are offered, by the server's own names; * stands for anything; empty means all."""
    deny: list[str] = []
    """The server's tools that are not offered; wins over allow."""


class McpServer(Record):
    enabled: bool = True
    """Use this server."""
    transport: Literal["stdio", "streamable-http"] | None = None
    """How it is spoken to; unset means stdio for a command and streamable-http for a url."""
    command: str | None = None
    """The program to start, for a server that speaks over its standard input and output."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, Secret] = {}
    """Environment variables of the program, besides the harmless ones of the Gateway."""
    cwd: str | None = None
    """The folder that the program starts in; unset means the home folder."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP; private addresses are allowed."""
    headers: dict[str, Secret] = {}
    """Headers of every request to it."""
    tools: McpToolNames = McpToolNames()
    """Which of its tools are offered."""
    sessions: Literal["owner", "all"] = "owner"
    """Sessions that may use it: the owner's own sessions, or all, groups, guests and webhooks included."""
    agents: list[str] = []
    """Agent ids that may use it; empty means all."""
    ask: Literal["off", "always"] = "off"
    """Whether a person is asked before each call, as before a command."""
    timeout_seconds: Positive = 60
    """A call that takes longer is given up."""
    connection_timeout_ms: Positive = 30_000
    """A server that has not answered after this is given up and tried again later."""


class Mcp(Record):
    servers: dict[str, McpServer] = {}
    """The servers by name."""
