"""The parts of a running Gateway in one record, and the services that run in the background.

Also here is what the process itself needs: fairness and lag of the event loop, a restart that the Gateway schedules
itself, and the presence list (``Presence``): the Gateway, connected clients, and machines that announced themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import re
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.config.agents import agent_ids, default_agent_id, main_key, main_session_key, user_zone
from openclaw.config.store import reload_action, write_private
from openclaw.gateway.auth.authorise import SharedSecret, same_secret, shared_secret
from openclaw.gateway.http.monitoring import Histogram
from openclaw.gateway.server.connection import TICK_INTERVAL_MS
from openclaw.gateway.server.server import Sockets
from openclaw.paths import sessions_dir
from openclaw.sessions.keys import SessionRef, canonical_key, shown_key
from openclaw.storage.base import Compressed
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files.newer_state import StateWatch

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.config.schema import Config
    from openclaw.gateway.auth.authorise import FailedAuthLimiter
    from openclaw.gateway.auth.devices import Devices
    from openclaw.gateway.channels import ChannelServices
    from openclaw.gateway.cluster.service import ClusterService, SchedulerService, SharedState
    from openclaw.gateway.http.control_ui import SignInTickets
    from openclaw.gateway.http.monitoring import DiskCheck, Health, Metrics
    from openclaw.gateway.methods.sessions import FolderImport
    from openclaw.gateway.nodes import Nodes
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.server.registry import MethodTable
    from openclaw.gateway.server.server import Route
    from openclaw.gateway.session_maintenance import Maintenance
    from openclaw.gateway.tls import ServerTls
    from openclaw.inbound.notices import Notices
    from openclaw.inbound.pairing import PairingStore
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.mcp.servers import McpServers
    from openclaw.runs.dispatcher import Dispatcher
    from openclaw.scheduler.cron import Cron
    from openclaw.scheduler.heartbeat import Heartbeats
    from openclaw.scheduler.hooks import HookRuns
    from openclaw.scheduler.turns import ScheduledTurns
    from openclaw.sessions.search import TranscriptSearch
    from openclaw.teamwork.team import Team
    from openclaw.tools.browser.browsers import Browsers
    from openclaw.tools.browser.tool import BrowserTool

log = logging.getLogger("openclaw.gateway")
restart_log = logging.getLogger("openclaw.gateway.reload")
T = TypeVar("T")
HEALTH_INTERVAL_S = 60.0
SEARCH_INTERVAL_S = 300.0
ARCHIVE_INTERVAL_S = 3600.0
MAINTENANCE_INTERVAL_S = 30.0
PRUNE_INTERVAL_S = 24 * 3600.0
FIRST_CLEANUP_S = 3.0
"""What is old is first compressed or removed this long after the start, so that the start is not slowed down."""
DAY_MS = 86_400_000
LEDGER_DAYS = 90
"""The ledger keeps a message for this many days after its end."""
STATE_INTERVAL_S = 30
"""How often the state folder is looked at for what others did to it."""
TLS_INTERVAL_S = 3600
"""How often it is looked whether the certificate was replaced or is about to expire."""
LAST_ANSWERS_S = 1.0
"""How long a connection whose secret was changed stays open for answers that are under way."""
PRESENCE_DELAY_S = 0.05
"""Presence changes are collected for this long, so that many connections at once cause one event."""
MOST_PER_PASS = 8
INTERVAL_S = 0.05
WINDOW = 1200
"""The number of samples for the percentiles: one minute."""
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
DEFAULT_DELAY_MS = 2000
MAX_DELAY_MS = 60_000
SENTINEL_NAME = "restart-sentinel.json"


@dataclass(kw_only=True, eq=False)
class Gateway:
    """Everything that methods and HTTP endpoints use. ``assemble.py`` builds it; stores are in ``runtime``."""

    runtime: Runtime
    """The stores, the configuration and the clock; runs share it."""
    environ: Mapping[str, str]
    methods: MethodTable
    routes: Sequence[Route]
    """The HTTP endpoints."""
    broadcaster: Broadcaster
    presence: Presence
    devices: Devices
    """Devices that are paired or ask to be."""
    nodes: Nodes
    """Machines that carry out commands."""
    pairing: PairingStore
    """Senders on channels that are paired or ask to be."""
    health: Health
    disk: DiskCheck
    auth_limiter: FailedAuthLimiter
    sign_in_tickets: SignInTickets
    """One-time tickets with which the web page signs in."""
    sockets: Sockets = field(default_factory=Sockets)
    """The open connections, of strangers and of known callers."""
    restart: Restart
    metrics: Metrics
    loop_lag: LoopLag
    loop_fairness: LoopFairness
    search: TranscriptSearch
    channel_services: ChannelServices = field(init=False)
    """The channels and the worker that delivers to them."""
    dispatcher: Dispatcher = field(init=False)
    """The runs under way."""
    maintenance: Maintenance = field(init=False)
    """Puts old sessions away."""
    notices: Notices = field(init=False)
    """What the Gateway itself says in chats."""
    cluster: ClusterService | None = None
    """This Gateway among the nodes that share its database. None with files."""
    pipeline: Pipeline = field(init=False)
    """The one way in for messages."""
    team: Team = field(init=False)
    """The sub-agents and the messages between sessions."""
    heartbeats: Heartbeats = field(init=False)
    cron: Cron = field(init=False)
    """The scheduled jobs."""
    hook_runs: HookRuns = field(init=False)
    """The turns of webhooks."""
    scheduler: SchedulerService = field(init=False)
    """Runs the three above while this node owns them."""
    shared_state: SharedState = field(init=False)
    """Takes in what other nodes change."""
    turns: ScheduledTurns = field(init=False)
    """How turns without a message begin and are announced."""
    browsers: Browsers = field(init=False)
    """The browsers that agents drive."""
    browser_tool: BrowserTool = field(init=False)
    mcp: McpServers = field(init=False)
    """The MCP servers whose tools the agents use."""
    folder_import: FolderImport | None = None
    """The import of another state folder that was begun last."""
    repairs: Repairs = field(default_factory=Repairs)
    """What the stores found damaged. ``tell_repairs`` tells the owner."""
    given_secret: SharedSecret | None = None
    """The secret from the command line. It wins over the configuration while this process runs."""
    owner_key: str = ""
    """The key in the lock file. A process that sends it runs as the Gateway's own user."""
    tls: ServerTls | None = None
    """The certificate, when the Gateway serves TLS."""
    started_at: int = field(init=False)
    port: int = 0
    ready: bool = False
    """Whether ``/readyz`` says yes. It is set once the services run."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop, so that HTTP requests that wait for a run get an answer."""
    calls: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    """Calls being answered. A call runs to its end even when its client has left."""

    def __post_init__(self) -> None:
        self.started_at = self.runtime.clock.now_ms()
        self._loop = asyncio.get_running_loop()
        self._services: list[asyncio.Task[None]] = []
        self._presence_told: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], object] = lambda: None
        transcripts = self.runtime.transcripts
        self.state_watch = StateWatch(self.runtime.state_dir, lambda agent: Path(transcripts.folder(agent)))

    # What the configuration says about sessions

    def main_session_key(self) -> str:
        config = self.runtime.config.current
        return main_session_key(config, default_agent_id(config))

    def agent_ids(self) -> list[str]:
        """The default agent first, then the other configured ones, then those that only have sessions left."""
        config = self.runtime.config.current
        return list(dict.fromkeys([default_agent_id(config), *agent_ids(config), *self.runtime.sessions.agent_ids]))

    def canonical_key(self, key: str | None) -> str:
        config = self.runtime.config.current
        return canonical_key(
            key, default_agent=default_agent_id(config), main_key=main_key(config), scope=config.session.scope
        )

    def session_defaults(self) -> dict[str, Any]:
        config = self.runtime.config.current
        return {
            "defaultAgentId": default_agent_id(config),
            "mainKey": main_key(config),
            "mainSessionKey": shown_key(self.canonical_key("main")),
            "scope": config.session.scope,
        }

    def user_zone(self) -> tzinfo | None:
        """The zone in which people read times. None means the machine's own zone."""
        return user_zone(self.runtime.config.current)

    def secret(self) -> SharedSecret:
        return self.given_secret or shared_secret(self.runtime.config.current, self.environ)

    def is_owner_process(self, key: str) -> bool:
        """Whether the caller can read the lock file. It still needs the secret; strangers cannot make it wait."""
        return bool(self.owner_key) and same_secret(key, self.owner_key)

    def transcript_folders(self) -> dict[str, list[Path]]:
        """The folders that hold each agent's transcripts: beside the session store, and the usual one."""
        transcripts, state_dir = self.runtime.transcripts, str(self.runtime.state_dir)
        return {
            agent: list(dict.fromkeys([Path(transcripts.folder(agent)), Path(sessions_dir(state_dir, agent))]))
            for agent in self.agent_ids()
        }

    # Clients

    def client_came(self, client: Client, scopes: Sequence[str]) -> None:
        info = client.client_info
        if info.mode == "cli":
            return
        client.presence_key = client.device_id or info.instance_id or client.conn_id
        entry: dict[str, Any] = {"host": info.display_name or info.id, "version": info.version}
        entry |= {"ip": None if client.is_local else client.ip, "platform": info.platform, "mode": info.mode}
        entry |= {"deviceFamily": info.device_family, "modelIdentifier": info.model_identifier}
        entry |= {"deviceId": client.device_id, "instanceId": info.instance_id}
        self.presence.connect(client.presence_key, {**entry, "roles": [client.role], "scopes": list(scopes)})
        self._publish_presence_soon()

    def client_left(self, client: Client) -> None:
        self.broadcaster.remove(client)
        self.nodes.connected.left(client.conn_id)
        if client.presence_key is not None:
            self.presence.disconnect(client.presence_key)
            self._publish_presence_soon()

    def end_device(self, device_id: str, role: str | None, reason: str, *, last: Client | None = None) -> None:
        """Closes the connections of a device, for one role or for all.

        ``last`` is the caller, whose own connection is closed once it has its answer.
        """
        for client in list(self.broadcaster.clients.values()):
            if client.device_id != device_id or role not in (None, client.role):
                continue
            if client is last:
                self.spawn(_close_after_answer(client, reason))
            else:
                client.close(1008, reason)

    def _end_old_secret(self, old: Config, new: Config, _changed: Sequence[str]) -> None:
        """Closes every connection that was let in by a secret which no longer counts.

        They may do nothing more from now on. What they asked before, also who changed the secret, is still answered.
        """
        before, now = shared_secret(old, self.environ), shared_secret(new, self.environ)
        if self.given_secret is not None or (before.mode, before.value) == (now.mode, now.value):
            return
        ended = [client for client in self.broadcaster.clients.values() if not client.by_device_token]
        for client in ended:
            client.scopes = client.rights = frozenset()
        if ended:
            reason = f"gateway {now.mode} changed; connect again with the new one"
            self.spawn(self._close_after_calls(ended, reason, set(self.calls)))

    async def _close_after_calls(self, clients: list[Client], reason: str, calls: set[asyncio.Task[Any]]) -> None:
        if calls:
            await asyncio.wait(calls, timeout=LAST_ANSWERS_S)
        for client in clients:
            client.close(1008, reason)

    def state_version(self) -> dict[str, int]:
        return {"presence": self.presence.version, "health": self.health.version}

    def publish_presence(self) -> None:
        payload = {"presence": self.presence.listing()}
        self.broadcaster.publish("presence", payload, drop_if_slow=True, state_version=self.state_version())

    def _publish_presence_soon(self) -> None:
        async def publish() -> None:
            await self.runtime.clock.sleep(PRESENCE_DELAY_S)
            self.publish_presence()

        if self._presence_told is None or self._presence_told.done():
            self._presence_told = asyncio.create_task(publish())

    def announce_pairing(self, request: Mapping[str, Any], decision: str) -> None:
        payload = {"requestId": request["requestId"], "deviceId": request["deviceId"], "decision": decision}
        payload["ts"] = self.runtime.clock.now_ms()
        self.broadcaster.publish("device.pair.resolved", payload, drop_if_slow=True)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs the work in a task of its own. Stopping the server waits for it."""
        task = self._loop.create_task(work)
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        return task

    # Services

    async def start_services(self) -> None:
        """Starts everything that goes on by itself."""
        try:
            await self.devices.load()
            await self.nodes.pairing.load()
        except OSError as error:
            log.error("paired devices and nodes cannot be read: %s", error)
        hearers = (self._end_old_secret, self._restart_if_needed, self._follow_mcp)
        unsubscribe = [self.runtime.config.subscribe(hear) for hear in hearers]
        self._unsubscribe = lambda: [forget() for forget in unsubscribe]
        await self._deliver_restart_note()
        await self._look_at_state()
        await self.health.refresh()
        self._services = [
            asyncio.create_task(self.runtime.config.watch(), name="config watch"),
            asyncio.create_task(self.loop_lag.watch(), name="loop lag"),
            self._every(TICK_INTERVAL_MS / 1000, self._tick, name="gateway tick"),
            self._every(HEALTH_INTERVAL_S, self.health.refresh, name="gateway health"),
            self._every(ARCHIVE_INTERVAL_S, self.compress_old, name="old transcripts", first=FIRST_CLEANUP_S),
            self._every(PRUNE_INTERVAL_S, self._prune_ledger, name="old messages", first=FIRST_CLEANUP_S),
            self._every(MAINTENANCE_INTERVAL_S, self.maintain_sessions, name="sessions", first=FIRST_CLEANUP_S),
            self._every(SEARCH_INTERVAL_S, self._update_search, name="search index"),
            self._every(STATE_INTERVAL_S, self._look_at_state, name="state folder"),
        ]
        if self.tls is not None:
            self._services.append(self._every(TLS_INTERVAL_S, self.tls.refresh, name="certificate"))
        self.ready = True

    async def stop(self) -> None:
        """Ends what ``start_services`` began. The stores stay open; ``close_gateway`` closes them."""
        self.ready = False
        self._unsubscribe()
        self.restart.stop()
        self.health.stop()
        tasks = [*self._services, *([self._presence_told] if self._presence_told else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._services = []

    def _every(
        self, seconds: float, action: Callable[[], Awaitable[Any]], *, name: str, first: float | None = None
    ) -> asyncio.Task[None]:
        """Repeats the action; ``first`` is the pause before the first time."""

        async def repeat() -> None:
            await self.runtime.clock.sleep(seconds if first is None else first)
            while True:
                try:
                    await action()
                except Exception:
                    log.exception("a regular task failed and will be tried again")
                await self.runtime.clock.sleep(seconds)

        return asyncio.create_task(repeat(), name=name)

    async def _tick(self) -> None:
        self.broadcaster.publish("tick", {"ts": self.runtime.clock.now_ms()}, drop_if_slow=True)

    async def _look_at_state(self) -> None:
        for problem in await asyncio.to_thread(self.state_watch.look):
            self.repairs.note(problem)

    async def _update_search(self) -> None:
        await self.search.update(self.transcript_folders())

    async def compress_old(self, after_days: int | None = None, most: int = 200) -> Compressed:
        """Compresses at most that many old transcripts. The next call goes on with the rest.

        ``after_days`` None takes the configured age; 0 or less compresses nothing.
        """
        days = self.runtime.config.current.session.archive.after_days if after_days is None else after_days
        if days <= 0:
            return Compressed()
        before = self.runtime.clock.now_ms() - days * DAY_MS
        return await self.runtime.transcripts.compress(self.agent_ids(), before, most=most)

    async def maintain_sessions(self) -> None:
        """Keeps the sessions within ``session.maintenance``. Several Gateways on one database keep all of them."""
        if self.cluster is None:
            await self.maintenance.look()

    async def _prune_ledger(self) -> None:
        before = self.runtime.clock.now_ms() - LEDGER_DAYS * DAY_MS
        while await self.runtime.ledger.prune(before):
            pass  # Each call removes a few messages, so that others need not wait for the ledger.

    async def tell_repairs(self) -> None:
        """Tells the owner, in the main session and where its last message came from, what had to be mended."""
        self.repairs.changed = self._repairs_changed
        found = self.repairs.take()
        if not found:
            return
        config = self.runtime.config.current
        session = SessionRef(default_agent_id(config), self.main_session_key())
        text = "\n".join(f"⚠️ {sentence}" for sentence in found)
        try:
            await self.notices.tell_owner(session, text)
        except OSError as error:
            log.error("the owner cannot be told what was mended: %s", error)

    def _repairs_changed(self) -> None:
        """Any thread may call this. After the loop has closed, nobody can be told."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self.spawn(self.tell_repairs()))

    async def _deliver_restart_note(self) -> None:
        note = await self.restart.take_note()
        if note is None:
            return
        key = note.get("sessionKey")
        text = note.get("message") or f"The Gateway restarted ({note.get('kind', 'restart')})."
        self.runtime.notes.add(self.canonical_key(key if isinstance(key, str) else None), str(text))

    def _follow_mcp(self, _old: Config, _new: Config, changed: Sequence[str]) -> None:
        """Closes servers that the configuration no longer has, also if no run needs one."""
        if any(path.startswith("mcp") for path in changed):
            self.mcp.follow_config()

    def _restart_if_needed(self, old: Config, new: Config, changed: Sequence[str]) -> None:
        mode = new.gateway.reload.mode
        wants_restart = reload_action(list(changed)) == "restart" or mode == "restart"
        if wants_restart and mode in ("hybrid", "restart"):
            self.restart.schedule(f"config changed: {', '.join(changed[:5])}")


async def _close_after_answer(client: Client, reason: str) -> None:
    """Runs after the call that began it: its answer is written by then, or waits for room in the buffer."""
    await client.sink.room()
    client.close(1008, reason)


# The event loop


class LoopFairness:
    """Lets some tasks through in each pass of the loop, in the order they came.

    A hundred answers that arrive at the same moment would otherwise be handled in one pass, a millisecond each, and no
    timer, no socket and no other client would get its turn in between.
    """

    def __init__(self, most: int = MOST_PER_PASS) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._in_line = False
        """True while tasks wait. New tasks then join the queue instead of passing it."""

    async def enter(self) -> None:
        if self._in_line or self._passed >= self._most:
            self._in_line = True
            turn = self._loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        if self._passed == 0:
            self._loop.call_soon(self._next_pass)
        self._passed += 1

    def _next_pass(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < self._most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._passed += 1
        self._in_line = self._passed > 0
        if self._in_line:
            # The next pass begins after the tasks of this one have run.
            self._loop.call_soon(self._next_pass)


class LoopLag:
    """Measures how late the event loop wakes a task that sleeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.histogram = Histogram(LAG_SECONDS)
        """All samples since the start, in seconds."""
        self.worst = 0.0

    async def watch(self) -> None:
        while True:
            due = self._clock.monotonic() + INTERVAL_S
            await self._clock.sleep(INTERVAL_S)
            self.note(max(0.0, self._clock.monotonic() - due))

    def note(self, lag_s: float) -> None:
        self._recent.append(lag_s)
        self.histogram.add(lag_s)
        self.worst = max(self.worst, lag_s)

    def percentile(self, share: float) -> float:
        """The percentile of the last minute in seconds; 0 without samples."""
        if not self._recent:
            return 0.0
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# Restart


class Restart:
    """Schedules a restart. ``requested`` is set once it is due, and the process waits for it."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        self._clock = clock
        self._path = Path(state_dir) / SENTINEL_NAME
        self._pending: asyncio.Task[None] | None = None
        self.requested = asyncio.Event()
        self.reason = ""

    @property
    def path(self) -> str:
        return str(self._path)

    def schedule(self, reason: str, delay_ms: int = DEFAULT_DELAY_MS) -> dict[str, Any]:
        """Asks for a restart in this process; a later request replaces an earlier one that is still waiting."""
        delay_ms = max(0, min(delay_ms, MAX_DELAY_MS))
        if self._pending is not None:
            self._pending.cancel()
        self.reason = reason
        self._pending = asyncio.create_task(self._after(delay_ms))
        restart_log.info("restart in %d ms: %s", delay_ms, reason)
        return self.report(reason, delay_ms, "emit")

    @staticmethod
    def report(reason: str, delay_ms: int, mode: str) -> dict[str, Any]:
        """The ``restart`` block clients read; ``mode`` is ``emit`` for a restart and ``hot`` when none is needed."""
        facts: dict[str, Any] = {"ok": True, "pid": os.getpid(), "signal": "SIGUSR1", "delayMs": delay_ms}
        return {**facts, "reason": reason, "mode": mode}

    async def _after(self, delay_ms: int) -> None:
        await self._clock.sleep(delay_ms / 1000)
        self.requested.set()

    async def leave_note(self, payload: dict[str, Any]) -> None:
        text = json.dumps({"version": 1, "payload": payload}, indent=2, ensure_ascii=False) + "\n"
        await asyncio.to_thread(write_private, str(self._path), text)

    async def take_note(self) -> dict[str, Any] | None:
        """The note of the process before this one. It is removed when it is read."""

        def take() -> Any:
            note = json.loads(self._path.read_bytes())
            self._path.unlink()
            return note

        try:
            note = await asyncio.to_thread(take)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            restart_log.warning("%s cannot be read: %s", self._path, error)
            return None
        payload = note.get("payload") if isinstance(note, dict) else None
        return payload if isinstance(payload, dict) else None

    def stop(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


# Presence

PRESENT_MS = 5 * 60_000
MAX_PRESENT = 200
PresenceEntry: TypeAlias = dict[str, Any]
LONGEST_ANNOUNCEMENT = 1000
_HOST = re.compile(r"Node:([^()]+)(?:\(([^()]*)\))?")
_IDLE = re.compile(r"last input (\d{1,9})s ago")


class Presence:
    """The presence list and its version. Connected clients stay in it; other entries expire after five minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, PresenceEntry] = {}
        self._connected: dict[str, int] = {}
        self._self = _self_entry()
        self.version = 1

    def connect(self, key: str, entry: PresenceEntry) -> None:
        self._connected[key.lower()] = self._connected.get(key.lower(), 0) + 1
        self.upsert(key, {**entry, "reason": "connect"})

    def disconnect(self, key: str) -> None:
        """Removes one connection; the entry says ``disconnect`` once the last one under this key is gone."""
        name = key.lower()
        left = self._connected.get(name, 0) - 1
        if left > 0:
            self._connected[name] = left
            return
        self._connected.pop(name, None)
        if name in self._entries:
            self.upsert(key, {"reason": "disconnect"})

    def upsert(self, key: str, entry: PresenceEntry) -> None:
        name = key.lower()
        merged = {**self._entries.pop(name, {}), **{k: v for k, v in entry.items() if v is not None}}
        merged["ts"] = self._clock.now_ms()
        where = f" ({merged['ip']})" if merged.get("ip") else ""
        mode = f" · mode {merged['mode']}" if merged.get("mode") else ""
        merged["text"] = entry.get("text") or f"Node: {merged.get('host', 'unknown')}{where}{mode}"
        self._entries[name] = merged
        self.version += 1
        self._prune()

    def announce(self, text: str, facts: PresenceEntry) -> bool:
        """Takes a ``Node: …`` line as the presence of a machine. Returns False when the text is not one."""
        parsed = _parsed(text) if len(text) <= LONGEST_ANNOUNCEMENT else None
        if parsed is None:
            return False
        entry = {**parsed, **{k: v for k, v in facts.items() if v is not None}, "text": text}
        key = entry.get("deviceId") or entry.get("instanceId") or entry["host"] or entry.get("ip") or text[:64]
        self.upsert(str(key), entry)
        return True

    def listing(self) -> list[PresenceEntry]:
        """All entries, newest first. The Gateway's own entry always has the current time."""
        self._prune()
        own = {**self._self, "ts": self._clock.now_ms()}
        return sorted([own, *self._entries.values()], key=lambda entry: -entry["ts"])

    def _prune(self) -> None:
        oldest = self._clock.now_ms() - PRESENT_MS
        for name in [n for n, e in self._entries.items() if e["ts"] < oldest and n not in self._connected]:
            del self._entries[name]
        for name in list(self._entries)[: max(0, len(self._entries) - MAX_PRESENT)]:
            del self._entries[name]


def _parsed(text: str) -> PresenceEntry | None:
    """Reads ``Node: host (ip) · app 1.2 · last input 5s ago · mode local · reason periodic``."""
    parts = [" ".join(part.split()) for part in text.split("·", 4)]
    if len(parts) != 5:
        return None
    machine, idle = _HOST.fullmatch(parts[0]), _IDLE.fullmatch(parts[2])
    (app, _, version), (mode_is, _, mode), (reason_is, _, reason) = (parts[n].partition(" ") for n in (1, 3, 4))
    labels = app, mode_is, reason_is
    if machine is None or idle is None or labels != ("app", "mode", "reason") or not (version and mode and reason):
        return None
    entry: PresenceEntry = {"host": machine[1].strip(), "ip": machine[2], "version": version, "mode": mode}
    return {**entry, "reason": reason, "lastInputSeconds": int(idle[1])}


def _self_entry() -> PresenceEntry:
    host, ip = socket.gethostname(), ""
    # The address of the interface that leads to other networks. Nothing is sent to find it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        ip = probe.getsockname()[0]
    shown = f"{host} ({ip})" if ip else host
    entry: PresenceEntry = {"host": host, "ip": ip, "version": __version__}
    entry |= {"platform": f"{platform.system().lower()} {platform.release()}", "deviceFamily": platform.system()}
    entry |= {"modelIdentifier": platform.machine(), "mode": "gateway", "reason": "self"}
    entry["text"] = f"Gateway: {shown} · app {__version__} · mode gateway · reason self"
    return {key: value for key, value in entry.items() if value}
