"""The parts of a running Gateway in one record. ``services.py`` has the work that it does in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw.config.agents import default_agent_id, main_key, main_session_key, user_zone
from openclaw.gateway.auth.authorise import SharedSecret, same_secret, shared_secret
from openclaw.gateway.server.server import Sockets
from openclaw.sessions.keys import canonical_key, shown_key
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files.newer_state import StateWatch

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.gateway.auth.authorise import FailedAuthLimiter
    from openclaw.gateway.auth.devices import Devices
    from openclaw.gateway.channels import ChannelServices
    from openclaw.gateway.cluster.single import Cluster, SchedulerService
    from openclaw.gateway.disk_check import DiskCheck
    from openclaw.gateway.event_loop import LoopFairness, LoopLag
    from openclaw.gateway.health import Health
    from openclaw.gateway.http.control_ui import SignInTickets
    from openclaw.gateway.messenger import MessageSender
    from openclaw.gateway.methods.sessions import FolderImport
    from openclaw.gateway.metrics import Metrics
    from openclaw.gateway.nodes import Nodes
    from openclaw.gateway.presence import Presence
    from openclaw.gateway.restart import Restart
    from openclaw.gateway.server.events import Broadcaster, Client
    from openclaw.gateway.server.registry import MethodTable
    from openclaw.gateway.server.subscriptions import SessionSubscriptions
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
    from openclaw.teamwork.team import Team
    from openclaw.tools.browser.browsers import Browsers
    from openclaw.tools.browser.tool import BrowserTool

T = TypeVar("T")


class OpenCalls(set[asyncio.Task[Any]]):
    """The tasks that stopping the server waits for."""

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


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
    subscriptions: SessionSubscriptions
    """The connections of protocol 4 that follow sessions."""
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
    sockets: Sockets
    """The open connections, of strangers and of known callers."""
    restart: Restart
    metrics: Metrics
    loop_lag: LoopLag
    loop_fairness: LoopFairness
    channel_services: ChannelServices
    """The channels and the worker that delivers to them."""
    runs: Runs
    """The runs under way."""
    maintenance: Maintenance
    """Archives old sessions and compresses old transcripts."""
    notices: Notices
    """The Gateway's own messages in chats."""
    calls: OpenCalls
    """Calls being answered. A call runs to its end even when its client has left."""
    cluster: Cluster
    """The nodes that share the storage of this Gateway."""
    pipeline: Pipeline
    """The one way in for messages."""
    team: Team
    """The sub-agents and the messages between sessions."""
    heartbeats: Heartbeats
    cron: Cron
    """The scheduled jobs."""
    hook_runs: HookRuns
    """The turns of webhooks."""
    scheduler: SchedulerService
    """Runs the three above while this node owns them."""
    turns: ScheduledTurns
    """How turns without a message begin and are announced."""
    browsers: Browsers
    """The browsers that agents drive."""
    browser_tool: BrowserTool
    messenger: MessageSender
    """Sends messages without a run."""
    mcp: McpServers
    """The MCP servers whose tools the agents use."""
    repairs: Repairs
    """What the stores found damaged. ``Services`` reports it to the owner."""
    state_watch: StateWatch
    given_secret: SharedSecret | None
    """The secret from the command line. It overrides the configuration while this process runs."""
    owner_key: str
    """The key in the lock file. A process that sends it runs as the Gateway's own user."""
    tls: ServerTls | None
    """The certificate, when the Gateway serves TLS."""
    started_at: int
    port: int = 0
    ready: bool = False
    """Whether ``/readyz`` says yes. It is set once the services run."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop, so that HTTP requests that wait for a run get an answer."""
    folder_import: FolderImport | None = None
    """The most recent import of another state folder."""

    # What the configuration says about sessions

    def main_session_key(self) -> str:
        config = self.runtime.config.current
        return main_session_key(config, default_agent_id(config))

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
        self.presence.publish_soon(self.publish_presence)

    def client_left(self, client: Client) -> None:
        self.broadcaster.remove(client)
        self.subscriptions.client_left(client.conn_id)
        self.nodes.connected.left(client.conn_id)
        if client.presence_key is not None:
            self.presence.disconnect(client.presence_key)
            self.presence.publish_soon(self.publish_presence)

    def end_device(self, device_id: str, role: str | None, reason: str, *, last: Client | None = None) -> None:
        """Close the connections of a device, for one role or for all.

        ``last`` is the caller, whose own connection is closed once it has its answer.
        """
        for client in list(self.broadcaster.clients.values()):
            if client.device_id != device_id or role not in (None, client.role):
                continue
            if client is last:
                self.spawn(_close_after_answer(client, reason))
            else:
                client.close(1008, reason)

    def state_version(self) -> dict[str, int]:
        return {"presence": self.presence.version, "health": self.health.version}

    def publish_presence(self) -> None:
        payload = {"presence": self.presence.listing()}
        self.broadcaster.publish("presence", payload, drop_if_slow=True, state_version=self.state_version())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the work in a task. Stopping the server waits for it."""
        return self.calls.spawn(work)


async def _close_after_answer(client: Client, reason: str) -> None:
    """Run after the call that began it: its answer is written by then, or wait for room in the buffer."""
    await client.sink.room()
    client.close(1008, reason)
