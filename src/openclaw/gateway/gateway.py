"""The parts of a running Gateway in one record, and the services that run in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw.config.agents import default_agent_id, main_key, main_session_key, user_zone
from openclaw.config.store import reload_action
from openclaw.gateway.auth.authorise import SharedSecret, same_secret, shared_secret
from openclaw.gateway.server.connection import TICK_INTERVAL_MS
from openclaw.gateway.server.server import Sockets
from openclaw.paths import sessions_dir
from openclaw.sessions.keys import SessionRef, canonical_key, shown_key
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files.newer_state import StateWatch
from openclaw.storage.transcripts import Compressed

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.config.schema import Config
    from openclaw.gateway.auth.authorise import FailedAuthLimiter
    from openclaw.gateway.auth.devices import Devices
    from openclaw.gateway.channels import ChannelServices
    from openclaw.gateway.cluster.service import ClusterService, SchedulerService, SharedState
    from openclaw.gateway.disk_check import DiskCheck
    from openclaw.gateway.event_loop import LoopFairness, LoopLag
    from openclaw.gateway.health import Health
    from openclaw.gateway.http.control_ui import SignInTickets
    from openclaw.gateway.methods.sessions import FolderImport
    from openclaw.gateway.metrics import Metrics
    from openclaw.gateway.nodes import Nodes
    from openclaw.gateway.presence import Presence
    from openclaw.gateway.restart import Restart
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.server.registry import MethodTable
    from openclaw.gateway.session_directory import SessionDirectory
    from openclaw.gateway.session_maintenance import Maintenance
    from openclaw.gateway.tls import ServerTls
    from openclaw.inbound.names import ResolvedNames
    from openclaw.inbound.notices import Notices
    from openclaw.inbound.pairing import PairingStore
    from openclaw.inbound.pipeline import Pipeline
    from openclaw.mcp.servers import McpServers
    from openclaw.runs.runs import Runs
    from openclaw.scheduler.cron import Cron
    from openclaw.scheduler.heartbeat import Heartbeats
    from openclaw.scheduler.hooks import HookRuns
    from openclaw.scheduler.turns import ScheduledTurns
    from openclaw.sessions.search import TranscriptSearch
    from openclaw.teamwork.team import Team
    from openclaw.tools.browser.browsers import Browsers
    from openclaw.tools.browser.tool import BrowserTool

log = logging.getLogger("openclaw.gateway")
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


@dataclass(kw_only=True, eq=False)
class Gateway:
    """Everything that methods and HTTP endpoints use. ``assemble.py`` builds it; stores are in ``runtime``."""

    runtime: Runtime
    """The stores, the configuration and the clock; runs share it."""
    directory: SessionDirectory
    """Resolves the sessions that clients name."""
    environ: Mapping[str, str]
    methods: MethodTable
    broadcaster: Broadcaster
    presence: Presence
    devices: Devices
    """Devices that are paired or ask to be."""
    nodes: Nodes
    """Machines that carry out commands."""
    pairing: PairingStore
    """Senders on channels that are paired or ask to be."""
    names: ResolvedNames
    """The ids that listed names stand for."""
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
    runs: Runs = field(init=False)
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
        transcripts = self.runtime.stores.transcripts
        self.state_watch = StateWatch(self.runtime.state_dir, lambda agent: Path(transcripts.folder(agent)))

    # What the configuration says about sessions

    def main_session_key(self) -> str:
        config = self.runtime.config.current
        return main_session_key(config, default_agent_id(config))

    def agent_ids(self) -> list[str]:
        return self.directory.agent_ids()

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
        transcripts, state_dir = self.runtime.stores.transcripts, str(self.runtime.state_dir)
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
            self.repairs.note(problem.text)

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
        return await self.runtime.stores.transcripts.compress(self.agent_ids(), before, most=most)

    async def maintain_sessions(self) -> None:
        """Keeps the sessions within ``session.maintenance``. Several Gateways on one database keep all of them."""
        if self.cluster is None:
            await self.maintenance.look()

    async def _prune_ledger(self) -> None:
        before = self.runtime.clock.now_ms() - LEDGER_DAYS * DAY_MS
        while await self.runtime.stores.ledger.prune(before):
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
            await self.notices.notify_owner(session, text)
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
