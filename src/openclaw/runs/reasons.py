"""The sentences for the reason codes in the ledger: why a message is in its state."""

from __future__ import annotations

from openclaw.storage.message_ledger import AbortReason, Reason, ReasonCode
from openclaw.text import duration

LONGEST_REASON = 400
"""The most characters of a reason that a sentence quotes."""

REASONS = {
    ReasonCode.NONE: "",
    ReasonCode.SESSION_BUSY: "another message of this session is running",
    ReasonCode.COLLECTING: "another message of this session is running; what comes meanwhile is collected",
    ReasonCode.STEERING: "to be taken into run {detail}",
    ReasonCode.RESTARTED: "the Gateway stopped before it began",
    ReasonCode.SHUTDOWN: "the Gateway was told to stop",
    ReasonCode.COLLECTED: "collected into run {detail}",
    ReasonCode.STEERED: "taken into run {detail}",
    ReasonCode.ANSWERED_BEFORE: "its words were taken into the run before it",
    ReasonCode.NO_REPLY: "its reply was NO_REPLY",
    ReasonCode.NO_WORDS: "the model ended its turn without a word",
    ReasonCode.TIME_LIMIT: "the run took longer than its time limit{detail}",
    ReasonCode.STOPPED: "stopped ({detail})",
    ReasonCode.QUEUE_OVERFLOW: "Dropped: more messages were waiting than the queue holds ({detail}).",
    ReasonCode.QUEUE_OVERFLOW_SUMMARIZED: (
        "Dropped: more messages were waiting than the queue holds ({detail}); "
        "its beginning was put before the next one."
    ),
    ReasonCode.QUEUE_FULL: (
        "Not taken: {detail} messages of this session are waiting already. Wait for an answer, or use /stop."
    ),
    ReasonCode.REMOVED_FROM_QUEUE: "dropped from the queue by hand",
    ReasonCode.RESTORED: "under way when the backup was made that was restored; it is not run again",
    ReasonCode.WITHDRAWN: "changed or taken back by its sender",
    ReasonCode.EXPIRED: (
        "The Gateway was not running for too long: this message had waited {detail} hours, so it was not answered. "
        "Send it again if it still matters."
    ),
    ReasonCode.CRASHED: (
        "The Gateway stopped {detail} times while working on this message, so it was given up. Send it again to retry."
    ),
    ReasonCode.COMMAND: "a command",
    ReasonCode.COMMAND_INSIDE: "a command inside the message",
    ReasonCode.COMMAND_INTERRUPTED: "the Gateway stopped while it carried this command out, and did not repeat it",
    ReasonCode.COMMAND_FAILED: "the command failed, and its answer names the reason",
    ReasonCode.COMMAND_UNANSWERED: "a command that has no answer, or that its sender may not give",
    ReasonCode.SEND_POLICY: "the session's send policy does not allow replies",
    ReasonCode.NOTHING_WRITTEN: "nothing was written",
    ReasonCode.PAIRING: "a stranger asked to be let in",
    ReasonCode.NOT_TAKEN: "This message was received but could not be accepted ({detail}). Send it again.",
    ReasonCode.NEW_SESSION: "a new session began",
    ReasonCode.ACCESS_DENIED: "its sender may not write to the agent here ({detail})",
    ReasonCode.NOT_ADDRESSED: (
        "it was not meant for the agent, which answers in this chat only when it is mentioned; the agent reads it as "
        "context of the next message that is"
    ),
    ReasonCode.REDELIVERED: "the same message was delivered again",
    ReasonCode.OTHER: "{detail}",
}
_STOPPED_BY: dict[str, str] = {
    AbortReason.RPC: "a client asked for it",
    AbortReason.STOP: "someone said stop",
    AbortReason.RESET: "the session was reset",
    AbortReason.DELETE: "the session was deleted",
    AbortReason.INTERRUPT: "a newer message interrupted it",
}


def reason_text(reason: Reason) -> str:
    """Puts the reason for a state into the words that clients see."""
    detail = reason.detail
    if reason.code is ReasonCode.TIME_LIMIT:
        detail = f" of {duration(int(detail) * 1000)} and was stopped" if detail.isdigit() else ""
    return REASONS[reason.code].format(detail=detail)


def stopped_by(reason: str) -> str | None:
    """Puts an ``AbortReason`` into words. None for any other text."""
    return _STOPPED_BY.get(reason)


def abort_text(reason: Reason) -> str:
    """Puts the reason for a failed or stopped run into the words that clients see, or the code that they know."""
    return reason.detail if reason.code is ReasonCode.STOPPED else reason_text(reason)


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
