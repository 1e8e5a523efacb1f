"""What of a run's end goes out through a channel."""

from __future__ import annotations

from typing import Any

from openclaw.agent.run import RunResult
from openclaw.config.schema import Config
from openclaw.outbound.limits import limits_for
from openclaw.outbound.reasoning import reasoning_message
from openclaw.outbound.reply import failure_notice, is_delivered, parts_for
from openclaw.storage.base import MessageState, OutboxPart


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
