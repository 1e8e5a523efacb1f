"""Commands against the real parts of a Gateway: its stores, its runs and its configuration."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from openclaw.gateway.gateway import Gateway
from openclaw.inbound.commands.handle import handle_commands
from openclaw.inbound.incoming import CommandContext, Facts, Handled, Outcome
from openclaw.inbound.notices import Notices
from openclaw.messages import AssistantMessage, Cost, TextBlock, Usage
from openclaw.rights import rights_of_person
from openclaw.runs.session_change import set_entry_fields
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.still_clock import StillClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.scripted_model import ScriptedModel
from tests.support.submit import submit

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
    """A person who gives commands, and what came of them."""

    def __init__(self, gateway: Gateway, model: ScriptedModel, clock: StillClock) -> None:
        self.gateway, self.model, self.clock = gateway, model, clock
        self.runtime = gateway.runtime
        self.done: list[str] = []
        """The reasons of the sessions that were begun or resumed, and of the restarts that were scheduled."""
        self.context = CommandContext(
            runtime=gateway.runtime,
            runs=gateway.runs,
            notices=Notices(
                gateway.runtime,
                gateway.runs,
                publish=lambda _, payload: self.done.append(payload["message"]["__openclaw"]["reason"]),
                wake_delivery=lambda: None,
                spawn=gateway.spawn,
            ),
            restart=self.done.append,
            environ={},
            subagents=gateway.pipeline.commands.subagents,
            process=gateway.pipeline.process,
        )

    async def say(self, text: str, *, authorised: bool = True, owner: bool = True, **facts: Any) -> Outcome:
        """As the owner in a direct chat, unless told otherwise."""
        rights = rights_of_person(authorised=authorised, owner=owner)
        given: dict[str, Any] = {"session": SESSION, "rights": rights, "sender_ids": ("+1555",), **facts}
        return await handle_commands(Facts(**given), text, self.context)

    async def reply(self, text: str, **facts: Any) -> str | None:
        outcome = await self.say(text, **facts)
        assert isinstance(outcome, Handled), outcome
        return outcome.reply if outcome.later is None else await outcome.later

    async def entry(self) -> SessionEntry | None:
        return await self.context.entry(SESSION)

    async def set(self, changes: dict[str, Any]) -> None:
        await set_entry_fields(self.runtime, SESSION, changes)

    async def stored(self) -> dict[str, Any]:
        """What the session's entry tells, without its id, its age, and what is zero or false."""
        entry = dict(await self.entry() or {})
        return {name: value for name, value in entry.items() if value and name not in ("sessionId", "updatedAt")}

    async def occupy(self, text: str) -> None:
        """Begins the run ``r0``, which does not end by itself."""
        self.model.held()
        await submit(self.gateway, text, "r0")
        await self.model.asked(1)

    async def queue(self, *texts: str) -> None:
        """Lets messages wait behind the run, as ``r1``, ``r2`` and so on."""
        for number, text in enumerate(texts, 1):
            await submit(self.gateway, text, f"r{number}")

    @property
    def runs(self) -> list[str]:
        """What runs, then what waits."""
        return [run.run_id for run in self.gateway.runs.active(SESSION.key)]

    async def spend(self, dollars: float) -> None:
        """Puts a paid answer into the session's transcript."""
        await self.set({})
        entry = await self.entry()
        assert entry is not None
        await self.write(entry["sessionId"], dollars)

    async def write(self, session_id: str, dollars: float = 0.0) -> None:
        """Puts an answer into a transcript, which is made if there is none."""
        ref = TranscriptRef(agent_id=SESSION.agent_id, session_id=session_id)
        transcript = await self.runtime.stores.transcripts.open(ref, cwd=str(self.runtime.state_dir))
        assert transcript is not None
        message = AssistantMessage(
            content=[TextBlock(text="done")],
            provider="acme",
            model="swift-1",
            usage=Usage(input=100, total_tokens=100, cost=Cost(total=dollars)),
            timestamp=self.clock.now_ms(),
        )
        await transcript.append({"type": "message", "message": message})


@asynccontextmanager
async def open_desk(state_dir: Path, config: dict[str, Any]) -> AsyncGenerator[Desk]:
    """``config`` replaces whole sections of ``CONFIG``."""
    folder = state_dir / "agents" / "main" / "agent"
    folder.mkdir(parents=True)
    work = {"type": "api_key", "provider": "acme", "key": "work-key"}
    (folder / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": {"acme:work": work}}))
    (state_dir / "openclaw.json").write_text(json.dumps({**CONFIG, **config}))
    model, clock = ScriptedModel(), StillClock()
    async with gateway_parts(state_dir, model, clock=clock) as gateway:
        yield Desk(gateway, model, clock)


MakeDesk: TypeAlias = Callable[[dict[str, Any]], Awaitable[Desk]]
"""Made by the fixture ``make_desk``, which also closes them."""
