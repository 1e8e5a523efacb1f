"""Heartbeats: turns in which an agent looks after what HEARTBEAT.md lists, and speaks only when something needs it.

A heartbeat runs in the agent's main session and leaves the settings and the activity of that session alone. Its prompt
is the Gateway's own, so no client shows it. ``SilenceGate`` in ``outbound/silence.py`` takes the token of silence out
of its answer, and ``has_no_reply`` in ``scheduler/turns.py`` tells whether anything is left. Work under way is
in ``heartbeat.json``; a Gateway that dies goes on with it, and an alert is delivered once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from openclaw.clock import named_zone, wait_within
from openclaw.cluster.claims import SCHEDULER
from openclaw.config.agents import (
    agent_ids,
    heartbeat_agents,
    heartbeat_config,
    heartbeat_ms,
    user_zone,
    workspace_dir,
)
from openclaw.config.channels import heartbeat_visibility
from openclaw.config.schema import Config
from openclaw.config.schema.agents import ActiveHours, Heartbeat
from openclaw.config.schema.channels import HeartbeatVisibility
from openclaw.messages import Route
from openclaw.protocol.result import Result
from openclaw.scheduler.turns import AnnounceTarget, ScheduledTurn, ScheduledTurns, TurnOutcome, has_no_reply
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, canonical_key
from openclaw.storage import faults
from openclaw.storage.disk_errors import until_written
from openclaw.storage.documents import SharedDocument
from openclaw.storage.message_ledger import ReasonCode
from openclaw.text import clipped

log = logging.getLogger("openclaw.heartbeat")

FILE_NAME = "heartbeat.json"
PROMPT = (
    "If the workspace has a HEARTBEAT.md, read it and do what it says, no more. "
    "When nothing needs attention, answer HEARTBEAT_OK."
)
EVENT_PROMPT = (
    "The system messages above report what has just happened or what was to be remembered now. Tell the person what "
    "concerns them, in a friendly sentence or two. When nothing concerns them, answer HEARTBEAT_OK."
)
NOTHING_NEW = "💓 Nothing needs attention."
"""What ``showOk`` delivers."""
COALESCE_S = 0.25
BUSY_S = 1.0
"""A heartbeat that found its session busy is tried again after this long."""
PATIENCE_S = 120.0
"""A scheduled job waits this long for a busy session."""
LONGEST_SLEEP_S = 60.0
DAY_MS = 86_400_000
LONGEST_PREVIEW = 200
MAX_FILE = 1_000_000
MOST_UNSAVED = 100
_EMPTY_LINE = re.compile(r"(?:#+(?:\s.*)?|[-*+](?:\s*\[[ xX]?\])?|<!--.*-->)?")


class Beat(msgspec.Struct, frozen=True):
    """What became of one heartbeat."""

    status: Literal["ran", "skipped", "failed"]
    reason: str = ""


class HeartbeatReport(Result, kw_only=True):
    """The end of a heartbeat, as clients get it."""

    ts: int | None = None
    """Set when it is published."""
    status: str
    reason: str = ""
    preview: str = ""
    to: str = ""
    channel: str = ""
    account_id: str | None = None
    duration_ms: int | None = None
    silent: bool | None = None
    indicator_type: Literal["", "ok", "alert", "error"] = ""


class HeartbeatUnderWay(msgspec.Struct, kw_only=True, rename="camel"):
    run_id: str
    agent_id: str
    reason: str
    started_at: int


class _State(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    enabled: bool = True
    last: HeartbeatReport | None = None
    """The last event."""
    last_at: dict[str, int] = {}
    """When the last regular heartbeat of each agent was."""
    under_way: dict[str, HeartbeatUnderWay] = {}
    """The heartbeats that have begun and whose answer is not dealt with, by run id."""


class Heartbeats:
    """Runs the heartbeats of all agents: when they are due, and soon after something asks for one."""

    def __init__(self, turns: ScheduledTurns, publish: Callable[[HeartbeatReport], None]) -> None:
        self._turns = turns
        self._publish = publish
        self._runtime = turns.runtime
        self._document: SharedDocument[_State] = SharedDocument(
            self._runtime.stores.documents,
            FILE_NAME,
            _State,
            lambda data: msgspec.json.decode(data, type=_State),
            msgspec.json.encode,
            damaged="drop",
            consequence="heartbeats start over",
        )
        self._unsaved: list[Callable[[_State], object]] = []
        """Changes that the disk did not take. They are made again with the next one."""
        self._set_back: dict[str, int] = {}
        """When the clock was set back to before the last heartbeat of an agent."""
        self._running = False
        self._heard_of: list[str] = []
        """The ids of the notes that this node knows of."""
        self._requested: dict[str, str] = {}
        """Agents that are to be woken soon, each with the reason."""
        self._beating: set[str] = set()
        """Agents whose heartbeat is under way."""
        self._woken = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resumed: dict[str, list[asyncio.Task[Any]]] = {}
        """The heartbeats that an earlier process began, by agent, until the start is over."""
        self._started_at = self._runtime.clock.now_ms()

    # Start and stop

    @property
    def _state(self) -> _State:
        return self._document.value

    async def load(self) -> None:
        await self._document.current()

    async def start(self) -> None:
        await self.load()
        self._started_at = self._runtime.clock.now_ms()
        self._running, self._heard_of = True, self._runtime.notes.waking_ids()
        for beat in list(self._state.under_way.values()):
            if await self._runtime.stores.ledger.by_run(beat.run_id) is None:
                await self._forget(beat)  # It was never accepted, so nothing has happened.
            else:
                resumed = self._spawn(self._ended(beat), f"heartbeat {beat.run_id}")
                self._resumed.setdefault(beat.agent_id, []).append(resumed)
        self._spawn(self._beat_repeatedly(), "heartbeat")

    def wake_for_left(self, besides: Collection[str] = ()) -> None:
        """Wake the agents that an earlier process was to wake. ``besides``: the notes that somebody else sees to."""
        for agent_id, key in self._to_wake(besides):
            self._spawn(self._wake_if_left(agent_id, key, besides), f"wake {agent_id}")

    def wake_for_new(self) -> None:
        """Wake the agents that another node wants to be woken."""
        for agent_id, _ in self._to_wake(self._heard_of):
            self.request(agent_id, "wake")
        self._heard_of = self._runtime.notes.waking_ids()

    def _to_wake(self, besides: Collection[str]) -> list[tuple[str, str]]:
        """Return the agents in whose sessions a note waits that wakes them, and the keys of these sessions."""
        waking, agents = self._runtime.notes.waking(besides), agent_ids(self._turns.config)
        return [(agent_id, key) for key in waking for agent_id in agents if self.session(agent_id).key == key]

    async def _wake_if_left(self, agent_id: str, key: str, besides: Collection[str]) -> None:
        """A heartbeat that goes on tells the agent what waits. A second one would have nothing to tell."""
        if resumed := self._resumed.pop(agent_id, None):
            await asyncio.wait(resumed)
        if key in self._runtime.notes.waking(besides):
            self.request(agent_id, "wake")

    async def stop(self) -> None:
        self._running = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for remaining in (self._beating, self._requested, self._resumed):
            remaining.clear()

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _beat_repeatedly(self) -> None:
        while True:
            waiting = [agent_id for agent_id in heartbeat_agents(self._turns.config) if agent_id not in self._beating]
            pause = min([LONGEST_SLEEP_S, *map(self._until_due, waiting)])
            if await wait_within(self._woken, max(pause, 0.01), self._runtime.clock):
                # Several events that come together wake the agent once.
                await self._runtime.clock.sleep(COALESCE_S)
            self._woken.clear()
            due = {
                agent_id: "interval"
                for agent_id in heartbeat_agents(self._turns.config)
                if self._until_due(agent_id) <= 0
            }
            for agent_id, reason in {**due, **self._requested}.items():
                if agent_id not in self._beating:
                    self._requested.pop(agent_id, None)
                    self._beating.add(agent_id)
                    self._spawn(self._beat(agent_id, reason), f"heartbeat of {agent_id}")

    async def _beat(self, agent_id: str, reason: str) -> None:
        """Runs one heartbeat that is due or was asked for. One that finds its session busy comes again soon."""
        try:
            beat = await self.run(agent_id, reason)
            if beat.reason == "requests-in-flight":
                await self._runtime.clock.sleep(BUSY_S)
                self._requested.setdefault(agent_id, reason)
        except Exception:
            log.exception("the heartbeat of %s failed inside the Gateway", agent_id)
        finally:
            self._beating.discard(agent_id)
            self._woken.set()

    def _until_due(self, agent_id: str) -> float:
        """Return the seconds until the agent's next regular heartbeat."""
        every, now = heartbeat_ms(self._turns.config, agent_id), self._runtime.clock.now_ms()
        if not every or not self._state.enabled:
            return LONGEST_SLEEP_S
        last = self._state.last_at.get(agent_id, self._started_at)
        if last > now:  # The clock was set back.
            last = self._set_back[agent_id] = min(now, self._set_back.get(agent_id, now))
        return (last + every - now) / 1000

    # What the configuration says

    def settings(self, agent_id: str) -> Heartbeat:
        return heartbeat_config(self._turns.config, agent_id)

    def session(self, agent_id: str) -> SessionRef:
        """Return the session in which the agent's heartbeats run."""
        config, requested = self._turns.config, self.settings(agent_id).session.strip().lower()
        if requested in ("", "main", "global"):
            return self._turns.main_session(agent_id)
        key = canonical_key(
            requested, default_agent=agent_id, main_key=config.session.main_key, scope=config.session.scope
        )
        return SessionRef(agent_id, key)

    # What clients ask for

    @property
    def enabled(self) -> bool:
        return self._state.enabled

    @property
    def last(self) -> HeartbeatReport | None:
        return self._state.last

    async def enable(self, enabled: bool) -> None:
        def switch(state: _State) -> None:
            state.enabled = enabled

        await self._change(switch)
        self._woken.set()

    def request(self, agent_id: str, reason: str) -> None:
        """Ask for a heartbeat soon. Requests that come together are one.

        Another node may run the heartbeats. It hears of the note that the agent is to be told of, and wakes it.
        """
        if self._running or self._runtime.stores.claims.owns(SCHEDULER):
            self._requested[agent_id] = reason
            self._woken.set()

    # One heartbeat

    async def run_when_idle(self, agent_id: str, reason: str, run_id: str) -> Beat:
        """Runs a heartbeat as soon as the session is idle. ``run_id`` is that of whoever asks, for whom it runs once.

        A session that stays busy is woken later, and the caller need not wait for it.
        """
        own = str(uuid.uuid5(uuid.UUID(run_id), "heartbeat"))
        if await self._runtime.stores.ledger.by_run(own) is not None:
            # An earlier process began it, and ``start`` deals with its answer.
            outcome = await self._turns.ended(own)
            return Beat("failed", outcome.error) if outcome.status == "error" else Beat("ran")
        deadline = self._runtime.clock.monotonic() + PATIENCE_S
        while True:
            beat = await self.run(agent_id, reason, own)
            if beat.reason != "requests-in-flight":
                return beat
            if self._runtime.clock.monotonic() >= deadline:
                self.request(agent_id, reason)
                return Beat("ran")
            await self._runtime.clock.sleep(COALESCE_S)

    async def run(self, agent_id: str, reason: str, run_id: str | None = None) -> Beat:
        """Runs a heartbeat now, unless something speaks against it."""
        skipped = await self._skip_reason(agent_id, reason)
        if reason == "interval" and skipped != "requests-in-flight":
            at = self._runtime.clock.now_ms()
            await self._change(lambda state: state.last_at.update({agent_id: at}))
        if skipped:
            if skipped not in ("requests-in-flight", "disabled"):
                await self._publish_event(HeartbeatReport(status="skipped", reason=skipped))
            return Beat("skipped", skipped)
        settings, session = self.settings(agent_id), self.session(agent_id)
        now = self._runtime.clock.now_ms()
        beat = HeartbeatUnderWay(run_id=run_id or str(uuid.uuid4()), agent_id=agent_id, reason=reason, started_at=now)
        await self._change(lambda state: state.under_way.update({beat.run_id: beat}))
        faults.point("heartbeat.marked")
        prompt = settings.prompt or PROMPT
        if reason != "interval" and self._runtime.notes.peek(session.key):
            prompt = f"{EVENT_PROMPT}\n\n{prompt}" if settings.prompt else EVENT_PROMPT
        turn = ScheduledTurn(
            run_id=beat.run_id,
            session=session,
            source="heartbeat",
            prompt=f"{prompt}\n{self._turns.current_time()}",
            fresh=False,
            internal=True,
            model=settings.model or None,
        )
        if (refused := await self._turns.begin(turn)) is not None:
            await self._forget(beat)
            await self._publish_event(HeartbeatReport(status="skipped", reason=refused.error))
            return Beat("skipped", refused.error)
        return await self._ended(beat)

    async def _skip_reason(self, agent_id: str, reason: str) -> str:
        """Return the first reason against a heartbeat now, or an empty string."""
        config = self._turns.config
        settings = self.settings(agent_id)
        if (
            not self._state.enabled
            or agent_id not in heartbeat_agents(self._turns.config)
            or not heartbeat_ms(self._turns.config, agent_id)
        ):
            return "disabled"
        if not within_hours(settings.active_hours, config, self._runtime.clock.now_ms()):
            return "quiet-hours"
        if self._turns.runs.occupied(self.session(agent_id).key):
            return "requests-in-flight"
        if reason == "interval" and not self._runtime.notes.peek(self.session(agent_id).key):
            path = workspace_dir(config, self._runtime.state_dir, agent_id) / "HEARTBEAT.md"
            if await asyncio.to_thread(is_empty_file, path) or await self._is_unused(agent_id, settings, path):
                return "empty-heartbeat-file"
        target = await self._target(agent_id)
        shown = heartbeat_visibility(config, target.route.channel, target.route.account_id)
        if not (shown.show_ok or shown.show_alerts or shown.use_indicator):
            return "alerts-disabled"
        return ""

    async def _is_unused(self, agent_id: str, settings: Heartbeat, path: Path) -> bool:
        """Whether nobody has talked to the agent, listed anything or configured heartbeats. Then none is paid for."""
        session = self.session(agent_id)
        talked = await self._runtime.stores.sessions.get(session.agent_id, session.key) is not None
        return not talked and settings == Heartbeat() and not await asyncio.to_thread(path.exists)

    async def _target(self, agent_id: str) -> AnnounceTarget:
        settings = self.settings(agent_id)
        if settings.target.strip().lower() == "none":
            return AnnounceTarget(problem="target-none")
        return await self._turns.target(agent_id, settings.target, settings.to, settings.account_id)

    async def _ended(self, beat: HeartbeatUnderWay) -> Beat:
        """Wait for the end of a heartbeat's turn and deal with its answer. A full disk is waited out."""
        outcome = await self._turns.ended(beat.run_id)
        return await until_written(lambda: self._finish(beat, outcome), self._runtime.clock.sleep)

    async def _finish(self, beat: HeartbeatUnderWay, outcome: TurnOutcome) -> Beat:
        """Decide what is delivered of a heartbeat's answer, delivers it, and notify everybody."""
        faults.point("heartbeat.ended")
        config, session = self._turns.config, self.session(beat.agent_id)
        target = await self._target(beat.agent_id)
        route = target.route
        shown = heartbeat_visibility(config, route.channel, route.account_id)
        duration_ms = max(0, self._runtime.clock.now_ms() - beat.started_at)
        if outcome.status == "error":
            event = HeartbeatReport(status="failed", reason=outcome.error, indicator_type="error")
        elif has_no_reply(outcome):
            empty = outcome.row is not None and outcome.row.reason.code is ReasonCode.NO_WORDS
            event = HeartbeatReport(
                status="ok-empty" if empty else "ok-token",
                reason=beat.reason,
                indicator_type="ok",
                silent=not (shown.show_ok and route.channel),
            )
            if shown.show_ok and route.channel:
                await self._deliver(beat, session, outcome, route, NOTHING_NEW)
        else:
            event = await self._alert(beat, session, outcome, target, shown)
        if not shown.use_indicator:
            event.indicator_type = ""
        event.channel, event.account_id, event.duration_ms = route.channel, route.account_id, duration_ms
        await self._forget(beat)
        await self._publish_event(event)
        return Beat("failed", outcome.error) if event.status == "failed" else Beat("ran")

    async def _alert(
        self,
        beat: HeartbeatUnderWay,
        session: SessionRef,
        outcome: TurnOutcome,
        target: AnnounceTarget,
        shown: HeartbeatVisibility,
    ) -> HeartbeatReport:
        text, route = outcome.text, target.route
        event = HeartbeatReport(status="skipped", preview=clipped(text, LONGEST_PREVIEW), indicator_type="alert")
        main = self._turns.main_session(beat.agent_id)
        entry: dict[str, Any] = dict(await self._runtime.stores.sessions.get(main.agent_id, main.key) or {})
        sent_at = entry.get("lastHeartbeatSentAt")
        mine = entry.get("lastHeartbeatRun") == beat.run_id
        recent = isinstance(sent_at, int | float) and beat.started_at - sent_at < DAY_MS
        if entry.get("lastHeartbeatText") == text and recent and not mine:
            return replace(event, reason="duplicate")
        if not route.channel:
            reason = "target-none" if target.problem == "target-none" else "no-target"
            return replace(event, reason=reason)
        if not shown.show_alerts:
            return replace(event, reason="alerts-disabled")
        direct = str(entry.get("chatType") or "direct") == "direct"
        if direct and self.settings(beat.agent_id).direct_policy == "block":
            return replace(event, reason="dm-blocked")
        if not await self._deliver(beat, session, outcome, route, text):
            return replace(event, reason="send-policy")

        def remember(current: SessionEntry | None) -> SessionEntry | None:
            if current is None:
                return None
            noted = {"lastHeartbeatText": text, "lastHeartbeatSentAt": beat.started_at, "lastHeartbeatRun": beat.run_id}
            return cast("SessionEntry", {**current, **noted})

        await self._runtime.stores.sessions.update(main.agent_id, main.key, remember)
        return replace(event, status="sent", to=route.to, reason=beat.reason)

    async def _deliver(
        self, beat: HeartbeatUnderWay, session: SessionRef, outcome: TurnOutcome, route: Route, text: str
    ) -> bool:
        """Return False if the send policy does not let the text out."""
        files = outcome.files if text == outcome.text else ()
        return await self._turns.announce(
            beat.run_id, "deliver", session, outcome.session_id, route, text, "heartbeat", files
        )

    async def _publish_event(self, event: HeartbeatReport) -> None:
        event.ts = self._runtime.clock.now_ms()

        def note(state: _State) -> None:
            state.last = event

        await self._change(note)
        self._publish(event)

    async def _forget(self, beat: HeartbeatUnderWay) -> None:
        await self._change(lambda state: state.under_way.pop(beat.run_id, None))

    async def _change(self, edit: Callable[[_State], object]) -> None:
        """Change the state. If the disk does not take it, it is kept in memory until the next change."""
        edits = [*self._unsaved, edit][-MOST_UNSAVED:]

        def apply(state: _State) -> None:
            for item in edits:
                item(state)

        try:
            await self._document.change(apply)
            self._unsaved = []
        except OSError as problem:
            log.error("%s cannot be written: %s", self._document.place, problem)
            self._unsaved = edits
            edit(self._document.value)


def within_hours(hours: ActiveHours, config: Config, now_ms: int) -> bool:
    """Return whether the time of day is within the active hours. The start belongs to them, the end does not."""
    start, end = _minutes(hours.start), _minutes(hours.end)
    if start is None or end is None or start == end:
        return True
    requested = (hours.timezone or "user").strip()
    zone = (
        user_zone(config)
        if requested.lower() == "user"
        else None
        if requested.lower() == "local"
        else named_zone(requested)
    )
    moment = datetime.fromtimestamp(now_ms / 1000, zone).astimezone(zone)
    minute = moment.hour * 60 + moment.minute
    return start <= minute < end if start < end else minute >= start or minute < end


def _minutes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d\d):(\d\d)", (text or "").strip())
    return int(match[1]) * 60 + int(match[2]) if match else None


def is_empty_file(path: Path) -> bool:
    """Whether HEARTBEAT.md lists nothing to do: only blank lines, headings and empty items. No file is not empty."""
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_FILE)
    except OSError:
        return False
    return all(
        _EMPTY_LINE.fullmatch(line.strip()) for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines()
    )
