"""Every event a run emits: one closed union of plain records.

``agent.loop`` emits them, ``agent.recorder`` writes some of them to the transcript, and the Gateway sends them on.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, Message, ToolResultMessage, UserMessage


class RunStarted(msgspec.Struct, frozen=True):
    started_at: int
    model: str = ""
    """The model that answers, as ``provider/model``."""
    thinking: str = ""
    """Its thinking level."""


class AssistantStarted(msgspec.Struct, frozen=True):
    """A new assistant message begins; text deltas that follow belong to it."""


class TextDelta(msgspec.Struct, frozen=True):
    delta: str
    reply_to: str = ""
    """The message that the answer quotes, as far as it has said so: ``current`` or an id."""
    media: tuple[str, ...] = ()
    """Files that the answer names behind this text, by address. The text may be empty then."""
    voice: bool = False
    """The answer wants its sound files as voice messages, as far as it has said so."""


class ThinkingDelta(msgspec.Struct, frozen=True):
    delta: str


class Spoken(msgspec.Struct, frozen=True):
    """The text of an answer that people get."""

    text: str
    reply_to: str = ""
    """The message that it answers: ``current`` or an id. It is empty when the model named none."""
    media: tuple[str, ...] = ()
    """The files that go with it, by address (``MEDIA:`` lines). The text may be empty then."""
    voice: bool = False
    """Sound files among them are voice messages (``[[audio_as_voice]]``)."""


class Silent(msgspec.Struct, frozen=True):
    """The model decided to say nothing."""

    token: str
    """The token with which the model said so."""


class Unsaid(msgspec.Struct, frozen=True):
    """The answer has no text, and the model did not decide to be silent."""


Speech: TypeAlias = Spoken | Silent | Unsaid


class AssistantEnded(msgspec.Struct, frozen=True):
    """The message is complete (also when its stop reason is ``error`` or ``aborted``)."""

    message: AssistantMessage
    speech: Speech = Unsaid()
    """What people get of the answer. When the answer came in several parts, this is their joined text."""
    continues: bool = False
    """True when another message follows in its place: the rest of a cut answer, or a new attempt."""


class ContinuationAsked(msgspec.Struct, frozen=True):
    """The answer reached the output limit and the model is asked to continue. People do not see the request."""

    message: UserMessage
    part: int
    """The number of the part that was cut, counted from 1."""


class MessageWaits(msgspec.Struct, frozen=True):
    """The message of this run waits for its turn, or it still waits and has other words now."""

    reworded: bool = False


class SteeringInjected(msgspec.Struct, frozen=True):
    """A user message that arrived during the run enters the context now."""

    message: UserMessage
    token: str
    """The run id it was accepted under, so that its owner can tell which message was taken."""


class ToolStarted(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolWaits(msgspec.Struct, frozen=True):
    """A tool call waits for a person's answer."""

    call_id: str
    question_id: str
    expires_at: int


class ToolContinues(msgspec.Struct, frozen=True):
    """A tool call that waited for a person continues: its question has ended."""

    call_id: str
    question_id: str


class ToolUpdated(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: dict[str, Any]
    partial: Any


class ToolEnded(msgspec.Struct, frozen=True):
    message: ToolResultMessage
    arguments: dict[str, Any]
    failed: bool
    """The tool failed, or the call was not run to its end. As ``message.is_error``, except in old transcripts."""


class RetryScheduled(msgspec.Struct, frozen=True):
    attempt: int
    delay_ms: int
    error: str


class ModelSwitched(msgspec.Struct, frozen=True):
    """From here on another model answers than in the session's last turn. It comes before that model's words."""

    chosen: str
    """The model that the session or the config chose, as ``provider/model``."""
    active: str
    """The model that answers. It is the chosen one if that one is back."""
    reason: str = ""
    """Why the chosen one does not answer: the kind of its failure."""


class DemoModelAnswers(msgspec.Struct, frozen=True):
    """The embedded demo model answers and did not answer the session's last turn. It comes before its words."""

    name: str


class CompactionStarted(msgspec.Struct, frozen=True):
    """Older messages are about to be condensed."""

    reason: str
    """``threshold``, ``overflow`` or ``manual``."""


class CompactionEnded(msgspec.Struct, frozen=True):
    reason: str
    entry_id: str | None
    """The entry that was appended; None when nothing changed."""
    will_retry: bool
    """True when the prompt that did not fit is sent again now."""
    error: str | None
    count: int
    """The number of the session's compactions so far."""
    tokens_before: int
    tokens_after: int


class RunEnded(msgspec.Struct, frozen=True):
    """The one terminal event of the loop."""

    outcome: Literal["ok", "error", "aborted"]
    error: str | None
    messages: list[Message]
    """Everything the loop added, in order."""
    failure: Any = None
    """The failed model call that ended the loop, unless ``error`` has its own words for it."""


Event: TypeAlias = (
    RunStarted
    | AssistantStarted
    | TextDelta
    | ThinkingDelta
    | AssistantEnded
    | ContinuationAsked
    | MessageWaits
    | SteeringInjected
    | ToolStarted
    | ToolWaits
    | ToolContinues
    | ToolUpdated
    | ToolEnded
    | RetryScheduled
    | ModelSwitched
    | DemoModelAnswers
    | CompactionStarted
    | CompactionEnded
    | RunEnded
)
