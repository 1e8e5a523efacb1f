"""Results of ``messages.*``, ``outbox.*`` and ``send``."""

from __future__ import annotations

from typing import Literal

import msgspec

from openclaw.protocol.result import Result, Success


class StateChangeView(Result):
    """A change of a message's state."""

    at: int
    state: str
    reason: str | None


class ToolCallView(Result):
    """A tool call of a message's run."""

    id: str
    name: str
    ok: bool | None
    """Null while the call is under way or if it was interrupted."""
    started_at: int
    finished_at: int | None
    arguments: str


class DeliveryView(Result, kw_only=True):
    """The delivery of a part of a reply."""

    part: int
    channel: str
    state: str
    attempts: int
    created_at: int
    next_at: int | None
    error: str | None
    possibly_duplicate: bool


class MessageDelivery(DeliveryView, kw_only=True):
    """The delivery of a part, with the channel's id of the message."""

    message_id: str | None


class MessageView(Result, kw_only=True):
    """A message. One that is held has neither a number nor a session yet."""

    id: int | None
    run_id: str | None
    session_key: str | None
    session_id: str | None
    agent_id: str | None
    source: str
    channel: str | None
    state: str
    reason: str | None
    attempts: int
    accepted_at: int | None
    started_at: int | None
    ended_at: int | None
    text: str
    model: str | None
    answered_by: str | None
    """The run that answered it, if that was another message's."""
    message_ids: list[str] = []
    """The ids that its channel gave it."""
    reply: str | None
    changes: list[StateChangeView] | msgspec.UnsetType = msgspec.UNSET
    """Lists have no changes, tool calls or deliveries."""
    tool_calls: list[ToolCallView] | msgspec.UnsetType = msgspec.UNSET
    deliveries: list[MessageDelivery] | msgspec.UnsetType = msgspec.UNSET


class MessageList(Result):
    """Messages, newest first."""

    ts: int
    messages: list[MessageView]


class RejectedView(Result):
    """A message that was rejected. Its text is not stored."""

    message_id: str
    channel: str
    chat: str | None
    sender: str | None
    code: str
    reason: str | None
    count: int
    first_at: int
    last_at: int


class AnsweringMessage(Result):
    """A message and its history."""

    message: MessageView
    story: list[str]


class WhyReport(Result, kw_only=True):
    """The history of a message or of a session; ``kind`` says which fields are present."""

    ts: int
    ref: str
    kind: Literal["message", "session", "turnedAway"]
    session_key: str | None = None
    session_id: str | None = None
    messages: list[MessageView] | msgspec.UnsetType = msgspec.UNSET
    """The last messages of the session, oldest first."""
    message: MessageView | None = None
    turned_away: list[RejectedView] = []
    story: list[str]
    """Sentences for people; for a session one for each message."""
    answered_by: AnsweringMessage | None = None
    """The message whose run answered this one."""


class OutboxPartView(DeliveryView, kw_only=True):
    """A part of a reply in the outbox."""

    id: int
    message_id: int
    run_id: str
    account_id: str | None
    to: str | None
    act: str
    text: str
    media: int
    """The number of files."""


class OutboxPage(Result):
    """Parts of replies, newest first."""

    ts: int
    waiting: int
    """The number of all parts that wait."""
    parts: list[OutboxPartView]


class PartsRetried(Success):
    """The parts that are tried again."""

    retried: int


class PartsDropped(Success):
    """The parts that were given up."""

    dropped: int


class SentMessageView(Result):
    """A message that was sent or waits in the outbox."""

    run_id: str
    channel: str
    message_id: str
    """The channel's id, or the run id if the channel has none."""
    queued: bool = False
    """The message waits in the outbox."""
    reason: str | None = None
    """Why it waits."""
    warning: str | None = None
