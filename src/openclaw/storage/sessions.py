"""The protocol of the session store, which holds the session entries of every agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from openclaw.sessions.entry import SessionEntry
from openclaw.storage.session_query import SessionPage, SessionQuery


class SessionRow(msgspec.Struct, frozen=True):
    agent_id: str
    key: str
    entry: SessionEntry


Change: TypeAlias = Callable[[SessionEntry | None], SessionEntry | None]
"""Takes a private copy of the entry (None if there is none) and returns the new entry (None to remove it)."""


class Writing(Protocol):
    """A write that may not be on disk yet. ``sync`` returns when it is."""

    async def sync(self) -> None: ...


class SessionStore(Protocol):
    """The session entries of every agent, by session key. Callers must not change an entry they get."""

    async def get(self, agent_id: str, key: str) -> SessionEntry | None: ...

    async def update(self, agent_id: str, key: str, change: Change, *, durable: bool = True) -> SessionEntry | None:
        """Applies one change atomically. With ``durable`` it returns when the change is on disk."""
        ...

    async def write(self, agent_id: str, key: str, change: Change) -> tuple[SessionEntry | None, Writing]:
        """Applies one change atomically, and leaves it to the caller to wait for the disk."""
        ...

    async def select(self, query: SessionQuery) -> SessionPage:
        """Returns the rows that fit, by ``updatedAt``, then by key and by agent."""
        ...

    async def find_session_id(self, session_id: str) -> SessionRow | None: ...

    async def count(self, agent_id: str) -> int: ...

    async def close_agent(self, agent_id: str) -> None:
        """Lets go of an agent whose folder is about to be moved away, so that nothing of it is written again."""
        ...

    @property
    def agent_ids(self) -> list[str]:
        """The agents that have at least one session, configured or not. They are kept in memory."""
        ...

    def path(self, agent_id: str) -> str:
        """Returns the name of this agent's store for people: a file, or the address of a database."""
        ...

    async def close(self) -> None: ...
