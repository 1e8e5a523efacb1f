"""Turns of webhooks under way: each event is accepted once, followed to its end and told to whom it concerns.

``hook-runs.json`` names the turns whose result is not dealt with yet, so that a Gateway that dies goes on with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable

import msgspec

from openclaw.clock import iso_utc
from openclaw.foreign_text import disarmed
from openclaw.models.thinking import parse_level
from openclaw.scheduler.heartbeat import Heartbeats
from openclaw.scheduler.hooks import HookTurn, Wake, wrapped
from openclaw.scheduler.turns import ScheduledTurn, ScheduledTurns, TurnOutcome, said_nothing
from openclaw.sessions.keys import SessionRef, canonical_key, kind_of
from openclaw.storage import faults
from openclaw.storage.disk_errors import until_written
from openclaw.storage.documents import SharedDocument

log = logging.getLogger("openclaw.hooks")

FILE_NAME = "hook-runs.json"
MOST_UNDER_WAY = 100
LOOKS, LOOK_S = 60, 0.5
"""How often and how far apart it is looked whether another node has accepted a turn."""


class TooManyRuns(Exception):
    """As many turns of webhooks are under way as there may be."""


class HookUnderWay(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A turn whose result is to be told."""

    name: str
    agent_id: str
    session_key: str
    deliver: bool = True
    channel: str = "last"
    to: str | None = None
    wake_mode: str = "now"


class HookRuns:
    def __init__(self, turns: ScheduledTurns, heartbeats: Heartbeats) -> None:
        self._turns = turns
        self._heartbeats = heartbeats
        self._runtime = turns.runtime
        self._under_way: SharedDocument[dict[str, HookUnderWay]] = SharedDocument(
            self._runtime.documents,
            FILE_NAME,
            dict,
            lambda data: msgspec.json.decode(data, type=dict[str, HookUnderWay]),
            msgspec.json.encode,
            damaged="drop",
            consequence="results of webhooks may not be told",
        )
        self._running = False
        self._following: set[str] = set()
        self._accepting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._running = True
        await self.follow_new()

    async def follow_new(self) -> None:
        """Follows the turns that nobody follows yet, also those that another node accepted."""
        for run_id in [one for one in await self._under_way.current() if one not in self._following]:
            self._follow(run_id)

    async def stop(self) -> None:
        self._running = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wake(self, wake: Wake, run_ids: list[str]) -> None:
        """Tells the main session of the default agent, once for each event. It is on disk when this returns."""
        agent_id = self._turns.agent(None)
        notes, key = self._runtime.notes, self._turns.main_session(agent_id).key
        if not any(map(notes.knows, run_ids)) and notes.put(key, wake.text, id=run_ids[0], wake=wake.mode == "now"):
            await notes.synced()
            if wake.mode == "now":
                self._heartbeats.request(agent_id, "hook:wake")

    async def run(self, run: HookTurn, run_ids: list[str]) -> str:
        """Accepts a turn and returns its run id, that of the first call when the event has come before.

        Raises ``TooManyRuns``, and ``OSError`` when it cannot be kept.
        """
        async with self._accepting:
            for known in run_ids:
                if await self._runtime.ledger.by_run(known) is not None:
                    return known
            run_id, session = run_ids[0], self._session(run, run_ids[0])
            under_way = HookUnderWay(
                name=disarmed(run.name),
                agent_id=session.agent_id,
                session_key=session.key,
                deliver=run.deliver,
                channel=run.channel,
                to=run.to,
                wake_mode=run.wake_mode,
            )

            def note(runs: dict[str, HookUnderWay]) -> None:
                if len(runs) >= MOST_UNDER_WAY:
                    raise TooManyRuns
                runs[run_id] = under_way

            await self._under_way.change(note)
            faults.point("hook.marked")
            try:
                refused = await self._turns.begin(self._turn(run, run_id, session))
            except Exception:
                # The sender is told that it failed. A note that stays is taken off at the next start.
                with contextlib.suppress(OSError):
                    await self._under_way.change(lambda runs: runs.pop(run_id, None))
                raise
        if refused is not None:
            await self._told(run_id, refused)
        elif self._running or self._runtime.claims.alone:
            self._follow(run_id)
        return run_id

    def _session(self, run: HookTurn, run_id: str) -> SessionRef:
        agent_id, session = self._turns.agent(run.agent_id), self._turns.config.session
        wanted = run.session_key or f"hook:{uuid.uuid5(uuid.UUID(run_id), 'session key')}"
        key = canonical_key(wanted, default_agent=agent_id, main_key=session.main_key, scope=session.scope)
        return SessionRef(key.split(":")[1] if key.startswith("agent:") else agent_id, key)

    def _turn(self, run: HookTurn, run_id: str, session: SessionRef) -> ScheduledTurn:
        received = iso_utc(self._runtime.clock.now_ms())
        return ScheduledTurn(
            run_id=run_id,
            session=session,
            source="hook",
            prompt=wrapped(run, run_id, received, self._turns.current_time()),
            label=f"Hook: {disarmed(run.name)}"[:64],
            # A session that the configuration shares with a chat goes on; those of webhooks begin anew.
            fresh=kind_of(session.key) == "hook",
            model=run.model,
            thinking=parse_level(run.thinking) if run.thinking else None,
            timeout_seconds=run.timeout_seconds,
        )

    def _follow(self, run_id: str) -> None:
        async def follow() -> None:
            if not await self._was_accepted(run_id):
                await self._forget(run_id)  # Its sender knows that.
                return
            await self._told(run_id, await self._turns.ended(run_id))

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._following.discard(run_id)

        self._following.add(run_id)
        task = asyncio.create_task(follow(), name=f"hook {run_id}")
        self._tasks.add(task)
        task.add_done_callback(over)

    async def _was_accepted(self, run_id: str) -> bool:
        """Whether the turn is in the ledger. Another node may be about to accept it."""
        looks = 1 if self._runtime.claims.alone else LOOKS
        for look in range(looks):
            if await self._runtime.ledger.by_run(run_id) is not None:
                return True
            if look + 1 < looks:
                await self._runtime.clock.sleep(LOOK_S)
                if run_id not in await self._under_way.current():
                    return False
        return False

    async def _told(self, run_id: str, outcome: TurnOutcome) -> None:
        """Delivers the answer, and tells the agent's main session in one line."""
        run = (await until_written(self._under_way.current, self._runtime.clock.sleep)).get(run_id)
        if run is None:
            return
        faults.point("hook.ended")
        error = outcome.error
        if run.deliver and outcome.status == "ok" and not said_nothing(outcome):
            target = await self._turns.target(run.agent_id, run.channel, run.to)
            if target.problem:
                log.info("the answer to webhook %s is not delivered: %s", run_id, target.problem)
            elif not await self._turns.already_sent(outcome.row, target.route):
                session = SessionRef(run.agent_id, run.session_key)
                await self._turns.announce(
                    run_id, "announce", session, outcome.session_id, target.route, outcome.text, "hook", outcome.files
                )
        main = self._turns.main_session(run.agent_id)
        if outcome.text or error:
            text = f"Hook {run.name} (error): {error}" if error else f"Hook {run.name}: {outcome.summary}"
            notes, now = self._runtime.notes, run.wake_mode == "now"
            new = notes.put(main.key, text, id=str(uuid.uuid5(uuid.UUID(run_id), "told")), wake=now)
            await until_written(notes.synced, self._runtime.clock.sleep)
            faults.point("hook.told")
            if new and now:
                self._heartbeats.request(run.agent_id, f"hook:{run_id}")
        await self._forget(run_id)

    async def _forget(self, run_id: str) -> None:
        def forget() -> Awaitable[object]:
            return self._under_way.change(lambda runs: runs.pop(run_id, None))

        await until_written(forget, self._runtime.clock.sleep)
