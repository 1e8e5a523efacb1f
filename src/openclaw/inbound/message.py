"""A message as its channel submits it: facts only, before any decision."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

PeerKind: TypeAlias = Literal["direct", "group", "channel", "room"]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on a channel."""

    kind: PeerKind
    id: str


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The stable identity. Access depends on nothing else."""
    name: str | None = None
    username: str | None = None
    tag: str | None = None
    e164: str | None = None
    other_ids: tuple[str, ...] = ()
    """Further stable ids of the same person, such as a uuid beside a phone number."""


class ClaimedName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a place or a person has at this moment, as lists in the configuration may write it.

    Names change hands, so they admit nobody: see ``inbound/names.py``. A channel leaves out a name that could be taken
    for an id, and one that several places share.
    """

    kind: Literal["space", "room", "person"]
    name: str
    id: str
    space: str = ""
    """The server or workspace in which a room has this name, where there are several."""


def slug(name: str) -> str:
    """Return the form in which a list may have the name of a server: ``friends-of-ann``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came with a message. It lies in the blob store or still at its source."""

    mime_type: str
    file_name: str | None = None
    blob: str | None = None
    path: str | None = None
    url: str | None = None


class Quoted(msgspec.Struct, frozen=True, kw_only=True):
    """The message that this one replies to."""

    id: str | None = None
    sender: str | None = None
    text: str = ""
    is_quote: bool = False
    from_us: bool = False


LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class Inbound(msgspec.Struct, kw_only=True):
    channel: str
    account_id: str = "default"
    message_id: str = ""
    message_ids: tuple[str, ...] = ()
    """The ids of all messages that were joined into this one. ``message_id`` is then the last of them."""
    peer: Peer
    parent_peer: Peer | None = None
    guild_id: str | None = None
    team_id: str | None = None
    sender: Sender
    to: str
    """The address of a reply on the channel."""
    revision: str = ""
    """Which edit of the message this is, as the platform dates or numbers it. Empty for a message as first sent."""
    text: str = ""
    """Exactly what the person wrote."""
    spoken: bool = False
    """Some of the text was said and written down by a program. It is never read as a command."""
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
    inherits_parent: bool = False
    """The session of the thread begins with what was said in the conversation that it belongs to."""
    can_start_thread: bool = False
    """The platform can begin a thread at this message. The thread has the message's id."""
    own_thread: bool = False
    """The agent began the thread."""
    group_subject: str | None = None
    group_channel: str | None = None
    group_space: str | None = None
    group_members: str | None = None
    conversation_label: str | None = None
    names: tuple[ClaimedName, ...] = ()
    """The names of the sender and of the place."""
    known_as: tuple[ClaimedName, ...] = ()
    """Listed names that were resolved to the ids of this message, whatever it is called now. ``Pipeline`` adds them."""
    native_command: bool = False
    """The message is a slash command of the platform, not text."""
    told_once: bool = False
    """The platform does not deliver it again, so it is persisted before it waits for anything."""
    untrusted: tuple[str, ...] = ()
    """Metadata from outside. The model sees it as information, not as instructions."""

    def __post_init__(self) -> None:
        # Servers of Matrix and others let people choose the time of a message. A time that no calendar has would fail
        # wherever it is shown or stored, and be taken for trouble of the disk.
        if not 0 <= self.timestamp_ms <= LATEST_MS:
            self.timestamp_ms = 0
        if self.forwarded_at_ms is not None and not 0 <= self.forwarded_at_ms <= LATEST_MS:
            self.forwarded_at_ms = None

    @property
    def has_content(self) -> bool:
        """Whether it has words or mentions the agent. Channels leave the mention itself out of the text.

        A bare mention is a message: it asks about what it quotes, or its sender learns that nothing else arrived.
        """
        return bool(self.text.strip()) or self.mentioned

    @property
    def own_ids(self) -> list[str]:
        """The platform's ids of the message, or of all messages that were joined into it."""
        return list(self.message_ids or ((self.message_id,) if self.message_id else ()))


class MovedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A group of one account, and its ids before and now."""

    channel: str
    account_id: str
    old: str
    new: str
