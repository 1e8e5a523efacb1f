"""``agents``: what every agent has in common, and the list of agents."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from openclaw.config.schema.base import Amount, Count, Name, OpenMap, Positive, Ratio, Record, Secret, Sensitive
from openclaw.config.schema.messages import GroupChat, TypingMode
from openclaw.config.schema.tools import AgentTools
from openclaw.messages import ThinkingLevel


class MemoryRemote(Record):
    base_url: str | None = None
    """Address of the embedding server; unset means the provider's own."""
    api_key: Secret | None = None
    """Its key; unset means the provider's key under models.providers or in the environment."""
    headers: dict[str, Sensitive] = {}
    """HTTP headers for every request."""
    batch: OpenMap = {}
    """Batch jobs of other versions; not used."""


class MemoryLocal(Record):
    model_path: str | None = None
    """An embedding model in GGUF format; unset means the word vectors of the memory extra."""
    model_cache_dir: str | None = None
    """Where other versions keep downloaded models; not used."""


class MemoryChunking(Record):
    tokens: Annotated[int, Meta(ge=16)] = 400
    """Size of a piece of notes."""
    overlap: Count = 80
    """How much of a piece the next one repeats."""


class MemoryHybrid(Record):
    enabled: bool = True
    """Search by meaning besides by words, where embeddings can be had."""
    vector_weight: Ratio = 0.7
    """Share of the meaning in a passage's score."""
    text_weight: Ratio = 0.3
    """Share of the words."""
    candidate_multiplier: Annotated[int, Meta(ge=1, le=20)] = 4
    """Passages looked at for each one returned."""
    mmr: OpenMap = {}
    """Setting of other versions; not used."""
    temporal_decay: OpenMap = {}
    """Setting of other versions; not used."""


class MemoryQueryConfig(Record):
    max_results: Annotated[int, Meta(ge=1, le=50)] = 6
    """Passages returned."""
    min_score: Ratio = 0.35
    """Passages that fit worse are left out."""
    hybrid: MemoryHybrid = MemoryHybrid()
    """Words and meaning together."""


class MemoryCache(Record):
    enabled: bool = True
    """Keep embeddings of passages that changed; they are needed again when a change is taken back."""
    max_entries: Annotated[int, Meta(ge=100)] = 50_000
    """Embeddings kept at most."""


class MemorySearch(Record):
    enabled: bool = True
    """Offer memory_search and memory_get."""
    sources: list[Literal["memory", "sessions"]] | None = None
    """Sources to search; unset means memory files."""
    extra_paths: list[str] = []
    """Files and folders searched besides the workspace's memory."""
    provider: str | None = None
    """Embeddings: auto (what is local, else the first with a key), local, openai, gemini, voyage, mistral or none."""
    fallback: str | None = None
    """Provider used when that one fails; words alone serve when none does."""
    model: str | None = None
    """Embedding model; unset means the provider's usual one."""
    remote: MemoryRemote = MemoryRemote()
    """Embeddings from a server."""
    local: MemoryLocal = MemoryLocal()
    """Embeddings made on this machine."""
    store: OpenMap = {}
    """Index settings of other versions (driver, path, vector); not used."""
    chunking: MemoryChunking = MemoryChunking()
    """How notes are cut into pieces."""
    sync: OpenMap = {}
    """When other versions refresh the index; here it is up to date at every search."""
    query: MemoryQueryConfig = MemoryQueryConfig()
    """Limits on results."""
    cache: MemoryCache = MemoryCache()
    """Embeddings that are kept."""
    experimental: OpenMap = {}
    """Unfinished features."""


OnOff: TypeAlias = Literal["on", "off"]


class ModelChoice(Record):
    primary: str | None = None
    """The model to use, as provider/model."""
    fallbacks: list[str] | None = None
    """Models tried in turn when the primary fails. An agent's empty list means none."""


ModelSetting: TypeAlias = str | ModelChoice


class ModelUse(Record):
    """What a person says about a model they use (as opposed to what a provider offers)."""

    alias: str | None = None
    """Short name for /model."""
    params: OpenMap = {}
    """Request parameters: temperature, maxTokens, cacheRetention and others."""
    streaming: bool | None = None
    """Turn streaming off for endpoints that cannot."""


class MemoryFlush(Record):
    enabled: bool = True
    """Before compaction, ask the agent in a silent turn to write down what must last."""
    soft_threshold_tokens: Count = 4000
    """How many tokens before the compaction threshold this happens."""
    prompt: str = ""
    """Text of that turn; blank means the built-in one."""
    system_prompt: str = ""
    """Addition to the system prompt of that turn; blank means the built-in one."""


class AgentCompaction(Record):
    mode: Literal["default", "safeguard"] = "default"
    """safeguard: smaller parts, failed tools listed, and no failing summariser can prevent a compaction."""
    reserve_tokens: Count | None = None
    """Tokens kept free; unset means compaction.reserveTokens."""
    keep_recent_tokens: Positive | None = None
    """Tokens of recent messages kept word for word; unset means compaction.keepRecentTokens."""
    reserve_tokens_floor: Count = 20_000
    """Raises the reserve to at least this; 0 switches the floor off."""
    max_history_share: Annotated[float, Meta(ge=0.1, le=0.9)] = 0.5
    """Share of the window for the history in safeguard mode."""
    custom_instructions: str | None = None
    """Added to the request for a summary."""
    model: str | None = None
    """Model for summaries; unset means the session's."""
    memory_flush: MemoryFlush = MemoryFlush()
    """The silent turn before compaction."""


class PruningTools(Record):
    allow: list[str] = []
    """Tools whose results may be pruned; empty means all."""
    deny: list[str] = []
    """Tools whose results are never pruned."""


class SoftTrim(Record):
    max_chars: Count = 4000
    """Results longer than this are trimmed."""
    head_chars: Count = 1500
    """Kept from the beginning."""
    tail_chars: Count = 1500
    """Kept from the end."""


class HardClear(Record):
    enabled: bool = True
    """Replace old results by a placeholder when trimming is not enough."""
    placeholder: str = "[Old tool result content cleared]"
    """The placeholder."""


class ContextPruning(Record):
    mode: Literal["off", "cache-ttl", "always"] | None = None
    """Drop old tool results from the prompt: when the cache has expired, or always; unset: cache-ttl for Anthropic."""
    ttl: str | int | None = None
    """Age of the cache, such as 5m or 1h; a bare number is minutes. Unset means 5m, or 1h where the mode is unset."""
    keep_last_assistants: Count = 3
    """Results after this many last answers are kept."""
    soft_trim_ratio: Ratio = 0.3
    """Fullness of the window from which results are trimmed."""
    hard_clear_ratio: Ratio = 0.5
    """Fullness of the window from which results are cleared."""
    min_prunable_tool_chars: Count = 50_000
    """Clearing needs at least this much to gain."""
    tools: PruningTools = PruningTools()
    """Tools it applies to."""
    soft_trim: SoftTrim = SoftTrim()
    """Trimming."""
    hard_clear: HardClear = HardClear()
    """Clearing."""


class CliBackend(Record):
    """A program that answers in place of a model API. `claude-cli` and `codex-cli` need no settings."""

    command: str = ""
    """The program."""
    args: list[str] = []
    """Its arguments; the message follows them."""
    resume_args: list[str] = []
    """The arguments with which it goes on with a conversation of its own; {sessionId} is replaced."""
    output: Literal["json", "text", "jsonl"] = "json"
    """Format of its output: a JSON object, plain text, or an object in each line."""
    resume_output: Literal["json", "text", "jsonl"] | None = None
    """Format of its output with resumeArgs; unset means the same."""
    input: Literal["arg", "stdin"] = "arg"
    """How it gets the message: as its last argument or on its standard input."""
    max_prompt_arg_chars: Positive | None = None
    """A longer message goes to the standard input. Unset means 100000."""
    env: dict[str, Sensitive] = {}
    """Its environment variables, in addition to those of the Gateway."""
    clear_env: list[str] = []
    """Variables of the Gateway that it does not get."""
    model_arg: str | None = None
    """The argument before the name of the model."""
    model_aliases: dict[str, str] = {}
    """What the program calls a model, by the id that is used here."""
    session_arg: str | None = None
    """The argument before the id of its conversation."""
    session_args: list[str] = []
    """Several arguments for the id; {sessionId} is replaced."""
    session_mode: Literal["always", "existing", "none"] = "existing"
    """always: a new conversation gets an id from here. existing: the program prints the id. none: it keeps nothing."""
    session_id_fields: list[str] = []
    """Fields of its JSON that hold the id; unset means the usual names, such as session_id."""
    system_prompt_arg: str | None = None
    """The argument before the system prompt. Unset: the program gets none."""
    system_prompt_mode: Literal["append", "replace"] = "append"
    """What systemPromptArg does in the program; it changes nothing here."""
    system_prompt_when: Literal["first", "always", "never"] = "first"
    """Whether it gets the system prompt with every message or only when a conversation begins."""
    image_arg: str | None = None
    """The argument before the path of a picture. Unset: it gets no pictures."""
    image_mode: Literal["repeat", "list"] = "repeat"
    """Several pictures: the argument again for each, or their paths with commas between them."""
    serialize: bool = True
    """It gives one answer at a time."""


class SandboxPrune(Record):
    idle_hours: Count = 24
    """Remove a sandbox that was not used for this long; 0 is never. A folder that holds work is kept."""
    max_age_days: Count = 7
    """Remove a sandbox older than this; 0 is never. A folder that holds work is kept."""


class SandboxDocker(Record):
    """Contents and limits of the sandbox. The name is the original's; most keys count for every backend."""

    image: str = "openclaw-sandbox:bookworm-slim"
    """Image of the container. Only for docker and podman."""
    container_prefix: str = "openclaw-sbx-"
    """Beginning of the containers' names. Only for docker and podman."""
    workdir: str = "/workspace"
    """Where the sandbox sees its workspace."""
    read_only_root: bool = True
    """Nothing outside the workspace and temporary folders can be written; always so with bubblewrap."""
    tmpfs: list[str] | None = None
    """Temporary folders of a container; unset means /tmp, /var/tmp and /run. Only for docker and podman."""
    network: str = "none"
    """none, or host for the network of this machine, the Gateway's port included; docker and podman know others."""
    user: str | None = None
    """User in the container. Only for docker and podman."""
    cap_drop: list[str] | None = None
    """Kernel capabilities taken away; unset means all, and bubblewrap always takes all."""
    env: dict[str, str] = {}
    """Variables of commands. Those of the Gateway are never handed on."""
    setup_command: str | None = None
    """Runs once in a new container, in other versions."""
    pids_limit: Count = 256
    """The most processes."""
    memory: str | int = "2g"
    """The most memory, e.g. 512m or 2g. Without control groups it counts for each process."""
    memory_swap: str | int | None = None
    """Memory and swap together. Only for docker and podman."""
    cpus: float | None = None
    """How many processors may be kept busy. With bubblewrap it needs control groups."""
    ulimits: OpenMap = {}
    """Limits of each process by name, e.g. nofile, fsize or cpu, as a number, soft:hard, or soft and hard."""
    seccomp_profile: str | None = None
    """Profile of allowed system calls. Only for docker and podman."""
    apparmor_profile: str | None = None
    """AppArmor profile. Only for docker and podman."""
    dns: list[str] = []
    """Name servers. Only for docker and podman."""
    extra_hosts: list[str] = []
    """Names and addresses, name:address. Only for docker and podman."""
    binds: list[str] = []
    """More folders of this machine, folder:place:ro or folder:place:rw."""


class Sandbox(Record):
    mode: Literal["off", "non-main", "all"] = "off"
    """Which sessions run their tools in a sandbox. One that cannot be had stops the run; see docs/sandbox.md."""
    backend: Literal["bubblewrap", "docker", "podman"] = "bubblewrap"
    """What makes the sandbox: bubblewrap (the Debian package of that name), or a container engine."""
    scope: Literal["session", "agent", "shared"] = "agent"
    """What shares a sandbox."""
    per_session: bool | None = None
    """Old form of scope: true is session, false is shared."""
    workspace_access: Literal["none", "ro", "rw"] = "none"
    """What the sandbox sees of the agent's workspace: nothing, /agent for reading, or the workspace itself."""
    workspace_root: str = "~/.openclaw/sandboxes"
    """Where the sandboxes' own workspaces live; the default is in the state folder."""
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    """Sessions a sandboxed session can see: those it spawned, or all."""
    docker: SandboxDocker = SandboxDocker()
    """Contents and limits of the sandbox."""
    browser: OpenMap = {}
    """Browser in the sandbox."""
    prune: SandboxPrune = SandboxPrune()
    """Removal of unused sandboxes."""


class SubagentDefaults(Record):
    model: ModelSetting | None = None
    """Model of sub-agents; unset means the requester's."""
    thinking: str | None = None
    """Thinking level of sub-agents."""
    max_concurrent: Positive = 8
    """Sub-agents at work at the same time."""
    max_spawn_depth: Annotated[int, Meta(ge=1, le=5)] = 1
    """Nesting of sub-agents."""
    max_children_per_agent: Annotated[int, Meta(ge=1)] | None = None
    """Active sub-agents of one session; unset means no limit but that of one message, which may start 24."""
    archive_after_minutes: Count = 60
    """Archive a finished sub-agent's session after this; 0 is never."""
    run_timeout_seconds: Count = 0
    """Stop a sub-agent after this; 0 means unlimited."""
    announce_mode: Literal["announce", "summarize"] = "announce"
    """Post a sub-agent's result as it is, or let the requester put it in words."""
    announce_timeout_ms: Positive | None = None
    """Time for the announcement of a result."""


class AgentSubagents(Record):
    allow_agents: list[str] = []
    """Agents that may be spawned besides itself; "*" means any."""
    model: ModelSetting | None = None
    """Model of this agent's sub-agents."""
    thinking: str | None = None
    """Thinking level of this agent's sub-agents."""


class ActiveHours(Record):
    start: str | None = None
    """First moment, HH:MM."""
    end: str | None = None
    """First moment no longer included, HH:MM; 24:00 is the end of the day."""
    timezone: str | None = None
    """user, local, or an IANA name."""


class Heartbeat(Record):
    every: str | int = "30m"
    """Interval; a bare number is minutes, 0m switches heartbeats off."""
    active_hours: ActiveHours = ActiveHours()
    """Only within these hours."""
    model: str | None = None
    """Model for heartbeats."""
    session: str = "main"
    """Session in which they run."""
    target: str = "last"
    """Where an alert goes: last, none, or a channel."""
    to: str | None = None
    """Recipient on that channel."""
    account_id: str | None = None
    """Account on that channel."""
    prompt: str | None = None
    """Text of the turn; unset means the built-in one."""
    ack_max_chars: Count = 300
    """A reply of HEARTBEAT_OK with at most this much more is not delivered."""
    include_reasoning: bool = False
    """Deliver reasoning as well."""
    suppress_tool_error_warnings: bool = False
    """Keep tool failures of heartbeats quiet."""
    direct_policy: Literal["allow", "block"] = "allow"
    """Whether alerts may go to direct chats."""


class BlockChunk(Record):
    min_chars: Positive = 800
    """A block is sent once it has this much."""
    max_chars: Positive = 1200
    """A block is cut at this."""
    break_preference: Literal["paragraph", "newline", "sentence"] = "paragraph"
    """Where to cut."""


class BlockCoalesce(Record):
    min_chars: Positive | None = None
    """Blocks are merged up to this; unset means the channel's default."""
    max_chars: Positive | None = None
    """A merged block is sent at this; unset means the channel's limit."""
    idle_ms: Count | None = None
    """Send what is there after this silence; unset means 1000, 0 never."""


class HumanDelay(Record):
    mode: Literal["off", "natural", "custom"] = "off"
    """Pause between blocks: none, a natural one, or within the two limits below."""
    min_ms: Count = 800
    """Shortest pause."""
    max_ms: Count = 2500
    """Longest pause."""


class Budget(Record):
    """Limits on spending; what is unset has no limit."""

    run_tokens: Positive | None = None
    """Tokens, prompt and answer, that one run may use."""
    run_usd: Amount | None = None
    """US dollars that one run may cost."""
    session_tokens: Positive | None = None
    """Tokens that all runs of one session may use."""
    session_usd: Amount | None = None
    """US dollars that all runs of one session may cost."""
    day_tokens: Positive | None = None
    """Tokens that all runs of an agent may use in a day."""
    day_usd: Amount | None = None
    """US dollars that all runs of an agent may cost in a day."""


class AgentDefaults(Record):
    workspace: str | None = None
    """Workspace of the default agent; unset means workspace in the state directory."""
    model: ModelSetting | None = None
    """The model, or {primary, fallbacks}."""
    image_model: ModelSetting | None = None
    """Model that looks at images when the main one cannot."""
    models: dict[str, ModelUse] = {}
    """Aliases and parameters per provider/model; when not empty also the list /model offers."""
    thinking_default: ThinkingLevel | None = None
    """Thinking level of new sessions; unset means low for models that can think."""
    verbose_default: Literal["off", "on", "full"] = "off"
    """Verbosity of new sessions."""
    elevated_default: Literal["off", "on", "ask", "full"] = "on"
    """Elevated level of new sessions."""
    timeout_seconds: Positive = 600
    """A run is stopped after this."""
    max_concurrent: Positive | None = None
    """Runs at the same time; unset means no limit."""
    user_timezone: str | None = None
    """The user's IANA time zone; unset means the host's."""
    time_format: Literal["auto", "12", "24"] = "auto"
    """Clock format in the prompt."""
    envelope_timezone: str = "local"
    """Zone of message time stamps: local, utc, user, or an IANA name."""
    envelope_timestamp: OnOff = "on"
    """Time stamps on inbound messages."""
    envelope_elapsed: OnOff = "on"
    """Elapsed time on inbound messages."""
    context_tokens: Positive | None = None
    """Upper limit on the context window, whatever the model offers."""
    bootstrap_max_chars: Positive = 20_000
    """A bootstrap file longer than this is cut in the prompt."""
    skip_bootstrap: bool = False
    """Do not create bootstrap files in new workspaces."""
    repo_root: str | None = None
    """Repository root named in the prompt; unset means detected."""
    compaction: AgentCompaction = AgentCompaction()
    """Summarising old history."""
    context_pruning: ContextPruning = ContextPruning()
    """Leaving old tool results out of the prompt."""
    sandbox: Sandbox = Sandbox()
    """Running tools in containers."""
    subagents: SubagentDefaults = SubagentDefaults()
    """Sub-agents."""
    heartbeat: Heartbeat = Heartbeat()
    """Regular turns without a message."""
    memory_search: MemorySearch = MemorySearch()
    """Search in the agent's notes."""
    block_streaming_default: OnOff = "off"
    """Send finished blocks before the reply is complete."""
    block_streaming_break: Literal["text_end", "message_end"] = "text_end"
    """When a block counts as finished."""
    block_streaming_chunk: BlockChunk = BlockChunk()
    """Size of blocks."""
    block_streaming_coalesce: BlockCoalesce = BlockCoalesce()
    """Merging of small blocks."""
    human_delay: HumanDelay = HumanDelay()
    """Pauses between blocks."""
    typing_mode: TypingMode | None = None
    """When the typing indicator starts; unset means at once in direct chats, else with the first text."""
    typing_interval_seconds: Positive = 6
    """Refresh of the typing indicator."""
    media_max_mb: Amount | None = None
    """Size of inbound media at most."""
    image_max_dimension_px: Positive | None = None
    """Images are scaled down to this."""
    max_length_continuations: Count = 3
    """Follow-up requests when an answer was cut by the output limit."""
    budget: Budget = Budget()
    """Limits on spending."""
    cli_backends: dict[str, CliBackend] = {}
    """Programs that answer in place of a model API, by the provider that their models have."""


class Identity(Record):
    name: str | None = None
    """Name of the agent."""
    emoji: str | None = None
    """Its emoji, also used for acknowledgements."""
    avatar: str | None = None
    """Picture: a path in the workspace, a URL or a data URI."""
    theme: str | None = None
    """Character in a few words."""


class AgentConfig(Record):
    """One agent. Sections that exist in agents.defaults are filled up from there, key by key."""

    id: Name
    """Short name used in session keys and folders."""
    default: bool = False
    """The agent that gets what no binding claims."""
    name: str | None = None
    """Name to show."""
    workspace: str | None = None
    """Its folder; unset means workspace-<id> in the state directory."""
    agent_dir: str | None = None
    """Folder for its credentials and model list."""
    model: ModelSetting | None = None
    """Its model, in place of the default."""
    identity: Identity = Identity()
    """Identity of the agent."""
    skills: list[str] | None = None
    """Only these skills; unset means all."""
    tools: AgentTools = AgentTools()
    """Its tools."""
    subagents: AgentSubagents = AgentSubagents()
    """Agents it may spawn."""
    sandbox: Sandbox | None = None
    """Its sandbox; unset means agents.defaults.sandbox."""
    heartbeat: Heartbeat | None = None
    """Its heartbeat. When any agent has one, only those agents have heartbeats."""
    memory_search: MemorySearch | None = None
    """Its memory search; unset means agents.defaults.memorySearch."""
    human_delay: HumanDelay | None = None
    """Its pauses; unset means agents.defaults.humanDelay."""
    group_chat: GroupChat = GroupChat()
    """Mentions in groups."""
    budget: Budget | None = None
    """Its limits; unset means agents.defaults.budget."""


AgentList: TypeAlias = list[AgentConfig]


class Agents(Record):
    defaults: AgentDefaults = AgentDefaults()
    """What every agent has in common."""
    list: AgentList = []
    """The agents; empty means one called main."""


class BindingPeer(Record):
    kind: Literal["direct", "group", "channel", "dm"]
    """Kind of chat."""
    id: Name
    """Its id on the channel."""


class BindingMatch(Record):
    channel: Name
    """Channel id."""
    account_id: str | None = None
    """Account; unset means the default one, "*" any."""
    peer: BindingPeer | None = None
    """One chat."""
    guild_id: str | None = None
    """One Discord server."""
    team_id: str | None = None
    """One Slack or Teams workspace."""


class RouteBinding(Record):
    agent_id: Name
    """The agent that gets these messages."""
    match: BindingMatch
    """Which messages."""
