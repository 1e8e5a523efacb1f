"""Turns that nobody in a chat asked for: of a scheduled job, a webhook or a heartbeat. They begin and end here.

Every step has a run id that is made from the run id before it. So a step that is repeated after a crash finds what it
had done: the ledger takes each id once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.config.agents import agent_ids, default_agent_id, user_zone
from openclaw.config.schema import Config
from openclaw.inbound.incoming import Facts, Incoming
from openclaw.inbound.notices import Notices
from openclaw.inbound.pipeline import Blocked, Pipeline
from openclaw.messages import NO_ROUTE, Route
from openclaw.outbound.reply import MediaRef
from openclaw.outbound.reply_files import Files
from openclaw.paths import normalize_agent_id
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.runs.reasons import reason_text
from openclaw.runs.runs import Runs
from openclaw.sessions.entry import BLOCKED, SessionEntry, last_route, normalize_channel
from openclaw.sessions.keys import SessionRef, main_session_key
from openclaw.sessions.reset import rotated_entry
from openclaw.storage import faults
from openclaw.storage.message_ledger import END_STATES, Accept, LedgerRow, MessageBody, ReasonCode
from openclaw.storage.session_query import SessionQuery
from openclaw.text import clipped

INTERNAL_ROUTE = Route(channel="internal")
LONGEST_SUMMARY = 2000
LOOK_AGAIN_S = 10.0
"""A wait for a run looks into the ledger again after this long. Another node may run it and go away."""
MOST_CHATS = 200
"""The owner's chat is looked for among this many of the newest sessions."""
_KEPT_SETTINGS = (
    *("thinkingLevel", "verboseLevel", "reasoningLevel", "providerOverride", "modelOverride", "authProfileOverride"),
    *("modelProvider", "model", "contextTokens"),
)
"""What the next run of a job takes over from the session of the last one."""

Status = Literal["ok", "error", "skipped"]
Reach = Callable[[str, str, str | None], str | None]
"""Says why nobody can be reached at this address of this channel and account, or None."""


class ScheduledTurn(msgspec.Struct, kw_only=True):
    """One turn in a session of its own, or in one that the configuration names."""

    run_id: str
    session: SessionRef
    source: Literal["cron", "hook", "heartbeat"]
    prompt: str
    label: str = ""
    fresh: bool = True
    """The session key gets a new session for this run."""
    internal: bool = False
    """The Gateway wrote the prompt, and no client shows it."""
    model: str | None = None
    thinking: str | None = None
    timeout_seconds: int | float | None = None
    scheduled_by: str = ""
    """The session that asked for it, if others than the owner speak there. Its rights are the turn's rights."""


class TurnOutcome(msgspec.Struct, kw_only=True):
    status: Status
    error: str = ""
    text: str = ""
    """What the agent said. Empty when it said nothing."""
    files: tuple[MediaRef, ...] = ()
    """The files that go with it."""
    session_id: str = ""
    session_key: str = ""
    row: LedgerRow | None = None

    @property
    def summary(self) -> str:
        return clipped(self.text, LONGEST_SUMMARY)


class AnnounceTarget(msgspec.Struct, kw_only=True):
    """Where an answer is announced, or the problem that there is nowhere."""

    route: Route = NO_ROUTE
    problem: str = ""


class ScheduledTurns:
    """Runs such turns to their end and announces what came of them. Heartbeats, jobs and webhooks share it."""

    def __init__(self, runtime: Runtime, runs: Runs, pipeline: Pipeline, notices: Notices, reach: Reach) -> None:
        self.runtime = runtime
        self.runs = runs
        self._pipeline = pipeline
        self._notices = notices
        self._reach = reach

    @property
    def config(self) -> Config:
        return self.runtime.config.current

    def agent(self, agent_id: str | None) -> str:
        """Return the agent that is meant. An unknown one is the default one."""
        requested = normalize_agent_id(agent_id) if agent_id else ""
        return requested if requested in agent_ids(self.config) else default_agent_id(self.config)

    def main_session(self, agent_id: str) -> SessionRef:
        session = self.config.session
        return SessionRef(agent_id, main_session_key(agent_id, main_key=session.main_key, scope=session.scope))

    # A turn

    async def begin(self, turn: ScheduledTurn) -> TurnOutcome | None:
        """Accept the turn. Returns an outcome only when it is not run. A turn that was accepted before goes on."""
        if await self.runtime.stores.ledger.by_run(turn.run_id) is not None:
            return None
        session = turn.session
        if turn.fresh:
            await self._fresh_session(turn)
        message = Incoming(
            facts=Facts(session=session, channel="internal"),
            text=turn.prompt,
            door="program",
            run_id=turn.run_id,
            source=turn.source,
            route=INTERNAL_ROUTE,
            reads_commands=False,
            body=MessageBody(
                internal=turn.internal,
                model=turn.model,
                thinking=turn.thinking,
                timeout_seconds=turn.timeout_seconds,
                guest=bool(turn.scheduled_by) or turn.source == "hook",
            ),
            queue=QueueOverrides(mode="followup"),
            entry_fields={"label": turn.label} if turn.label else {},
        )
        if isinstance(await self._pipeline.process(message), Blocked):
            return TurnOutcome(status="skipped", error=BLOCKED, session_key=session.key)
        faults.point(f"{turn.source}.accepted")
        return None

    async def ended(self, run_id: str) -> TurnOutcome:
        """Wait for the end of a turn that was accepted."""
        while (row := await self.runtime.stores.ledger.by_run(run_id)) is not None and row.state not in END_STATES:
            await self.runs.index.wait(run_id, LOOK_AGAIN_S)
        if row is None:
            return TurnOutcome(status="error", error="the run is no longer known")
        result = row.result or {}
        files = msgspec.convert(result.get("files") or {}, Files)
        outcome = TurnOutcome(
            status="ok" if row.state in ("answered", "silent") else "error",
            text=files.under(str(result.get("text") or "")),
            files=files.media,
            session_id=str(result.get("sessionId") or row.session_id),
            session_key=row.session_key,
            row=row,
        )
        if outcome.status == "error":
            outcome.error = reason_text(row.reason) or row.state
        return outcome

    async def run(self, turn: ScheduledTurn) -> TurnOutcome:
        return await self.begin(turn) or await self.ended(turn.run_id)

    async def _fresh_session(self, turn: ScheduledTurn) -> None:
        """Give the key a new session whose id follows from the run, so that a repeated step makes the same one."""
        session, made = turn.session, str(uuid.uuid5(uuid.UUID(turn.run_id), "session"))
        now = self.runtime.clock.now_ms()

        def change(current: SessionEntry | None) -> SessionEntry:
            if current is not None and current["sessionId"] == made:
                return current
            entry: dict[str, Any] = dict(rotated_entry(current, now, "cron"))
            entry |= {name: current[name] for name in _KEPT_SETTINGS if name in current} if current else {}
            entry["sessionId"] = made
            if turn.label:
                entry["label"] = turn.label
            if turn.scheduled_by:
                entry["spawnedBy"] = turn.scheduled_by
            return cast("SessionEntry", entry)

        entry = await self.runtime.stores.sessions.update(session.agent_id, session.key, change)
        if turn.source == "cron" and not turn.scheduled_by and entry is not None:
            alias = f"{session.key}:run:{made}"
            whole: dict[str, Any] = dict(entry)
            copied = {name: whole[name] for name in ("sessionId", "updatedAt", "label") if name in whole}
            await self.runtime.stores.sessions.update(
                session.agent_id, alias, lambda _: cast("SessionEntry", copied), durable=False
            )

    # What comes of it

    async def target(
        self, agent_id: str, channel: str | None, to: str | None, account: str | None = None
    ) -> AnnounceTarget:
        """Where an answer goes: to the address given, else where the agent's main session was last written from."""
        last = await self._last_route(agent_id)
        named = normalize_channel(channel) or "last"
        if named == "last":
            named = last.channel
        if named == last.channel and (not to or to.strip() == last.to):
            route = msgspec.structs.replace(last, account_id=account or last.account_id)
        else:
            route = Route(channel=named, to=(to or "").strip(), account_id=account or None)
        if not route.is_delivered:
            return AnnounceTarget(
                problem="delivery target is missing: no chat is known to send to; name a channel and a recipient"
            )
        if problem := self._reach(named, route.to, route.account_id):
            return AnnounceTarget(problem=problem)
        return AnnounceTarget(route=route)

    async def _last_route(self, agent_id: str) -> Route:
        """Return the last route of the main session, or else of the chat in which the owner wrote last.

        With a ``session.dmScope`` other than ``main``, nobody writes to the main session on a channel.
        """
        main = self.main_session(agent_id)
        entry = await self.runtime.stores.sessions.get(main.agent_id, main.key)
        last = last_route(entry)
        if not last.is_delivered:
            newest = SessionQuery(agent_id=main.agent_id, aliases=False, limit=MOST_CHATS)
            owned = [
                row.entry
                for row in (await self.runtime.stores.sessions.select(newest)).rows
                if row.entry.get("ownerChat")
            ]
            routes = (last_route(entry) for entry in owned)
            return next((route for route in routes if route.is_delivered), last)
        return last

    async def announce(
        self,
        run_id: str,
        step: str,
        session: SessionRef,
        session_id: str,
        route: Route,
        text: str,
        source: str,
        files: Sequence[MediaRef] = (),
    ) -> bool:
        """Hand a text to the outbox, exactly once for this step of this run.

        Returns False if the send policy does not let it out.
        """
        accept = Accept(
            run_id=str(uuid.uuid5(uuid.UUID(run_id), step)),
            dedupe_key="",
            agent_id=session.agent_id,
            session_key=session.key,
            session_id=session_id,
            source=source,
            route=route,
            body=MessageBody(text=text),
        )
        row, _ = await self._notices.post(accept, [text], files, result={"text": text})
        faults.point(f"{source}.announced")
        return row.reason.code is not ReasonCode.SEND_POLICY

    async def already_sent(self, row: LedgerRow | None, route: Route) -> bool:
        """Return whether the run itself has sent something to the same place with the ``message`` tool."""
        for call in await self.runtime.stores.ledger.tool_calls(row.id) if row is not None else []:
            if call.name != "message" or not call.ok:
                continue
            value = msgspec.json.decode(call.arguments)
            if isinstance(value, dict) and value.get("action") not in (None, "send", "reply"):
                continue
            to = str(value.get("to") or value.get("target") or "") if isinstance(value, dict) else ""
            if not to or to == route.to:
                return True
        return False

    def current_time(self) -> str:
        """Return the line that tells a turn without a person's message what time it is."""
        zone = user_zone(self.config)
        moment = datetime.fromtimestamp(self.runtime.clock.now_ms() / 1000, zone).astimezone(zone)
        return f"Current time: {moment:%A, %B %d, %Y, %H:%M} ({moment:%Z})"


def has_no_reply(outcome: TurnOutcome) -> bool:
    """Return whether the agent had nothing to tell: it was silent, or ended without a word."""
    row = outcome.row
    return not (outcome.text or outcome.files) or (row is not None and row.reason.code is ReasonCode.NO_WORDS)
