"""Full-text search in the conversations that a session may read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.session_access import SessionAccess
from openclaw.config.agents import agent_ids
from openclaw.paths import sessions_dir
from openclaw.sessions.search import PER_PASS, Reading, TranscriptHit
from openclaw.storage.sessions import SessionRow

CANDIDATES_PER_HIT = 4
"""How many passages are looked up for each hit, because some may not be readable."""
MOST_READ = 4 * PER_PASS
"""Bytes of transcripts that one search indexes first. The results say when there are more."""


class SessionMatch(msgspec.Struct, frozen=True):
    """A passage that may be read, with the row of its session. None if no session has its transcript any more."""

    hit: TranscriptHit
    row: SessionRow | None


class SessionMatches(msgspec.Struct, frozen=True):
    matches: list[SessionMatch]
    reading: Reading


async def search_sessions(
    runtime: Runtime,
    access: SessionAccess,
    query: str,
    limit: int,
    *,
    agents: Collection[str] | None = None,
    roles: Collection[str] = (),
) -> SessionMatches:
    """Find passages that ``access`` allows. ``agents`` limits the search, with None it covers every readable agent."""
    only: list[str] = []
    if access.unlimited:
        agents = access.searchable_agents(agent_ids(runtime.config.current) if agents is None else agents)
    else:
        # Searched among these alone, so that neither the hits nor the time depend on what else there is.
        rows = await access.own_rows()
        agents, only = {row.agent_id for row in rows}, [row.entry["sessionId"] for row in rows]
        if not only:
            return SessionMatches([], Reading(complete=True, read=0, transcripts=0))
    folders = {agent: transcript_folders(runtime, agent) for agent in agents}
    found = await runtime.search.search(
        query, folders, limit=limit * CANDIDATES_PER_HIT, roles=roles, session_ids=only, most_bytes=MOST_READ
    )
    readable = await access.readable({hit.session_id: hit.agent_id for hit in found.results})
    matches = [SessionMatch(hit, readable[hit.session_id]) for hit in found.results if hit.session_id in readable]
    return SessionMatches(matches[:limit], found.reading)


def transcript_folders(runtime: Runtime, agent_id: str) -> list[Path]:
    """The folders of an agent's transcripts: the one of the session store, and the usual one."""
    store = Path(runtime.stores.transcripts.folder(agent_id))
    return list(dict.fromkeys([store, Path(sessions_dir(str(runtime.state_dir), agent_id))]))
