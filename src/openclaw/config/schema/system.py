"""The remaining sections: logging, commands, scheduling, hooks, skills, memory, and the machinery around them."""

from typing import ClassVar, Literal, TypeAlias

from openclaw.config.schema.base import Amount, Count, Name, OpenMap, Port, Positive, Record, Secret, Sender, Sensitive

LogLevel: TypeAlias = Literal["silent", "fatal", "error", "warn", "info", "debug", "trace"]
NativeCommands: TypeAlias = bool | Literal["auto"]


class Logging(Record):
    level: LogLevel = "info"
    """Least severe line kept in the file."""
    file: str | None = None
    """Path of the log; unset means one file a day in the state directory."""
    console_level: LogLevel | None = None
    """Least severe line on the console; unset means info."""
    console_style: Literal["pretty", "compact", "json"] = "pretty"
    """Form of console lines."""
    redact_sensitive: Literal["off", "tools"] = "tools"
    """Hide secrets in logs and tool summaries."""
    redact_patterns: list[str] | None = None
    """Regular expressions to hide, in place of the built-in ones."""


class StorageConfig(Record):
    url: Sensitive | None = None
    """PostgreSQL database that holds the sessions, as postgresql://user:password@host/database; unset means files.
    Several hosts (host1,host2) name a server and its standbys."""
    schema: Name = "openclaw"
    """Schema of the database. Gateways with the same one are nodes of one cluster."""
    pool_size: Positive = 8
    """Most connections at the same time."""


class ClusterConfig(Record):
    advertise_url: str | None = None
    """Address at which the other nodes reach this one, as ws://host:port; unset means where it listens."""
    lease_seconds: Positive = 5
    """How long a node that gives no sign of life keeps its sessions."""
    idle_seconds: Positive = 300
    """After how long without a message a session may be answered by another node."""
    drain_seconds: Count = 15
    """How long a stopping node waits for its runs before other nodes resume them."""


class Commands(Record):
    native: NativeCommands = "auto"
    """Register commands with channels that have menus for them."""
    native_skills: NativeCommands = "auto"
    """Register skills there as well."""
    text: bool = True
    """Understand commands written as text."""
    bash: bool = False
    """Allow /bash and !."""
    bash_foreground_ms: Count = 2000
    """How long /bash waits before it goes to the background (at most 30000)."""
    config: bool = False
    """Allow /config."""
    debug: bool = False
    """Allow /debug."""
    restart: bool = False
    """Allow /restart and restarts by signal."""
    use_access_groups: bool = True
    """Commands obey the channel's allow lists."""
    owner_allow_from: list[Sender] = []
    """Owners, who may use owner-only commands."""
    allow_from: dict[str, list[Sender]] = {}
    """Senders per channel who may use commands."""


class CronConfig(Record):
    enabled: bool = True
    """Run scheduled jobs."""
    store: str | None = None
    """Path of the job list; unset means cron/jobs.json in the state directory."""
    max_concurrent_runs: Positive = 1
    """Jobs at the same time."""
    webhook: str | None = None
    """Address told about finished jobs."""
    webhook_token: Sensitive | None = None
    """Bearer token for that address."""
    session_retention: str | Literal[False] | None = None
    """How long sessions of jobs are kept, such as 7d; false is forever."""


class HookMatch(Record):
    path: str | None = None
    """Path below the hook path."""
    source: str | None = None
    """Value of the payload's source."""


class HookTransform(Record):
    module: Name
    """Python file below the transforms folder."""
    export: str | None = None
    """Function in it."""


class HookMapping(Record):
    id: str | None = None
    """Name of the mapping."""
    match: HookMatch = HookMatch()
    """Which calls it takes."""
    action: Literal["wake", "agent"] = "agent"
    """Wake the main session or run a turn."""
    wake_mode: Literal["now", "next-heartbeat"] = "now"
    """When the main session hears of it."""
    name: str | None = None
    """Name to show."""
    agent_id: str | None = None
    """Agent that runs the turn."""
    session_key: str | None = None
    """Session in which it runs; unset means a new one each time."""
    message_template: str | None = None
    """Text of the turn, with {{…}} taken from the call."""
    text_template: str | None = None
    """Text of the wake event."""
    deliver: bool | None = None
    """Deliver the reply."""
    channel: str | None = None
    """Channel of the delivery; last is the last one used."""
    to: str | None = None
    """Recipient of the delivery."""
    model: str | None = None
    """Model of the turn."""
    thinking: str | None = None
    """Thinking level of the turn."""
    timeout_seconds: Positive | None = None
    """The turn is stopped after this."""
    allow_unsafe_external_content: bool = False
    """Do not wrap the call's content as untrusted."""
    transform: HookTransform | None = None
    """Code that shapes the call first."""


class InternalHooks(Record):
    enabled: bool = False
    """Run hooks found in the hook folders."""
    events: list[str] = []
    """Only these events; empty means all."""
    handlers: list[OpenMap] = []
    """Hooks named here: event, module, export."""
    entries: dict[str, OpenMap] = {}
    """Settings per hook."""
    load: OpenMap = {}
    """Further folders: extraDirs."""
    installs: dict[str, OpenMap] = {}
    """Records of installed hooks."""


class Hooks(Record):
    enabled: bool = False
    """Accept webhooks; needs a token."""
    path: str = "/hooks"
    """Path they are accepted under; not /."""
    token: Sensitive | None = None
    """Secret that callers send."""
    max_body_bytes: Positive = 262_144
    """Size of a call at most."""
    default_session_key: str | None = None
    """Session of turns that name none."""
    allow_request_session_key: bool | None = None
    """Callers may name a session."""
    allowed_session_key_prefixes: list[str] | None = None
    """Sessions they may name."""
    allowed_agent_ids: list[str] | None = None
    """Agents they may name."""
    presets: list[str] = []
    """Ready-made mappings, such as gmail."""
    transforms_dir: str | None = None
    """Folder of transforms; unset means the configuration's."""
    mappings: list[HookMapping] = []
    """What calls do; the first match wins."""
    gmail: OpenMap = {}
    """Gmail push."""
    internal: InternalHooks = InternalHooks()
    """Hooks that run inside the Gateway."""


class SkillEntry(Record):
    enabled: bool = True
    """Offer this skill."""
    api_key: Secret | None = None
    """Key for the skill's main variable."""
    env: dict[str, str] = {}
    """Environment of the skill."""
    config: OpenMap = {}
    """Settings of the skill."""


class SkillsLoad(Record):
    extra_dirs: list[str] = []
    """Further folders with skills."""
    watch: bool = True
    """Notice changes."""
    watch_debounce_ms: Count = 250
    """Quiet time before changes count."""


class Skills(Record):
    allow_bundled: list[str] | None = None
    """Only these of the bundled skills; unset means all."""
    load: SkillsLoad = SkillsLoad()
    """Where skills come from."""
    install: OpenMap = {}
    """How skills are installed: preferBrew, nodeManager."""
    limits: OpenMap = {}
    """Limits on the number and size of skills."""
    entries: dict[str, SkillEntry] = {}
    """Settings per skill."""


class Memory(Record):
    backend: str | None = None
    """Search engine for memory; unset means the built-in one."""
    citations: Literal["auto", "on", "off"] = "auto"
    """Name the source of remembered facts; auto is in direct chats."""
    qmd: OpenMap = {}
    """Settings of the qmd engine."""


class Assistant(Record):
    name: str = "Assistant"
    """Name in the Control UI."""
    avatar: str = "A"
    """Picture, emoji or letter in the Control UI."""


class Ui(Record):
    seam_color: str | None = None
    """Accent colour, such as #FF4500."""
    assistant: Assistant = Assistant()
    """Who answers."""


class Otel(Record):
    enabled: bool = False
    """Export telemetry."""
    endpoint: str | None = None
    """Collector address."""
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    """Collector protocol."""
    headers: dict[str, Sensitive] = {}
    """Headers for the collector."""
    service_name: str = "openclaw"
    """Name under which it appears."""
    traces: bool = True
    """Export traces."""
    metrics: bool = True
    """Export metrics."""
    logs: bool = False
    """Export logs."""
    sample_rate: Amount = 1
    """Part of the traces exported, 0 to 1."""
    flush_interval_ms: Positive | None = None
    """Time between exports."""


class Diagnostics(Record):
    enabled: bool = False
    """Emit diagnostic events."""
    flags: list[str] = []
    """Extra log lines by flag; may hold *."""
    otel: Otel = Otel()
    """OpenTelemetry."""
    cache_trace: OpenMap = {}
    """Trace of prompt caching."""


class Retry(Record):
    enabled: bool = True
    """Repeat a model call that failed for a passing reason."""
    max_retries: Count = 3
    """Repetitions at most."""
    base_delay_ms: Count = 2000
    """First pause; doubled each time."""
    max_delay_ms: Count = 60_000
    """A pause asked for by the server is not longer than this."""


class Compaction(Record):
    enabled: bool = True
    """Summarise old history when the window fills up."""
    reserve_tokens: Count = 16_384
    """Tokens kept free; agents.defaults.compaction.reserveTokensFloor raises it."""
    keep_recent_tokens: Positive = 20_000
    """Tokens of recent messages kept word for word."""


class BranchSummary(Record):
    reserve_tokens: Count = 16_384
    """Tokens kept free when a left branch is summarised."""


class ShellEnv(Record):
    enabled: bool = False
    """Take missing variables from the login shell."""
    timeout_ms: Count = 15_000
    """Time for the shell to answer."""


class Env(Record):
    catch_all: ClassVar[str] = "inline"

    vars: dict[str, str] = {}
    """Environment variables set where the process has none of that name."""
    inline: dict[str, str] = {}
    """The same, written directly under env."""
    shell_env: ShellEnv = ShellEnv()
    """Variables of the login shell."""


class Discovery(Record):
    mdns: OpenMap = {}
    """Announcement on the local network: mode minimal, off or full."""
    wide_area: OpenMap = {}
    """Announcement by DNS."""


class CanvasHost(Record):
    enabled: bool = True
    """Serve the canvas."""
    root: str | None = None
    """Its folder; unset means canvas in the state directory."""
    port: Positive | None = None
    """A port of its own."""
    live_reload: bool = True
    """Reload when files change."""


class Talk(Record):
    voice_id: str | None = None
    """Voice."""
    voice_aliases: dict[str, str] = {}
    """Names for voices."""
    model_id: str | None = None
    """Speech model."""
    output_format: str | None = None
    """Audio format."""
    api_key: Secret | None = None
    """Key of the speech service."""
    interrupt_on_speech: bool = True
    """Stop speaking when spoken to."""


class BrowserSsrfPolicy(Record):
    dangerously_allow_private_network: bool = False
    """Open loopback, private and metadata addresses to pages."""
    allowed_hostnames: list[str] = []
    """Hosts that may be reached although they are private; *.example.org is every host below it."""
    hostname_allowlist: list[str] = []
    """The only hosts that may be reached; empty means any."""


class BrowserProfile(Record):
    cdp_url: str | None = None
    """A browser that already runs, for this profile."""
    cdp_port: Port | None = None
    """Its port on this machine, with attachOnly."""
    color: str | None = None
    """Colour of the browser's frame."""
    driver: str | None = None
    """How the browser is driven."""


class BrowserSnapshotDefaults(Record):
    mode: Literal["efficient"] | None = None
    """efficient reads the elements that can be acted on only; unset means the whole page."""


class Browser(Record):
    enabled: bool = True
    """Offer the browser tool. It is offered where there is a browser."""
    evaluate_enabled: bool = True
    """Allow scripts in pages."""
    allow_in_groups: bool = False
    """Let the agent use it for group chats as well."""
    cdp_url: str | None = None
    """Browser that already runs, http or ws; its network is not guarded as well as that of an own one."""
    remote_cdp_timeout_ms: Count = 1500
    """Time for it to answer."""
    remote_cdp_handshake_timeout_ms: Count = 3000
    """Time for it to connect."""
    color: str | None = None
    """Colour of the browser's frame."""
    executable_path: str | None = None
    """Browser program; unset means found."""
    headless: bool = False
    """Without a window. Without a screen there never is one."""
    no_sandbox: bool = False
    """Without the browser's own sandbox; needed in some containers."""
    attach_only: bool = False
    """Never start a browser."""
    default_profile: str | None = None
    """Profile used when none is named; unset means openclaw."""
    idle_minutes: Count = 30
    """A browser that is not used for this long is ended; 0 is never."""
    ssrf_policy: BrowserSsrfPolicy = BrowserSsrfPolicy()
    """Which addresses pages may reach."""
    snapshot_defaults: BrowserSnapshotDefaults = BrowserSnapshotDefaults()
    """How pages are read."""
    profiles: dict[str, BrowserProfile] = {}
    """Profiles by name. Each is a browser with cookies and logins of its own."""


class WebReconnect(Record):
    initial_ms: Amount = 2000
    """First pause."""
    max_ms: Amount = 30_000
    """Longest pause."""
    factor: Amount = 1.8
    """Growth of the pause."""
    jitter: Amount = 0.25
    """Random part of the pause."""
    max_attempts: Count = 12
    """Attempts in a row; 0 means unlimited."""


class Web(Record):
    enabled: bool = True
    """Connect WhatsApp Web."""
    heartbeat_seconds: Positive = 60
    """Check of the connection."""
    reconnect: WebReconnect = WebReconnect()
    """Pauses between attempts."""


class UpdateConfig(Record):
    channel: Literal["stable", "beta", "dev"] = "stable"
    """Which releases."""
    check_on_start: bool = True
    """Look for a newer release at the start."""


class AudioTranscription(Record):
    command: list[str] = []
    """Program and arguments; {{MediaPath}} is the file. Its output is the transcript."""
    timeout_seconds: Positive = 60
    """Longest time for one file."""


class Audio(Record):
    transcription: AudioTranscription | None = None
    """The program that transcribes; tools.media.audio.models wins over it."""


class Broadcast(Record):
    catch_all: ClassVar[str] = "peers"

    strategy: Literal["parallel", "sequential"] = "parallel"
    """Whether the agents of a chat answer at the same time."""
    peers: dict[str, list[str]] = {}
    """Agents that all answer in a chat, by the chat's id."""


class PluginEntry(Record):
    enabled: bool | None = None
    """Load it; unset means only if plugins.allow names it."""
    config: OpenMap = {}
    """Its own settings, as it explains them."""


class Plugins(Record):
    enabled: bool = True
    """Load plugins."""
    allow: list[str] = []
    """Only these; empty means all that are named elsewhere here."""
    deny: list[str] = []
    """Never these."""
    load: OpenMap = {}
    """Extensions: paths, a list of Python files or of folders with such files."""
    slots: OpenMap = {}
    """Which plugin fills a role: memory."""
    entries: dict[str, PluginEntry] = {}
    """The installed plugins that are used, by their ids."""
    installs: dict[str, OpenMap] = {}
    """Records of installed plugins."""


class FileMeta(Record):
    last_touched_version: str | None = None
    """Version that wrote the file last."""
    last_touched_at: str | None = None
    """When."""


class Wizard(Record):
    last_run_at: str | None = None
    """When the setup ran last."""
    last_run_version: str | None = None
    """Version that ran it."""
    last_run_commit: str | None = None
    """Commit that ran it."""
    last_run_command: str | None = None
    """Command that ran it."""
    last_run_mode: Literal["local", "remote"] | None = None
    """The version and mode of that setup."""
