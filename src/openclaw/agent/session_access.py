"""Access to sessions: one table for everything that names a session by itself.

A session is looked up by key, alias, session id or label first. Only then is it compared with the rules, so that no
spelling of a name gets around them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

from openclaw.config.agents import (
    agent_ids,
    default_agent_id,
    main_key,
    main_session_key,
    sandbox_config,
    wants_sandbox,
)
from openclaw.config.schema import Config
from openclaw.paths import normalize_agent_id
from openclaw.rights import Caller
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import (
    INTERNAL_KINDS,
    LONGEST_KEY,
    RESERVED_KEYS,
    SessionRef,
    agent_of,
    canonical_key,
    is_cron_run_alias,
    is_subagent,
    key_problem,
    kind_of,
    rest_of,
    shown_key,
)
from openclaw.storage.session_query import SessionQuery, session_ids
from openclaw.storage.sessions import SessionRow, SessionStore

MOST_CHILDREN = 200
"""The most sessions that it started in which a session with limited access searches."""
Action: TypeAlias = Literal["list", "history", "send", "status"]
Relation: TypeAlias = Literal["self", "child", "same agent", "other agent"]

_ANYTHING: frozenset[Relation] = frozenset({"self", "child", "same agent", "other agent"})
_OWN: frozenset[Relation] = frozenset({"self", "child"})
_SPAWNED: frozenset[Relation] = frozenset({"child"})

ALLOWED: dict[Literal["open", "sub-agent", "sandboxed"], dict[Action, frozenset[Relation]]] = {
    # Other agents also need tools.agentToAgent, for all actions.
    "open": {"list": _ANYTHING, "history": _ANYTHING, "send": _ANYTHING, "status": _ANYTHING},
    # A worker knows its task. It neither reads its siblings nor gives orders to whoever it works for.
    "sub-agent": {"list": _OWN, "history": _OWN, "send": _SPAWNED, "status": _OWN},
    "sandboxed": {"list": _SPAWNED, "history": _SPAWNED, "send": _SPAWNED, "status": _OWN},
}
"""What a session may do with others, by its own kind. ``same agent`` includes parents and siblings."""

_REACHES: dict[str, frozenset[Relation]] = {
    "self": frozenset({"self"}),
    "tree": _OWN,
    "agent": frozenset({"self", "child", "same agent"}),
    "all": _ANYTHING,
}
"""How far ``tools.sessions.visibility`` lets a session see."""
_WORDS: dict[Action, str] = {"list": "listing", "history": "history", "send": "messaging", "status": "status"}


class Refusal(Exception):
    """A session cannot be used. The text is for the model, and ``more`` belongs to the answer as well."""

    def __init__(self, text: str, status: Literal["error", "forbidden"] = "forbidden", **more: str) -> None:
        super().__init__(text)
        self.status = status
        self.more = more


class SessionAccess:
    """Finds sessions for a requester and checks what it may do with them."""

    def __init__(self, config: Config, sessions: SessionStore, requester: SessionRef, caller: Caller) -> None:
        """``requester`` is the session that asks, and ``caller`` says whose run asks there."""
        self._config = config
        self._sessions = sessions
        self._requester = requester
        sandbox = sandbox_config(config, requester.agent_id)
        hidden = sandbox.session_tools_visibility == "spawned"
        if hidden and wants_sandbox(config, requester.agent_id, requester.key):
            self._rules = ALLOWED["sandboxed"]
        else:
            self._rules = ALLOWED["sub-agent" if is_subagent(requester.key) else "open"]
        # Others could have the agent read the owner's conversations to them.
        usual = "all" if caller.may("all sessions") else "tree"
        self._reach = _REACHES[config.tools.sessions.visibility or usual]

    @property
    def agent_id(self) -> str:
        """The agent of the session that asks."""
        return self._requester.agent_id

    @property
    def unlimited(self) -> bool:
        """Whether every session of the agent may be read, also those that have no entry any more."""
        return self._rules is ALLOWED["open"] and "same agent" in self._reach

    def allows(self, row: SessionRow, action: Action) -> bool:
        return self._refusal(row, action) is None

    def check(self, row: SessionRow, action: Action, name: str) -> None:
        """Raises ``Refusal``. ``name`` is the session as the requester wrote it."""
        if (problem := self._refusal(row, action)) is not None:
            raise Refusal(problem.format(name=name), sessionKey=name)

    def relation(self, row: SessionRow) -> Relation:
        if row.key == self._requester.key:
            return "self"
        if row.entry.get("spawnedBy") == self._requester.key:
            return "child"
        return "same agent" if row.agent_id == self._requester.agent_id else "other agent"

    def _refusal(self, row: SessionRow, action: Action) -> str | None:
        relation = self.relation(row)
        if relation not in self._reach:
            return "Session not visible: tools.sessions.visibility keeps {name} out of reach"
        if relation not in self._rules[action]:
            kind = "sandboxed agent" if self._rules is ALLOWED["sandboxed"] else "sub-agent"
            return f"Session not visible from this {kind} session: {{name}}"
        return _between_agents(self._config, self._requester.agent_id, row.agent_id, action)

    async def find(self, name: str, *, label: str = "", agent_id: str = "") -> SessionRow:
        """The session that a key, an alias, a session id or a label means. Raises ``Refusal`` if there is none."""
        if label:
            return await self._by_label(label, agent_id)
        text = name.strip()
        row = await self._by_key(text) or await self._sessions.find_session_id(text)
        if row is None or not self._exists(row):
            raise Refusal(f"No session found: {text}", "error")
        return row

    async def own_rows(self) -> list[SessionRow]:
        """The requester's session and those that it started, as far as they may be read."""
        query = SessionQuery(spawned_by=self._requester.key, limit=MOST_CHILDREN)
        own = await self._sessions.get(self._requester.agent_id, self._requester.key)
        rows = [] if own is None else [SessionRow(self._requester.agent_id, self._requester.key, own)]
        return [row for row in (*rows, *(await self._sessions.select(query)).rows) if self.allows(row, "history")]

    def searchable_agents(self, agent_ids: Collection[str]) -> list[str]:
        """The agents among these whose transcripts may be searched. Only for a requester without limits."""
        own = self._requester.agent_id
        others = "other agent" in self._reach
        return [
            other
            for other in agent_ids
            if other == own or (others and _between_agents(self._config, own, other, "history") is None)
        ]

    async def readable(self, transcripts: Mapping[str, str]) -> dict[str, SessionRow | None]:
        """The session ids that may be read, each with the row of its session. None if no session has it any more.

        ``transcripts`` names the agent of each session id. An earlier transcript of a session needs unlimited access:
        it may be from the time before others joined the conversation.
        """
        page = await self._sessions.select(SessionQuery(ever=frozenset(transcripts)))
        rows: dict[str, SessionRow] = {}
        # The row whose current transcript it is comes before one that had it, and a job before one run of it.
        for row in sorted(page.rows, key=lambda row: is_cron_run_alias(row.key), reverse=True):
            for session_id in session_ids(row.entry):
                if _is_current(row, session_id) or not _is_current(rows.get(session_id), session_id):
                    rows[session_id] = row
        allowed: dict[str, SessionRow | None] = {}
        for session_id, agent_id in transcripts.items():
            row = rows.get(session_id)
            if row is None:
                if self.unlimited and agent_id == self.agent_id:
                    allowed[session_id] = None
                continue
            whole = self.unlimited or _is_current(row, session_id)
            if whole and self._exists(row) and self.allows(row, "history"):
                allowed[session_id] = row
        return allowed

    def _exists(self, row: SessionRow) -> bool:
        return row.key != "unknown" and (row.key != "global" or self._global)

    def main_of_agent(self, name: str) -> SessionRow | None:
        """The main session of a configured agent, as a row without an entry. None for every other name.

        An agent that nobody has written to yet has no session, but it can be written to.
        """
        if self._global or not name:
            return None
        key = canonical_key(name, default_agent=self._requester.agent_id, main_key=main_key(self._config))
        agent_id = agent_of(key)
        mains = {main_session_key(self._config, agent) for agent in agent_ids(self._config)}
        return SessionRow(agent_id, key, SessionEntry(sessionId="")) if key in mains else None

    @property
    def _global(self) -> bool:
        return self._config.session.scope == "global"

    async def _by_key(self, text: str) -> SessionRow | None:
        if not text or len(text) > LONGEST_KEY or key_problem(text):
            return None
        if text.lower() in RESERVED_KEYS and not (self._global and text.lower() == "global"):
            return None
        canonical = canonical_key(
            text,
            default_agent=self._requester.agent_id,
            main_key=main_key(self._config),
            scope=self._config.session.scope,
        )
        agent_id = agent_of(canonical, default_agent=default_agent_id(self._config))
        entry = await self._sessions.get(agent_id, canonical)
        return None if entry is None else SessionRow(agent_id, canonical, entry)

    async def _by_label(self, label: str, agent_id: str) -> SessionRow:
        agent = normalize_agent_id(agent_id) if agent_id else None
        if agent is None and self._rules is ALLOWED["open"]:
            agent = self._requester.agent_id
        rows = (await self._sessions.select(SessionQuery(agent_id=agent, label=label))).rows
        if agent is not None and agent != self._requester.agent_id:
            problem = _between_agents(self._config, self._requester.agent_id, agent, "send")
            if problem is not None:
                raise Refusal(problem)
        if not rows:
            raise Refusal(f"No session found with label: {label}", "error")
        if len(rows) > 1:
            keys = ", ".join(shown_key(row.key) for row in rows[:10])
            raise Refusal(f"Multiple sessions found with label: {label} ({keys})", "error")
        return rows[0]

    def shown(self, key: str) -> str:
        """The key as the requester knows it: its own main chat is ``main``, and its own jobs are ``cron:<id>``."""
        own = self._requester.agent_id
        if key == main_session_key(self._config, own):
            return "main"
        if agent_of(key, default_agent=own) == own and kind_of(key) in INTERNAL_KINDS:
            return rest_of(key)
        return shown_key(key)


def _is_current(row: SessionRow | None, session_id: str) -> bool:
    return row is not None and row.entry.get("sessionId") == session_id


def _between_agents(config: Config, one: str, other: str, action: Action) -> str | None:
    """Why one agent may not do this with a session of the other. None: it may."""
    if one == other:
        return None
    rules, word = config.tools.agent_to_agent, _WORDS[action]
    if not rules.enabled:
        return f"Agent-to-agent {word} is disabled. Set tools.agentToAgent.enabled=true to allow it between agents."
    if rules.allow and not all(_is_listed(agent, rules.allow) for agent in (one, other)):
        return f"Agent-to-agent {word} denied by tools.agentToAgent.allow."
    return None


def _is_listed(agent_id: str, patterns: Sequence[str]) -> bool:
    """Plain entries are compared exactly. In others ``*`` stands for any characters, and case does not count."""
    for pattern in patterns:
        if "*" not in pattern:
            if pattern.strip() == agent_id:
                return True
        elif re.fullmatch(".*".join(map(re.escape, pattern.strip().split("*"))), agent_id, re.IGNORECASE | re.DOTALL):
            return True
    return False
