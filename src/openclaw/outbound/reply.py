"""From what a run said to what a channel must deliver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw.outbound.limits import Limits
from openclaw.outbound.part import MediaRef, Part
from openclaw.outbound.reply_tags import CURRENT
from openclaw.outbound.silence import is_silent
from openclaw.storage.base import OutboxPart

NOT_DELIVERED = frozenset({"", "webchat", "internal", "last", "none"})
"""Routes whose readers get the reply as events and from the transcript."""


def is_delivered(route: Mapping[str, Any]) -> bool:
    """Whether a reply on this route leaves through a channel."""
    return str(route.get("channel") or "") not in NOT_DELIVERED and bool(route.get("to"))


def parts_for(
    route: Mapping[str, Any], texts: Sequence[str], limits: Limits, media: Sequence[MediaRef] = (), reply_to: str = ""
) -> list[OutboxPart]:
    """The messages to deliver, in order. Media go with the first text; silence and blank text yield nothing.

    ``reply_to``: the message that the first one quotes, by its id; ``current`` is the one that is being answered.

    Put together again, the parts are the texts: nothing but white space at the cuts is lost.
    """
    if not is_delivered(route):
        return []
    chunks = [chunk for text in texts if text.strip() and not is_silent(text) for chunk in limits.cut(text.strip())]
    parts = [Part(text=chunk) for chunk in chunks]
    if media:
        first = parts[0] if parts else Part()
        parts[:1] = [msgspec.structs.replace(first, media=tuple(media))]
    quoted = route.get("replyToId") if reply_to == CURRENT else reply_to
    if quoted and parts:
        parts[0] = msgspec.structs.replace(parts[0], reply_to_id=str(quoted))
    channel = str(route["channel"])
    return [
        OutboxPart(part=number, channel=channel, payload=msgspec.to_builtins(part)) for number, part in enumerate(parts)
    ]


def failure_notice(error: str | None) -> str:
    """The one notice a person on a channel gets when a run failed."""
    return f"⚠️ {(error or 'Something went wrong while answering.').strip()}"
