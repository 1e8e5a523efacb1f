"""Results of ``sessions.*``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openclaw.protocol.result import Result, Success

OnPages = int | msgspec.UnsetType
Count = int | float | None


class ModelDefaults(Result):
    """The model of sessions that chose none. The values are null when no model can be resolved."""

    model_provider: str | None
    model: str | None
    context_tokens: int | None


class SessionRowView(Result):
    """A session in a list."""

    key: str
    kind: str = "unknown"
    """``direct``, ``group`` or ``unknown``."""
    label: str | None = None
    display_name: str | None = None
    channel: str | None = None
    subject: str | None = None
    group_channel: str | None = None
    space: str | None = None
    chat_type: str | None = None
    origin: dict[str, Any] | None = None
    updated_at: Count = None
    session_id: str | None = None
    system_sent: bool | None = None
    aborted_last_run: bool | None = None
    thinking_level: str | None = None
    verbose_level: str | None = None
    reasoning_level: str | None = None
    elevated_level: str | None = None
    send_policy: str | None = None
    input_tokens: Count = None
    output_tokens: Count = None
    total_tokens: Count = None
    cache_read: Count = None
    cache_write: Count = None
    response_usage: str | None = None
    model_provider: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    context_tokens: int | float | msgspec.UnsetType | None = msgspec.UNSET
    compaction_count: Count = None
    delivery_context: dict[str, Any] | None = None
    last_channel: str | None = None
    last_to: str | None = None
    last_account_id: str | None = None
    spawned_by: str | None = None
    provider: str | None = None
    """The channel, under a name that some clients still read."""
    room: str | None = None
    """The group's channel, under a name that some clients still read."""
    derived_title: str | None = None
    last_message_preview: str | None = None
    pinned_at: Count = None
    archived_at: Count = None
    read_at: Count = None
    running: bool | None = None
    """True while a message of the session is answered."""


class SessionList(Result, kw_only=True):
    """The sessions that fit, newest first. The fields of a page are there if the call had an ``offset``."""

    ts: int
    path: str
    paths: list[str]
    """The stores, the default agent's first."""
    count: int
    total_count: OnPages = msgspec.UNSET
    limit_applied: OnPages = msgspec.UNSET
    offset: OnPages = msgspec.UNSET
    has_more: bool | msgspec.UnsetType = msgspec.UNSET
    next_offset: int | msgspec.UnsetType | None = msgspec.UNSET
    defaults: ModelDefaults
    sessions: list[SessionRowView]


class PreviewLine(Result):
    """A message in short."""

    role: str
    text: str


class SessionPreview(Result):
    """The last lines of a session."""

    key: str
    status: Literal["ok", "empty", "missing"]
    items: list[PreviewLine]


class SessionPreviews(Result):
    """The last lines of some sessions."""

    ts: int
    previews: list[SessionPreview]


class ResolvedSession(Success):
    """The session that a name means."""

    key: str
    new: bool | None = None
    """Whether a message would create the session. Present only if the call had a ``name``."""


class SearchHit(Result):
    """A passage of a transcript."""

    session_key: str | None
    """Null for a session that no key has any more."""
    agent_id: str = ""
    session_id: str = ""
    entry_id: str = ""
    role: str = ""
    tool_name: str = ""
    timestamp: str = ""
    snippet: str = ""


class IndexProgress(Result):
    """How many transcripts are indexed."""

    done: int
    total: int


class SessionSearch(Result):
    """The passages that contain the words."""

    ts: int
    results: list[SearchHit]
    complete: bool
    """False while transcripts are still being indexed."""
    indexed: IndexProgress


class ModelInUse(Result):
    """A model by its provider and id."""

    model_provider: str | None
    model: str | None


class SessionPatched(Success):
    """The session after the change."""

    path: str
    key: str
    entry: dict[str, Any]
    """The entry as it is stored."""
    resolved: ModelInUse
    """The model that the session uses now."""


class SessionRestarted(Success):
    """The session after the reset."""

    key: str
    entry: dict[str, Any] | None
    """The new entry as it is stored."""


class SessionDeleted(Success):
    """The deleted session."""

    key: str
    deleted: bool
    archived: list[str]
    """The transcripts that are kept as archives."""


class EarlierSession(Result):
    """A session that a key had before."""

    index: int
    """The number that ``sessions.resume`` takes. 1 is the newest."""
    session_id: str
    ended_at: int
    reason: str
    title: str
    last_message_preview: str


class EarlierSessions(Result):
    """The sessions that a key had before, newest first."""

    ts: int
    key: str
    session_id: str | None
    """The current session."""
    sessions: list[EarlierSession]


class SessionResumed(Success):
    """The session that is current again."""

    key: str
    session_id: str
    previous_session_id: str | None
    marker: str
    """The line that the conversation shows about it."""
    entry: dict[str, Any]
    """The entry as it is stored."""


class TranscriptShortened(Success):
    """What ``sessions.compact`` did."""

    key: str
    compacted: bool
    reason: str | None = None
    """Why there was nothing to do."""
    archived: str | None = None
    """The path of the whole transcript."""
    kept: int | None = None
    """The number of lines that are left."""


class SessionCompaction(Success):
    """What a compaction did or would do; the action says which fields are present."""

    key: str
    text: str | None = None
    """``preview``: what it would do."""
    status: str | None = None
    reason: str | None = None
    """``compact``: why it was skipped or failed."""
    tokens_before: int | None = None
    tokens_after: int | None = None
    """The estimated size of the next prompt."""


class TranscriptsArchived(Success):
    """The number of compressed transcripts, and the sizes before and after."""

    compressed: int
    problems: list[str]
    left: int
    """How many more transcripts are old enough."""
    bytes_before: int
    bytes_after: int


class SessionTree(Result):
    """The entries of a transcript."""

    key: str
    session_id: str
    leaf_id: str | None
    """The entry that the next message follows."""
    entries: msgspec.Raw
    """Objects with ``id``, ``parentId``, ``type`` and, if there is one, ``label``."""


class TreeEntryView(Result, kw_only=True):
    """An entry of a transcript in short."""

    id: str
    parent_id: str | None
    type: str
    at: int | msgspec.UnsetType | None = msgspec.UNSET
    role: str | None = None
    text: str
    failed: bool = False
    """The text is the error of a failed model call."""
    damaged: bool = False
    """The stored line cannot be read."""


class StoredEntry(Result):
    """An entry of a transcript as it is stored."""

    id: str
    raw: str


class SessionEntries(Result):
    """Some entries of a transcript. Unknown ids are left out."""

    key: str
    session_id: str
    entries: list[TreeEntryView] | list[StoredEntry]


class SessionBranched(Success):
    """The session on its new branch."""

    key: str
    leaf_id: str


class Version(Result):
    """One of several messages that follow the same message."""

    entry_id: str
    leaf_id: str
    """The last entry below it, where ``sessions.branch`` continues this version."""


class MessageVersions(Result):
    """A message of the conversation that has other versions."""

    entry_id: str
    versions: list[Version]
    """All of them in the order written, with this one."""


class SessionVersions(Result):
    """The messages of a conversation that have other versions."""

    key: str
    session_id: str
    messages: list[MessageVersions]


class SessionForked(Success):
    """The new session with the beginning of another."""

    key: str
    session_id: str
    entries: int
    """The number of entries that it begins with."""


class EntryLabelled(Success):
    """The entry that has the label."""

    key: str
    entry_id: str


class SessionExport(Result):
    """A page of a conversation."""

    key: str
    session_id: str
    format: Literal["raw", "public", "markdown", "html"]
    items: list[Any]
    """Lines of the transcript, messages, or pieces of a document."""
    next: int | None
    """The cursor of the next page."""


class SessionImported(Success):
    """The new session."""

    key: str
    session_id: str
