"""Messages and configurations for the tests of the inbound rules."""

from __future__ import annotations

import json
from typing import Any

from openclaw.config.load import parse_config
from openclaw.config.schema import Config
from openclaw.inbound.message import Inbound, Peer, PeerKind, Sender


def configured(values: dict[str, Any] | None = None) -> Config:
    """The configuration exactly as a file with these values would give it."""
    snapshot = parse_config("/nowhere/openclaw.json", json.dumps(values or {}), {})
    assert snapshot.valid, snapshot.issues
    return snapshot.config


def message(
    text: str = "hi",
    *,
    channel: str = "signal",
    kind: PeerKind = "direct",
    peer: str = "+1555",
    sender: str | Sender = "+1555",
    **more: Any,
) -> Inbound:
    who = sender if isinstance(sender, Sender) else Sender(id=sender)
    fields: dict[str, Any] = {"to": peer, "message_id": "m1", **more}
    return Inbound(channel=channel, peer=Peer(kind=kind, id=peer), sender=who, text=text, **fields)
