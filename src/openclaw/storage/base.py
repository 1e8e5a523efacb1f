"""The storage seam: what the rest of the system may ask of a store, and nothing about how it is kept.

Three protocols (``SessionStore``, ``TranscriptStore``, ``Ledger``) plus ``BlobStore``. ``storage/files`` implements
them on one machine; every method that may touch a disk or a network is async, so that a database can implement them
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.messages import Message, ToolResultMessage, ToolSpec
from openclaw.sessions.entry import SessionEntry

# Sessions


class SessionRow(msgspec.Struct, frozen=True):
    agent_id: str
    key: str
    entry: SessionEntry


Change: TypeAlias = Callable[[SessionEntry | None], SessionEntry | None]
"""Gets a private copy of the entry (None: there is none) and returns the new entry (None: remove it)."""


class Writing(Protocol):
    """Something that was written and may not be on disk yet."""

    async def sync(self) -> None: ...


class SessionStore(Protocol):
    """``sessionKey -> SessionEntry`` for every agent. Entries handed out are copies or must be treated as frozen."""

    async def get(self, agent_id: str, key: str) -> SessionEntry | None: ...

    async def update(self, agent_id: str, key: str, change: Change, *, durable: bool = True) -> SessionEntry | None:
        """Applies one change atomically with respect to other updates. ``durable``: return only once it is on disk."""
        ...

    async def write(self, agent_id: str, key: str, change: Change) -> tuple[SessionEntry | None, Writing]:
        """Like ``update``, without the wait for the disk, which is left to whoever has more to wait for."""
        ...

    async def rows(self, agent_id: str | None = None) -> Sequence[SessionRow]:
        """Newest ``updatedAt`` first; of one agent or of all. O(rows), no disk, no sorting per call."""
        ...

    async def find_session_id(self, session_id: str) -> SessionRow | None: ...

    async def count(self, agent_id: str) -> int: ...

    @property
    def agent_ids(self) -> list[str]:
        """Agents that have at least one session, configured or not."""
        ...

    def path(self, agent_id: str) -> str:
        """Where a person finds this agent's store (shown in status and listings)."""
        ...

    async def close(self) -> None: ...


# Transcripts


class TranscriptRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names one transcript. ``file`` is the entry's ``sessionFile`` and wins over the derived path."""

    agent_id: str
    session_id: str
    file: str | None = None
    thread_id: str | int | None = None


class Entry(msgspec.Struct, frozen=True):
    """One line of a transcript, parsed as far as anyone asked for."""

    id: str
    parent_id: str | None
    type: str
    raw: bytes
    """The line exactly as stored, without its newline."""


class Context(msgspec.Struct, frozen=True):
    """What the tree says the model should see from the current leaf."""

    messages: list[Message]
    """Summary of the last compaction first (as a user message), then everything kept. Never mutate it."""
    entry_ids: list[str]
    """The entry each message came from, position by position."""
    model: tuple[str, str] | None
    """Provider and model id of the last ``model_change`` or assistant message on the path."""
    thinking_level: str
    compaction_id: str | None
    branch_cache: dict[Any, Any]
    """Readers keep here what they work out from the messages one by one, each under its own key. A branch only grows,
    so what holds for its beginning holds for the next turn too. The cache goes when the branch does."""


class Transcript(Protocol):
    """A live transcript: its index and active branch are in memory, the file is the durable copy.

    One owner (the session's actor) appends; any number of readers may look at the same time.
    """

    @property
    def path(self) -> str: ...

    @property
    def session_id(self) -> str: ...

    @property
    def leaf_id(self) -> str | None: ...

    @property
    def warnings(self) -> list[str]:
        """What was odd when the file was opened (corrupt lines by number, torn tail, missing header)."""
        ...

    def __len__(self) -> int:
        """Number of entries, header not counted."""
        ...

    def __contains__(self, entry_id: str) -> bool: ...

    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str:
        """Adds an entry at the leaf and returns its id.

        ``fields`` holds ``type`` and the payload (values may be msgspec records); id, parentId and timestamp are
        added. An ``entry_id`` that already exists is not appended again: a resumed run may repeat itself safely.
        The line is written before this returns; ``durable`` also waits for it to reach the disk.
        """
        ...

    async def append_all(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Adds several entries by their ids, each below the one before it; all of them are written, or none."""
        ...

    async def sync(self) -> None:
        """Returns once everything appended so far is on disk."""
        ...

    def context(self) -> Context:
        """The model's context at the current leaf; cached and extended in place of being rebuilt."""
        ...

    def branch(self, entry_id: str | None) -> None:
        """Moves the leaf (None: before the first entry); sticks once something is appended. KeyError: no such id."""
        ...

    async def label(self, entry_id: str, text: str | None) -> str:
        """Names an entry, or clears its name; itself an appended entry."""
        ...

    def labels(self) -> dict[str, str]: ...

    def tree(self) -> list[tuple[str, str | None, str]]:
        """(id, parentId, type) of every entry in file order."""
        ...

    async def entry(self, entry_id: str) -> Entry | None: ...

    async def path_entries(self, *, limit: int | None = None) -> list[Entry]:
        """The active branch, oldest first; with ``limit`` only its last entries (read from the tail)."""
        ...


class Shortened(msgspec.Struct, frozen=True, kw_only=True):
    archived: str | None
    """Where the whole file is kept; None when there was nothing to shorten."""
    kept: int
    """Lines kept, header not counted."""


class Compressed(msgspec.Struct, kw_only=True):
    files: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    problems: list[str] = []


class TranscriptStore(Protocol):
    async def open(self, ref: TranscriptRef, *, cwd: str = "", create: bool = True) -> Transcript | None:
        """The live transcript; the same object while it stays in memory. ``create=False``: None if there is none."""
        ...

    def begin(self, ref: TranscriptRef, *, cwd: str = "") -> None:
        """Tells of a session whose id is new: it is not looked for, and made ready for its first entry."""
        ...

    async def fork(self, source: Transcript, ref: TranscriptRef, *, cwd: str = "") -> Transcript:
        """A new transcript that begins with ``source``'s active branch. FileExistsError: ``ref`` is not new."""
        ...

    async def tail(self, ref: TranscriptRef, limit: int) -> list[Entry]:
        """The last entries of the active branch that people see (messages, compactions, markers), oldest first.

        Uses the live transcript when there is one, otherwise reads only the end of the file.
        """
        ...

    def locate(self, ref: TranscriptRef) -> str | None:
        """The existing file that holds this transcript (current or older locations), or None."""
        ...

    def default_path(self, ref: TranscriptRef) -> str: ...

    async def archive(self, ref: TranscriptRef, reason: str) -> list[str]:
        """Renames the file(s) to ``<file>.<reason>.<ISO with ':' as '-'>`` and returns the new paths."""
        ...

    async def shorten(self, ref: TranscriptRef, max_lines: int) -> Shortened:
        """Leaves the header and the last lines, the first of them re-rooted; the whole file is kept beside it."""
        ...

    async def compress(self, agent_id: str, before_ms: int, *, most: int = 200) -> Compressed:
        """Keeps transcripts last written before that moment in less space; they open as before.

        One that is in use stays as it is. At most ``most`` at a time, the oldest first.
        """
        ...

    async def forget(self, session_id: str) -> None:
        """Drops the live object (after a reset or delete)."""
        ...

    async def close(self) -> None: ...


# Ledger: the life of a message

MessageState: TypeAlias = Literal[
    "accepted", "queued", "running", "answered", "silent", "failed", "superseded", "expired"
]
END_STATES: frozenset[str] = frozenset({"answered", "silent", "failed", "superseded", "expired"})


class ReasonCode(StrEnum):
    """Why a message is in its state. ``Reason.detail`` holds what is named in brackets here."""

    NONE = ""
    SESSION_BUSY = "session_busy"
    """Another message of the session is running."""
    COLLECTING = "collecting"
    """The same, and the message may share a prompt with others that wait."""
    STEERING = "steering"
    """It is to be taken into the active run (run id)."""
    RESTARTED = "restarted"
    """The Gateway stopped before the message began."""
    SHUTDOWN = "shutdown"
    """The Gateway was told to stop while the message was running. This does not count as a crash."""
    COLLECTED = "collected"
    """It shares a prompt with others under the newest one's name (run id)."""
    STEERED = "steered"
    """An active run took it in (run id)."""
    ANSWERED_BEFORE = "answered_before"
    """An earlier run had taken it in before a restart."""
    NO_REPLY = "no_reply"
    NO_WORDS = "no_words"
    """The model ended its turn without a word."""
    TIME_LIMIT = "time_limit"
    STOPPED = "stopped"
    """Somebody stopped it (an ``AbortReason``)."""
    QUEUE_OVERFLOW = "queue_overflow"
    """More messages were waiting than the queue holds (the queue's size)."""
    QUEUE_OVERFLOW_SUMMARIZED = "queue_overflow_summarized"
    """The same, and its beginning was put before the next message (the queue's size)."""
    QUEUE_FULL = "queue_full"
    """The queue takes no more messages (the number of messages that wait)."""
    REMOVED_FROM_QUEUE = "removed_from_queue"
    """A person removed it from the queue."""
    EXPIRED = "expired"
    """It had waited too long when the Gateway started (the hours)."""
    CRASHED = "crashed"
    """The Gateway crashed too often while it worked on it (how often)."""
    OTHER = "other"
    """Something else (the words for it, for example the provider's own error)."""


class AbortReason(StrEnum):
    """Who stopped a run. Clients see these values."""

    RPC = "rpc"
    STOP = "stop"
    RESET = "reset"
    DELETE = "delete"
    INTERRUPT = "interrupt"
    """A newer message takes its place."""
    TIMEOUT = "timeout"
    REMOVED = "removed"
    """A person took the message out of the queue."""


class Reason(msgspec.Struct, frozen=True):
    """Why a message is in its state. ``runs/why_text.py`` puts it into words."""

    code: ReasonCode = ReasonCode.NONE
    detail: str = ""


NO_REASON = Reason()


class DeliveryCode(StrEnum):
    """What is known of a part of a reply besides its state."""

    NONE = ""
    REPEATED = "repeated"
    """It was sent again after a try of which nobody knows whether it arrived."""
    GIVEN_UP = "given_up"
    """It is not sent again, because it may have arrived too often already."""


class StoredImage(msgspec.Struct, frozen=True, rename="camel"):
    """A picture of a message; its bytes are in the blob store."""

    blob: str
    mime_type: str


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything needed to run a message, also after a crash. The ledger keeps it as JSON."""

    version: int = 1
    prompt: str | None = None
    """What the model is asked. None: the message needs no run, or what was stored of it is damaged."""
    text: str = ""
    """What is delivered, for a message that needs no run."""
    images: list[StoredImage] = []
    thinking: str | None = None
    verbose: str | None = None
    reasoning: str | None = None
    model: str | None = None
    """``provider/model`` for this run only."""
    auth_profile: str | None = None
    exec: dict[str, str] = {}
    """How commands of this run are executed: host, security, ask, node."""
    elevated: str | None = None
    elevated_allowed: bool = False
    """Whether the sender may have elevated commands at all."""
    message_ids: list[str] = []
    """What the platform calls the messages this one was made of."""
    timeout_seconds: int | float | None = None
    extra_system_prompt: str = ""
    client_tools: list[ToolSpec] = []
    """Tools that the caller runs itself."""
    tool_outputs: list[ToolResultMessage] = []
    """Results of earlier calls to such tools. They come before the prompt, which may then be empty."""
    tool_choice: Any = None
    """``"required"`` or ``{"name": ...}``: the model must call one of the caller's tools, and is offered no other."""
    max_tokens: int | None = None

    def wishes(self) -> MessageBody:
        """The settings alone. They hold for everything that the message sets going."""
        return MessageBody(
            thinking=self.thinking,
            verbose=self.verbose,
            reasoning=self.reasoning,
            model=self.model,
            auth_profile=self.auth_profile,
            exec=self.exec,
            elevated=self.elevated,
            elevated_allowed=self.elevated_allowed,
        )


class Accept(msgspec.Struct, kw_only=True):
    """A message as it is written down before anyone is told it was received."""

    run_id: str
    """Idempotency key and run id: unique for ever."""
    dedupe_key: str
    """``channel|account|peer|session|message id``; a second message with the same key is a redelivery."""
    agent_id: str
    session_key: str
    session_id: str
    source: str
    """``webchat``, ``agent``, ``cron``, a channel id."""
    route: dict[str, Any]
    """Where the reply goes; fixed now, never changed."""
    body: MessageBody
    dedupe_keys: tuple[str, ...] = ()
    """Keys of the channel messages it was made of, remembered in the same transaction (see ``Ledger.seen``)."""


class LedgerRow(msgspec.Struct, kw_only=True):
    id: int
    run_id: str
    dedupe_key: str
    agent_id: str
    session_key: str
    session_id: str
    source: str
    route: dict[str, Any]
    body: MessageBody
    state: MessageState
    reason: Reason
    attempts: int
    accepted_at: int
    started_at: int | None
    ended_at: int | None
    result: dict[str, Any] | None


class StateChange(msgspec.Struct, kw_only=True):
    at: int
    state: str
    reason: Reason


class ToolCallRow(msgspec.Struct, kw_only=True):
    ledger_id: int
    call_id: str
    name: str
    arguments: str
    """JSON."""
    started_at: int
    finished_at: int | None
    ok: bool | None


class OutboxPart(msgspec.Struct, kw_only=True):
    """One thing to deliver. ``part`` counts from 0 within the message."""

    part: int
    channel: str
    payload: dict[str, Any]


class OutboxRow(msgspec.Struct, kw_only=True):
    id: int
    ledger_id: int
    run_id: str
    part: int
    channel: str
    route: dict[str, Any]
    payload: dict[str, Any]
    state: Literal["pending", "sending", "sent", "dead"]
    attempts: int
    next_at: int
    created_at: int
    error: str = ""
    """What went wrong last, as the channel said it."""
    doubts: int = 0
    """How often the part was handed to a channel and nobody learned what became of it."""
    code: DeliveryCode = DeliveryCode.NONE
    message_id: str = ""
    """What the platform called it once it was sent; empty when it did not say."""


FirstStep: TypeAlias = Literal["running", "queued"]


class Ledger(Protocol):
    """Every call is one transaction, on disk when it returns. Calls made together share one commit."""

    async def accept(
        self,
        message: Accept,
        *,
        step: FirstStep | None = None,
        reason: Reason = NO_REASON,
        after: Writing | None = None,
    ) -> tuple[LedgerRow, bool]:
        """The row and whether it is new. A known run id or dedupe key returns the row that was there.

        ``step``: what becomes of it at once is known beforehand and noted in the same commit: its first attempt, or
        that it waits and why. The row says what was before that. ``after``: what must be on disk before.
        """
        ...

    async def advance(
        self, ledger_id: int, state: MessageState, reason: Reason = NO_REASON, *, session_id: str | None = None
    ) -> None:
        """A step that is not an end. Going back from an end state is refused with ValueError.

        ``session_id``: the session it runs in, when that is no longer the one it was accepted for.
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
        """Ends the message and stores what must be delivered, in one transaction. False if it had already ended.

        ``written``: what must be on disk before the message counts as ended.
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
        """A message that needs no run: accepted, ended and left to be delivered, in one transaction."""
        ...

    async def absorb(
        self,
        into: int,
        others: Sequence[int],
        *,
        body: MessageBody,
        reason: Reason,
    ) -> None:
        """One message takes others in: it gets a new body and they end ``superseded``, in one transaction.

        Their ``result`` names the run that answers them as ``answeredBy``.
        """
        ...

    async def seen(self, key: str, ttl_ms: int, keep: int, *, remember: bool = True) -> bool:
        """Whether a channel message with this key was seen within ``ttl_ms``; survives a restart.

        A hit counts as seen again. A miss is remembered unless ``remember`` is false. At most ``keep`` keys are kept,
        the oldest go first. An empty key is never seen.
        """
        ...

    async def hold(self, key: str, message: bytes) -> None:
        """Keeps a message that waits for more words of its sender; the same key again changes nothing."""
        ...

    async def held(self) -> list[tuple[str, bytes]]:
        """What waits, oldest first."""
        ...

    async def let_go(self, keys: Sequence[str]) -> None: ...

    async def tool_started(self, ledger_id: int, call_id: str, name: str, arguments: str) -> None: ...

    async def tool_finished(self, ledger_id: int, call_id: str, ok: bool) -> None: ...

    async def tool_calls(self, ledger_id: int) -> list[ToolCallRow]: ...

    async def by_run(self, run_id: str) -> LedgerRow | None: ...

    async def get(self, ledger_id: int) -> LedgerRow | None: ...

    async def story(self, ledger_id: int) -> list[StateChange]: ...

    async def unfinished(self) -> list[LedgerRow]:
        """Rows without an end, oldest first."""
        ...

    async def recent(
        self, *, session_key: str | None = None, state: MessageState | None = None, limit: int = 50
    ) -> list[LedgerRow]:
        """The latest messages, newest first. With ``state``, a bounded number of older ones is looked through."""
        ...

    async def runs_beginning(self, prefix: str, limit: int = 10) -> list[LedgerRow]:
        """Messages whose run id begins like this, in the order of their ids."""
        ...

    async def outbox_due(self, now_ms: int, limit: int = 100) -> list[OutboxRow]: ...

    async def outbox_depth(self) -> int:
        """How many parts still wait to be delivered."""
        ...

    async def outbox_of(self, ledger_id: int) -> list[OutboxRow]: ...

    async def outbox_mark(
        self,
        outbox_id: int,
        state: Literal["pending", "sending", "sent", "dead"],
        *,
        next_at: int = 0,
        error: str = "",
        doubts: int = 0,
        code: DeliveryCode = DeliveryCode.NONE,
        message_id: str = "",
    ) -> None: ...

    async def prune(self, before_ms: int) -> int:
        """Removes ended rows older than that (their outbox sent or dead); returns how many."""
        ...

    async def close(self) -> None: ...


# Blobs


class BlobStore(Protocol):
    """Large tool output and media, stored once by SHA-256."""

    async def put(self, data: bytes) -> str: ...

    async def get(self, digest: str) -> bytes | None: ...
