"""The ledger's word for how a run ended, and why."""

from __future__ import annotations

from typing import Any

from openclaw.agent.result import RunResult
from openclaw.config.schema import Config
from openclaw.outbound.limits import limits_for
from openclaw.outbound.reasoning import reasoning_message
from openclaw.outbound.reply import failure_notice, is_delivered, parts_for
from openclaw.storage.base import MessageState, OutboxPart


def end_of(result: RunResult) -> tuple[MessageState, str]:
    match result.outcome:
        case "ok" if result.taken_in:
            return "superseded", "its words were taken into the run before it"
        case "ok" if result.silent:
            return "silent", "its reply was NO_REPLY"
        case "ok" if result.notice:
            return "answered", "the model ended its turn without a word"
        case "ok":
            return "answered", ""
        case "error":
            return "expired" if result.expired else "failed", result.error or "unknown error"
        case "aborted":
            if result.error == "timeout":
                return "failed", "the run took longer than its time limit"
            return "superseded", result.error if result.error and " " in result.error else f"stopped ({result.error})"


def reply_parts(
    route: dict[str, Any], state: MessageState, reason: str, result: RunResult, config: Config
) -> list[OutboxPart]:
    """Nothing for the web and for runs somebody stopped; one notice, after what was said, for those that failed."""
    if not is_delivered(route) or state not in ("answered", "failed", "expired"):
        return []
    notice = result.notice if state == "answered" else failure_notice(reason)
    reasoning = reasoning_message(result.reasoning)
    texts = [*([reasoning] if reasoning else []), *result.shown_texts, *([notice] if notice else [])]
    limits = limits_for(config, str(route["channel"]), route.get("accountId"))
    return parts_for(route, texts, limits, reply_to=result.reply_to)
