"""``messages`` and ``session``: how messages queue, and which conversation they belong to."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from openclaw.config.schema.base import Count, OpenMap, Positive, Record

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "steer-backlog", "interrupt"]
QueueWord: TypeAlias = Literal["steer", "followup", "collect", "steer-backlog", "steer+backlog", "queue", "interrupt"]
"""What the file may say: a mode, or an older word for one."""
QueueDrop: TypeAlias = Literal["old", "new", "summarize"]
TypingMode: TypeAlias = Literal["never", "instant", "thinking", "message"]
Decision: TypeAlias = Literal["allow", "deny"]


class Queue(Record):
    mode: QueueWord = "collect"
    """What happens to a message that arrives during a run."""
    by_channel: dict[str, QueueWord] = {}
    """The same per channel."""
    debounce_ms: Count = 1000
    """Silence after which queued messages start the next run."""
    debounce_ms_by_channel: dict[str, Count] = {}
    """The same per channel."""
    cap: Positive = 20
    """Queued messages per session at most."""
    drop: QueueDrop = "summarize"
    """What gives way when the queue is full."""


class InboundDebounce(Record):
    debounce_ms: Count = 0
    """Quick texts of one sender within this window become one turn; 0 is off."""
    by_channel: dict[str, Count] = {}
    """The same per channel."""


class GroupChat(Record):
    mention_patterns: list[str] | None = None
    """Regular expressions that count as a mention; unset means derived from the agent's identity."""
    history_limit: Count | None = None
    """Messages remembered between two replies in a group; unset means 50, 0 is off."""


class Messages(Record):
    queue: Queue = Queue()
    """Messages that arrive during a run."""
    inbound: InboundDebounce = InboundDebounce()
    """Joining quick texts."""
    group_chat: GroupChat = GroupChat()
    """Groups."""
    response_prefix: str | None = None
    """Put before replies; "auto" is the agent's name. May hold {model}, {provider}, {think}, {identity.name}."""
    message_prefix: str | None = None
    """Put before inbound WhatsApp messages."""
    ack_reaction: str | None = None
    """Emoji that acknowledges a message; unset means the agent's own, "" none."""
    ack_reaction_scope: Literal["group-mentions", "group-all", "direct", "all", "off", "none"] = "group-mentions"
    """Which messages are acknowledged."""
    remove_ack_after_reply: bool = False
    """Take the emoji away after the reply."""
    suppress_tool_errors: bool = False
    """Keep tool failures out of the chat."""
    status_reactions: OpenMap = {}
    """Emojis that show what the agent is doing."""
    tts: OpenMap = {}
    """Spoken replies."""


class SessionReset(Record):
    mode: Literal["daily", "idle", "none"] | None = None
    """Start a new session once a day, after a silence, or only when somebody asks for one."""
    at_hour: Annotated[int, Meta(ge=0, le=23)] | None = None
    """Hour of the daily reset, in the Gateway host's time zone; unset means 4."""
    idle_minutes: Positive | None = None
    """Silence after which a new session starts; unset means 60 in mode idle."""


class ResetByType(Record):
    direct: SessionReset | None = None
    """Direct chats."""
    dm: SessionReset | None = None
    """Old name of direct."""
    group: SessionReset | None = None
    """Groups and channels."""
    thread: SessionReset | None = None
    """Threads and topics."""


class SendMatch(Record):
    channel: str | None = None
    """Channel id."""
    chat_type: Literal["direct", "dm", "group", "channel", "room"] | None = None
    """Kind of chat."""
    key_prefix: str | None = None
    """Beginning of the session key, with or without agent:<id>:."""


class SendRule(Record):
    action: Decision
    """What happens."""
    match: SendMatch = SendMatch()
    """Which sessions; empty matches all."""


class SendPolicy(Record):
    rules: list[SendRule] = []
    """A matching deny ends the search; otherwise a matching allow wins."""
    default: Decision = "allow"
    """When no rule matches."""


class PingPong(Record):
    max_ping_pong_turns: Annotated[int, Meta(ge=0, le=5)] = 5
    """Turns of the conversation between two agents after sessions_send."""


class SessionMaintenance(Record):
    mode: Literal["warn", "enforce"] = "warn"
    """warn: the log says what would be put away. enforce: sessions are put away."""
    prune_after: str | int | None = None
    """Age of sessions that are put away, such as 30d; a bare number is days. Unset means 30d."""
    prune_days: Positive | None = None
    """Old form of pruneAfter."""
    max_entries: Positive | None = None
    """The most sessions of an agent; the oldest are put away first. Unset means 500."""
    rotate_bytes: str | int | None = None
    """Size at which the store file is rotated."""
    reset_archive_retention: str | int | bool | None = None
    """Age at which archived transcripts are deleted, or false for never. Unset means the same as pruneAfter."""
    max_disk_bytes: str | int | None = None
    """The most that the files of an agent's sessions take, such as 2gb. Archives go first, then old sessions."""
    high_water_bytes: str | int | None = None
    """Size after pruning. Unset means 80 % of maxDiskBytes."""


class SessionArchive(Record):
    after_days: Count = 30
    """Compress transcripts that were not written to for so many days; 0 is never. They open as before."""


class Session(Record):
    scope: Literal["per-sender", "global"] = "per-sender"
    """One conversation per agent and chat, or one for everything."""
    main_key: str = "main"
    """Last part of the main session's key."""
    dm_scope: Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"] = "main"
    """Whether direct chats share the main session."""
    identity_links: dict[str, list[str]] = {}
    """Ids of one person on several channels, by a name of your choice."""
    reset: SessionReset | None = None
    """When a new session starts; unset means daily at 4."""
    reset_by_type: ResetByType = ResetByType()
    """The same per kind of chat."""
    reset_by_channel: dict[str, SessionReset] = {}
    """The same per channel; replaces the two above."""
    idle_minutes: Positive | None = None
    """Old form of reset.idleMinutes."""
    reset_triggers: list[str] = field(default_factory=lambda: ["/new", "/reset"])
    """Messages that start a new session, besides /new and /reset."""
    store: str | None = None
    """Path of the session store; {agentId} is replaced."""
    send_policy: SendPolicy = SendPolicy()
    """Where replies may go."""
    agent_to_agent: PingPong = PingPong()
    """Conversations between agents."""
    typing_mode: TypingMode | None = None
    """When the typing indicator starts; wins over agents.defaults.typingMode."""
    typing_interval_seconds: Positive | None = None
    """Refresh of the typing indicator."""
    maintenance: SessionMaintenance = SessionMaintenance()
    """Pruning of old entries."""
    archive: SessionArchive = SessionArchive()
    """Old transcripts kept in less space."""
