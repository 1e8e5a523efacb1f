"""Requests of Slack's Events API (``mode: "http"``): their signature, and what they hold."""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeAlias
from urllib.parse import parse_qsl

import msgspec

from openclaw.channels.base import WebhookRequest
from openclaw.channels.slack.incoming import SlackEvent, SlashCommand
from openclaw.channels.webhook import is_same

OLDEST_S = 300
"""An older request may be one that somebody recorded and sends again."""
MOST_FIELDS = 100


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """Slack asks whether the address is ours."""

    challenge: str = ""


class _Posted(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    challenge: str = ""
    event: SlackEvent = SlackEvent()


SlackRequest: TypeAlias = SlackEvent | SlashCommand | Challenge

_decode = msgspec.json.Decoder(_Posted).decode


def is_signed(request: WebhookRequest, secret: str, now_s: float) -> bool:
    """Whether Slack sent the request, and just now."""
    stamp = request.headers.get("x-slack-request-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit()) or abs(now_s - int(stamp[:15])) > OLDEST_S:
        return False
    signed = b"v0:" + stamp.encode() + b":" + request.body
    wanted = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return is_same(request.headers.get("x-slack-signature", ""), f"v0={wanted}")


def read_request(request: WebhookRequest) -> SlackRequest | None:
    """What a signed request tells. None: nothing that we use, such as a pressed button.

    Raises ``ValueError`` if it cannot be read.
    """
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS))
        return msgspec.convert(fields, SlashCommand) if "command" in fields else None
    try:
        posted = _decode(request.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    match posted.type:
        case "url_verification":
            return Challenge(challenge=posted.challenge)
        case "event_callback":
            return posted.event
        case _:
            return None
