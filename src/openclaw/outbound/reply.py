"""Turns a reply into the messages that a channel delivers, and defines what passes between the outbox and channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.outbound.chunking import Limits
from openclaw.outbound.silence import is_silent
from openclaw.outbound.visible import CURRENT
from openclaw.storage.base import OutboxPart

NOT_DELIVERED = frozenset({"", "webchat", "internal", "last", "none"})
"""Channels of routes whose readers get the reply as events and from the transcript."""


REPEAT_MARK = "(possibly sent twice)"
"""Begins a message that may have arrived already, on a channel that cannot tell a repeat by itself."""


class MediaRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file to send. Its bytes are in the blob store."""

    blob: str
    mime_type: str
    file_name: str | None = None


class Button(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A button below a message, where ``Capabilities`` say that the platform has them."""

    text: str
    data: str = ""
    """What comes in as a message when somebody presses it. Empty means ``text``."""


Act: TypeAlias = Literal["send", "react", "edit", "delete"]


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message on a channel, or what is done to an earlier one. It is the payload of an outbox row."""

    act: Act = "send"
    """Everything but ``send`` is done to the message ``target_id``, and doing it twice changes nothing."""
    target_id: str = ""
    target_author: str = ""
    """Who wrote that message. Empty if the id or the chat tells."""
    emoji: str = ""
    remove: bool = False
    """Takes the reaction back."""

    text: str = ""
    media: tuple[MediaRef, ...] = ()
    reply_to_id: str | None = None
    buttons: tuple[tuple[Button, ...], ...] = ()
    """Rows of buttons."""
    possibly_duplicate: bool = False
    """The message may have arrived already, because an earlier attempt ended while it was being sent."""


class SendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a successful send."""

    message_id: str = ""
    """The platform's id of the message. Empty if the platform does not tell."""


class SendFailed(Exception):
    """A message was not delivered. The text says why, for the person who looks into it."""

    def __init__(
        self,
        message: str,
        *,
        permanent: bool = False,
        reached: bool = True,
        maybe_sent: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.permanent = permanent
        """True if trying again cannot help."""
        self.reached = reached
        """True if the platform answered. An unreachable one is waited for until the message expires."""
        self.maybe_sent = maybe_sent
        """True if the request was sent but no answer came."""
        self.retry_after_s = retry_after_s


def is_delivered(route: Mapping[str, Any]) -> bool:
    """Whether a reply on this route is delivered through a channel."""
    return str(route.get("channel") or "") not in NOT_DELIVERED and bool(route.get("to"))


def parts_for(
    route: Mapping[str, Any], texts: Sequence[str], limits: Limits, media: Sequence[MediaRef] = (), reply_to: str = ""
) -> list[OutboxPart]:
    """The messages to deliver, in order. Media go with the first text. Silence and blank text yield no message.

    ``reply_to`` is the id of the message that the first one quotes, or ``current`` for the message that is answered.
    Cutting a text loses only white space at the cuts.
    """
    if not is_delivered(route):
        return []
    chunks = [chunk for text in texts if text.strip() and not is_silent(text) for chunk in limits.cut(text.strip())]
    parts = [OutgoingMessage(text=chunk) for chunk in chunks]
    if media:
        first = parts[0] if parts else OutgoingMessage()
        parts[:1] = [msgspec.structs.replace(first, media=tuple(media))]
    quoted = route.get("replyToId") if reply_to == CURRENT else reply_to
    if quoted and parts:
        parts[0] = msgspec.structs.replace(parts[0], reply_to_id=str(quoted))
    channel = str(route["channel"])
    return [
        OutboxPart(part=number, channel=channel, payload=msgspec.to_builtins(part)) for number, part in enumerate(parts)
    ]


def failure_notice(error: str | None) -> str:
    """The notice that a person on a channel gets when a run failed."""
    return f"⚠️ {(error or 'Something went wrong while answering.').strip()}"
