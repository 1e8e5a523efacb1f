"""A node of a cluster without a Gateway around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from openclaw.cluster.membership import Membership
from openclaw.cluster.postgres_claims import PostgresClaims
from openclaw.storage.postgres.database import PostgresDatabase


class OneNode:
    """A node without a Gateway."""

    def __init__(self, opened: PostgresDatabase, lease_s: float) -> None:
        self.database = opened
        self.membership = Membership(opened, lease_s=lease_s)
        self.claims = PostgresClaims(opened, self.membership)
        self.membership.subscribers.append(self.claims.try_wanted)
        self.gained: list[str] = []
        self.lost: list[str] = []

        async def gain(name: str) -> None:
            self.gained.append(name)

        async def lose(name: str) -> None:
            self.lost.append(name)

        self.claims.on_gained("", gain)
        self.claims.on_lost("", lose)

    @property
    def id(self) -> str:
        return self.membership.node

    def die(self) -> None:
        """What the server sees of a kill -9."""
        assert self.membership._watching is not None and self.membership._connection is not None
        self.membership._watching.cancel()
        self.membership._connection.terminate()

    def pause(self) -> None:
        """What the server sees of a process that stands still: its connections stay."""
        assert self.membership._watching is not None
        self.membership._watching.cancel()


MakeNode = Callable[..., Awaitable[OneNode]]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
