"""Subscriptions to sessions: clients of protocol 4 ask for changed rows and stored messages, and get them as events.

These events have no sequence number, because clients of protocol 3 do not get them. Nothing is read while nobody has
subscribed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from openclaw.agent.recorder import entry_id
from openclaw.agent.runtime import Runtime
from openclaw.clock import Clock
from openclaw.events import AssistantEnded, RunStarted, SteeringInjected, ToolEnded
from openclaw.gateway.server.events import Broadcaster
from openclaw.gateway.session_views import model_defaults, numbered_messages, row_view
from openclaw.protocol.protocol4 import SessionChanged, SessionMessage
from openclaw.runs.run import Follower, Run, RunBegan, RunEvent, RunFinished
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, shown_key
from openclaw.sessions.reset import transcript_ref
from openclaw.storage.sessions import SessionRow

MOST_NEW = 200
"""The most messages that one look at a transcript publishes."""
MOST_SESSIONS = 4_096
"""The most sessions whose messages are subscribed to. The oldest subscription is dropped."""
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class SessionSubscriptions:
    """The connections that follow the list of sessions, and those that follow the messages of one."""

    def __init__(self, runtime: Runtime, broadcaster: Broadcaster, spawn: Spawn) -> None:
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._broadcaster = broadcaster
        self._spawn = spawn
        self._lists: set[str] = set()
        self._messages: dict[str, set[str]] = {}
        """Connections by session key."""
        self._published: dict[str, tuple[str, str | None]] = {}
        """The session id and the last published entry of each subscribed session."""
        self.own_runs: OrderedDict[str, str] = OrderedDict()
        """Run ids by the id of the entry of their message, from which a client sees that its message is stored."""
        self._locks: dict[str, asyncio.Lock] = {}

    # Subscribing

    def follow_list(self, conn_id: str) -> None:
        self._lists.add(conn_id)

    def leave_list(self, conn_id: str) -> None:
        self._lists.discard(conn_id)

    async def follow_messages(self, conn_id: str, session: SessionRef) -> None:
        """Send this connection every message that is stored in the session from now on."""
        if session.key not in self._messages:
            self._published[session.key] = await self._newest(session)
            while len(self._messages) >= MOST_SESSIONS:
                self._forget(next(iter(self._messages)))
        self._messages.setdefault(session.key, set()).add(conn_id)

    def leave_messages(self, conn_id: str, session: SessionRef) -> None:
        connections = self._messages.get(session.key, set())
        connections.discard(conn_id)
        if not connections:
            self._forget(session.key)

    def sessions_of(self, conn_id: str) -> int:
        """Return how many sessions the connection follows."""
        return sum(conn_id in connections for connections in self._messages.values())

    def client_left(self, conn_id: str) -> None:
        self._lists.discard(conn_id)
        for key in [key for key, connections in self._messages.items() if conn_id in connections]:
            self._messages[key].discard(conn_id)
            if not self._messages[key]:
                self._forget(key)

    def _forget(self, key: str) -> None:
        for kept in (self._messages, self._published, self._locks):
            kept.pop(key, None)

    async def _newest(self, session: SessionRef) -> tuple[str, str | None]:
        entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
        if entry is None:
            return "", None
        tail = await self._runtime.stores.transcripts.tail(transcript_ref(session.agent_id, entry), 1)
        return entry["sessionId"], tail[-1].id if tail else None

    # Publishing

    def follow_run(self, run: Run) -> Follower:
        """Return a follower that publishes what the run stores. It costs two lookups while nobody has subscribed."""
        session = SessionRef(run.agent_id, run.session_key)

        def follow(event: RunEvent) -> None:
            if not self._lists and run.session_key not in self._messages:
                return
            match event:
                case RunBegan():
                    self._note_own(run.run_id)
                    self.changed(session, "run-started")
                case SteeringInjected(_, token):
                    self._note_own(token)
                    self.changed(session, "message")
                case RunStarted() | AssistantEnded() | ToolEnded():
                    self.changed(session, "message")
                case RunFinished():
                    self.changed(session, "run-finished")
                case _:
                    pass

        return follow

    def _note_own(self, run_id: str) -> None:
        self.own_runs[entry_id(run_id, 0)] = run_id
        while len(self.own_runs) > MOST_SESSIONS:
            self.own_runs.popitem(last=False)

    def changed(self, session: SessionRef, reason: str) -> None:
        """Publish the session's row, and the messages that its transcript has got."""
        if self._lists or session.key in self._messages:
            self._spawn(self._publish(session, reason))

    async def rewound(self, session: SessionRef) -> None:
        """Continue after the present end of the transcript, whose branch has changed."""
        if session.key in self._messages:
            self._published[session.key] = await self._newest(session)

    async def _publish(self, session: SessionRef, reason: str) -> None:
        async with self._locks.setdefault(session.key, asyncio.Lock()):
            entry = await self._runtime.stores.sessions.get(session.agent_id, session.key)
            row = None
            if entry is not None:
                row = row_view(
                    SessionRow(session.agent_id, session.key, entry), model_defaults(self._runtime, session.agent_id)
                )
                if session.key in self._messages:
                    for message in await self._new_messages(session, entry):
                        message.session = row
                        self._broadcaster.send_to(self._messages.get(session.key, ()), "session.message", message)
            connections = {*self._lists, *self._messages.get(session.key, ())}
            change = SessionChanged(
                session_key=shown_key(session.key),
                agent_id=session.agent_id,
                reason=reason,
                ts=self._clock.now_ms(),
                session=row,
            )
            self._broadcaster.send_to(sorted(connections), "sessions.changed", change)
        if session.key not in self._messages:
            self._locks.pop(session.key, None)

    async def _new_messages(self, session: SessionRef, entry: SessionEntry) -> Sequence[SessionMessage]:
        session_id, ref = entry["sessionId"], transcript_ref(session.agent_id, entry)
        last_session, last_id = self._published.get(session.key, ("", None))
        transcript = await self._runtime.stores.transcripts.open(ref, create=False)
        if transcript is None:
            return ()
        tail = await self._runtime.stores.transcripts.tail(ref, MOST_NEW)
        if session_id == last_session and last_id is not None:
            ids = [one.id for one in tail]
            # The branch has changed when the last published entry is gone. Its present end is where clients are.
            tail = tail[ids.index(last_id) + 1 :] if last_id in ids else tail[-1:]
        if tail:
            self._published[session.key] = session_id, tail[-1].id
        reasoning = entry.get("reasoningLevel") in ("on", "stream")
        return [
            SessionMessage(
                session_key=shown_key(session.key),
                message=message.fields,
                message_id=message.id,
                message_seq=message.seq,
            )
            for message in await numbered_messages(transcript, tail, with_reasoning=reasoning, own_runs=self.own_runs)
        ]
