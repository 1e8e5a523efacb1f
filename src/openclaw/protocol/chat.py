"""Results of ``chat.*``, ``agent`` and ``agent.wait``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from openclaw.protocol.result import Result, Success


class ChatAccepted(Result):
    """A message that was accepted, now or before."""

    run_id: str
    status: Literal["started", "in_flight", "ok"]
    """``in_flight`` and ``ok``: the message was accepted before, and its run is under way or has ended."""
    queued: bool = False
    warnings: list[str] = []


class ChatStopped(Success):
    """The runs that were stopped."""

    aborted: bool
    run_ids: list[str]
    warnings: list[str] = []


class AgentAccepted(Result):
    """The early answer of ``agent``."""

    run_id: str
    status: Literal["accepted"]
    accepted_at: int


class ReplyPayload(Result):
    """A message of a reply, with the addresses of its files."""

    text: str
    media_url: str | None
    media_urls: list[str] = []


class UsageCounts(Result, kw_only=True):
    """The tokens of a run."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    total: int


class AgentMeta(Result):
    """The session and the model of a run."""

    session_id: str | None
    provider: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    usage: UsageCounts | None = None


class RunMeta(Result, kw_only=True):
    """How a run went. A run of another process has no duration and no report."""

    duration_ms: int | msgspec.UnsetType = msgspec.UNSET
    agent_meta: AgentMeta
    aborted: bool
    system_prompt_report: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class RunReply(Result):
    """The messages of a reply."""

    payloads: list[ReplyPayload]
    meta: RunMeta


class AgentAnswer(Result):
    """The last answer of ``agent``."""

    run_id: str
    status: Literal["ok"]
    summary: Literal["completed", "aborted"]
    result: RunReply


class RunStatus(Result):
    """How a run went, or that it is under way."""

    run_id: str
    status: str
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


class MessagePromoted(Success):
    """Whether a waiting message is answered now."""

    promoted: bool
    """False if it waited no longer."""


class MessageDropped(Success):
    """Whether the message was taken out of the queue."""

    dropped: bool


class MessageReworded(Success):
    """Whether the message was changed. It was not if its run had begun."""

    reworded: bool


class ChatMessages(Result, kw_only=True):
    """The last messages of a session."""

    session_key: str
    session_id: str | None = None
    messages: list[Any]
    thinking_level: str | None = None
    verbose_level: str | None = None


class PersonText(Result):
    """A message that a person sent, without its pictures."""

    id: str
    text: str
    images: int
    """The number of pictures."""


class RunUnderWay(Result):
    """The run under way, with what it has not stored yet."""

    run_id: str
    started_at: int | None
    text: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    tools: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    """The tool calls under way, as their last events."""
    said: PersonText | None = None
    """The message that the run answers."""


class WaitingMessage(Result):
    """A message in the queue of the session."""

    run_id: str
    accepted_at: int
    text: str
    images: int


class PlanStepView(Result):
    """One step of the agent's plan."""

    step: str
    status: Literal["pending", "in_progress", "completed", "cancelled"]


class ChatPage(Result, kw_only=True):
    """A session as a page shows it. Events up to ``seq`` are contained."""

    session_key: str
    seq: int
    epoch: str
    run: RunUnderWay | None
    waiting: list[WaitingMessage]
    asked: str | None = None
    """The entry of the message with the call's ``runId``."""
    thinking_level: str | None = None
    verbose_level: str | None = None
    reasoning_level: str | None = None
    label: str | None = None
    total_tokens: int | float | None = None
    context_tokens: int | float | None = None
    model: str | None = None
    model_provider: str | None = None
    model_override: str | None = None
    provider_override: str | None = None
    display_name: str | None = None
    subject: str | None = None
    pinned_at: int | float | None = None
    plan: list[PlanStepView] = []
    """The steps of the agent's plan."""
    session_id: str | None
    messages: list[dict[str, Any]]
    more: bool
    """Whether there may be earlier messages."""


class MediaFile(Result):
    """A file that a message names."""

    file_name: str
    mime_type: str
    size: int
    content: str
    """The file in base64."""


class ChatCommand(Result):
    """A command that may be written in a chat."""

    name: str
    usage: str
    help: str
    category: str


class ChatCommands(Result):
    """The commands that the caller may write."""

    commands: list[ChatCommand]


class MessageInjected(Success):
    """The message that was added. The id is null if the session is gone."""

    message_id: str | None
