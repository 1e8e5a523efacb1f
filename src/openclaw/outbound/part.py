"""What is handed to a channel: one message's worth, and how it went."""

from __future__ import annotations

from typing import Any

import msgspec


class MediaRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file to send along; its bytes are in the blob store."""

    blob: str
    mime_type: str
    file_name: str | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One message on the channel. Stored in the outbox as plain JSON."""

    text: str = ""
    media: tuple[MediaRef, ...] = ()
    reply_to_id: str | None = None
    possibly_duplicate: bool = False
    """It may have arrived already: the process or the connection ended while it was being sent."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str = ""
    """What the platform calls the message; empty when it does not say."""


class SendFailed(Exception):
    """Why a part was not delivered, for the person who reads its story."""

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
        """Trying again cannot help."""
        self.reached = reached
        """The platform answered; an unreachable one is waited for until the part expires."""
        self.maybe_sent = maybe_sent
        """The request left, the answer never came."""
        self.retry_after_s = retry_after_s


def part_from(payload: dict[str, Any]) -> Part:
    """Raises ``SendFailed`` for a payload nobody can send."""
    try:
        return msgspec.convert(payload, Part)
    except msgspec.ValidationError as error:
        raise SendFailed(f"the stored part cannot be read: {error}", permanent=True) from None
