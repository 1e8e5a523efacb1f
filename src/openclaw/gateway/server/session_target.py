"""Finds the agent and the store key of the session that a client names. Methods and HTTP endpoints call it first."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from openclaw.config.agents import default_agent_id, main_key
from openclaw.gateway.server.registry import MethodError
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import LONGEST_KEY, REMEMBERED_KEYS, SessionRef, agent_of, canonical_key, key_problem
from openclaw.sessions.send_policy import is_blocked
from openclaw.storage.base import SessionRow, TranscriptRef

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway


def target_of(gateway: Gateway, key: str, agent_id: str | None = None) -> SessionRef:
    """Returns the session that a key means. Raises ``MethodError`` for an invalid key.

    A key without an agent prefix belongs to ``agent_id``, or to the default agent.
    """
    if len(key) > LONGEST_KEY:
        raise MethodError(f"invalid session key: {key_problem(key)}")
    config = gateway.runtime.config.current
    return _target(key, agent_id or default_agent_id(config), main_key(config), config.session.scope)


@lru_cache(maxsize=REMEMBERED_KEYS)
def _target(key: str, default_agent: str, main_key: str, scope: str) -> SessionRef:
    if problem := key_problem(key):
        raise MethodError(f"invalid session key: {problem}")
    canonical = canonical_key(key, default_agent=default_agent, main_key=main_key, scope=scope)
    return SessionRef(agent_of(canonical, default_agent=default_agent), canonical)


def require_configured(gateway: Gateway, target: SessionRef) -> None:
    """Raises ``MethodError`` for a session of an unknown agent, if the configuration lists agents."""
    config = gateway.runtime.config.current
    if config.agents.list and target.agent_id not in gateway.agent_ids():
        known = ", ".join(gateway.agent_ids())
        raise MethodError(f'unknown agent id "{target.agent_id}" in the session key; there are: {known}')


async def entry_of(gateway: Gateway, target: SessionRef) -> SessionEntry | None:
    return await gateway.runtime.sessions.get(target.agent_id, target.key)


def transcript_ref(target: SessionRef, entry: SessionEntry) -> TranscriptRef:
    return TranscriptRef(agent_id=target.agent_id, session_id=entry["sessionId"], file=entry.get("sessionFile"))


def require_agent(gateway: Gateway, agent_id: str) -> None:
    """Raises ``MethodError`` for an unknown agent. An agent that only has sessions left is known."""
    if agent_id not in gateway.agent_ids():
        raise MethodError(f'unknown agent id "{agent_id}"')


def check_send_policy(
    gateway: Gateway, target: SessionRef, entry: SessionEntry | None, channel: str | None = None
) -> None:
    if is_blocked(gateway.runtime.config.current.session.send_policy, target.key, entry, channel=channel):
        raise MethodError("send blocked by session policy")


async def find_row(gateway: Gateway, text: str) -> SessionRow | None:
    """Finds a session by key, then by session id, then by a label that only one session has."""
    if key_problem(text) is None:
        target = target_of(gateway, text)
        entry = await entry_of(gateway, target)
        if entry is not None:
            return SessionRow(target.agent_id, target.key, entry)
    found = await gateway.runtime.sessions.find_session_id(text.strip())
    if found is not None:
        return found
    labelled = [row for row in await gateway.runtime.sessions.rows() if row.entry.get("label") == text.strip()]
    return labelled[0] if len(labelled) == 1 else None
