"""Decides whose run it is: the owner's, a job's, a guest's, a group's, a webhook's or a node's.

Everything that depends on who caused a run asks ``caller_of``: the prompt, the memory, the session tools, the file
tools, scheduled jobs, MCP servers and ``/tools/invoke``. A run is as trusted as the least trusted of

- the message: who wrote it, and on which door it came in;
- the session that it runs in;
- its lineage: the sessions that spawned this one, and the sessions through which the message came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import default_agent_id, main_key
from openclaw.config.schema import Config
from openclaw.rights import Caller, CallerKind
from openclaw.sessions.keys import SessionRef, agent_of, is_direct, is_subagent, kind_of
from openclaw.storage.message_ledger import MessageBody

MOST_ANCESTORS = 8
NO_MESSAGE = MessageBody()
"""The body for work that answers no message, e.g. a compaction."""
LEAST_TRUSTED_FIRST: Sequence[CallerKind] = ("group", "hook", "node", "guest", "job", "owner")
_BY_SOURCE: Mapping[str, CallerKind] = {"hook": "hook", "node": "node", "cron": "job"}


async def caller_of(
    runtime: Runtime,
    session: SessionRef,
    entry: Mapping[str, Any] | None,
    body: MessageBody = NO_MESSAGE,
    source: str = "",
) -> Caller:
    """Decide whose run it is. ``entry`` is the session's, ``source`` the door that the message came through.

    Without a body the answer is about the session: whose it is when nobody has written.
    """
    least: CallerKind = "owner"
    async for kind in _kinds(runtime, session, entry, body, source):
        if LEAST_TRUSTED_FIRST.index(kind) < LEAST_TRUSTED_FIRST.index(least):
            least = kind
    return Caller(least, is_subagent(session.key))


async def _kinds(
    runtime: Runtime, session: SessionRef, entry: Mapping[str, Any] | None, body: MessageBody, source: str
) -> AsyncIterator[CallerKind]:
    config = runtime.config.current
    yield kind_of_session(config, session.key, entry)
    last = session.key
    async for _, key, above in ancestors(runtime, session.key, entry):
        yield kind_of_session(config, key, above, past=True)
        last = key
    if is_subagent(last):
        yield "guest"  # Nobody knows who started it.
    yield _BY_SOURCE.get(source, "owner")
    for key in _ways(body):
        if key == session.key:
            continue
        agent_id = agent_of(key, default_agent=default_agent_id(config))
        passed = await runtime.stores.sessions.get(agent_id, key)
        yield kind_of_session(config, key, passed, past=True)
        async for _, parent, above in ancestors(runtime, key, passed):
            yield kind_of_session(config, parent, above, past=True)
    if not body.by_owner:
        yield "guest"


def _ways(body: MessageBody) -> list[str]:
    """The sessions through which a message came: those before, and the one that wrote it."""
    sender = body.provenance.get("sourceSessionKey")
    return list(dict.fromkeys([*(body.trace.visited if body.trace else ()), *([str(sender)] if sender else ())]))


def kind_of_session(config: Config, key: str, entry: Mapping[str, Any] | None, *, past: bool = False) -> CallerKind:
    """Return whose session it is. ``past`` says that something came from there, so that it cannot be a new one."""
    match kind_of(key, entry, main_key=main_key(config), scope=config.session.scope):
        case "cron":
            return "job"
        case "main":
            return "owner"
        case "other":
            return "guest" if _is_of_somebody_else(key, entry, past) else "owner"
        case kind:
            return kind


def _is_of_somebody_else(key: str, entry: Mapping[str, Any] | None, past: bool) -> bool:
    """Whether it is a direct chat with somebody other than the owner.

    ``ownerChat`` is set with each message of a channel. A chat without it is older, or only clients have written there.
    """
    if entry is None:
        return past and is_direct(key)
    owner_chat = entry.get("ownerChat")
    if isinstance(owner_chat, bool):
        return not owner_chat
    return is_direct(key) and entry.get("lastChannel") not in (None, "", "webchat")


async def ancestors(
    runtime: Runtime, session_key: str, entry: Mapping[str, Any] | None
) -> AsyncIterator[tuple[str, str, Mapping[str, Any] | None]]:
    """Yield the sessions that spawned this one, the nearest first: their agents, keys and entries."""
    default = default_agent_id(runtime.config.current)
    spawned_by, seen = (entry or {}).get("spawnedBy"), {session_key}
    while spawned_by and spawned_by not in seen and len(seen) <= MOST_ANCESTORS:
        seen.add(spawned_by)
        parent = agent_of(spawned_by, default_agent=default)
        above = await runtime.stores.sessions.get(parent, spawned_by)
        yield parent, spawned_by, above
        spawned_by = above.get("spawnedBy") if above else None
