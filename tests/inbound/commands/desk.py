"""Commands against a real session store, a real configuration and a real catalogue; runs are a plain list."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from openclaw.agent.spend.budget import Limit
from openclaw.config.keypath import MISSING, get_path, parse_path
from openclaw.config.load import build
from openclaw.inbound.commands.context import (
    Cost,
    Decision,
    EarlierSession,
    Facts,
    Handled,
    Outcome,
    QueueView,
    Stopped,
    Waiting,
)
from openclaw.inbound.commands.handle import handle_commands
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import previous_sessions
from openclaw.sessions.resume import choose
from openclaw.storage.files.session_store import FileSessionStore
from tests.storage.still_clock import StillClock

SESSION = SessionRef("main", "agent:main:main")
CONFIG: dict[str, Any] = {
    "models": {
        "providers": {
            "acme": {
                "baseUrl": "http://127.0.0.1:9/v1",
                "models": [
                    {"id": "swift-1", "contextWindow": 100_000},
                    {"id": "deep-thinker-2", "reasoning": True, "contextWindow": 200_000},
                ],
            }
        }
    },
    "agents": {"defaults": {"models": {"acme/swift-1": {"alias": "swift"}, "acme/deep-thinker-2": {"alias": "deep"}}}},
}


class Desk:
    """Implements what commands may do, and remembers what they did."""

    def __init__(self, state_dir: Path, config: dict[str, Any] | None = None) -> None:
        self.raw: dict[str, Any] = {**CONFIG, **(config or {})}
        self.config = build(self.raw)
        self.clock = StillClock()
        self.catalogue = Catalogue(self.config, {}, state_dir=str(state_dir))
        self.store = FileSessionStore(
            str(state_dir), clock=self.clock, store_template=None, default_agent=SESSION.agent_id
        )
        self.waiting: list[Waiting] = []
        self.running: Waiting | None = None
        self.children = 0
        self.asked: dict[str, str] = {}
        self.notes: list[str] = []
        self.report: dict[str, Any] = {}
        self.limited: list[Limit] = []
        self.done: list[str] = []
        self.compactions: Any = None
        self.stories: dict[str | None, list[str]] = {}

    async def say(self, text: str, **facts: Any) -> Outcome:
        """As the owner in a direct chat, unless told otherwise."""
        given: dict[str, Any] = {
            "session": SESSION,
            "authorised": True,
            "owner": True,
            "sender_ids": ("+1555",),
            **facts,
        }
        return await handle_commands(Facts(**given), text, self)

    async def reply(self, text: str, **facts: Any) -> str | None:
        outcome = await self.say(text, **facts)
        assert isinstance(outcome, Handled), outcome
        return outcome.reply if outcome.later is None else await outcome.later

    async def stored(self) -> dict[str, Any]:
        entry = dict(await self.entry(SESSION) or {})
        return {name: value for name, value in entry.items() if name not in ("sessionId", "updatedAt")}

    # CommandServices

    async def entry(self, session: SessionRef) -> SessionEntry | None:
        return await self.store.get(session.agent_id, session.key)

    async def patch_session(self, session: SessionRef, changes: dict[str, Any]) -> None:
        def change(entry: SessionEntry | None) -> SessionEntry:
            merged = {"sessionId": str(uuid.uuid4()), **(entry or {}), **changes, "updatedAt": self.clock.now_ms()}
            return SessionEntry(**{name: value for name, value in merged.items() if value is not None})  # type: ignore[typeddict-item]

        await self.store.update(session.agent_id, session.key, change)

    async def use_session(self, facts: Facts) -> str | None:
        return None

    async def rotate_session(self, session: SessionRef, reason: str) -> None:
        self.done.append(f"rotate:{reason}")
        await self.store.update(
            session.agent_id, session.key, lambda _: SessionEntry(sessionId=str(uuid.uuid4()), updatedAt=1)
        )

    async def earlier_sessions(self, session: SessionRef) -> Sequence[EarlierSession]:
        return [EarlierSession(session_id=each.session_id, ended_at=each.ended_at, reason=each.reason, title="")
                for each in previous_sessions(await self.entry(session))]  # fmt: skip

    async def resume_session(self, session: SessionRef, wanted: str | None) -> str:
        chosen = choose(previous_sessions(await self.entry(session)), wanted)
        self.done.append(f"resume:{chosen.session_id}")
        return "Back in an earlier session."

    def note(self, session: SessionRef, text: str) -> None:
        self.notes.append(text)

    async def stop(self, session: SessionRef) -> Stopped:
        ids = [item.run_id for item in (self.running, *self.waiting) if item]
        self.running, self.waiting = None, []
        self.done.append("stop")
        return Stopped(ids, self.children)

    def queue(self, session: SessionRef) -> QueueView:
        return QueueView(self.running, list(self.waiting))

    async def drop_waiting(self, session: SessionRef, run_id: str) -> bool:
        before = len(self.waiting)
        self.waiting = [item for item in self.waiting if item.run_id != run_id]
        return len(self.waiting) < before

    async def run_next(self, session: SessionRef, run_id: str) -> bool:
        self.waiting.sort(key=lambda item: item.run_id != run_id)
        return bool(self.waiting) and self.waiting[0].run_id == run_id

    async def why(self, session: SessionRef, ref: str | None) -> list[str]:
        return self.stories.get(ref, [])

    def auth_label(self, model: Model, agent_id: str) -> str:
        return "no key needed"

    async def auth_profiles(self, model: Model, agent_id: str) -> Sequence[str]:
        return ["acme:work"]

    def decide(self, ref: str, decision: Decision, by: str) -> str:
        if ref not in self.asked:
            raise LookupError("unknown approval id")
        self.done.append(f"{decision} {ref} by {by}")
        return self.asked.pop(ref)

    def runtime(self, session: SessionRef) -> str:
        return "direct"

    async def limits(self, session: SessionRef) -> list[Limit]:
        return self.limited

    async def prompt_report(self, session: SessionRef) -> dict[str, Any]:
        return self.report

    async def context_window(self, session: SessionRef) -> int | None:
        return 200_000

    async def session_cost(self, session: SessionRef) -> Cost:
        return Cost(0.0099)

    async def costs(self, session: SessionRef) -> dict[str, Cost]:
        return {"Session": Cost(0.0099), "Today": Cost(12.345, partial=True), "Last 30d": Cost(None)}

    async def read_config(self, path: str | None) -> Any:
        if path is None:
            return self.raw
        value = get_path(self.raw, parse_path(path), MISSING)
        if value is MISSING:
            raise ValueError(f"{path} is not set")
        return value

    async def write_config(self, path: str, value: Any) -> None:
        self.done.append(f"set {path}={value!r}")

    async def remove_config(self, path: str) -> None:
        self.done.append(f"unset {path}")

    async def restart(self, reason: str) -> None:
        self.done.append(reason)


MakeDesk: TypeAlias = Callable[[dict[str, Any]], Desk]
"""Made by the fixture ``make_desk``, which also closes them."""
