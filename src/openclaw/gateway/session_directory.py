"""The sessions that clients name, by key, id or label: which one is meant, and whether it may be written to."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw.channels.submit import ConversationOrder
from openclaw.config.agents import agent_ids, default_agent_id, main_key
from openclaw.gateway.server.registry import MethodError
from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.entry import BLOCKED, SessionEntry, is_blocked
from openclaw.sessions.keys import (
    DEFAULT_MAIN_KEY,
    LONGEST_KEY,
    REMEMBERED_KEYS,
    RESERVED_KEYS,
    SessionRef,
    agent_of,
    canonical_key,
    is_session_id,
    is_subagent,
    key_problem,
    parse_agent_key,
    rest_of,
    shown_key,
)
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime


@lru_cache(maxsize=REMEMBERED_KEYS)
def _target(key: str, default_agent: str, main_key: str, scope: str) -> SessionRef:
    if problem := key_problem(key):
        raise MethodError(f"invalid session key: {problem}")
    canonical = canonical_key(key, default_agent=default_agent, main_key=main_key, scope=scope)
    return SessionRef(agent_of(canonical, default_agent=default_agent), canonical)


class NamedSession(msgspec.Struct, frozen=True):
    """A session that a client names. ``entry`` is None if the first message creates it."""

    ref: SessionRef
    entry: SessionEntry | None


class SessionDirectory:
    """Resolves the names of sessions. Its methods raise ``MethodError`` for names that cannot be used."""

    def __init__(self, runtime: Runtime) -> None:
        self._config = runtime.config
        self._sessions = runtime.stores.sessions
        self._transcripts = runtime.stores.transcripts
        self._state_dir = str(runtime.state_dir)
        self.order = ConversationOrder()
        """Keeps the order of messages while the sessions that they name are looked up."""

    def agent_ids(self) -> list[str]:
        """Return the default agent, then the other configured ones, then those that only have sessions left."""
        config = self._config.current
        return list(dict.fromkeys([default_agent_id(config), *agent_ids(config), *self._sessions.agent_ids]))

    def transcript_folders(self) -> dict[str, list[Path]]:
        """Return the folders of each agent's transcripts: the one of the session store, and the usual one."""
        return {
            agent: list(
                dict.fromkeys([Path(self._transcripts.folder(agent)), Path(sessions_dir(self._state_dir, agent))])
            )
            for agent in self.agent_ids()
        }

    def target(self, key: str, agent_id: str | None = None) -> SessionRef:
        """Return the session that a key means.

        A key without an agent prefix belongs to ``agent_id``, or to the default agent.
        """
        if len(key) > LONGEST_KEY:
            raise MethodError(f"invalid session key: {key_problem(key)}")
        config = self._config.current
        return _target(key, agent_id or default_agent_id(config), main_key(config), config.session.scope)

    async def entry(self, target: SessionRef) -> SessionEntry | None:
        return await self._sessions.get(target.agent_id, target.key)

    async def find(self, text: str) -> SessionRow | None:
        """Find a session by key, then by session id, then by a label that only one session has."""
        if key_problem(text) is None:
            target = self.target(text)
            entry = await self.entry(target)
            if entry is not None:
                return SessionRow(target.agent_id, target.key, entry)
        row = await self._sessions.find_session_id(text.strip())
        if row is not None:
            return row
        labelled = await self._sessions.select(SessionQuery(label=text.strip(), limit=2))
        return labelled.rows[0] if len(labelled.rows) == 1 else None

    async def to_write(self, name: str, agent_id: str | None = None, *, spawned: bool = False) -> NamedSession:
        """Return the session that a message to ``name`` goes to: a key, an id or a label.

        An unused name creates a session; so does the key of a main session. Raises ``MethodError`` for an id, a full
        key or an agent that does not exist, for reserved words and for sub-agents. ``spawned`` says that the caller
        started the sub-agent that it names.
        """
        target = self.to_change(name, agent_id)
        async with self.order.of(target.key):
            named = NamedSession(target, await self.entry(target))
            if named.entry is None and target != self.target(DEFAULT_MAIN_KEY, target.agent_id):
                named = await self._by_id_or_label(name.strip(), named, agent_id)
        if not spawned:
            refuse_subagent(named.ref, name)
        return named

    async def _by_id_or_label(self, name: str, new: NamedSession, agent_id: str | None) -> NamedSession:
        """Return the session with this id or label, or ``new`` if the name may create a session."""
        if parse_agent_key(name.lower()) is not None:
            if is_subagent(new.ref.key):
                return new
            raise no_session(name)
        if row := await self._sessions.find_session_id(name) or await self._sessions.find_session_id(name.lower()):
            ref = SessionRef(row.agent_id, row.key)
            _check_agent(ref, agent_id)
            return NamedSession(ref, row.entry)
        if is_session_id(name):
            raise no_session(name)
        labelled = (await self._sessions.select(SessionQuery(agent_id=new.ref.agent_id, label=name, limit=2))).rows
        if len(labelled) > 1:
            keys = ", ".join(shown_key(row.key) for row in labelled)
            raise MethodError(f"Multiple sessions found with label: {name} ({keys})")
        return NamedSession(SessionRef(labelled[0].agent_id, labelled[0].key), labelled[0].entry) if labelled else new

    def to_change(self, key: str, agent_id: str | None = None) -> SessionRef:
        """Return the session of a key, which a change of its settings may create.

        Raises ``MethodError`` for an agent that does not exist or is not the key's, and for reserved words.
        """
        target = self.target(key, agent_id)
        self.refuse_reserved(target, key)
        _check_agent(target, agent_id)
        if target.agent_id not in (existing := self.agent_ids()):
            raise MethodError(f'unknown agent id "{target.agent_id}"; there are: {", ".join(existing)}')
        return target

    def refuse_reserved(self, target: SessionRef, name: str) -> None:
        if rest_of(target.key) in RESERVED_KEYS and target != self.target(DEFAULT_MAIN_KEY, target.agent_id):
            raise MethodError(f'"{name}" is a reserved word and not a session')

    def require_agent(self, agent_id: str) -> None:
        """Raise ``MethodError`` for an unknown agent. An agent that only has sessions left is known."""
        if agent_id not in self.agent_ids():
            raise MethodError(f'unknown agent id "{agent_id}"')

    def check_send_policy(self, target: SessionRef, entry: SessionEntry | None, channel: str | None = None) -> None:
        if is_blocked(self._config.current.session.send_policy, target.key, entry, channel=channel):
            raise MethodError(BLOCKED)


def _check_agent(target: SessionRef, agent_id: str | None) -> None:
    if agent_id is not None and target.agent_id != normalize_agent_id(agent_id):
        raise MethodError(f'agent "{agent_id}" does not match session key agent "{target.agent_id}"')


def refuse_subagent(target: SessionRef, name: str) -> None:
    if is_subagent(target.key):
        raise MethodError(f'"{name}" is a sub-agent; write to the session that started it, or use /subagents send')


def no_session(name: str, which: str = "") -> MethodError:
    return MethodError(f"No session found{which}: {name}", details={"code": "SESSION_NOT_FOUND"})
