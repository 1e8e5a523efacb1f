"""How a message ends: its last state in the ledger, and what the channel delivers of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.agent.recorder import RunResult
from openclaw.outbound.blocks import Rest, rest_of
from openclaw.outbound.reply import (
    MediaRef,
    ReplyShape,
    failure_notice,
    is_delivered,
    is_repeated,
    parts_for,
    with_footer,
)
from openclaw.outbound.reply_files import Files
from openclaw.outbound.stream import stored_refs
from openclaw.outbound.visible import closed_up, reasoning_message
from openclaw.runs.why_text import reason_text
from openclaw.storage.base import (
    NO_REASON,
    AbortReason,
    MessageState,
    OutboxPart,
    OutboxRow,
    Reason,
    ReasonCode,
)


class Ending(msgspec.Struct, frozen=True):
    """The last state of a message in the ledger, and the reason for it."""

    state: MessageState
    reason: Reason = NO_REASON


ANNOUNCED_SOURCES = frozenset({"cron", "heartbeat", "hook"})
"""Runs whose answer somebody else delivers, with the files that are stored with its end."""


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
            return Ending("failed", Reason(ReasonCode.TIME_LIMIT, str(result.time_limit_s or "")))
        case "aborted":
            return Ending("superseded", abort_reason(result.error or ""))


def abort_reason(stopped_by: str) -> Reason:
    """Returns the ledger's reason for a message that was stopped by an ``AbortReason``, or by something in words."""
    match stopped_by:
        case AbortReason.TIMEOUT:
            return Reason(ReasonCode.TIME_LIMIT)
        case AbortReason.REMOVED:
            return Reason(ReasonCode.REMOVED_FROM_QUEUE)
        case AbortReason.WITHDRAWN:
            return Reason(ReasonCode.WITHDRAWN)
        case _ if stopped_by in frozenset(AbortReason):
            return Reason(ReasonCode.STOPPED, stopped_by)
        case _:
            return Reason(ReasonCode.OTHER, stopped_by)


def unsent(result: RunResult, stored: Sequence[OutboxRow]) -> list[Rest]:
    """For each answer what its channel has not got yet. ``stored`` is what the outbox holds of the reply."""
    refs = stored_refs(stored)
    return [rest_of(one.text, list(dict.fromkeys(one.media)), refs) for one in result.said]


def reply_parts(
    route: dict[str, Any],
    ending: Ending,
    result: RunResult,
    shape: ReplyShape,
    stored: Sequence[OutboxRow] = (),
    files: Sequence[Files] = (),
) -> list[OutboxPart]:
    """Returns what the channel delivers: what was said, with its files, then one notice if the run failed.

    ``stored`` is what the outbox holds of the reply already: what its blocks have said is not said again. Nothing is
    delivered for messages of the web client and for runs that somebody stopped.
    """
    if not is_delivered(route) or ending.state not in ("answered", "failed", "expired"):
        return []
    notice = result.notice if ending.state == "answered" else failure_notice(reason_text(ending.reason))
    reasoning = reasoning_message(result.reasoning)
    said: list[tuple[str, tuple[MediaRef, ...]]] = [(reasoning, ())] if reasoning else []
    for place, (answer, rest) in enumerate(zip(result.said, unsent(result, stored), strict=True)):
        text = rest.text
        if result.messaged and (is_repeated(text, result.messaged) or (rest == Rest(answer.text) and not answer.media)):
            text = ""  # The agent has said it by itself. An answer that was sent in part goes on to its end.
            if not answer.media:
                continue
        own = files[place] if place < len(files) else Files()
        text = closed_up(text) if answer.media else text
        text = own.under(text)
        if place == len(result.said) - 1 and result.footer:
            text = with_footer(text, result.footer) if text.strip() else result.footer
        said.append((text, own.media))
    said += [(notice, ())] if notice else []
    first = max((row.part for row in stored), default=-1) + 1
    parts: list[OutboxPart] = []
    for text, media in said:
        parts += parts_for(route, [text], shape, media, result.reply_to, first=first + len(parts))
    return parts
