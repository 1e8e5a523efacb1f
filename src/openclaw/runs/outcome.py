"""How a run ends: the state and reason for the ledger, and what is delivered through a channel."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.agent.result import RunResult
from openclaw.config.schema import Config
from openclaw.outbound.limits import limits_for
from openclaw.outbound.reasoning import reasoning_message
from openclaw.outbound.reply import failure_notice, is_delivered, parts_for
from openclaw.runs.why_text import reason_text
from openclaw.storage.base import NO_REASON, AbortReason, MessageState, OutboxPart, Reason, ReasonCode


class Ending(msgspec.Struct, frozen=True):
    """How a message ends in the ledger."""

    state: MessageState
    reason: Reason = NO_REASON


def ending_of(result: RunResult) -> Ending:
    match result.outcome:
        case "ok" if result.taken_in:
            return Ending("superseded", Reason(ReasonCode.ANSWERED_BEFORE))
        case "ok" if result.silent:
            return Ending("silent", Reason(ReasonCode.NO_REPLY))
        case "ok" if result.notice:
            return Ending("answered", Reason(ReasonCode.NO_WORDS))
        case "ok":
            return Ending("answered")
        case "error":
            return Ending("failed", Reason(ReasonCode.OTHER, result.error or "unknown error"))
        case "aborted" if result.error == AbortReason.TIMEOUT:
            return Ending("failed", abort_reason(AbortReason.TIMEOUT))
        case "aborted":
            return Ending("superseded", abort_reason(result.error or ""))


def abort_reason(stopped_by: str) -> Reason:
    """The ledger's reason for a message that was stopped. ``stopped_by``: an ``AbortReason``, or words."""
    match stopped_by:
        case AbortReason.TIMEOUT:
            return Reason(ReasonCode.TIME_LIMIT)
        case AbortReason.REMOVED:
            return Reason(ReasonCode.REMOVED_FROM_QUEUE)
        case _ if stopped_by in frozenset(AbortReason):
            return Reason(ReasonCode.STOPPED, stopped_by)
        case _:
            return Reason(ReasonCode.OTHER, stopped_by)


def reply_parts(route: dict[str, Any], ending: Ending, result: RunResult, config: Config) -> list[OutboxPart]:
    """Nothing for the web and for runs somebody stopped; one notice, after what was said, for those that failed."""
    if not is_delivered(route) or ending.state not in ("answered", "failed", "expired"):
        return []
    notice = result.notice if ending.state == "answered" else failure_notice(reason_text(ending.reason))
    reasoning = reasoning_message(result.reasoning)
    texts = [*([reasoning] if reasoning else []), *result.shown_texts, *([notice] if notice else [])]
    limits = limits_for(config, str(route["channel"]), route.get("accountId"))
    return parts_for(route, texts, limits, reply_to=result.reply_to)
