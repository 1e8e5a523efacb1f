"""The message ledger: the records of a message from acceptance to delivery, and the protocol that stores them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.messages import Route, ToolResultMessage, ToolSpec
from openclaw.storage.questions import QuestionRows
from openclaw.storage.sessions import Writing
from openclaw.storage.transcripts import Transcript
from openclaw.untrusted_text import TextChange

MessageState: TypeAlias = Literal[
    "accepted", "queued", "running", "answered", "silent", "failed", "superseded", "expired"
]
END_STATES: frozenset[str] = frozenset({"answered", "silent", "failed", "superseded", "expired"})


class ReasonCode(StrEnum):
    """Why a message is in its state. The brackets name what ``Reason.detail`` holds."""

    NONE = ""
    SESSION_BUSY = "session_busy"
    """Another message of the session is running."""
    COLLECTING = "collecting"
    """Another message of the session is running, and this one may share a prompt with others that wait."""
    STEERING = "steering"
    """The message was handed to the active run (run id)."""
    RESTARTED = "restarted"
    """The Gateway stopped before the message began."""
    SHUTDOWN = "shutdown"
    """The Gateway was told to stop while the message was running. This does not count as a crash."""
    COLLECTED = "collected"
    """The message shares a prompt with others, and the newest one's run answers them (run id)."""
    STEERED = "steered"
    """An active run took the message in (run id)."""
    ANSWERED_BEFORE = "answered_before"
    """Another run had taken the message in before a restart."""
    NO_REPLY = "no_reply"
    NO_WORDS = "no_words"
    """The model ended its turn without a word."""
    TIME_LIMIT = "time_limit"
    """The run took longer than its time limit (the seconds)."""
    STOPPED = "stopped"
    """Somebody stopped the message (an ``AbortReason``)."""
    QUEUE_OVERFLOW = "queue_overflow"
    """More messages were waiting than the queue holds (the queue's size)."""
    QUEUE_OVERFLOW_SUMMARIZED = "queue_overflow_summarized"
    """The queue was full, and the beginning of the message was put before the next one (the queue's size)."""
    QUEUE_FULL = "queue_full"
    """The queue takes no more messages (the number of messages that wait)."""
    REMOVED_FROM_QUEUE = "removed_from_queue"
    """A person removed the message from the queue."""
    WITHDRAWN = "withdrawn"
    """The sender changed the message or took it back."""
    EXPIRED = "expired"
    """The message had waited too long when the Gateway started (the hours)."""
    RESTORED = "restored"
    """The message was under way in a backup that was restored."""
    CRASHED = "crashed"
    """The Gateway crashed too often while it worked on the message (how often)."""
    COMMAND = "command"
    """The message was a command, and the Gateway answered it."""
    COMMAND_INSIDE = "command_inside"
    """The answer to a command inside another message."""
    COMMAND_UNANSWERED = "command_unanswered"
    """The message was a command that has no answer, or that its sender may not give."""
    COMMAND_INTERRUPTED = "command_interrupted"
    """The Gateway stopped while it worked on the command."""
    COMMAND_FAILED = "command_failed"
    """The command raised an error, which its answer names."""
    SEND_POLICY = "send_policy"
    NOTHING_WRITTEN = "nothing_written"
    """The message has neither words nor files."""
    PAIRING = "pairing"
    """A stranger was told a pairing code."""
    NOT_TAKEN = "not_taken"
    """The message was received and kept, but could not be handed on (the problem)."""
    NEW_SESSION = "new_session"
    """The line that says that a new session began."""
    ACCESS_DENIED = "access_denied"
    """The sender may not write to the agent there (the rule that says so)."""
    NOT_ADDRESSED = "not_addressed"
    """A message of a group that was not meant for the agent."""
    REDELIVERED = "redelivered"
    """The same message was delivered again. It was recognised and started nothing."""
    OTHER = "other"
    """The reason has no code, only text, for example the provider's own error."""


class RejectedMessage(msgspec.Struct, kw_only=True):
    """A message that was rejected, or that was delivered again. Its text is not stored."""

    message_id: str
    """The channel's id of the message, or the run id that a client gave it."""
    channel: str
    chat: str = ""
    sender: str = ""
    code: ReasonCode
    detail: str = ""
    count: int = 1
    """How often it came."""
    first_at: int = 0
    last_at: int = 0


class AbortReason(StrEnum):
    """Who or what stopped a run. The events for clients say ``rpc``, ``timeout`` or, for all the others, ``stop``."""

    RPC = "rpc"
    STOP = "stop"
    RESET = "reset"
    DELETE = "delete"
    INTERRUPT = "interrupt"
    """A newer message interrupted the run."""
    TIMEOUT = "timeout"
    REMOVED = "removed"
    """A person took the message out of the queue."""
    WITHDRAWN = "withdrawn"
    """The sender changed the message or took it back."""


class Reason(msgspec.Struct, frozen=True):
    """Why a message is in its state. ``runs/why.py`` puts it into words."""

    code: ReasonCode = ReasonCode.NONE
    detail: str = ""


NO_REASON = Reason()


class DeliveryCode(StrEnum):
    """Details of the delivery of a part, in addition to its state."""

    NONE = ""
    REPEATED = "repeated"
    """The part was sent again although an earlier try may have arrived."""
    GIVEN_UP = "given_up"
    """The part is not sent again, because too many tries may have arrived."""
    UNANSWERED = "unanswered"
    """A try got no answer. The part waits until its channel is known to answer again."""
    ANSWERED_ERROR = "answered_error"
    """The platform answered a try with an error that leaves open whether the part arrived."""
    DROPPED = "dropped"
    """A person decided that the part is not sent."""


class StoredImage(msgspec.Struct, frozen=True, rename="camel"):
    """A picture of a message. The blob store holds its bytes."""

    blob: str
    mime_type: str


class Trace(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The way that led from one message through several sessions to this one."""

    id: str
    hops: int = 0
    visited: tuple[str, ...] = ()
    """The keys of the sessions on the way, the first one first."""
    guest: bool = False
    """Others than the owner caused one of the messages on the way."""


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything needed to run a message, also after a crash. The ledger keeps it as JSON."""

    version: int = 1
    prompt: str | None = None
    """What the model is asked. None when the message needs no run or its stored form is damaged."""
    written: str = ""
    """What the person wrote, byte for byte, where the prompt holds it in another form. See ``foreign_text``."""
    disarmed: list[TextChange] = []
    """The changes made to people's texts on their way into the prompt. ``why`` shows them."""
    internal: bool = False
    """The Gateway wrote the prompt for the model, e.g. about a command that has ended. No client shows it."""
    text: str = ""
    """The delivery for a message that needs no run."""
    command: bool = False
    """The message is a command, which the Gateway answers without a run. ``prompt`` is what the person wrote."""
    images: list[StoredImage] = []
    thinking: str | None = None
    verbose: str | None = None
    reasoning: str | None = None
    model: str | None = None
    """The model of this run, as ``provider/model``. None: the session's model."""
    auth_profile: str | None = None
    exec: dict[str, str] = {}
    """How the run executes commands: ``host``, ``security``, ``ask`` and ``node``."""
    elevated: str | None = None
    elevated_allowed: bool = False
    """Whether the sender may use elevated commands."""
    guest: bool = False
    """Others than the owner wrote it, or may have: a guest on a channel, a webhook, a node."""
    dropped_count: int = 0
    """How many messages a full queue dropped before this one. The prompt of this one mentions them."""
    dropped_lines: list[str] = []
    """The beginnings of the last of them."""
    message_ids: list[str] = []
    """The platform's ids of the messages that this one was made of."""
    sender: str = ""
    """Who wrote it on a channel: the platform's id of the person."""
    mentioned: bool = False
    """The message speaks to the agent: it mentions it, answers it, or comes in a direct chat."""
    timeout_seconds: int | float | None = None
    extra_system_prompt: str = ""
    skills: list[str] | None = None
    """The only skills that the run is shown, by name. None: all of the agent's."""
    client_tools: list[ToolSpec] = []
    """The tools that the caller runs itself."""
    without_tools: list[str] = []
    """The agent's tools that this run does not get."""
    tool_outputs: list[ToolResultMessage] = []
    """The results of earlier calls to those tools. They come before the prompt, which may be empty then."""
    tool_choice: Any = None
    """``"required"`` or ``{"name": ...}``. Then the model must call a tool and is offered only the caller's tools."""
    max_tokens: int | None = None
    provenance: dict[str, Any] = {}
    """Who wrote the message, if it was neither a person nor the Gateway: its kind, session and tool."""
    trace: Trace | None = None
    """The chain of messages between sessions that this one belongs to."""

    @property
    def by_owner(self) -> bool:
        """Whether the owner wrote it, and nobody else caused it through other sessions."""
        return not self.guest and not (self.trace is not None and self.trace.guest)

    def overrides(self) -> MessageBody:
        """Returns the settings alone, and who caused the message. They hold for every run that it starts."""
        return MessageBody(
            thinking=self.thinking,
            verbose=self.verbose,
            reasoning=self.reasoning,
            model=self.model,
            auth_profile=self.auth_profile,
            exec=self.exec,
            elevated=self.elevated,
            elevated_allowed=self.elevated_allowed,
            guest=self.guest,
            trace=self.trace,
        )


class Accept(msgspec.Struct, kw_only=True):
    """A message as the ledger accepts it, before its sender gets the acknowledgement."""

    run_id: str
    """The idempotency key and run id. It is unique among the messages that the ledger keeps."""
    dedupe_key: str
    """Where the message came from, and its id there. No second message with the same key is accepted, if it has one."""
    agent_id: str
    session_key: str
    session_id: str
    source: str
    """``webchat``, ``agent``, ``cron`` or a channel id."""
    route: Route
    """Where the reply goes. It never changes."""
    body: MessageBody
    dedupe_keys: tuple[str, ...] = ()
    """The keys of the channel messages it was made of.

    The same transaction remembers them for ``Ledger.seen`` and lets go of what is held under them.
    """
    pending: tuple[int, ...] = ()
    """The steps of the pending messages that its prompt holds. The same transaction deletes them."""


class LedgerRow(Accept, kw_only=True):
    """A message in the ledger. Its ``dedupe_keys`` and ``pending`` are empty."""

    id: int
    state: MessageState = "accepted"
    reason: Reason = NO_REASON
    attempts: int = 0
    """How often a run of the message began."""
    accepted_at: int
    started_at: int | None = None
    ended_at: int | None = None
    result: dict[str, Any] | None = None

    def derive(self, run_id: str, *, dedupe_key: str = "", body: MessageBody | None = None) -> Accept:
        """Returns a message of the same session that goes the same way, with an id of its own."""
        return Accept(
            run_id=run_id,
            dedupe_key=dedupe_key,
            agent_id=self.agent_id,
            session_key=self.session_key,
            session_id=self.session_id,
            source=self.source,
            route=self.route,
            body=body or self.body,
        )


class StateChange(msgspec.Struct, kw_only=True):
    at: int
    state: str
    reason: Reason


class ToolCallRow(msgspec.Struct, kw_only=True):
    ledger_id: int
    call_id: str
    name: str
    arguments: str
    """The arguments as JSON."""
    started_at: int
    finished_at: int | None
    ok: bool | None


class OutboxPart(msgspec.Struct, kw_only=True):
    """One part of a reply. ``part`` is its number within the message, from 0."""

    part: int
    channel: str
    payload: dict[str, Any]


PartState: TypeAlias = Literal["pending", "sending", "sent", "dead"]


class OutboxRow(msgspec.Struct, kw_only=True):
    id: int
    ledger_id: int
    run_id: str
    part: int
    channel: str
    route: Route
    payload: dict[str, Any]
    state: PartState
    attempts: int
    next_at: int
    created_at: int
    error: str = ""
    """The last problem, in the channel's words."""
    doubts: int = 0
    """How often the part was handed to a channel without an answer whether it arrived."""
    answered_errors: int = 0
    """How many tries the platform answered with an error."""
    code: DeliveryCode = DeliveryCode.NONE
    message_id: str = ""
    """The platform's id of the sent message. Empty when the platform gave none."""


class HeldMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A channel message that waits for more words of its sender before it is accepted."""

    key: str
    message: bytes
    """The message as its channel handed it in, as JSON."""
    attempts: int = 0
    """How often a Gateway has tried after its start to hand it on."""


class PendingMessage(msgspec.Struct, frozen=True):
    """A group message that the agent was not addressed with. The next message that addresses it brings it along."""

    step: int
    """Its number among the pending messages."""
    message: bytes
    """A ``HistoryEntry``, as JSON."""


_JOBS = uuid.UUID("5f0c4f5e-6b7d-4f5a-9b0e-3a1d8c2e7f46")


def step_id(job_id: str, step: str) -> str:
    """The run id of one step of a job. It is the same after a restart."""
    return str(uuid.uuid5(_JOBS, f"{job_id}/{step}"))


class JobRow(msgspec.Struct, kw_only=True):
    """Work that goes on beyond one run, such as a sub-agent. ``teamwork/send.py`` carries it on after a crash."""

    id: str
    kind: str
    owner_key: str
    """The session that asked for it."""
    run_id: str
    """The run that asked for it."""
    trace: str
    """The id that all jobs share which one message led to."""
    state: dict[str, Any]
    """What the job's kind needs, as JSON."""
    created_at: int
    ended_at: int | None = None


FirstStep: TypeAlias = Literal["running", "queued"]
"""The step after ``accepted``."""


SessionName: TypeAlias = tuple[str, str]
"""The agent and the session key."""


class MessageLifecycle(Protocol):
    """What happens to a message: its acceptance, its steps, its tool calls and its end."""

    async def accept(
        self,
        message: Accept,
        *,
        step: FirstStep | None = None,
        reason: Reason = NO_REASON,
        after: Writing | None = None,
    ) -> tuple[LedgerRow, bool]:
        """Stores a message. Returns its row and True, or the row of the known message with this id or dedupe key.

        ``step`` is a first step that is known already. The same commit notes it with its ``reason``, and the returned
        row does not show it. ``after`` is a write that must be on disk before the message is.
        """
        ...

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        """Notes a step that does not end the message. Raises ``MessageEnded`` when the message has ended.

        ``session_id`` is the session the message runs in, if it differs from the one it was accepted for.
        """
        ...

    async def finish(
        self,
        ledger_id: int,
        state: MessageState,
        *,
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
        outbox: Sequence[OutboxPart] = (),
        written: Transcript | None = None,
    ) -> bool:
        """Ends the message and stores what is to be delivered, in one transaction. False if it had ended before.

        ``written`` is a transcript that must be on disk before the message counts as ended.
        """
        ...

    async def post(
        self,
        message: Accept,
        outbox: Sequence[OutboxPart],
        *,
        state: MessageState = "answered",
        reason: Reason = NO_REASON,
        result: dict[str, Any] | None = None,
    ) -> tuple[LedgerRow, bool]:
        """Accepts and ends a message that needs no run, and stores what is to be delivered, in one transaction."""
        ...

    async def absorb(self, into: int, others: Mapping[int, Reason], *, body: MessageBody) -> None:
        """Gives one message a new body and ends the others as ``superseded``, in one transaction.

        The ``result`` of those that were collected names the run that answers them as ``answeredBy``.
        """
        ...

    async def tool_started(
        self, ledger_id: int, call_id: str, name: str, arguments: str, *, written: Transcript | None = None
    ) -> None:
        """Notes that a call begins. Everything in ``written`` is on disk before the note is."""
        ...

    async def tool_finished(self, ledger_id: int, call_id: str, ok: bool) -> None: ...


class MessageSearch(Protocol):
    """The stored history of messages, and its retention."""

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]: ...

    async def by_run(self, run_id: str) -> LedgerRow | None: ...

    async def get(self, ledger_id: int) -> LedgerRow | None: ...

    async def history(self, ledger_id: int) -> list[StateChange]:
        """Returns every state the message was in, oldest first."""
        ...

    async def unfinished(self, session: SessionName | None = None) -> list[LedgerRow]:
        """Returns the messages without an end, of one session or of all, oldest first."""
        ...

    async def recent(
        self, *, session_key: str | None = None, state: MessageState | None = None, limit: int = 50
    ) -> list[LedgerRow]:
        """Returns the latest messages, newest first. A search by ``state`` reads only a limited number of messages."""
        ...

    async def by_message_id(self, message_id: str) -> list[LedgerRow]:
        """Returns the messages with this id of their channels, newest first. Only the latest are looked through.

        Several chats, and several channels, may use the same id.
        """
        ...

    async def note_rejected(self, note: RejectedMessage) -> None:
        """Store a rejected message. The same note again raises its count. Old notes are deleted."""
        ...

    async def rejected(self, message_ids: Sequence[str]) -> list[RejectedMessage]:
        """Returns what is remembered of the messages with these ids, oldest first."""
        ...

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        """Returns the messages whose run id begins with ``prefix``, in the order of their run ids."""
        ...

    async def prune(self, before_ms: int, *, most: int = 200) -> int:
        """Removes messages that ended before that time and have nothing left to deliver, at most ``most`` of them.

        Returns their number.
        """
        ...


class ChannelMemory(Protocol):
    """What channels remember before a message is accepted."""

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        """Tells whether a channel message with this key was seen within ``ttl_ms``, also before a restart.

        A known key counts as seen again. An unknown key is remembered unless ``remember`` is false. At most ``keep``
        keys are kept, and the oldest go first. An empty key is never seen.
        """
        ...

    async def hold(self, key: str, message: bytes) -> None:
        """Keeps a message that waits for more words of its sender. A known key changes nothing."""
        ...

    async def update_held(self, key: str, message: bytes) -> None:
        """Replaces what is kept of a message that waits. One that was let go does not come back."""
        ...

    async def held(self) -> list[HeldMessage]:
        """Returns the messages that are held, oldest first."""
        ...

    async def count_held_attempt(self, key: str) -> None:
        """Counts one more attempt to hand on a message that is held."""
        ...

    async def release_held(self, keys: Sequence[str]) -> None: ...

    async def add_pending(self, position: str, message_id: str, message: bytes, *, keep: int) -> None:
        """Store a message that the agent was not addressed with, as context for the next one of its conversation.

        ``position`` names the conversation, of which the newest ``keep`` messages stay. A message with a known id
        replaces the stored one.
        """
        ...

    async def pending(self, position: str, limit: int) -> list[PendingMessage]:
        """Return the newest ``limit`` messages that wait in a conversation, oldest first."""
        ...


class JobRows(Protocol):
    """Work that goes on beyond one run."""

    async def job_put(self, job: JobRow) -> None:
        """Stores a job, or replaces what is stored of it."""
        ...

    async def job(self, job_id: str) -> JobRow | None: ...

    async def jobs(
        self,
        *,
        kind: str | None = None,
        owner_key: str | None = None,
        run_id: str | None = None,
        trace: str | None = None,
        ended: bool | None = None,
        limit: int = 1000,
    ) -> list[JobRow]:
        """Returns the jobs that fit, oldest first. If there are more than ``limit``, they are the newest."""
        ...


class Outbox(Protocol):
    """The parts of replies that wait for their delivery."""

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]:
        """Returns the oldest pending part of each destination, where its time has come, in the order of their times.

        The later parts of a destination are never due, because they would overtake the oldest one.
        """
        ...

    async def outbox_waiting(self, outbox_id: int, limit: int = 100) -> list[OutboxRow]:
        """Returns the pending parts that go to the same destination as this part, oldest first."""
        ...

    async def outbox_depth(self) -> int:
        """Counts the parts that wait to be delivered."""
        ...

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]: ...

    async def outbox_add(self, ledger_id: int, parts: Sequence[OutboxPart]) -> bool:
        """Stores parts of a message that has not ended, behind those that it has. They get the next numbers.

        Returns False, and stores nothing, if the message has ended.
        """
        ...

    async def outbox_parts(
        self, states: Sequence[PartState], *, channel: str | None = None, limit: int = 100
    ) -> list[OutboxRow]:
        """Returns the parts in these states, newest first."""
        ...

    async def outbox_retry(self, outbox_ids: Sequence[int]) -> int:
        """Retry parts that were given up, as if they had been created now. Return their number.

        A part that may have arrived before stays in doubt.
        """
        ...

    async def outbox_reclaim(self, channel: str, mine: Callable[[Route], bool]) -> None:
        """Lets parts be sent again, with one doubt more, that another node was sending when it went away.

        ``mine`` tells by its route whether a part of the channel is meant.
        """
        ...

    async def outbox_mark(
        self,
        outbox_id: int,
        state: PartState,
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int = 0,
        answered_errors: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
        message_id: str = "",
    ) -> bool:
        """Replaces the state of a part and all that is given with it. ``sending`` counts one attempt more.

        A part that was sent or given up meanwhile stays as it is, and this returns False. Only a part that was given up
        while it was being sent, and has arrived all the same, becomes ``sent``.
        """
        ...


class Ledger(MessageLifecycle, MessageSearch, ChannelMemory, JobRows, QuestionRows, Outbox, Protocol):
    """The life of every message, from its acceptance to the delivery of its parts.

    Every call is one transaction, which is on disk when the call returns. Concurrent calls share a commit.
    """

    async def close(self) -> None: ...
