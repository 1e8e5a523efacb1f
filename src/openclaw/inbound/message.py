"""A message as a channel hands it in: plain facts, nothing decided yet."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

PeerKind: TypeAlias = Literal["direct", "group", "channel", "room"]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on a channel."""

    kind: PeerKind
    id: str


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Stable identity; the only thing access may depend on."""
    name: str | None = None
    username: str | None = None
    tag: str | None = None
    e164: str | None = None
    other_ids: tuple[str, ...] = ()
    """Further stable ids of the same person (a uuid beside a phone number)."""


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came along, already fetched into the blob store or still at its source."""

    mime_type: str
    file_name: str | None = None
    blob: str | None = None
    path: str | None = None
    url: str | None = None


class Quoted(msgspec.Struct, frozen=True, kw_only=True):
    """What the message replies to."""

    id: str | None = None
    sender: str | None = None
    text: str = ""
    is_quote: bool = False
    from_us: bool = False


class Inbound(msgspec.Struct, kw_only=True):
    channel: str
    account_id: str = "default"
    message_id: str = ""
    message_ids: tuple[str, ...] = ()
    """All ids when several messages were joined into this one; ``message_id`` is then the last."""
    peer: Peer
    parent_peer: Peer | None = None
    guild_id: str | None = None
    team_id: str | None = None
    sender: Sender
    to: str
    """How a reply is addressed on the channel."""
    text: str = ""
    """Exactly what the person wrote."""
    timestamp_ms: int = 0
    media: tuple[Media, ...] = ()
    mentioned: bool = False
    """The platform says the agent was mentioned."""
    mentions_others: bool = False
    can_detect_mention: bool = True
    quoted: Quoted | None = None
    forwarded_from: str | None = None
    forwarded_at_ms: int | None = None
    thread_id: str | int | None = None
    thread_has_session: bool = False
    """The thread is a conversation of its own (Slack threads, threads of a direct chat) without being a peer."""
    thread_label: str | None = None
    thread_starter: str | None = None
    parent_session_key: str | None = None
    group_subject: str | None = None
    group_channel: str | None = None
    group_space: str | None = None
    group_members: str | None = None
    conversation_label: str | None = None
    native_command: bool = False
    """A slash command of the platform rather than text."""
    untrusted: tuple[str, ...] = ()
    """Metadata from outside that the model may see as information only."""


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Where replies go. Fixed when a message is accepted, carried unchanged to the outbox."""

    channel: str
    to: str | None = None
    account_id: str | None = None
    thread_id: str | int | None = None
    session_key: str | None = None
    reply_to_id: str | None = None
    """The message a reply may quote."""
