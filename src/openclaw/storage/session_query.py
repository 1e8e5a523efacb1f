"""Questions about session rows: which ones, in which order, and how many at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec

from openclaw.sessions.keys import is_cron_run_alias

if TYPE_CHECKING:
    from openclaw.storage.sessions import SessionRow, SessionStore

PAGE = 500
"""The rows that ``in_pages`` asks for at a time."""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which session rows are asked for. Every condition that is set must hold."""

    agent_id: str | None = None
    key: str | None = None
    label: str | None = None
    session_id: str | None = None
    """The id of the current session of the key."""
    ever: frozenset[str] | None = None
    """Ids of sessions, one of which the key has or had."""
    spawned_by: str | None = None
    updated_since: int | None = None
    """Rows whose ``updatedAt`` is not before this time."""
    updated_before: int | None = None
    """Rows whose ``updatedAt`` is before this time."""
    pinned: bool | None = None
    """Whether the row is pinned."""
    archived: bool | None = None
    """Whether the row is archived, and nothing has happened in it since."""
    text: str = ""
    """Lower-case text that must occur in ``search_text``."""
    hidden_keys: tuple[str, ...] = ()
    aliases: bool = True
    """Whether rows of single runs of cron jobs are included."""
    oldest_first: bool = False
    """The order of the rows. Usually the newest is the first."""
    offset: int = 0
    limit: int | None = None
    count: bool = False
    """Whether to count all rows that fit, also those outside the page."""


class SessionPage(msgspec.Struct, frozen=True):
    rows: Sequence[SessionRow]
    total: int | None = None
    """The number of all rows that fit. None when it was not asked for."""


def updated_at(entry: Any) -> int:
    """Returns ``updatedAt``, or 0 when it is not a number."""
    value = entry.get("updatedAt") if isinstance(entry, dict) else None
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0


def search_text(key: str, entry: Mapping[str, Any]) -> str:
    """The words by which a person looks for a session, in lower case."""
    origin = entry.get("origin")
    names = [entry.get(name) for name in ("displayName", "label", "subject", "sessionId")]
    parts = (*names, cast("dict[str, Any]", origin).get("label") if isinstance(origin, dict) else None, key)
    return "\n".join(str(part) for part in parts if part).lower()


def is_archived(entry: Mapping[str, Any]) -> bool:
    """Return whether the conversation was archived after its last activity."""
    archived_at = entry.get("archivedAt")
    return isinstance(archived_at, int) and archived_at >= updated_at(entry)


def session_ids(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yields the id of the current session and of the earlier ones that the entry lists."""
    if isinstance(current := entry.get("sessionId"), str):
        yield current
    listed = entry.get("previousSessions")
    for item in cast("list[Any]", listed) if isinstance(listed, list) else ():
        if isinstance(item, dict) and isinstance(session_id := cast("dict[str, Any]", item).get("sessionId"), str):
            yield session_id


def fits(row: SessionRow, query: SessionQuery) -> bool:
    """Tells whether a row fits the conditions of a query, without its agent, its times and its page."""
    entry: Mapping[str, Any] = row.entry
    if row.key in query.hidden_keys or (query.key is not None and row.key != query.key):
        return False
    if not query.aliases and is_cron_run_alias(row.key):
        return False
    if query.label is not None and entry.get("label") != query.label:
        return False
    if query.session_id is not None and entry.get("sessionId") != query.session_id:
        return False
    if query.spawned_by is not None and entry.get("spawnedBy") != query.spawned_by:
        return False
    if query.pinned is not None and bool(entry.get("pinnedAt")) is not query.pinned:
        return False
    if query.archived is not None and is_archived(entry) is not query.archived:
        return False
    if query.ever is not None and query.ever.isdisjoint(session_ids(entry)):
        return False
    return not query.text or query.text in search_text(row.key, entry)


def select_rows(rows: Sequence[SessionRow], query: SessionQuery) -> SessionPage:
    """Selects from rows that are in order, the newest first. Only as many are looked at as a page needs."""

    def place_of(time: int) -> int:
        """Finds the first row that is older."""
        return bisect_right(rows, -time, key=lambda row: -updated_at(row.entry))

    first = place_of(query.updated_before) if query.updated_before is not None else 0
    last = place_of(query.updated_since) if query.updated_since is not None else len(rows)
    places = range(first, last)
    fitting = (rows[at] for at in (reversed(places) if query.oldest_first else places) if fits(rows[at], query))
    end = None if query.limit is None else query.offset + query.limit
    if not query.count:
        return SessionPage(list(islice(fitting, query.offset, end)))
    everything = list(fitting)
    return SessionPage(everything[query.offset : end], len(everything))


async def in_pages(sessions: SessionStore, query: SessionQuery) -> AsyncIterator[SessionRow]:
    """Yields the rows that fit, page by page. A row that changes meanwhile may be left out or come twice."""
    while True:
        page = await sessions.select(msgspec.structs.replace(query, limit=PAGE))
        for row in page.rows:
            yield row
        if len(page.rows) < PAGE:
            return
        query = msgspec.structs.replace(query, offset=query.offset + PAGE)
