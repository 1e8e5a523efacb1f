"""The work that a running Gateway does in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from openclaw.config.agents import default_agent_id
from openclaw.config.store import reload_action
from openclaw.gateway.auth.authorise import shared_secret
from openclaw.gateway.server.connection import TICK_INTERVAL_MS
from openclaw.sessions.keys import SessionRef

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.events import Client

log = logging.getLogger("openclaw.gateway")
HEALTH_INTERVAL_S = 60.0
SEARCH_INTERVAL_S = 300.0
ARCHIVE_INTERVAL_S = 3600.0
MAINTENANCE_INTERVAL_S = 30.0
PRUNE_INTERVAL_S = 24 * 3600.0
FIRST_CLEANUP_S = 3.0
"""The delay of the first cleanup, so that it does not slow the start down."""
STATE_INTERVAL_S = 30
"""How often the state folder is checked for changes by others."""
TLS_INTERVAL_S = 3600
"""How often the certificate is checked for replacement and expiry."""
LAST_ANSWERS_S = 1.0
"""How long a connection whose secret was changed stays open for answers that are under way."""


class Services:
    """Watches the configuration, the state folder and the certificate, publishes health, and cleans up regularly."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._runtime = gateway.runtime
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriptions = contextlib.ExitStack()

    async def start(self) -> None:
        """Start everything that runs in the background."""
        gateway, maintenance = self._gateway, self._gateway.maintenance
        try:
            await gateway.devices.load()
            await gateway.nodes.pairing.load()
        except OSError as error:
            log.error("paired devices and nodes cannot be read: %s", error)
        for subscriber in (self._end_old_secret, self._restart_if_needed, self._follow_mcp):
            self._subscriptions.callback(self._runtime.config.subscribe(subscriber))
        await self._deliver_restart_note()
        await self.check_state()
        await gateway.health.refresh()
        self._tasks = [
            asyncio.create_task(self._runtime.config.watch(), name="config watch"),
            asyncio.create_task(gateway.loop_lag.watch(), name="loop lag"),
            self._every(TICK_INTERVAL_MS / 1000, self._tick, name="gateway tick"),
            self._every(HEALTH_INTERVAL_S, gateway.health.refresh, name="gateway health"),
            self._every(ARCHIVE_INTERVAL_S, maintenance.compress, name="old transcripts", first=FIRST_CLEANUP_S),
            self._every(PRUNE_INTERVAL_S, maintenance.prune_ledger, name="old messages", first=FIRST_CLEANUP_S),
            self._every(MAINTENANCE_INTERVAL_S, self._maintain, name="sessions", first=FIRST_CLEANUP_S),
            self._every(SEARCH_INTERVAL_S, self._update_search, name="search index"),
            self._every(STATE_INTERVAL_S, self.check_state, name="state folder"),
        ]
        if gateway.tls is not None:
            self._tasks.append(self._every(TLS_INTERVAL_S, gateway.tls.refresh, name="certificate"))
        gateway.ready = True

    async def stop(self) -> None:
        """Stop what ``start`` began. ``close_gateway`` closes the parts."""
        self._gateway.ready = False
        self._subscriptions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _every(
        self, seconds: float, action: Callable[[], Awaitable[Any]], *, name: str, first: float | None = None
    ) -> asyncio.Task[None]:
        """Repeat the action. ``first`` is the pause before the first time."""

        async def repeat() -> None:
            await self._runtime.clock.sleep(seconds if first is None else first)
            while True:
                try:
                    await action()
                except Exception:
                    log.exception("a regular task failed and will be tried again")
                await self._runtime.clock.sleep(seconds)

        return asyncio.create_task(repeat(), name=name)

    async def _tick(self) -> None:
        self._gateway.broadcaster.publish("tick", {"ts": self._runtime.clock.now_ms()}, drop_if_slow=True)

    async def check_state(self) -> None:
        for problem in await asyncio.to_thread(self._gateway.state_watch.look):
            self._gateway.repairs.note(problem.text)

    async def _update_search(self) -> None:
        await self._runtime.search.update(self._gateway.directory.transcript_folders())

    async def _maintain(self) -> None:
        await self._gateway.cluster.maintain(self._gateway.maintenance)

    async def report_repairs(self) -> None:
        """Report repairs to the owner, in the main session and where its last message came from."""
        self._gateway.repairs.changed = self._repairs_changed
        sentences = self._gateway.repairs.take()
        if not sentences:
            return
        config = self._runtime.config.current
        session = SessionRef(default_agent_id(config), self._gateway.main_session_key())
        text = "\n".join(f"⚠️ {sentence}" for sentence in sentences)
        try:
            await self._gateway.notices.notify_owner(session, text)
        except OSError as error:
            log.error("repairs cannot be reported to the owner: %s", error)

    def _repairs_changed(self) -> None:
        """Thread-safe. Does nothing once the event loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._gateway.spawn(self.report_repairs()))

    async def _deliver_restart_note(self) -> None:
        note = await self._gateway.restart.take_note()
        if note is None:
            return
        key = note.get("sessionKey")
        text = note.get("message") or f"The Gateway restarted ({note.get('kind', 'restart')})."
        self._runtime.notes.add(self._gateway.canonical_key(key if isinstance(key, str) else None), str(text))

    def _follow_mcp(self, _old: Config, _new: Config, changed: Sequence[str]) -> None:
        """Close servers that the configuration no longer has, even if no run needs one."""
        if any(path.startswith("mcp") for path in changed):
            self._runtime.tools.mcp.follow_config()

    def _restart_if_needed(self, old: Config, new: Config, changed: Sequence[str]) -> None:
        mode = new.gateway.reload.mode
        wants_restart = reload_action(list(changed)) == "restart" or mode == "restart"
        if wants_restart and mode in ("hybrid", "restart"):
            self._gateway.restart.schedule(f"config changed: {', '.join(changed[:5])}")

    def _end_old_secret(self, old: Config, new: Config, _changed: Sequence[str]) -> None:
        """Close every connection whose secret is no longer valid.

        Such a client has no rights from now on. Its earlier calls are still answered, such as the one that changed the
        secret.
        """
        before, now = shared_secret(old, self._gateway.environ), shared_secret(new, self._gateway.environ)
        if self._gateway.given_secret is not None or (before.mode, before.value) == (now.mode, now.value):
            return
        ended = [client for client in self._gateway.broadcaster.clients.values() if not client.by_device_token]
        for client in ended:
            client.scopes = client.rights = frozenset()
        if ended:
            reason = f"gateway {now.mode} changed; connect again with the new one"
            self._gateway.spawn(self._close_after_calls(ended, reason, set(self._gateway.calls)))

    async def _close_after_calls(self, clients: list[Client], reason: str, calls: set[asyncio.Task[Any]]) -> None:
        if calls:
            await asyncio.wait(calls, timeout=LAST_ANSWERS_S)
        for client in clients:
            client.close(1008, reason)
