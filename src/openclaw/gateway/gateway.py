"""The living parts of a Gateway in one place, for the methods and doors that need them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from openclaw.clock import Clock
from openclaw.config.agents import agent_ids, default_agent_id, main_key, main_session_key
from openclaw.gateway.auth.devices import Devices
from openclaw.gateway.auth.shared_auth import FailedAuthLimiter, SharedSecret, shared_secret
from openclaw.gateway.health import DiskCheck, Health
from openclaw.gateway.loop_fairness import Turnstile
from openclaw.gateway.metrics import Meter, StallMonitor
from openclaw.gateway.restart import Restart
from openclaw.gateway.server.broadcast import Broadcaster, Client
from openclaw.gateway.server.handshake import TICK_INTERVAL_MS
from openclaw.gateway.server.presence import Presence
from openclaw.gateway.system_events import SystemEvents
from openclaw.inbound.pairing import PairingStore
from openclaw.outbound.visible import visible_text
from openclaw.paths import sessions_dir
from openclaw.sessions.archive import INTERVAL_S as ARCHIVE_INTERVAL_S
from openclaw.sessions.archive import compress_old
from openclaw.sessions.keys import canonical_key, shown_key
from openclaw.sessions.search import SearchIndex
from openclaw.storage.base import BlobStore, Ledger, SessionStore, TranscriptStore

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.config.schema import Config
    from openclaw.config.store import ConfigStore
    from openclaw.gateway.channel_services import ChannelServices
    from openclaw.gateway.receive import Reception
    from openclaw.models.calls import ModelCalls
    from openclaw.models.catalogue import Catalogue
    from openclaw.runs.dispatcher import Dispatcher

T = TypeVar("T")
HEALTH_INTERVAL_S = 60.0
SETTLED_S = 3.0
"""After the start: time for what is not urgent."""
SEARCH_INTERVAL_S = 300.0
PRESENCE_PAUSE_S = 0.05
"""Presence changes of a burst of connections are told once."""

log = logging.getLogger("openclaw.gateway")


class Gateway:
    """Holds the parts; decides nothing about messages. ``make_catalogue`` renews the models when the config changes."""

    runtime: Runtime
    """What runs share; attached by whoever puts the Gateway together, before it serves."""
    model_calls: ModelCalls
    """Makes the model calls; attached likewise."""
    dispatcher: Dispatcher
    """Active runs; attached likewise."""
    channel_services: ChannelServices | None = None
    reception: Reception
    """Where channels hand messages in; attached likewise."""
    """Channels and their outbox worker; attached likewise."""

    def __init__(
        self,
        *,
        state_dir: str,
        config: ConfigStore,
        clock: Clock,
        sessions: SessionStore,
        transcripts: TranscriptStore,
        ledger: Ledger,
        blobs: BlobStore,
        catalogue: Catalogue,
        make_catalogue: Callable[[Config], Catalogue] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.state_dir = state_dir
        self.config = config
        self.clock = clock
        self.sessions = sessions
        self.transcripts = transcripts
        self.ledger = ledger
        self.blobs = blobs
        self.catalogue = catalogue
        self._make_catalogue = make_catalogue or self._catalogue_of
        self.environ = environ
        self.given_secret: SharedSecret | None = None
        """A secret from the command line; it wins over the configuration for this run of the process."""
        self.started_at = clock.now_ms()
        self.port = 0
        self.ready = False
        """Whether ``/readyz`` says yes; set once the services run."""
        self.leaving = asyncio.Event()
        """Set when the server begins to stop: whoever waits for a run over HTTP is told, not cut off."""
        self.broadcaster = Broadcaster()
        self.presence = Presence(clock)
        self.devices = Devices(state_dir, clock)
        self.pairing = PairingStore(state_dir, clock)
        self.health = Health(self)
        self.disk = DiskCheck(state_dir, clock)
        self.auth_limiter = FailedAuthLimiter(clock)
        self.system_events = SystemEvents(clock, self.user_zone)
        self.restart = Restart(state_dir, clock)
        self.meter = Meter()
        self.search = SearchIndex(state_dir, visible_text)
        self.stalls = StallMonitor(clock)
        self.calls: set[asyncio.Task[Any]] = set()
        self.turnstile = Turnstile()
        self._loop = asyncio.get_running_loop()
        """Calls being answered; one whose client has left still runs to its end."""
        self._services: list[asyncio.Task[None]] = []
        self._presence_told: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    # What the configuration says about sessions

    @property
    def config_path(self) -> str:
        return self.config.snapshot.path

    def main_session_key(self) -> str:
        config = self.config.current
        return main_session_key(config, default_agent_id(config))

    def agent_ids(self) -> list[str]:
        """The default agent first, then the other configured ones, then those that only have sessions left."""
        config = self.config.current
        return list(dict.fromkeys([default_agent_id(config), *agent_ids(config), *self.sessions.agent_ids]))

    def canonical_key(self, key: str | None) -> str:
        config = self.config.current
        return canonical_key(
            key, default_agent=default_agent_id(config), main_key=main_key(config), scope=config.session.scope
        )

    def session_defaults(self) -> dict[str, Any]:
        config = self.config.current
        return {
            "defaultAgentId": default_agent_id(config),
            "mainKey": main_key(config),
            "mainSessionKey": shown_key(self.canonical_key("main")),
            "scope": config.session.scope,
        }

    def user_zone(self) -> tzinfo | None:
        """The zone people read times in; None is the machine's own."""
        name = self.config.current.agents.defaults.user_timezone
        try:
            return ZoneInfo(name) if name else None
        except (ZoneInfoNotFoundError, ValueError):
            return None

    def secret(self) -> SharedSecret:
        return self.given_secret or shared_secret(self.config.current, self.environ)

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
        self.tell_presence_soon()

    def client_left(self, client: Client) -> None:
        self.broadcaster.remove(client)
        if client.presence_key is not None:
            self.presence.disconnect(client.presence_key)
            self.tell_presence_soon()

    def state_version(self) -> dict[str, int]:
        return {"presence": self.presence.version, "health": self.health.version}

    def tell_presence(self) -> None:
        payload = {"presence": self.presence.listing()}
        self.broadcaster.publish("presence", payload, drop_if_slow=True, state_version=self.state_version())

    def tell_presence_soon(self) -> None:
        if self._presence_told is None or self._presence_told.done():
            self._presence_told = asyncio.create_task(self._tell_presence_after_pause())

    async def _tell_presence_after_pause(self) -> None:
        await self.clock.sleep(PRESENCE_PAUSE_S)
        self.tell_presence()

    def announce_pairing(self, request: Mapping[str, Any], decision: str) -> None:
        payload = {"requestId": request["requestId"], "deviceId": request["deviceId"], "decision": decision}
        payload["ts"] = self.clock.now_ms()
        self.broadcaster.publish("device.pair.resolved", payload, drop_if_slow=True)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Answers a call in its own task, which stopping the server waits for."""
        task = self._loop.create_task(work)
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        return task

    # Life

    async def start_services(self) -> None:
        """Everything that goes on by itself. Raises nothing for a damaged device file; it is put aside."""
        await self.devices.load()
        self._unsubscribe = self.config.subscribe(self._config_changed)
        await self._deliver_restart_note()
        await self.health.refresh()
        self._services = [
            asyncio.create_task(self._every(TICK_INTERVAL_MS / 1000, self._tick), name="gateway tick"),
            asyncio.create_task(self._every(HEALTH_INTERVAL_S, self._refresh_health), name="gateway health"),
            asyncio.create_task(self.config.watch(), name="config watch"),
            asyncio.create_task(self.stalls.watch(), name="stall monitor"),
            asyncio.create_task(
                self._every(ARCHIVE_INTERVAL_S, self._compress_old, first=SETTLED_S), name="old transcripts"
            ),
            asyncio.create_task(self._every(SEARCH_INTERVAL_S, self._read_for_search), name="search index"),
        ]
        self.ready = True

    async def stop(self) -> None:
        """Ends what ``start_services`` began; the stores stay open for whoever opened them."""
        self.ready = False
        if self._unsubscribe is not None:
            self._unsubscribe()
        self.restart.stop()
        self.health.stop()
        tasks = [*self._services, *([self._presence_told] if self._presence_told else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._services = []

    async def _every(
        self, seconds: float, action: Callable[[], Awaitable[None]], *, first: float | None = None
    ) -> None:
        await self.clock.sleep(seconds if first is None else first)
        while True:
            try:
                await action()
            except Exception:
                log.exception("a regular task failed and will be tried again")
            await self.clock.sleep(seconds)

    async def _tick(self) -> None:
        self.broadcaster.publish("tick", {"ts": self.clock.now_ms()}, drop_if_slow=True)

    async def _read_for_search(self) -> None:
        await asyncio.to_thread(self.search.update, self.transcript_folders())

    def transcript_folders(self) -> dict[str, list[Path]]:
        """By agent, where transcripts are: beside the store, and where they are without one."""
        return {
            agent: list(
                dict.fromkeys([Path(self.sessions.path(agent)).parent, Path(sessions_dir(self.state_dir, agent))])
            )
            for agent in self.agent_ids()
        }

    async def _compress_old(self) -> None:
        await compress_old(self.transcripts, self.agent_ids(), self.config.current, self.clock.now_ms())

    async def _refresh_health(self) -> None:
        await self.health.refresh()

    async def _deliver_restart_note(self) -> None:
        note = await self.restart.take_note()
        if note is None:
            return
        key = note.get("sessionKey")
        text = note.get("message") or f"The Gateway restarted ({note.get('kind', 'restart')})."
        self.system_events.add(self.canonical_key(key if isinstance(key, str) else None), str(text))

    def _catalogue_of(self, config: Config) -> Catalogue:
        from openclaw.models.catalogue import Catalogue

        return Catalogue(config, self.environ, state_dir=self.state_dir)

    def _config_changed(self, old: Config, new: Config, changed: Sequence[str]) -> None:
        from openclaw.config.store import reload_action

        self.catalogue = self._make_catalogue(new)
        mode = new.gateway.reload.mode
        wants_restart = reload_action(list(changed)) == "restart" or mode == "restart"
        if wants_restart and mode in ("hybrid", "restart"):
            self.restart.schedule(f"config changed: {', '.join(changed[:5])}")
