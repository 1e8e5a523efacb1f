"""Who owns what among the nodes of a cluster. Every name has one owner at a time, or none.

A name is a session (``session_name``), an account of a channel (``channel_name``) or ``SCHEDULER``. Only its owner
writes to a session, connects an account or starts scheduled work. With files there is one node, which owns everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

SCHEDULER = "scheduler"
"""Cron jobs, heartbeats and the turns of webhooks."""
SESSION = "session:"
CHANNEL = "channel:"

Heard: TypeAlias = Callable[[str], Awaitable[None]]
"""Is told a name that was gained or lost."""


def session_name(agent_id: str, key: str) -> str:
    return f"{SESSION}{agent_id}:{key}"


def channel_name(channel: str, account_id: str) -> str:
    return f"{CHANNEL}{channel}:{account_id}"


class ClaimOwner(msgspec.Struct, frozen=True):
    """The node that owns a name."""

    node: str
    mine: bool
    """Whether it is this node."""


class OwnedElsewhere(Exception):
    """Another node owns the name, and what was asked can only be done there."""

    def __init__(self, name: str, owner: ClaimOwner) -> None:
        super().__init__(f"{name} belongs to the node {owner.node}")
        self.owner = owner


class Claims(Protocol):
    """What this node owns, and who owns the rest."""

    node: str
    """The id of this node. It gets a new one with every start."""

    async def claim(self, name: str) -> ClaimOwner:
        """Makes this node the owner if nobody is, and returns the owner. A name that is owned costs no query.

        A node that is leaving claims nothing, unless there is no other node: it names another node, which will claim.
        """
        ...

    async def acquire(self, name: str) -> None:
        """Makes this node the owner. It waits until another owner has nothing to do and lets go.

        Raises ``OwnedElsewhere`` when that takes too long.
        """
        ...

    def forget_owner(self, name: str) -> None:
        """Looks again who owns the name. Call it when the node that ``claim`` named did not answer, or asks itself."""
        ...

    async def owner(self, name: str) -> str | None:
        """Returns the node that owns the name, or None. Nothing is claimed."""
        ...

    def owns(self, name: str) -> bool: ...

    def lives(self, node: str) -> bool:
        """Tells whether a node with this id takes part in the cluster, as far as this node has seen."""
        ...

    def epoch(self, name: str) -> int:
        """A number that is larger after every change of the owner; 0 when this node does not own the name."""
        ...

    async def release(self, name: str) -> None:
        """Lets another node own the name. Call it when nothing is left to write."""
        ...

    async def want(self, name: str) -> None:
        """Claims the name as soon as it is free, again and again, until ``unwant``. ``on_gained`` tells when."""
        ...

    async def unwant(self, name: str) -> None:
        """Ends ``want``. A name that is owned is released; ``on_lost`` is told before."""
        ...

    def on_gained(self, prefix: str, heard: Heard) -> None:
        """Calls ``heard`` with each name that begins with ``prefix`` after this node became its owner."""
        ...

    def on_lost(self, prefix: str, heard: Heard) -> None:
        """Calls ``heard`` before this node lets a name go, and waits for it; the node may still write until then.

        When the node was given up by the others, it starts anew as another node and nobody is called.
        """
        ...


class ClaimHearers:
    """Those who are told of names that are gained and lost."""

    def __init__(self) -> None:
        self._gained: list[tuple[str, Heard]] = []
        self._lost: list[tuple[str, Heard]] = []

    def on_gained(self, prefix: str, heard: Heard) -> None:
        self._gained.append((prefix, heard))

    def on_lost(self, prefix: str, heard: Heard) -> None:
        self._lost.append((prefix, heard))

    async def tell_gained(self, name: str) -> None:
        for prefix, heard in self._gained:
            if name.startswith(prefix):
                await heard(name)

    async def tell_lost(self, name: str) -> None:
        for prefix, heard in self._lost:
            if name.startswith(prefix):
                await heard(name)


class SoleClaims(ClaimHearers):
    """The claims of the only node, which owns everything. ``want`` tells ``on_gained`` at once."""

    node = ""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: set[str] = set()

    async def claim(self, name: str) -> ClaimOwner:
        return ClaimOwner(self.node, True)

    async def acquire(self, name: str) -> None:
        pass

    def forget_owner(self, name: str) -> None:
        pass

    async def owner(self, name: str) -> str | None:
        return self.node

    def owns(self, name: str) -> bool:
        return True

    def lives(self, node: str) -> bool:
        return False  # Earlier processes are gone, and this one has nothing to resume while it runs.

    def epoch(self, name: str) -> int:
        return 1

    async def release(self, name: str) -> None:
        pass

    async def want(self, name: str) -> None:
        if name not in self._wanted:
            self._wanted.add(name)
            await self.tell_gained(name)

    async def unwant(self, name: str) -> None:
        if name in self._wanted:
            self._wanted.discard(name)
            await self.tell_lost(name)
