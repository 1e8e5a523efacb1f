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

OnName: TypeAlias = Callable[[str], Awaitable[None]]
"""Receives a name that was gained or lost."""


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
    """The names that this node owns, and the owners of the rest."""

    node: str
    """The id of this node. It gets a new one with every start."""

    async def claim(self, name: str) -> ClaimOwner:
        """Make this node the owner if nobody is, and return the owner. A name that is owned costs no query.

        A node that leaves claims nothing while another node lives. It names that node, which will claim.
        """
        ...

    async def acquire(self, name: str) -> None:
        """Make this node the owner. It waits until another owner has nothing to do and let go.

        Raises ``OwnedElsewhere`` if that takes too long.
        """
        ...

    def forget_owner(self, name: str) -> None:
        """Look again who owns the name. Call it when the node that ``claim`` named did not answer, or asks itself."""
        ...

    async def owner(self, name: str) -> str | None:
        """Return the node that owns the name, or None. Nothing is claimed."""
        ...

    def owns(self, name: str) -> bool: ...

    def lives(self, node: str) -> bool:
        """Return whether a node with this id takes part in the cluster, as far as this node has seen."""
        ...

    def epoch(self, name: str) -> int:
        """Return a number that grows with every change of the owner, or 0 if this node does not own the name."""
        ...

    async def release(self, name: str) -> None:
        """Let another node own the name. Call it when nothing is left to write."""
        ...

    async def want(self, name: str) -> None:
        """Claim the name as soon as it is free, again and again, until ``unwant``. ``on_gained`` tells when."""
        ...

    async def unwant(self, name: str) -> None:
        """End ``want``. An owned name is released after ``on_lost``."""
        ...

    def on_gained(self, prefix: str, subscriber: OnName) -> None:
        """Call ``subscriber`` with each name that begins with ``prefix`` after this node became its owner."""
        ...

    def on_lost(self, prefix: str, subscriber: OnName) -> None:
        """Call ``subscriber`` before this node lets a name go, and wait for it; the node may still write until then.

        Nobody is called if the other nodes gave this node up, because it restarts as another node.
        """
        ...


class ClaimSubscribers:
    """The subscribers to names that are gained and lost."""

    def __init__(self) -> None:
        self._gained: list[tuple[str, OnName]] = []
        self._lost: list[tuple[str, OnName]] = []

    def on_gained(self, prefix: str, subscriber: OnName) -> None:
        self._gained.append((prefix, subscriber))

    def on_lost(self, prefix: str, subscriber: OnName) -> None:
        self._lost.append((prefix, subscriber))

    async def notify_gained(self, name: str) -> None:
        for prefix, subscriber in self._gained:
            if name.startswith(prefix):
                await subscriber(name)

    async def notify_lost(self, name: str) -> None:
        for prefix, subscriber in self._lost:
            if name.startswith(prefix):
                await subscriber(name)


class SoleClaims(ClaimSubscribers):
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
            await self.notify_gained(name)

    async def unwant(self, name: str) -> None:
        if name in self._wanted:
            self._wanted.discard(name)
            await self.notify_lost(name)
